"""Groups the rows of a listing into scenes: the views that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import pyarrow as pa

from framedex.core.hints import did_you_mean
from framedex.errors import PolicyError
from framedex.sharder.configuration.checks import shown
from framedex.sharder.configuration.pairs import as_text
from framedex.sharder.configuration.views import Views
from framedex.sharder.selection.kept_splits import SPLIT_COLUMN

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
    """The views of a scene.

    Attributes:
        first: Number of its first mention.
        rows: For each view, the number of its mention, or what is wrong with its rows.
    """

    name: str
    first: int
    rows: dict[str, int | str]

    @property
    def mentions(self) -> list[int]:
        """The mentions of the views."""
        return [row for row in self.rows.values() if isinstance(row, int)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenes:
    """The scenes of a listing, in the order of their first rows.

    Attributes:
        names: The views that each scene should have.
        strays: The mentions that belong to no scene, with the reason.
    """

    names: list[str]
    scenes: list[Scene]
    strays: list[tuple[int, str]]


def scenes_of(columns: pa.Table, views: Views, *, also: pa.Table | None = None) -> Scenes:
    """Return the scenes of some mentions.

    Args:
        columns: The user's columns, one row per mention.
        also: Rows of the listing of which no clip can be made, and which name views, too.

    Raises:
        PolicyError: A view that the policy names does not exist, or the views of a scene belong to different splits.
    """
    groups, own = _groups(columns, views.group), _texts(columns, views.view)
    names = _names([*own, *([] if also is None else _texts(also, views.view))], views)
    found: dict[str, dict[str, int | str]] = {}
    first: dict[str, int] = {}
    strays: list[tuple[int, str]] = []
    for row, (group, view) in enumerate(zip(groups, own, strict=True)):
        if view is not None and view not in names:
            continue
        if group is None or view is None:
            empty = (
                views.view
                if group is not None
                else next(name for name in views.group if not _is_there(columns, name, row))
            )
            strays.append((row, f"the column {empty!r} is empty"))
            continue
        first.setdefault(group, row)
        rows = found.setdefault(group, {})
        rows[view] = row if view not in rows else "several rows of the listing are this view of the scene"
    order = list(names)
    scenes = [
        Scene(name=group, first=first[group], rows={view: rows[view] for view in order if view in rows})
        for group, rows in found.items()
    ]
    if SPLIT_COLUMN in columns.column_names:
        _check_splits(columns[SPLIT_COLUMN].to_pylist(), scenes, views)
    return Scenes(names=order, scenes=scenes, strays=strays)


def _groups(columns: pa.Table, names: Sequence[str]) -> list[str | None]:
    """Return the name of each row's scene: a column's value, or several as JSON; None if one is empty."""
    if len(names) == 1:
        return _texts(columns, names[0])
    rows = zip(*(_texts(columns, name) for name in names), strict=True)
    return [None if None in row else orjson.dumps(row).decode() for row in rows]


def _is_there(columns: pa.Table, name: str, row: int) -> bool:
    return columns[name][row].as_py() is not None


def _texts(columns: pa.Table, name: str) -> list[str | None]:
    """Return the cells of a column as text, None for empty ones. Raises PolicyError for values that have no text."""
    column = columns[name]
    if not any(is_of(column.type) for is_of in WITH_TEXT):
        raise PolicyError(
            "scenes and views cannot be named by a column of this type",
            where=f"views, column {name!r}",
            found=str(column.type),
            allowed="text, numbers, booleans, dates and times",
        )
    values = column.to_pylist()
    return [None if value is None else str(value) if as_text(value) is None else as_text(value) for value in values]


def _names(own: Sequence[str | None], views: Views) -> dict[str, None]:
    """Return the names of the views in order. Raises PolicyError for names in the policy that no row has."""
    there = dict.fromkeys(sorted({name for name in own if name is not None}))
    wanted = [*(views.names or ()), *([] if views.clock is None else [views.clock]), *dict(views.each or ())]
    for name in wanted:
        if there and name not in there:
            raise PolicyError(
                "no row of the listing has this view",
                where=f"views, column {views.view!r}",
                found=shown(name),
                allowed=", ".join(there),
                remedy=did_you_mean(name, there),
            )
    return there if views.names is None else dict.fromkeys(views.names)


def _check_splits(splits: Sequence[object], scenes: Sequence[Scene], views: Views) -> None:
    for scene in scenes:
        of_scene = {splits[row] for row in scene.mentions}
        if len(of_scene) > 1:
            raise PolicyError(
                "the views of a scene belong to different splits",
                where=f"scene {scene.name}",
                found=", ".join(map(str, sorted(map(str, of_scene)))),
                remedy=f"split the scenes: `by: {views.group[-1]}`",
            )
