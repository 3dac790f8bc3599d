"""Compute timelines from packets: presentation order, flags, gaps between frames, and GOPs.

All functions are pure functions over numpy columns.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream import base as picture_facts
from framedex.records.clip import NO_PTS

# The bits of frames.flags. docs/format.md documents them.
CLOSED, OPEN, NON_REFERENCE, LEADING, HIDDEN, SKIPPED, FIELD_CODED = 1, 2, 4, 8, 16, 32, 64
CONTINUES, DAMAGED, RESET, STATED, CHANGES_SETS = 128, 256, 512, 1024, 2048
NOT_REPRODUCIBLE = 4096  # a packet with this bit also has the bit DAMAGED
START = CLOSED | OPEN
FLAGS = 8191  # mask of all bits of frames.flags; `packet_flags` adds frames.slots as the higher bits of an integer
USED_SHIFT = 13  # position of the lowest bit of frames.slots in this integer
REFRESHED_SHIFT = USED_SHIFT + picture_facts.REFERENCE_SLOTS
REFERENCES_KNOWN = picture_facts.SLOTS_KNOWN << USED_SHIFT
UNSHOWN = HIDDEN | SKIPPED | CONTINUES

# The values of `videos.pts_source`: the origin of a medium's timestamps. docs/format.md documents them.
CONTAINER, FILLED, JOINED, DEALT, COUNTED = "container", "filled", "joined", "dealt", "counted"
LISTED = "listed"  # for images whose timestamps are given by a rate, a listing or a timestamps file

# Reordering is looked for among pictures up to this distance in decode order. The value is more than twice the size of
# the largest picture buffer, and limits the computing time for malicious streams.
MAX_REORDERED = 64
# Maximum deviation of a constant frame rate's gaps from the median gap, as a fraction of the median gap. Gaps deviate
# because containers round timestamps to their time base.
VFR_TOLERANCE = 0.01
# A medium whose timestamps jump backwards is regarded as several recordings that were joined. This is the minimum mean
# number of frames per jump. With more jumps, the timestamps are an error.
MIN_BETWEEN_JOINTS = 8

Pts = NDArray[np.int64]
Flags = NDArray[np.int32]


def shown_packets(flags: Flags) -> NDArray[np.int64]:
    """Return int64 [frames]: the numbers of the packets that present a frame, in decode order."""
    return np.flatnonzero((flags & UNSHOWN) == 0)


def presentation_order(pts: Pts, flags: Flags) -> NDArray[np.int64]:
    """Return int64 [frames]: the packet (number in decode order) of each presented frame, in presentation order.

    Hidden packets, skipped packets and packets with second fields do not present a frame.

    Args:
        pts: int64 [packets], the timestamps, in decode order.
        flags: int32 [packets], the bits of `frames.flags`, in decode order.
    """
    shown = shown_packets(flags)
    return shown[np.argsort(pts[shown], kind="stable")]


def places(order: NDArray[np.int64] | list[int], packets: int) -> NDArray[np.int64]:
    """Return int64 [packets]: the index of each packet in `order`, -1 for packets that `order` lacks.

    Args:
        order: int64 or a list, the packets in some order. No packet occurs twice.
        packets: The number of packets.
    """
    place = np.full(packets, -1, np.int64)
    place[order] = np.arange(len(order))
    return place


def ranks(order: NDArray[np.int64], packets: int) -> NDArray[np.int64]:
    """Return int64 [frames], in decode order: the index of each frame in presentation order.

    Args:
        order: int64 [frames], the packet of each frame in presentation order.
        packets: The number of packets.
    """
    place = places(order, packets)
    return place if len(order) == packets else place[place >= 0]


def packet_flags(
    pictures: picture_facts.Pictures,
    hidden: NDArray[np.bool_],
    resets: NDArray[np.bool_] | None = None,
    differs: NDArray[np.bool_] | None = None,
) -> Flags:
    """Return int32 [packets]: the columns `frames.flags` and `frames.slots`, combined into one integer per packet.

    The bits of `frames.slots` begin at `USED_SHIFT`.

    Args:
        pictures: The properties of the packets in the bitstream.
        hidden: bool [packets], whether an edit list excludes each packet from presentation.
        resets: bool [packets], whether each packet is a random access point at which the decoder must be reset, in
            addition to `pictures.forgets`. If None, no resets are added.
        differs: bool [packets], whether a run decodes each packet to another picture than a full decode. If None, no
            picture differs.
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
    """Return bool [packets]: whether each packet is affected by a damaged packet.

    A damaged packet affects all packets of its GOP, and the leading pictures of the next GOP.

    Args:
        pictures: The properties of the packets in the bitstream.
        damaged: bool [packets], whether each packet itself is damaged.
    """
    n = len(pictures.start)
    if not damaged.any():
        return np.zeros(n, np.bool_)
    segment = picture_facts.segments(pictures.start)
    broken = segment[damaged]  # ascending; -1 for packets before the first random access point
    broken = broken[np.diff(broken, prepend=-2) > 0]
    begins = np.flatnonzero(pictures.start != picture_facts.NO_START)
    after = np.searchsorted(begins, broken, side="right")
    is_broken, follows = np.zeros(n + 1, np.bool_), np.zeros(n + 1, np.bool_)  # the last element stands for segment -1
    is_broken[broken] = True
    follows[begins[after[after < len(begins)]]] = True
    return is_broken[segment] | (follows[segment] & pictures.leading)


def output_order(flags: Flags, pictures: picture_facts.Pictures) -> NDArray[np.int64]:
    """Return int64 [frames]: the packets of presented frames in the output order that the bitstream determines."""
    shown = shown_packets(flags)
    return shown[np.lexsort((pictures.order[shown], pictures.period[shown]))]


def settle_timestamps(
    pts: Pts, dts: Pts, duration: Pts, flags: Flags, pictures: picture_facts.Pictures, *, stated: bool
) -> tuple[Pts, str]:
    """Compute timestamps that put frames into the order in which a decoder outputs them.

    If the container does not state timestamps (AVI, elementary streams), they are computed from the output order that
    the bitstream determines.

    Args:
        pts: int64 [packets], the presentation timestamps in the container, `NO_PTS` where missing.
        dts: int64 [packets], the decoding timestamps in the container, `NO_PTS` where missing.
        duration: int64 [packets], the durations of the packets, 0 where missing.
        flags: int32 [packets], the bits of `frames.flags`.
        pictures: The properties of the packets in the bitstream.
        stated: Whether the container states timestamps. If so, timestamps that contradict the bitstream are an error,
            because frame 7 by timestamps would not be the same picture as frame 7 by the bitstream.

    Returns:
        (int64 [packets], the timestamps; their origin, a value of `videos.pts_source`).

    Raises:
        BitstreamError: The stated timestamps contradict the bitstream, or frames with the same timestamp are not
            output in decode order.
    """
    order = output_order(flags, pictures)
    # In GOPs with a damaged bitstream, the output order is unknown, so the order of the container's timestamps is
    # accepted there.
    sound = order[(flags[order] & DAMAGED) == 0]
    known = pts[sound] != NO_PTS
    if known.all() and not (pts[order] == NO_PTS).any():
        by_pts = presentation_order(pts, flags)
        if np.array_equal(by_pts[(flags[by_pts] & DAMAGED) == 0], sound):
            return pts, CONTAINER
    # Remuxers that do not know presentation timestamps write decoding timestamps in their place. Such timestamps do not
    # count as stated.
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
            "output_order", "frames with the same timestamp are not output in decode order"
        )
    return settled, source


def _usual_step(times: Pts, known: NDArray[np.bool_], duration: Pts) -> int:
    """Return the median difference of successive timestamps, at least 1.

    If it cannot be computed, return the median of the packet durations. If these are also missing, return 1.

    Args:
        times: int64 [frames], the timestamps in output order.
        known: bool [frames], whether each timestamp is known.
        duration: int64 [packets], the durations of the packets, 0 where missing.
    """
    gaps = np.diff(times[known]) / np.diff(np.flatnonzero(known))
    for candidates in (gaps[gaps > 0], duration[duration > 0]):
        if len(candidates):
            return max(1, int(np.median(candidates)))
    return 1


def _join(times: Pts, known: NDArray[np.bool_], step: int) -> Pts:
    """Make timestamps ascend: after each backward jump, shift them to continue `step` after the preceding frame."""
    joined = times.copy()
    values = times[known]
    jumps = np.minimum(np.diff(values, prepend=values[:1]), 0)
    joined[known] = values + np.cumsum(np.where(jumps < 0, step - jumps, 0))
    return joined


def _fill(times: Pts, known: NDArray[np.bool_], step: int) -> Pts:
    """Interpolate missing timestamps between known ones. At both ends, extrapolate in steps of `step`."""
    at = np.flatnonzero(known)
    place = np.arange(len(times))
    filled = np.rint(np.interp(place, at, times[at])).astype(np.int64)
    filled[: at[0]] -= step * (at[0] - place[: at[0]])
    filled[at[-1] + 1 :] += step * (place[at[-1] + 1 :] - at[-1])
    filled[at] = times[at]
    return filled


def has_unordered_hidden(pts: Pts, flags: Flags, pictures: picture_facts.Pictures) -> bool:
    """Return whether the order by timestamps differs from the output order, with hidden pictures included.

    `settle_timestamps` makes both orders equal for shown pictures, but hidden pictures may have arbitrary timestamps.
    """
    if not (flags & HIDDEN).any():
        return False
    output = np.flatnonzero((flags & (SKIPPED | CONTINUES)) == 0)
    by_bitstream = output[np.lexsort((pictures.order[output], pictures.period[output]))]
    return not np.array_equal(by_bitstream, output[np.argsort(pts[output], kind="stable")])


def check_reorder_depth(flags: Flags, pictures: picture_facts.Pictures, reorder_depth: int) -> None:
    """Check that a decoder does not have to delay its output by more than `reorder_depth` frames.

    Otherwise, FFmpeg's H.264 and HEVC decoders would increase their delay during decoding, and each increase drops or
    swaps a picture.

    Raises:
        BitstreamError: Output in the right order needs a longer delay than `reorder_depth`.
    """
    output = np.flatnonzero((flags & (SKIPPED | CONTINUES | DAMAGED)) == 0)
    order = np.lexsort((pictures.order[output], pictures.period[output]))
    check_ranks(places(order, len(output)), reorder_depth)


def check_ranks(rank: NDArray[np.int64], reorder_depth: int) -> None:
    """Raise BitstreamError if `reorder_depth_needed(rank)` is greater than `reorder_depth`."""
    needed = reorder_depth_needed(rank)
    if needed > reorder_depth:
        raise picture_facts.BitstreamError(
            "output_order", f"the stream states a reorder depth of {reorder_depth}, but its pictures need {needed}"
        )


def reorder_depth_needed(rank: NDArray[np.int64]) -> int:
    """Return the reorder depth: the number of pictures that a decoder has to hold back for the right output order.

    For each picture, the pictures that are decoded before it and output after it are counted. The result is the largest
    count.

    Args:
        rank: int64 [pictures], the index of each picture in output order. The pictures are in decode order.
    """
    # Two pictures with a distance above 2 * reach are in order.
    reach = int(np.abs(rank - np.arange(len(rank))).max(initial=0))
    held = np.zeros(len(rank), np.int64)
    for lag in range(1, min(2 * reach, MAX_REORDERED) + 1):
        held[lag:] += rank[:-lag] > rank[lag:]
    return int(held.max(initial=0))


def packets_to_frames(order: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64 [frames]: the number of packets from each frame's random access point to the frame's packet.

    Both packets are counted. For frames before the first random access point, the count begins at packet 0.

    Args:
        order: int64 [frames], the packet of each frame in presentation order (`presentation_order`).
        starts: int64 [starts], the packets of the random access points.
    """
    begins = np.concatenate([[0], starts])
    counts: NDArray[np.int64] = order - begins[np.searchsorted(starts, order, side="right")] + 1
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A summary of a timeline. The fields are columns of `videos` (docs/format.md).

    The lengths of GOPs (`min_gop`, `mean_gop`, `max_gop`) are numbers of packets.
    """

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
    """Summarise a timeline with at least one frame.

    Args:
        pts: int64 [packets], the timestamps, in decode order.
        flags: int32 [packets], the bits of `frames.flags`.
        last_duration: The duration of the last frame in presentation order, in time base units. If 0, the duration is
            unknown, and the median gap is used in its place.
        time_base_seconds: The duration of one time base unit, in seconds.
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
