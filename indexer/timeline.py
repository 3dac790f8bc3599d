"""Compute timelines from packets: presentation order, flags, gaps, GOPs. Pure functions over numpy columns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream import base as picture_facts
from framedex.records.clip import NO_PTS

# The bits of frames.flags; schema.py documents them.
CLOSED, OPEN, NON_REFERENCE, LEADING, HIDDEN, SKIPPED, FIELD_CODED = 1, 2, 4, 8, 16, 32, 64
CONTINUES, DAMAGED, RESET, STATED, CHANGES_SETS = 128, 256, 512, 1024, 2048
NOT_REPRODUCIBLE = 4096  # is set only together with DAMAGED
START = CLOSED | OPEN
FLAGS = 8191  # all bits of frames.flags; in memory, the bits of frames.slots follow them
USED_SHIFT = 13  # number of the first bit of frames.slots
REFRESHED_SHIFT = USED_SHIFT + picture_facts.REFERENCE_SLOTS
REFERENCES_KNOWN = picture_facts.SLOTS_KNOWN << USED_SHIFT
UNSHOWN = HIDDEN | SKIPPED | CONTINUES

# Sources of a medium's timestamps; schema.py documents the words.
CONTAINER, FILLED, JOINED, DEALT, COUNTED = "container", "filled", "joined", "dealt", "counted"
LISTED = "listed"  # of images: a rate or a file of times states the timestamps

MAX_REORDERED = 64  # more than twice the largest picture buffer; limits the time for absurd streams
VFR_TOLERANCE = 0.01  # a share of the median gap; containers round timestamps to their time base
MIN_BETWEEN_JOINTS = 8  # mean number of frames between steps back in timestamps of joined recordings

Pts = NDArray[np.int64]
Flags = NDArray[np.int32]


def shown_packets(flags: Flags) -> NDArray[np.int64]:
    """Return int64 [frames]: the packets that present a frame, in decode order."""
    return np.flatnonzero((flags & UNSHOWN) == 0)


def presentation_order(pts: Pts, flags: Flags) -> NDArray[np.int64]:
    """Return int64 [frames]: the packet (decode number) of each presented frame, in presentation order.

    Hidden packets, skipped packets and second fields present nothing.

    Args:
        pts: int64 [packets].
        flags: int32 [packets].
    """
    shown = shown_packets(flags)
    return shown[np.argsort(pts[shown], kind="stable")]


def ranks(order: NDArray[np.int64], packets: int) -> NDArray[np.int64]:
    """Return int64 [frames], in decode order: the place of each frame in `order`. This inverts a sort."""
    place = np.full(packets, -1, np.int64)
    place[order] = np.arange(len(order))
    return place if len(order) == packets else place[place >= 0]


def packet_flags(
    pictures: picture_facts.Pictures,
    hidden: NDArray[np.bool_],
    resets: NDArray[np.bool_] | None = None,
    differs: NDArray[np.bool_] | None = None,
) -> Flags:
    """Return int32 [packets]: the columns `frames.flags` and, in the bits from `USED_SHIFT` on, `frames.slots`.

    Args:
        pictures: facts of the packets from the bitstream.
        hidden: bool [packets], packets that an edit list cuts away.
        resets: bool [packets], random access points over which no decoder session may run, in addition to
            `pictures.forgets`. If None, there are no additional ones.
        differs: bool [packets], pictures of runs that differ from those of a full decode. If None, there are none.
    """
    flags = np.where(
        pictures.start == picture_facts.OPEN_START, OPEN, np.where(pictures.start != picture_facts.NO_START, CLOSED, 0)
    ).astype(np.int32)
    unlike = np.zeros(len(hidden), np.bool_) if differs is None else spread_over_gops(pictures, differs)
    for column, bit in (
        (pictures.non_reference, NON_REFERENCE),
        (pictures.leading, LEADING),
        (hidden, HIDDEN),
        (pictures.skipped, SKIPPED),
        (pictures.field_coded, FIELD_CODED),
        (pictures.continues, CONTINUES),
        (spread_over_gops(pictures, pictures.damaged), DAMAGED),
        (pictures.forgets if resets is None else pictures.forgets | resets, RESET),
        (pictures.changes_sets, CHANGES_SETS),
        (unlike, DAMAGED | NOT_REPRODUCIBLE),
    ):
        flags |= np.multiply(column, bit, dtype=np.int32)
    if pictures.slots is not None:
        flags |= pictures.slots << USED_SHIFT
    return flags


def spread_over_gops(pictures: picture_facts.Pictures, damaged: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool [packets]: packets of the GOPs in which some packets are damaged, given as bool [packets].

    These are all packets of a GOP with a damaged packet, and the leading pictures of the random access point after it.
    """
    n = len(pictures.start)
    if not damaged.any():
        return np.zeros(n, np.bool_)
    segment = picture_facts.segments(pictures.start)
    broken = segment[damaged]  # ascending, -1 before the first start
    broken = broken[np.diff(broken, prepend=-2) > 0]
    begins = np.flatnonzero(pictures.start != picture_facts.NO_START)
    after = np.searchsorted(begins, broken, side="right")
    is_broken, follows = np.zeros(n + 1, np.bool_), np.zeros(n + 1, np.bool_)  # the last element is for segment -1
    is_broken[broken] = True
    follows[begins[after[after < len(begins)]]] = True
    return is_broken[segment] | (follows[segment] & pictures.leading)


def output_order(flags: Flags, pictures: picture_facts.Pictures) -> NDArray[np.int64]:
    """Return int64 [frames]: the packets of presented frames in output order, from the bitstream alone."""
    shown = shown_packets(flags)
    return shown[np.lexsort((pictures.order[shown], pictures.period[shown]))]


def settle_timestamps(
    pts: Pts, dts: Pts, duration: Pts, flags: Flags, pictures: picture_facts.Pictures, *, stated: bool
) -> tuple[Pts, str]:
    """Return (pts int64 [packets], where they come from): timestamps that order frames as a decoder outputs them.

    If the container states no timestamps (AVI, elementary streams), the order of the bitstream decides.

    Args:
        pts: int64 [packets], `NO_PTS` where missing.
        dts: int64 [packets], `NO_PTS` where missing.
        duration: int64 [packets], 0 where missing.
        flags: int32 [packets].
        pictures: facts of the packets from the bitstream.
        stated: whether the container states timestamps. If so, a timestamp that contradicts the bitstream is an error:
            frame 7 by timestamps would be another picture than frame 7 by the bitstream.

    Raises:
        BitstreamError: stated timestamps contradict the bitstream, or frames that share a timestamp are output in
            another order than decoded.
    """
    order = output_order(flags, pictures)
    # The true order is unknown in GOPs with a damaged bitstream. There, the container's order is accepted.
    sound = order[(flags[order] & DAMAGED) == 0]
    known = pts[sound] != NO_PTS
    if known.all() and not (pts[order] == NO_PTS).any():
        by_pts = presentation_order(pts, flags)
        if np.array_equal(by_pts[(flags[by_pts] & DAMAGED) == 0], sound):
            return pts, CONTAINER
    # Remuxers that do not know presentation times write the decoding times in their place.
    stated = stated and not np.array_equal(pts, dts)
    settled = pts.copy()
    times = pts[order]
    known = times != NO_PTS
    backwards = np.flatnonzero(np.diff(times[known]) < 0)
    step = _usual_step(times, known, duration)
    if stated and known.any():
        if len(backwards) * MIN_BETWEEN_JOINTS > np.count_nonzero(known):
            packet = int(order[np.flatnonzero(known)[backwards[0] + 1]])
            raise picture_facts.BitstreamError(
                "output_order",
                f"timestamps contradict the order in which pictures are output, first at packet {packet}",
            )
        settled[order] = _fill(_join(times, known, step), known, step)
        source = JOINED if len(backwards) else FILLED
    elif (dts[order] != NO_PTS).all():
        settled[order], source = np.sort(dts[order]), DEALT
    else:
        settled[order], source = np.arange(len(order), dtype=np.int64) * step, COUNTED
    if not np.array_equal(presentation_order(settled, flags), order):
        raise picture_facts.BitstreamError(
            "output_order", "frames that share a timestamp are output in another order than decoded"
        )
    return settled, source


def _usual_step(times: Pts, known: NDArray[np.bool_], duration: Pts) -> int:
    """Return the median distance of frames, at least 1. Without known times it is from packet durations, else 1."""
    gaps = np.diff(times[known]) / np.diff(np.flatnonzero(known))
    for candidates in (gaps[gaps > 0], duration[duration > 0]):
        if len(candidates):
            return max(1, int(np.median(candidates)))
    return 1


def _join(times: Pts, known: NDArray[np.bool_], step: int) -> Pts:
    """Shift the timestamps after each step back, so that they continue `step` after the frame before the step."""
    joined = times.copy()
    values = times[known]
    jumps = np.minimum(np.diff(values, prepend=values[:1]), 0)
    joined[known] = values + np.cumsum(np.where(jumps < 0, step - jumps, 0))
    return joined


def _fill(times: Pts, known: NDArray[np.bool_], step: int) -> Pts:
    """Interpolate missing timestamps between their neighbours. Extrapolate by `step` at both ends."""
    at = np.flatnonzero(known)
    place = np.arange(len(times))
    filled = np.rint(np.interp(place, at, times[at])).astype(np.int64)
    filled[: at[0]] -= step * (at[0] - place[: at[0]])
    filled[at[-1] + 1 :] += step * (place[at[-1] + 1 :] - at[-1])
    filled[at] = times[at]
    return filled


def has_unordered_hidden(pts: Pts, flags: Flags, pictures: picture_facts.Pictures) -> bool:
    """Return whether timestamps order the pictures that are output otherwise than the bitstream does.

    Shown pictures are in order (`settle_timestamps`), but hidden pictures may have any timestamps.
    """
    if not (flags & HIDDEN).any():
        return False
    output = np.flatnonzero((flags & (SKIPPED | CONTINUES)) == 0)
    by_bitstream = output[np.lexsort((pictures.order[output], pictures.period[output]))]
    return not np.array_equal(by_bitstream, output[np.argsort(pts[output], kind="stable")])


def check_reorder_depth(flags: Flags, pictures: picture_facts.Pictures, reorder_depth: int) -> None:
    """Check that a decoder does not have to hold back more frames than `reorder_depth`.

    FFmpeg's H.264 and HEVC decoders would increase their delay during decoding, and drop or swap a picture each time.

    Raises:
        BitstreamError: pictures are reordered further than that.
    """
    output = np.flatnonzero((flags & (SKIPPED | CONTINUES | DAMAGED)) == 0)
    rank = np.empty(len(output), np.int64)
    rank[np.lexsort((pictures.order[output], pictures.period[output]))] = np.arange(len(output))
    check_ranks(rank, reorder_depth)


def check_ranks(rank: NDArray[np.int64], reorder_depth: int) -> None:
    """Raise BitstreamError if pictures are reordered further than `reorder_depth` (see `reorder_depth_needed`)."""
    needed = reorder_depth_needed(rank)
    if needed > reorder_depth:
        raise picture_facts.BitstreamError(
            "output_order", f"pictures are reordered over {needed} places, the stream states {reorder_depth}"
        )


def reorder_depth_needed(rank: NDArray[np.int64]) -> int:
    """Return the largest number of pictures that are decoded before some picture and shown after it.

    Args:
        rank: int64 [pictures], a permutation: the place in output order of each picture in decode order.
    """
    place = np.arange(len(rank))
    reach = int(np.abs(rank - place).max(initial=0))  # pictures that are more than twice as far apart are in order
    held = np.zeros(len(rank), np.int64)
    for lag in range(1, min(2 * reach, MAX_REORDERED) + 1):
        held[lag:] += rank[:-lag] > rank[lag:]
    return int(held.max(initial=0))


def packets_to_frames(order: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64 [frames]: the number of packets from each frame's random access point to its own packet, inclusive.

    Args:
        order: as `presentation_order` returns it.
        starts: int64 [starts], the packets of the random access points. Frames before the first one count from packet
            0.
    """
    begins = np.concatenate([[0], starts])
    counts: NDArray[np.int64] = order - begins[np.searchsorted(starts, order, side="right")] + 1
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A summary of a timeline, in the columns of `videos`. The unit of gaps is seconds, that of GOPs is packets."""

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
    seek_packets: float
    non_reference_share: float | None
    open_gop_count: int | None
    damaged_gop_count: int


def summarise(pts: Pts, flags: Flags, *, last_duration: int, time_base_seconds: float) -> Summary:
    """Return the summary of a non-empty timeline.

    Args:
        pts: int64 [packets].
        flags: int32 [packets].
        last_duration: duration of the frame shown last, in time base units. If it is 0, it is unknown, and the median
            gap is used.
        time_base_seconds: one time base unit, in seconds.
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
        seek_packets=float(np.mean(packets_to_frames(order, starts))),
        non_reference_share=float(np.mean((flags & NON_REFERENCE) != 0)),
        open_gop_count=int(np.count_nonzero(flags & OPEN)),
        # Packets before the first random access point count as one damaged GOP.
        damaged_gop_count=int(np.count_nonzero((flags[starts] & DAMAGED) != 0)) + bool(starts[0]),
    )
