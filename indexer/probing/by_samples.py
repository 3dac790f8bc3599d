"""Depth `packets` of MP4, MOV and 3GP: sample tables say where packets lie, and the file is read in large pieces."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.h26x.scanner import NalScanner
from framedex.indexer.mp4.boxes import TruncatedError, UntrustedTables
from framedex.indexer.mp4.sample_tables import SampleTable, read_layout, read_sample_table
from framedex.indexer.probing.by_packets import Demuxed

PIECE_BYTES = 16 << 20  # read at once; a packet that is larger is a piece of its own


def scan_samples(descriptor: int, size_bytes: int, track_id: int, scanner: NalScanner, configuration: bytes) -> Demuxed:
    """Feed every packet of a track to the scanner, and return what the tables say of them.

    descriptor: the open file, of `size_bytes`. configuration: the extradata that the demuxer says. Raises UntrustedTables
    where the tables may not say what a demuxer says, and BitstreamError.
    """
    try:
        layout = read_layout(lambda offset, length: os.pread(descriptor, length, offset), size_bytes)
        table = read_sample_table(layout, track_id)
        demuxed = demuxed_of(table)
        if table.configurations[int(table.sample_entry[0])] != configuration:
            raise UntrustedTables("the sample entry has another configuration than the demuxer says")
        assert demuxed.offset is not None  # tables always say where samples lie
        buffer = np.zeros(PIECE_BYTES, np.uint8)
        for first, last in pieces(demuxed.offset, demuxed.size):
            offset, size = demuxed.offset[first:last], demuxed.size[first:last]
            begin, length = int(offset[0]), int(offset[-1] + size[-1] - offset[0])
            target = buffer[:length] if length <= len(buffer) else np.zeros(length, np.uint8)
            _read_into(descriptor, begin, target)
            scanner.feed_many(target, offset - begin, size)
    except TruncatedError as error:
        raise UntrustedTables(str(error)) from error
    return demuxed


def demuxed_of(table: SampleTable) -> Demuxed:
    """Return the packets that a demuxer gives of a track's samples. Raises UntrustedTables where that is not certain."""
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
    """Yield (first, behind the last) of consecutive packets to read at once: apart, ascending, within `PIECE_BYTES`.

    offset, size: int64 [packets].
    """
    end = offset + size
    edges = [0, *(np.flatnonzero(offset[1:] < end[:-1]) + 1).tolist(), len(offset)]
    for first, last in itertools.pairwise(edges):
        while first < last:
            stop = first + int(np.searchsorted(end[first:last], offset[first] + PIECE_BYTES, side="right"))
            stop = max(stop, first + 1)
            yield first, stop
            first = stop


def _read_into(descriptor: int, offset: int, target: NDArray[np.uint8]) -> None:
    """Fill uint8 [bytes] from the file. Raises TruncatedError."""
    done = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done:].data], offset + done)
        if not count:
            raise TruncatedError(f"the file ends at byte {offset + done}")
        done += count
