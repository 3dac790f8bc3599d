"""Divide an index into units, and select clips from each unit by a policy.

A policy is applied to one unit at a time. A unit is a mention (a row of the listing) or, if the policy has `views`, a
scene: the mentions of all cameras that see the same thing at the same time.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from framedex.core.words import did_you_mean
from framedex.errors import PolicyError
from framedex.indexer.parts.index import Index
from framedex.records.medium import OK
from framedex.sharder.clips.clip import MultiView
from framedex.sharder.configuration.listing_rows import Views
from framedex.sharder.configuration.parameters import as_text, located, shown
from framedex.sharder.policies.policy import Policy
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.policies.sampling import Missed, Sampled, Timeline
from framedex.sharder.policies.scene_sampling import SceneView, sample_scene
from framedex.sharder.selection.mentions import (
    SPLIT_COLUMN,
    LeftOut,
    Mention,
    MentionTable,
    all_mentions,
    check_ranges,
    check_there,
    left_out,
)
from framedex.storage.places import Place
from framedex.storage.uris import medium_name

WITH_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_time,
    pa.types.is_dictionary,
    pa.types.is_null,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A scene: the rows of a listing for its views.

    Attributes:
        name: The name of the scene.
        first: The number of the scene's first mention (row of the listing).
        rows: {name of a view: number of the view's mention}. If the view has no valid mention, the value is a text with
            the reason.
    """

    name: str
    first: int
    rows: dict[str, int | str]

    @property
    def mentions(self) -> list[int]:
        """The numbers of the valid mentions of the scene."""
        return [row for row in self.rows.values() if isinstance(row, int)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenes:
    """The scenes of a listing.

    Attributes:
        names: The names of the views that each scene should have.
        scenes: The scenes, in the order of their first rows.
        strays: (number of the mention, reason) for each mention that belongs to no scene.
    """

    names: list[str]
    scenes: list[Scene]
    strays: list[tuple[int, str]]


def scenes_of(columns: pa.Table, views: Views, *, also: pa.Table | None = None) -> Scenes:
    """Group mentions into scenes.

    Args:
        columns: The user's columns, one row per mention.
        views: The key `views` of the policy.
        also: Further rows of the listing, from which no clips can be made. Only their names of views are used, so that
            the result contains all views of the listing.

    Raises:
        PolicyError: A view that the policy names does not exist, or the views of a scene belong to different splits.
    """
    cells = zip(*(_texts(columns, name) for name in views.group), strict=True)
    # The name of a scene is the value of the column `group`, or a JSON array of the values of several columns.
    groups = [None if None in row else row[0] if len(row) == 1 else orjson.dumps(row).decode() for row in cells]
    own = _texts(columns, views.view)
    names = _names([*own, *([] if also is None else _texts(also, views.view))], views)
    found: dict[str, dict[str, int | str]] = {}
    first: dict[str, int] = {}
    strays: list[tuple[int, str]] = []
    for row, (group, view) in enumerate(zip(groups, own, strict=True)):
        if view is not None and view not in names:
            continue
        if group is None or view is None:
            needed = (views.view,) if group is not None else views.group
            empty = next(name for name in needed if columns[name][row].as_py() is None)
            strays.append((row, f"the column {empty!r} is empty"))
            continue
        first.setdefault(group, row)
        rows = found.setdefault(group, {})
        rows[view] = row if view not in rows else "several rows of the listing have this view of the scene"
    order = list(names)
    scenes = [
        Scene(name=group, first=first[group], rows={view: rows[view] for view in order if view in rows})
        for group, rows in found.items()
    ]
    splits = columns[SPLIT_COLUMN].to_pylist() if SPLIT_COLUMN in columns.column_names else [None] * len(columns)
    for scene in scenes:
        of_scene = {splits[row] for row in scene.mentions}
        if len(of_scene) > 1:
            raise PolicyError(
                "the views of a scene belong to different splits",
                where=f"scene {scene.name}",
                found=", ".join(map(str, sorted(map(str, of_scene)))),
                remedy=f"let the policy split by scene: `by: {views.group[-1]}`",
            )
    return Scenes(names=order, scenes=scenes, strays=strays)


def _texts(columns: pa.Table, name: str) -> list[str | None]:
    """Return the values of a column as strings, None for empty cells.

    Raises:
        PolicyError: Values of the column's type cannot serve as names.
    """
    column = columns[name]
    if not any(is_of(column.type) for is_of in WITH_TEXT):
        raise PolicyError(
            "a column of this type cannot name scenes or views",
            where=f"views, column {name!r}",
            found=str(column.type),
            allowed="text, numbers, booleans, dates and times",
        )
    values = column.to_pylist()
    return [None if value is None else str(value) if as_text(value) is None else as_text(value) for value in values]


def _names(own: Sequence[str | None], views: Views) -> dict[str, None]:
    """Return the names of the views in order, as keys of a dict.

    Args:
        own: The name of each row's view. None if the cell is empty.
        views: The key `views` of the policy.

    Raises:
        PolicyError: No row has a view that the policy names.
    """
    there = dict.fromkeys(sorted({name for name in own if name is not None}))
    for name in [*(views.names or ()), *([] if views.clock is None else [views.clock]), *(views.each or ())]:
        if there and name not in there:
            raise PolicyError(
                "no row of the listing has this view",
                where=f"views, column {views.view!r}",
                found=shown(name),
                allowed=", ".join(there),
                remedy=did_you_mean(name, there),
            )
    return there if views.names is None else dict.fromkeys(views.names)


TimelineOf = Callable[[str], Timeline]  # takes a media_id

UNITS_AT_ONCE = 1024  # number of units whose rows are converted to Python objects at a time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitClip:
    """A clip of one medium that a policy selected from a unit.

    Attributes:
        mention: The mention (row of the listing) of the clip's medium.
        sampled: The frames that the policy selected.
        multiview: The link to the clip of several views that contains this clip. None for policies without `views`.
    """

    mention: Mention
    sampled: Sampled
    multiview: MultiView | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitSampling:
    """The clips that a policy selects from a unit.

    Attributes:
        clips: The selected clips. The views of one clip of several views are consecutive.
        missed: The clips that the policy wanted but that cannot be made, each with its mention.
    """

    clips: list[UnitClip]
    missed: list[tuple[Mention, Missed]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit, from which a policy selects clips: a row of the listing, or all rows of a scene. It can be pickled.

    Attributes:
        mentions: The rows of the unit, by their numbers.
        scene: The scene that the rows form. None if the unit is a single row.
        view_names: The names of the views that each clip of a scene has.
        stray: The reason why the row belongs to no scene, although the policy has `views`. No clip is made from such a
            row. None for all other units.
        stray_uri: For a row that belongs to no scene, the uri of its medium. None if the uri was not loaded.
    """

    mentions: dict[int, Mention]
    scene: Scene | None = None
    view_names: Sequence[str] = ()
    stray: str | None = None
    stray_uri: str | None = None

    def sample(self, policy: Policy, timeline_of: TimelineOf, epoch: int = 0) -> UnitSampling:
        """Return the clips that a policy selects from the unit in an epoch. Raises PolicyError."""
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

    def _sample_scene(self, scene: Scene, policy: Policy, timeline_of: TimelineOf) -> UnitSampling:
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
        """Return the views of the scene by name. For an invalid view, the value is a text with the reason."""
        mentions = self.mentions
        return {
            view: row
            if isinstance(row, str)
            else SceneView(timeline=timeline_of(mentions[row].media_id), row=mentions[row].columns)
            for view, row in ({} if self.scene is None else self.scene.rows).items()
        }


@dataclass(frozen=True, kw_only=True)
class SceneMedia:
    """The media of a dataset.

    Attributes:
        media: The ids of all media.
        of_scene: The name of the view and the id of the medium of each clip, by the name of the scene.
    """

    media: Set[str]
    of_scene: dict[str, set[tuple[str, str]]]

    @functools.cached_property
    def with_clips(self) -> Set[str]:
        """The ids of the media of all scenes."""
        return {name for pairs in self.of_scene.values() for _, name in pairs}


HasMore = Callable[[Unit, Set[tuple[str, str]]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """All units of a policy over an index, in the order of their clips.

    If the policy has `views`, the scenes come first, and rows that belong to no scene follow.

    Attributes:
        table: The mentions (rows of the listing) that the policy's filter accepts.
        scenes: The scenes that the rows form. None if the policy has no `views`, so that each row is a unit.
        left_out: The media for which the filter accepts no row.
    """

    table: MentionTable
    scenes: Scenes | None
    left_out: LeftOut

    def __len__(self) -> int:
        return len(self.table) if self.scenes is None else len(self.scenes.scenes) + len(self.scenes.strays)

    def some(self, numbers: Iterable[int]) -> Iterator[Unit]:
        """Yield the units with the given numbers."""
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
        """Return the numbers of the mentions (rows of the listing) that belong to a unit."""
        if self.scenes is None:
            return [unit]
        if unit >= len(self.scenes.scenes):
            return [self.scenes.strays[unit - len(self.scenes.scenes)][0]]
        scene = self.scenes.scenes[unit]
        return sorted({*scene.mentions, scene.first})

    def new(
        self, there: SceneMedia, removed: Set[str], has_more: HasMore, *, replan: bool
    ) -> tuple[list[int], Set[str]]:
        """Return the units from which clips are appended to a dataset.

        Args:
            there: The media of the dataset.
            removed: The ids of media that were removed from it.
            has_more: A function that returns whether a unit has clips of other views or media than the given ones.
            replan: Whether scenes of the dataset with new views may be planned again, and new scenes may have media of
                the dataset. All scenes that share media with them are planned again, too.

        Returns:
            The numbers of the units, and the ids of media of the dataset whose clips are replaced.

        Raises:
            PolicyError: Scenes must be planned again, and `replan` is False, or one of their media was removed.
        """
        ids = self.table.media_id.to_pylist()
        if self.scenes is None:
            return [unit for unit, name in enumerate(ids) if name not in there.media and name not in removed], set()
        new, changed = list[int](), list[int]()
        for number, scene in enumerate(self.scenes.scenes):
            own = {(view, ids[row]) for view, row in scene.rows.items() if isinstance(row, int)}
            before, media = there.of_scene.get(scene.name, set()), {name for _, name in own}
            if not before and media & removed and media <= there.media | removed:
                continue
            if not before and not media & (there.with_clips | removed):
                new.append(number)
            elif not {pair for pair in own if pair[1] not in removed} <= before:
                changed.append(number)
        units = self.some(changed)
        changed = [
            number
            for number, unit in zip(changed, units, strict=True)
            if has_more(unit, there.of_scene.get(self.scenes.scenes[number].name, set()))
        ]
        first_stray = len(self.scenes.scenes)
        for number, (row, _) in enumerate(self.scenes.strays, first_stray):
            if ids[row] not in there.media and ids[row] not in removed:
                new.append(number)
        if not changed:
            return new, set()
        if not replan:
            scene = self.scenes.scenes[changed[0]]
            before = there.of_scene.get(scene.name, set())
            raise PolicyError(
                "a scene of the dataset has a new view" if before else "a new scene has media of the dataset",
                where=f"scene {scene.name}",
                found=self._uris(
                    row for view, row in scene.rows.items() if isinstance(row, int) and (view, ids[row]) not in before
                ),
                remedy="pass --replan-scenes, or remove the view from the index",
            )
        again, replaced = self._sharing(changed, ids, there)
        for number in again:
            if gone := [row for row in self.scenes.scenes[number].mentions if ids[row] in removed]:
                raise PolicyError(
                    "a scene to plan again has a view that was removed from the dataset",
                    where=f"scene {self.scenes.scenes[number].name}",
                    found=self._uris(gone),
                    remedy="remove it from the index, too",
                )
        return sorted({*new, *again}), replaced

    def _sharing(self, changed: list[int], ids: list[str], there: SceneMedia) -> tuple[list[int], Set[str]]:
        """Return the scenes that share media with some scenes, directly or by others, and their media in a dataset."""
        assert self.scenes is not None
        media_of: dict[str, set[str]] = {name: {one for _, one in pairs} for name, pairs in there.of_scene.items()}
        numbers = {scene.name: number for number, scene in enumerate(self.scenes.scenes)}
        for scene in self.scenes.scenes:
            media_of.setdefault(scene.name, set()).update(ids[row] for row in scene.mentions)
        scenes_of_medium: dict[str, list[str]] = {}
        for name, media in media_of.items():
            for one in media:
                scenes_of_medium.setdefault(one, []).append(name)
        waiting = [self.scenes.scenes[number].name for number in changed]
        seen, media = {*waiting}, set[str]()
        while waiting:
            for one in media_of[waiting.pop()] - media:
                media.add(one)
                waiting += [name for name in scenes_of_medium[one] if name not in seen]
                seen.update(scenes_of_medium[one])
        return sorted(numbers[name] for name in seen if name in numbers), media & there.media

    def _uris(self, rows: Iterable[int]) -> str:
        return ", ".join(sorted(self.table.facts["uri"].take(pa.array(rows, pa.int64())).to_pylist()))

    def _unit(self, unit: int, mentions: dict[int, Mention]) -> Unit:
        if self.scenes is None:
            return Unit(mentions=mentions)
        if unit >= len(self.scenes.scenes):
            row, message = self.scenes.strays[unit - len(self.scenes.scenes)]
            [facts] = self.table.facts.slice(row, 1).to_pylist() or [{}]
            uri = medium_name(facts["uri"], facts["member"]) if "member" in facts else None
            return Unit(mentions=mentions, stray=message, stray_uri=uri)
        return Unit(mentions=mentions, scene=self.scenes.scenes[unit], view_names=self.scenes.names)


def units_of(
    index: Index,
    file: PolicyFile,
    facts: Sequence[str] = (),
    *,
    may_be_empty: bool = False,
    appended_to: Place | None = None,
) -> Units:
    """Return the units of a policy over an index.

    Args:
        index: The index.
        file: The policy.
        facts: The names of the columns of `videos` that `Units.table.facts` contains.
        may_be_empty: Whether the filter may leave out all media.
        appended_to: The dataset to which the clips are appended. Its groups keep their splits.

    Raises:
        PolicyError: The ranges, the filter, the split or the views do not fit the columns of the listing, or the filter
            leaves out all media and `may_be_empty` is False.
    """
    check_ranges(index, file)
    views = file.policy.views
    if views is not None:
        check_there(
            views.columns, index.listing, where="views", remedy="index a listing with columns for scenes and views"
        )
    table = all_mentions(index, file.filter, file.policy.split, facts, appended_to=appended_to)
    skipped = LeftOut() if may_be_empty else left_out(index, file, table)
    if views is None:
        return Units(table=table, scenes=None, left_out=skipped)
    media = index.columns(["media_id", "status"])
    unusable = media.filter(pc.not_equal(media["status"], OK))["media_id"].combine_chunks()
    without_clips = index.listing.filter(pc.is_in(index.listing["media_id"], unusable))
    return Units(table=table, scenes=scenes_of(table.columns, views, also=without_clips), left_out=skipped)
