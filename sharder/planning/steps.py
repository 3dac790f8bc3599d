"""Plan wanted clips. Each wanted clip becomes a planned clip, or a failure with the reason why planning is impossible.

Some containers (TS, PS, ASF, Ogg …) do not store packets as byte ranges of the file. The packets of such a medium are
demuxed once into a spool: a file in the folder of the unfinished dataset that has all packets of the stream, one after
the other. Planning then works as for any other medium. A spool is removed if other spools need the disk space, or when
the run ends.

A plan is divided into pieces, which can be planned in different processes. A piece has the clips that a policy selects
from one medium or one scene, or a group of explicit clips.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import av
import numpy as np
from numpy.typing import NDArray

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import DamageError, PolicyError, StaleError, UncuttableError
from framedex.execution.engine import Outcome
from framedex.files.outputs import fingerprint
from framedex.indexer.containers import demux_packets, open_container
from framedex.indexer.parts.index import Index
from framedex.records.clip import Failure
from framedex.sharder.clips.clip import (
    CONTENT_ALONE,
    ByteSource,
    Medium,
    PlannedClip,
    WantedClip,
    internal_failure,
    stale,
)
from framedex.sharder.clips.samples import PlannedStep
from framedex.sharder.planning.indexed_medium import IndexedMedium, OpenMedia
from framedex.sharder.planning.units import Unit, UnitClip, Units
from framedex.sharder.policies.policy import Policy
from framedex.sharder.policies.sampling import Choose, Missed
from framedex.sharder.reading import local_copy
from framedex.sharder.selection.explicit_clips import ExplicitClip, ExplicitClips, Outside, UriResolver, frames_of
from framedex.sharder.selection.mentions import Mention
from framedex.storage.reader import ASIDE

MAX_BYTES = 4 << 30  # maximum total size of the spools that exist at a time; a single larger spool may exist alone


class Spools:
    """A context manager for the spools of a run, which removes all spools on exit.

    Args:
        folder: The folder of the spools.
        needed: Whether only media whose packets are not byte ranges of their file are packed (`--pack needed`). If
            True, no other medium gets a spool.
        settle: A function that waits until all planned clips are copied. It is called before a spool is removed.
    """

    def __init__(self, folder: Path, *, needed: bool, settle: Callable[[], None]) -> None:
        self._folder, self._needed, self._settle = folder, needed, settle
        self._made: collections.OrderedDict[str, ByteSource] = collections.OrderedDict()
        self._failed: dict[str, StaleError] = {}

    def __enter__(self) -> Spools:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._settle()
        while self._made:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        Path(self._made.popitem(last=False)[1].path).unlink(missing_ok=True)

    def make_addressable(self, medium: IndexedMedium) -> None:
        """Make a spool for each stream of a medium whose packets are not byte ranges of its file.

        Raises:
            StaleError: The source has changed since it was indexed.
            OSError: A spool cannot be written.
        """
        if self._needed and medium.video["byte_addressable"]:
            return
        facts, audio = medium.medium, medium.audio_packets
        if not medium.addressable:
            medium.spooled(self._spool(facts.media_id, facts, facts.stream_index, medium.packets.size))
        if audio is not None and audio.offset is None:
            assert facts.audio_stream_index is not None  # the medium has audio packets
            name = f"{facts.media_id}-audio"
            medium.audio_spooled(audio, self._spool(name, facts, facts.audio_stream_index, audio.size))

    def _spool(self, identity: str, medium: Medium, stream: int, size: NDArray[np.int64]) -> ByteSource:
        """Return the spool of a stream. Write it first if it does not exist."""
        if identity in self._failed:
            raise self._failed[identity]
        if identity not in self._made:
            while self._made and sum(spool.size_bytes for spool in self._made.values()) + size.sum() > MAX_BYTES:
                self._settle()
                self._remove_oldest()
            path = self._folder / f"{ASIDE}spool-{identity}"
            try:
                self._made[identity] = spool(medium, stream, size, path)
            except StaleError as error:
                path.unlink(missing_ok=True)
                self._failed[identity] = error
                raise
        self._made.move_to_end(identity)
        return self._made[identity]


def spool(medium: Medium, stream: int, size: NDArray[np.int64], path: Path) -> ByteSource:
    """Write all packets of one stream of a medium into a spool.

    Args:
        medium: The medium.
        stream: The index of the stream in the container.
        size: int64 [packets], the size of each packet in bytes, according to the index.
        path: The path of the spool.

    Raises:
        StaleError: The source has changed since it was indexed.
        OSError: The spool cannot be written.
    """
    number = 0
    with local_copy(medium) as copy, open(path, "wb") as file:
        try:
            with open_container(copy.path) as container:
                for packet in demux_packets(container, stream):
                    if number >= len(size) or packet.size != size[number]:
                        raise stale(medium.path, f"packet {number} has {packet.size} bytes")
                    file.write(bytes(packet))
                    number += 1
        except av.error.FFmpegError as error:
            if number != len(size):  # a file with a damaged end is indexed up to the damage
                raise stale(medium.path, f"{number} packets, then {error}") from error
        if number != len(size):
            raise stale(medium.path, f"{number} packets, not {len(size)}")
    with open(path, "rb") as file:
        mark = fingerprint(file.fileno(), os.fstat(file.fileno()).st_size)
    return ByteSource(path=str(path), size_bytes=int(size.sum()), mtime_ns=CONTENT_ALONE, fingerprint=mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanItem:
    """A wanted clip that is not planned yet, with its medium.

    Attributes:
        medium: The medium of the clip.
        wanted: The wanted clip.
        done: The value of the progress bar after this item. The bar counts media or scenes, or explicit clips.
    """

    medium: IndexedMedium
    wanted: WantedClip
    done: int


# Items whose packet headers are read in one pass per medium. If a clip cannot be made, its item is a step with the
# failure.
ReadGroup = list[PlanItem | PlannedStep]


def skip_items(groups: Iterable[ReadGroup], done: int) -> Iterator[ReadGroup]:
    """Yield the groups of a plan, without the first `done` items of the plan."""
    for group in groups:
        if done < len(group):
            yield group[done:]
        done = max(0, done - len(group))


def plan(groups: Iterable[ReadGroup], spools: Spools | None) -> Iterator[PlannedStep]:
    """Plan the items of groups, and yield a step with the planned clip or the failure for each item.

    Args:
        groups: The groups of items.
        spools: The spools for packets that are not byte ranges of their file. If None, no spools are made.
    """
    for group in groups:
        broken = _prepare(group)
        for item in group:
            if isinstance(item, PlannedStep):
                yield item
                continue
            medium, wanted = item.medium.medium, item.wanted
            error = broken.get(medium.media_id)
            yield PlannedStep(
                outcome=plan_clip(item.medium, wanted, spools)
                if error is None
                else internal_failure(wanted.clip_id, medium.name, error),
                done=item.done,
            )


def _prepare(group: ReadGroup) -> dict[str, Exception]:
    """Read the packet headers that the clips of a group need, in one pass for each medium with several clips.

    Returns:
        {media_id: error} of the media for which framedex itself failed (a bug).
    """
    broken: dict[str, Exception] = {}
    together: dict[str, tuple[IndexedMedium, list[WantedClip]]] = {}
    for item in group:
        if isinstance(item, PlanItem):
            together.setdefault(item.medium.medium.media_id, (item.medium, []))[1].append(item.wanted)
    for medium, clips in together.values():
        if len(clips) > 1:
            try:
                medium.prepare(clips)
            except MEDIUM_ERRORS:
                raise
            except Exception as error:
                broken[medium.medium.media_id] = error
    return broken


def wanted_clip(clip: UnitClip) -> WantedClip:
    """Convert a clip that a policy selected to a wanted clip."""
    sampled = clip.sampled
    return WantedClip(
        clip_id=f"{clip.mention.name}-{sampled.number:06d}",
        frames=sampled.frames,
        mask=sampled.mask,
        columns=clip.mention.columns,
        stretch=sampled.stretch,
        anchor_frame=sampled.anchor,
        multiview=clip.multiview,
    )


def missed_clip(uri: str, mention: Mention, missed: Missed) -> Failure:
    """Return the failure for a clip that a policy wanted, but could not make, from a mention (a row of the listing)."""
    clip_id = mention.name if missed.number is None else f"{mention.name}-{missed.number:06d}"
    message = missed.message
    if missed.kind == "row" and mention.file_row is not None:  # the same wording as in errors of `framedex index`
        message = f"row {mention.file_row} of the listing: {message}"
    return Failure(clip_id=clip_id, uri=uri, kind=missed.kind, message=message, counts=missed.counts)


def lost_clip(outcome: Outcome[Any, Any], clip_id: str, uri: str | None) -> Failure:
    """Return the failure for a clip whose worker process gave no result."""
    kind, message = outcome.kind or "error", outcome.message or ""
    return Failure(clip_id=clip_id, uri=uri, kind=kind, message=message, traceback=outcome.traceback)


def plan_clip(medium: IndexedMedium, wanted: WantedClip, spools: Spools | None = None) -> PlannedClip | Failure:
    """Plan a clip. Return the planned clip, or a failure if it cannot be planned.

    Args:
        medium: The medium of the clip.
        wanted: The wanted clip.
        spools: The spools for packets that are not byte ranges of their file. If None, no spools are made.
    """
    try:
        if spools is not None:
            spools.make_addressable(medium)
        return medium.clip(wanted)
    except (PolicyError, StaleError) as error:
        kinds: dict[type, str] = {DamageError: "damaged", StaleError: "stale", UncuttableError: "uncuttable"}
        kind = kinds.get(type(error), "policy" if wanted.asked_in is None else "request")
        return Failure(
            clip_id=wanted.clip_id,
            uri=medium.medium.name,
            kind=kind,
            message=error.text() if wanted.asked_in is None else f"{wanted.asked_in}: {error}",
            counts=kind != "damaged" or wanted.asked_in is not None,
        )
    except MEDIUM_ERRORS:
        raise
    except Exception as error:  # a bug that one clip triggers must not end the run for all other clips
        return internal_failure(wanted.clip_id, medium.medium.name, error)


REQUESTS_AT_ONCE = 256
NO_MEDIUM = "the index has no such medium"
PIECE_FACTS = ("frame_count", "uri", "member")


class Piece(Protocol):
    """A piece of a plan. Pieces can be pickled."""

    @property
    def weight(self) -> int:
        """An estimate of the maximum number of clips of the piece."""
        ...

    def items(self, media: OpenMedia) -> ReadGroup:
        """Return the items of the piece: wanted clips, and failures. Raises PolicyError."""
        ...

    def alone(self) -> list[Piece]:
        """Return the smallest pieces into which this piece can be divided, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPiece:
    """A piece with the clips that a policy selects from one scene, or from all rows of the listing for one medium.

    Attributes:
        policy: The policy.
        units: The scene, or the rows.
        number: The position of the piece in the plan, from 1 on.
        weight: An estimate of the maximum number of clips of the piece.
    """

    policy: Policy
    units: list[Unit]
    number: int
    weight: int

    def items(self, media: OpenMedia) -> ReadGroup:
        # Scenes may share media.
        open_medium = functools.lru_cache(1)(media.open) if self.units[0].scene is None else media.of
        found: ReadGroup = []
        for unit in self.units:
            sampling = unit.sample(self.policy, lambda media_id: open_medium(media_id).timeline)
            for clip in sampling.clips:
                medium = open_medium(clip.mention.media_id)
                found.append(PlanItem(medium=medium, wanted=wanted_clip(clip), done=self.number))
            for mention, missed in sampling.missed:
                uri = unit.stray_uri or open_medium(mention.media_id).medium.name
                found.append(PlannedStep(outcome=missed_clip(uri, mention, missed), done=self.number))
        return found

    def alone(self) -> list[Piece]:
        return [self]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitPiece:
    """A piece with some explicit clips.

    Attributes:
        requests: The requested clips, each with the media_id of its medium. The media_id is None if the index does not
            have the medium.
        choose: The rule that maps a time to a frame.
        outside: The treatment of frames and times outside of a video, for clips without a key `outside`.
        number: The position of the first clip in the plan, from 1 on.
    """

    requests: list[tuple[str | None, ExplicitClip]]
    choose: Choose
    outside: Outside
    number: int

    @property
    def weight(self) -> int:
        return len(self.requests)

    def items(self, media: OpenMedia) -> ReadGroup:
        return [self._find(*request, media, done) for done, request in enumerate(self.requests, self.number)]

    def _find(self, identity: str | None, request: ExplicitClip, media: OpenMedia, done: int) -> PlanItem | PlannedStep:
        """Return the wanted clip of a request with its medium. If frames are not available, return a failure."""
        line, clip_id = f"line {request.line}", request.clip_id
        try:
            if identity is None:
                stream = {} if request.stream is None else {"found": f"stream {request.stream}"}
                remedy = "index it first; a medium inside a tar or a Parquet file is called uri/member"
                raise PolicyError(NO_MEDIUM, **stream, remedy=remedy)
            medium = media.of(identity)
            frames, mask = frames_of(request, medium.timeline, self.choose, self.outside)
        except PolicyError as error:
            failure = Failure(clip_id=clip_id, uri=request.uri, kind="request", message=f"{line}: {error}")
            return PlannedStep(outcome=failure, done=done)
        wanted = WantedClip(clip_id=clip_id, frames=frames, mask=mask, columns=request.columns, asked_in=line)
        return PlanItem(medium=medium, wanted=wanted, done=done)

    def alone(self) -> list[Piece]:
        return [
            replace(self, requests=[request], number=number)
            for number, request in enumerate(self.requests, self.number)
        ]


def policy_pieces(units: Units, policy: Policy, some: Iterable[int] | None = None) -> Iterator[Piece]:
    """Yield the pieces of a policy's plan: one per medium, or one per scene.

    Args:
        units: The units of the policy. Their table must have the columns PIECE_FACTS of `videos`.
        policy: The policy.
        some: The numbers of the units to plan. If None, all units are planned.
    """
    table = units.table
    frames = table.facts["frame_count"].to_numpy()
    if units.scenes is not None:
        # The frames of a medium are divided among its rows.
        frames = frames // np.maximum(np.bincount(table.media_row)[table.media_row], 1)

    def together(unit: Unit) -> object:
        return min(unit.mentions) if units.scenes is not None else table.media_row[min(unit.mentions)]

    chosen = units if some is None else units.some(some)
    for number, (_, grouped) in enumerate(itertools.groupby(chosen, together), 1):
        of_piece = list(grouped)
        weight = sum(int(frames[row]) for unit in of_piece if unit.stray is None for row in unit.mentions)
        yield PolicyPiece(policy=policy, units=of_piece, number=number, weight=max(1, weight))


def explicit_pieces(index: Index, requests: ExplicitClips, choose: Choose, outside: Outside) -> Iterator[Piece]:
    """Yield the pieces of explicit clips, in the order of the requests."""
    resolver, left, number = UriResolver(index), iter(requests), 1
    while chunk := list(itertools.islice(left, REQUESTS_AT_ONCE)):
        found = [(resolver.media_id(request.uri, request.stream), request) for request in chunk]
        yield ExplicitPiece(requests=found, choose=choose, outside=outside, number=number)
        number += len(chunk)
