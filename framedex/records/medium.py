"""The columns of an index's tables of media and packets, and classes for the packets of a medium in memory.

A medium is a row of the table `videos` in an index. In a dataset, it is a row of the table `media`, which has fewer
columns. The packets of a medium are one row of the table `frames` in an index. This module also defines the names that
the user's columns must not have.
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

# Number in FFmpeg's enumeration AVColorRange or AVFieldOrder → value of a column.
COLOR_RANGES = {1: "limited", 2: "full"}
FIELD_ORDERS = {1: "progressive", 2: "tt", 3: "bb", 4: "tb", 5: "bt"}
OK, REFUSED, FAILED, GONE = "ok", "refused", "failed", "gone"  # values of the column `status`
VIDEO, IMAGES = "video", "images"  # values of the column `kind`
EVERY_FRAME, SAMPLED = "every_frame", "sampled"  # values of the column `proof`

MEDIA = "media"  # a name in `Column.also_in`: the column is also in the table `media` of a dataset
IN_TARS_TOO = (MEDIA, SAMPLE)
# Maximum width and height. Neither FFmpeg (av_image_check_size2 of libavutil) nor Pillow allows so many pixels.
MAX_PIXELS = 1 << 28
# Maximum of the column `reorder_depth`. Decoders of H.264, HEVC and VVC hold back at most 16 pictures. FFmpeg's H.264
# decoder ends the process if it is configured to hold back more (MAX_DELAYED_PIC_COUNT).
MAX_REORDERED = 16
CODE_POINT = between(0, 255)  # code points of ISO/IEC 23091-2 have eight bits
FURTHEST = 1 << 62  # largest timestamp that is accepted; some files have absurd timestamps
TIME = between(-FURTHEST, FURTHEST, needed=False)
SIDE = between(1, MAX_PIXELS)
SIZE = between(0, INT32, needed=False)
PART = between(0, FAR, needed=False)  # offset or size of a part of a file, in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MediumRecord:
    """A row of the table `videos` for a usable medium. In a dataset, columns that the table `media` lacks are None.

    Attributes:
        media_id: Stable name of the medium, 16 hex digits. It is a BLAKE2b hash of `uri`, of the number of the stream
            if the medium is not the file's best video stream, and of `member` if the medium has a member.
        kind: `video` for a video stream, `images` for a sequence of images. Each image of a sequence is a packet and a
            random access point. A single image is a sequence with one image.
        uri: Path or uri of the file, or of the folder of loose images. A path is relative to the root in index.json, or
            absolute.
        member: Name of the medium within its file, if the file can contain several media, such as a video or a sequence
            of images in a tar. Null if the file contains one medium.
        member_offset: Offset of the first byte of a video that is a member of a file. Null if the video is the whole
            file, or a value of a compressed column.
        member_bytes: Size of a video that is a member of a file (0 if it was not read). Null if the video is the whole
            file.
        sidecars: Metadata of a video that is a member of a file, as JSON. For a video in a tar, these are the contents
            of the sidecar files, by kind (such as `json`). For a video in a Parquet file, these are the values of the
            other columns of the row, under `columns`. The user's columns of the listing are made from this metadata.
        stream_index: Number of the video stream in its container. -1 if no video stream was found.
        video_streams: Number of video streams in the file, without cover art.
        status: `ok`, `refused`, `failed` or `gone`. `refused` is a readable medium whose frame-exactness is not proven,
            or a file without video that was found by a search (`error_kind` is `no_video`). `failed` is a medium that
            cannot be read. `gone` is a medium whose file does not exist any more. Earlier rows of the same medium are
            then ignored.
        error_kind: Reason why the medium is refused or failed, or kind of damage of a medium that is ok. It is a short
            word that does not change between versions. Null for a medium that is ok and not damaged.
        error_message: Reason or damage in `error_kind`, as a sentence.
        error_traceback: Python's traceback of a bug of framedex (`error_kind` is `internal_error`). Null for other
            errors.
        probed_by: Version of framedex that probed the medium. A rerun with another version probes refused and failed
            media again.
        generation: Generation of the index whose run wrote the row. `framedex log` lists the dates of generations. Null
            in rows of a version before 3.9.
        tried: Version of FFmpeg and options with which probing failed. Null if the medium is not failed. A rerun with
            the same version and options does not probe the medium again.
        size_bytes: Size of the file at the time of probing. For loose images, the sum of the sizes of their files.
        mtime_ns: Modification time of the file at the time of probing. For loose images, the latest modification time.
            If the modification time has changed later, the fingerprint is compared.
        fingerprint: Text that identifies the content. For a local file, the BLAKE2b hash of its size and of 16 samples
            of 16 KiB, or of the whole content of a smaller file. For loose images, the BLAKE2b hash of their names,
            sizes and modification times, and of the source of their times. For an object in object storage, `etag` and
            the ETag, or `modified` and the modification time if the store has no ETags. For loose images in object
            storage, a hash of these texts of all images.
        container: `mp4` (MP4, MOV, 3GP), `matroska` (MKV, WebM), or libavformat's name of another container. `files`
            for loose images, `tar` for images in a tar.
        depth: `packets` if every packet was read. `tables` if only sample tables and random access points were read.
        hashed: Whether every frame was decoded (--verify), so that `frames.md5` has hashes.
        proof: Which frames were proven to be exact. For the proof, a frame is decoded as for a clip, and compared with
            the same frame from a decode that begins earlier in the file. `every_frame` if all frames were compared with
            a full decode, `sampled` if some frames were compared (--prove), null if none. Since version 3.8, videos
            whose codec framedex cannot parse have `every_frame`, and their full decode determines which frames exist.
        proved_by: Version of FFmpeg that decoded the frames for the proof.
        not_reproducible_gop_count: Number of GOPs with a frame that differed in the proof. The packets of these GOPs
            have the flag 4096. Null without a proof.
        first_difference: Presentation number of the first frame that differed in the proof. Null if all frames were
            equal.
        codec: FFmpeg's canonical name of the codec.
        codec_tag: Four-character code of the codec in the container. Some decoders depend on it.
        bits_per_coded_sample: Bits per sample according to the container. 0 if the container does not have this number.
        profile: FFmpeg's name of the codec profile.
        pixel_format: FFmpeg's name of the pixel format.
        width: Width of the decoded picture after the bitstream's cropping, and before rotation.
        height: Height of the decoded picture after the bitstream's cropping, and before rotation.
        rotation_degrees: Counterclockwise rotation that a player applies.
        field_order: `progressive`, or the order of interlaced fields: `tt`, `bb`, `tb` or `bt`. The first letter is the
            field that is coded first, the second letter is the field that is shown first (t is top, b is bottom). Null
            if unknown.
        sample_aspect_ratio: Width of a sample (pixel) divided by its height. Null if unknown.
        color_range: `limited` or `full`. Null if unknown.
        color_matrix: Matrix coefficients as a code point of ISO/IEC 23091-2 (1 is BT.709, 2 is unspecified, 5 and 6 are
            BT.601).
        color_primaries: Colour primaries as a code point of ISO/IEC 23091-2.
        color_transfer: Transfer characteristics as a code point of ISO/IEC 23091-2.
        time_base_num: Numerator of the time base in seconds, which is the unit of every pts.
        time_base_den: Denominator of the time base in seconds, which is the unit of every pts.
        start_pts: pts of the first presented frame.
        pts_source: Origin of the timestamps. `container` if they are the container's. `filled` if some were missing and
            were filled in. `joined` if they jumped back and were shifted to continue. `dealt` if they are decoding
            timestamps that were assigned to the frames in output order. `counted` if the container has no timestamps,
            so that frames were counted. `listed` if they were given for images by a rate, a listing or a file of times.
        duration_pts: Time from the pts of the first frame to the end of the last frame.
        extradata: Configuration record of the decoder.
        states: List of entries with parameter sets. A decoder that starts at a random access point must first get the
            entry whose number is in `frames.start_state`. The first entry is empty. It is the entry for packet 0.
        reorder_depth: Number of frames that the decoder holds back to restore presentation order.
        inband_parameter_sets: Whether packets contain other parameter sets than the configuration record.
        inner_start_codes: Whether some length-prefixed units contain several NAL units between Annex B start codes.
        varying_shape: Whether pictures differ in size or pixel format.
        chroma_format: Syntax element chroma_format_idc: 0 is monochrome, 1 is 4:2:0, 2 is 4:2:2, 3 is 4:4:4.
        max_ref_frames: Syntax element max_num_ref_frames of an H.264 stream (0 if every picture is intra-coded). Null
            for other codecs.
        field_coded: Whether some pictures are coded as two fields.
        hidden_unordered: Whether decoders output the pictures of packets that an edit list hides, but not in the order
            of their timestamps. The positions of these pictures in output order are then unknown.
        stated_frames: Number of packets of the stream according to the sample tables of an MP4 or MOV file. Null for
            other files and for fragmented files.
        stated_duration_seconds: Duration of the stream according to the header, or of the file if the header has none
            for the stream. Parts that an edit list hides are not included. Null if the header has no duration.
        stated_rate: Frames per second according to the codec's parameter sets, or according to the header if the
            parameter sets have no rate. Null if neither has a rate.
        packet_count: Number of packets of the stream.
        packet_bytes: Sum of the sizes of all packets of the stream.
        first_packets: Hash (16 hex digits of BLAKE2b) of the sizes of the first 256 packets, or of the CRC-32 values of
            the first 256 images. Null for a video in which these packets have fewer than 8 different sizes, since
            different videos may then have the same sizes.
        frame_count: Number of presented frames.
        keyframe_count: Number of random access points.
        min_gap_seconds: Shortest time between two successive frames. Null for a single frame.
        median_gap_seconds: Median time between two successive frames. Null for a single frame.
        max_gap_seconds: Longest time between two successive frames. Null for a single frame.
        is_vfr: Whether the frame rate is variable: a time between two successive frames differs from the median by more
            than 1 % and by more than one unit of the time base.
        min_gop: Shortest distance between two successive random access points.
        mean_gop: Mean distance between two successive random access points.
        max_gop: Longest distance between two successive random access points.
        seek_packets: Mean number of packets that a decoder needs to output a randomly chosen frame, beginning at the
            random access point from which the frame can be decoded.
        non_reference_share: Fraction of the packets that no other packet needs.
        open_gop_count: Number of open random access points, whose leading pictures need the previous GOP. Null if some
            random access points were not read.
        damaged_gop_count: Number of GOPs in which data is damaged or missing.
        byte_addressable: Whether every packet is one byte range of the file. Clips of other media are made by demuxing.
        audio_stream_index: Number of the first audio stream in its container. Null without audio.
        audio_codec: FFmpeg's canonical name of the audio codec.
        audio_codec_tag: Four-character code of the audio codec in the container.
        audio_rate: Sample rate of the decoded audio.
        audio_channels: Number of channels of the decoded audio.
        audio_layout: FFmpeg's name of the channel layout.
        audio_sample_format: FFmpeg's name of the sample format that the decoder outputs.
        audio_bits_per_coded_sample: Bits per coded audio sample according to the container. 0 if the container does not
            have this number.
        audio_extradata: Configuration record of the audio decoder.
        audio_first_sample: Position of the first sample that a full decode presents. Position n is at n / `audio_rate`
            seconds on the container's clock.
        audio_end_sample: Position after the last sample that a full decode presents.
        audio_problem: Reason why the audio cannot be used. Null if the audio can be used, or if there is no audio.
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
    generation: int | None = column(pa.int32(), of_table=True)
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


UNREAD = -1  # stands for the flags of a packet that was not read


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketRecord:
    """A row of the table `frames` without audio. The columns are lists with one element per packet, in decode order.

    Attributes:
        pts: Presentation timestamp of each packet. Null for packets without a presented frame.
        gap: Offset of each packet's first byte minus the end of the previous packet. For the first packet, the offset
            in the file. Offset n is the sum of the gaps 0 … n and the sizes 0 … n - 1. The list is null if a packet is
            not one byte range of the file.
        size: Size of each packet.
        flags: Flags of each packet as bits. 1: closed random access point. 2: open random access point. 4:
            non-reference (no other packet needs it). 8: leading (it can be decoded only if decoding begins at the
            previous random access point). 16: hidden (it is decoded but not presented, due to an edit list or the end
            of a sequence). 32: skipped (decoders output no picture for it). 64: field-coded. 128: second field (it
            completes the picture of the previous packet). 256: in a damaged GOP. 512: reset (a random access point at
            which a new decoder session must begin). 1024: stated (a random access point according to the sample table;
            the packet was not read, so the random access point may be open). 2048: contains parameter sets that differ
            from the current ones, so it is always decoded. 4096 (together with 256): not reproducible (a frame of the
            GOP differed in the proof). The element is null if the packet was not read (depth `tables`).
        slots: Reference slots of each packet as bits, in AV1 and HEVC. Bits 0 to 7 are the slots that the frames of the
            packet use, with their content before the packet. Bits 8 to 15 are the slots that the frames refresh. Bit 16
            is set if all these slots are known. If it is not set, the packet may need every packet before it. An AV1
            stream has slots itself. For HEVC, indexing assigns the slots. The list is null if the slots were not read.
        start_state: For each random access point in order, the number of the entry of `videos.states` that a decoder
            must get before it starts there. The list is null if no random access point needs an entry.
        md5: With --verify, the MD5 of each packet's picture: of the native planes, with rows cropped to their visible
            part, followed by `{pixel format}{width}x{height}`. For an image, the MD5 of the rows of its RGB bytes,
            followed by `rgb24{width}x{height}`. Null for packets without a presented frame.
        path: Path of the file of each loose image, relative to `videos.uri`. Null for other media.
        crc32: CRC-32 (ISO/IEC 8802-3) of the bytes of each image. Null for videos.
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
    """The audio packets in a row of the table `frames`: columns with the prefix `audio_`, in decode order.

    Attributes:
        sample: Position of the first decoded sample of each audio packet, in the same units as
            `videos.audio_first_sample`. The list is null without audio, or if there is an `audio_problem`.
        gap: Offset of each audio packet's first byte minus the end of the previous audio packet, as in `gap`. The list
            is null if an audio packet is not one byte range of the file.
        size: Size of each audio packet.
    """

    sample: NDArray[np.int64] | None = column(list_of(pa.int64()), unit="samples", rule=TIME)
    gap: NDArray[np.int64] | None = column(list_of(pa.int64()), unit="bytes", rule=TIME)
    size: NDArray[np.int64] | None = column(list_of(pa.int32()), unit="bytes", rule=SIZE, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketArrays:
    """The n packets of a medium in decode order, as arrays. For the meaning of the values, see `PacketRecord`.

    Attributes:
        pts: int64 [n], the timestamps.
        offset: int64 [n]. The offset of each packet in bytes. None if not every packet is one byte range of the file.
        size: int64 [n]. The size of each packet in bytes.
        flags: int32 [n], the flags.
        md5: The MD5 of each packet's frame, 16 bytes. An element is None if the packet presents no frame. The list is
            None if frames were not hashed (--verify).
        crc32: int64 [n], the checksum of each image file. None for videos.
        path: The paths of the n loose images. None for other media.
    """

    pts: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]
    flags: NDArray[np.int32]
    md5: Sequence[bytes | None] | None = None
    crc32: NDArray[np.int64] | None = None
    path: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketColumns(PacketArrays):
    """The packets of a medium that become a row of `frames`. Masked elements of `pts` and `flags` are null.

    Attributes:
        slots: int32 [n]. None if the slots were not read.
        start_state: int32 [random access points]. None if no random access point needs an entry of `videos.states`.
    """

    slots: NDArray[np.int32] | None = None
    start_state: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPackets:
    """The audio packets of one medium in decode order, as int64 arrays with one element per packet.

    Attributes:
        sample: The position of the first decoded sample of each packet. Position n is at n / `videos.audio_rate`
            seconds. All coded samples of the packets are counted. So a decoder that removes samples by itself (such as
            the pre-skip of Opus) must be configured to keep them.
        offset: The offset of each packet in bytes. None if not every packet is one byte range of the file.
        size: The size of each packet in bytes.
    """

    sample: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.sample, self.offset, self.size) if column is not None}
        if len(lengths) != 1:
            raise ValueError(f"the columns of audio packets have different lengths: {sorted(lengths)}")


def gaps_of(offset: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert the offsets of packets into values of the column `frames.gap`, int64 [packets]."""
    ends = offset + size
    return offset - np.append(np.int64(0), ends[:-1])


def offsets_of(gap: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert values of the column `frames.gap` into the offsets of packets, int64 [packets]."""
    ends: NDArray[np.int64] = np.cumsum(gap + size)
    return ends - size


# Keys in items of loaders that do not correspond to columns.
PICTURE_KEYS = frozenset({"frames", "movie", "positions"})
AUDIO_KEYS = frozenset({"audio", "audio_mask", "audio_rate"})
ITEM_KEYS = columns.keys_of(ClipRecord).keys() | columns.keys_of(MediumRecord).keys() | PICTURE_KEYS | AUDIO_KEYS
CLIP_NAMES = columns.columns_of(ClipRecord).keys() | ITEM_KEYS
# All keys in the JSON of a packed clip in a tar (docs/shards.md).
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
