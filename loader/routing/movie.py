"""Tiny MP4 files in memory ("movies") that contain the packets of clips, for decoding on NVDEC through DALI.

The sharder writes the box headers of a movie. Several clips of one stream can share a movie, so that NVDEC is set up
once for many clips.

Sequence parameter sets are rewritten, so that they state full range and no cropping:

- If the header states full range, DALI does not expand the sample range, so it clips fewer colours. DALI 2.4 reads only
  `video_full_range_flag`, and always converts with the BT.601 matrix.
- Without cropping, DALI reuses the decoder that it set up for the previous movie. DALI stores decoders by the size of
  the shown picture, but looks them up by the size of the coded picture (`NVDECCache` in its frames_decoder_gpu.cc).
  Setting up a decoder takes as long as decoding a hundred small pictures. The shown part of a picture (`CodedPicture`)
  is cut out after decoding.

FFmpeg's bitstream filters h264_metadata and hevc_metadata write these fields. They add video usability information
(VUI) if it is missing, and do not change anything else.

Colours are corrected after decoding, so that frames from NVDEC match frames from the CPU. The correction depends on the
matrix and the range of the medium. As in libswscale, the default matrix is BT.601 for all picture sizes, and the
default range is limited. For HDR, only the matrix is applied, without tone mapping.
"""

import functools
import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import av
import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream import h264, h264_sets, hevc, hevc_sets
from framedex.indexer.bitstream.nal import join_annex_b, split_annex_b, split_length_prefixed
from framedex.indexer.containers import packet_with
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.decoding.cutout import Size
from framedex.sharder.packing.mp4 import movie_header
from framedex.sharder.reading import EncodedClip

CACHED_RECORDS = 4096  # maximum number of cached decoder configuration records, which have a few hundred bytes each
SCANNERS = {"h264": h264.H264Scanner, "hevc": hevc.HevcScanner}
# Options of the metadata filters: full range, and no cropping on any side.
WRITTEN = "video_full_range_flag=1:crop_left=0:crop_right=0:crop_top=0:crop_bottom=0"
SEQUENCE_SET = {"h264": h264_sets.SPS, "hevc": hevc_sets.SPS}
# The types of parameter sets that are passed to the metadata filter.
FILTERED = {"h264": (h264_sets.SPS,), "hevc": (hevc_sets.VPS, hevc_sets.SPS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedPicture:
    """The size of a stream's coded pictures, and the rectangle of each picture that is shown, in pixels.

    Attributes:
        width, height: The size of the coded picture.
        left, top: The position of the top left corner of the shown rectangle in the coded picture.
        shown_width, shown_height: The size of the shown rectangle.
    """

    width: int
    height: int
    left: int
    top: int
    shown_width: int
    shown_height: int


@functools.lru_cache(maxsize=CACHED_RECORDS)
def coded_picture(codec: str, record: bytes) -> CodedPicture | None:
    """Return the picture size in the sequence parameter sets of a decoder configuration record.

    Returns:
        The size, or None if the codec has no such sets, or if the sets are damaged or state different sizes.
    """
    if codec not in SCANNERS:
        return None
    try:
        found = {_picture(codec, unit) for unit in _units(codec, record, (SEQUENCE_SET[codec],))}
    except ValueError:
        return None
    return found.pop() if len(found) == 1 else None


def _picture(codec: str, unit: bytes) -> CodedPicture:
    """Return the picture size that an SPS states. Raises ValueError."""
    _, sps = h264_sets.parse_sps(unit) if codec == "h264" else hevc_sets.parse_sps(unit)
    left, right, top, bottom = sps.window
    return CodedPicture(
        width=sps.width,
        height=sps.height,
        left=left,
        top=top,
        shown_width=sps.width - left - right,
        shown_height=sps.height - top - bottom,
    )


@functools.lru_cache(maxsize=CACHED_RECORDS)
def nvdec_record(codec: str, record: bytes) -> bytes | None:
    """Return a decoder configuration record (avcC, hvcC) with rewritten parameter sets, or None if that fails."""
    sets = nvdec_sets(codec, record)
    if not sets:
        return None
    written = bytearray(record)
    for start, end in reversed(_unit_spans(codec, record)):
        unit = sets.get(record[start:end])
        if unit is not None:
            written[start - 2 : end] = len(unit).to_bytes(2, "big") + unit
    return bytes(written)


@functools.lru_cache(maxsize=CACHED_RECORDS)
def nvdec_sets(codec: str, record: bytes) -> Mapping[bytes, bytes]:
    """Map each sequence parameter set of a record to its rewritten form.

    Returns:
        The rewritten sets by original set. If the metadata filter cannot rewrite all sets, the mapping is empty.
    """
    if codec not in SCANNERS:
        return {}
    try:
        before = _units(codec, record, FILTERED[codec])
        rewriter = av.BitStreamFilterContext(f"{codec}_metadata={WRITTEN}", codec)
        packets = rewriter.filter(packet_with(join_annex_b(before)))
    except (av.error.FFmpegError, ValueError):
        return {}
    written = b"".join(bytes(packet) for packet in packets)
    after = [written[start:end] for start, end in split_annex_b(written)]
    if [unit[0] for unit in before] != [unit[0] for unit in after]:
        return {}
    return {
        old: new
        for old, new in zip(before, after, strict=True)
        if SCANNERS[codec].unit_type(old[0]) == SEQUENCE_SET[codec]
    }


def nvdec_packets(codec: str, record: bytes, encoded: EncodedClip) -> EncodedClip | None:
    """Rewrite the sequence parameter sets that a clip's length-prefixed packets repeat.

    Returns:
        The rewritten packets. None if they contain a set that the record lacks, or if they cannot be parsed.
    """
    sets = {old.rstrip(b"\0"): new for old, new in nvdec_sets(codec, record).items()}
    length_size, unit_type = SCANNERS[codec].parse_configuration(record)[0], SCANNERS[codec].unit_type
    data, first = encoded.payload.tobytes(), encoded.packet_first.tolist()
    pieces: list[bytes] = []
    size = np.diff(encoded.packet_first)
    done = 0
    for packet, (begin, end) in enumerate(itertools.pairwise(first)):
        try:
            spans, has_inner = split_length_prefixed(data[begin:end], length_size)
        except ValueError:
            return None
        if has_inner:
            return None
        for start, stop in spans:
            if unit_type(data[begin + start]) != SEQUENCE_SET[codec]:
                continue
            unit = sets.get(data[begin + start : begin + stop].rstrip(b"\0"))
            if unit is None:
                return None
            pieces += [data[done : begin + start - length_size], len(unit).to_bytes(length_size, "big"), unit]
            done = begin + stop
            size[packet] += len(unit) - (stop - start)
    if not pieces:
        return encoded
    payload = np.frombuffer(b"".join([*pieces, data[done:]]), np.uint8)
    return replace(encoded, payload=payload, packet_first=np.concatenate([[0], np.cumsum(size)]))


def _units(codec: str, record: bytes, types: tuple[int, ...]) -> list[bytes]:
    """Return the NAL units in a record that have one of the given types. Raises ValueError."""
    units = [record[start:end] for start, end in _unit_spans(codec, record)]
    return [unit for unit in units if unit and SCANNERS[codec].unit_type(unit[0]) in types]


def _unit_spans(codec: str, record: bytes) -> list[tuple[int, int]]:
    """Return (start, end) of each NAL unit in a record (ISO/IEC 14496-15 5.3.3.1, 8.3.3.1). Raises ValueError."""
    SCANNERS[codec].parse_configuration(record)
    spans = []
    at, groups = (5, 2) if codec == "h264" else (23, record[22])
    for group in range(groups):
        if codec == "h264":
            count, at = record[at] & (0x1F if group == 0 else 0xFF), at + 1
        else:
            count, at = int.from_bytes(record[at + 1 : at + 3], "big"), at + 3
        for _ in range(count):
            end = at + 2 + int.from_bytes(record[at : at + 2], "big")
            spans.append((at + 2, end))
            at = end
    return spans


Colour = Literal["close", "exact"]

# Luma weights (Kr, Kb) by matrix coefficients, ISO/IEC 23091-2 table 4. As in libswscale, "unspecified" (2) is BT.601.
LUMA_WEIGHTS = {
    1: (0.2126, 0.0722),  # BT.709
    2: (0.299, 0.114),
    4: (0.30, 0.11),  # United States FCC Title 47
    5: (0.299, 0.114),  # BT.601, 625 lines
    6: (0.299, 0.114),  # BT.601, 525 lines
    7: (0.212, 0.087),  # SMPTE 240M
    9: (0.2627, 0.0593),  # BT.2020, non-constant luminance
}
DALI_MATRIX = 6  # the matrix coefficients (BT.601) with which DALI 2.4 converts every stream that NVDEC decodes
FULL_RANGE_FORMATS = ("yuvj420p",)
DEEP_FORMATS = ("yuv420p10le",)
# The mean of (stored sample - delivered sample), in 8-bit levels, for 10-bit streams. DALI requests 8 bits from NVDEC,
# which rounds the fractions 0, 1/4, 1/2 and 3/4 to the nearest level, and 1/2 up. (Means on an H200 with DALI 2.4;
# tests/contract/test_gpu_colour.py repeats the measurement.)
LOST_OF_DEEP = -0.125
BLACK = 16  # luma of black for 8-bit samples of limited range, ITU-T H.273 8.3
EXPANSION = np.diag([255 / 219, 255 / 224, 255 / 224])  # the map of (Y, Cb, Cr) from limited range to full range
NO_CORRECTION = np.eye(3, 4, dtype=np.float32)
REWRITABLE = ("h264", "hevc")  # the codecs whose headers can be rewritten (`nvdec_record`)


def has_full_range(medium: Medium) -> bool:
    """Return whether a medium's samples use the full range, 0 to 255."""
    return medium.color_range == "full" or medium.pixel_format in FULL_RANGE_FORMATS


def is_deep(medium: Medium) -> bool:
    """Return whether a medium's samples have more than 8 bits."""
    return medium.pixel_format in DEEP_FORMATS


def colour_obstacle(medium: Medium, colour: Colour = "close") -> str | None:
    """Return the reason why the colours of DALI's pictures cannot be corrected well enough, or None if they can.

    Args:
        medium: The medium.
        colour: The required accuracy. "close" requires a PSNR of 40 dB against the correct conversion on natural
            pictures, a PSNR of 30 dB on saturated test patterns, and a difference of at most 2 levels on flat
            unsaturated patches. "exact" requires a difference of at most 1 level, the rounding error. Only 8-bit BT.601
            streams are that accurate.
    """
    if medium.color_matrix not in LUMA_WEIGHTS:
        return f"colour matrix {medium.color_matrix}"
    if medium.codec not in REWRITABLE and has_full_range(medium):
        return "full range that DALI may not recognize"
    if LUMA_WEIGHTS[medium.color_matrix] == LUMA_WEIGHTS[DALI_MATRIX]:
        return "colours of more than 8 bits" if colour == "exact" and is_deep(medium) else None
    if colour == "exact":
        return "colours that DALI clips"
    # DALI's BT.601 conversion clips saturated colours of streams with another matrix (PSNR of 25 dB on test patterns).
    # DALI does not clip samples of limited range if the header states full range.
    return "saturated colours that DALI clips" if has_full_range(medium) or medium.codec not in REWRITABLE else None


def rgb_from_ycc(color_matrix: int) -> NDArray[np.float64]:
    """Return float64 [3, 3], the matrix that maps (Y, Cb, Cr) to RGB (ITU-T H.273 8.3).

    The range of Y, R, G and B is 0…1, and the range of Cb and Cr is -0.5…0.5.
    """
    red, blue = LUMA_WEIGHTS[color_matrix]
    green = 1 - red - blue
    return np.array(
        [
            [1, 0, 2 * (1 - red)],
            [1, -2 * blue * (1 - blue) / green, -2 * red * (1 - red) / green],
            [1, 2 * (1 - blue), 0],
        ]
    )


def correction(color_matrix: int, *, full_range: bool, said_full: bool, deep: bool = False) -> NDArray[np.float32]:
    """Return float32 [3, 4], the affine map from the RGB values that DALI returns to the stream's correct RGB values.

    Both have the range 0…255.

    Args:
        color_matrix: The matrix coefficients of the stream, ISO/IEC 23091-2 table 4.
        full_range: Whether the stream's samples have full range.
        said_full: Whether the header of the movie states full range. It may differ from `full_range`.
        deep: Whether samples have 10 bits. DALI requests only 8 bits from NVDEC.
    """
    to_rgb, to_dali = rgb_from_ycc(color_matrix), rgb_from_ycc(DALI_MATRIX)
    if not full_range:
        to_rgb = to_rgb @ EXPANSION
    if not said_full:
        to_dali = to_dali @ EXPANSION
    zero = np.array([0 if full_range else BLACK, 0, 0])
    dali_zero = np.array([0 if said_full else BLACK, 0, 0])
    matrix = to_rgb @ np.linalg.inv(to_dali)
    # The map converts DALI's RGB back to samples, adds the mean rounding loss, and converts to RGB by the stream's
    # matrix.
    offset = to_rgb @ (dali_zero + (LOST_OF_DEEP if deep else 0) - zero)
    return np.column_stack([matrix, offset]).astype(np.float32)


# HEVC NAL unit types (H.265 table 7-1): the lowest type that is not a slice, and the types IDR_W_RADL and IDR_N_LP.
# The third number is the mask of no_output_of_prior_pics_flag in the third byte of IDR units.
FIRST_OTHER_UNIT, IDR_TYPES, NO_OUTPUT_OF_PRIOR_PICTURES = 32, (19, 20), 0x40


@dataclass(frozen=True, slots=True, kw_only=True)
class MovieStream:
    """The properties that all clips of one movie must have in common.

    Attributes:
        codec: The codec.
        configuration: The decoder configuration record.
        picture: The size of a coded picture, and the rectangle in it that is shown.
        correction: float32 [3, 4] as bytes, the result of `correction`. It is the parameter `MT` of DALI's
            fn.coord_transform.
    """

    codec: str
    configuration: bytes
    picture: CodedPicture
    correction: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMovie:
    """The packets and headers of one clip, as they are sent to NVDEC.

    Attributes:
        stream: The properties that all clips of one movie must have in common.
        payload: uint8 [bytes], the packets.
        packet_size: int64 [packets], the sizes in bytes.
        packet_rank: int64 [packets], the index of each packet's picture in presentation order.
        run_first: int64 [runs], the number of the first packet of each run.
        can_follow: Whether the clip may come after other clips in one movie. For this, the clip's pictures must not
            reference pictures of earlier clips. Their order does not matter, because DALI orders pictures by the
            timestamps in the movie. An HEVC clip must begin with an IDR picture, since a CRA picture may continue the
            pictures before it.
    """

    stream: MovieStream
    payload: NDArray[np.uint8]
    packet_size: NDArray[np.int64]
    packet_rank: NDArray[np.int64]
    run_first: NDArray[np.int64]
    can_follow: bool

    @property
    def correction(self) -> NDArray[np.float32]:
        """The colour correction as an array, float32 [3, 4] (see `MovieStream.correction`)."""
        return np.frombuffer(self.stream.correction, np.float32).reshape(3, 4)


def packets_before(movies: Sequence[GpuMovie]) -> NDArray[np.int64]:
    """Return int64 [movies], the total number of packets of all movies that precede each movie."""
    return np.cumsum([0, *(len(movie.packet_size) for movie in movies[:-1])])


def joined_movie(movies: Sequence[GpuMovie]) -> NDArray[np.uint8]:
    """Concatenate movies of one stream into one MP4 file, uint8 [bytes].

    Frame n of a movie becomes frame n + p of the file, where p is the movie's value in `packets_before`.
    """
    stream, first = movies[0].stream, packets_before(movies)
    header = movie_header(
        codec=stream.codec,
        width=stream.picture.width,
        height=stream.picture.height,
        configuration=stream.configuration,
        packet_size=np.concatenate([movie.packet_size for movie in movies]),
        packet_rank=np.concatenate([movie.packet_rank + at for movie, at in zip(movies, first, strict=True)]),
        sync=np.concatenate([movie.run_first + at for movie, at in zip(movies, first, strict=True)]),
    )
    return np.concatenate([np.frombuffer(header, np.uint8), *(movie.payload for movie in movies)])


def clip_movie(clip: Clip, encoded: EncodedClip) -> NDArray[np.uint8]:
    """Return a clip as an MP4 file, uint8 [bytes]. Frame n in presentation order is the clip's packet of rank n.

    The headers of the stream are not rewritten. A clip consists of runs of packets, each of which begins at a random
    access point. A decoder that reads the file is not flushed between the runs. It nevertheless decodes correct frames
    if `routes.gpu_obstacle` returns None for the clip.
    """
    return joined_movie([plain_movie(clip, encoded)])


def plain_movie(clip: Clip, encoded: EncodedClip) -> GpuMovie:
    """Return a clip as a movie that has the headers of the clip's medium. Colours are not corrected."""
    medium = clip.medium
    return _movie(clip, encoded, medium.extradata or b"", _whole_picture(medium), NO_CORRECTION)


def gpu_movie(clip: Clip, encoded: EncodedClip) -> GpuMovie | None:
    """Return a clip as a movie for DALI, or None if the clip's headers cannot be rewritten.

    Only the headers of H.264 and HEVC are rewritten. If the result is None, the CPU must decode the clip. This is rare
    if `routes.gpu_obstacle` returns None for the clip.
    """
    medium, configuration = clip.medium, clip.medium.extradata or b""
    picture: CodedPicture | None = _whole_picture(medium)
    said_full = medium.codec in REWRITABLE
    if said_full:
        written, picture = nvdec_record(medium.codec, configuration), coded_picture(medium.codec, configuration)
        packets = None if written is None else nvdec_packets(medium.codec, configuration, encoded)
        if written is None or packets is None or picture is None:
            return None
        configuration, encoded = written, packets
    assert picture is not None  # it was checked above for rewritable codecs, and is never None for other codecs
    full_range, deep = has_full_range(medium), is_deep(medium)
    corrected = correction(medium.color_matrix, full_range=full_range, said_full=said_full, deep=deep)
    return _movie(clip, encoded, configuration, picture, corrected)


def _whole_picture(medium: Medium) -> CodedPicture:
    """Return a picture size without cropping: the coded pictures have the size of the medium, and are shown in full."""
    width, height = medium.width, medium.height
    return CodedPicture(width=width, height=height, left=0, top=0, shown_width=width, shown_height=height)


def _movie(
    clip: Clip, encoded: EncodedClip, configuration: bytes, picture: CodedPicture, corrected: NDArray[np.float32]
) -> GpuMovie:
    recipe = clip.recipe
    return GpuMovie(
        stream=MovieStream(
            codec=clip.medium.codec,
            configuration=configuration,
            picture=picture,
            correction=corrected.astype(np.float32).tobytes(),
        ),
        payload=encoded.payload,
        packet_size=np.diff(encoded.packet_first),
        packet_rank=recipe.packet_rank.astype(np.int64),
        run_first=recipe.run_first.astype(np.int64),
        can_follow=not recipe.run_open.any()
        and (clip.medium.codec != "hevc" or begins_with_idr(configuration, encoded)),
    )


def begins_with_idr(configuration: bytes, encoded: EncodedClip) -> bool:
    """Return whether an HEVC clip begins with an IDR picture that does not discard the decoded pictures before it.

    See H.265 table 7-1 and 7.3.6.1.

    Args:
        configuration: The decoder configuration record. It states the size of the length prefix of NAL units.
        encoded: The clip's packets.
    """
    length_size, _ = hevc_sets.parse_configuration(configuration)
    packet = encoded.payload[: encoded.packet_first[1]].tobytes()
    for start, _ in split_length_prefixed(packet, length_size)[0]:
        kind = packet[start] >> 1 & 0x3F
        if kind < FIRST_OTHER_UNIT:
            return kind in IDR_TYPES and not packet[start + 2] & NO_OUTPUT_OF_PRIOR_PICTURES
    return False


# The maximum number of packets in a movie of several clips. Clips are joined because setting up a movie takes 8 ms. A
# movie is decoded by only one of the GPU's decoders, so longer movies would leave the others idle
# (benchmarks/nvdec.py).
MAX_PACKETS = 128
MAX_PIXELS = 500_000_000  # pixels of a movie's frames: 1.5 GB of RGB, below the limit of a signed 32-bit size, 2³¹


MovieFeed = dict[str, NDArray[Any]]  # the inputs of a DALI pipeline for one movie, by name


def movie_feed(
    movies: Sequence[GpuMovie], wanted: Sequence[NDArray[np.int32]], part: tuple[Size, Size] | None = None
) -> MovieFeed:
    """Join clips of one stream into one movie, and return the inputs of a DALI pipeline that decodes it.

    Args:
        movies: The clips.
        wanted: One int32 array per clip, the ascending numbers of the wanted frames in the clip.
        part: ((top, left), (height, width)) of the wanted part of shown pictures. If None, they are returned whole.

    Returns:
        The inputs by name. `movie`, uint8 [bytes], is a tiny MP4. `wanted`, int32 [frames], has the ascending numbers
            of the wanted frames in the movie. `matrix`, float32 [3, 3], and `offset`, float32 [3], are the affine map
            from the RGB values that DALI returns to the correct RGB values, both in 0…255. `start`, int32 [2], is the
            top left corner (y, x) of the wanted part of a coded picture, and `shape`, int32 [2], is (height, width) of
            this part.
    """
    picture, correction = movies[0].stream.picture, movies[0].correction
    (top, left), shape = part or ((0, 0), (picture.shown_height, picture.shown_width))
    numbers = [frames + at for frames, at in zip(wanted, packets_before(movies), strict=True)]
    return {
        "movie": joined_movie(movies),
        "wanted": np.concatenate(numbers).astype(np.int32),
        "matrix": np.ascontiguousarray(correction[:, :3]),
        "offset": np.ascontiguousarray(correction[:, 3]),
        "start": np.array([picture.top + top, picture.left + left], np.int32),
        "shape": np.array(shape, np.int32),
    }


def groups(
    movies: Sequence[GpuMovie], kinds: Sequence[Hashable], *, most_packets: int = MAX_PACKETS
) -> list[list[int]]:
    """Divide the clips of a batch into groups, each of which is decoded as one movie.

    Args:
        movies: The clips of a batch.
        kinds: A value for each clip. Clips are grouped only if their values are equal.
        most_packets: The maximum number of packets of a group with several clips. If 0, each clip is a group.

    Returns:
        The positions of each group's clips in `movies`, in ascending order.
    """
    found: list[list[int]] = []
    open_groups: dict[Hashable, tuple[list[int], int]] = {}
    for number, (movie, kind) in enumerate(zip(movies, kinds, strict=True)):
        picture = movie.stream.picture
        most = min(most_packets, MAX_PIXELS // (picture.width * picture.height))
        key, packets = (movie.stream, kind), len(movie.packet_size)
        group, total = open_groups.get(key, ([], 0))
        if group and movie.can_follow and total + packets <= most:
            group.append(number)
        else:
            group, total = [number], 0
            found.append(group)
        open_groups[key] = group, total + packets
    return found
