"""Depth `packets`: demux every packet with PyAV and scan its bytes.

Depth `packets` for MP4, MOV and 3GP: sample tables locate the packets, and the file is read in large pieces.

Finds where a file holds the bytes of a packet that libavformat returned.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from framedex.errors import MediaError
from framedex.indexer.bitstream.base import BitstreamError
from framedex.indexer.bitstream.scanner import NalScanner
from framedex.indexer.containers import ProbedFile, demux_packets
from framedex.indexer.mp4.boxes import TruncatedError, UntrustedTables
from framedex.indexer.mp4.sample_tables import SampleTable, read_layout, read_sample_table
from framedex.records.clip import NO_PTS
from framedex.storage.reader import Read

PAYLOAD_OFFSETS = (0, 4, 12, 16)  # from packet.pos to the payload: ISO BMFF and AVI, Matroska, IVF and FLV, long FLV
SEARCH_BYTES = 64  # how far after packet.pos a payload may begin otherwise


class PayloadFinder:
    """Finds where a file holds exactly a packet's bytes, starting from the position that the demuxer states.

    It compares the bytes and does not rely on that position.

    Args:
        read: reads ranges of the file.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._delta = 0  # where the last one was found
        self._position, self._end = -1, 0
        self.found_all = True

    def find(self, position: int | None, data: bytes) -> int:
        """Return the offset of a packet's payload, or -1 from the first packet on that was not found."""
        if not self.found_all or position is None or position < 0:
            self.found_all = False
            return -1
        if position == self._position:  # laced: several frames share a block (RFC 9559 10.3)
            candidates: tuple[int, ...] = (self._end,)
        else:
            candidates = (position + self._delta, *(position + delta for delta in PAYLOAD_OFFSETS))
        for offset in candidates:
            if self._read(offset, len(data)) == data:
                return self._note(position, offset, data)
        window = self._read(position, len(data) + SEARCH_BYTES)
        at = window.find(data)
        if at < 0:
            self.found_all = False
            return -1
        return self._note(position, position + at, data)

    def _note(self, position: int, offset: int, data: bytes) -> int:
        self._delta, self._position, self._end = offset - position, position, offset + len(data)
        return offset


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


PIECE_BYTES = 16 << 20  # bytes per read; a larger packet is a piece of its own


def scan_samples(file: ProbedFile, track_id: int, scanner: NalScanner, configuration: bytes) -> Demuxed:
    """Feed every packet of a track to the scanner, and return what the sample tables say about them.

    Args:
        file: the open file.
        track_id: of the track.
        scanner: takes the bytes of every packet.
        configuration: the extradata that the demuxer reports.

    Raises:
        UntrustedTables: the tables may differ from what a demuxer reports.
        BitstreamError: the scanner rejects a packet.
    """
    try:
        table = read_sample_table(read_layout(file.read, file.size_bytes), track_id)
        demuxed = demuxed_of(table)
        if table.configurations[int(table.sample_entry[0])] != configuration:
            raise UntrustedTables("the sample entry has another configuration than the demuxer says")
        assert demuxed.offset is not None  # tables always locate the samples
        buffer = np.zeros(PIECE_BYTES, np.uint8)
        for first, last in pieces(demuxed.offset, demuxed.size):
            offset, size = demuxed.offset[first:last], demuxed.size[first:last]
            begin, length = int(offset[0]), int(offset[-1] + size[-1] - offset[0])
            target = buffer[:length] if length <= len(buffer) else np.zeros(length, np.uint8)
            _fill(target, file, begin)
            scanner.feed_many(target, offset - begin, size)
    except TruncatedError as error:
        raise UntrustedTables(str(error)) from error
    return demuxed


def demuxed_of(table: SampleTable) -> Demuxed:
    """Return the packets that a demuxer gives for a track's samples. Raises UntrustedTables if that is uncertain."""
    data: NDArray[np.int64] | slice = slice(None)
    if not table.size.all():
        data = np.flatnonzero(table.size > 0)
    n = len(table.size[data])
    if not n:
        raise UntrustedTables("the track has no samples")
    if (table.sample_entry[data] != table.sample_entry[data][0]).any():
        raise UntrustedTables("samples have several sample entries")
    return Demuxed(
        pts=table.pts[data],
        dts=table.dts[data],
        duration=table.duration[data],
        offset=table.offset[data],
        size=table.size[data],
        hidden=table.hidden[data],
        resets=np.zeros(n, np.bool_),
        broken=np.zeros(n, np.bool_),
    )


def pieces(offset: NDArray[np.int64], size: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of runs of consecutive packets to read at once. `end` is exclusive.

    Packets of a run ascend in the file without overlap, and lie within `PIECE_BYTES`; a larger packet is a run of its
    own.

    Args:
        offset: int64 [packets].
        size: int64 [packets].
    """
    end = offset + size
    edges = [0, *(np.flatnonzero(offset[1:] < end[:-1]) + 1).tolist(), len(offset)]
    for first, last in itertools.pairwise(edges):
        while first < last:
            stop = first + int(np.searchsorted(end[first:last], offset[first] + PIECE_BYTES, side="right"))
            stop = max(stop, first + 1)
            yield first, stop
            first = stop


def _fill(target: NDArray[np.uint8], file: ProbedFile, offset: int) -> None:
    """Fill `target`, uint8 [bytes], from the file. Raises TruncatedError if the file ends before."""
    done = file.read_into(target, offset)
    if done < len(target):
        raise TruncatedError(f"the file ends at byte {offset + done}")
