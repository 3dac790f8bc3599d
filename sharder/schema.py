"""CONTRACT: the tables of a dataset's manifest. docs/format.md is generated from the schemas below."""

from __future__ import annotations

import re
from typing import Literal

import pyarrow as pa

from framedex.core.column_rules import FAR, ColumnRule, Key
from framedex.indexer.schema import VIDEO_RULES, VIDEOS, column, list_of, required

FORMAT = "framedex-dataset"
SCHEMA_VERSION = "3.6"
PROVES = (3, 6)  # the version from which on all media were proven whose codec needs it (`indexer.schema.SCANNED`)
HEADER, POLICY_NAME, FAILURES_NAME = "dataset.json", "policy.yaml", "failures.parquet"
SHARDS_NAME, COLUMNS_NAME, FIELDS_NAME = "shards.parquet", "columns.parquet", "fields.parquet"
CLIPS_FOLDER, RECIPES_FOLDER, MEDIA_FOLDER, SHARDS_FOLDER = "clips", "recipes", "media", "shards"

PAD = -1  # a wanted frame that is padding
MOST_VIEWS = 256
Missing = Literal["error", "skip", "mask"]  # how a clip is treated if a view has no frame for it

# `clips` has these columns, and then the user's own, with their original types.
CLIPS = pa.schema(
    [
        required("clip_id", pa.string(), "Unique name of the clip."),
        required("media_row", pa.int32(), "Row of the clip's medium in `media`."),
        required(
            "frames",
            list_of(pa.int32()),
            "Wanted frames in order, by presentation number from 0; repeats allowed; -1 for padding by a constant.",
            unit="frames",
        ),
        required("mask", list_of(pa.bool_()), "False where padded, by a constant or by repeating frames."),
        required("pts", list_of(pa.int64(), nullable=True), "Their timestamps; null for padding.", unit="time base"),
        required(
            "seconds",
            list_of(pa.float64(), nullable=True),
            "Their timestamps by the container's clock; null for padding.",
            unit="s",
        ),
        column(
            "md5",
            list_of(pa.binary(16), nullable=True),
            "MD5 over the native planes of each frame (as `frames.md5` of an index), null for padding; null "
            "where the index has none.",
        ),
        column(
            "shard",
            pa.int32(),
            "Number of the tar that holds the clip (a row of `shards`); null: its ranges point into the source.",
        ),
        column(
            "stretch_first",
            pa.int32(),
            "First frame of the stretch of the medium that the policy sampled: 0, or where a range begins. Null for "
            "explicit clips.",
            unit="frames",
        ),
        column("stretch_stop", pa.int32(), "The frame behind the stretch.", unit="frames"),
        column(
            "anchor_frame",
            pa.int32(),
            "Number of the frame that the clip is about; null where the policy has no such frame.",
            unit="frames",
        ),
        column(
            "multiview_id",
            pa.string(),
            "Name that the clips of several views share which belong together; null where a clip stands alone.",
        ),
        column("view_name", pa.string(), "Which of these views it is."),
        column(
            "view_away_seconds",
            list_of(pa.float64(), nullable=True),
            "Time of each frame minus the one that was wanted of the view; null for padding.",
            unit="s",
        ),
    ]
)

VIEW_COLUMNS = ("multiview_id", "view_name", "view_away_seconds")
VIEWS_SINCE = (3, 4)  # the version of the format that has them

RECIPES = pa.schema(
    [
        required("clip_id", pa.string(), "As in `clips`; row n of a recipes part belongs to row n of the clips part."),
        required(
            "range_offset",
            list_of(pa.int64()),
            "Byte ranges to read, in decode order: where each begins.",
            unit="bytes",
        ),
        required("range_length", list_of(pa.int64()), "How long each is.", unit="bytes"),
        column(
            "range_path",
            list_of(pa.string()),
            "Of loose images: the file of each range, relative to the medium's folder.",
        ),
        column("range_crc32", list_of(pa.int64()), "Of images: CRC-32 of each range."),
        required(
            "packet_size",
            list_of(pa.int32()),
            "Sizes of the packets that the joined ranges hold; the packets of one picture count as one.",
            unit="bytes",
        ),
        required(
            "packet_rank",
            list_of(pa.int32()),
            "Presentation rank of each packet within the clip's own stream, from 0.",
        ),
        required(
            "run_first",
            list_of(pa.int32()),
            "Number (in this clip) of the first packet of each run. Runs are decoded in sessions of their own.",
        ),
        required("run_open", list_of(pa.bool_()), "Whether the run begins at an open start point."),
        required(
            "run_state",
            list_of(pa.int32()),
            "Which of `media.states` each run's decoder must be given before its first packet.",
        ),
        required("damaged", pa.bool_(), "Some wanted frame lies in a damaged GOP."),
        required("position", list_of(pa.int32()), "For each wanted frame, its packet's rank; -1 for padding."),
        column(
            "audio_range_offset",
            list_of(pa.int64()),
            "Byte ranges of the clip's audio packets, or of its audio file in the tar: where each begins. Null "
            "where nobody asked for audio.",
            unit="bytes",
        ),
        column("audio_range_length", list_of(pa.int64()), "How long each is.", unit="bytes"),
        column(
            "audio_packet_size",
            list_of(pa.int32()),
            "Sizes of the packets that the joined ranges hold, those first that are decoded and dropped; null "
            "where the range is a FLAC or WAV file.",
            unit="bytes",
        ),
        column(
            "audio_packet_sample",
            list_of(pa.int64()),
            "Where each packet's first decoded sample lies, as `frames.audio_sample` of an index.",
            unit="samples",
        ),
        column(
            "audio_begin_sample",
            pa.int64(),
            "The first sample that is needed, at the medium's own rate.",
            unit="samples",
        ),
        column("audio_end_sample", pa.int64(), "Behind the last one.", unit="samples"),
        column(
            "audio_present",
            list_of(pa.int64()),
            "Of an audio file: begin and end of each stretch of samples that the medium presents, in turn; the "
            "others are silence.",
            unit="samples",
        ),
        column("audio_rate", pa.int32(), "The clip's sample rate.", unit="Hz"),
        column("audio_channels", pa.int32(), "Its channels."),
        column(
            "audio_first",
            pa.int64(),
            "Its first sample: sample k is at k / `audio_rate` seconds on the container's clock.",
            unit="samples",
        ),
        column("audio_count", pa.int64(), "How many samples it has.", unit="samples"),
    ]
)

AUDIO_COLUMNS = (
    "audio_stream_index",
    "audio_codec",
    "audio_codec_tag",
    "audio_rate",
    "audio_channels",
    "audio_layout",
    "audio_sample_format",
    "audio_bits_per_coded_sample",
    "audio_extradata",
    "audio_first_sample",
    "audio_end_sample",
    "audio_problem",
)
_CARRIED = [
    "media_id",
    "kind",
    "uri",
    "member",
    "member_offset",
    "member_bytes",
    "stream_index",
    "size_bytes",
    "mtime_ns",
    "fingerprint",
    "container",
    "codec",
    "codec_tag",
    "bits_per_coded_sample",
    "profile",
    "pixel_format",
    "width",
    "height",
    "rotation_degrees",
    "field_order",
    "sample_aspect_ratio",
    "color_range",
    "color_matrix",
    "color_primaries",
    "color_transfer",
    "time_base_num",
    "time_base_den",
    "start_pts",
    "pts_source",
    "duration_pts",
    "extradata",
    "states",
    "reorder_depth",
    "inband_parameter_sets",
    "inner_start_codes",
    "varying_shape",
    "chroma_format",
    "max_ref_frames",
    "field_coded",
    "hidden_unordered",
    "frame_count",
    "damaged_gop_count",
]
MEDIA = pa.schema([VIDEOS.field(name) for name in (*_CARRIED, *AUDIO_COLUMNS)])

FAILURES = pa.schema(
    [
        column("clip_id", pa.string(), "The clip that was asked for, where it had a name."),
        column("uri", pa.string(), "The medium it was asked of."),
        required("kind", pa.string(), "Short stable word for why there is no clip."),
        required("message", pa.string(), "The reason in words."),
        required(
            "counts",
            pa.bool_(),
            "Whether it counts as a failure of the run; what a policy leaves out by its own rules does not.",
        ),
        column("traceback", pa.string(), "Where framedex itself failed (`kind` is `internal_error`); else null."),
    ]
)

SHARDS = pa.schema(
    [
        required("name", pa.string(), "File in the dataset: a tar."),
        required("size_bytes", pa.int64(), "Its size.", unit="bytes"),
        required("fingerprint", pa.string(), "Its fingerprint, made as `videos.fingerprint` of an index."),
        required("clips", pa.int64(), "How many clips it holds."),
    ]
)


_SHARED = ("media_id", "uri", "member", "kind", "codec", "width", "height", "rotation_degrees", "color_transfer")
# One value for each clip, in few row groups, so that a column of all clips is one read. From version 3.5 on.
FIELDS = pa.schema(
    [
        *(CLIPS.field(name) for name in ("clip_id", "media_row", "shard", "multiview_id", "view_name")),
        required("wanted_frames", pa.int32(), "How many frames the clip has, padding included.", unit="frames"),
        column("begin_seconds", pa.float64(), "Least of `clips.seconds`; null where the clip has no time.", unit="s"),
        column("end_seconds", pa.float64(), "Greatest of `clips.seconds`.", unit="s"),
        *(VIDEOS.field(name) for name in _SHARED),
        column("duration_seconds", pa.float64(), "Duration of the medium.", unit="s"),
    ]
)

HEADER_KEYS = {
    "root": Key(kind=str),
    "images": Key(kind=dict, needed=False),
    "encode": Key(kind=dict, needed=False),
    "index_ffmpeg": Key(kind=list, element=str, needed=False),
    "views": Key(kind=dict, needed=False),
    "labels": Key(kind=dict, needed=False),
    "columns": Key(kind=list, element=str, needed=False, any_text=True),
    "job": Key(kind=str, needed=False),
    "clips_per_part": Key(kind=list, element=int, most=(1 << 31) - 1),
    "media_per_part": Key(kind=list, element=int, most=(1 << 31) - 1),
}

INT32 = (1 << 31) - 1
TIME = ColumnRule(least=-FAR, most=FAR)
BYTES = ColumnRule(least=0, most=FAR, needed=True)
COUNT = ColumnRule(least=0, most=INT32, needed=True)
PLACE = ColumnRule(least=PAD, most=INT32, needed=True)
CLIP_RULES = {
    "clip_id": ColumnRule(needed=True, any_text=True),
    "media_row": COUNT,
    "frames": PLACE,
    "mask": ColumnRule(needed=True),
    "pts": ColumnRule(needed=True),
    "seconds": ColumnRule(needed=True),
    "shard": ColumnRule(least=0, most=INT32),
    "stretch_first": ColumnRule(least=0, most=INT32),
    "stretch_stop": ColumnRule(least=0, most=INT32),
    "anchor_frame": ColumnRule(least=0, most=INT32),
    "multiview_id": ColumnRule(any_text=True),
    "view_name": ColumnRule(any_text=True),
}
RECIPE_RULES = {
    "range_offset": BYTES,
    "range_length": BYTES,
    "range_crc32": ColumnRule(least=0, most=(1 << 32) - 1),
    "packet_size": COUNT,
    "packet_rank": COUNT,
    "run_first": COUNT,
    "run_open": ColumnRule(needed=True),
    "run_state": COUNT,
    "damaged": ColumnRule(needed=True),
    "position": PLACE,
}
AUDIO_PLAN_RULES = {
    "audio_rate": ColumnRule(least=1, most=INT32, needed=True),
    "audio_channels": ColumnRule(least=1, most=1024, needed=True),
    "audio_first": ColumnRule(least=-FAR, most=FAR, needed=True),
    "audio_count": ColumnRule(least=0, most=FAR, needed=True),
    "audio_range_offset": BYTES,
    "audio_range_length": BYTES,
}
AUDIO_PACKET_RULES = {
    "audio_packet_size": COUNT,
    "audio_packet_sample": ColumnRule(least=-FAR, most=FAR, needed=True),
    "audio_begin_sample": ColumnRule(least=-FAR, most=FAR, needed=True),
    "audio_end_sample": ColumnRule(least=-FAR, most=FAR, needed=True),
}
AUDIO_FILE_RULES = {"audio_present": ColumnRule(least=0, most=FAR, needed=True)}
MEDIA_RULES = {name: rule for name, rule in VIDEO_RULES.items() if name in MEDIA.names}
SHARD_RULES = {
    "name": ColumnRule(needed=True),
    "size_bytes": BYTES,
    "fingerprint": ColumnRule(needed=True),
    "clips": COUNT,
}
SHARD_NAME = re.compile(rf"{SHARDS_FOLDER}/[^/\0]+\.tar")

# Reading one clip is one read: row groups are small, and parts keep their footers small. Measured on 100 000 clips of
# 400 packets (benchmarks/manifest.py): groups of 32 rows in parts of 4 096.
CLIPS_PER_PART, CLIPS_PER_ROW_GROUP, MEDIA_PER_ROW_GROUP = 4096, 32, 256
DELTA_COLUMNS = (
    "range_offset",
    "range_length",
    "packet_size",
    "packet_rank",
    "run_first",
    "run_state",
    "position",
    "audio_range_offset",
    "audio_range_length",
    "audio_packet_size",
    "audio_packet_sample",
)
