"""What must hold for every Pictures that a scanner returns, and for the timeline and the plans made from it."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.bitstream.base import OPEN_START, BitstreamError, Pictures, segments
from framedex.indexer.parts.packets import Packets
from framedex.indexer.timeline import (
    CLOSED,
    CONTINUES,
    DAMAGED,
    MAX_REORDERED,
    SKIPPED,
    START,
    UNSHOWN,
    Flags,
    Pts,
    check_reorder_depth,
    output_order,
    packet_flags,
    presentation_order,
    settle_timestamps,
    summarise,
)
from framedex.records.clip import NO_PTS, Recipe
from framedex.sharder.planning.planner import Planner

MAX_PLANS = 12  # clips planned of one input
FARTHEST = 1 << 62  # of a container's timestamps


def check_pictures(pictures: Pictures, packets: int, data: bytes) -> None:
    """Check the result of a scanner for this many packets, and everything that is made from it.

    `data` determines the timestamps.
    """
    columns = [
        column for column in map(pictures.__getattribute__, Pictures.__slots__) if isinstance(column, np.ndarray)
    ]
    assert {column.shape for column in columns} == {(packets,)}, [column.shape for column in columns]
    assert pictures.start.max() <= OPEN_START
    assert pictures.states[0] == b""
    assert pictures.state.min() >= 0
    assert pictures.state.max() < len(pictures.states)
    assert not (pictures.start[0] and pictures.state[0]), "packet 0 needs a state"
    assert not pictures.continues[0]
    random = np.random.default_rng(zlib.crc32(data))
    hidden = random.random(packets) < random.choice((0.0, 0.1))
    flags = packet_flags(pictures, hidden)
    resets = (random.random(packets) < random.choice((0.0, 0.1))) & ((flags & CLOSED) != 0)
    flags = packet_flags(pictures, hidden, resets)
    orphans = (segments(pictures.start) < 0) & ((flags & UNSHOWN) == 0)
    assert (flags[orphans] & DAMAGED).all(), "a sound picture that no start point precedes"
    leading = np.flatnonzero(pictures.leading & ((flags & UNSHOWN) == 0))
    assert (pictures.start[segments(pictures.start)[leading]] == OPEN_START).all(), (
        "a leading picture of a closed start"
    )
    pts, dts, duration = timestamps(pictures, flags, random)
    try:
        pts, _ = settle_timestamps(pts, dts, duration, flags, pictures, stated=bool(random.integers(2)))
        check_reorder_depth(flags, pictures, MAX_REORDERED)
    except BitstreamError:
        return
    if not (flags & START).any() or not ((flags & UNSHOWN) == 0).any():
        return  # the prober refuses these
    summary = summarise(pts, flags, last_duration=0, time_base_seconds=1e-3)
    assert summary.frame_count == np.count_nonzero((flags & UNSHOWN) == 0)
    check_plans(pictures, pts, flags, random)


def timestamps(pictures: Pictures, flags: Flags, random: np.random.Generator) -> tuple[Pts, Pts, Pts]:
    """Return (pts, dts, duration) as a container may state them."""
    n = len(flags)
    dts = np.arange(n, dtype=np.int64)
    duration = random.integers(-1, 3, n)
    kind = random.integers(6)
    if kind == 0:
        return np.full(n, NO_PTS), np.full(n, NO_PTS) if random.integers(2) else dts, duration
    if kind == 1:
        return random.integers(0, n + 1, n), dts, duration
    if kind == 2:
        return random.integers(-FARTHEST, FARTHEST, n), random.integers(-FARTHEST, FARTHEST, n), duration
    order = output_order(flags, pictures)
    pts = np.zeros(n, np.int64)
    pts[order] = 2 * np.arange(len(order))  # kind 5: as the bitstream has it
    if kind == 3:
        pts[random.random(n) < 0.3] = NO_PTS
    elif kind == 4:
        pts[order[len(order) // 2 :]] -= len(order)  # joined recordings
    return pts, dts, duration


def check_plans(pictures: Pictures, pts: Pts, flags: Flags, random: np.random.Generator) -> None:
    """Check that every presented frame can be planned, alone and with others."""
    n = len(pts)
    packets = Packets(
        pts=pts,
        offset=2 * np.arange(n, dtype=np.int64),  # so that every packet is a range of its own
        size=np.ones(n, np.int64),
        flags=flags,
        read=np.ones(n, np.bool_),
        state=pictures.state,
    )
    order = presentation_order(pts, flags)
    frames = np.arange(len(order))
    for keep_damaged in (False, True):
        planner = Planner(packets, drop_leading=bool(random.integers(2)), keep_damaged=keep_damaged)
        chosen = random.permutation(frames)[:MAX_PLANS]
        for clip in (frames, random.permutation(chosen), *chosen[:, None]):
            try:
                recipe = planner.plan(clip)
            except PolicyError:  # damage, or a reset between a leading picture and what it needs
                continue
            check_recipe(recipe, flags, order[clip])


def check_recipe(recipe: Recipe, flags: Flags, wanted: NDArray[np.int64]) -> None:
    """Check a recipe of `check_plans`. `wanted`: int64, the packet of each frame of the clip."""
    kept = recipe.range_offset // 2
    assert (np.diff(kept) > 0).all(), "packets do not ascend"
    pictures = kept[(flags[kept] & CONTINUES) == 0]
    assert len(pictures) == len(recipe.packet_rank)
    assert (flags[pictures[recipe.run_first]] & START).all(), "a run that begins at no start point"
    place = np.argsort(recipe.packet_rank)
    assert np.array_equal(pictures[place][recipe.position], wanted), "another frame"
    # A decoder gives no picture for packets that are skipped, so that they must not take the place of one.
    assert not (flags[wanted] & SKIPPED).any()
