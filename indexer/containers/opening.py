"""Opens and demuxes a media file with libavformat so that it reaches neither the network nor other files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

import av
import av.container
import av.error
from av.audio.codeccontext import AudioCodecContext
from av.video.codeccontext import VideoCodecContext

from framedex.core.pyav import LENIENT_METADATA
from framedex.indexer.containers.demuxers import OPEN_OPTIONS
from framedex.storage.reader import RangedFile

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


def open_container(source: str | RangedFile) -> av.container.InputContainer:
    """Open a media file, an object, or a part of one. A playlist, or a reference inside the file, is not followed.

    Raises:
        av.error.FFmpegError, OSError, ValueError: as PyAV raises them.
        MemoryError: if memory runs out.
    """
    # The file: prefix keeps names with a colon from being read as a protocol.
    opened = f"file:{source}" if isinstance(source, str) else source
    with memory_errors():
        container: av.container.InputContainer = av.open(
            opened, mode="r", options=dict(OPEN_OPTIONS), **LENIENT_METADATA
        )
        return container


def demux_packets(container: av.container.InputContainer, stream_index: int) -> Iterator[av.Packet[Any]]:
    """Yield the packets of a stream that hold data, in decode order.

    Raises:
        av.error.FFmpegError: if demuxing fails.
        MemoryError: if memory runs out.
    """
    with memory_errors():
        try:
            for packet in container.demux(container.streams[stream_index]):
                if packet.size:
                    yield packet
        except IndexError:
            # PyAV 18, after the last packet of a file in which a stream appeared on the way: it flushes streams that it
            # does not know, depending on what memory behind its list of streams holds.
            return


@overload
def decode_packet(context: VideoCodecContext, packet: av.Packet[Any] | None) -> list[av.VideoFrame]: ...
@overload
def decode_packet(context: AudioCodecContext, packet: av.Packet[Any] | None) -> list[av.AudioFrame]: ...
def decode_packet(
    context: VideoCodecContext | AudioCodecContext, packet: av.Packet[Any] | None
) -> Sequence[av.VideoFrame | av.AudioFrame]:
    """Return the frames that a decoder gives for a packet, or for None at the end of the stream.

    Raises:
        av.error.FFmpegError: if decoding fails.
        MemoryError: if memory runs out.
    """
    try:
        with memory_errors():
            return context.decode(packet)
    except av.error.FFmpegError:
        raise
    except ValueError as error:  # PyAV 19's, of a decoder that the packet before could not open
        raise av.error.InvalidDataError(INVALID_DATA, str(error)) from error


def packet_with(data: bytes | memoryview) -> av.Packet[Any]:
    """Return a packet of these bytes for a decoder.

    The packet is allocated, then filled: a packet made around bytes has no padding, and decoders read past the end.
    """
    packet: av.Packet[Any] = av.Packet(len(data))
    packet.update(data)  # type: ignore[arg-type]
    return packet
