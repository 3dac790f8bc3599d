"""Decoders on the CPU that are opened from recorded facts, as clips are decoded and as indexing proves its frames.

A decoded picture's native planes, and a fingerprint of them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from typing import Protocol

import av
import av.error
import av.logging
import numpy as np
from av.codec.codec import UnknownCodecError
from av.codec.context import CodecContext
from av.video.codeccontext import VideoCodecContext
from av.video.plane import VideoPlane
from numpy.typing import NDArray

from framedex.errors import DecodeError
from framedex.indexer.containers.opening import decode_packet, packet_with
from framedex.records.medium import COLOR_RANGES, FIELD_ORDERS

# Codecs whose canonical name would open a decoder that needs hardware.
DECODERS = {"av1": "libdav1d"}
INTRA_BY_FLAG = frozenset({"png"})  # FFmpeg draws a PNG that is not marked as a key frame over the previous picture
NEED_PIXEL_FORMAT = frozenset({"rawvideo"})
# FFmpeg's decoder of Dirac and VC-2 gives different pictures with slice threads, and different ones each time (Haar
# wavelets). That of MPEG-1 and MPEG-2 then decodes slices with quantiser matrices that come behind them in the packet.
ONE_THREAD = frozenset({"dirac", "mpeg1video", "mpeg2video"})
# FFmpeg's decoders of these make up what they cannot decode of a slice, from pictures that depend on where they
# started, and do not mark the picture. Told to "explode", they report an error instead.
SILENT = frozenset({"mpeg1video", "mpeg2video"})
RANGE_NUMBERS: dict[str | None, int] = {name: number for number, name in COLOR_RANGES.items()}
FIELD_ORDER_NUMBERS = {name: number for number, name in FIELD_ORDERS.items()}


class Coded(Protocol):
    """What a decoder of a video stream is told: columns of `videos`, as a `StreamFacts` or a `Medium` has them."""

    @property
    def codec(self) -> str: ...
    @property
    def codec_tag(self) -> str | None: ...
    @property
    def bits_per_coded_sample(self) -> int | None: ...
    @property
    def pixel_format(self) -> str | None: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def color_range(self) -> str | None: ...
    @property
    def color_matrix(self) -> int: ...
    @property
    def field_order(self) -> str | None: ...
    @property
    def reorder_depth(self) -> int: ...
    @property
    def extradata(self) -> bytes | None: ...


class RunDecoder:
    """A decoder of one run. Pictures carry the number of the packet that they were decoded from, as their pts.

    A run gets a decoder of its own, because a flush leaves some state behind, for instance the colour range.

    Args:
        coded: The stream.
        where: Its file, for messages.
        threads: How many the decoder may use.
        keep_damaged: Keep what the decoder makes up for damaged slices.

    Raises:
        DecodeError: FFmpeg has no such decoder, or it does not take what was recorded.
    """

    def __init__(self, coded: Coded, *, where: str, threads: int = 1, keep_damaged: bool = False) -> None:
        self._by_flag = coded.codec in INTRA_BY_FLAG
        self._context = _open_decoder(coded, where, threads, keep_damaged=keep_damaged)

    def decode(self, data: bytes | memoryview, number: int) -> list[av.VideoFrame]:
        """Return the pictures that come out when a packet goes in. Raises av.error.FFmpegError."""
        packet = packet_with(data)
        # Numbers of a run's packets are all different, and each picture keeps the one of its packet. (PyAV's
        # copy_opaque does the same, but loses objects when several threads decode.)
        packet.pts = number
        packet.is_keyframe = self._by_flag
        return decode_packet(self._context, packet)

    def flush(self) -> list[av.VideoFrame]:
        """Return the pictures that are left at the end of the run. Raises av.error.FFmpegError."""
        return decode_packet(self._context, None)


def _open_decoder(coded: Coded, where: str, threads: int, *, keep_damaged: bool) -> VideoCodecContext:
    av.logging.set_level(None)
    try:
        context = CodecContext.create(DECODERS.get(coded.codec, coded.codec), "r")
    except UnknownCodecError as error:
        raise DecodeError(f"this version of FFmpeg has no decoder of {coded.codec}", where=where) from error
    if not isinstance(context, VideoCodecContext):
        raise DecodeError(f"{coded.codec} is no codec of video", where=where)
    try:
        _tell(context, coded)
    except (ValueError, TypeError, OverflowError) as error:  # FFmpeg does not know the pixel format or the tag
        raise DecodeError(
            "the decoder does not take what is recorded of the medium", where=where, found=error
        ) from error
    context.thread_count = 1 if coded.codec in ONE_THREAD else threads
    if coded.codec in SILENT and not keep_damaged:
        context.options = {"err_detect": "explode"}
    return context


def _tell(context: VideoCodecContext, coded: Coded) -> None:
    """Set the codec parameters of a decoder as a demuxer would, because some decoders depend on them."""
    context.extradata = coded.extradata
    context.width, context.height = coded.width, coded.height
    if coded.codec_tag:
        context.codec_tag = coded.codec_tag
    if coded.bits_per_coded_sample:
        context.bits_per_coded_sample = coded.bits_per_coded_sample
    if coded.pixel_format and coded.codec in NEED_PIXEL_FORMAT:
        context.pix_fmt = coded.pixel_format
    if coded.color_range is not None:
        context.color_range = RANGE_NUMBERS[coded.color_range]
    context.colorspace = coded.color_matrix
    if coded.field_order is not None:
        context.field_order = FIELD_ORDER_NUMBERS[coded.field_order]
    # Without it, pictures vanish if the stream does not state its reordering.
    context.reorder_depth = coded.reorder_depth


def native_planes(picture: av.VideoFrame) -> Iterator[NDArray[np.uint8]]:
    """Yield each plane as uint8 [rows, bytes], cropped to the visible part. A palette is one row of 1024 bytes."""
    palette = picture.format.name == "pal8"
    for number, plane in enumerate(picture.planes):
        if palette and number == 1:
            yield plane_rows(plane, 1)[:, :1024]
        else:
            yield plane_rows(plane, plane.height)[:, : _row_bytes(picture.format.name, plane.width, number)]


def plane_rows(plane: VideoPlane, height: int) -> NDArray[np.uint8]:
    """Return uint8 [height, line size]: a view of a plane's memory, including the padding at the end of its rows."""
    # Only some numpy versions need the "type: ignore".
    pixels: NDArray[np.uint8] = np.frombuffer(plane, np.uint8)  # type: ignore[call-overload, unused-ignore]
    row = plane.line_size if height > 1 else len(pixels)
    return pixels[: row * height].reshape(height, row)


@functools.lru_cache(1024)
def _row_bytes(pixel_format: str, width: int, plane: int) -> int:
    """Return the number of visible bytes in a row of a plane, for all components stored in that plane.

    Args:
        pixel_format: FFmpeg's name of it.
        width: width of the plane, in pixels.
        plane: number of the plane.
    """
    layout = av.VideoFormat(pixel_format)
    if layout.name == "pal8":
        return width
    if not layout.is_planar and all(component.plane == 0 for component in layout.components):
        bits = layout.padded_bits_per_pixel
        return width * ((bits + 7) // 8) if bits >= 8 else (width * bits + 7) // 8
    here = [component for component in layout.components if component.plane == plane]
    return width * len(here) * ((max(component.bits for component in here) + 7) // 8)


def picture_print(picture: av.VideoFrame) -> int:
    """Return a hash of 64 bits of a picture's format, size, stated colours and visible pixels.

    Equal pictures have equal hashes in one process. (Python's own hash of bytes is six times as fast as md5.)
    """
    planes = tuple(hash(plane.tobytes()) for plane in native_planes(picture))
    colours = int(picture.color_range), int(picture.colorspace)
    return hash((planes, picture.format.name, picture.width, picture.height, colours))


def picture_md5(picture: av.VideoFrame) -> str:
    """Return the md5, in hexadecimal, of the native planes followed by '{pixel format}{width}x{height}'."""
    digest = hashlib.md5(usedforsecurity=False)
    for plane in native_planes(picture):
        digest.update(plane.tobytes())
    digest.update(f"{picture.format.name}{picture.width}x{picture.height}".encode())
    return digest.hexdigest()
