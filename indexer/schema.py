"""CONTRACT: the tables of an index. docs/format.md is generated from the schemas below."""

from __future__ import annotations

import pyarrow as pa

from framedex.core.column_rules import ColumnRule, Key
from framedex.records.columns import field_of, list_of, required, rules_of, schema_of
from framedex.records.medium import MOST_FRAMES, TIME, MediumRecord

FORMAT = "framedex-index"
SCHEMA_VERSION = "3.8"  # readers accept every minor version of their major version

# The error kind of files without a video stream. Such a file is refused, not failed, if a search found it.
NO_VIDEO = "no_video"
# The error kind of videos that an earlier version indexed without a proof that their codec needs now (`SCANNED`).
UNPROVEN = "unproven"
PROVES = (3, 8)  # the version of the format from which on such videos have one, and frames that it has counted
# Codecs that cannot be written into tiny files: Matroska does not record how raw samples lie in memory, and libavformat
# writes RealVideo in RealMedia alone.
IN_NO_FILE = frozenset({"rawvideo", "rv10", "rv20", "rv30", "rv40"})
# Codecs in which FFmpeg decodes every packet from nothing but its own bytes, also if they are cut off or damaged.
INTRA = frozenset({
    "asv1", "asv2", "dpx", "dvvideo", "r210", "sgi", "utvideo", "v210", "y41p", "yuv4", "zlib",
})  # fmt: skip
# Codecs whose packets are parsed. Videos of all others are decoded whole, and their start points tried (`proof`).
SCANNED = INTRA | {"h264", "hevc", "av1", "vp9", "vp8"}


VIDEOS = schema_of(MediumRecord)
VIDEO_RULES = rules_of(MediumRecord)
FRAMES = pa.schema(
    [
        required(
            "media_id",
            pa.string(),
            "As in `videos`; row n of a frames part belongs to row n of the videos part.",
        ),
        required(
            "pts",
            list_of(pa.int64(), nullable=True),
            "Presentation timestamp of each packet, in decode order; null on packets that present nothing.",
            unit="time base",
        ),
        field_of(
            "gap",
            list_of(pa.int64()),
            "How far behind the end of the packet before (the first: behind the beginning of the file) each packet's "
            "bytes begin; null where packets are not one range of the file each. Offset n is the sum of gaps 0 … n "
            "and sizes 0 … n - 1.",
            unit="bytes",
        ),
        required("size", list_of(pa.int32()), "How many bytes each packet has.", unit="bytes"),
        required(
            "flags",
            list_of(pa.int32(), nullable=True),
            "Bits: 1 closed start point; 2 open start point; 4 non-reference (no other packet needs it); 8 leading "
            "(decodable only from the start point before its own); 16 hidden (decoded, cut away by an edit list "
            "or by the end of a sequence); "
            "32 skipped (decoders output nothing for it); 64 field-coded; 128 continues the picture of the packet "
            "before it (a second field); 256 in a damaged GOP; 512 reset (no decoder session may run over "
            "this start point); "
            "1024 stated (the sample table calls it a start point, and it was not looked at: it may be an open one); "
            "2048 carries parameter sets that differ from those in force (never left out); 4096 not reproducible "
            "(with 256: some frame of the GOP differs when it is reached as a clip reaches it). "
            "Null: not read (depth `tables`).",
        ),
        field_of(
            "slots",
            list_of(pa.int32()),
            "Of AV1 and HEVC: bits 0 to 7, the reference slots that the packet's frames use, as they are before the "
            "packet (slots of HEVC are numbered by the index, not by the stream); bits 8 to 15, the slots that they "
            "refresh; bit 16, set if both are known (if not, the packet may need every packet before it). Null: not "
            "read.",
        ),
        field_of(
            "start_state",
            list_of(pa.int32()),
            "For each start point in turn, which of `videos.states` a decoder must be given there; null: none of "
            "them needs any.",
        ),
        field_of(
            "md5",
            list_of(pa.binary(16), nullable=True),
            "With --verify: MD5 over the native planes of each packet's picture, rows cropped to what is visible, "
            "then `{pixel format}{width}x{height}`; of an image, over the rows of its RGB bytes, then "
            "`rgb24{width}x{height}`; null where nothing is presented.",
        ),
        field_of("path", list_of(pa.string()), "Of loose images: the file of each, relative to `videos.uri`."),
        field_of("crc32", list_of(pa.int64()), "Of images: CRC-32 (ISO/IEC 8802-3) of each one's bytes."),
        field_of(
            "audio_sample",
            list_of(pa.int64()),
            "Position of each audio packet's first decoded sample on the grid of `videos.audio_first_sample`, in "
            "decode order; null without audio and where `videos.audio_problem` says why.",
            unit="samples",
        ),
        field_of(
            "audio_gap",
            list_of(pa.int64()),
            "As `gap`, of audio packets; null where they are not one range of the file each.",
            unit="bytes",
        ),
        field_of("audio_size", list_of(pa.int32()), "How many bytes each audio packet has.", unit="bytes"),
    ]
)  # fmt: skip

FILE_ROW = "file_row"

# The listing has these columns, followed by the user's own columns with the types that they came with.
LISTING = pa.schema(
    [
        required("media_id", pa.string(), "As in `videos`."),
        required("listing_row", pa.int32(), "Number of this row among the rows that list the same medium."),
        required("listed_uri", pa.string(), "The medium's uri as the listing spells it."),
        field_of(
            FILE_ROW,
            pa.int32(),
            "Number of the row in the user's listing, from 0, without the header; null if no listing names the medium. "
            "From version 3.7 on.",
        ),
    ]
)

# Columns of a listing that have a meaning.
FRAME_TABLE = "frame_table"  # a Parquet file with a row for each frame of the row's stretch, relative to the root
FRAME_ROW = "frame_row"  # the row of the stretch's first frame
LISTING_PROBLEM = "listing_problem"  # why policies make no clips of the row; empty if they do

HEADER_KEYS = {
    "root": Key(kind=str),
    "generation": Key(kind=int, needed=False),
    "ffmpeg": Key(kind=list, element=str, needed=False),
}

FRAME_RULES = {
    "pts": TIME,
    "gap": TIME,
    "size": ColumnRule(least=0, most=MOST_FRAMES),
    "flags": ColumnRule(least=0, most=8191),
    "slots": ColumnRule(least=0, most=(1 << 17) - 1),
    "start_state": ColumnRule(least=0, most=MOST_FRAMES),
    "crc32": ColumnRule(least=0, most=(1 << 32) - 1),
    "audio_sample": TIME,
    "audio_gap": TIME,
    "audio_size": ColumnRule(least=0, most=MOST_FRAMES),
}

DELTA_COLUMNS = ("pts", "gap", "size", "flags", "start_state", "audio_sample", "audio_gap", "audio_size")
FRAMES_PER_ROW_GROUP = 100_000
