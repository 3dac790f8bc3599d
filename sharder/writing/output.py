"""The place of a dataset: whether its folder may be used, and the step in which a complete dataset gets its name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from framedex.errors import FormatError, OutputError
from framedex.files.headers import check_format
from framedex.sharder.schema import (
    CLIPS_FOLDER,
    COLUMNS_NAME,
    FAILURES_NAME,
    FIELDS_NAME,
    FORMAT,
    HEADER,
    MEDIA_FOLDER,
    POLICY_NAME,
    RECIPES_FOLDER,
    SCHEMA_VERSION,
    SHARDS_FOLDER,
    SHARDS_NAME,
)

OWN_ENTRIES = {
    HEADER,
    POLICY_NAME,
    FAILURES_NAME,
    SHARDS_NAME,
    COLUMNS_NAME,
    FIELDS_NAME,
    CLIPS_FOLDER,
    RECIPES_FOLDER,
    MEDIA_FOLDER,
    SHARDS_FOLDER,
}


def check_output(out: Path, *, overwrite: bool) -> None:
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


def unfinished_of(out: Path) -> Path:
    """Return where a dataset lies until it is complete. If `out` is a link, this is beside what it points to."""
    real = Path(os.path.realpath(out))
    return real.with_name(f"{real.name}.unfinished")


def publish(folder: Path, out: Path, *, overwrite: bool) -> None:
    """Rename a complete dataset to its name, in place of one that may be replaced. Raises OutputError, OSError."""
    check_output(out, overwrite=overwrite)  # again: the place may have changed since the run began
    if overwrite and out.exists():
        replaced = out.with_name(f"{out.name}.replaced")
        out.rename(replaced)
        folder.rename(out)
        shutil.rmtree(replaced)
    else:
        folder.rename(out)  # onto nothing or an empty folder; anything else is an error
