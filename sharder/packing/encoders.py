"""Encoding of a clip's frames as one closed GOP, with the encoders that PyAV contains.

One thread, constant quality, one key frame and no scene cuts: the same pictures give the same bytes. Packets hold
nothing but coded pictures; parameter sets are in the configuration record.

RGB to 8-bit planes of 4:2:0, by integers alone: the same samples on every machine and with every version of FFmpeg.

The matrix is that of BT.601 and the range is the limited one. Both decoders of the loader convert exactly this back to
RGB without a correction. Chroma lies in the middle of the four pixels that share it, where the loader takes it from.

A clip whose wanted frames alone are scaled and encoded again, as one closed GOP in a tiny MP4.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import av
import numpy as np
from av.codec.codec import Codec, UnknownCodecError
from av.video.stream import VideoStream
from numpy.typing import NDArray

from framedex.core.pyav import ffmpeg_version, open_encoder
from framedex.errors import PolicyError, UncuttableError
from framedex.indexer.bitstream.nal import join_length_prefixed, split_annex_b
from framedex.indexer.containers import memory_errors, packet_with
from framedex.indexer.images.image_facts import resize_rgb
from framedex.records.clip import PAD, Recipe
from framedex.records.medium import COLOR_RANGES, VIDEO
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.clips.samples import Member
from framedex.sharder.decoding.video import Size, decode_unique
from framedex.sharder.packing import mp4
from framedex.sharder.packing.clip_files import ClipFile, look_of, packet_times, places, shown_seconds
from framedex.sharder.packing.pack_options import EncodeCodec, EncodeOptions
from framedex.sharder.reading import EncodedClip

MATRIX, RANGE_NAME = 6, "limited"  # SMPTE 170M, BT.601 (ISO/IEC 23091-2 table 4)
SHIFT = 16
LUMA_ZERO, CHROMA_ZERO = 16, 128
KR, KB = 0.299, 0.114
LUMA_STEPS, CHROMA_STEPS = 219 / 255, 224 / 255  # of limited range, ITU-T H.273 8.3
PIXELS = 4  # that share a chroma sample


def _fixed(weights: tuple[float, float, float], scale: float) -> tuple[int, int, int]:
    red, green, blue = (round(weight * scale * (1 << SHIFT)) for weight in weights)
    return red, green, blue


LUMA = _fixed((KR, 1 - KR - KB, KB), LUMA_STEPS)
BLUE = _fixed((-KR, KR + KB - 1, 1 - KB), CHROMA_STEPS / (2 * (1 - KB)) / PIXELS)
RED = _fixed((1 - KR, KR + KB - 1, -KB), CHROMA_STEPS / (2 * (1 - KR)) / PIXELS)


def planes_of(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return uint8 [3 * H / 2, W]: the three planes of a picture one after another, as PyAV takes `yuv420p`.

    Args:
        rgb: uint8 [H, W, 3]; H and W are even.
    """
    height, width = rgb.shape[:2]
    wide = rgb.astype(np.int32)
    shared = wide.reshape(height // 2, 2, width // 2, 2, 3).sum(axis=(1, 3), dtype=np.int32)
    planes = (_samples(wide, LUMA, LUMA_ZERO), _samples(shared, BLUE, CHROMA_ZERO), _samples(shared, RED, CHROMA_ZERO))
    return np.concatenate([plane.ravel() for plane in planes]).reshape(height * 3 // 2, width)


def _samples(rgb: NDArray[np.int32], weights: tuple[int, int, int], zero: int) -> NDArray[np.uint8]:
    red, green, blue = weights
    total = red * rgb[..., 0] + green * rgb[..., 1] + blue * rgb[..., 2]
    return ((total + (zero << SHIFT) + (1 << (SHIFT - 1))) >> SHIFT).astype(np.uint8)


RATE = 30  # frames per second; the encoders' rate control counts frames, whatever their times are
LENGTH_SIZE = 4
PIXEL_FORMAT = "yuv420p"
PROBE_SIZE = (128, 128)
RANGE_NUMBER = {name: number for number, name in COLOR_RANGES.items()}[RANGE_NAME]
# The greatest code points that all three encoders know (ISO/IEC 23091-2 tables 2 and 3).
MAX_PRIMARIES, MAX_TRANSFER = 12, 18
TEMPORAL_DELIMITER = b"\x12\x00"  # an OBU that ISO media files leave out (AV1 in ISOBMFF 2.4)
VERSIONS = re.compile(rb"x264 - (core \d+(?: r\w+)?)|x265 (\(build \d+\) - [\w.+-]+)")
QUIET_SVT = ("SVT_LOG", "1")  # SVT-AV1 prints its settings to stderr otherwise, whatever FFmpeg's log level is


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """An encoder and what its streams are.

    Attributes:
        name: FFmpeg's name of the encoder.
        preset: Its own preset.
        parameters: The option that takes parameters, and these.
        naming: Parameters with which it writes its version into the stream.
        least_side: Pictures have at least this many pixels per side.
        profile: Of its streams, as FFmpeg names it.
        reorder_depth: How many pictures come out of a decoder late at most.
    """

    name: str
    preset: str
    parameters: tuple[str, str]
    naming: str
    least_side: int
    profile: str
    reorder_depth: int


# x264's macroblock tree gives other bytes each time (measured with core 165), so it is off. x265 4.2 writes beyond its
# memory where a side has at most one coding tree unit, 64 pixels. SVT-AV1 documents 64 as its least size.
# B-frames save a fifth to a third of the bytes at nearly the same PSNR (docs/decisions/0035-encoded-clips.md).
ENCODERS: dict[EncodeCodec, Encoder] = {
    "h264": Encoder(
        name="libx264",
        preset="medium",
        parameters=(
            "x264-params",
            "threads=1:lookahead-threads=1:keyint=infinite:scenecut=0:open-gop=0:bframes=3:mbtree=0",
        ),
        naming="",
        least_side=16,
        profile="High",
        reorder_depth=2,
    ),
    "hevc": Encoder(
        name="libx265",
        preset="medium",
        parameters=(
            "x265-params",
            "pools=none:frame-threads=1:wpp=0:keyint=-1:scenecut=0:open-gop=0:bframes=4:info=0:log-level=none",
        ),
        naming=":info=1",
        least_side=96,
        profile="Main",
        reorder_depth=2,
    ),
    "av1": Encoder(
        name="libsvtav1",
        preset="6",
        parameters=("svtav1-params", "lp=1:keyint=-1:scd=0"),
        naming="",
        least_side=64,
        profile="Main",
        reorder_depth=0,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Colour:
    """Code points that the stream states besides its matrix and range (ISO/IEC 23091-2)."""

    primaries: int = mp4.UNSPECIFIED
    transfer: int = mp4.UNSPECIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedStream:
    """A clip's frames as packets, in decode order.

    Attributes:
        configuration: The decoder configuration record.
        packets: As an MP4 holds them.
        rank: int32 [packets], which frame each packet shows.
        version: What the encoder writes about itself; "" for nothing.
    """

    configuration: bytes
    packets: list[bytes]
    rank: NDArray[np.int32]
    version: str


def colour_of(primaries: int, transfer: int) -> Colour:
    """Return code points that encoders know; others become unspecified."""
    return Colour(
        primaries=primaries if 0 < primaries <= MAX_PRIMARIES else mp4.UNSPECIFIED,
        transfer=transfer if 0 < transfer <= MAX_TRANSFER else mp4.UNSPECIFIED,
    )


def encode(
    pictures: Iterable[NDArray[np.uint8]], size: Size, options: EncodeOptions, colour: Colour = Colour()
) -> EncodedStream:
    """Return pictures, uint8 [H, W, 3] RGB of `size`, as one closed GOP.

    Raises:
        UncuttableError: The encoder refuses the size, or does not keep one packet per picture.
    """
    encoder = ENCODERS[options.codec]
    if min(size) < encoder.least_side:
        raise _refused(encoder, size, f"a side of {min(size)}", allowed=f"{encoder.least_side} pixels or more per side")
    return _encode(pictures, size, options, colour, encoder)


def _encode(
    pictures: Iterable[NDArray[np.uint8]], size: Size, options: EncodeOptions, colour: Colour, encoder: Encoder
) -> EncodedStream:
    file = io.BytesIO()
    os.environ.setdefault(*QUIET_SVT)
    av.logging.set_level(None)
    with memory_errors(), av.open(file, "w", format="mp4", options=mp4.OPTIONS | mp4.MOV_OPTIONS) as out:
        with _refusals(encoder, size):
            stream = _stream(out, encoder, size, options, colour)
            open_encoder(stream.codec_context)
        packets: list[av.Packet[VideoStream]] = []
        for number, rgb in enumerate(pictures):
            frame = _frame(rgb, number)
            with _refusals(encoder, size):
                packets += stream.encode(frame)
        with _refusals(encoder, size):
            packets += stream.encode(None)
            contents = [bytes(packet) for packet in packets]
            out.mux_one(_first(contents[0], stream))
    _check_closed(packets, number + 1, encoder, size)
    box = mp4.SAMPLE_ENTRIES[options.codec].configuration
    assert box is not None  # all of these codecs have one
    configuration = mp4.configuration_box(file.getvalue(), box)
    return EncodedStream(
        configuration=configuration,
        packets=[_slices(options.codec, content) for content in contents],
        rank=np.array([packet.pts for packet in packets], np.int32),
        version=_version(configuration + contents[0]),
    )


def _first(content: bytes, stream: VideoStream) -> av.Packet[VideoStream]:
    """Return a packet that makes a muxer write its header.

    It has times of its own: for short clips, x265 at times gives decoding times that muxers refuse.
    """
    packet = packet_with(content)
    packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, RATE), True
    packet.pts = packet.dts = 0
    return packet


@contextlib.contextmanager
def _refusals(encoder: Encoder, size: Size) -> Iterator[None]:
    """Turn the errors of an encoder into UncuttableError."""
    try:
        yield
    except (av.error.FFmpegError, ValueError, OverflowError, IndexError) as error:
        raise _refused(encoder, size, str(error)) from error


def _check_closed(packets: Sequence[av.Packet[VideoStream]], pictures: int, encoder: Encoder, size: Size) -> None:
    """Raise UncuttableError unless there is a packet for each picture, and the first alone is a key frame."""
    shown = sorted(packet.pts if packet.pts is not None else -1 for packet in packets)
    starts = [packet.is_keyframe for packet in packets]
    if shown != list(range(pictures)) or starts != [True] + [False] * (pictures - 1):
        raise _refused(encoder, size, f"{len(packets)} packets and {sum(starts)} key frames for {pictures} pictures")


def encoder_version(options: EncodeOptions) -> str:
    """Return the encoder and its version, as dataset.json records them, by encoding a picture.

    Raises:
        PolicyError: FFmpeg has no such encoder here, or it does not work.
    """
    encoder = ENCODERS[options.codec]
    name, parameters = encoder.parameters
    naming = replace(encoder, parameters=(name, parameters + encoder.naming))
    try:
        Codec(encoder.name, "w")
        stream = _encode([np.zeros((*PROBE_SIZE, 3), np.uint8)], PROBE_SIZE, options, Colour(), naming)
    except (UnknownCodecError, UncuttableError) as error:
        raise PolicyError(
            f"the FFmpeg in PyAV cannot encode {options.codec}",
            found=f"no working {encoder.name} in FFmpeg {ffmpeg_version()}: {error}",
            remedy="install PyAV's own wheels (pip install --force-reinstall av), or choose another codec",
        ) from error
    return " ".join(filter(None, [encoder.name, stream.version, f"in FFmpeg {ffmpeg_version()}"]))


def _stream(
    out: av.container.OutputContainer, encoder: Encoder, size: Size, options: EncodeOptions, colour: Colour
) -> VideoStream:
    name, parameters = encoder.parameters
    own = {"preset": encoder.preset, "crf": str(options.quality), name: parameters}
    stream = out.add_stream(encoder.name, rate=RATE, options=own)
    assert isinstance(stream, VideoStream)  # all of these are encoders of video
    context = stream.codec_context
    stream.height, stream.width = size
    stream.pix_fmt = PIXEL_FORMAT
    stream.time_base = context.time_base = Fraction(1, RATE)
    context.thread_count = 1
    context.colorspace, context.color_range = MATRIX, RANGE_NUMBER
    context.color_primaries, context.color_trc = colour.primaries, colour.transfer
    return stream


def _frame(rgb: NDArray[np.uint8], number: int) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(planes_of(rgb), format=PIXEL_FORMAT)
    frame.pts, frame.time_base = number, Fraction(1, RATE)
    frame.colorspace, frame.color_range = MATRIX, RANGE_NUMBER
    return frame


def _refused(encoder: Encoder, size: Size, found: str, allowed: str | None = None) -> UncuttableError:
    height, width = size
    return UncuttableError(
        f"{encoder.name} does not encode pictures of {width} × {height}",
        found=found,
        allowed=allowed,
        remedy="choose another size or codec, or pass --pack images",
    )


def _slices(codec: EncodeCodec, packet: bytes) -> bytes:
    """Return a packet as an MP4 holds it, without parameter sets and what the encoder says about itself."""
    if codec == "av1":
        return packet.removeprefix(TEMPORAL_DELIMITER)
    units = [packet[start:end] for start, end in split_annex_b(packet)]
    return join_length_prefixed((unit for unit in units if _is_slice(codec, unit)), LENGTH_SIZE)


def _is_slice(codec: EncodeCodec, unit: bytes) -> bool:
    """Return whether a NAL unit is coded slice data (H.264 table 7-1, HEVC table 7-1)."""
    return 1 <= unit[0] & 31 <= 5 if codec == "h264" else unit[0] >> 1 & 63 < 32


def _version(content: bytes) -> str:
    found = VERSIONS.search(content)
    return "" if found is None else (found[1] or found[2]).decode("ascii", "replace")


CHROMA_420 = 1
CONTAINER = "mp4"


def encode_clip(clip: Clip, encoded: EncodedClip, options: EncodeOptions) -> EncodedStream:
    """Return the wanted frames of a clip, each once and in presentation order, as an encoded stream.

    Raises:
        DecodeError: The clip does not decode.
        UncuttableError: The encoder does not take pictures of this size.
    """
    medium = clip.medium
    size = options.stored_size(medium.height, medium.width)
    try:
        return encode(
            _pictures(clip, encoded, size), size, options, colour_of(medium.color_primaries, medium.color_transfer)
        )
    except UncuttableError as error:
        raise UncuttableError(
            error.what, where=medium.path, found=error.found, allowed=error.allowed, remedy=error.remedy
        ) from error


def encoded_file(clip: Clip, stream: EncodedStream, options: EncodeOptions) -> ClipFile:
    """Return the tiny file of a clip's encoded frames. Frames are shown at the source's times, from the first one.

    Raises:
        UncuttableError: The clip is larger than a file may be.
    """
    medium = encoded_medium(clip.medium, options, stream.configuration)
    size = np.array([len(packet) for packet in stream.packets], np.int64)
    recipe = _recipe(clip, stream.rank, size)
    times, real = packet_times(replace(clip, recipe=recipe), medium.time_base_den)
    header = _header(medium, size, stream.rank, times)
    return ClipFile(
        clip=replace(clip, medium=medium, md5=None, recipe=replace(recipe, range_offset=np.array([len(header)]))),
        member=Member(suffix=CONTAINER, pieces=[header, *stream.packets]),
        frames=places(recipe),
        seconds=shown_seconds(recipe, times),
        unshown=0,
        real_times=real,
    )


def encoded_medium(medium: Medium, options: EncodeOptions, configuration: bytes) -> Medium:
    """Return a medium with the properties of its encoded clips."""
    height, width = options.stored_size(medium.height, medium.width)
    encoder = ENCODERS[options.codec]
    colour = colour_of(medium.color_primaries, medium.color_transfer)
    return replace(
        medium,
        kind=VIDEO,
        container=CONTAINER,
        codec=options.codec,
        codec_tag=mp4.SAMPLE_ENTRIES[options.codec].entry.decode(),
        bits_per_coded_sample=None,
        profile=encoder.profile,
        pixel_format=PIXEL_FORMAT,
        width=width,
        height=height,
        field_order="progressive",
        color_range=RANGE_NAME,
        color_matrix=MATRIX,
        color_primaries=colour.primaries,
        color_transfer=colour.transfer,
        extradata=configuration,
        states=[b""],
        reorder_depth=encoder.reorder_depth,
        inband_parameter_sets=False,
        inner_start_codes=False,
        varying_shape=False,
        chroma_format=CHROMA_420,
        max_ref_frames=None,
        field_coded=False,
        hidden_unordered=False,
    )


def _header(medium: Medium, size: NDArray[np.int64], rank: NDArray[np.int32], times: mp4.SampleTimes) -> bytes:
    try:
        return mp4.movie_header(
            codec=medium.codec,
            width=medium.width,
            height=medium.height,
            configuration=medium.extradata or b"",
            packet_size=size,
            packet_rank=rank,
            sync=np.zeros(1, np.int64),
            times=times,
            inband=False,
            look=look_of(medium),
        )
    except ValueError as error:
        raise UncuttableError(str(error), where=medium.path, remedy="make clips of fewer frames") from error


def _pictures(clip: Clip, encoded: EncodedClip, size: Size) -> Iterator[NDArray[np.uint8]]:
    """Yield every wanted picture once, scaled, in presentation order."""
    scaled: Iterable[tuple[int, NDArray[np.uint8]]]
    scaled = ((rank, resize_rgb(rgb, *size)) for rank, rgb in decode_unique(clip, encoded))
    if clip.recipe.damaged or clip.medium.hidden_unordered:  # then pictures may come in another order
        scaled = sorted(scaled, key=lambda ranked: ranked[0])
    for _, rgb in scaled:
        yield rgb


def _recipe(clip: Clip, rank: NDArray[np.int32], size: NDArray[np.int64]) -> Recipe:
    """Return the recipe of a clip's file, whose packets follow each other from byte 0."""
    own = clip.recipe.position
    wanted, first = np.unique(own[own != PAD], return_index=True)
    pts = clip.pts[own != PAD][first]
    start = np.zeros(1, np.int32)
    return Recipe(
        range_offset=np.zeros(1, np.int64),
        range_length=np.array([size.sum()], np.int64),
        packet_size=size.astype(np.int32),
        packet_rank=rank,
        run_first=start,
        run_open=np.zeros(1, np.bool_),
        run_state=start,
        damaged=clip.recipe.damaged,
        position=np.where(own == PAD, PAD, np.searchsorted(wanted, own)).astype(np.int32),
        packet_pts=pts[rank],
        packet_shown=np.ones(len(rank), np.bool_),
        packet_start=np.arange(len(rank)) == 0,
    )
