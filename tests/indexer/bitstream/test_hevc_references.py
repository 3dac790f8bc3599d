"""Reference picture sets: parsed as written, predicted as the standard specifies; missing pictures are found."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.base import REFERENCE_SLOTS, SLOTS_KNOWN, BitReader
from framedex.indexer.bitstream.hevc_sets import (
    SKIPPED,
    References,
    ReferringPicture,
    ShortTermSet,
    buffered_references,
    parse_reference_sets,
    parse_short_term_set,
    parse_slice_references,
)
from framedex.indexer.reach import Reach, needed_packets
from framedex.indexer.timeline import CLOSED, FLAGS, USED_SHIFT, Flags, packet_flags
from tests.indexer.bitstream.test_bits import write
from tests.support.planned import demux, encode, scan

GAPS = st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=4)


def explicit(gaps: list[tuple[int, bool]], sign: int) -> tuple[tuple[int, bool], ...]:
    """Convert gaps between neighbours to differences from the current picture."""
    total, deltas = 0, []
    for gap, used in gaps:
        total += sign * gap
        deltas.append((total, used))
    return tuple(deltas)


@given(GAPS, GAPS)
def test_an_explicit_set_is_read_as_written(before: list[tuple[int, bool]], after: list[tuple[int, bool]]) -> None:
    fields: list[tuple[object, int]] = [("ue", len(before)), ("ue", len(after))]
    for gap, used in (*before, *after):
        fields += [("ue", gap - 1), (1, int(used))]
    found = parse_short_term_set(BitReader(write(fields)), [], in_slice=False)
    assert found == ShortTermSet(before=explicit(before, -1), after=explicit(after, 1))


def test_a_predicted_set_shifts_its_source() -> None:
    source = ShortTermSet(before=((-2, True), (-4, True)), after=((2, True),))
    # Predicted from the previous set with a shift of +1. The candidates are -2, -4, 2 and 0: the second is dropped,
    # the third is kept but unused.
    fields: list[tuple[object, int]] = [(1, 1), (1, 0), ("ue", 0), (1, 1), (1, 0), (1, 0), (1, 0), (1, 1), (1, 1)]
    found = parse_short_term_set(BitReader(write(fields)), [source], in_slice=False)
    assert found == ShortTermSet(before=((-1, True),), after=((1, True), (3, False)))


def refers(*deltas: int, unused: tuple[int, ...] = ()) -> References:
    return References(short_term=(*((d, True) for d in deltas), *((d, False) for d in unused)), long_term=())


def missing(pictures: list[tuple[int, bool, References]], cycle: int = 256) -> list[int]:
    return buffered_references(ReferringPicture(*picture, cycle) for picture in pictures)[0]


def test_a_picture_that_was_never_there_is_missing() -> None:
    pictures = [(0, True, refers()), (4, False, refers(-4)), (2, False, refers(-2, 2))]
    assert missing(pictures) == []
    assert missing([pictures[0], pictures[2]]) == [1]


def test_a_picture_that_an_earlier_set_let_go_is_missing() -> None:
    pictures = [(0, True, refers()), (1, False, refers(-1)), (2, False, refers(-1)), (3, False, refers(-3))]
    assert missing(pictures) == [3]
    pictures[2] = (2, False, refers(-1, unused=(-2,)))
    assert missing(pictures) == []


def test_skipped_pictures_neither_need_nor_are_references() -> None:
    pictures = [(8, True, refers()), (6, False, SKIPPED), (10, False, refers(-4))]
    assert missing(pictures) == [2]


def test_long_term_references_match_by_low_bits_or_whole() -> None:
    first = (0, True, refers())
    for entry, expected in (
        ((0, False, True), []),
        ((0, True, True), []),
        ((16, True, True), [1]),
        ((3, False, False), []),
    ):
        assert missing([first, (40, False, References(short_term=(), long_term=(entry,)))], 16) == expected


def needed(pictures: list[ReferringPicture], target: int) -> list[int]:
    """Return the pictures that a decoder needs for one of them, the first of which is a start point."""
    _, slots = buffered_references(pictures)
    flags = np.array(slots, np.int32) << USED_SHIFT
    flags[0] |= CLOSED
    return np.flatnonzero(needed_packets(flags, np.arange(len(slots)) == target)).tolist()


def coded(*pictures: tuple[int, References], cycle: int = 256) -> list[ReferringPicture]:
    """Return pictures in decode order, all of which are anchors, after a start point with the order count 0."""
    first = ReferringPicture(0, True, refers(), cycle, is_anchor=True, is_start=True)
    return [first, *(ReferringPicture(count, False, found, cycle, is_anchor=True) for count, found in pictures)]


def test_only_references_and_theirs_are_needed() -> None:
    pictures = coded((8, refers(-8)), (4, refers(-4, 4)), (2, refers(-2, 2, unused=(6,))), (6, refers(-2, 2)))
    assert needed(pictures, 4) == [0, 1, 2, 4]
    assert needed(pictures, 3) == [0, 1, 2, 3]
    assert needed(pictures, 1) == [0, 1]


def test_a_slot_is_used_again_when_its_picture_is_let_go() -> None:
    chain = coded(*((count, refers(-1)) for count in range(1, 40)))
    _, slots = buffered_references(chain)
    assert all(bits & SLOTS_KNOWN for bits in slots)
    assert {bits >> REFERENCE_SLOTS & 0xFF for bits in slots} == {1, 2}
    assert needed(chain, 20) == list(range(21))


def test_more_pictures_than_slots_are_not_known() -> None:
    held = [tuple(range(-count, 0)) for count in range(1, 12)]
    pictures = coded(*((count, refers(-count, unused=unused[1:])) for count, unused in enumerate(held, 1)))
    _, slots = buffered_references(pictures)
    assert [bool(bits & SLOTS_KNOWN) for bits in slots] == [True] * 8 + [False] * 4
    assert needed(pictures, 7) == [0, 7]
    assert needed(pictures, 11) == list(range(12))


@pytest.mark.parametrize(("count", "known"), [(7, True), (8, False)])
def test_order_counts_have_to_follow_from_pictures_that_are_not_left_out(count: int, known: bool) -> None:
    pictures = coded((count, refers(-count)), (1, refers(-1, unused=(count - 1,))), cycle=16)
    assert [bool(bits & SLOTS_KNOWN) for bits in buffered_references(pictures)[1]] == [True, known, True]


def test_order_counts_may_not_depend_on_whether_an_anchor_is_left_out() -> None:
    """The picture with the count -4 is 4 from the start point to which it refers, but 9 from the anchor between."""
    pictures = coded((5, refers(-5)), (-4, refers(4, unused=(9,))), cycle=16)
    assert [bool(bits & SLOTS_KNOWN) for bits in buffered_references(pictures)[1]] == [True, True, False]


def test_skipped_pictures_use_and_refresh_nothing() -> None:
    pictures = [(8, True, refers()), (6, False, SKIPPED)]
    assert buffered_references(ReferringPicture(*picture, 256) for picture in pictures)[1][1] == SLOTS_KNOWN


LAYERS = "log-level=none:pools=1:keyint=64:temporal-layers=3:bframes=8:rc-lookahead=20"


def test_pictures_of_temporal_layers_decode_from_their_references_alone(
    media_folder: Path, rng: np.random.Generator
) -> None:
    options = {"preset": "ultrafast", "x265-params": LAYERS}
    path = encode(media_folder / "layers.mkv", "libx265", options, pix_fmt="yuv420p", size=(176, 144), frames=96)
    stream = demux(path)
    truth = dict(stream.decode(range(len(stream.packets))))
    assert len(truth) == 96
    flags = packet_flags(scan(stream), np.zeros(len(stream.packets), np.bool_))
    counts = []
    for target in rng.permutation(96)[:40].tolist():
        kept, without = (decoded_for(target, kind) for kind in (flags, flags & FLAGS))
        assert dict(stream.decode(kept))[target] == truth[target]
        counts.append((len(kept), len(without)))
    with_references, without_references = np.array(counts).sum(0)
    assert with_references < 0.75 * without_references


def test_an_open_start_needs_what_comes_before_it_for_its_order_count() -> None:
    """It takes its high bits from the last anchor before it, to which it does not refer; a run may go on over it."""
    begin, *rest = coded((3, refers(-3)), (5, refers(-5)), cycle=16)
    start = ReferringPicture(7, False, refers(), 16, is_anchor=True, is_start=True)
    after = ReferringPicture(8, False, refers(-1), 16, is_anchor=True)
    found = buffered_references([begin, *rest, start, after])[1]
    assert [bool(bits & SLOTS_KNOWN) for bits in found] == [True, True, True, False, True]
    assert needed([begin, *rest, start, after], 4) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("options", ["temporal-layers=3:bframes=8:rc-lookahead=20", "bframes=4:b-pyramid=1:ref=4"])
def test_slots_do_not_depend_on_where_reading_began(media_folder: Path, options: str) -> None:
    """At depth tables, the packets of a run may have been read in several stretches, each from a start point on."""
    given = f"log-level=none:pools=1:keyint=16:min-keyint=16:scenecut=0:open-gop=1:{options}"
    path = media_folder / f"open-{len(options)}.mkv"
    encode(path, "libx265", {"x265-params": given}, pix_fmt="yuv420p", size=(176, 144), frames=96)
    stream = demux(path)
    whole = scan(stream)
    assert whole.slots is not None
    starts = np.flatnonzero(whole.start)
    assert len(starts) > 3
    assert whole.leading.any()
    for start in starts.tolist():
        part = scan(replace(stream, packets=stream.packets[start:]))
        assert part.slots is not None
        assert np.array_equal(part.slots, whole.slots[start:])
        assert not part.slots[part.leading].any()  # a run from before the start point decodes all that comes before


def decoded_for(target: int, flags: Flags) -> list[int]:
    """Return the packets that are decoded for one picture."""
    reach, wanted = Reach(flags, drop_leading=True), np.array([target])
    return reach.needed(wanted, *reach.runs(wanted))[0].tolist()


@pytest.mark.parametrize("count", [65, 5000])
def test_absurd_numbers_of_sets_are_an_error(count: int) -> None:
    with pytest.raises(ValueError, match="short-term"):
        parse_reference_sets(BitReader(write([("ue", count)])), 8)


@given(st.binary(max_size=60))
def test_any_bytes_end_in_sets_or_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        sets = parse_reference_sets(BitReader(data), 8)
        parse_slice_references(BitReader(data), sets, 100)


def test_more_long_term_pictures_than_allowed_are_refused() -> None:
    with pytest.raises(ValueError, match="33 long-term"):
        parse_reference_sets(BitReader(write([("ue", 0), (1, 1), ("ue", 33)])), 4)


def test_a_picture_buffer_does_not_grow_without_end() -> None:
    """Refer to every picture by its low bits, as long-term references may; no buffer holds more than 16."""
    every = References(short_term=(), long_term=tuple((low, False, False) for low in range(16)))
    pictures = [ReferringPicture(number, number == 0, every, 16) for number in range(40)]
    assert buffered_references(pictures)[0][0] == 17
