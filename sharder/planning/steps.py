"""Wanted clips → planned clips, or the reason for each clip that cannot be planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import DamageError, PolicyError, StaleError, UncuttableError
from framedex.records.dataset import Failure
from framedex.sharder.clips.clip import Clip, WantedClip, internal_failure
from framedex.sharder.clips.samples import Step
from framedex.sharder.planning.indexed_medium import IndexedMedium
from framedex.sharder.planning.spools import Spools
from framedex.sharder.planning.units import UnitClip
from framedex.sharder.sampling.records import Missed
from framedex.sharder.selection.mentions import Mention


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanItem:
    """A clip of the plan, or the reason why it cannot be made.

    Attributes:
        medium: The clip's medium; None if that is not known.
        done: Progress of the plan after this item.
    """

    medium: IndexedMedium | None
    wanted: WantedClip | Failure
    done: int


ReadGroup = list[PlanItem]  # what its clips need of their media is read together


def behind(groups: Iterable[ReadGroup], done: int) -> Iterator[ReadGroup]:
    """Yield groups without the first `done` items of the plan."""
    for group in groups:
        if done < len(group):
            yield group[done:]
        done = max(0, done - len(group))


def plan(groups: Iterable[ReadGroup], spools: Spools | None) -> Iterator[Step]:
    """Yield the planned clips, and the reasons why others cannot be made. `spools`: as for `plan_clip`."""
    for group in groups:
        broken = _prepare(group)
        for item in group:
            outcome: Clip | Failure
            if isinstance(item.wanted, Failure):
                outcome = item.wanted
            else:
                assert item.medium is not None  # a wanted clip always has a medium
                medium = item.medium.medium
                if medium.media_id in broken:
                    outcome = internal_failure(item.wanted.clip_id, medium.name, broken[medium.media_id])
                else:
                    outcome = plan_clip(item.medium, item.wanted, spools)
            yield Step(outcome=outcome, done=item.done)


def _prepare(group: ReadGroup) -> dict[str, Exception]:
    """Let each medium read in one pass what several of its clips need.

    Returns:
        The errors of media at which framedex itself failed, by media_id.
    """
    broken: dict[str, Exception] = {}
    together: dict[str, tuple[IndexedMedium, list[WantedClip]]] = {}
    for item in group:
        if item.medium is not None and isinstance(item.wanted, WantedClip):
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
    """Return a clip that a policy selected, as it is planned."""
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
