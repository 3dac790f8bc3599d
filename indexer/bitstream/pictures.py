"""What a bitstream says of its pictures, one row a packet: the common result of every codec's scanner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

NO_START, CLOSED_START, OPEN_START = 0, 1, 2


class BitstreamError(ValueError):
    """The bitstream is damaged, or does what framedex does not yet reproduce. `kind` is a short stable word."""

    def __init__(self, kind: str, message: str, *, damaged: bool = False) -> None:
        self.kind, self.damaged = kind, damaged
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Facts of n packets, each one picture, in decode order.

    start: uint8 [n], NO_START, CLOSED_START (nothing after it needs anything before it) or OPEN_START (its leading
    pictures do). non_reference: bool [n]. leading: bool [n], decodable only from the start point before its own.
    skipped: bool [n], never output by a decoder that starts at packet 0. field_coded: bool [n].
    period, order: int64 [n]: pictures are output by period, then by order within it.
    preamble: bytes that a decoder must see before it starts anywhere but at packet 0 (whole NAL units, prefixed).
    inband_sets: some packets carry parameter sets that differ from the configuration record's.
    inner_start_codes: some length-prefixed units hold several NAL units between start codes.
    chroma_format: chroma_format_idc, 0 monochrome, 1 4:2:0, 2 4:2:2, 3 4:4:4.
    max_ref_frames: max_num_ref_frames of an H.264 stream, else None.
    """

    start: NDArray[np.uint8]
    non_reference: NDArray[np.bool_]
    leading: NDArray[np.bool_]
    skipped: NDArray[np.bool_]
    field_coded: NDArray[np.bool_]
    period: NDArray[np.int64]
    order: NDArray[np.int64]
    preamble: bytes
    inband_sets: bool
    inner_start_codes: bool
    chroma_format: int
    max_ref_frames: int | None


class Scanner(Protocol):
    """Collects what it needs of every packet, then answers for all of them at once."""

    def feed(self, data: bytes) -> None:
        """Look at the next packet in decode order. Raises BitstreamError."""

    def finish(self) -> Pictures:
        """Return the facts of all packets fed. Raises BitstreamError."""


def segments(start: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return int64 [n]: for each packet, the decode number of the start point at or before it (-1 before the first)."""
    numbers = np.where(start != NO_START, np.arange(len(start)), -1)
    return np.maximum.accumulate(numbers) if len(start) else numbers


def unwrap_order_counts(
    lsb: NDArray[np.int64], bits: int, resets: NDArray[np.bool_], anchors: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the full picture order counts of pictures whose headers carry `bits` low bits of them.

    resets: bool [n], pictures that start a new period, where the high bits are zero (packet 0 counts as one).
    anchors: bool [n], pictures against which the next ones are unwrapped (H.264 8.2.1.1: reference pictures;
    HEVC 8.3.1: pictures of temporal layer 0 that are neither leading nor sub-layer non-reference).
    """
    n = len(lsb)
    if n == 0:
        return np.zeros(0, np.int64)
    resets, anchors = resets.copy(), anchors | resets
    resets[0] = anchors[0] = True
    cycle = 1 << bits
    at = np.flatnonzero(anchors)
    steps = _nearest(np.diff(lsb[at], prepend=lsb[at[0]]), cycle)
    total = np.cumsum(steps)
    begin = np.maximum.accumulate(np.where(resets[at], np.arange(len(at)), 0))
    counts = total - total[begin] + lsb[at][begin]
    previous = np.searchsorted(at, np.arange(n), side="right") - 1
    return counts[previous] + _nearest(lsb - lsb[at][previous], cycle)


def _nearest(steps: NDArray[np.int64], cycle: int) -> NDArray[np.int64]:
    """Return the steps taken modulo `cycle` into (-cycle/2, cycle/2], as the standards' inequalities have it."""
    half = cycle // 2
    return (steps + half - 1) % cycle - half + 1
