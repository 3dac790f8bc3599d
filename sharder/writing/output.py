"""The folder of a dataset: whether it may be used, its checkpoints while it is unfinished, and its renaming at the end.

An unfinished dataset has a line of `progress.jsonl` for each checkpoint, and `job.json` with their job.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from framedex.errors import FormatError, OutputError
from framedex.files.headers import check_format
from framedex.files.outputs import remove_unfinished, write_aside
from framedex.files.parquet_parts import part_numbers, part_path
from framedex.sharder import schema
from framedex.storage.places import Place

Row = dict[str, Any]

JOB_NAME, PROGRESS_NAME = "job.json", "progress.jsonl"
TAR_NAME = re.compile(r"[a-z]+-(\d{6,})\.(?:tar|idx)")


def dataset_header(out: Place) -> Row:
    """Return the header of a dataset. Raises FormatError if there is none, or it is of another version."""
    return check_format(
        out, file_name=schema.HEADER, expected=schema.FORMAT, version=schema.SCHEMA_VERSION, what="a framedex dataset"
    )


def check_output(out: Path, *, overwrite: bool) -> None:
    """Raise OutputError unless `out` is new, empty, or a dataset that may be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    own = {*schema.FILE_NAMES, *schema.FOLDER_NAMES}
    strange = sorted({path.name for path in out.iterdir()} - own) if out.is_dir() else [out.name]
    try:
        dataset_header(out)
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


def unfinished_of(out: Path) -> Path:
    """Return the folder of a dataset until it is complete. If `out` is a link, it lies beside the link's target."""
    real = Path(os.path.realpath(out))
    return real.with_name(f"{real.name}.unfinished")


def publish(folder: Path, out: Path, *, overwrite: bool) -> None:
    """Rename a complete dataset to its name, in place of one that may be replaced. Raises OutputError, OSError."""
    check_output(out, overwrite=overwrite)  # again: the folder may have changed since the run began
    if overwrite and out.exists():
        replaced = out.with_name(f"{out.name}.replaced")
        out.rename(replaced)
        folder.rename(out)
        shutil.rmtree(replaced)
    else:
        folder.rename(out)  # rename(2) replaces an empty folder, and fails for anything else


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """The additions of one checkpoint.

    Attributes:
        items: Number of clips and failures that were processed, in the order of the plan.
        parts: Number of clips in each part.
        media: Number of new media.
        frames: Number of frames of the clips.
        shards: Rows of `shards`.
        failures: Rows of `failures`.
        digest: Digest of the parts and of `shards`.
    """

    items: int = 0
    parts: list[int] = field(default_factory=list)
    media: int = 0
    frames: int = 0
    shards: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)
    digest: str = ""


def take_up(folder: Path, job: Row, *, overwrite: bool) -> list[Checkpoint]:
    """Return the checkpoints of an unfinished dataset of the same job, and remove the files that they do not cover.

    Args:
        overwrite: Start again if the dataset belongs to another job.

    Raises:
        OutputError: The dataset belongs to another job, and `overwrite` is False.
        OSError: A file cannot be read or removed.
    """
    path, progress = folder / JOB_NAME, folder / PROGRESS_NAME
    wanted = json.dumps(job, indent=1, sort_keys=True)
    if path.exists() and path.read_text(encoding="utf-8") != wanted:
        if not overwrite:
            raise OutputError(
                "an unfinished dataset of another plan is in the way",
                where=str(folder),
                remedy="run that command again to complete it, delete the folder, or pass --overwrite",
            )
        progress.unlink(missing_ok=True)
    write_aside(path, wanted.encode())
    checkpoints, good_bytes = _read(progress)
    if progress.exists():
        os.truncate(progress, good_bytes)
    _remove_beyond(folder, checkpoints)
    return checkpoints


def note(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the line of a checkpoint; from then on the checkpoint counts."""
    line = json.dumps(asdict(checkpoint)).encode() + b"\n"
    with open(folder / PROGRESS_NAME, "ab", buffering=0) as file:
        begin = file.tell()
        try:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(begin)  # `_read` ignores all lines after an incomplete one
            raise


def kept_items(folder: Path) -> int:
    """Return the number of clips and failures that the checkpoints of an unfinished dataset cover. Raises OSError."""
    return sum(checkpoint.items for checkpoint in _read(folder / PROGRESS_NAME)[0])


def _read(path: Path) -> tuple[list[Checkpoint], int]:
    """Return the checkpoints up to the first line that was not written completely, and the bytes of their lines."""
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


def _remove_beyond(folder: Path, checkpoints: list[Checkpoint]) -> None:
    """Remove parts and tars that do not belong to a checkpoint."""
    for unclean in (folder, *(folder / name for name in schema.FOLDER_NAMES)):
        remove_unfinished(unclean)
    parts = sum(len(checkpoint.parts) for checkpoint in checkpoints)
    media = sum(checkpoint.media > 0 for checkpoint in checkpoints)
    for name, count in ((schema.CLIPS_FOLDER, parts), (schema.RECIPES_FOLDER, parts), (schema.MEDIA_FOLDER, media)):
        for number in part_numbers(folder / name)[count:]:
            part_path(folder / name, number).unlink()
    kept = sum(len(checkpoint.shards) for checkpoint in checkpoints)
    for path in (folder / schema.SHARDS_FOLDER).glob("*"):
        if (match := TAR_NAME.fullmatch(path.name)) and int(match[1]) >= kept:
            path.unlink()
