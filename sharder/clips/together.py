"""Join the recipes of clips of one medium, so that the pictures that they share are read and decoded once.

The joined recipe is like the recipe of a single clip with the frames of all clips. A run is joined to another run if
both begin at the same random access point, or if the other run continues across the random access point at which it
begins. All packets that the pictures of a run need are in the run, so they are in the joined run, too.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from framedex.errors import DecodeError
from framedex.records.clip import PAD, Recipe
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, coalesce
from framedex.sharder.reading import EncodedClip

Numbers = NDArray[np.int64]
Picture = TypeVar("Picture")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedClips:
    """Clips of one medium that are read and decoded together.

    Attributes:
        clips: The clips.
        whole: A clip with the pictures of all clips. If runs could not be joined, it has some pictures twice. It has
            neither audio nor padding.
        ranks: For each clip, int32 [packets of the clip]: the rank in `whole` of the picture with each rank in the
            clip's own recipe.
    """

    clips: Sequence[Clip]
    whole: Clip
    ranks: list[NDArray[np.int32]]

    def complete(
        self, pictures: Iterable[tuple[int, Picture]], take: Callable[[list[tuple[int, int]], Picture], None]
    ) -> Iterator[int]:
        """Give the pictures of a decoder to their clips, and yield the index of each clip that is complete.

        A picture that no clip wants may be corrupt, and clips may refer to it. A decoder shows that only when it
        outputs this picture, which may be after all pictures of the clip. So a clip is complete when the decoder has
        passed all pictures of the clip's packets.

        Args:
            pictures: (rank in `whole`, picture) of each wanted picture. Ranks ascend, unless the medium has hidden
                pictures in an unknown order. The iterator raises an error for a corrupt picture.
            take: A function that is called with each picture. Its arguments are the clips that show the picture, as
                (index of the clip, rank of the picture in the clip's recipe), and the picture.

        Raises:
            DecodeError: A picture of a clip is missing.
        """
        users: dict[int, list[tuple[int, int]]] = {}  # by rank in `whole`, the first argument of `take`
        for number, (clip, ranks) in enumerate(zip(self.clips, self.ranks, strict=True)):
            for rank in np.unique(clip.recipe.position[clip.recipe.position != PAD]).tolist():
                users.setdefault(int(ranks[rank]), []).append((number, rank))
        missing = Counter(number for some in users.values() for number, _ in some)
        last = [int(ranks.max()) for ranks in self.ranks]
        waiting = deque(sorted(range(len(self.clips)), key=last.__getitem__))
        in_order = not self.whole.medium.hidden_unordered
        for rank, picture in pictures:
            # All pictures with lower ranks were output before, or are missing.
            while in_order and waiting and last[waiting[0]] < rank:
                yield self._checked(waiting.popleft(), missing)
            take(users[rank], picture)
            missing.subtract(number for number, _ in users[rank])
        for number in waiting:
            yield self._checked(number, missing)

    def _checked(self, number: int, missing: Counter[int]) -> int:
        """Return the index of a clip if it lacks no pictures. Raise DecodeError otherwise."""
        if missing[number]:
            clip = self.clips[number]
            raise DecodeError(f"clip {clip.clip_id}: {missing[number]} pictures are missing", where=clip.medium.path)
        return number

    def encoded(self, number: int, whole: EncodedClip) -> EncodedClip:
        """Return the packets of one clip from the packets of all clips, as if the clip had been read alone.

        Args:
            number: The index of the clip.
            whole: The packets of `whole`.
        """
        own, together = self.clips[number].recipe, self.whole.recipe
        states = self.whole.medium.states
        packet_of = np.argsort(together.packet_rank)  # by rank in `whole`
        # The first packet of a run begins with the bytes of the run's state, which the same packet of the other recipe
        # may lack.
        given = dict(zip(together.run_first.tolist(), (len(states[n]) for n in together.run_state), strict=True))
        needed = dict(zip(own.run_first.tolist(), (states[n] for n in own.run_state), strict=True))
        pieces, first = [], whole.packet_first.tolist()
        for packet, rank in enumerate(own.packet_rank.tolist()):
            other = int(packet_of[self.ranks[number][rank]])
            content = whole.payload[first[other] + given.get(other, 0) : first[other + 1]]
            pieces.append(needed.get(packet, b"") + content.tobytes())
        sizes = [len(piece) for piece in pieces]
        payload = np.frombuffer(b"".join(pieces), np.uint8)
        return EncodedClip(payload=payload, packet_first=np.cumsum([0, *sizes]))


def shared_part(clip: Clip, others: Sequence[Clip]) -> float:
    """Return the share of a clip's packets that others decode too. It is 0 if they cannot be decoded together.

    Args:
        clip: The clip.
        others: Clips that may be decoded together, at least one.
    """
    own = _order(clip)
    found = [order for order in map(_order, others) if order is not None]
    if own is None or not found or not _have_one_file([clip, others[0]]):
        return 0.0
    return float(np.isin(own, np.concatenate(found)).mean())


def shared_groups(clips: Sequence[Clip]) -> list[list[int]]:
    """Divide clips into groups whose clips share pictures. Return the indices of the clips of each group."""
    first = [-1 if (order := _order(clip)) is None else int(order.min()) for clip in clips]
    groups: list[list[int]] = []
    for number in sorted(range(len(clips)), key=lambda number: (clips[number].medium.media_id, first[number])):
        if groups and shared_part(clips[number], [clips[other] for other in groups[-1]]):
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def _order(clip: Clip) -> NDArray[np.int32] | None:
    """Return `packet_order` of a clip's recipe, or None if the clip must be decoded alone."""
    has_pictures = bool((clip.recipe.position != PAD).any())
    return clip.recipe.packet_order if has_pictures and not clip.recipe.damaged else None


def _have_one_file(clips: Sequence[Clip]) -> bool:
    """Return whether clips are of one medium and have their packets in the same file."""
    return all((clip.medium.media_id, clip.source) == (clips[0].medium.media_id, clips[0].source) for clip in clips)


def joined(clips: Sequence[Clip]) -> JoinedClips | None:
    """Join clips.

    Returns:
        The joined clips. None if they cannot be decoded together: they are of different media, the order of their
        packets is not known, they have frames of damaged GOPs, or their recipes contradict each other.
    """
    orders = [order.astype(np.int64) for order in map(_order, clips) if order is not None]
    if len(orders) < len(clips) or not _have_one_file(clips):
        return None
    recipes, is_images = [clip.recipe for clip in clips], clips[0].medium.kind == IMAGES
    pieces = _Pieces.of(recipes)
    base = np.cumsum([0, *map(len, orders)])  # the number of each clip's first packet among the packets of all clips
    decode_orders = orders if is_images else np.split(pieces.first_bytes, base[1:-1])
    if not _agree(recipes, pieces, orders, decode_orders):
        return None
    order, decoded = np.concatenate(orders), np.concatenate(decode_orders)
    size = np.concatenate([recipe.packet_size for recipe in recipes])
    runs, run_of = _joined_runs(recipes, base, order, decoded)
    # The packets of each joined run, each once, in decode order.
    packets = [own[np.unique(decoded[own], return_index=True)[1]] for own in (run.packets for run in runs)]
    lengths = np.array([len(own) for own in packets])
    run_first = np.cumsum(lengths) - lengths
    kept = np.concatenate(packets)
    run = np.repeat(np.arange(len(runs)), lengths)
    rank = np.empty(len(kept), np.int32)
    rank[np.lexsort((order[kept], run))] = np.arange(len(kept), dtype=np.int32)
    # A picture of a run is the picture of the joined run with the same order.
    runs_apart = order.max() + 1
    key = run * runs_apart + order[kept]
    by_key = np.argsort(key)
    ranks = []
    for recipe, own_runs, own in zip(recipes, run_of, orders, strict=True):
        places = np.searchsorted(key, own_runs * runs_apart + own, sorter=by_key)
        found = np.empty(len(own), np.int32)
        found[recipe.packet_rank] = rank[by_key[places]]
        ranks.append(found)
    recipe = Recipe(
        **_ranges(recipes, pieces, kept, run_first, is_images=is_images),
        packet_size=size[kept].astype(np.int32),
        packet_rank=rank,
        packet_order=order[kept].astype(np.int32),
        run_first=run_first.astype(np.int32),
        run_open=np.array([each.is_open for each in runs]),
        run_state=np.array([each.state for each in runs], np.int32),
        damaged=False,
        position=np.zeros(0, np.int32),
    )
    return JoinedClips(clips=clips, whole=_with_frames(clips, ranks, recipe), ranks=ranks)


def _agree(
    recipes: Sequence[Recipe], pieces: _Pieces, orders: Sequence[Numbers], decode_orders: Sequence[Numbers]
) -> bool:
    """Return whether recipes, which are not trusted, agree about the packets that they share.

    Args:
        recipes: The recipes.
        pieces: The pieces of their packets.
        orders: For each recipe, int64 [packets], `packet_order`.
        decode_orders: For each recipe, int64 [packets], numbers that ascend in decode order.
    """
    # In each run, packets must be in decode order, and a recipe must have each picture once.
    for recipe, own, decoded in zip(recipes, orders, decode_orders, strict=True):
        is_new_run = np.isin(np.arange(1, len(own)), recipe.run_first)
        if len(np.unique(own)) < len(own) or not (is_new_run | (decoded[1:] > decoded[:-1])).all():
            return False
    # Packets with the same order must be the same packet.
    distinct, first, inverse = np.unique(np.concatenate(orders), return_index=True, return_inverse=True)
    same, decoded = first[inverse], np.concatenate(decode_orders)
    facts: list[NDArray[Any]] = [decoded, np.concatenate([one.packet_size for one in recipes]), pieces.count]
    if all(recipe.range_crc32 is not None for recipe in recipes):  # images
        facts += [np.concatenate([recipe.range_crc32 for recipe in recipes]), np.array(_paths(recipes))]
    if len(np.unique(decoded)) < len(distinct) or any((fact[same] != fact).any() for fact in facts):
        return False
    found = pieces.of_packets(same)
    return bool((pieces.offset[found] == pieces.offset).all() and (pieces.length[found] == pieces.length).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run of a recipe, or several joined runs.

    Attributes:
        is_open, state: As in the recipe.
        packets: The numbers of packets among the packets of all clips. The first one is the random access point.
            Several numbers may stand for the same packet.
    """

    is_open: bool
    state: int
    packets: Numbers


def _joined_runs(
    recipes: Sequence[Recipe], base: Numbers, order: Numbers, decoded: Numbers
) -> tuple[list[_Run], list[Numbers]]:
    """Join the runs of recipes.

    Returns:
        (the joined runs in decode order; for each recipe, int64 [packets], the number of the joined run of each packet)
    """
    own: list[tuple[int, slice, _Run]] = []  # the number of a recipe, the packets of a run in it, and the run
    for number, recipe in enumerate(recipes):
        edges = [*recipe.run_first.tolist(), len(recipe.packet_rank)]
        for (first, end), is_open, state in zip(
            itertools.pairwise(edges), recipe.run_open.tolist(), recipe.run_state.tolist(), strict=True
        ):
            packets = np.arange(base[number] + first, base[number] + end)
            own.append((number, slice(first, end), _Run(is_open=is_open, state=state, packets=packets)))
    runs: list[_Run] = []
    run_of = [np.zeros(len(recipe.packet_rank), np.int64) for recipe in recipes]
    for number, place, run in sorted(own, key=lambda each: decoded[each[2].packets[0]]):
        if runs and _continues(runs[-1], run, order, decoded):
            runs[-1] = replace(runs[-1], packets=np.concatenate([runs[-1].packets, run.packets]))
        else:
            runs.append(run)
        run_of[number][place] = len(runs) - 1
    return runs, run_of


def _continues(run: _Run, later: _Run, order: Numbers, decoded: Numbers) -> bool:
    """Return whether a later run is joined to a run."""
    start = decoded[later.packets[0]]
    if decoded[run.packets[0]] == start:
        return (run.is_open, run.state) == (later.is_open, later.state)
    if not (decoded[run.packets] == start).any():
        return False
    # If a run ends at an open random access point or among its leading pictures, it may lack some of them. The runs
    # remain separate, because clips with later pictures never lack them.
    behind = run.packets[decoded[run.packets] > start]
    return not later.is_open or bool((order[behind] > order[later.packets[0]]).any())


def _paths(recipes: Sequence[Recipe]) -> list[str]:
    """Return the path of each packet of recipes of images. It is empty for images that are not loose files."""
    return [path for recipe in recipes for path in recipe.range_path or [""] * len(recipe.packet_size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pieces:
    """The byte ranges of recipes, cut at the beginnings of packets.

    A packet has several pieces if its bytes are not contiguous in the source, and none if it is empty.

    Attributes:
        offset, length: The offset of each piece in the source, and its length, each int64 [pieces].
        first, count: The first piece of each packet of all recipes, and the number of its pieces, each int64 [packets].
    """

    offset: Numbers
    length: Numbers
    first: Numbers
    count: Numbers

    @classmethod
    def of(cls, recipes: Sequence[Recipe]) -> _Pieces:
        offset, length, packet, done = [], [], [], 0
        for recipe in recipes:
            size = recipe.packet_size.astype(np.int64)
            # Where ranges and packets begin in the joined bytes of the recipe.
            ranges, packets = np.cumsum(recipe.range_length) - recipe.range_length, np.cumsum(size) - size
            cuts = np.union1d(ranges, packets)
            number = np.searchsorted(ranges, cuts, side="right") - 1
            offset.append(recipe.range_offset[number] + cuts - ranges[number])
            length.append(np.diff(cuts, append=size.sum()))
            packet.append(np.searchsorted(packets, cuts, side="right") - 1 + done)
            done += len(size)
        of_packet = np.concatenate(packet)
        first = np.searchsorted(of_packet, np.arange(done))
        return cls(
            offset=np.concatenate(offset),
            length=np.concatenate(length),
            first=first,
            count=np.diff(first, append=len(of_packet)),
        )

    @property
    def first_bytes(self) -> Numbers:
        """The offset of the first byte of each packet, or of the next packet if it is empty, int64 [packets]."""
        return self.offset[np.minimum(self.first, len(self.offset) - 1)]

    def of_packets(self, packets: Numbers) -> Numbers:
        """Return int64: the pieces of some packets, in the order of the packets."""
        count = self.count[packets]
        before = np.cumsum(count) - count
        pieces: Numbers = np.arange(count.sum()) - np.repeat(before, count) + np.repeat(self.first[packets], count)
        return pieces


def _ranges(
    recipes: Sequence[Recipe], pieces: _Pieces, kept: Numbers, run_first: Numbers, *, is_images: bool
) -> dict[str, Any]:
    """Return the byte ranges of some packets, as fields of a recipe.

    Args:
        recipes: The recipes.
        pieces: The pieces of their packets.
        kept: int64, the numbers of the packets among the packets of all recipes.
        run_first: int64 [runs], the index in `kept` of the first packet of each run. No range continues across it.
        is_images: Whether packets are images, each of which has a range of its own.
    """
    if is_images:
        paths = _paths(recipes)
        return {
            "range_offset": np.concatenate([recipe.range_offset for recipe in recipes])[kept],
            "range_length": np.concatenate([recipe.range_length for recipe in recipes])[kept],
            "range_path": [paths[number] for number in kept.tolist()] if paths[0] else None,
            "range_crc32": np.concatenate([recipe.range_crc32 for recipe in recipes])[kept],
        }
    found = pieces.of_packets(kept)
    before = np.cumsum(pieces.count[kept]) - pieces.count[kept]
    offset, length = coalesce(pieces.offset[found], pieces.length[found], before[run_first])
    return {"range_offset": offset, "range_length": length}


def _with_frames(clips: Sequence[Clip], ranks: Sequence[NDArray[np.int32]], recipe: Recipe) -> Clip:
    """Return a clip with the pictures that clips want, in the order of their ranks in the joined recipe."""
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
