"""Planning of wanted clips in batches per medium, with the reason for each clip that cannot be planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import DamageError, PolicyError, StaleError, UncuttableError
from framedex.sharder.clips.clip import Clip, Failure, MultiView, WantedClip, internal_failure
from framedex.sharder.clips.samples import Step
from framedex.sharder.planning.indexed_medium import IndexedMedium
from framedex.sharder.planning.spools import Spools
from framedex.sharder.sampling.records import Missed, Sampled
from framedex.sharder.selection.mentions import Mention


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Consecutive clips of the plan that belong to one medium, including those that cannot be made.

    Attributes:
        done: Progress of the plan after this batch.
    """

    medium: IndexedMedium | None
    items: list[WantedClip | Failure]
    done: int


Round = list[Batch]  # the media of a round are read together


def behind(rounds: Iterable[Round], done: int) -> Iterator[Round]:
    """Yield rounds without the first `done` items of the plan."""
    for batches in rounds:
        left = []
        for batch in batches:
            skipped = min(done, len(batch.items))
            done -= skipped
            if skipped < len(batch.items):
                left.append(replace(batch, items=batch.items[skipped:]) if skipped else batch)
        if left:
            yield left


def plan(rounds: Iterable[Round], spools: Spools | None) -> Iterator[Step]:
    """Yield the planned clips, and the reasons why others cannot be made. `spools`: as for `plan_clip`."""
    for batches in rounds:
        broken = _prepare(batches)
        for batch in batches:
            for item in batch.items:
                if not isinstance(item, WantedClip):
                    yield Step(outcome=item, done=batch.done)
                    continue
                assert batch.medium is not None  # a wanted clip always has a medium
                medium = batch.medium.medium
                if medium.media_id in broken:
                    failure = internal_failure(item.clip_id, medium.name, broken[medium.media_id])
                    yield Step(outcome=failure, done=batch.done)
                else:
                    yield Step(outcome=plan_clip(batch.medium, item, spools), done=batch.done)


def _prepare(batches: Round) -> dict[str, Exception]:
    """Let each medium read in one pass what several of its clips need.

    Returns:
        The errors of media at which framedex itself failed, by media_id.
    """
    broken: dict[str, Exception] = {}
    together: dict[str, tuple[IndexedMedium, list[WantedClip]]] = {}
    for batch in batches:
        if batch.medium is not None:
            clips = [item for item in batch.items if isinstance(item, WantedClip)]
            together.setdefault(batch.medium.medium.media_id, (batch.medium, []))[1].extend(clips)
    for medium, clips in together.values():
        if len(clips) > 1:
            try:
                medium.prepare(clips)
            except MEDIUM_ERRORS:
                raise
            except Exception as error:
                broken[medium.medium.media_id] = error
    return broken


def wanted_clip(name: str, sampled: Sampled, columns: dict[str, Any], multiview: MultiView | None = None) -> WantedClip:
    """Return a clip that a policy selected.

    Args:
        name: The mention's name.
        columns: The user's columns.
        multiview: What it is of a clip of several views.
    """
    return WantedClip(
        clip_id=f"{name}-{sampled.number:06d}",
        frames=sampled.frames,
        mask=sampled.mask,
        columns=columns,
        stretch=sampled.stretch,
        anchor_frame=sampled.anchor,
        multiview=multiview,
    )


def missed_clip(uri: str, mention: Mention, missed: Missed) -> Failure:
    """Return why a policy did not produce a clip of a mention."""
    clip_id = mention.name if missed.number is None else f"{mention.name}-{missed.number:06d}"
    message = missed.message
    if missed.kind == "row" and mention.file_row is not None:  # named as `framedex index` names rows that fail
        message = f"row {mention.file_row} of the listing: {message}"
    return Failure(clip_id=clip_id, uri=uri, kind=missed.kind, message=message, counts=missed.counts)


def plan_clip(medium: IndexedMedium, wanted: WantedClip, spools: Spools | None = None) -> Clip | Failure:
    """Return a planned clip, or why it cannot be planned.

    Args:
        spools: Where packets are written that are not byte ranges of their file; None if they need not be.
    """
    try:
        if spools is not None:
            spools.make_addressable(medium)
        return medium.clip(wanted)
    except (PolicyError, StaleError) as error:
        kind = "policy" if wanted.asked_in is None else "request"
        kinds: dict[type, str] = {DamageError: "damaged", StaleError: "stale", UncuttableError: "uncuttable"}
        kind = kinds.get(type(error), kind)
        return Failure(
            clip_id=wanted.clip_id,
            uri=medium.medium.name,
            kind=kind,
            message=error.text() if wanted.asked_in is None else f"{wanted.asked_in}: {error}",
            counts=kind != "damaged" or wanted.asked_in is not None,
        )
    except MEDIUM_ERRORS:
        raise
    except Exception as error:  # a bug at one clip must not end the run for the others
        return internal_failure(wanted.clip_id, medium.medium.name, error)
