"""The columns of an index's tables of media and packets, and the packets of a medium in memory.

A medium is a row of `videos` in an index and, with fewer columns, of `media` in a dataset. Its packets are a row of
`frames` in an index. This module also has the names that columns of users must not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import FAR
from framedex.records import columns
from framedex.records.clip import NO_PTS, SAMPLE, ClipRecord
from framedex.records.columns import BYTES, COUNT, CRC32, INT32, NEEDED, POSITIVE, among, between, column, list_of

# Values of columns by the numbers of FFmpeg's enumerations AVColorRange and AVFieldOrder.
COLOR_RANGES = {1: "limited", 2: "full"}
FIELD_ORDERS = {1: "progressive", 2: "tt", 3: "bb", 4: "tb", 5: "bt"}
OK, REFUSED, FAILED, GONE = "ok", "refused", "failed", "gone"
VIDEO, IMAGES = "video", "images"  # kinds of media
EVERY_FRAME, SAMPLED = "every_frame", "sampled"  # values of `proof`

MEDIA = "media"  # a place of `Column.also_in`: the table of a dataset's media
IN_TARS_TOO = (MEDIA, SAMPLE)
MAX_PIXELS = 1 << 28  # av_image_check_size2 of FFmpeg's libavutil allows fewer, and Pillow's limit is even lower
# Decoders of H.264, HEVC and VVC hold back at most 16 pictures. FFmpeg's H.264 decoder ends its process if it is asked
# to hold back more (MAX_DELAYED_PIC_COUNT).
MAX_REORDERED = 16
CODE_POINT = between(0, 255)  # of ISO/IEC 23091-2, in eight bits
FURTHEST = 1 << 62  # the largest timestamp that is accepted; some files state absurd timestamps
TIME = between(-FURTHEST, FURTHEST, needed=False)
SIDE = between(1, MAX_PIXELS)
SIZE = between(0, INT32, needed=False)
PART = between(0, FAR, needed=False)  # of a file, in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MediumRecord:
    """A row of `videos` of a usable medium. In a dataset, columns that `media` lacks are None.

    Attributes:
        media_id: Stable name of the medium: 16 hex digits of BLAKE2b over `uri`, over the stream's number if it is not
            the file's best stream, and over `member` if there is one.
        kind: `video` for a video stream, `images` for a sequence of images. Each image is a packet and a random access
            point. A single image is a sequence of one.
        uri: Location of the medium, a file or a folder of images: a path relative to the root in index.json, or an
            absolute path.
        member: Name of the medium among several media in its file: a sequence of images in a tar, or a video in it.
            Null if it is the only one.
        member_offset: First byte of a video inside a file. Null if the video is the file, or a value of a compressed
            column.
        member_bytes: Bytes of a video inside a file (0 if it was not read). Null if the video is the file.
        sidecars: Data beside a video inside a file, as JSON. In a tar, these are the contents of its sidecars, by kind.
            In a Parquet file, these are the other columns of its row (`columns`). The user's columns in the listing are
            made from it.
        stream_index: Number of the video stream in its container; -1 if none was found.
        video_streams: Number of video streams in the file, without cover art.
        status: `ok`; `refused` for a readable medium whose frame-exactness is not shown, or for a file without video
            that a search found (`error_kind` is `no_video`); `failed` for an unreadable medium; `gone` if its file no
            longer exists, so that earlier rows of it do not count.
        error_kind: Short stable word for the reason why a medium is refused or failed, or for the damage of a medium
            that is ok.
        error_message: The reason in words.
        error_traceback: Python's traceback of a failure of framedex itself (`error_kind` is `internal_error`); else
            null.
        probed_by: framedex version that probed the medium. Another version probes refused and failed media again.
        tried: The FFmpeg version and the options with which a failed medium was tried; else null. A rerun tries only
            others.
        size_bytes: File size when probed; the sum of the sizes of loose images.
        mtime_ns: Modification time when probed; the latest one of loose images. If it changes, the fingerprint is
            compared.
        fingerprint: BLAKE2b over the size and 16 samples of 16 KiB; a smaller file is read completely. For loose
            images, BLAKE2b over their names, sizes and modification times, and over the source of their times. For an
            object, `etag` and its ETag, or `modified` and a time if its store has no ETags; for loose objects, a hash
            over these.
        container: `mp4` (MP4, MOV, 3GP), `matroska` (MKV, WebM), or else libavformat's name. Images have `files` (loose
            images) or `tar`.
        depth: `packets` if every packet was read; `tables` if only sample tables and random access points were read.
        hashed: Whether every frame was decoded (--verify), so that `frames.md5` has hashes.
        proof: The frames that were reached as clips reach them and compared with a decode from further back:
            `every_frame`, with a full decode; `sampled` (--prove); null for none. Since version 3.8, videos whose codec
            is not parsed have `every_frame`, and the full decode decides which frames exist.
        proved_by: The version of FFmpeg that decoded both sides of the proof.
        not_reproducible_gop_count: Number of GOPs with a frame that differed; their packets have the flag 4096. Null
            without a proof.
        first_difference: Presentation number of the first frame that differed. Null if all frames were equal.
        codec: Codec by FFmpeg's canonical name.
        codec_tag: The container's four-character code for the codec, on which some decoders depend.
        bits_per_coded_sample: Bits per sample, if the container states them; else 0.
        profile: Codec profile by FFmpeg's name.
        pixel_format: Pixel format by FFmpeg's name.
        width: Width of the decoded, cropped picture; rotation not applied.
        height: Height of the decoded, cropped picture; rotation not applied.
        rotation_degrees: Counterclockwise rotation that a player applies.
        field_order: `progressive`, or an order of interlaced fields: `tt`, `bb`, `tb` or `bt` (the field that is coded
            first, then the field that is shown first; t is top, b is bottom). Null if not stated.
        sample_aspect_ratio: Width of a sample divided by its height. Null if not stated.
        color_range: `limited` or `full`. Null if not stated.
        color_matrix: Matrix coefficients, a code point of ISO/IEC 23091-2 (1 is BT.709, 2 is not stated, 5 and 6 are
            BT.601).
        color_primaries: Colour primaries, a code point of ISO/IEC 23091-2.
        color_transfer: Transfer characteristics, a code point of ISO/IEC 23091-2.
        time_base_num: Numerator of the unit of every pts, in seconds.
        time_base_den: Denominator of the unit of every pts, in seconds.
        start_pts: pts of the first presented frame.
        pts_source: Origin of the timestamps. `container`: the container states them. `filled`: some were missing and
            were filled in. `joined`: they jumped back, and were continued. `dealt`: decoding timestamps, assigned in
            output order. `counted`: the container has none, so frames were counted. `listed`: a rate, a listing or a
            file of times states those of images.
        duration_pts: Time from the first frame's pts to the end of the last frame.
        extradata: The decoder's configuration record.
        states: Parameter sets that a decoder must be given before it starts at some packets (`frames.start_state`). The
            first entry is empty, and is right at packet 0.
        reorder_depth: Number of frames that the decoder holds back to restore presentation order.
        inband_parameter_sets: Whether packets carry parameter sets that differ from the configuration record's.
        inner_start_codes: Whether some length-prefixed units contain several NAL units between Annex B start codes.
        varying_shape: Whether pictures differ in size or format.
        chroma_format: chroma_format_idc: 0 is monochrome, 1 is 4:2:0, 2 is 4:2:2, 3 is 4:4:4.
        max_ref_frames: max_num_ref_frames of an H.264 stream (0 if every picture is intra); null for other codecs.
        field_coded: Whether some pictures are coded as two fields.
        hidden_unordered: Whether packets that an edit list hides are output in another order than that of their
            timestamps, so that their places among the frames are unknown.
        stated_frames: Number of packets of the stream that the sample tables of an MP4 or MOV file state. Null for
            other files, and for fragmented files.
        stated_duration_seconds: Duration that the header states for the stream, or else for the file, without the parts
            that an edit list hides. Null if none is stated.
        stated_rate: Frames per second that the codec's parameter sets state, or else the header. Null if neither states
            a rate.
        packet_count: Number of packets of the stream.
        packet_bytes: Sum of the sizes of its packets.
        first_packets: 16 hex digits of BLAKE2b over the sizes of the first 256 packets; for images, over the CRC-32 of
            each. Null if these packets have fewer than 8 different sizes, which would not identify a medium.
        frame_count: Number of presented frames.
        keyframe_count: Number of packets where decoding may start.
        min_gap_seconds: Shortest time between two frames. Null for a single frame.
        median_gap_seconds: Median time between two frames.
        max_gap_seconds: Longest time between two frames.
        is_vfr: Whether gaps differ from their median by more than 1 % and more than one unit of the time base.
        min_gop: Shortest distance between random access points.
        mean_gop: Mean distance between random access points.
        max_gop: Longest distance between random access points.
        seek_packets: Mean number of packets that a decoder gets, from the random access point on, to show a frame drawn
            at random.
        non_reference_share: Share of packets that no other packet needs.
        open_gop_count: Number of random access points whose leading pictures need the GOP before. Null if not all of
            them were read.
        damaged_gop_count: Number of GOPs with something damaged or missing.
        byte_addressable: Whether every packet is one byte range of the file. Clips of other media are cut by demuxing.
        audio_stream_index: Number of the first audio stream in its container. Null without audio.
        audio_codec: Codec of the audio by FFmpeg's canonical name.
        audio_codec_tag: The container's four-character code for the codec of the audio.
        audio_rate: Sample rate of the decoded audio.
        audio_channels: Channels of the decoded audio.
        audio_layout: Channel layout by FFmpeg's name.
        audio_sample_format: Sample format that the decoder gives, by FFmpeg's name.
        audio_bits_per_coded_sample: Bits per coded sample, if the container states them; else 0.
        audio_extradata: The audio decoder's configuration record.
        audio_first_sample: First sample that a full decode presents. Sample n is at n / `audio_rate` seconds on the
            container's clock.
        audio_end_sample: The sample after the last one that a full decode presents.
        audio_problem: The reason why the audio is not available. Null if it is available, and without audio.
        audio_start_seconds: First timestamp of the audio.
        audio_duration_seconds: Duration of the audio.
    """

    media_id: str = column(pa.string(), nullable=False, also_in=(MEDIA,))
    kind: str = column(pa.string(), nullable=False, rule=among({VIDEO, IMAGES}, needed=True), also_in=IN_TARS_TOO)
    uri: str = column(pa.string(), nullable=False, also_in=(MEDIA,), key="uri")
    member: str | None = column(pa.string(), also_in=(MEDIA,))
    member_offset: int | None = column(pa.int64(), unit="bytes", rule=PART, also_in=(MEDIA,))
    member_bytes: int | None = column(pa.int64(), unit="bytes", rule=PART, also_in=(MEDIA,))
    sidecars: str | None = column(pa.string())
    stream_index: int = column(pa.int32(), nullable=False, rule=between(-1, INT32), also_in=(MEDIA,))
    video_streams: int | None = column(pa.int32())
    status: str = column(pa.string(), nullable=False, of_table=True)
    error_kind: str | None = column(pa.string())
    error_message: str | None = column(pa.string())
    error_traceback: str | None = column(pa.string())
    probed_by: str = column(pa.string(), nullable=False, of_table=True)
    tried: str | None = column(pa.string())
    size_bytes: int = column(pa.int64(), unit="bytes", rule=BYTES, also_in=(MEDIA,))
    mtime_ns: int = column(pa.int64(), unit="ns", rule=NEEDED, also_in=(MEDIA,))
    fingerprint: str = column(pa.string(), rule=NEEDED, also_in=(MEDIA,))
    container: str = column(pa.string(), rule=NEEDED, also_in=IN_TARS_TOO)
    depth: str | None = column(pa.string())
    hashed: bool | None = column(pa.bool_())
    proof: str | None = column(pa.string(), rule=among({EVERY_FRAME, SAMPLED}))
    proved_by: str | None = column(pa.string())
    not_reproducible_gop_count: int | None = column(pa.int32(), rule=SIZE)
    first_difference: int | None = column(pa.int64(), rule=SIZE)
    codec: str = column(pa.string(), rule=NEEDED, also_in=IN_TARS_TOO)
    codec_tag: str | None = column(pa.string(), also_in=IN_TARS_TOO)
    bits_per_coded_sample: int | None = column(pa.int32(), rule=between(0, 256, needed=False), also_in=IN_TARS_TOO)
    profile: str | None = column(pa.string(), also_in=(MEDIA,))
    pixel_format: str | None = column(pa.string(), also_in=IN_TARS_TOO)
    width: int = column(pa.int32(), unit="px", rule=SIDE, also_in=IN_TARS_TOO)
    height: int = column(pa.int32(), unit="px", rule=SIDE, also_in=IN_TARS_TOO)
    rotation_degrees: int = column(
        pa.int32(), unit="degrees", rule=between(-360, 360), also_in=IN_TARS_TOO, key="rotation_degrees"
    )
    field_order: str | None = column(pa.string(), rule=among(FIELD_ORDERS.values()), also_in=IN_TARS_TOO)
    sample_aspect_ratio: float | None = column(
        pa.float64(),
        rule=between(0, 1 << 31, needed=False),
        also_in=IN_TARS_TOO,
        key="sample_aspect_ratio",
        padding=1.0,
    )
    color_range: str | None = column(pa.string(), rule=among(COLOR_RANGES.values()), also_in=IN_TARS_TOO)
    color_matrix: int = column(pa.int32(), rule=CODE_POINT, also_in=IN_TARS_TOO)
    color_primaries: int = column(pa.int32(), rule=CODE_POINT, also_in=(MEDIA,))
    color_transfer: int = column(pa.int32(), rule=CODE_POINT, also_in=IN_TARS_TOO, key="color_transfer")
    time_base_num: int = column(pa.int32(), unit="s", rule=POSITIVE, also_in=(MEDIA,))
    time_base_den: int = column(pa.int32(), unit="s", rule=POSITIVE, also_in=(MEDIA,))
    start_pts: int = column(pa.int64(), unit="time base", rule=between(-FURTHEST, FURTHEST), also_in=(MEDIA,))
    pts_source: str = column(pa.string(), rule=NEEDED, also_in=(MEDIA,))
    duration_pts: int = column(pa.int64(), unit="time base", rule=between(0, 2 * FURTHEST - 1), also_in=(MEDIA,))
    extradata: bytes | None = column(pa.binary(), also_in=(MEDIA,))
    states: list[bytes] = column(list_of(pa.binary()), rule=NEEDED, also_in=(MEDIA,))
    reorder_depth: int = column(pa.int32(), unit="frames", rule=between(0, MAX_REORDERED), also_in=IN_TARS_TOO)
    inband_parameter_sets: bool = column(pa.bool_(), also_in=(MEDIA,))
    inner_start_codes: bool = column(pa.bool_(), also_in=(MEDIA,))
    varying_shape: bool = column(pa.bool_(), also_in=IN_TARS_TOO)
    chroma_format: int | None = column(pa.int32(), rule=between(0, 3, needed=False), also_in=(MEDIA,))
    max_ref_frames: int | None = column(pa.int32(), unit="frames", rule=between(0, 255, needed=False), also_in=(MEDIA,))
    field_coded: bool = column(pa.bool_(), also_in=(MEDIA,))
    hidden_unordered: bool = column(pa.bool_(), also_in=IN_TARS_TOO)
    stated_frames: int | None = column(pa.int64())
    stated_duration_seconds: float | None = column(pa.float64(), unit="s")
    stated_rate: float | None = column(pa.float64(), unit="Hz")
    packet_count: int | None = column(pa.int64())
    packet_bytes: int | None = column(pa.int64(), unit="bytes")
    first_packets: str | None = column(pa.string())
    frame_count: int = column(pa.int64(), unit="frames", rule=COUNT, also_in=IN_TARS_TOO)
    keyframe_count: int | None = column(pa.int64())
    min_gap_seconds: float | None = column(pa.float64(), unit="s")
    median_gap_seconds: float | None = column(pa.float64(), unit="s")
    max_gap_seconds: float | None = column(pa.float64(), unit="s")
    is_vfr: bool | None = column(pa.bool_())
    min_gop: int | None = column(pa.int32(), unit="packets")
    mean_gop: float | None = column(pa.float64(), unit="packets")
    max_gop: int | None = column(pa.int32(), unit="packets")
    seek_packets: float | None = column(pa.float64(), unit="packets")
    non_reference_share: float | None = column(pa.float64())
    open_gop_count: int | None = column(pa.int32())
    damaged_gop_count: int = column(pa.int32(), rule=COUNT, also_in=(MEDIA,))
    byte_addressable: bool | None = column(pa.bool_())
    audio_stream_index: int | None = column(pa.int32(), rule=SIZE, also_in=(MEDIA,))
    audio_codec: str | None = column(pa.string(), also_in=(MEDIA,))
    audio_codec_tag: str | None = column(pa.string(), also_in=(MEDIA,))
    audio_rate: int | None = column(pa.int32(), unit="Hz", rule=between(1, INT32, needed=False), also_in=(MEDIA,))
    audio_channels: int | None = column(pa.int32(), rule=between(1, 1024, needed=False), also_in=(MEDIA,))
    audio_layout: str | None = column(pa.string(), also_in=(MEDIA,))
    audio_sample_format: str | None = column(pa.string(), also_in=(MEDIA,))
    audio_bits_per_coded_sample: int | None = column(pa.int32(), rule=between(0, 256, needed=False), also_in=(MEDIA,))
    audio_extradata: bytes | None = column(pa.binary(), also_in=(MEDIA,))
    audio_first_sample: int | None = column(pa.int64(), unit="samples", rule=TIME, also_in=(MEDIA,))
    audio_end_sample: int | None = column(pa.int64(), unit="samples", rule=TIME, also_in=(MEDIA,))
    audio_problem: str | None = column(pa.string(), also_in=(MEDIA,))
    audio_start_seconds: float | None = column(pa.float64(), unit="s")
    audio_duration_seconds: float | None = column(pa.float64(), unit="s")


AUDIO = "audio_"  # prefix of the columns of audio packets
UNREAD = -1  # stands for flags that were not read


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketRecord:
    """A row of `frames` without audio: lists in decode order, an element for each packet.

    Attributes:
        pts: Presentation timestamp of each packet, in decode order; null for packets that present nothing.
        gap: Distance of each packet's first byte from the end of the packet before it (for the first packet, from the
            beginning of the file). Null if packets are not one range of the file each. Offset n is the sum of gaps 0 …
            n and sizes 0 … n - 1.
        size: Size of each packet.
        flags: Bits: 1 closed start point; 2 open start point; 4 non-reference (no other packet needs it); 8 leading
            (decodable only from the start point before its own); 16 hidden (decoded, cut away by an edit list or by the
            end of a sequence); 32 skipped (decoders output nothing for it); 64 field-coded; 128 continues the picture
            of the packet before it (a second field); 256 in a damaged GOP; 512 reset (no decoder session may run over
            this start point); 1024 stated (the sample table calls it a start point, and it was not looked at: it may be
            an open one); 2048 carries parameter sets that differ from those in force (never left out); 4096 not
            reproducible (with 256: some frame of the GOP differs when it is reached as a clip reaches it). Null: not
            read (depth `tables`).
        slots: In AV1 and HEVC, bits 0 to 7 are the reference slots that the packet's frames use, as they are before the
            packet (the index numbers the slots of HEVC, not the stream). Bits 8 to 15 are the slots that they refresh.
            Bit 16 is set if both are known; otherwise, the packet may need every packet before it. Null if not read.
        start_state: For each random access point in order, the number of the entry of `videos.states` that a decoder
            must be given there. Null if none of them needs an entry.
        md5: With --verify, MD5 over the native planes of each packet's picture, with rows cropped to their visible
            part, and then `{pixel format}{width}x{height}`. For an image, MD5 over the rows of its RGB bytes, and then
            `rgb24{width}x{height}`. Null for packets that present nothing.
        path: The file of each loose image, relative to `videos.uri`.
        crc32: CRC-32 (ISO/IEC 8802-3) of each image's bytes.
    """

    pts: NDArray[np.int64] = column(
        list_of(pa.int64(), nullable=True), unit="time base", nullable=False, rule=TIME, padding=NO_PTS
    )
    gap: NDArray[np.int64] | None = column(list_of(pa.int64()), unit="bytes", rule=TIME)
    size: NDArray[np.int64] = column(list_of(pa.int32()), unit="bytes", nullable=False, rule=SIZE, dtype=np.int64)
    flags: NDArray[np.int32] = column(
        list_of(pa.int32(), nullable=True), nullable=False, rule=between(0, 8191, needed=False), padding=UNREAD
    )
    slots: NDArray[np.int32] | None = column(list_of(pa.int32()), rule=between(0, (1 << 17) - 1, needed=False))
    start_state: NDArray[np.int32] | None = column(list_of(pa.int32()), rule=SIZE)
    md5: list[bytes | None] | None = column(list_of(pa.binary(16), nullable=True))
    path: list[str] | None = column(list_of(pa.string()))
    crc32: NDArray[np.int64] | None = column(list_of(pa.int64()), rule=CRC32)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPacketRecord:
    """The audio of a row of `frames`: columns with the prefix `audio_`.

    Attributes:
        sample: Position of each audio packet's first decoded sample on the grid of `videos.audio_first_sample`, in
            decode order. Null without audio, and if there is an `audio_problem`.
        gap: As `gap`, of audio packets. Null if they are not one range of the file each.
        size: Size of each audio packet.
    """

    sample: NDArray[np.int64] | None = column(list_of(pa.int64()), unit="samples", rule=TIME)
    gap: NDArray[np.int64] | None = column(list_of(pa.int64()), unit="bytes", rule=TIME)
    size: NDArray[np.int64] | None = column(list_of(pa.int32()), unit="bytes", rule=SIZE, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketColumns:
    """The n packets of a medium in decode order, as columns.

    Attributes:
        pts: int64 [n]; masked elements are null.
        offset: int64 [n]. If None, packets are not one byte range of the file each.
        size: int64 [n].
        flags: int32 [n]; masked elements are null.
        slots: int32 [n]. If None, they were not read.
        start_state: int32 [random access points].
        md5: 16 bytes or None for each packet, if frames were hashed (--verify).
        crc32: int64 [n] for images, or None for videos.
        path: The names of n loose images, or None for other media.
    """

    pts: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]
    flags: NDArray[np.int32]
    slots: NDArray[np.int32] | None = None
    start_state: NDArray[np.int32] | None = None
    md5: Sequence[bytes | None] | None = None
    crc32: NDArray[np.int64] | None = None
    path: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPackets:
    """The audio packets of one medium in decode order, as columns: int64 [packets].

    Attributes:
        sample: Position of each packet's first decoded sample; sample n is at n / `videos.audio_rate` seconds. It
            counts all samples that the packet is coded to hold, so decoders that trim by themselves (Opus' pre-skip)
            must be kept from it.
        offset: Offset of each packet in bytes, or None if packets are not one range of the file each.
        size: Size of each packet in bytes.
    """

    sample: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.sample, self.offset, self.size) if column is not None}
        if len(lengths) != 1:
            raise ValueError(f"audio packet columns of different lengths: {sorted(lengths)}")


def gaps_of(offset: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the `frames.gap` column, int64 [packets]: each packet's distance from the end of the packet before it."""
    ends = offset + size
    return offset - np.append(np.int64(0), ends[:-1])


def offsets_of(gap: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64 [packets]: the offset at which each packet begins."""
    ends: NDArray[np.int64] = np.cumsum(gap + size)
    return ends - size


# Keys of items that do not come from columns.
PICTURE_KEYS = frozenset({"frames", "movie", "positions"})
AUDIO_KEYS = frozenset({"audio", "audio_mask", "audio_rate"})
ITEM_KEYS = columns.keys_of(ClipRecord).keys() | columns.keys_of(MediumRecord).keys() | PICTURE_KEYS | AUDIO_KEYS
CLIP_NAMES = columns.columns_of(ClipRecord).keys() | ITEM_KEYS
# Keys of the JSON of a packed clip (docs/shards.md).
SAMPLE_KEYS = {name for name, one in columns.columns_of(ClipRecord).items() if SAMPLE in one.also_in} | {
    "uri",
    "member",
    "codec",
    "width",
    "height",
    "rotation_degrees",
    "sample_aspect_ratio",
    "time_base",
    "frame_rate",
    "frames_in_file",
    "seconds_in_file",
    "unshown_in_file",
    "timestamps",
    "images",
    "audio",
    "framedex",
}
