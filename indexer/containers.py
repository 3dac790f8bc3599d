"""Open, demux and decode media files with libav on the CPU.

Files and objects are opened in a way that prevents libavformat from opening other files or network connections.
Decoders are configured with codec parameters from an index, both to decode clips and to prove that an index is exact.
`picture_print` and `picture_md5` compute hashes of pictures.
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

# libavformat's names of the formats whose files contain the video itself. The list omits formats that refer to other
# files or devices: playlists (hls, dash, concat, concatf, imf, rtsp, sdp, sap, ffmetadata), patterns of file names
# (image2), files with a companion file (vobsub) and devices (lavfi, x11grab, v4l2 …). The list also omits formats that
# libavformat detects in arbitrary text or bytes.
ALLOWED = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,apng,asf,avi,dv,flv,gif,h263,h264,hevc,ivf,m4v,mjpeg,mpeg,mpegts,mpegvideo,"
    "mxf,nut,obu,ogg,rm,vvc,webp_pipe,wtv,yuv4mpegpipe"
)

# Texts that occur at the beginning of files that refer to other files: HLS, DASH, IMF (two texts), Smooth Streaming,
# concat and SDP.
REFERRING = (b"#EXTM3U", b"<MPD", b"<AssetMap", b"<CompositionPlaylist", b"<SmoothStreamingMedia", b"ffconcat", b"v=0")
HEAD_BYTES = 1024

# If the detected demuxer is not in `format_whitelist`, libavformat returns EINVAL (av.error.ArgumentError) before the
# demuxer reads a byte. `protocol_whitelist` applies to all files and connections that the demuxer opens. `enable_drefs`
# has libavformat's default value. It is set explicitly, so that MOV data references are never followed.
OPEN_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": ALLOWED,
    "enable_drefs": "0",
}


INVALID_DATA = 0x41444E49  # the absolute value of AVERROR_INVALIDDATA (libavutil/error.h), the bytes "INDA"


@contextmanager
def memory_errors() -> Iterator[None]:
    """Convert av.error.MemoryError (libav's ENOMEM) into Python's MemoryError.

    PyAV's class is a subclass of FFmpegError, so callers would mistake the error for damage of the file.
    """
    try:
        yield
    except av.error.MemoryError as error:
        raise MemoryError(str(error)) from error


def open_container(source: str | RangedFile) -> InputContainer:
    """Open a file, an object, or a part of either. Playlists and references inside the file are not followed.

    Raises:
        av.error.FFmpegError, OSError, ValueError: PyAV cannot open the source.
        MemoryError: Memory runs out.
    """
    # Without the prefix `file:`, libavformat would interpret the part of a name before a colon as a protocol.
    opened = f"file:{source}" if isinstance(source, str) else source
    with memory_errors():
        return cast(InputContainer, av.open(opened, mode="r", options=dict(OPEN_OPTIONS), **LENIENT_METADATA))


def demux_packets(container: InputContainer, stream_index: int) -> Iterator[av.Packet[Any]]:
    """Yield the packets of a stream in decode order, except empty packets.

    Raises:
        av.error.FFmpegError: Demuxing fails.
        MemoryError: Memory runs out.
    """
    with memory_errors():
        try:
            yield from (packet for packet in container.demux(container.streams[stream_index]) if packet.size)
        except IndexError:
            # If a stream first appears in the middle of the file, PyAV 18 reads memory beyond the end of its list of
            # streams after the last packet. It may then raise this error.
            return


@overload
def decode_packet(context: VideoCodecContext, packet: av.Packet[Any] | None) -> list[av.VideoFrame]: ...
@overload
def decode_packet(context: AudioCodecContext, packet: av.Packet[Any] | None) -> list[av.AudioFrame]: ...
def decode_packet(
    context: VideoCodecContext | AudioCodecContext, packet: av.Packet[Any] | None
) -> Sequence[av.VideoFrame | av.AudioFrame]:
    """Return the frames that a decoder outputs after a packet.

    If the packet is None, the stream has ended, and the decoder outputs its remaining frames.

    Raises:
        av.error.FFmpegError: Decoding fails.
        MemoryError: Memory runs out.
    """
    try:
        with memory_errors():
            return context.decode(packet)
    except av.error.FFmpegError:  # some subclasses of FFmpegError are also subclasses of ValueError
        raise
    except ValueError as error:  # PyAV 19 raises ValueError if opening the decoder failed at an earlier packet
        raise av.error.InvalidDataError(INVALID_DATA, str(error)) from error


def packet_with(data: bytes | memoryview) -> av.Packet[Any]:
    """Copy some bytes into a new packet, and return the packet for use with a decoder.

    Decoders read beyond the end of a packet, so a packet needs padding. PyAV adds the padding only if it allocates the
    memory of the packet, and not if it makes a packet around existing bytes.
    """
    packet: av.Packet[Any] = av.Packet(len(data))
    packet.update(data)  # type: ignore[arg-type]
    return packet


MAX_REQUESTS = 8  # sufficient to read the sample tables, unless a file has fragments that are far apart


class NeedsWholeError(Exception):
    """The object has to be copied to this machine, because probing reads all bytes of the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedFile:
    """A medium on this machine, opened for probing: a file, or a part of a file.

    Offsets count from the beginning of the medium.

    Attributes:
        path: The path of the file.
        descriptor: The file descriptor of the open file.
        identity: The size, time and fingerprint of the file.
        member: The member of the file that is probed. If None, the medium is the whole file.
        sparing: Whether each read is a request to object storage. If True, callers should read only what they need.
    """

    sparing: ClassVar[bool] = False
    path: str
    descriptor: int
    identity: Identity
    member: FileMember | None = None

    @property
    def name(self) -> str:
        """The path of the file, and the name of the member if there is one, for messages."""
        return self.path if self.member is None else f"{self.path}, {self.member.name}"

    @property
    def begin(self) -> int:
        """The offset of the medium in the file, in bytes."""
        return 0 if self.member is None or self.member.part is None else self.member.part.offset

    @property
    def size_bytes(self) -> int:
        """The size of the medium when the file was opened, in bytes."""
        part = None if self.member is None else self.member.part
        return self.identity.size_bytes if part is None else part.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes of the medium from `offset` on, or fewer if the medium ends before."""
        return os.pread(self.descriptor, max(0, min(length, self.size_bytes - offset)), self.begin + offset)

    def read_into(self, target: NDArray[np.uint8], offset: int) -> int:
        """Read bytes of the medium from `offset` on into `target`, uint8 [bytes]. Return the number of bytes read.

        The number is smaller than the size of `target` if the medium ends before.
        """
        target, done = target[: max(0, self.size_bytes - offset)], 0
        while done < len(target):
            count = os.preadv(self.descriptor, [target[done:].data], self.begin + offset + done)
            if not count:
                break
            done += count
        return done

    def open(self) -> InputContainer:
        """Return a new libavformat container of the medium. Raises the same errors as `open_container`."""
        if self.member is None:
            return open_container(self.path)
        return open_container(RangedFile(self.read, self.size_bytes, self.member.name))

    def whole(self) -> ProbedFile:
        """Return this medium itself, because all of its bytes can be read without a copy."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedObject:
    """A medium in object storage, probed by reading byte ranges: an object, or a part of an object.

    Attributes:
        read: The reader of byte ranges of the medium.
        identity: The size, time and fingerprint of the object.
        member: The member of the object that is probed. If None, the medium is the whole object.
        sparing: Whether each read is a request to object storage. If True, callers should read only what they need.
    """

    sparing: ClassVar[bool] = True
    read: ObjectReader
    identity: Identity
    member: FileMember | None = None

    @property
    def name(self) -> str:
        """The uri of the object, and the name of the member if there is one, for messages."""
        return self.read.uri if self.member is None else f"{self.read.uri}, {self.member.name}"

    @property
    def size_bytes(self) -> int:
        """The size of the medium when the object was first read, in bytes."""
        return self.read.size_bytes

    def open(self) -> InputContainer:
        if self.read.requests > MAX_REQUESTS:  # fragments are far apart, so more reads would cost more than a copy
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
        MediaError: The medium cannot be opened, or its format is not allowed.
        NeedsWholeError: The object must be copied to this machine first.
    """
    try:
        return file.open()
    except av.error.ArgumentError as error:
        head = file.read(0, HEAD_BYTES)
        is_playlist = any(mark in head for mark in REFERRING)
        message = "the file refers to other files, as playlists do" if is_playlist else "its format is not supported"
        raise MediaError("container", message, refused=True) from error
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise MediaError("not_media", f"not a video, or damaged at its start: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """Return the message of an error of libav or the operating system."""
    return str(getattr(error, "strerror", None) or error)


@contextmanager
def opened_file(path: str, member: FileMember | None = None) -> Iterator[ProbedFile]:
    """Open a file for probing. Raises MediaError if the file is missing, unreadable or empty.

    Args:
        path: The path of the file.
        member: The member of the file to probe. If None, the whole file is probed.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO would wait until another process writes to it.
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


DECODERS = {"av1": "libdav1d"}  # FFmpeg's decoder with the name av1 needs hardware
# Codecs whose packets must be marked as key frames. Otherwise, FFmpeg draws a PNG on top of the previous picture.
INTRA_BY_FLAG = frozenset({"png"})
NEED_PIXEL_FORMAT = frozenset({"rawvideo"})
# Codecs that must be decoded by a single thread. With slice threads, FFmpeg's decoder of Dirac and VC-2 outputs
# different pictures in each run (Haar wavelets). FFmpeg's decoder of MPEG-1 and MPEG-2 would apply quantiser matrices
# to slices that precede the matrices in the packet.
ONE_THREAD = frozenset({"dirac", "mpeg1video", "mpeg2video"})
# FFmpeg's decoders of these codecs replace the damaged part of a slice by pixels of other pictures, without marking the
# picture as damaged. These pixels depend on the packet at which decoding began. With the option "explode", the decoders
# report an error instead.
SILENT = frozenset({"mpeg1video", "mpeg2video"})
RANGE_NUMBERS: dict[str | None, int] = {name: number for number, name in COLOR_RANGES.items()}
FIELD_ORDER_NUMBERS = {name: number for number, name in FIELD_ORDERS.items()}


Coded = StreamFacts | MediumRecord  # records with the columns of `videos` that configure a decoder


class RunDecoder:
    """A decoder of one run (a random access point and packets after it).

    The pts of each decoded picture is the number that the caller gave to the packet of the picture.

    Each run needs a new decoder, because flushing does not reset all state of a decoder, for instance the colour range.

    Args:
        coded: The codec parameters of the stream.
        where: The name of the file, for messages.
        threads: The number of threads that the decoder may use.
        keep_damaged: Whether to keep pictures in which the decoder has concealed damaged slices.

    Raises:
        DecodeError: FFmpeg lacks the decoder, or the decoder rejects the recorded codec parameters.
    """

    def __init__(self, coded: Coded, *, where: str, threads: int = 1, keep_damaged: bool = False) -> None:
        av.logging.set_level(None)
        try:
            context = CodecContext.create(DECODERS.get(coded.codec, coded.codec), "r")
        except UnknownCodecError as error:
            raise DecodeError(
                f"this version of FFmpeg does not have a decoder for {coded.codec}", where=where
            ) from error
        if not isinstance(context, VideoCodecContext):
            raise DecodeError(f"{coded.codec} is not a video codec", where=where)
        try:
            _set_parameters(context, coded)
        except (ValueError, TypeError, OverflowError) as error:  # for instance because of an unknown pixel format
            raise DecodeError("the decoder rejects the recorded codec parameters", where=where, found=error) from error
        context.thread_count = 1 if coded.codec in ONE_THREAD else threads
        if coded.codec in SILENT and not keep_damaged:
            context.options = {"err_detect": "explode"}
        self._context, self._by_flag = context, coded.codec in INTRA_BY_FLAG

    def decode(self, data: bytes | memoryview, number: int) -> list[av.VideoFrame]:
        """Return the pictures that the decoder outputs after a packet. Raises av.error.FFmpegError.

        Args:
            data: The bytes of the packet.
            number: The number of the packet. All packets of a run must have different numbers.
        """
        packet = packet_with(data)
        # The decoder copies the pts of a packet to its picture. (PyAV's copy_opaque would serve the same purpose, but
        # loses objects when several threads decode.)
        packet.pts = number
        packet.is_keyframe = self._by_flag
        return decode_packet(self._context, packet)

    def flush(self) -> list[av.VideoFrame]:
        """Return the remaining pictures at the end of the run. Raises av.error.FFmpegError."""
        return decode_packet(self._context, None)


def _set_parameters(context: VideoCodecContext, coded: Coded) -> None:
    """Set the codec parameters that a demuxer would set, because some decoders depend on them."""
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
    # If the stream does not state its reorder depth, a decoder without this value drops pictures.
    context.reorder_depth = coded.reorder_depth


def display_of(picture: av.VideoFrame) -> tuple[int, bool]:
    """Return the counterclockwise rotation in degrees of a picture's display matrix, and whether it also mirrors."""
    if not picture.rotation:  # such pictures stay as they are stored, whether their matrix mirrors or not
        return 0, False
    try:
        matrix: Any = picture.side_data.get("DISPLAYMATRIX")
    except ValueError:  # PyAV raises it if a picture has side data of a type that PyAV does not know, such as EXIF
        matrix = None
    if matrix is None:
        return picture.rotation, False
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32, 5).astype(float).tolist()
    return picture.rotation, a * d - b * c < 0


def native_planes(picture: av.VideoFrame) -> Iterator[NDArray[np.uint8]]:
    """Yield the visible part of each plane of a picture, uint8 [rows, bytes]. A palette is one row of 1024 bytes."""
    for number, plane in enumerate(picture.planes):
        if picture.format.name == "pal8" and number == 1:
            yield plane_rows(plane, 1)[:, :1024]
        else:
            yield plane_rows(plane, plane.height)[:, : _row_bytes(picture.format.name, plane.width, number)]


def plane_rows(plane: VideoPlane, height: int) -> NDArray[np.uint8]:
    """Return a view of a plane's memory, uint8 [height, line size], including the padding at the end of each row."""
    # The "type: ignore" is necessary only with some versions of numpy.
    pixels: NDArray[np.uint8] = np.frombuffer(plane, np.uint8)  # type: ignore[call-overload, unused-ignore]
    row = plane.line_size if height > 1 else len(pixels)
    return pixels[: row * height].reshape(height, row)


@functools.lru_cache(1024)
def _row_bytes(pixel_format: str, width: int, plane: int) -> int:
    """Return the number of bytes of the visible pixels in a row of a plane, with all components that the plane stores.

    Args:
        pixel_format: FFmpeg's name of the pixel format.
        width: The width of the plane, in pixels.
        plane: The index of the plane among the planes of the pixel format.
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
    """Return a 64-bit hash of a picture's pixel format, size, colour range, colour matrix and visible pixels.

    Equal pictures have equal hashes only within one process, because Python salts its hash of bytes. (Python's hash of
    bytes is six times as fast as md5.)
    """
    planes = tuple(hash(plane.tobytes()) for plane in native_planes(picture))
    colours = int(picture.color_range), int(picture.colorspace)
    return hash((planes, picture.format.name, picture.width, picture.height, colours))


def picture_md5(picture: av.VideoFrame) -> str:
    """Return the hexadecimal md5 of a picture's native planes followed by '{pixel format}{width}x{height}'."""
    digest = hashlib.md5(usedforsecurity=False)
    for plane in native_planes(picture):
        digest.update(plane.tobytes())
    digest.update(f"{picture.format.name}{picture.width}x{picture.height}".encode())
    return digest.hexdigest()
