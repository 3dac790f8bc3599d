"""Depth `packets` for MP4, MOV and 3GP: sample tables locate the packets, and the file is read in large pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.h26x.scanner import NalScanner
from framedex.indexer.containers.medium_file import ProbedFile
from framedex.indexer.mp4.boxes import TruncatedError, UntrustedTables
from framedex.indexer.mp4.sample_tables import SampleTable, read_layout, read_sample_table
from framedex.indexer.probing.by_packets import Demuxed

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
