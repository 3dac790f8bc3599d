"""What a policy is applied to at a time: a row of the listing, or a scene of several views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from framedex.errors import PolicyError
from framedex.sharder.clips.clip import MultiView
from framedex.sharder.configuration.parameters import located
from framedex.sharder.policies.terms import Terms
from framedex.sharder.sampling.records import Missed, Sampled, Timeline
from framedex.sharder.selection.mentions import MentionTable, Row
from framedex.sharder.selection.scenes import ListedScenes, Scene
from framedex.sharder.views.scene_facts import ViewFacts, facts_of
from framedex.sharder.views.scene_sampling import SceneView, sample_scene

TimelineOf = Callable[[str], Timeline]  # by media_id


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitClip:
    """A clip of one medium that a policy selected.

    Attributes:
        mention: Number of the mention of its medium.
        multiview: What it is of a clip of several views; None if it stands alone.
    """

    mention: int
    sampled: Sampled
    multiview: MultiView | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitSampling:
    """The clips of a unit, those of several views one after the other, and what was missed.

    Attributes:
        missed: Each with the number of the mention that it is about.
    """

    clips: list[UnitClip]
    missed: list[tuple[int, Missed]]


class Units(Protocol):
    """The units of an index, in the order of their clips."""

    def __len__(self) -> int: ...

    def mentions(self, unit: int) -> list[int]:
        """Return the mentions of a unit."""
        ...

    def sample(self, unit: int, timeline_of: TimelineOf, epoch: int = 0) -> UnitSampling:
        """Return the clips of a unit in an epoch. Raises PolicyError."""
        ...


class RowUnits:
    """Each mention is a unit."""

    def __init__(self, policy: Terms, table: MentionTable) -> None:
        self._policy, self._table = policy, table

    def __len__(self) -> int:
        return len(self._table)

    def mentions(self, unit: int) -> list[int]:
        """Return the mention itself."""
        return [unit]

    def sample(self, unit: int, timeline_of: TimelineOf, epoch: int = 0) -> UnitSampling:
        """Return the clips of a mention in an epoch. Raises PolicyError."""
        timeline = replace(timeline_of(self._table.identity(unit)), epoch=epoch)
        sampling = self._policy.sample(timeline, self._table.row(unit))
        return UnitSampling(
            clips=[UnitClip(mention=unit, sampled=clip) for clip in sampling.clips],
            missed=[(unit, missed) for missed in sampling.missed],
        )


class SceneUnits:
    """Each scene is a unit, and behind the scenes each mention that belongs to none.

    Args:
        policy: A policy with `views`.
        listed: The scenes of an index.
    """

    def __init__(self, policy: Terms, listed: ListedScenes) -> None:
        self._policy, self._table = policy, listed.table.without_facts()
        self.names, self._strays, self._scenes = listed.scenes.names, listed.scenes.strays, listed.scenes.scenes

    def __len__(self) -> int:
        return len(self._scenes) + len(self._strays)

    def mentions(self, unit: int) -> list[int]:
        """Return the mentions of a scene."""
        if unit >= len(self._scenes):
            return [self._strays[unit - len(self._scenes)][0]]
        return self._scenes[unit].mentions

    def sample(self, unit: int, timeline_of: TimelineOf, epoch: int = 0) -> UnitSampling:
        """Return the clips of a scene in an epoch. Raises PolicyError."""
        if unit >= len(self._scenes):
            mention, message = self._strays[unit - len(self._scenes)]
            return UnitSampling(clips=[], missed=[(mention, Missed(kind="row", message=message, counts=True))])
        scene = self._scenes[unit]
        return scene_clips(self._policy, scene, self.names, self._rows(scene), timeline_of, epoch)

    def facts(self, timeline_of: TimelineOf) -> Iterator[tuple[Scene, list[ViewFacts]]]:
        """Yield what the views of each scene have."""
        for scene in self._scenes:
            yield scene, facts_of(self._policy, _scene_views(scene, self._rows(scene), timeline_of), self.names)

    def _rows(self, scene: Scene) -> dict[int, tuple[str, Row]]:
        """Return (media_id, the user's columns) of each mention of a scene."""
        rows = zip(scene.mentions, self._table.rows(scene.mentions), strict=True)
        return {mention: (self._table.identity(mention), row) for mention, row in rows}


def scene_clips(
    policy: Terms,
    scene: Scene,
    names: list[str],
    views: dict[int, tuple[str, Row]],
    timeline_of: TimelineOf,
    epoch: int = 0,
) -> UnitSampling:
    """Return the clips of a scene, view by view.

    Args:
        names: The views that a clip has.
        views: (media_id, the user's columns) of each mention of the scene.

    Raises:
        PolicyError: As for `sample_scene`.
    """
    given = _scene_views(scene, views, lambda media_id: replace(timeline_of(media_id), epoch=epoch))
    try:
        sampling = sample_scene(policy, given, names, name=scene.name)
    except PolicyError as error:
        raise located(error, f"scene {scene.name}") from error
    clips = [
        UnitClip(
            mention=int(scene.rows[view]),
            sampled=own.sampled,
            multiview=MultiView(
                multiview_id=f"{scene.name}-{clip.number:06d}", view_name=view, view_away_seconds=own.away_seconds
            ),
        )
        for clip in sampling.clips
        for view, own in clip.views.items()
    ]
    about = {view: mention for view, mention in scene.rows.items() if isinstance(mention, int)}
    missed = [(scene.first if view is None else about.get(view, scene.first), one) for view, one in sampling.missed]
    return UnitSampling(clips=clips, missed=missed)


def _scene_views(
    scene: Scene, views: dict[int, tuple[str, Row]], timeline_of: TimelineOf
) -> dict[str, SceneView | str]:
    """Return the views of a scene by name; a text says what is wrong with one."""
    given: dict[str, SceneView | str] = {}
    for view, mention in scene.rows.items():
        if isinstance(mention, str):
            given[view] = mention
            continue
        identity, row = views[mention]
        given[view] = SceneView(timeline=timeline_of(identity), row=row)
    return given
