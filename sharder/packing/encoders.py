"""Encode a clip's wanted frames as one closed GOP in a tiny MP4, with the encoders that PyAV includes.

The encoders use one thread, a constant rate factor, one key frame and no scene cut detection, so that the same pictures
always give the same bytes. Packets contain only coded pictures. Parameter sets are in the decoder configuration record.

RGB is converted to 8-bit 4:2:0 in integer arithmetic, so that the result does not depend on the machine or on the
version of FFmpeg. The matrix is BT.601 and the range is limited, because both decoders of the loader convert this
combination to RGB without a correction. Each chroma sample lies at the centre of its 2 × 2 pixels, as the loader
expects.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable, Iterator
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
from framedex.indexer.probing.image_facts import resize_rgb
from framedex.records.clip import PAD, PlannedRecipe
from framedex.records.medium import COLOR_RANGES, VIDEO
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.clips.samples import Member
from framedex.sharder.decoding.video import Size, decode_unique
from framedex.sharder.packing import mp4
from framedex.sharder.packing.clip_files import ClipFile, Track, file_header, output_places, packet_times, shown_seconds
from framedex.sharder.packing.pack_options import EncodeCodec, EncodeOptions, recoded_medium, recoded_recipe
from framedex.sharder.reading import EncodedClip

MATRIX, RANGE_NAME = 6, "limited"  # matrix SMPTE 170M, which is BT.601 (ISO/IEC 23091-2 table 4)
SHIFT = 16  # number of fractional bits of the fixed-point weights
LUMA_ZERO, CHROMA_ZERO = 16, 128
KR, KB = 0.299, 0.114
LUMA_STEPS, CHROMA_STEPS = 219 / 255, 224 / 255  # limited range, ITU-T H.273 8.3
PIXELS = 4  # number of pixels that share a chroma sample


def _fixed_point(weights: tuple[float, float, float], scale: float) -> tuple[int, int, int]:
    red, green, blue = (round(weight * scale * (1 << SHIFT)) for weight in weights)
    return red, green, blue


# Fixed-point weights of red, green and blue in the luma plane and in the two chroma planes.
LUMA = _fixed_point((KR, 1 - KR - KB, KB), LUMA_STEPS)
BLUE = _fixed_point((-KR, KR + KB - 1, 1 - KB), CHROMA_STEPS / (2 * (1 - KB)) / PIXELS)
RED = _fixed_point((1 - KR, KR + KB - 1, -KB), CHROMA_STEPS / (2 * (1 - KR)) / PIXELS)


def planes_of(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert a picture from RGB to YUV 4:2:0.

    Args:
        rgb: uint8 [H, W, 3]. H and W must be even.

    Returns:
        uint8 [3 * H / 2, W], the three planes one after another, which is PyAV's layout of `yuv420p`.
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


RATE = 30  # nominal frames per second; the value has no effect, because the encoders' rate control counts frames
LENGTH_SIZE = 4
PIXEL_FORMAT = "yuv420p"
PROBE_SIZE = (128, 128)  # (height, width) of the picture that tests an encoder; all encoders support this size
RANGE_NUMBER = next(number for number, name in COLOR_RANGES.items() if name == RANGE_NAME)
CHROMA_420 = 1  # value of `chroma_format` for 4:2:0
CONTAINER = "mp4"
# The largest code points that all three encoders support (ISO/IEC 23091-2 tables 2 and 3).
MAX_PRIMARIES, MAX_TRANSFER = 12, 18
TEMPORAL_DELIMITER = b"\x12\x00"  # an OBU that is omitted in ISO media files (AV1 in ISOBMFF 2.4)
VERSIONS = re.compile(rb"x264 - (core \d+(?: r\w+)?)|x265 (\(build \d+\) - [\w.+-]+)")
# Environment variable that keeps SVT-AV1 from printing its settings to stderr, which FFmpeg's log level cannot do.
QUIET_SVT = ("SVT_LOG", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """An encoder's settings, and the properties of the streams that the encoder outputs.

    Attributes:
        name: FFmpeg's name of the encoder.
        preset: The preset of the encoder.
        parameters: The name and the value of the FFmpeg option that passes parameters to the encoder library.
        version_parameters: Parameters to append to `parameters` so that the encoder writes its version into the stream.
        least_side: The minimum width and height in pixels.
        profile: FFmpeg's name of the profile of the streams.
        reorder_depth: The maximum number of pictures by which a decoder's output is delayed.
    """

    name: str
    preset: str
    parameters: tuple[str, str]
    version_parameters: str = ""
    least_side: int
    profile: str
    reorder_depth: int


# x264's macroblock tree is off, because it makes the output differ between runs (measured with core 165). x265 4.2
# writes out of bounds if a side is at most one coding tree unit (64 pixels) long. SVT-AV1 documents 64 pixels as its
# minimum size. B-frames reduce the size by 20 % to 33 % at nearly the same PSNR (docs/decisions/0035-encoded-clips.md).
ENCODERS: dict[EncodeCodec, Encoder] = {
    "h264": Encoder(
        name="libx264",
        preset="medium",
        parameters=(
            "x264-params",
            "threads=1:lookahead-threads=1:keyint=infinite:scenecut=0:open-gop=0:bframes=3:mbtree=0",
        ),
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
        version_parameters=":info=1",
        least_side=96,
        profile="Main",
        reorder_depth=2,
    ),
    "av1": Encoder(
        name="libsvtav1",
        preset="6",
        parameters=("svtav1-params", "lp=1:keyint=-1:scd=0"),
        least_side=64,
        profile="Main",
        reorder_depth=0,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Colour:
    """Code points of a stream's colour primaries and transfer characteristics (ISO/IEC 23091-2)."""

    primaries: int = mp4.UNSPECIFIED
    transfer: int = mp4.UNSPECIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedStream:
    """The encoded frames of a clip: packets in decode order.

    Attributes:
        configuration: The decoder configuration record.
        packets: The contents of the packets in the form of MP4 samples.
        rank: int32 [packets], the presentation rank of each packet.
        version: The encoder version that was found in the stream. "" if the encoder does not write its version.
    """

    configuration: bytes
    packets: list[bytes]
    rank: NDArray[np.int32]
    version: str


def colour_of(primaries: int, transfer: int) -> Colour:
    """Return colour code points for an encoder. Code points that some encoder does not support become unspecified."""
    return Colour(
        primaries=primaries if 0 < primaries <= MAX_PRIMARIES else mp4.UNSPECIFIED,
        transfer=transfer if 0 < transfer <= MAX_TRANSFER else mp4.UNSPECIFIED,
    )


def encode(
    pictures: Iterable[NDArray[np.uint8]],
    size: Size,
    options: EncodeOptions,
    colour: Colour = Colour(),
    *,
    encoder: Encoder | None = None,
) -> EncodedStream:
    """Encode pictures as one closed GOP.

    Args:
        pictures: The pictures in presentation order, each uint8 [H, W, 3] RGB.
        size: The (height, width) of all pictures.
        options: The codec and the quality.
        colour: The colour code points of the stream.
        encoder: The encoder to use. If None, the entry of `ENCODERS` for the codec is used.

    Raises:
        UncuttableError: The encoder does not support the size, or does not output exactly one packet per picture.
    """
    encoder = encoder or ENCODERS[options.codec]
    if min(size) < encoder.least_side:
        raise _refused(encoder, size, f"a side of {min(size)}", allowed=f"{encoder.least_side} pixels or more per side")
    file = io.BytesIO()
    os.environ.setdefault(*QUIET_SVT)
    av.logging.set_level(None)
    with memory_errors(), av.open(file, "w", format="mp4", options=mp4.OPTIONS | mp4.MOV_OPTIONS) as out:
        with _refusals(encoder, size):
            name, parameters = encoder.parameters
            own = {"preset": encoder.preset, "crf": str(options.quality), name: parameters}
            stream = out.add_stream(encoder.name, rate=RATE, options=own)
            assert isinstance(stream, VideoStream)  # all encoders in ENCODERS are video encoders
            context = stream.codec_context
            stream.height, stream.width = size
            stream.pix_fmt = PIXEL_FORMAT
            stream.time_base = context.time_base = Fraction(1, RATE)
            context.thread_count = 1
            context.colorspace, context.color_range = MATRIX, RANGE_NUMBER
            context.color_primaries, context.color_trc = colour.primaries, colour.transfer
            open_encoder(context)
        packets: list[av.Packet[VideoStream]] = []
        for number, rgb in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(planes_of(rgb), format=PIXEL_FORMAT)
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            frame.colorspace, frame.color_range = MATRIX, RANGE_NUMBER
            with _refusals(encoder, size):
                packets += stream.encode(frame)
        with _refusals(encoder, size):
            packets += stream.encode(None)
            contents = [bytes(packet) for packet in packets]
            # The muxer writes the configuration record as soon as it gets a packet. The packet's timestamps are
            # replaced, because muxers sometimes reject the decoding times that x265 outputs for short clips.
            first = packet_with(contents[0])
            first.stream, first.time_base, first.is_keyframe = stream, Fraction(1, RATE), True
            first.pts = first.dts = 0
            out.mux_one(first)
    # Each picture must have one packet, and only the first packet must be a key frame.
    shown = sorted(packet.pts if packet.pts is not None else -1 for packet in packets)
    starts = [packet.is_keyframe for packet in packets]
    if shown != list(range(number + 1)) or starts != [True] + [False] * number:
        raise _refused(encoder, size, f"{len(packets)} packets and {sum(starts)} key frames for {number + 1} pictures")
    configuration = mp4.configuration_box(file.getvalue(), mp4.SAMPLE_ENTRIES[options.codec].configuration)
    version = VERSIONS.search(configuration + contents[0])
    return EncodedStream(
        configuration=configuration,
        packets=[_mp4_sample(options.codec, content) for content in contents],
        rank=np.array([packet.pts for packet in packets], np.int32),
        version="" if version is None else (version[1] or version[2]).decode("ascii", "replace"),
    )


@contextlib.contextmanager
def _refusals(encoder: Encoder, size: Size) -> Iterator[None]:
    """Convert errors of an encoder within a `with` block to UncuttableError."""
    try:
        yield
    except (av.error.FFmpegError, ValueError, OverflowError, IndexError) as error:
        raise _refused(encoder, size, str(error)) from error


def encoder_version(options: EncodeOptions) -> str:
    """Encode a test picture, and return the name and version of the encoder for the header dataset.json.

    Raises:
        PolicyError: The FFmpeg in PyAV lacks the encoder, or the encoder does not work.
    """
    encoder = ENCODERS[options.codec]
    name, parameters = encoder.parameters
    naming = replace(encoder, parameters=(name, parameters + encoder.version_parameters))
    try:
        Codec(encoder.name, "w")
        stream = encode([np.zeros((*PROBE_SIZE, 3), np.uint8)], PROBE_SIZE, options, encoder=naming)
    except (UnknownCodecError, UncuttableError) as error:
        raise PolicyError(
            f"the FFmpeg in PyAV cannot encode {options.codec}",
            found=f"FFmpeg {ffmpeg_version()} has no working {encoder.name}: {error}",
            remedy="install PyAV's own wheels (pip install --force-reinstall av), or choose another codec",
        ) from error
    return " ".join(filter(None, [encoder.name, stream.version, f"in FFmpeg {ffmpeg_version()}"]))


def _refused(encoder: Encoder, size: Size, found: str, allowed: str | None = None) -> UncuttableError:
    height, width = size
    return UncuttableError(
        f"{encoder.name} cannot encode pictures of {width} × {height} pixels",
        found=found,
        allowed=allowed,
        remedy="choose another size or codec, or pass --pack images",
    )


def _mp4_sample(codec: EncodeCodec, packet: bytes) -> bytes:
    """Convert a packet to an MP4 sample. Parameter sets and the encoder's version (an SEI message) are removed."""
    if codec == "av1":
        return packet.removeprefix(TEMPORAL_DELIMITER)
    units = [packet[start:end] for start, end in split_annex_b(packet)]
    return join_length_prefixed((unit for unit in units if _is_slice(codec, unit)), LENGTH_SIZE)


def _is_slice(codec: EncodeCodec, unit: bytes) -> bool:
    """Return whether a NAL unit contains a coded slice (H.264 table 7-1, HEVC table 7-1)."""
    return 1 <= unit[0] & 31 <= 5 if codec == "h264" else unit[0] >> 1 & 63 < 32


def scaled_pictures(
    clip: Clip, encoded: EncodedClip, options: EncodeOptions
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield (rank, picture of the stored size) once for each wanted picture of a clip. Raises DecodeError."""
    size = options.stored_size(clip.medium.height, clip.medium.width)
    return ((rank, resize_rgb(rgb, *size)) for rank, rgb in decode_unique(clip, encoded))


def encode_clip(clip: Clip, pictures: Iterable[tuple[int, NDArray[np.uint8]]], options: EncodeOptions) -> EncodedStream:
    """Encode the wanted pictures of a clip, each once, in presentation order.

    Args:
        clip: The clip.
        pictures: (rank, picture) of each wanted picture, as `scaled_pictures` yields them.
        options: The codec, quality and size.

    Raises:
        UncuttableError: The encoder does not support the size of the pictures.
    """
    medium = clip.medium
    size = options.stored_size(medium.height, medium.width)
    if clip.recipe.damaged or medium.hidden_unordered:  # decoded pictures may be out of order
        pictures = sorted(pictures, key=lambda ranked: ranked[0])
    colour = colour_of(medium.color_primaries, medium.color_transfer)
    try:
        return encode((rgb for _, rgb in pictures), size, options, colour)
    except UncuttableError as error:
        raise error.inside(medium.path) from error


def encoded_file(clip: Clip, stream: EncodedStream, options: EncodeOptions) -> ClipFile:
    """Return the tiny file of a clip's encoded frames. It has the timestamps of the source, shifted to begin at 0.

    Raises:
        UncuttableError: The clip is too large for an MP4 file.
    """
    medium = encoded_medium(clip.medium, options, stream.configuration)
    size = np.array([len(packet) for packet in stream.packets], np.int64)
    recipe = _recipe(clip, stream.rank, size)
    times, real = packet_times(recipe, medium, medium.time_base_den)
    track = Track(packed=medium, configuration=stream.configuration)
    header = file_header(track, size, stream.rank, np.zeros(1, np.int64), times, "make clips of fewer frames")
    return ClipFile(
        clip=replace(clip, medium=medium, md5=None, recipe=replace(recipe, range_offset=np.array([len(header)]))),
        member=Member(suffix=CONTAINER, pieces=[header, *stream.packets]),
        frames=output_places(recipe),
        seconds=shown_seconds(recipe, times),
        unshown=0,
        real_times=real,
    )


def encoded_medium(medium: Medium, options: EncodeOptions, configuration: bytes) -> Medium:
    """Return a copy of a medium whose properties describe its encoded clips instead of the source."""
    encoder = ENCODERS[options.codec]
    colour = colour_of(medium.color_primaries, medium.color_transfer)
    return recoded_medium(
        medium,
        options,
        kind=VIDEO,
        container=CONTAINER,
        codec=options.codec,
        codec_tag=mp4.SAMPLE_ENTRIES[options.codec].entry.decode(),
        profile=encoder.profile,
        pixel_format=PIXEL_FORMAT,
        field_order="progressive",
        color_range=RANGE_NAME,
        color_matrix=MATRIX,
        color_primaries=colour.primaries,
        color_transfer=colour.transfer,
        extradata=configuration,
        reorder_depth=encoder.reorder_depth,
        chroma_format=CHROMA_420,
    )


def _recipe(clip: Clip, rank: NDArray[np.int32], size: NDArray[np.int64]) -> PlannedRecipe:
    """Return the recipe of an encoded clip. Its packets are contiguous, and the first one has offset 0.

    Args:
        clip: The planned clip.
        rank: int32 [packets], the presentation rank of each encoded packet.
        size: int64 [packets], the size of each encoded packet in bytes.
    """
    own = clip.recipe.position
    wanted, first = np.unique(own[own != PAD], return_index=True)
    return recoded_recipe(
        PlannedRecipe,
        size,
        rank,
        np.where(own == PAD, PAD, np.searchsorted(wanted, own)).astype(np.int32),
        damaged=clip.recipe.damaged,
        range_offset=np.zeros(1, np.int64),
        range_length=np.array([size.sum()], np.int64),
        packet_pts=clip.pts[own != PAD][first][rank],
        packet_shown=np.ones(len(rank), np.bool_),
        packet_start=np.arange(len(rank)) == 0,
    )
