"""The units of a policy over an index: what it is applied to at a time, and the clips that it selects there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from framedex.errors import PolicyError
from framedex.indexer.parts.index import Index
from framedex.records.medium import OK
from framedex.sharder.clips.clip import MultiView
from framedex.sharder.configuration.parameters import located
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.policies.terms import Terms
from framedex.sharder.sampling.records import Missed, Sampled, Timeline
from framedex.sharder.selection.left_out import LeftOut, left_out
from framedex.sharder.selection.listing_ranges import check_ranges, check_there
from framedex.sharder.selection.mentions import Mention, MentionTable, all_mentions
from framedex.sharder.selection.scenes import Scene, Scenes, scenes_of
from framedex.sharder.views.scene_sampling import SceneView, sample_scene
from framedex.storage.uris import medium_name

TimelineOf = Callable[[str], Timeline]  # by media_id

UNITS_AT_ONCE = 1024  # whose rows are Python objects at a time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitClip:
    """A clip of one medium that a policy selected.

    Attributes:
        mention: The row of its medium.
        multiview: What it is of a clip of several views; None if it stands alone.
    """

    mention: Mention
    sampled: Sampled
    multiview: MultiView | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitSampling:
    """The clips of a unit, those of several views one after the other, and what was missed of which row."""

    clips: list[UnitClip]
    missed: list[tuple[Mention, Missed]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a policy is applied to at a time: a row of the listing, or the rows of a scene. It can be pickled.

    Attributes:
        mentions: The rows, by their numbers.
        scene: The scene that they are; None for a row that stands alone.
        view_names: The views that each clip of a scene has.
        stray: Why no clip can be made of a row: it belongs to no scene.
        stray_uri: Name of the medium of such a row, if the table of rows knows it.
    """

    mentions: dict[int, Mention]
    scene: Scene | None = None
    view_names: Sequence[str] = ()
    stray: str | None = None
    stray_uri: str | None = None

    def sample(self, policy: Terms, timeline_of: TimelineOf, epoch: int = 0) -> UnitSampling:
        """Return the clips that a policy selects in an epoch. Raises PolicyError."""
        if self.scene is not None:
            return self._sample_scene(self.scene, policy, lambda medium: replace(timeline_of(medium), epoch=epoch))
        [mention] = self.mentions.values()
        if self.stray is not None:
            return UnitSampling(clips=[], missed=[(mention, Missed(kind="row", message=self.stray, counts=True))])
        timeline = replace(timeline_of(mention.media_id), epoch=epoch)
        try:
            sampling = policy.sample(timeline, mention.columns)
        except PolicyError as error:
            raise located(error, timeline.uri) from error
        return UnitSampling(
            clips=[UnitClip(mention=mention, sampled=clip) for clip in sampling.clips],
            missed=[(mention, missed) for missed in sampling.missed],
        )

    def _sample_scene(self, scene: Scene, policy: Terms, timeline_of: TimelineOf) -> UnitSampling:
        try:
            sampling = sample_scene(policy, self.views(timeline_of), self.view_names, name=scene.name)
        except PolicyError as error:
            raise located(error, f"scene {scene.name}") from error
        of_view = {view: self.mentions[row] for view, row in scene.rows.items() if isinstance(row, int)}
        clips = [
            UnitClip(
                mention=of_view[view],
                sampled=own.sampled,
                multiview=MultiView(
                    multiview_id=f"{scene.name}-{clip.number:06d}", view_name=view, view_away_seconds=own.away_seconds
                ),
            )
            for clip in sampling.clips
            for view, own in clip.views.items()
        ]
        first = self.mentions[scene.first]
        missed = [(first if view is None else of_view.get(view, first), one) for view, one in sampling.missed]
        return UnitSampling(clips=clips, missed=missed)

    def views(self, timeline_of: TimelineOf) -> dict[str, SceneView | str]:
        """Return the views of a scene by name; a text says what is wrong with one."""
        given: dict[str, SceneView | str] = {}
        for view, row in {} if self.scene is None else self.scene.rows.items():
            if isinstance(row, str):
                given[view] = row
            else:
                mention = self.mentions[row]
                given[view] = SceneView(timeline=timeline_of(mention.media_id), row=mention.columns)
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """All units of a policy over an index, in the order of their clips: scenes, and behind them rows outside of scenes.

    Attributes:
        table: The rows that the policy's filter accepts.
        scenes: How they make scenes; None if each row stands alone.
        left_out: The media of which the filter accepts no row.
    """

    table: MentionTable
    scenes: Scenes | None
    left_out: LeftOut

    def __len__(self) -> int:
        return len(self.table) if self.scenes is None else len(self.scenes.scenes) + len(self.scenes.strays)

    def some(self, numbers: Iterable[int]) -> Iterator[Unit]:
        """Yield some units by their numbers."""
        left = iter(numbers)
        while some := list(itertools.islice(left, UNITS_AT_ONCE)):
            rows = {unit: self.rows(unit) for unit in some}
            wanted = sorted(set(itertools.chain(*rows.values())))
            known = dict(zip(wanted, self.table.mentions(wanted), strict=True))
            for unit in some:
                yield self._unit(unit, {row: known[row] for row in rows[unit]})

    def __iter__(self) -> Iterator[Unit]:
        return self.some(range(len(self)))

    def rows(self, unit: int) -> list[int]:
        """Return the numbers of a unit's rows."""
        if self.scenes is None:
            return [unit]
        if unit >= len(self.scenes.scenes):
            return [self.scenes.strays[unit - len(self.scenes.scenes)][0]]
        scene = self.scenes.scenes[unit]
        return sorted({*scene.mentions, scene.first})

    def _unit(self, unit: int, mentions: dict[int, Mention]) -> Unit:
        if self.scenes is None:
            return Unit(mentions=mentions)
        if unit >= len(self.scenes.scenes):
            row, message = self.scenes.strays[unit - len(self.scenes.scenes)]
            facts = self.table.fact(row)
            uri = medium_name(facts["uri"], facts["member"]) if "member" in facts else None
            return Unit(mentions=mentions, stray=message, stray_uri=uri)
        return Unit(mentions=mentions, scene=self.scenes.scenes[unit], view_names=self.scenes.names)


def units_of(index: Index, file: PolicyFile, facts: Sequence[str] = (), *, may_be_empty: bool = False) -> Units:
    """Return the units of a policy over an index.

    Args:
        facts: The columns of `videos` that the table keeps.
        may_be_empty: Whether the filter may leave out all media.

    Raises:
        PolicyError: The ranges, the filter, the split or the views do not fit the columns, or no row passes the filter.
    """
    check_ranges(index, file)
    views = file.policy.views
    if views is not None:
        check_there(views.columns, index.listing, where="views", remedy="index a listing that names scenes and views")
    table = all_mentions(index, file.filter, file.split, facts)
    skipped = LeftOut() if may_be_empty else left_out(index, file, table)
    if views is None:
        return Units(table=table, scenes=None, left_out=skipped)
    media = index.columns(["media_id", "status"])
    unusable = media.filter(pc.not_equal(media["status"], OK))["media_id"].combine_chunks()
    without_clips = index.listing.filter(pc.is_in(index.listing["media_id"], unusable))
    return Units(table=table, scenes=scenes_of(table.columns, views, also=without_clips), left_out=skipped)
