"""Read every packet of a stream, pass its bytes to a scanner, and determine its byte range in the file.

For MP4, MOV and 3GP, the byte ranges are taken from the sample tables, and the file is read in large pieces. Packets of
other containers are demuxed with PyAV, and their bytes are searched for in the file.
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
from framedex.indexer.bitstream.scanner import NalScanner, marked
from framedex.indexer.containers import ProbedFile, demux_packets
from framedex.indexer.mp4.boxes import TruncatedError, UntrustedTables
from framedex.indexer.mp4.sample_tables import SampleTable, read_layout, read_sample_table
from framedex.records.clip import NO_PTS
from framedex.storage.reader import Read

# The usual distances in bytes from packet.pos to the payload: ISO BMFF and AVI, Matroska, IVF and FLV, long FLV.
PAYLOAD_OFFSETS = (0, 4, 12, 16)
SEARCH_BYTES = 64  # largest distance in bytes from packet.pos up to which a payload is searched


class PayloadFinder:
    """A search for the bytes of packets in a file, near the positions that the demuxer states.

    The bytes in the file are compared with the bytes of the packet, because the stated position may be the position of
    a header.

    Args:
        read: The function that reads byte ranges of the file.

    Attributes:
        found_all: Whether all packets so far were found.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._delta = 0  # distance from packet.pos to the last packet's payload, often the same for the next packet
        self._position, self._end = -1, 0  # stated position of the last packet, end of its payload
        self.found_all = True

    def find(self, position: int | None, data: bytes) -> int:
        """Return the offset of a packet's payload, or -1 if this or an earlier packet was not found.

        Args:
            position: The position that the demuxer states, or None.
            data: The bytes of the packet.
        """
        if not self.found_all or position is None or position < 0:
            self.found_all = False
            return -1
        if position == self._position:  # Matroska lacing: several frames share a block (RFC 9559 10.3)
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
    """The properties of the n packets of a stream, as the container states them, in decode order.

    Attributes:
        pts: int64 [n], presentation timestamps. `NO_PTS` where a timestamp is missing.
        dts: int64 [n], decoding timestamps. `NO_PTS` where a timestamp is missing.
        duration: int64 [n], 0 where a duration is missing.
        offset: int64 [n], the offsets in the file. Valid only if `addressable`.
        size: int64 [n], in bytes.
        hidden: bool [n], whether an edit list cuts the packet away.
        resets: bool [n], whether the container changes the decoder configuration at the packet.
        broken: bool [n], whether the demuxer reports the packet as damaged.
        addressable: Whether every packet is one byte range of the file.
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
    """Demux every packet of a stream, pass it to `feed`, and return the properties that the container states.

    Args:
        container: An open container.
        stream: A stream of the container.
        read: The function that reads byte ranges of the file. It is used to search the file for the bytes of every
            packet.
        feed: The function that is called with every packet and its bytes. The function may change the packet.
        reconfigure: The function that is called with the new decoder configuration when the configuration changes. If
            None, streams whose configuration changes are refused.

    Raises:
        BitstreamError: The bitstream is damaged, or the stream uses a feature that framedex does not reproduce.
        MediaError: The video is encrypted, has no packets, or is damaged at its first packet.
    """
    rows: list[tuple[int, ...]] = []  # pts, dts, duration, offset, size
    hidden, resets, broken = list[int](), list[int](), list[int]()
    finder = PayloadFinder(read)
    configuration = stream.codec_context.extradata
    packets = demux_packets(container, stream.index)
    while True:
        # Only the errors of demuxing are caught here. After such an error, the packets before the damage stay usable.
        try:
            packet = next(packets, None)
        except av.error.FFmpegError as error:
            if not rows:
                raise MediaError("damaged", f"the first packet cannot be demuxed: {error.strerror}") from error
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
            raise BitstreamError("palette", f"the palette of packet {number} is in the container, not in the bitstream")
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
    return Demuxed(
        pts=pts,
        dts=dts,
        duration=duration,
        offset=offset,
        size=size,
        hidden=marked(hidden, len(rows)),
        resets=marked(resets, len(rows)),
        broken=marked(broken, len(rows)),
        addressable=finder.found_all,
    )


PIECE_BYTES = 16 << 20  # largest number of bytes per read, except that a larger packet is read whole


def scan_samples(file: ProbedFile, track_id: int, scanner: NalScanner, configuration: bytes) -> Demuxed:
    """Pass every packet of a track to the scanner, and return the packets as the sample tables describe them.

    Args:
        file: The open file.
        track_id: The number of the track.
        scanner: The scanner that parses every packet.
        configuration: The extradata that the demuxer reports.

    Raises:
        UntrustedTables: The packets of a demuxer may differ from the tables.
        BitstreamError: The scanner rejects a packet.
    """
    try:
        demuxed = demuxed_of(read_sample_table(read_layout(file.read, file.size_bytes), track_id), configuration)
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
    """Return the packets that a demuxer would return for a track's samples.

    Args:
        table: The samples of the track.
        configuration: The extradata that the demuxer reports. If None, the configuration is not checked.

    Raises:
        UntrustedTables: The packets of a demuxer may differ from the tables.
    """
    samples, configurations = table.samples, table.entries.configurations
    # Demuxers do not return a packet for an empty sample.
    data = slice(None) if samples.size.all() else np.flatnonzero(samples.size > 0)
    n = len(samples.size[data])
    if not n:
        raise UntrustedTables("the track has no samples")
    if (samples.entry[data] != samples.entry[data][0]).any():
        raise UntrustedTables("the samples do not all have the same sample entry")
    if configuration is not None and configurations[int(samples.entry[0])] != configuration:
        raise UntrustedTables("the configuration in the sample entry differs from the demuxer's configuration")
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
    """Yield the pieces in which to read the packets, as packet numbers (first, end). `end` is exclusive.

    The packets of a piece are in ascending order in the file, do not overlap, and span at most `PIECE_BYTES`. A packet
    that is larger forms a piece by itself.

    Args:
        offset: int64 [packets], the offsets in the file.
        size: int64 [packets], in bytes.
    """
    end = offset + size
    edges = [0, *(np.flatnonzero(offset[1:] < end[:-1]) + 1).tolist(), len(offset)]
    for first, last in itertools.pairwise(edges):
        while first < last:
            stop = first + int(np.searchsorted(end[first:last], offset[first] + PIECE_BYTES, side="right"))
            yield first, max(stop, first + 1)
            first = max(stop, first + 1)
