"""CONTRACT: the tables of an index. docs/format.md is generated from the schemas below."""

from __future__ import annotations

import pyarrow as pa

from framedex.core.column_rules import FAR, ColumnRule, Key

FORMAT = "framedex-index"
SCHEMA_VERSION = "3.8"  # readers accept every minor version of their major version

# Values of some columns, by libav's own numbers (AVColorRange, AVFieldOrder).
COLOR_RANGES = {1: "limited", 2: "full"}
FIELD_ORDERS = {1: "progressive", 2: "tt", 3: "bb", 4: "tb", 5: "bt"}
OK, REFUSED, FAILED, GONE = "ok", "refused", "failed", "gone"
# The error kind of files without a video stream. Such a file is refused, not failed, if a search found it.
NO_VIDEO = "no_video"
# The error kind of videos that an earlier version indexed without a proof that their codec needs now (`SCANNED`).
UNPROVEN = "unproven"
PROVES = (3, 8)  # the version of the format from which on such videos have one, and frames that it has counted
VIDEO, IMAGES = "video", "images"  # kinds of media
# Codecs that cannot be written into tiny files: Matroska does not record how raw samples lie in memory, and libavformat
# writes RealVideo in RealMedia alone.
IN_NO_FILE = frozenset({"rawvideo", "rv10", "rv20", "rv30", "rv40"})
# Codecs in which FFmpeg decodes every packet from nothing but its own bytes, also if they are cut off or damaged.
INTRA = frozenset({
    "asv1", "asv2", "dpx", "dvvideo", "r210", "sgi", "utvideo", "v210", "y41p", "yuv4", "zlib",
})  # fmt: skip
# Codecs whose packets are parsed. Videos of all others are decoded whole, and their start points tried (`proof`).
SCANNED = INTRA | {"h264", "hevc", "av1", "vp9", "vp8"}
EVERY_FRAME, SAMPLED = "every_frame", "sampled"  # values of `proof`


def column(name: str, kind: pa.DataType, doc: str, *, unit: str = "", nullable: bool = True) -> pa.Field:
    """Return a documented field.

    Args:
        name: of the column.
        kind: its Arrow type.
        doc: what the column means. It is stored in the metadata of the file's schema, as is `unit`.
        unit: of its values. Empty: none.
        nullable: whether values may be null.
    """
    return pa.field(name, kind, nullable=nullable, metadata={"doc": doc, "unit": unit})


def required(name: str, kind: pa.DataType, doc: str, *, unit: str = "") -> pa.Field:
    """Return a documented field that is never null."""
    return column(name, kind, doc, unit=unit, nullable=False)


def list_of(kind: pa.DataType, *, nullable: bool = False) -> pa.DataType:
    """Return a list type. Its elements are never null, unless `nullable` is set."""
    return pa.list_(pa.field("element", kind, nullable=nullable))


VIDEOS = pa.schema(
    [
        required(
            "media_id",
            pa.string(),
            "Stable name of the medium: 16 hex digits of BLAKE2b over `uri`, and over the stream's number where it "
            "is not the file's best, or over `member`.",
        ),
        required(
            "kind",
            pa.string(),
            "`video`: a video stream; `images`: a sequence of images, of which each is a packet and a start point; a "
            "single image is a sequence of one.",
        ),
        required(
            "uri",
            pa.string(),
            "Where the medium lies, a file or a folder of images: a path relative to the root in index.json, or an "
            "absolute path.",
        ),
        column(
            "member",
            pa.string(),
            "Which of several media in its file (a sequence of images in a tar, or a video in it); null: the only "
            "one.",
        ),
        column(
            "member_offset",
            pa.int64(),
            "Of a video inside a file: its first byte. Null: the video is the file, or a value of a compressed column.",
            unit="bytes",
        ),
        column(
            "member_bytes",
            pa.int64(),
            "Of a video inside a file: how many bytes it has (0 where it was not read). Null: the video is the file.",
            unit="bytes",
        ),
        column(
            "sidecars",
            pa.string(),
            "Of a video inside a file: what is beside it, as JSON. In a tar: the contents of its sidecars, by kind; in "
            "a Parquet file: the other columns of its row (`columns`). The user's columns in the listing come from it.",
        ),
        required("stream_index", pa.int32(), "Number of the video stream in its container; -1 where none was found."),
        column("video_streams", pa.int32(), "Video streams in the file, cover art not counted."),
        required(
            "status",
            pa.string(),
            "`ok`; `refused`: readable, but frame-exactness is not shown, or a file without video that a search "
            "found (`error_kind` is `no_video`); `failed`: not readable; `gone`: its file is no longer there, so "
            "that earlier rows of it do not count.",
        ),
        column(
            "error_kind",
            pa.string(),
            "Short stable word for why a medium is refused or failed, or for what is damaged in one that is ok.",
        ),
        column("error_message", pa.string(), "The reason in words."),
        column(
            "error_traceback",
            pa.string(),
            "Where framedex itself failed (`error_kind` is `internal_error`), as Python prints it; else null.",
        ),
        required(
            "probed_by",
            pa.string(),
            "framedex version that probed the medium; another version looks at refused and failed media again.",
        ),
        column(
            "tried",
            pa.string(),
            "Of failed media: by which FFmpeg and with which options, for a rerun tries them again with others "
            "alone; else null.",
        ),
        column("size_bytes", pa.int64(), "File size when probed; of loose images, their sum.", unit="bytes"),
        column(
            "mtime_ns",
            pa.int64(),
            "Modification time when probed, of loose images the latest; a new one only makes us look again.",
            unit="ns",
        ),
        column(
            "fingerprint",
            pa.string(),
            "BLAKE2b over the size and 16 samples of 16 KiB; a smaller file is read whole. Of loose images: over "
            "their names, sizes and modification times, and over how they are timed. Of an object: `etag` and its "
            "ETag, or `modified` and a time where its store has none; of loose ones, over those.",
        ),
        column(
            "container",
            pa.string(),
            "`mp4` (MP4, MOV, 3GP), `matroska` (MKV, WebM), else libavformat's name. Of images: `files` (loose ones) "
            "or `tar`.",
        ),
        column(
            "depth",
            pa.string(),
            "`packets`: every packet was read; `tables`: sample tables and start points alone.",
        ),
        column("hashed", pa.bool_(), "Every frame was decoded (--verify): `frames.md5` holds their hashes."),
        column(
            "proof",
            pa.string(),
            "Which frames were reached as clips reach them and compared with a decode from further back: "
            "`every_frame`, with a full decode; `sampled` (--prove); null: none. From version 3.8 on, every frame of "
            "videos whose codec is not parsed, and the full decode says which frames there are.",
        ),
        column("proved_by", pa.string(), "The FFmpeg version that decoded both."),
        column(
            "not_reproducible_gop_count",
            pa.int32(),
            "GOPs with a frame that differed; their packets have the flag 4096. Null where there is no proof.",
        ),
        column(
            "first_difference",
            pa.int64(),
            "Presentation number of the first frame that differed; null if none did.",
        ),
        column("codec", pa.string(), "Codec by FFmpeg's canonical name."),
        column(
            "codec_tag",
            pa.string(),
            "The container's four-character code for the codec, on which some decoders depend.",
        ),
        column("bits_per_coded_sample", pa.int32(), "Bits a sample, where the container states them; 0 where not."),
        column("profile", pa.string(), "Codec profile by FFmpeg's name."),
        column("pixel_format", pa.string(), "Pixel format by FFmpeg's name."),
        column("width", pa.int32(), "Width of the decoded, cropped picture; rotation not applied.", unit="px"),
        column("height", pa.int32(), "Height of the decoded, cropped picture; rotation not applied.", unit="px"),
        column("rotation_degrees", pa.int32(), "Counterclockwise rotation that a player applies.", unit="degrees"),
        column(
            "field_order",
            pa.string(),
            "`progressive`; `tt`, `bb`, `tb` or `bt`: interlaced, which field is coded and which is shown first "
            "(top, bottom); null where not stated.",
        ),
        column("sample_aspect_ratio", pa.float64(), "Width of a sample over its height; null where not stated."),
        column("color_range", pa.string(), "`limited`, `full`, or null where not stated."),
        column(
            "color_matrix",
            pa.int32(),
            "Matrix coefficients, code point of ISO/IEC 23091-2 (1 BT.709, 2 not stated, 5 and 6 BT.601).",
        ),
        column("color_primaries", pa.int32(), "Colour primaries, code point of ISO/IEC 23091-2."),
        column("color_transfer", pa.int32(), "Transfer characteristics, code point of ISO/IEC 23091-2."),
        column("time_base_num", pa.int32(), "Numerator of the unit of every pts, in seconds.", unit="s"),
        column("time_base_den", pa.int32(), "Denominator of the unit of every pts, in seconds.", unit="s"),
        column("start_pts", pa.int64(), "pts of the first presented frame.", unit="time base"),
        column(
            "pts_source",
            pa.string(),
            "`container`: timestamps are the container's. `filled`: some were missing. `joined`: they turned back, "
            "and go on. `dealt`: decoding timestamps, dealt out in output order. `counted`: there were none. "
            "`listed`: of images, a rate, a listing or a file of times states them.",
        ),
        column("duration_pts", pa.int64(), "From the first frame's pts to the end of the last one.", unit="time base"),
        column("extradata", pa.binary(), "The decoder's configuration record."),
        column(
            "states",
            list_of(pa.binary()),
            "What a decoder must be given before it starts (parameter sets in force); the first is empty, and right "
            "at packet 0.",
        ),
        column(
            "reorder_depth",
            pa.int32(),
            "Frames that the decoder holds back to restore presentation order.",
            unit="frames",
        ),
        column(
            "inband_parameter_sets",
            pa.bool_(),
            "Packets carry parameter sets that differ from the configuration record's.",
        ),
        column(
            "inner_start_codes",
            pa.bool_(),
            "Some length-prefixed units hold several NAL units between Annex-B start codes.",
        ),
        column("varying_shape", pa.bool_(), "Pictures differ in size or format."),
        column("chroma_format", pa.int32(), "chroma_format_idc: 0 monochrome, 1 4:2:0, 2 4:2:2, 3 4:4:4."),
        column(
            "max_ref_frames",
            pa.int32(),
            "max_num_ref_frames of an H.264 stream (0: every picture is intra); null for other codecs.",
            unit="frames",
        ),
        column("field_coded", pa.bool_(), "Some pictures are coded as two fields."),
        column(
            "hidden_unordered",
            pa.bool_(),
            "Packets that an edit list hides are output in another order than their timestamps say, so their places "
            "among the frames are not known.",
        ),
        column(
            "stated_frames",
            pa.int64(),
            "Packets that the sample tables of an MP4 or MOV file say the stream has; null elsewhere, and in "
            "fragmented files.",
        ),
        column(
            "stated_duration_seconds",
            pa.float64(),
            "Duration that the header states: of the stream, or of a file that has no other; what an edit list hides "
            "does not count. Null where it states none.",
            unit="s",
        ),
        column(
            "stated_rate",
            pa.float64(),
            "Frames a second that the codec's parameter sets state, else the header; null where neither does.",
            unit="Hz",
        ),
        column("packet_count", pa.int64(), "Packets of the stream."),
        column("packet_bytes", pa.int64(), "Bytes of its packets.", unit="bytes"),
        column(
            "first_packets",
            pa.string(),
            "16 hex digits of BLAKE2b over the sizes of the first 256 packets, of images over the CRC-32 of each; "
            "null where those would say little: of less than 8 different sizes.",
        ),
        column("frame_count", pa.int64(), "Presented frames.", unit="frames"),
        column("keyframe_count", pa.int64(), "Packets where decoding may start."),
        column("min_gap_seconds", pa.float64(), "Least time between two frames; null for a single frame.", unit="s"),
        column("median_gap_seconds", pa.float64(), "Median time between two frames.", unit="s"),
        column("max_gap_seconds", pa.float64(), "Greatest time between two frames.", unit="s"),
        column(
            "is_vfr",
            pa.bool_(),
            "Gaps differ from their median by more than 1 % and more than one time base unit.",
        ),
        column("min_gop", pa.int32(), "Shortest distance between start points.", unit="packets"),
        column("mean_gop", pa.float64(), "Mean distance between start points.", unit="packets"),
        column("max_gop", pa.int32(), "Longest distance between start points.", unit="packets"),
        column(
            "seek_packets",
            pa.float64(),
            "Mean number of packets that a decoder gets before it shows a frame drawn at random: from its start "
            "point to it.",
            unit="packets",
        ),
        column("non_reference_share", pa.float64(), "Share of packets that no other packet needs."),
        column(
            "open_gop_count",
            pa.int32(),
            "Start points whose leading pictures need the GOP before; null where not all were looked at.",
        ),
        column("damaged_gop_count", pa.int32(), "GOPs in which something is damaged or missing."),
        column(
            "byte_addressable",
            pa.bool_(),
            "Every packet is one byte range of the file; clips of other media are cut by demuxing.",
        ),
        column(
            "audio_stream_index",
            pa.int32(),
            "Number of the first audio stream in its container; null without audio.",
        ),
        column("audio_codec", pa.string(), "Its codec by FFmpeg's canonical name."),
        column("audio_codec_tag", pa.string(), "The container's four-character code for its codec."),
        column("audio_rate", pa.int32(), "Sample rate of the decoded audio.", unit="Hz"),
        column("audio_channels", pa.int32(), "Channels of the decoded audio."),
        column("audio_layout", pa.string(), "Channel layout by FFmpeg's name."),
        column("audio_sample_format", pa.string(), "Sample format that the decoder gives, by FFmpeg's name."),
        column(
            "audio_bits_per_coded_sample",
            pa.int32(),
            "Bits a coded sample, where the container states them; 0 where not.",
        ),
        column("audio_extradata", pa.binary(), "The audio decoder's configuration record."),
        column(
            "audio_first_sample",
            pa.int64(),
            "First sample that a full decode presents; sample n is at n / `audio_rate` seconds on the container's "
            "clock.",
            unit="samples",
        ),
        column("audio_end_sample", pa.int64(), "Behind the last sample that a full decode presents.", unit="samples"),
        column("audio_problem", pa.string(), "Why the audio is not available; null if it is, and if there is none."),
        column("audio_start_seconds", pa.float64(), "Its first timestamp.", unit="s"),
        column("audio_duration_seconds", pa.float64(), "Its duration.", unit="s"),
    ]
)  # fmt: skip

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
        column(
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
        column(
            "slots",
            list_of(pa.int32()),
            "Of AV1 and HEVC: bits 0 to 7, the reference slots that the packet's frames use, as they are before the "
            "packet (slots of HEVC are numbered by the index, not by the stream); bits 8 to 15, the slots that they "
            "refresh; bit 16, set if both are known (if not, the packet may need every packet before it). Null: not "
            "read.",
        ),
        column(
            "start_state",
            list_of(pa.int32()),
            "For each start point in turn, which of `videos.states` a decoder must be given there; null: none of "
            "them needs any.",
        ),
        column(
            "md5",
            list_of(pa.binary(16), nullable=True),
            "With --verify: MD5 over the native planes of each packet's picture, rows cropped to what is visible, "
            "then `{pixel format}{width}x{height}`; of an image, over the rows of its RGB bytes, then "
            "`rgb24{width}x{height}`; null where nothing is presented.",
        ),
        column("path", list_of(pa.string()), "Of loose images: the file of each, relative to `videos.uri`."),
        column("crc32", list_of(pa.int64()), "Of images: CRC-32 (ISO/IEC 8802-3) of each one's bytes."),
        column(
            "audio_sample",
            list_of(pa.int64()),
            "Position of each audio packet's first decoded sample on the grid of `videos.audio_first_sample`, in "
            "decode order; null without audio and where `videos.audio_problem` says why.",
            unit="samples",
        ),
        column(
            "audio_gap",
            list_of(pa.int64()),
            "As `gap`, of audio packets; null where they are not one range of the file each.",
            unit="bytes",
        ),
        column("audio_size", list_of(pa.int32()), "How many bytes each audio packet has.", unit="bytes"),
    ]
)  # fmt: skip

FILE_ROW = "file_row"

# The listing has these columns, followed by the user's own columns with the types that they came with.
LISTING = pa.schema(
    [
        required("media_id", pa.string(), "As in `videos`."),
        required("listing_row", pa.int32(), "Number of this row among the rows that list the same medium."),
        required("listed_uri", pa.string(), "The medium's uri as the listing spells it."),
        column(
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

# The values that `videos` may hold for a usable medium, and `media` of a dataset.
# MOST_PIXELS: av_image_check_size2 of FFmpeg's libavutil allows no picture of 2^28 pixels, and Pillow's limit is lower.
# MOST_REORDERED: no H.264, HEVC or VVC decoder holds back more than 16 pictures. FFmpeg's H.264 decoder ends its
# process if it is told to hold back more (MAX_DELAYED_PIC_COUNT).
MOST_PIXELS, MOST_REORDERED, MOST_FRAMES = 1 << 28, 16, (1 << 31) - 1
CODE_POINT = ColumnRule(least=0, most=255, needed=True)  # of ISO/IEC 23091-2, in eight bits
FURTHEST = 1 << 62  # the largest timestamp; real files state absurd ones
TIME = ColumnRule(least=-FURTHEST, most=FURTHEST)
VIDEO_RULES = {
    "media_id": ColumnRule(needed=True),
    "kind": ColumnRule(among=frozenset({VIDEO, IMAGES}), needed=True),
    "uri": ColumnRule(needed=True),
    "stream_index": ColumnRule(least=-1, most=MOST_FRAMES, needed=True),
    "size_bytes": ColumnRule(least=0, most=FAR, needed=True),
    "mtime_ns": ColumnRule(needed=True),
    "member_offset": ColumnRule(least=0, most=FAR),
    "member_bytes": ColumnRule(least=0, most=FAR),
    "fingerprint": ColumnRule(needed=True),
    "container": ColumnRule(needed=True),
    "codec": ColumnRule(needed=True),
    "bits_per_coded_sample": ColumnRule(least=0, most=256),
    "width": ColumnRule(least=1, most=MOST_PIXELS, needed=True),
    "height": ColumnRule(least=1, most=MOST_PIXELS, needed=True),
    "rotation_degrees": ColumnRule(least=-360, most=360, needed=True),
    "field_order": ColumnRule(among=frozenset(FIELD_ORDERS.values())),
    "sample_aspect_ratio": ColumnRule(least=0, most=1 << 31),
    "color_range": ColumnRule(among=frozenset(COLOR_RANGES.values())),
    "color_matrix": CODE_POINT,
    "color_primaries": CODE_POINT,
    "color_transfer": CODE_POINT,
    "time_base_num": ColumnRule(least=1, most=(1 << 31) - 1, needed=True),
    "time_base_den": ColumnRule(least=1, most=(1 << 31) - 1, needed=True),
    "start_pts": ColumnRule(least=-FURTHEST, most=FURTHEST, needed=True),
    "pts_source": ColumnRule(needed=True),
    "duration_pts": ColumnRule(least=0, most=2 * FURTHEST - 1, needed=True),
    "states": ColumnRule(needed=True),
    "reorder_depth": ColumnRule(least=0, most=MOST_REORDERED, needed=True),
    "chroma_format": ColumnRule(least=0, most=3),
    "max_ref_frames": ColumnRule(least=0, most=255),
    "frame_count": ColumnRule(least=0, most=MOST_FRAMES, needed=True),
    "damaged_gop_count": ColumnRule(least=0, most=MOST_FRAMES, needed=True),
    "proof": ColumnRule(among=frozenset({EVERY_FRAME, SAMPLED})),
    "not_reproducible_gop_count": ColumnRule(least=0, most=MOST_FRAMES),
    "first_difference": ColumnRule(least=0, most=MOST_FRAMES),
    "audio_stream_index": ColumnRule(least=0, most=MOST_FRAMES),
    "audio_rate": ColumnRule(least=1, most=MOST_FRAMES),
    "audio_channels": ColumnRule(least=1, most=1024),
    "audio_bits_per_coded_sample": ColumnRule(least=0, most=256),
    "audio_first_sample": TIME,
    "audio_end_sample": TIME,
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
