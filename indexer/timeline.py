"""From packets to the timeline: presentation order, flags, gaps, GOPs. Pure functions over numpy columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.pictures import NO_START, OPEN_START, BitstreamError, Pictures

NO_PTS = np.iinfo(np.int64).min

# The bits of frames.flags; docs in schema.py.
CLOSED, OPEN, NON_REFERENCE, LEADING, HIDDEN, SKIPPED, FIELD_CODED = 1, 2, 4, 8, 16, 32, 64
START = CLOSED | OPEN

MOST_REORDERED = 64  # twice the largest picture buffer and more; bounds the work on absurd streams
VFR_TOLERANCE = 0.01  # of the median gap; containers round timestamps to their time base


def presentation_order(pts: NDArray[np.int64], flags: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return int64 [frames]: the packet (decode number) of each presented frame, in presentation order.

    pts: int64 [packets]; flags: uint8 [packets]. Hidden and skipped packets present nothing.
    """
    shown = np.flatnonzero((flags & (HIDDEN | SKIPPED)) == 0)
    return shown[np.argsort(pts[shown], kind="stable")]


def packet_flags(pictures: Pictures, hidden: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return uint8 [packets]: the `frames.flags` column."""
    flags = np.where(pictures.start == OPEN_START, OPEN, np.where(pictures.start != NO_START, CLOSED, 0))
    for column, bit in (
        (pictures.non_reference, NON_REFERENCE),
        (pictures.leading, LEADING),
        (hidden, HIDDEN),
        (pictures.skipped, SKIPPED),
        (pictures.field_coded, FIELD_CODED),
    ):
        flags = flags | np.where(column, bit, 0)
    return flags.astype(np.uint8)


def check_order(pts: NDArray[np.int64], flags: NDArray[np.uint8], pictures: Pictures) -> None:
    """Raise BitstreamError unless timestamps order the frames just as a decoder outputs them.

    Frames are numbered by pts; a decoder outputs them by the bitstream's own order. Where the two disagree, frame 7
    would be a different picture for either, so the medium is refused.
    """
    if len(pts) and not pictures.start[0]:
        raise BitstreamError("no_start", "the stream does not begin with a picture where decoding may start")
    shown = np.flatnonzero((flags & (HIDDEN | SKIPPED)) == 0)
    missing = shown[pts[shown] == NO_PTS]
    if len(missing):
        raise BitstreamError(
            "no_pts", f"packet {int(missing[0])} (of {len(missing)} such) has no presentation timestamp"
        )
    by_bitstream = shown[np.lexsort((pictures.order[shown], pictures.period[shown]))]
    wrong = np.flatnonzero(by_bitstream != presentation_order(pts, flags))
    if len(wrong):
        packet = int(by_bitstream[wrong[0]])
        raise BitstreamError(
            "output_order", f"timestamps contradict the order in which pictures are output, first at packet {packet}"
        )


def check_reorder_depth(flags: NDArray[np.uint8], pictures: Pictures, reorder_depth: int) -> None:
    """Raise BitstreamError where a decoder would have to hold back more frames than it knows of.

    It then grows its delay on the way, and drops or swaps a picture each time (FFmpeg's H.264 and HEVC decoders).
    """
    output = np.flatnonzero((flags & SKIPPED) == 0)
    rank = np.empty(len(output), np.int64)
    rank[np.lexsort((pictures.order[output], pictures.period[output]))] = np.arange(len(output))
    needed = reorder_depth_needed(rank)
    if needed > reorder_depth:
        raise BitstreamError(
            "output_order", f"pictures are reordered over {needed} places, the stream states {reorder_depth}"
        )


def reorder_depth_needed(rank: NDArray[np.int64]) -> int:
    """Return the most pictures that are decoded before another one and shown after it.

    rank: int64 [pictures], a permutation: the place in output order of each picture in decode order.
    """
    place = np.arange(len(rank))
    reach = int(np.abs(rank - place).max(initial=0))  # further apart than twice this, no two are out of order
    held = np.zeros(len(rank), np.int64)
    for lag in range(1, min(2 * reach, MOST_REORDERED) + 1):
        held[lag:] += rank[:-lag] > rank[lag:]
    return int(held.max(initial=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A timeline in a few numbers, in the columns of `videos`; gaps in seconds, GOPs in packets."""

    frame_count: int
    keyframe_count: int
    start_pts: int
    duration_pts: int
    min_gap_seconds: float | None
    median_gap_seconds: float | None
    max_gap_seconds: float | None
    is_vfr: bool
    min_gop: int
    mean_gop: float
    max_gop: int
    non_reference_share: float
    open_gop_count: int


def summarise(
    pts: NDArray[np.int64], flags: NDArray[np.uint8], *, last_duration: int, time_base_seconds: float
) -> Summary:
    """Return the summary of a non-empty timeline.

    last_duration: of the frame shown last, in time base units; 0 means unknown, then the median gap stands in.
    """
    order = presentation_order(pts, flags)
    times = pts[order]
    gaps = np.diff(times)
    median = float(np.median(gaps)) if len(gaps) else 0.0
    starts = np.flatnonzero(flags & START)
    gops = np.diff(starts, append=len(pts))
    tolerance = max(1.0, VFR_TOLERANCE * median)
    return Summary(
        frame_count=len(order),
        keyframe_count=len(starts),
        start_pts=int(times[0]),
        duration_pts=int(times[-1] - times[0]) + (last_duration or int(median)),
        min_gap_seconds=float(gaps.min()) * time_base_seconds if len(gaps) else None,
        median_gap_seconds=median * time_base_seconds if len(gaps) else None,
        max_gap_seconds=float(gaps.max()) * time_base_seconds if len(gaps) else None,
        is_vfr=bool(len(gaps) and np.abs(gaps - median).max() > tolerance),
        min_gop=int(gops.min()),
        mean_gop=float(gops.mean()),
        max_gop=int(gops.max()),
        non_reference_share=float(np.mean((flags & NON_REFERENCE) != 0)),
        open_gop_count=int(np.count_nonzero(flags & OPEN)),
    )
