"""Which H.264 packets make up a picture, the output order of pictures, and where pictures are missing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.base.pictures import CLOSED_START, BitstreamError, unwrap_order_counts
from framedex.indexer.bitstream.h26x.h264_sets import Sps
from framedex.indexer.bitstream.h26x.h264_starts import first_start

TOP_AND_BOTTOM = 3  # the sum of two fields' parities
MOST_ORDER_COUNT = 1 << 31  # 8.2.1

Columns = dict[str, NDArray[np.int64]]  # one array per slice header field, one row per slice


def pair_fields(
    slices: Columns, facts: Columns, count: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Find the packets that are second fields, and those that hold only half a picture.

    Two fields make a frame (7.4.1.2.4) if they follow each other, have opposite parity and the same frame_num, both or
    none of them are references, and the second is not IDR.

    Args:
        slices: header fields of all slices.
        facts: header fields of each packet's first slice, one row per packet.
        count: int64 [packets], number of slices.

    Returns:
        (continues, damaged), bool [packets]: second fields, and packets with half a picture or without its first slice.

    Raises:
        BitstreamError: if a packet holds several pictures.
    """
    n = len(count)
    begins = slices["first_mb"] == 0
    halves = np.where(slices["parity"][begins] != 0, 1, 2)
    held = np.bincount(slices["packet"][begins], weights=halves, minlength=n)
    if (held > 2).any():
        raise BitstreamError("packing", f"packet {int(np.argmax(held > 2))} holds more than one picture")
    continues, damaged = np.zeros(n, np.bool_), (held == 0) & (count > 0)
    single = np.flatnonzero(held == 1)
    at = 0
    while at < len(single):
        this, after = int(single[at]), int(single[at]) + 1
        paired = (
            at + 1 < len(single)
            and single[at + 1] == after
            and facts["parity"][this] + facts["parity"][after] == TOP_AND_BOTTOM
            and facts["frame_num"][this] == facts["frame_num"][after]
            and not facts["idr"][after]
            and facts["referenced"][this] == facts["referenced"][after]
        )
        (continues if paired else damaged)[after if paired else this] = True
        at += 2 if paired else 1
    return continues, damaged


def missing_before(
    sequences: list[Sps],
    facts: Columns,
    picture: NDArray[np.int64],
    start: NDArray[np.uint8],
    referenced: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return bool [packets]: pictures before which others are missing. Decoders conceal these with what they have.
    frame_num equals that of the preceding reference picture, or is one more (7.4.3), unless the stream may leave gaps.

    Args:
        sequences: the sequence parameter sets, by the numbers in `facts`.
        facts: header fields of each packet's first slice, one row per packet.
        picture: int64 [pictures], the packets in which pictures begin.
        start: uint8 [packets], start points as in `Pictures`.
        referenced: bool [packets], packets of reference pictures.
    """
    gaps = np.zeros(len(start), np.bool_)
    begun = picture[picture >= first_start(start)]
    if len(begun) < 2:
        return gaps
    allowed = np.array([sequence.gaps_allowed for sequence in sequences])[facts["sequence"][begun]]
    cycle = 1 << np.array([sequence.frame_num_bits for sequence in sequences])[facts["sequence"][begun]]
    number = facts["frame_num"][begun]
    before = np.maximum.accumulate(np.where(referenced[begun], np.arange(len(begun)), 0))[:-1]
    step = (number[1:] - number[before]) % cycle[1:]
    gaps[begun[1:]] = (step > 1) & (start[begun[1:]] != CLOSED_START) & ~allowed[1:]
    return gaps


def order_counts(
    sequences: list[Sps],
    facts: Columns,
    picture: NDArray[np.int64],
    idr: NDArray[np.bool_],
    referenced: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return int64 [pictures]: output order within a period (8.2.1), from the first slice of each picture."""
    order = np.arange(len(idr), dtype=np.int64)  # 8.2.1.3, type 2: output order is decode order
    sequence = facts["sequence"][picture]
    counting = [(sps.order_count_type, sps.order_count_bits) for sps in sequences]
    for kind, bits in sorted(set(counting)):  # these change at IDR pictures, where counting restarts
        like = np.array([(kind, bits) == found for found in counting])
        part = like[sequence]
        chosen = picture[part]
        if kind == 0:
            order[part] = unwrap_order_counts(facts["order_lsb"][chosen], bits, idr[part], referenced[part])
        elif kind == 1:
            rows = (facts[name][chosen].tolist() for name in ("frame_num", "offset_for_ref", "sequence"))
            pictures = zip(*rows, idr[part].tolist(), referenced[part].tolist(), strict=True)
            order[part] = order_counts_of_type_1(sequences, pictures)
    return order


def order_counts_of_type_1(
    sequences: list[Sps], pictures: Iterable[tuple[int, int, int, bool, bool]]
) -> NDArray[np.int64]:
    """Return picture order counts of type 1, which follow frame_num (8.2.1.2).

    Args:
        sequences: the sequence parameter sets, by number.
        pictures: (frame_num, delta_pic_order_cnt[0], number of the sequence, IDR, referenced) in decode order.
    """
    counts: list[int] = []
    wraps = previous = 0
    for frame_num, delta, number, idr, referenced in pictures:
        sequence = sequences[number]
        wraps = 0 if idr else wraps + (previous > frame_num)
        previous = frame_num
        cycle = sequence.ref_frame_offsets
        absolute = (wraps << sequence.frame_num_bits) + frame_num if cycle else 0
        absolute -= not referenced and absolute > 0
        expected = 0
        if absolute > 0:
            whole, part = divmod(absolute - 1, len(cycle))
            expected = whole * sum(cycle) + sum(cycle[: part + 1])
        counts.append(expected + (0 if referenced else sequence.non_ref_offset) + delta)
        if abs(counts[-1]) >= MOST_ORDER_COUNT:
            raise BitstreamError("output_order", f"a picture order count of {counts[-1]}", damaged=True)
    return np.array(counts, np.int64)
