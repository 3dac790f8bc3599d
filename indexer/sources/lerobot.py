"""Read LeRobot datasets as listings with one row for each episode and camera.

The formats 2.0, 2.1 and 3.0 are supported. A dataset is a folder with these files:

    meta/info.json              version, frame rate, features, and templates for file names
    meta/episodes/…             the files and tasks of each episode (version 2: meta/episodes.jsonl)
    meta/tasks.parquet          the text of each task, by its number (version 2: meta/tasks.jsonl)
    data/…                      Parquet files with one row for each frame: states, actions, episode and task numbers
    videos/…                    the videos, each of one camera. In version 3, a video may contain several episodes.
"""

import functools
import itertools
import json
import os
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.errors import SourceError, StorageError
from framedex.files.parquet_parts import read_all
from framedex.indexer.schema import LISTING_PROBLEM
from framedex.indexer.sources.folders import way_out
from framedex.indexer.sources.named_medium import FrameTable, NamedMedium
from framedex.records.columns import Row
from framedex.storage.places import Place, Stored, names_in, place, read_each, small_text
from framedex.storage.uris import leads_out

LEROBOT = "lerobot:"  # prefix of sources that are LeRobot datasets
INFO = "meta/info.json"
VERSIONS = ("v2.0", "v2.1", "v3.0")
UNREADABLE = (OSError, StorageError, ValueError, pa.ArrowException)
NO_ROWS = np.zeros(0, np.int64)
EPISODE_BYTES = 2000  # estimated memory of one episode as Python objects
CHUNK_EPISODES = 1000  # episodes per chunk if info.json lacks the value; LeRobot's default in version 2
NUMBER_FORM = re.compile(r"(?:0?[0-9]d?)?")  # allowed format specifications of numbers in file names, such as 03d


@dataclass(frozen=True, slots=True, kw_only=True)
class _Episode:
    """An episode, as the files in `meta/` describe it.

    Attributes:
        number: The number assigned to the episode (`episode_index`).
        length: The number of frames of the episode.
        tasks: The texts of the episode's tasks.
        data: The path of the Parquet file with the episode's frames, relative to the dataset.
        views: For each camera, (path of the video relative to the dataset, begin of the episode in the video, end of
            the episode in the video). The times are in seconds.
    """

    number: int
    length: int
    tasks: list[str]
    data: str
    views: dict[str, tuple[str, float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """The folder of a dataset.

    Files outside of the folder are never read, because the dataset may come from an untrusted source.
    """

    place: Place
    follow_symlinks: bool

    def __str__(self) -> str:
        return str(self.place)

    def file(self, name: str) -> Place:
        """Return the path of a file in the dataset. Raises SourceError if a link leads out of the folder."""
        if not isinstance(self.place, Stored) and not self.follow_symlinks:
            target = way_out(self.absolute(name), os.path.abspath(self.place), os.path.realpath)
            if target is not None:
                raise SourceError(
                    "a link leads out of the dataset's folder",
                    where=f"{self}/{name}",
                    found=target,
                    remedy="--follow-symlinks allows such links",
                )
        return self.place / name

    def absolute(self, name: str) -> str:
        """Return the absolute path or the uri of a file in the dataset."""
        return f"{self.place}/{name}" if isinstance(self.place, Stored) else os.path.abspath(self.place / name)

    def named(self, template: str, values: Mapping[str, int | str]) -> str:
        """Return the path of a file relative to the dataset, from a template.

        Args:
            template: The template from info.json, such as `data/chunk-{chunk_index:03d}/file.parquet`.
            values: The values of the placeholders that the template may contain.

        Raises:
            SourceError: The template contains other placeholders, or the path leads out of the folder.
        """
        _check_template(f"{self}/{INFO}", template, tuple(values))
        name = template.format(**values)
        if leads_out(name):
            raise SourceError(
                "the file contains a path that leads out of the dataset",
                where=f"{self}/{INFO}",
                found=name[:200],
                allowed="paths relative to the dataset's folder, without ..",
            )
        return name


@functools.lru_cache(16)  # cached, because the thousands of episodes of a dataset share two templates
def _check_template(where: str, template: str, names: tuple[str, ...]) -> None:
    """Raise SourceError if a template has placeholders that are not in `names`, or could make very long names."""
    for _, field, form, conversion in string.Formatter().parse(template):
        if field is not None and (field not in names or conversion or not NUMBER_FORM.fullmatch(form or "")):
            raise SourceError(
                "a template for file names is not supported",
                where=where,
                found=template[:200],
                allowed=f"the placeholders {', '.join(names)} in braces, and numbers of up to 9 digits",
            )


# The content of a Parquet file of frames, as a tuple of two values:
# 1. for the number of each episode, the numbers of its rows, int64, ascending
# 2. the number of the task of each row, int64 [rows]. None if the file does not have a column for tasks.
FrameNumbers = tuple[Mapping[int, NDArray[np.int64]], NDArray[np.int64] | None]


def read_lerobot(source: str, *, follow_symlinks: bool = False) -> Iterator[NamedMedium]:
    """Yield the mentions of the videos of a LeRobot dataset, one for each episode and camera.

    A mention (`NamedMedium`) is a row of a listing. The mentions have these user columns:

    - `dataset`: the folder of the dataset, as the user spells it.
    - `episode_index`: the number assigned to the episode.
    - `camera`: the name of the camera.
    - `start_seconds`, `end_seconds`: the times at which the episode begins and ends in the video, in seconds from the
      first frame.
    - `length`: the number of frames of the episode.
    - `task`: the text of the episode's task if there is exactly one, else null.
    - `tasks`: the texts of all tasks of the episode.
    - `listing_problem`: the reason why the row is wrong. Policies do not make clips of such a row.

    Args:
        source: The dataset, as the user spells it.
        follow_symlinks: Whether links may lead out of the dataset's folder. Links to videos are checked by `discover`.

    Raises:
        SourceError: The folder is not a LeRobot dataset, its folder `meta` is not readable, or a link leads out of the
            dataset.
    """
    folder = _Folder(place=place(source.removeprefix(LEROBOT)), follow_symlinks=follow_symlinks)
    info = _read_info(folder)
    cameras = [name for name, feature in info["features"].items() if feature.get("dtype") == "video"]
    if not cameras:
        raise SourceError(
            "the dataset does not have a camera whose frames are stored as video",
            where=f"{folder}/{INFO}",
            found=", ".join(f"{name}: {feature.get('dtype')}" for name, feature in info["features"].items()),
            remedy="images inside data/*.parquet are not read; convert them to videos with LeRobot's tools",
        )
    try:
        read = _read_episodes_3 if info["codebase_version"] == "v3.0" else _read_episodes_2
        episodes = sorted(read(folder, info, cameras), key=lambda episode: episode.number)
        twice = next((one for one, other in itertools.pairwise(episodes) if one.number == other.number), None)
        if twice is not None:
            number = f"episode_index {twice.number}"
            raise SourceError("two episodes have the same number", where=f"{folder}/meta/episodes", found=number)
        tasks = _read_tasks(folder, info)
    except (*UNREADABLE, LookupError, ArithmeticError, TypeError, AttributeError) as error:
        raise SourceError("the dataset's meta/ cannot be read", where=str(folder), found=repr(error)) from error
    files = list(dict.fromkeys(episode.data for episode in episodes))
    frames = dict(zip(files, read_each(folder.place, lambda name: _read_frames(folder, name), files), strict=True))
    for episode in episodes:
        yield from _mentions(folder, source, episode, frames[episode.data], tasks)


def _read_info(folder: _Folder) -> Row:
    """Return the content of meta/info.json. Raises SourceError."""
    try:
        info = json.loads(small_text(folder.file(INFO)))
        version = info["codebase_version"]
        if not isinstance(info["features"], dict):
            raise TypeError("features are not an object")
    except (*UNREADABLE, KeyError, TypeError) as error:
        raise SourceError(
            "the folder is not a LeRobot dataset",
            where=str(folder),
            found=f"{INFO}: {error!r}",
            allowed="a folder with the subfolders meta, data and videos",
        ) from error
    if version not in VERSIONS:
        raise SourceError(
            "the version of the dataset's format is not supported",
            where=f"{folder}/{INFO}",
            found=version,
            allowed=", ".join(VERSIONS),
            remedy="convert the dataset with LeRobot's tools",
        )
    return dict(info)


def _read_episodes_3(folder: _Folder, info: Row, cameras: Sequence[str]) -> list[_Episode]:
    """Return the episodes of a dataset of version 3."""
    own = ["episode_index", "tasks", "length", "data/chunk_index", "data/file_index"]
    of_views = {
        camera: [f"videos/{camera}/{name}" for name in ("chunk_index", "file_index", "from_timestamp", "to_timestamp")]
        for camera in cameras
    }
    wanted = own + [name for names in of_views.values() for name in names]
    below = folder.file("meta/episodes")
    if isinstance(below, Stored):
        names = names_in(below)
    else:
        names = sorted(
            os.path.relpath(os.path.join(base, name), below) for base, _, some in os.walk(below) for name in some
        )
    files = [f"meta/episodes/{name}" for name in names if name.endswith(".parquet")]
    if not files:
        raise FileNotFoundError(f"{folder}/meta/episodes has no Parquet files")
    found = []
    for table in read_each(
        folder.place, lambda name: read_all(folder.file(name), wanted, row_bytes=EPISODE_BYTES), files
    ):
        for row in table.to_pylist():
            views = {}
            for camera, (chunk, file, begin, end) in of_views.items():
                if row[file] is not None:  # some episodes lack a camera
                    numbers = {"chunk_index": row[chunk], "file_index": row[file]}
                    path = folder.named(info["video_path"], {"video_key": camera} | numbers)
                    views[camera] = path, row[begin], row[end]
            numbers = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
            data = folder.named(info["data_path"], numbers)
            number, length, tasks = row["episode_index"], row["length"], row["tasks"] or []
            found.append(_Episode(number=number, length=length, tasks=tasks, data=data, views=views))
    return found


def _read_episodes_2(folder: _Folder, info: Row, cameras: Sequence[str]) -> list[_Episode]:
    """Return the episodes of a dataset of version 2. Each episode has a separate video for each camera."""
    found = []
    for row in _json_lines(folder.file("meta/episodes.jsonl")):
        number, length = row["episode_index"], row["length"]
        names = {"episode_chunk": number // info.get("chunks_size", CHUNK_EPISODES), "episode_index": number}
        views = {
            camera: (folder.named(info["video_path"], {"video_key": camera} | names), 0.0, length / info["fps"])
            for camera in cameras
        }
        data = folder.named(info["data_path"], names)
        found.append(_Episode(number=number, length=length, tasks=row.get("tasks") or [], data=data, views=views))
    return found


def _read_tasks(folder: _Folder, info: Row) -> dict[int, str]:
    """Return the text of each task, by the number assigned to the task."""
    if info["codebase_version"] != "v3.0":
        return {row["task_index"]: row["task"] for row in _json_lines(folder.file("meta/tasks.jsonl"))}
    table = read_all(folder.file("meta/tasks.parquet"))
    # The texts are the index of a pandas table. pandas stores an index as a column, and its name may be missing.
    [text] = [name for name in table.column_names if name in ("task", "__index_level_0__")]
    return dict(zip(table["task_index"].to_pylist(), table[text].to_pylist(), strict=True))


def _json_lines(file: Place) -> list[Row]:
    return [json.loads(line) for line in small_text(file).splitlines() if line.strip()]


def _read_frames(folder: _Folder, name: str) -> FrameNumbers | str:
    """Return the content of a Parquet file of frames, or the reason why the file is not readable."""
    try:
        table = read_all(folder.file(name), ["episode_index", "task_index"])
        task = table["task_index"].to_numpy().astype(np.int64) if "task_index" in table.column_names else None
        episode = table["episode_index"].to_numpy().astype(np.int64)
    except (*UNREADABLE, KeyError) as error:
        return f"{name} cannot be read: {error}"
    order = np.argsort(episode, kind="stable")
    numbers, first = np.unique(episode[order], return_index=True)
    # Without rows, `numbers` is empty, but np.split returns one empty array. Therefore, the lengths are not compared.
    return dict(zip(numbers.tolist(), np.split(order, first[1:]), strict=False)), task


def _mentions(
    folder: _Folder, source: str, episode: _Episode, frames: FrameNumbers | str, tasks: Mapping[int, str]
) -> Iterator[NamedMedium]:
    """Yield the mention of the video of each camera of an episode."""
    row, names, problem = None, episode.tasks, frames if isinstance(frames, str) else None
    if not isinstance(frames, str):
        row, found, problem = _find_rows(episode, *frames, tasks)
        names = found or names
    for camera, (path, begin, end) in episode.views.items():
        yield NamedMedium(
            path=folder.absolute(path),
            spelled=f"{source.rstrip('/')}/{path}",
            columns={
                "dataset": source.removeprefix(LEROBOT).rstrip("/"),
                "episode_index": episode.number,
                "camera": camera,
                "start_seconds": begin,
                "end_seconds": end,
                "length": episode.length,
                "task": names[0] if len(names) == 1 else None,
                "tasks": names,
            }
            | ({} if problem is None else {LISTING_PROBLEM: problem}),
            folder=None if isinstance(folder.place, Stored) else str(folder),
            frame_table=None if row is None else FrameTable(path=folder.absolute(episode.data), row=row),
        )


def _find_rows(
    episode: _Episode,
    rows_of: Mapping[int, NDArray[np.int64]],
    task: NDArray[np.int64] | None,
    tasks: Mapping[int, str],
) -> tuple[int | None, list[str], str | None]:
    """Find an episode in its Parquet file of frames.

    Args:
        episode: The episode.
        rows_of: The numbers of the rows of each episode in the file.
        task: The number of the task of each row, or None.
        tasks: The text of each task, by its number.

    Returns:
        (the number of the episode's first row or None, the texts of the episode's tasks, the problem of the episode or
        None).
    """
    rows = rows_of.get(episode.number, NO_ROWS)
    if len(rows) != episode.length:
        found = f"{episode.data} has {len(rows)} frames of episode {episode.number}"
        return None, [], f"{found}, but meta/episodes states {episode.length}"
    if len(rows) and rows[-1] - rows[0] + 1 != len(rows):
        return None, [], f"the frames of episode {episode.number} are not contiguous in {episode.data}"
    first = int(rows[0]) if len(rows) else None
    if task is None:
        return first, [], None
    numbers = list(dict.fromkeys(task[rows].tolist()))
    if unknown := [number for number in numbers if number not in tasks]:
        return first, [], f"frames of episode {episode.number} have the task {unknown[0]}, which meta/tasks lacks"
    return first, [tasks[number] for number in numbers], None
