"""Listings of well-known datasets, which name videos by ids: which columns they have, and where their files may lie."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

TRIMMED = (".mp4", ".mkv", ".webm", ".avi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """A kind of listing.

    Attributes:
        name: The dataset.
        columns: A listing is of this kind if it has all of these.
        texts: Columns that are texts, even if all of their values are numbers.
        paths: The files that a row may mean, relative to the root, in the order in which they are tried.
        renamed: (Old name, new name) of columns whose own names would say something else about the files.
    """

    name: str
    columns: frozenset[str]
    texts: tuple[str, ...]
    paths: Callable[[Row], list[str]]
    renamed: tuple[tuple[str, str], ...] = ()

    def own_columns(self, row: Row) -> dict[str, Any]:
        """Return the user's columns of a row."""
        new = dict(self.renamed)
        return {new.get(name, name): value for name, value in row.items()}


def recognised(names: Iterable[str]) -> Convention | None:
    """Return the kind of a listing with these columns, or None."""
    there = set(names)
    return next((kind for kind in CONVENTIONS if kind.columns <= there), None)


def _joined(folders: Iterable[str], stem: str, endings: Iterable[str]) -> list[str]:
    """Return a path for each folder and ending, without repeats. "" is the root itself."""
    pairs = itertools.product(dict.fromkeys(folders), endings)
    return [f"{folder}/{stem}{ending}" if folder else f"{stem}{ending}" for folder, ending in pairs]


def _id(row: Row, column: str) -> str:
    """Return the id of a row's video. Raises ValueError if it is empty."""
    if row[column] in (None, ""):
        raise ValueError(f"{column} is empty")
    return str(row[column])


def _kinetics(row: Row) -> list[str]:
    """The names that downloaders of Kinetics give to cut videos, in folders by label, by split, or both."""
    stem = f"{_id(row, 'youtube_id')}_{int(row['time_start']):06d}_{int(row['time_end']):06d}"
    label, split = str(row.get("label") or ""), str(row.get("split") or "")
    labels = [label, label.replace(" ", "_")]
    in_split = [f"{split}/{name}".strip("/") for name in labels]
    return _joined(["", *labels, split, *in_split], stem, TRIMMED)


def _something(row: Row) -> list[str]:
    return _joined(["", "videos", "20bn-something-something-v2"], _id(row, "id"), (".webm", ".mp4"))


def _howto(row: Row) -> list[str]:
    return _joined(["", "videos"], _id(row, "video_id"), (".mp4", ".webm", ".mkv"))


def _webvid(row: Row) -> list[str]:
    page = str(row["page_dir"] or "")
    return _joined([page, f"videos/{page}".rstrip("/"), ""], _id(row, "videoid"), (".mp4",))


CONVENTIONS = (
    Convention(
        name="Kinetics",
        columns=frozenset({"youtube_id", "time_start", "time_end"}),
        texts=("youtube_id", "label", "split"),
        paths=_kinetics,
        # Where the original video was cut. With their own names, they would pass for ranges of the file.
        renamed=(("time_start", "youtube_time_start"), ("time_end", "youtube_time_end")),
    ),
    Convention(
        name="Something-Something",
        columns=frozenset({"id", "template", "placeholders"}),
        texts=("id",),
        paths=_something,
    ),
    Convention(
        name="WebVid",
        columns=frozenset({"videoid", "page_dir", "contentUrl"}),
        texts=("videoid", "page_dir", "name"),
        paths=_webvid,
    ),
    Convention(
        name="HowTo100M",
        columns=frozenset({"video_id", "start", "end", "text"}),
        texts=("video_id", "text"),
        paths=_howto,
    ),
)


def captions_as_rows(content: Any) -> list[dict[str, Any]] | None:
    """Return the captions of HowTo100M's JSON, {video_id: {"start": […], "end": […], "text": […]}}, one row each.

    Returns:
        None if the content is something else.
    """
    lists = ("start", "end", "text")
    if not isinstance(content, dict) or not content:
        return None
    rows: list[dict[str, Any]] = []
    for video, captions in content.items():
        if not isinstance(captions, dict) or not all(isinstance(captions.get(name), list) for name in lists):
            return None
        if len({len(captions[name]) for name in lists}) > 1:
            return None
        columns = zip(*(captions[name] for name in lists), strict=True)
        rows += [{"video_id": video} | dict(zip(lists, values, strict=True)) for values in columns]
    return rows
