"""Media files as libav sees them: opening, demuxing and decoding on the CPU.

A file or an object is opened so that libavformat reaches neither the network nor other files. Decoders are opened from
recorded facts, both to decode clips and to prove an index. `picture_print` and `picture_md5` identify pictures.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast, overload

import av
import av.error
import av.logging
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.codec.codec import UnknownCodecError
from av.codec.context import CodecContext
from av.container import InputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.plane import VideoPlane
from numpy.typing import NDArray

from framedex.core.pyav import LENIENT_METADATA
from framedex.errors import DecodeError, MediaError
from framedex.files.outputs import fingerprint
from framedex.indexer.facts import Identity, StreamFacts
from framedex.indexer.sources.members import FileMember
from framedex.records.medium import COLOR_RANGES, FIELD_ORDERS, MediumRecord
from framedex.storage.reader import ObjectFile, ObjectReader, RangedFile

# Formats that contain their video, by libavformat's names. Formats that refer to other files or places are left out:
# playlists (hls, dash, concat, concatf, imf, rtsp, sdp, sap, ffmetadata), patterns of file names (image2), files with a
# companion (vobsub) and devices (lavfi, x11grab, v4l2 …). So are formats that libavformat detects in any text or bytes.
ALLOWED = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,apng,asf,avi,dv,flv,gif,h263,h264,hevc,ivf,m4v,mjpeg,mpeg,mpegts,mpegvideo,"
    "mxf,nut,obu,ogg,rm,vvc,webp_pipe,wtv,yuv4mpegpipe"
)

# Texts at the beginning of files that refer to other files: HLS, DASH, IMF and Smooth Streaming, concat, SDP.
REFERRING = (b"#EXTM3U", b"<MPD", b"<AssetMap", b"<CompositionPlaylist", b"<SmoothStreamingMedia", b"ffconcat", b"v=0")
HEAD_BYTES = 1024

# libavformat checks the detected demuxer against the list before that demuxer reads a byte, and returns EINVAL
# (av.error.ArgumentError) if it is not in the list. `protocol_whitelist` applies to everything that the demuxer opens
# itself. `enable_drefs` has libavformat's default. It is set here because MOV data references must stay closed.
OPEN_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": ALLOWED,
    "enable_drefs": "0",
}


INVALID_DATA = 0x41444E49  # AVERROR_INVALIDDATA (libavutil/error.h) without its sign: "INDA"


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise libav's ENOMEM as a plain MemoryError.

    PyAV's own MemoryError is also an FFmpegError, so it could be taken for damage.
    """
    try:
        yield
    except av.error.MemoryError as error:
        raise MemoryError(str(error)) from error


def open_container(source: str | RangedFile) -> InputContainer:
    """Open a media file, an object, or a part of one. Playlists and references inside the file are not followed.

    Raises:
        av.error.FFmpegError, OSError, ValueError: PyAV cannot open it.
        MemoryError: Memory runs out.
    """
    # The file: prefix keeps names with a colon from being read as a protocol.
    opened = f"file:{source}" if isinstance(source, str) else source
    with memory_errors():
        return cast(InputContainer, av.open(opened, mode="r", options=dict(OPEN_OPTIONS), **LENIENT_METADATA))


def demux_packets(container: InputContainer, stream_index: int) -> Iterator[av.Packet[Any]]:
    """Yield the packets of a stream in decode order, without empty ones.

    Raises:
        av.error.FFmpegError: Demuxing fails.
        MemoryError: Memory runs out.
    """
    with memory_errors():
        try:
            for packet in container.demux(container.streams[stream_index]):
                if packet.size:
                    yield packet
        except IndexError:
            # After the last packet of a file in which a stream appeared late, PyAV 18 reads memory behind its list of
            # streams, and may raise this error when it flushes the streams that it finds there.
            return


@overload
def decode_packet(context: VideoCodecContext, packet: av.Packet[Any] | None) -> list[av.VideoFrame]: ...
@overload
def decode_packet(context: AudioCodecContext, packet: av.Packet[Any] | None) -> list[av.AudioFrame]: ...
def decode_packet(
    context: VideoCodecContext | AudioCodecContext, packet: av.Packet[Any] | None
) -> Sequence[av.VideoFrame | av.AudioFrame]:
    """Return the frames that a decoder outputs for a packet, or for None at the end of the stream.

    Raises:
        av.error.FFmpegError: Decoding fails.
        MemoryError: Memory runs out.
    """
    try:
        with memory_errors():
            return context.decode(packet)
    except av.error.FFmpegError:  # some of its subclasses are ValueErrors, too
        raise
    except ValueError as error:  # PyAV 19 raises it after a packet with which the decoder could not be opened
        raise av.error.InvalidDataError(INVALID_DATA, str(error)) from error


def packet_with(data: bytes | memoryview) -> av.Packet[Any]:
    """Return a packet of these bytes for a decoder.

    The packet is allocated and then filled. A packet around existing bytes lacks padding, and decoders read past its
    end.
    """
    packet: av.Packet[Any] = av.Packet(len(data))
    packet.update(data)  # type: ignore[arg-type]
    return packet


MAX_REQUESTS = 8  # enough for sample tables, unless fragments lie far apart


class NeedsWholeError(Exception):
    """An object has to be copied to this machine, because probing it reads all of its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedFile:
    """A file on this machine, opened for probing, or a part of one. Offsets count from the beginning of the part.

    Attributes:
        path: The path of the file.
        descriptor: The open file.
        identity: The identity of the file.
        member: The part of the file that the medium is. If None, the medium is the whole file.
        sparing: Whether each read costs a request, as in object storage.
    """

    sparing: ClassVar[bool] = False
    path: str
    descriptor: int
    identity: Identity
    member: FileMember | None = None

    @property
    def name(self) -> str:
        """The file's path, for messages."""
        return self.path if self.member is None else f"{self.path}, {self.member.name}"

    @property
    def begin(self) -> int:
        """Where the medium begins in the file."""
        return 0 if self.member is None or self.member.part is None else self.member.part.offset

    @property
    def size_bytes(self) -> int:
        """Size of the medium when the file was opened."""
        if self.member is None or self.member.part is None:
            return self.identity.size_bytes
        return self.member.part.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the medium, fewer at its end."""
        return os.pread(self.descriptor, max(0, min(length, self.size_bytes - offset)), self.begin + offset)

    def read_into(self, target: NDArray[np.uint8], offset: int) -> int:
        """Fill `target`, uint8 [bytes], from `offset` on. Return how many bytes were read, fewer at the end."""
        target, done = target[: max(0, self.size_bytes - offset)], 0
        while done < len(target):
            count = os.preadv(self.descriptor, [target[done:].data], self.begin + offset + done)
            if not count:
                break
            done += count
        return done

    def open(self) -> InputContainer:
        """Open the medium with libavformat; each call opens it again. Raises as `open_container`."""
        if self.member is None:
            return open_container(self.path)
        return open_container(RangedFile(self.read, self.size_bytes, self.member.name))

    def whole(self) -> ProbedFile:
        """Return the file itself, for callers that read all of it."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedObject:
    """An object, or a part of one, read in ranges.

    Attributes:
        read: Reads ranges of the medium.
        identity: The identity of the object.
        member: The part of the object that the medium is. If None, the medium is the whole object.
    """

    sparing: ClassVar[bool] = True
    read: ObjectReader
    identity: Identity
    member: FileMember | None = None

    @property
    def name(self) -> str:
        """The object's uri, for messages."""
        return self.read.uri if self.member is None else f"{self.read.uri}, {self.member.name}"

    @property
    def size_bytes(self) -> int:
        """Size of the medium when the object was first read."""
        return self.read.size_bytes

    def open(self) -> InputContainer:
        if self.read.requests > MAX_REQUESTS:  # fragments lie far apart, so further reading would cost more than a copy
            raise NeedsWholeError
        if self.member is None:
            return open_container(ObjectFile(self.read))
        return open_container(RangedFile(self.read, self.size_bytes, self.member.name))

    def whole(self) -> ProbedFile:
        raise NeedsWholeError


Probed = ProbedFile | ProbedObject


def open_medium(file: Probed) -> InputContainer:
    """Open a file or an object with libavformat.

    Raises:
        MediaError: It cannot be opened, or must not be opened.
        NeedsWholeError: An object must be copied to this machine first.
    """
    try:
        return file.open()
    except av.error.ArgumentError as error:
        head = file.read(0, HEAD_BYTES)
        is_playlist = any(mark in head for mark in REFERRING)
        message = "it refers to other files, as playlists do" if is_playlist else "its format is not supported"
        raise MediaError("container", message, refused=True) from error
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise MediaError("not_media", f"not a video, or damaged at its start: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """Return the message of an error of libav or the system."""
    return str(getattr(error, "strerror", None) or error)


@contextmanager
def opened_file(path: str, member: FileMember | None = None) -> Iterator[ProbedFile]:
    """Open a file for probing. Raises MediaError if it is missing, unreadable or empty.

    Args:
        path: The path of the file.
        member: The part of the file to open. If None, the whole file.
    """
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        kind = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
        raise MediaError(kind, f"cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MediaError("unreadable", "is not a regular file")
        if status.st_size == 0:
            raise MediaError("empty", "the file is empty")
        mark = fingerprint(descriptor, status.st_size)
        identity = Identity(size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, fingerprint=mark)
        yield ProbedFile(path=path, descriptor=descriptor, identity=identity, member=member)
    finally:
        os.close(descriptor)


def check_unchanged(file: ProbedFile) -> None:
    """Raise MediaError if the file has changed since it was opened."""
    try:
        after = os.stat(file.path)
        is_same = (after.st_size, after.st_mtime_ns) == (file.identity.size_bytes, file.identity.mtime_ns)
    except OSError:
        is_same = False
    if not is_same:
        raise MediaError("changing", "the file changed while it was probed")


DECODERS = {"av1": "libdav1d"}  # the canonical name would open a decoder that needs hardware
INTRA_BY_FLAG = frozenset({"png"})  # FFmpeg draws a PNG that is not marked as a key frame over the previous picture
NEED_PIXEL_FORMAT = frozenset({"rawvideo"})
# With slice threads, FFmpeg's decoder of Dirac and VC-2 outputs different pictures each time (Haar wavelets). Its
# decoder of MPEG-1 and MPEG-2 then decodes slices with quantiser matrices that come after them in the packet.
ONE_THREAD = frozenset({"dirac", "mpeg1video", "mpeg2video"})
# FFmpeg's decoders of these codecs fill the damaged part of a slice from other pictures, which depend on where decoding
# began, and do not mark the picture. With the option "explode", they report an error instead.
SILENT = frozenset({"mpeg1video", "mpeg2video"})
RANGE_NUMBERS: dict[str | None, int] = {name: number for number, name in COLOR_RANGES.items()}
FIELD_ORDER_NUMBERS = {name: number for number, name in FIELD_ORDERS.items()}


Coded = StreamFacts | MediumRecord  # the columns of `videos` that a decoder of a video stream needs


class RunDecoder:
    """A decoder of one run. The pts of a picture is the number of the packet that it was decoded from.

    Each run gets a decoder of its own, because some state survives a flush, for instance the colour range.

    Args:
        coded: The stream.
        where: Its file, for messages.
        threads: The number of threads that the decoder may use.
        keep_damaged: Whether to keep pictures whose damaged slices the decoder has filled.

    Raises:
        DecodeError: FFmpeg lacks the decoder, or it rejects the recorded facts.
    """

    def __init__(self, coded: Coded, *, where: str, threads: int = 1, keep_damaged: bool = False) -> None:
        av.logging.set_level(None)
        try:
            context = CodecContext.create(DECODERS.get(coded.codec, coded.codec), "r")
        except UnknownCodecError as error:
            raise DecodeError(f"this version of FFmpeg has no decoder of {coded.codec}", where=where) from error
        if not isinstance(context, VideoCodecContext):
            raise DecodeError(f"{coded.codec} is not a video codec", where=where)
        try:
            _set_parameters(context, coded)
        except (ValueError, TypeError, OverflowError) as error:  # FFmpeg does not know the pixel format or the tag
            raise DecodeError("the decoder rejects the recorded facts", where=where, found=error) from error
        context.thread_count = 1 if coded.codec in ONE_THREAD else threads
        if coded.codec in SILENT and not keep_damaged:
            context.options = {"err_detect": "explode"}
        self._context, self._by_flag = context, coded.codec in INTRA_BY_FLAG

    def decode(self, data: bytes | memoryview, number: int) -> list[av.VideoFrame]:
        """Return the pictures that the decoder outputs after a packet. Raises av.error.FFmpegError."""
        packet = packet_with(data)
        # Packets of a run have different numbers, and each picture keeps the number of its packet. (PyAV's copy_opaque
        # does the same, but loses objects when several threads decode.)
        packet.pts = number
        packet.is_keyframe = self._by_flag
        return decode_packet(self._context, packet)

    def flush(self) -> list[av.VideoFrame]:
        """Return the remaining pictures at the end of the run. Raises av.error.FFmpegError."""
        return decode_packet(self._context, None)


def _set_parameters(context: VideoCodecContext, coded: Coded) -> None:
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
    # Without the depth, pictures vanish if the stream does not state its reordering.
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
        pixel_format: FFmpeg's name of the format.
        width: The width of the plane, in pixels.
        plane: The number of the plane.
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
