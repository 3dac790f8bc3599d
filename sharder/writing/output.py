"""Manage the output folder of a dataset: check the folder, record checkpoints, and rename the complete dataset.

The folder of an unfinished dataset has a file `progress.jsonl` with one line per checkpoint, and a file `job.json` that
describes the job.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from framedex.errors import FormatError, OutputError
from framedex.files.outputs import LOCK_NAME, held, remove_unfinished, write_aside
from framedex.files.parquet_parts import part_numbers
from framedex.sharder import schema
from framedex.sharder.layout import dataset_header, part_files

Row = dict[str, Any]

JOB_NAME, PROGRESS_NAME = "job.json", "progress.jsonl"


def check_output(out: Path, *, overwrite: bool) -> None:
    """Raise OutputError unless `out` is a new folder, an empty folder, or a dataset that may be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    own = {*schema.FOLDER_NAMES, *schema.APPENDED_FOLDERS, LOCK_NAME}
    names = {path.name for path in out.iterdir()} - own if out.is_dir() else {out.name}
    strange = sorted(name for name in names if not out.is_dir() or not schema.OWN_NAME.fullmatch(name))
    try:
        dataset_header(out)
    except FormatError as error:
        strange = strange or [error.what]
    if strange:
        raise OutputError(
            "the output folder has files that do not belong to a dataset",
            where=str(out),
            found=", ".join(strange[:5]),
            remedy="choose a new or empty folder",
        )
    if not overwrite:
        raise OutputError(
            "the output folder already has a dataset",
            where=str(out),
            remedy="pass --overwrite, or choose another folder",
        )


def unfinished_of(out: Path) -> Path:
    """Return the folder in which a dataset is written until it is complete.

    This folder has the same parent folder as `out` (or as the target of `out`, if `out` is a symbolic link).
    """
    real = Path(os.path.realpath(out))
    return real.with_name(f"{real.name}.unfinished")


def publish(folder: Path, out: Path, *, overwrite: bool) -> None:
    """Rename the folder of a complete dataset to `out`. With `overwrite`, an existing dataset is replaced.

    Raises:
        OutputError: `out` exists, and is neither an empty folder nor a dataset that may be replaced.
        OSError: A folder cannot be renamed or removed.
    """
    check_output(out, overwrite=overwrite)  # checked again, because the folder may have changed since the run began
    if overwrite and out.exists():
        replaced = out.with_name(f"{out.name}.replaced")
        with held(out):  # so that no other run is changing the dataset
            out.rename(replaced)
            folder.rename(out)
        shutil.rmtree(replaced)
    else:
        folder.rename(out)  # rename(2) replaces an empty folder, and fails if `out` is anything else


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """The additions to a dataset between the previous checkpoint and this one.

    Attributes:
        items: The number of items of the plan (clips and failures) that were processed.
        parts: The number of clips in each new part of `clips`.
        media: The number of new rows of `media`.
        frames: The number of frames of the new clips.
        shards: The new rows of `shards`.
        failures: The new rows of `failures`.
        digest: The digest of the new parts and of the new rows of `shards`.
    """

    items: int = 0
    parts: list[int] = field(default_factory=list)
    media: int = 0
    frames: int = 0
    shards: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """The first numbers of clips that are appended to a dataset. All are 0 for a new dataset.

    Attributes:
        clip: The number in the name of the first sample in a tar.
        medium: The number of the first medium.
        tar: The number of the first tar.
    """

    clip: int = 0
    medium: int = 0
    tar: int = 0


def take_up(folder: Path, job: Row, *, overwrite: bool, first_tar: int = 0) -> list[Checkpoint]:
    """Prepare the folder of an unfinished dataset, so that this run can continue after the last checkpoint.

    Files that belong to no checkpoint are removed.

    Args:
        folder: The folder of the unfinished dataset.
        job: The values that identify the job. A run can only continue a dataset with equal values.
        overwrite: Whether to start again if the dataset belongs to another job.
        first_tar: The number of the first tar.

    Returns:
        The checkpoints so far.

    Raises:
        OutputError: The dataset belongs to another job, and `overwrite` is False.
        OSError: A file cannot be read or removed.
    """
    path, progress = folder / JOB_NAME, folder / PROGRESS_NAME
    wanted = json.dumps(job, indent=1, sort_keys=True)
    if path.exists() and path.read_text(encoding="utf-8") != wanted:
        if not overwrite:
            raise OutputError(
                "there is an unfinished dataset of a run with another index, policy or options",
                where=str(folder),
                remedy="run the earlier command again to complete it, delete the folder, or pass --overwrite",
            )
        progress.unlink(missing_ok=True)
    write_aside(path, wanted.encode())
    checkpoints, good_bytes = _read(progress)
    if progress.exists():
        os.truncate(progress, good_bytes)
    # Remove parts and tars that belong to none of the checkpoints.
    for unclean in (folder, *(folder / name for name in schema.FOLDER_NAMES)):
        remove_unfinished(unclean)
    parts = sum(len(checkpoint.parts) for checkpoint in checkpoints)
    media = sum(checkpoint.media > 0 for checkpoint in checkpoints)
    for table, count in ((schema.CLIPS_FOLDER, parts), (schema.MEDIA_FOLDER, media)):
        first = part_files(table, 0)[0].parent  # the folder of the file that is written first
        for number in part_numbers(folder / first)[count:]:
            for path in reversed(part_files(table, number)):  # so that a killed run is seen here by the next one
                (folder / path).unlink(missing_ok=True)
    kept = first_tar + sum(len(checkpoint.shards) for checkpoint in checkpoints)
    for tar in (folder / schema.SHARDS_FOLDER).glob("*"):
        if (match := schema.TAR_NAME.fullmatch(tar.name)) and int(match[2]) >= kept:
            tar.unlink()
    return checkpoints


def note(folder: Path, checkpoint: Checkpoint) -> None:
    """Append the line of a checkpoint to `progress.jsonl`. Later runs continue after the last complete line."""
    line = json.dumps(asdict(checkpoint)).encode() + b"\n"
    with open(folder / PROGRESS_NAME, "ab", buffering=0) as file:
        begin = file.tell()
        try:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(begin)  # removes the incomplete line, because `_read` would ignore it and all later lines
            raise


def kept_items(folder: Path) -> int:
    """Return the number of items (clips and failures) before the last checkpoint of an unfinished dataset.

    Raises OSError.
    """
    return sum(checkpoint.items for checkpoint in _read(folder / PROGRESS_NAME)[0])


def _read(path: Path) -> tuple[list[Checkpoint], int]:
    """Return the checkpoints up to the first incomplete line, and the number of bytes of their lines."""
    found: list[Checkpoint] = []
    good_bytes = 0
    names = {entry.name for entry in fields(Checkpoint)}
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            content = json.loads(line)
            if not line.endswith(b"\n") or content.keys() != names:
                break
        except ValueError:
            break
        good_bytes += len(line)
        found.append(Checkpoint(**content))
    return found, good_bytes
