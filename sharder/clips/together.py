"""Join the recipes of clips of one medium, so that the pictures that they share are read and decoded once.

The joined recipe is like the recipe of a single clip with the frames of all clips. A run is joined to another run if
both begin at the same random access point, or if the other run continues across the random access point at which it
begins. All packets that the pictures of a run need are in the run, so they are in the joined run, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.records.clip import PAD, Recipe
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, coalesce

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedClips:
    """Clips of one medium that are read and decoded together.

    Attributes:
        clip: A clip that has each distinct picture of the clips once. It has no audio.
        ranks: For each clip, int32 [packets of the clip]: the rank in `clip.recipe` of the picture with each rank in
            the clip's own recipe.
    """

    clip: Clip
    ranks: list[NDArray[np.int32]]


@dataclass(slots=True, kw_only=True)
class _Run:
    """A joined run.

    Attributes:
        start: The decode order of the first packet.
        first: The number of the first packet among the packets of all recipes.
        is_open, state: As in the recipe.
        packets: The numbers of packets among the packets of all recipes. Packets of different clips may be the same.
    """

    start: int
    first: int
    is_open: bool
    state: int
    packets: list[Numbers] = field(default_factory=list)


def is_shared(clip: Clip, others: Sequence[Clip]) -> bool:
    """Return whether a clip decodes a picture that others decode too, and may be decoded together with them.

    Args:
        clip: The clip.
        others: Clips that may be decoded together, at least one.
    """
    own = _order(clip)
    if own is None or (clip.medium.media_id, clip.source) != (others[0].medium.media_id, others[0].source):
        return False
    found = [order for order in map(_order, others) if order is not None]
    return bool(np.isin(own, np.concatenate(found)).any()) if found else False


def shared_groups(clips: Sequence[Clip]) -> list[list[int]]:
    """Divide clips into groups whose clips share pictures. Return the indices of the clips of each group."""
    first = [-1 if (order := _order(clip)) is None else int(order.min()) for clip in clips]
    groups: list[list[int]] = []
    for number in sorted(range(len(clips)), key=lambda number: (clips[number].medium.media_id, first[number])):
        if groups and is_shared(clips[number], [clips[other] for other in groups[-1]]):
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def _order(clip: Clip) -> NDArray[np.int32] | None:
    """Return `packet_order` of a clip's recipe, or None if the clip must be decoded alone."""
    return None if clip.recipe.damaged else clip.recipe.packet_order


def joined(clips: Sequence[Clip]) -> JoinedClips | None:
    """Join clips of one medium, which have their packets in the same file.

    Returns:
        The joined clips. None if they cannot be decoded together: the order of their packets is not known, they have
        frames of damaged GOPs, or their recipes contradict each other.
    """
    recipes = [clip.recipe for clip in clips]
    orders = [order for order in map(_order, clips) if order is not None]
    if len(orders) < len(recipes):
        return None
    order = np.concatenate(orders).astype(np.int64)
    counts = np.array([len(one) for one in orders])
    base = np.cumsum(counts) - counts  # the number of each clip's first packet among all packets
    is_images = clips[0].medium.kind == IMAGES
    decoded = order if is_images else np.concatenate([_first_bytes(recipe) for recipe in recipes])
    size = np.concatenate([recipe.packet_size for recipe in recipes]).astype(np.int64)
    distinct, one, inverse = np.unique(order, return_index=True, return_inverse=True)
    is_consistent = len(np.unique(decoded)) == len(distinct) and (decoded[one][inverse] == decoded).all()
    if not is_consistent or (size[one][inverse] != size).any():
        return None
    runs, run_of = _joined_runs(recipes, base, order, decoded)
    # The packets of each joined run, each once, in decode order.
    packets = [_unique_by(np.concatenate(run.packets), decoded) for run in runs]
    lengths = np.array([len(each) for each in packets])
    run_first = np.cumsum(lengths) - lengths
    kept = np.concatenate(packets)
    run = np.repeat(np.arange(len(runs)), lengths)
    rank = np.empty(len(kept), np.int32)
    rank[np.lexsort((order[kept], run))] = np.arange(len(kept), dtype=np.int32)
    # A picture of a run has the same rank in the joined recipe as the packet of the joined run with the same order.
    key = run * (distinct[-1] + 1) + order[kept]
    sorted_keys = np.argsort(key)
    ranks = []
    for recipe, own, first in zip(recipes, run_of, base.tolist(), strict=True):
        wanted = own * (distinct[-1] + 1) + order[first : first + len(recipe.packet_rank)]
        found = np.empty(len(recipe.packet_rank), np.int32)
        found[recipe.packet_rank] = rank[sorted_keys[np.searchsorted(key, wanted, sorter=sorted_keys)]]
        ranks.append(found)
    recipe = Recipe(
        **_ranges(recipes, kept, run_first, is_images=is_images),
        packet_size=size[kept].astype(np.int32),
        packet_rank=rank,
        packet_order=order[kept].astype(np.int32),
        run_first=run_first.astype(np.int32),
        run_open=np.array([each.is_open for each in runs]),
        run_state=np.array([each.state for each in runs], np.int32),
        damaged=False,
        position=np.zeros(0, np.int32),
    )
    return JoinedClips(clip=_with_frames(clips, ranks, recipe), ranks=ranks)


def _joined_runs(
    recipes: Sequence[Recipe], base: Numbers, order: Numbers, decoded: Numbers
) -> tuple[list[_Run], list[Numbers]]:
    """Join the runs of recipes.

    Returns:
        (the joined runs in decode order; for each recipe, int64 [packets], the number of the joined run of each packet)
    """
    own: list[tuple[_Run, int, int]] = []  # each run, with the number of its recipe and the place of its first packet
    for number, (recipe, begin) in enumerate(zip(recipes, base.tolist(), strict=True)):
        edges = np.append(recipe.run_first, len(recipe.packet_rank)).tolist()
        for k, (first, end) in enumerate(itertools.pairwise(edges)):
            packets = np.arange(begin + first, begin + end)
            run = _Run(
                start=int(decoded[packets[0]]),
                first=int(packets[0]),
                is_open=bool(recipe.run_open[k]),
                state=int(recipe.run_state[k]),
                packets=[packets],
            )
            own.append((run, number, first))
    runs: list[_Run] = []
    run_of = [np.zeros(len(recipe.packet_rank), np.int64) for recipe in recipes]
    for run, number, first in sorted(own, key=lambda each: each[0].start):
        if runs and _continues(runs[-1], run, order, decoded):
            runs[-1].packets += run.packets
        else:
            runs.append(run)
        run_of[number][first : first + len(run.packets[0])] = len(runs) - 1
    return runs, run_of


def _continues(run: _Run, later: _Run, order: Numbers, decoded: Numbers) -> bool:
    """Return whether a later run is joined to a run."""
    if run.start == later.start:
        return (run.is_open, run.state) == (later.is_open, later.state)
    packets = np.concatenate(run.packets)
    if not (decoded[packets] == later.start).any():
        return False
    # If a run ends at an open random access point or among its leading pictures, it may lack some of them. The runs
    # remain separate, because clips with later pictures never lack them.
    behind = packets[decoded[packets] > later.start]
    return not later.is_open or bool((order[behind] > order[later.first]).any())


def _unique_by(packets: Numbers, decoded: Numbers) -> Numbers:
    """Return packets in decode order. If a packet occurs several times, the first number of it is kept."""
    return packets[np.unique(decoded[packets], return_index=True)[1]]


def _first_bytes(recipe: Recipe) -> Numbers:
    """Return int64 [packets]: the offset in the source of the first byte of each packet."""
    length, size = recipe.range_length, recipe.packet_size.astype(np.int64)
    # Where ranges and packets begin in the joined bytes of the recipe.
    begin, at = np.cumsum(length) - length, np.cumsum(size) - size
    number = np.searchsorted(begin, at, side="right") - 1
    first: Numbers = recipe.range_offset[number] + at - begin[number]
    return first


def _ranges(recipes: Sequence[Recipe], kept: Numbers, run_first: Numbers, *, is_images: bool) -> dict[str, Any]:
    """Return the byte ranges of some packets, as fields of a recipe.

    Args:
        recipes: The recipes.
        kept: int64, the numbers of the packets among the packets of all recipes.
        run_first: int64 [runs], the index in `kept` of the first packet of each run. No range continues across it.
        is_images: Whether packets are images, each of which has a range of its own.
    """
    if is_images:
        paths = [name for recipe in recipes for name in recipe.range_path or []]
        return {
            "range_offset": np.concatenate([recipe.range_offset for recipe in recipes])[kept],
            "range_length": np.concatenate([recipe.range_length for recipe in recipes])[kept],
            "range_path": [paths[number] for number in kept.tolist()] if paths else None,
            "range_crc32": np.concatenate([recipe.range_crc32 for recipe in recipes])[kept],
        }
    # A packet may consist of several pieces, since ranges are cut at both ends of packets.
    offset, length, packet, done = [], [], [], 0
    for recipe in recipes:
        size = recipe.packet_size.astype(np.int64)
        begin, at = np.cumsum(recipe.range_length) - recipe.range_length, np.cumsum(size) - size
        cuts = np.union1d(begin, at)
        number = np.searchsorted(begin, cuts, side="right") - 1
        offset.append(recipe.range_offset[number] + cuts - begin[number])
        length.append(np.diff(cuts, append=size.sum()))
        packet.append(np.searchsorted(at, cuts, side="right") - 1 + done)
        done += len(size)
    of_piece = np.concatenate(packet)
    first = np.searchsorted(of_piece, kept)
    count = np.searchsorted(of_piece, kept, side="right") - first
    before = np.cumsum(count) - count
    piece = np.arange(count.sum()) - np.repeat(before, count) + np.repeat(first, count)
    found = coalesce(np.concatenate(offset)[piece], np.concatenate(length)[piece], before[run_first])
    return {"range_offset": found[0], "range_length": found[1]}


def _with_frames(clips: Sequence[Clip], ranks: Sequence[NDArray[np.int32]], recipe: Recipe) -> Clip:
    """Return a clip with each distinct picture of clips once, in the order of their ranks."""
    real = [clip.recipe.position != PAD for clip in clips]
    rank = np.concatenate([own[clip.recipe.position[some]] for own, clip, some in zip(ranks, clips, real, strict=True)])
    position, first = np.unique(rank, return_index=True)
    fields: dict[str, Any] = {
        name: np.concatenate([getattr(clip, name)[some] for clip, some in zip(clips, real, strict=True)])[first]
        for name in ("frames", "mask", "pts", "seconds")
    }
    return replace(
        clips[0],
        **fields,
        md5=None,
        view_away_seconds=None,
        audio=None,
        recipe=replace(recipe, position=position.astype(np.int32)),
    )
