"""Decide which images form a sequence: those of a folder, of a part of a tar, or of rows of a listing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from framedex.errors import MediaError, SourceError, StorageError
from framedex.files.natural_order import natural_key
from framedex.indexer.sources.image_times import rate_of
from framedex.indexer.sources.named_medium import NamedMedium, form_of, is_image_name
from framedex.indexer.sources.there import files_in

SEQUENCE, SECONDS, RATE = "sequence", "seconds", "fps"  # columns of a listing
NUMBERED = re.compile(r"(?P<key>[^.]+)\.[0-9]+\.[^.]+")  # webdataset's name for one of several files of a sample
NONE = (None, "")  # missing values; CSV cannot tell an empty text from a missing one
TOP = "."  # name of the sequence of a tar's images that lie in no folder


def visible_images(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of images in natural order, without hidden files."""
    return tuple(sorted((name for name in names if is_image_name(name) and name[:1] != "."), key=natural_key))


def group_names(names: Iterable[str], *, single: bool = False) -> dict[str, list[str]]:
    """Return the sequences of the image files in a tar, by name: files that share a key, else files of one folder.

    A key is the path up to the first dot of a name such as `key.000.jpg`. It counts if several images share it, and if
    no folder that holds images has the same name. Images at the top form the sequence `.`. Each image belongs to one
    sequence. Sequences and their images are in natural order.

    Args:
        names: of the files.
        single: every image forms a sequence of its own.
    """
    if single:
        return {name: [name] for name in names}
    by_key: dict[str, list[str]] = {}
    folders: dict[str, list[str]] = {}
    for name in names:
        folder, _, base = name.rpartition("/")
        folders.setdefault(folder or TOP, []).append(name)
        if match := NUMBERED.fullmatch(base):
            by_key.setdefault(f"{folder}/{match['key']}" if folder else match["key"], []).append(name)
    keyed = {key: group for key, group in by_key.items() if len(group) > 1 and key not in folders}
    taken = {name for group in keyed.values() for name in group}
    rest = {folder: [name for name in group if name not in taken] for folder, group in folders.items()}
    groups = keyed | {folder: group for folder, group in rest.items() if group}
    return {name: sorted(groups[name], key=natural_key) for name in sorted(groups, key=natural_key)}


def folder_sequence(item: NamedMedium) -> NamedMedium:
    """Return the mention of a folder as that of the sequence of the images directly in it."""
    try:
        images = visible_images(files_in(item.path))
    except OSError as error:
        return replace(item, images=(), error=MediaError("unreadable", f"cannot be read: {error.strerror}"))
    except StorageError as error:
        return replace(item, images=(), error=MediaError("unreadable", f"cannot be read: {error.what}"))
    if not images:
        return replace(item, images=(), error=MediaError("empty", "no image lies directly in the folder"))
    return replace(item, images=images)


def join_rows(rows: Sequence[NamedMedium], where: str) -> list[NamedMedium]:
    """Return the rows of a listing, with the rows of each sequence joined at the place of its first row.

    Images with the same value in a column `sequence` form a sequence. Columns that differ between its rows are dropped.

    Args:
        rows: of the listing.
        where: the listing, for messages.

    Raises:
        SourceError: images of one sequence lie in several folders, files of it are not images, or a rate is invalid.
    """
    groups: dict[str, list[NamedMedium]] = {}
    places: list[str | NamedMedium] = []
    for row in rows:
        value = row.columns.get(SEQUENCE)
        if row.error is not None:
            places.append(row)
            continue
        if value in NONE or (form_of(row.path) != "image" and str(value) not in groups):
            places.append(_with_rate(row, where))
            continue
        name = str(value)
        if name not in groups:
            places.append(name)
        groups.setdefault(name, []).append(row)
    return [_joined(place, groups[place], where) if isinstance(place, str) else place for place in places]


def _joined(name: str, rows: list[NamedMedium], where: str) -> NamedMedium:
    folders = sorted({os.path.dirname(row.path) for row in rows})
    for row in rows:
        if form_of(row.path) != "image":
            raise SourceError(f"sequence {name!r} holds a file that is no image", where=where, found=row.spelled)
    if len(folders) > 1:
        raise SourceError(
            f"the images of sequence {name!r} lie in several folders",
            where=where,
            found=", ".join(folders[:3]),
            allowed="one folder",
            remedy="give each folder a sequence of its own",
        )
    same = {
        column: value for column, value in rows[0].columns.items() if all(row.columns[column] == value for row in rows)
    }
    same.pop(SECONDS, None)
    times = tuple(_seconds(row.columns.get(SECONDS), name, where) for row in rows)
    return _with_rate(
        NamedMedium(
            path=folders[0],
            spelled=os.path.dirname(rows[0].spelled) or ".",
            columns=same,
            row=rows[0].row,
            folder=rows[0].folder,
            member=name,
            images=tuple(os.path.basename(row.path) for row in rows),
            seconds=times if any(time is not None for time in times) else None,
        ),
        where,
    )


def _seconds(value: object, name: str, where: str) -> float | None:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    raise SourceError(f"a time of sequence {name!r} is no number", where=where, found=repr(value))


def _with_rate(row: NamedMedium, where: str) -> NamedMedium:
    """Return a mention with the rate that its `fps` column states. For a video, `fps` is a column like any other."""
    rate = row.columns.get(RATE)
    if rate in NONE or (row.form == "video" and not os.path.isdir(row.path)):
        return row
    try:
        return replace(row, fps=rate_of(rate))
    except ValueError as error:
        raise SourceError("a rate of images is none", where=f"{where}, {row.spelled}", found=error) from error


def check_one_timing(items: Iterable[NamedMedium]) -> None:
    """Raise SourceError if a medium is mentioned several times with different rates or times."""
    seen: dict[tuple[str, str | None], tuple[Fraction | None, Any]] = {}
    for item in items:
        timing = item.fps, item.seconds
        if timing != (None, None) and seen.setdefault((item.path, item.member), timing) != timing:
            raise SourceError("two rates for one medium", where=item.spelled, found=f"{item.fps} frames a second")
