"""Writing a dataset: parts and checkpoints in a folder `OUT.unfinished`, which gets the dataset's name when all is there.

After each checkpoint, what was written stays valid: a run that is killed or finds the disk full is completed by the same
command. A checkpoint is a line of `progress.jsonl`; what no line speaks of is written anew. Where clips are packed into
tars, there is a checkpoint whenever a tar is complete, and never while one is not: so the same plan gives the same parts
and the same tars, however often it was interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray

from framedex.errors import FormatError, OutputError
from framedex.indexer.parts import (
    LOCK_NAME,
    PartWriter,
    check_format,
    exclusive,
    library_versions,
    part_numbers,
    part_path,
    remove_unfinished,
    table_of,
    write_aside,
    write_json_aside,
    write_part,
)
from framedex.sharder.audio import AudioFile, ClipAudioPlan
from framedex.sharder.clip import Clip
from framedex.sharder.media import Medium
from framedex.sharder.recipe import Recipe
from framedex.sharder.schema import (
    CLIPS,
    CLIPS_FOLDER,
    CLIPS_PER_PART,
    CLIPS_PER_ROW_GROUP,
    DELTA_COLUMNS,
    FAILURES,
    FAILURES_NAME,
    FORMAT,
    HEADER,
    MEDIA,
    MEDIA_FOLDER,
    MEDIA_PER_ROW_GROUP,
    PAD,
    POLICY_NAME,
    RECIPES,
    RECIPES_FOLDER,
    SCHEMA_VERSION,
    SHARDS,
    SHARDS_FOLDER,
    SHARDS_NAME,
)
from framedex.sharder.sources import SourceFiles
from framedex.sharder.tars import TAR_END, Member, Tar, sample_bytes

Row = dict[str, Any]

JOB_NAME, PROGRESS_NAME = "job.json", "progress.jsonl"
OWN_ENTRIES = {
    HEADER,
    POLICY_NAME,
    FAILURES_NAME,
    SHARDS_NAME,
    CLIPS_FOLDER,
    RECIPES_FOLDER,
    MEDIA_FOLDER,
    SHARDS_FOLDER,
}
FAILURES_PER_CHECKPOINT = 65_536
MOST_ITEMS_A_TAR = 65_536  # clips and failures; bounds what a run holds in memory and what it does again
KEY_DIGITS = 9
TAR_NAME = re.compile(r"[a-z]+-(\d{6,})\.(?:tar|idx)")
DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A clip that cannot be had: a row of failures.parquet."""

    clip_id: str | None
    uri: str | None
    kind: str
    message: str
    counts: bool = True


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """What one checkpoint added. items: clips and failures dealt with, in the order of the plan. parts: clips in each."""

    items: int = 0
    parts: list[int] = field(default_factory=list)
    media: int = 0
    frames: int = 0
    shards: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What a dataset holds, this run's and earlier runs' work together. resumed: items that earlier runs dealt with."""

    out: Path
    clips: int
    media: int
    frames: int
    shards: int
    resumed: int
    failures: list[Row]

    @property
    def failed(self) -> int:
        """How many clips failed, without what a policy left out by its own rules."""
        return sum(failure["counts"] for failure in self.failures)

    @property
    def left_out(self) -> dict[str, int]:
        """How many clips a policy left out by its own rules, by kind."""
        kinds = [failure["kind"] for failure in self.failures if not failure["counts"]]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


@dataclass(frozen=True, slots=True, kw_only=True)
class TarLayout:
    """How tars are cut. prefix: of their names. size_bytes: a new one begins when a clip would not fit."""

    prefix: str
    size_bytes: int


class DatasetWriter:
    """Takes the clips and failures of a plan in order. A context manager: it holds `OUT.unfinished` for itself alone.

    job: what makes two runs the same, plain JSON values; an unfinished dataset of another job is refused. done: items that
    an earlier run dealt with, which are not to be given again. tars: where clips are packed; None where none is. Raises
    OutputError.
    """

    def __init__(
        self, out: Path, *, job: Row, user_schema: pa.Schema, overwrite: bool, tars: TarLayout | None = None
    ) -> None:
        self._named, self._job, self._overwrite = out, job, overwrite
        self._out = Path(os.path.realpath(out))
        self._folder = self._out.with_name(f"{self._out.name}.unfinished")
        self._clips_schema = pa.unify_schemas([CLIPS, user_schema])
        self._checkpoints: list[Checkpoint] = []
        self._media_rows: dict[str, int] = {}
        self._layout, self._sources = tars, SourceFiles()
        self._begin_checkpoint()

    def _begin_checkpoint(self) -> None:
        self._now = Checkpoint()
        self._media: list[Row] = []
        self._clips: list[Row] = []
        self._recipes: list[Row] = []
        self._tar: Tar | None = None

    @property
    def folder(self) -> Path:
        """Where the dataset lies until it is complete."""
        return self._folder

    def __enter__(self) -> DatasetWriter:
        _check_output(self._out, self._overwrite)
        with contextlib.ExitStack() as held:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(exclusive(self._folder))
                self._resume()
            except OSError as error:
                raise OutputError(
                    "the output folder cannot be written", where=str(self._folder), found=error
                ) from error
            self._held = held.pop_all()
        self.done = sum(checkpoint.items for checkpoint in self._checkpoints)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._tar is not None:
            self._tar.abandon()
        self._held.close()
        if self._folder.exists() and not self._checkpoints:
            shutil.rmtree(self._folder, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in DISK_IS_FULL:
            raise self._full(error) from error

    def _full(self, error: OSError) -> OutputError:
        kept = sum(sum(checkpoint.parts) for checkpoint in self._checkpoints)
        return OutputError(
            "the dataset cannot be written to the end",
            where=str(self._folder),
            found=error.strerror,
            remedy=f"make room and run the same command again: {kept} clips are kept",
        )

    def _resume(self) -> None:
        """Take up an unfinished dataset of the same job; remove what its last checkpoint does not cover."""
        job, progress = self._folder / JOB_NAME, self._folder / PROGRESS_NAME
        wanted = json.dumps(self._job, indent=1, sort_keys=True)
        if job.exists() and job.read_text(encoding="utf-8") != wanted:
            if not self._overwrite:
                raise OutputError(
                    "an unfinished dataset of another plan is in the way",
                    where=str(self._folder),
                    remedy="run that command again to complete it, delete the folder, or pass --overwrite",
                )
            progress.unlink(missing_ok=True)
        write_aside(job, wanted.encode())
        self._checkpoints = list(_read_progress(progress))
        remove_unfinished(self._folder)
        counts = {
            CLIPS_FOLDER: sum(len(checkpoint.parts) for checkpoint in self._checkpoints),
            RECIPES_FOLDER: sum(len(checkpoint.parts) for checkpoint in self._checkpoints),
            MEDIA_FOLDER: sum(checkpoint.media > 0 for checkpoint in self._checkpoints),
        }
        for name, count in counts.items():
            remove_unfinished(self._folder / name)
            for number in part_numbers(self._folder / name)[count:]:
                part_path(self._folder / name, number).unlink()
        remove_unfinished(self._folder / SHARDS_FOLDER)
        kept = sum(len(checkpoint.shards) for checkpoint in self._checkpoints)
        for path in (self._folder / SHARDS_FOLDER).glob("*"):
            if (match := TAR_NAME.fullmatch(path.name)) and int(match[1]) >= kept:
                path.unlink()
        for number in range(counts[MEDIA_FOLDER]):
            names = pq.read_table(part_path(self._folder / MEDIA_FOLDER, number), columns=["media_id"])["media_id"]
            self._media_rows |= {name: len(self._media_rows) + row for row, name in enumerate(names.to_pylist())}

    @property
    def key(self) -> str:
        """The name of the next clip's sample: the clip's number in the dataset."""
        return f"{sum(self._clips_done) + len(self._clips):0{KEY_DIGITS}d}"

    @property
    def _clips_done(self) -> list[int]:
        return [count for checkpoint in self._checkpoints for count in checkpoint.parts]

    def add(self, clip: Clip, members: Sequence[Member] = ()) -> None:
        """Write a clip, and where it has members, them into a tar; then its ranges count in their joined content.

        Raises OSError, and StaleError for members' files that are gone or changed; then nothing of the clip was taken.
        """
        shard, recipe = None, clip.recipe
        if members:
            tar = self._tar_for(members)
            shift = _shift_into(members, tar.add(self.key, members))
            recipe = replace(recipe, range_offset=shift(recipe.range_offset))
            clip = _audio_shifted(clip, shift)
            shard = sum(len(checkpoint.shards) for checkpoint in self._checkpoints)
        self._now.items += 1
        self._clips.append(self._clip_row(clip) | {"shard": shard})
        self._recipes.append(_recipe_row(clip.clip_id, recipe) | _audio_row(clip.audio))
        self._now.frames += len(clip.frame_index)
        self._checkpoint_if_due()

    def fail(self, failure: Failure) -> None:
        """Note a clip that cannot be had."""
        self._now.items += 1
        self._now.failures.append(asdict(failure))
        self._checkpoint_if_due()

    def _tar_for(self, members: Sequence[Member]) -> Tar:
        """Return the tar that a sample goes into: the one begun, while it has room."""
        assert self._layout is not None  # members come with a layout
        size = sample_bytes(members) + len(TAR_END)
        if self._tar is not None and self._tar.samples and self._tar.size + size > self._layout.size_bytes:
            self._checkpoint()
        if self._tar is None:
            number = sum(len(checkpoint.shards) for checkpoint in self._checkpoints)
            path = self._folder / SHARDS_FOLDER / f"{self._layout.prefix}-{number:06d}.tar"
            self._tar = Tar(path, self._sources)
        return self._tar

    def _checkpoint_if_due(self) -> None:
        if self._tar is not None:
            due = self._now.items >= MOST_ITEMS_A_TAR
        else:
            due = len(self._clips) >= CLIPS_PER_PART or len(self._now.failures) >= FAILURES_PER_CHECKPOINT
        if due:
            self._checkpoint()

    def _close_tar(self) -> None:
        if self._tar is None:
            return
        tar = self._tar
        if not tar.samples:
            tar.abandon()
            return
        mark = tar.close()
        self._now.shards.append(
            {
                "name": str(tar.path.relative_to(self._folder)),
                "size_bytes": tar.size,
                "fingerprint": mark,
                "clips": tar.samples,
            }
        )

    def _media_row(self, medium: Medium) -> int:
        if medium.media_id not in self._media_rows:
            self._media_rows[medium.media_id] = len(self._media_rows)
            self._media.append({name: getattr(medium, name) for name in MEDIA.names})
        return self._media_rows[medium.media_id]

    def _clip_row(self, clip: Clip) -> Row:
        padded = clip.frame_index == PAD
        return {
            "clip_id": clip.clip_id,
            "media_row": self._media_row(clip.medium),
            "frames": clip.frame_index,
            "mask": clip.mask,
            "pts": _null_where(padded, clip.pts),
            "seconds": _null_where(padded, clip.seconds),
            "md5": clip.md5,
            **clip.columns,
        }

    def _checkpoint(self) -> None:
        """Write what has gathered, and then the line that says so."""
        now, folder = self._now, self._folder
        if not now.items:
            return
        self._close_tar()
        written = []
        part = sum(len(checkpoint.parts) for checkpoint in self._checkpoints)
        if self._media:
            number = sum(checkpoint.media > 0 for checkpoint in self._checkpoints)
            written.append(part_path(folder / MEDIA_FOLDER, number))
            _write_groups(written[-1], MEDIA, self._media, MEDIA_PER_ROW_GROUP, ())
        for first in range(0, len(self._clips), CLIPS_PER_PART):
            rows = slice(first, first + CLIPS_PER_PART)
            number = part + len(now.parts)
            for name, schema, table, delta in (
                (RECIPES_FOLDER, RECIPES, self._recipes, DELTA_COLUMNS),
                (CLIPS_FOLDER, self._clips_schema, self._clips, ()),
            ):
                written.append(part_path(folder / name, number))
                _write_groups(written[-1], schema, table[rows], CLIPS_PER_ROW_GROUP, delta)
            now.parts.append(len(self._clips[rows]))
        now.media = len(self._media)
        digests = [*map(_content_digest, written), json.dumps(now.shards).encode()]
        now.digest = hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()
        with open(folder / PROGRESS_NAME, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(now)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._checkpoints.append(now)
        self._begin_checkpoint()

    def commit(self, *, root: str, resolved: Row, pack: Row) -> ShardReport:
        """Write what is left, give the dataset its name, and return what it holds. pack: what tars hold."""
        self._checkpoint()
        done, folder = self._checkpoints, self._folder
        failures = [row for checkpoint in done for row in checkpoint.failures]
        shards = [row for checkpoint in done for row in checkpoint.shards]
        write_part(folder / FAILURES_NAME, table_of(failures, FAILURES), version=SCHEMA_VERSION)
        if shards:
            write_part(folder / SHARDS_NAME, table_of(shards, SHARDS), version=SCHEMA_VERSION)
        write_aside(folder / POLICY_NAME, yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True).encode())
        clips = [count for checkpoint in done for count in checkpoint.parts]
        media = [checkpoint.media for checkpoint in done if checkpoint.media]
        if not clips:  # the tables are there all the same, with their columns
            for name, schema in ((CLIPS_FOLDER, self._clips_schema), (RECIPES_FOLDER, RECIPES), (MEDIA_FOLDER, MEDIA)):
                _write_groups(part_path(folder / name, 0), schema, [], 1, ())
            clips, media = [0], [0]
        header = {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "root": root,
            **pack,
            "clips_per_part": clips,
            "media_per_part": media,
            "build": hashlib.blake2b(
                "".join(checkpoint.digest for checkpoint in done).encode(), digest_size=16
            ).hexdigest(),
            "libraries": library_versions(),
        }
        write_json_aside(folder / HEADER, header)
        self._publish()
        return ShardReport(
            out=self._named,
            clips=sum(clips),
            media=sum(media),
            frames=sum(checkpoint.frames for checkpoint in done),
            shards=len(shards),
            resumed=self.done,
            failures=failures,
        )

    def _publish(self) -> None:
        _check_output(self._out, self._overwrite)  # once more: much may have happened since the run began
        for name in (JOB_NAME, PROGRESS_NAME, LOCK_NAME):
            (self._folder / name).unlink(missing_ok=True)
        if self._overwrite and self._out.exists():
            replaced = self._out.with_name(f"{self._out.name}.replaced")
            self._out.rename(replaced)
            self._folder.rename(self._out)
            shutil.rmtree(replaced)
        else:
            self._folder.rename(self._out)  # onto nothing or an empty folder; anything else is an error


def _read_progress(path: Path) -> Iterator[Checkpoint]:
    """Yield the checkpoints of an unfinished dataset; a line that was not written to its end ends them."""
    if not path.exists():
        return
    names = {entry.name for entry in fields(Checkpoint)}
    good = 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            content = json.loads(line)
            if not line.endswith(b"\n") or content.keys() != names:
                break
        except ValueError:
            break
        good += len(line)
        yield Checkpoint(**content)
    os.truncate(path, good)


def _check_output(out: Path, overwrite: bool) -> None:
    """Raise OutputError unless `out` is new, empty, or a dataset that may be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    strange = sorted({path.name for path in out.iterdir()} - OWN_ENTRIES) if out.is_dir() else [out.name]
    try:
        check_format(out, file_name=HEADER, expected=FORMAT, version=SCHEMA_VERSION, what="a framedex dataset")
    except FormatError as error:
        strange = strange or [error.what]
    if strange:
        raise OutputError(
            "the output folder holds something else than a dataset",
            where=str(out),
            found=", ".join(strange[:5]),
            remedy="choose a new or empty folder",
        )
    if not overwrite:
        raise OutputError(
            "the output folder holds a dataset already",
            where=str(out),
            remedy="pass --overwrite, or choose another folder",
        )


def _content_digest(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _write_groups(path: Path, schema: pa.Schema, rows: list[Row], group: int, delta: tuple[str, ...]) -> None:
    writer = PartWriter(path, schema, version=SCHEMA_VERSION, delta=delta)
    for at in range(0, len(rows), group):
        writer.write(table_of(rows[at : at + group], schema))
    writer.commit()


def _shift_into(members: Sequence[Member], offsets: Sequence[int]) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Return a function that turns positions in the joined content of members into positions in their tar."""
    begins = np.cumsum([0, *map(len, members)])
    shift = np.array(offsets, np.int64) - begins[:-1]
    return lambda position: position + shift[np.searchsorted(begins, position, side="right") - 1]


def _audio_shifted(clip: Clip, shift: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Clip:
    """Return a clip whose audio file lies in a tar."""
    if clip.audio is None:
        return clip
    assert isinstance(clip.audio.recipe, AudioFile)  # what is packed has its audio beside it
    offset = int(shift(np.array([clip.audio.recipe.offset]))[0])
    return replace(clip, audio=replace(clip.audio, recipe=replace(clip.audio.recipe, offset=offset)))


def _audio_row(audio: ClipAudioPlan | None) -> Row:
    """Return the columns of `recipes` that say what a clip's audio is."""
    if audio is None:
        return {}
    row = {
        "audio_rate": audio.rate,
        "audio_channels": audio.channels,
        "audio_first": audio.first,
        "audio_count": audio.count,
    }
    if isinstance(audio.recipe, AudioFile):
        return row | {
            "audio_range_offset": np.array([audio.recipe.offset], np.int64),
            "audio_range_length": np.array([audio.recipe.length], np.int64),
            "audio_present": audio.recipe.present,
        }
    return row | {
        f"audio_{name}": getattr(audio.recipe, name)
        for name in ("range_offset", "range_length", "packet_size", "packet_sample", "begin_sample", "end_sample")
    }


def _null_where(padded: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[Any]:
    return np.ma.masked_array(values, padded) if padded.any() else values


def _recipe_row(clip_id: str, recipe: Recipe) -> Row:
    own = (name for name in RECIPES.names[1:] if not name.startswith("audio_"))
    return {"clip_id": clip_id} | {name: getattr(recipe, name) for name in own}
