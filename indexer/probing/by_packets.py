"""Read every packet of a stream, feed its bytes to a scanner, and find where the file has them.

In MP4, MOV and 3GP, sample tables locate the packets, and the file is read in large pieces. Packets of other containers
are demuxed with PyAV, and their bytes are searched for in the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
SEARCH_BYTES = 64  # other payloads begin at most so many bytes after packet.pos


class PayloadFinder:
    """Finds where a file holds exactly a packet's bytes, starting from the position that the demuxer states.

    It compares the bytes and does not rely on that position.

    Args:
        read: reads ranges of the file.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._delta = 0  # from packet.pos to the payload of the last packet; most packets have the same distance
        self._position, self._end = -1, 0
        self.found_all = True

    def find(self, position: int | None, data: bytes) -> int:
        """Return the offset of a packet's payload, or -1 if it, or a packet before, was not found."""
        if not self.found_all or position is None or position < 0:
            self.found_all = False
            return -1
        if position == self._position:  # laced: several frames share a block (RFC 9559 10.3)
            candidates: tuple[int, ...] = (self._end,)
        else:
            candidates = (position + self._delta, *(position + delta for delta in PAYLOAD_OFFSETS))
        found = next((offset for offset in candidates if self._read(offset, len(data)) == data), None)
        if found is None:
            at = self._read(position, len(data) + SEARCH_BYTES).find(data)
            if at < 0:
                self.found_all = False
                return -1
            found = position + at
        self._delta, self._position, self._end = found - position, position, found + len(data)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Demuxed:
    """The packets of one stream as the container gives them, in columns of n, in decode order.

    Attributes:
        pts: int64 [n], `NO_PTS` where missing.
        dts: int64 [n], `NO_PTS` where missing.
        duration: int64 [n], 0 where missing.
        offset: int64 [n], valid if `addressable`.
        size: int64 [n].
        hidden: bool [n], packets that an edit list cuts away.
        resets: bool [n], packets at which the container changes the decoder configuration.
        broken: bool [n], packets that the demuxer reports as damaged.
        addressable: whether each packet is one byte range of the file.
    """

    pts: NDArray[np.int64]
    dts: NDArray[np.int64]
    duration: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    hidden: NDArray[np.bool_]
    resets: NDArray[np.bool_]
    broken: NDArray[np.bool_]
    addressable: bool


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
        reconfigure: takes the decoder's configuration where it changes. If None, such a stream is refused.

    Raises:
        BitstreamError: the bitstream is damaged, or it or the container uses a feature that framedex does not
            reproduce.
        MediaError: the video is encrypted, has no packets, or is damaged at its first packet.
    """
    rows: list[tuple[int, ...]] = []  # pts, dts, duration, offset, size
    hidden, resets, broken = list[int](), list[int](), list[int]()
    finder = PayloadFinder(read)
    configuration = stream.codec_context.extradata
    packets = demux_packets(container, stream.index)
    while True:
        # Only errors of demuxing are caught here. The packets before the damage stay usable.
        try:
            packet = next(packets, None)
        except av.error.FFmpegError as error:
            if not rows:
                raise MediaError("damaged", f"demuxing stops at the first packet: {error.strerror}") from error
            broken.append(len(rows) - 1)
            break
        if packet is None:
            break
        number, data = len(rows), bytes(packet)
        if packet.has_sidedata("new_extradata"):
            changed = bytes(packet.get_sidedata("new_extradata"))
            if changed != configuration:
                if reconfigure is None:
                    raise BitstreamError("parameter_sets", f"the decoder's configuration changes at packet {number}")
                reconfigure(changed)
                resets.append(number)
                configuration = changed
        if packet.has_sidedata("encryption_info"):
            raise MediaError("encrypted", "the video is encrypted (Common Encryption, ISO/IEC 23001-7)")
        if packet.has_sidedata("palette"):
            raise BitstreamError("palette", f"the container, not the bitstream, has the palette of packet {number}")
        times = (NO_PTS if time is None else time for time in (packet.pts, packet.dts))
        rows.append((*times, packet.duration or 0, finder.find(packet.pos, data), len(data)))
        if packet.is_discard:
            hidden.append(number)
        if packet.is_corrupt:
            broken.append(number)
        feed(packet, data)
    if not rows:
        raise MediaError("empty", "the video stream has no packets")
    pts, dts, duration, offset, size = np.array(rows, np.int64).T.copy()
    flagged = [np.isin(np.arange(len(rows)), numbers) for numbers in (hidden, resets, broken)]
    return Demuxed(
        pts=pts,
        dts=dts,
        duration=duration,
        offset=offset,
        size=size,
        hidden=flagged[0],
        resets=flagged[1],
        broken=flagged[2],
        addressable=finder.found_all,
    )


PIECE_BYTES = 16 << 20  # bytes per read; a larger packet is a piece of its own


def scan_samples(file: ProbedFile, track_id: int, scanner: NalScanner, configuration: bytes) -> Demuxed:
    """Feed every packet of a track to the scanner, and return the packets as the sample tables describe them.

    Args:
        file: the open file.
        track_id: number of the track.
        scanner: takes the bytes of every packet.
        configuration: the extradata that the demuxer reports.

    Raises:
        UntrustedTables: a demuxer may give other packets.
        BitstreamError: the scanner rejects a packet.
    """
    try:
        table = read_sample_table(read_layout(file.read, file.size_bytes), track_id)
        demuxed = demuxed_of(table, configuration)
        buffer = np.zeros(PIECE_BYTES, np.uint8)
        for first, last in pieces(demuxed.offset, demuxed.size):
            offset, size = demuxed.offset[first:last], demuxed.size[first:last]
            begin, length = int(offset[0]), int(offset[-1] + size[-1] - offset[0])
            target = buffer[:length] if length <= len(buffer) else np.zeros(length, np.uint8)
            if (done := file.read_into(target, begin)) < length:
                raise TruncatedError(f"the file ends at byte {begin + done}")
            scanner.feed_many(target, offset - begin, size)
    except TruncatedError as error:
        raise UntrustedTables(str(error)) from error
    return demuxed


def demuxed_of(table: SampleTable, configuration: bytes | None) -> Demuxed:
    """Return the packets that a demuxer gives for a track's samples.

    Args:
        table: the samples.
        configuration: the extradata that the demuxer reports. If None, it does not matter.

    Raises:
        UntrustedTables: the demuxer may give other packets.
    """
    samples, configurations = table.samples, table.entries.configurations
    # Demuxers give no packet for an empty sample.
    data = slice(None) if samples.size.all() else np.flatnonzero(samples.size > 0)
    n = len(samples.size[data])
    if not n:
        raise UntrustedTables("the track has no samples")
    if (samples.entry[data] != samples.entry[data][0]).any():
        raise UntrustedTables("samples have several sample entries")
    if configuration is not None and configurations[int(samples.entry[0])] != configuration:
        raise UntrustedTables("the sample entry has another configuration than the demuxer reports")
    return Demuxed(
        pts=table.pts[data],
        dts=samples.time[data],
        duration=samples.duration[data],
        offset=samples.offset[data],
        size=samples.size[data],
        hidden=samples.hidden[data],
        resets=np.zeros(n, np.bool_),
        broken=np.zeros(n, np.bool_),
        addressable=True,
    )


def pieces(offset: NDArray[np.int64], size: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of runs of consecutive packets to read at once. `end` is exclusive.

    Packets of a run ascend in the file without overlap, and lie within `PIECE_BYTES`. A larger packet is its own run.

    Args:
        offset: int64 [packets].
        size: int64 [packets].
    """
    end = offset + size
    edges = [0, *(np.flatnonzero(offset[1:] < end[:-1]) + 1).tolist(), len(offset)]
    for first, last in itertools.pairwise(edges):
        while first < last:
            stop = first + int(np.searchsorted(end[first:last], offset[first] + PIECE_BYTES, side="right"))
            yield first, max(stop, first + 1)
            first = max(stop, first + 1)
