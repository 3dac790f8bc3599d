"""Joins byte ranges of an object into requests: few requests, with few unwanted bytes. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GAP_BYTES = 256 << 10  # the largest gap that is read: reading it takes about as long as the latency of a request
WASTE = 0.5  # the maximum of unwanted bytes, as a share of the wanted ones
MOST_BYTES = 8 << 20  # of a request; larger ones are split into parallel requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """A range of a file or an object: `size_bytes` bytes from byte `offset` on."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRequests:
    """The requests that fetch some ranges.

    Attributes:
        begin, end: int64 [requests], half-open, ascending.
        request: int64 [ranges], the first request that contains bytes of each range.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    request: NDArray[np.int64]


def coalesce(
    offset: NDArray[np.int64],
    length: NDArray[np.int64],
    *,
    gap: int = GAP_BYTES,
    waste: float = WASTE,
    most: int = MOST_BYTES,
) -> RangeRequests:
    """Return the requests that fetch some ranges. The ranges may be in any order and may overlap.

    Args:
        offset, length: int64 [ranges], in bytes.
        gap: The largest gap in bytes over which two ranges are joined. The smallest gaps are joined first.
        waste: The maximum of unwanted bytes, as a share of the wanted ones.
        most: The maximum size of a request in bytes. A larger request is cut, so that its pieces run in parallel.
    """
    if not len(offset):
        nothing = np.zeros(0, np.int64)
        return RangeRequests(begin=nothing, end=nothing, request=nothing)
    order = np.argsort(offset, kind="stable")
    begin, end = offset[order], np.maximum.accumulate((offset + length)[order])
    between = np.maximum(begin[1:] - end[:-1], 0)
    covered = int(end[-1] - begin[0] - between.sum())
    by_size = np.argsort(between, kind="stable")
    affordable = (between[by_size] <= gap) & (np.cumsum(between[by_size]) <= waste * covered)
    together = np.zeros(len(between), np.bool_)
    together[by_size[affordable]] = True
    first = np.flatnonzero(np.append(True, ~together))
    last = np.append(first[1:], len(begin)) - 1
    run_begin, run_end = begin[first], end[last]
    pieces = np.maximum(-(-(run_end - run_begin) // most), 1)
    number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    cut_begin = np.repeat(run_begin, pieces) + number * most
    cut_end = np.minimum(cut_begin + most, np.repeat(run_end, pieces))
    return RangeRequests(begin=cut_begin, end=cut_end, request=np.searchsorted(cut_begin, offset, side="right") - 1)
