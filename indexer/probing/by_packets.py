"""Depth `packets`: demux every packet with PyAV and scan its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import av
import av.container
import av.error
import av.video.stream
import numpy as np
from numpy.typing import NDArray

from framedex.errors import MediaError
from framedex.indexer.bitstream.base.pictures import BitstreamError
from framedex.indexer.containers.opening import demux_packets
from framedex.indexer.containers.payloads import PayloadFinder
from framedex.records.clip import NO_PTS
from framedex.storage.reader import Read


@dataclass(frozen=True, slots=True, kw_only=True)
class Demuxed:
    """The packets of one stream as the container gives them, in columns of n, in decode order.

    Attributes:
        pts: int64 [n], `NO_PTS` where missing.
        dts: int64 [n], `NO_PTS` where missing.
        duration: int64 [n], 0 where missing.
        offset: int64 [n]. None: packets are not one byte range of the file each.
        size: int64 [n].
        hidden: bool [n], cut away by an edit list.
        resets: bool [n], the decoder configuration changes here, out of band.
        broken: bool [n], the demuxer reports damage.
    """

    pts: NDArray[np.int64]
    dts: NDArray[np.int64]
    duration: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]
    hidden: NDArray[np.bool_]
    resets: NDArray[np.bool_]
    broken: NDArray[np.bool_]


@dataclass(slots=True)
class _Columns:
    times: list[tuple[int | None, int | None, int]] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)
    resets: list[int] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)


def demux(
    container: av.container.InputContainer,
    stream: av.video.stream.VideoStream,
    read: Read,
    feed: Callable[[av.Packet[Any], bytes], None],
    reconfigure: Callable[[bytes], None] | None = None,
) -> Demuxed:
    """Pass on every packet of a stream, and return the container's facts about the packets.

    Args:
        container: an open container.
        stream: one of its streams.
        read: reads ranges of the file. The bytes of every packet are searched for in it.
        feed: takes every packet and its bytes; it may change the packet.
        reconfigure: takes the decoder's configuration where it changes. None: such a stream is refused.

    Raises:
        BitstreamError: the bitstream is damaged, or it or the container does something that framedex does not
            reproduce.
        MediaError: the video is encrypted, has no packets, or is damaged at its first packet.
    """
    columns = _Columns()
    finder = PayloadFinder(read)
    configuration = stream.codec_context.extradata
    for number, packet in enumerate(_packets(container, stream.index, columns)):
        data = bytes(packet)
        if packet.has_sidedata("new_extradata"):
            changed = bytes(packet.get_sidedata("new_extradata"))
            if changed != configuration:
                if reconfigure is None:
                    raise BitstreamError("parameter_sets", f"the decoder's configuration changes at packet {number}")
                reconfigure(changed)
                columns.resets.append(number)
                configuration = changed
        if packet.has_sidedata("encryption_info"):
            raise MediaError("encrypted", "the video is encrypted (Common Encryption, ISO/IEC 23001-7)")
        if packet.has_sidedata("palette"):
            raise BitstreamError("palette", f"packet {number} brings its palette from outside of the bitstream")
        columns.offset.append(finder.find(packet.pos, data))
        columns.size.append(len(data))
        columns.times.append((packet.pts, packet.dts, packet.duration or 0))
        if packet.is_discard:
            columns.hidden.append(number)
        if packet.is_corrupt:
            columns.broken.append(number)
        feed(packet, data)
    if not columns.size:
        raise MediaError("empty", "the video stream has no packets")
    return _demuxed(columns, finder.found_all)


def _demuxed(columns: _Columns, addressable: bool) -> Demuxed:
    n = len(columns.size)
    numbers = np.arange(n)
    times = np.array([[NO_PTS if time is None else time for time in row] for row in columns.times], np.int64)
    return Demuxed(
        pts=times[:, 0],
        dts=times[:, 1],
        duration=times[:, 2],
        offset=np.array(columns.offset, np.int64) if addressable else None,
        size=np.array(columns.size, np.int64),
        hidden=np.isin(numbers, columns.hidden),
        resets=np.isin(numbers, columns.resets),
        broken=np.isin(numbers, columns.broken),
    )


def _packets(container: av.container.InputContainer, stream_index: int, columns: _Columns) -> Iterator[av.Packet[Any]]:
    """Yield packets that hold data. If demuxing fails, note it at the packet before, and end."""
    try:
        yield from demux_packets(container, stream_index)
    except av.error.FFmpegError as error:
        if not columns.size:
            raise MediaError("damaged", f"demuxing stops at the first packet: {error.strerror}") from error
        columns.broken.append(len(columns.size) - 1)
