"""A dataset on its way into object storage: written in a folder of this machine, tar by tar shipped, and its header last.

While a run writes there, `unfinished.json` says which one. A dataset is there once its header is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from framedex.errors import OutputError, StorageError
from framedex.indexer.parts import held, write_json_aside
from framedex.sharder.output import OWN_ENTRIES
from framedex.sharder.schema import HEADER, SHARDS_FOLDER
from framedex.storage.objects import Facts, delete, exists, put, upload, whole
from framedex.storage.outputs import check_writable
from framedex.storage.places import Stored

Row = dict[str, Any]

CLAIM_NAME = "unfinished.json"
REPORT_NAME = "report.json"
RUN_NAME = "run.json"
MOST_CLAIM_BYTES = 1 << 16


@dataclass(slots=True, kw_only=True)
class Shipment:
    """A run that writes a dataset to a uri. folder: of this machine, for this dataset alone. claim: what its claim is now."""

    to: Stored
    folder: Path
    claim: Facts

    @property
    def local(self) -> Path:
        """Where the dataset is written first."""
        return self.folder / "DATASET"

    def ship(self, *paths: Path, inside: Path) -> None:
        """Write files that are complete into the store, and remove them here. inside: the folder that they are named by."""
        self._check_claim()
        for path in paths:
            upload(path, f"{self.to.uri}/{path.relative_to(inside).as_posix()}")
        for path in paths:
            path.unlink()

    def deliver(self) -> None:
        """Write all that is left, and the header last. Raises OutputError where another run took this one's place."""
        header = self.local / HEADER
        rest = [path for path in sorted(self.local.rglob("*")) if path.is_file() and path != header]
        for path in rest:
            self.ship(path, inside=self.local)
        self._check_claim()
        put(f"{self.to.uri}/{HEADER}", header.read_bytes())
        delete([f"{self.to.uri}/{CLAIM_NAME}"])
        shutil.rmtree(self.folder)

    def note(self, report: Row) -> None:
        """Write down that the dataset is complete here, so that a run that is killed now only has to deliver it."""
        write_json_aside(self.folder / REPORT_NAME, report)

    def noted(self) -> Row | None:
        """Return what `note` wrote, None where the dataset is not complete yet."""
        path = self.folder / REPORT_NAME
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def _check_claim(self) -> None:
        if exists(f"{self.to.uri}/{CLAIM_NAME}") != self.claim:
            raise OutputError(
                "another run has taken this one's place",
                where=self.to.uri,
                found=f"another {CLAIM_NAME}",
                remedy="leave it to that run, or run again with --overwrite when it has ended",
            )


@contextlib.contextmanager
def shipped(to: Stored, job: Row, *, overwrite: bool, scratch: Path | None) -> Iterator[Shipment]:
    """Give the shipment of a dataset, begun or taken up again. scratch: where datasets are written first; None: in the
    system's folder for what is temporary. Raises OutputError for a place that is taken.
    """
    name = hashlib.blake2b(to.uri.encode(), digest_size=8).hexdigest()
    base = Path(tempfile.gettempdir()) / f"framedex-{os.getuid()}" if scratch is None else scratch
    folder = base / f"shard-{name}"
    check_writable(to)
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        yield Shipment(to=to, folder=folder, claim=_claimed(to, folder, json.dumps(job, sort_keys=True), overwrite))


def _claimed(to: Stored, folder: Path, job: str, overwrite: bool) -> Facts:
    """Return the claim of this run: that of the run that it takes up, or a new one."""
    uri = f"{to.uri}/{CLAIM_NAME}"
    names = to.names()
    run = folder / RUN_NAME
    mine = run.read_bytes() if run.exists() else None
    theirs = whole(uri, most=MOST_CLAIM_BYTES) if CLAIM_NAME in names else None
    if theirs is not None and theirs[0] == mine and json.loads(mine)["job"] == job:
        return theirs[1]
    _check_free(to, names, overwrite=overwrite, theirs=theirs is not None and theirs[0] != mine)
    # The header goes first: what has none is no dataset.
    delete([f"{to.uri}/{name}" for name in sorted(names, key=lambda name: (name != HEADER, name == CLAIM_NAME))])
    for path in folder.iterdir():
        if not path.name.startswith(".lock"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_json_aside(run, {"run": uuid.uuid4().hex, "job": job})
    try:
        return put(uri, run.read_bytes())
    except StorageError as error:
        if error.kind != "exists":
            raise
        raise OutputError("another run has just begun to write here", where=to.uri, remedy="wait for it") from error


def _check_free(to: Stored, names: list[str], *, overwrite: bool, theirs: bool) -> None:
    strange = sorted({name.split("/")[0] for name in names} - OWN_ENTRIES - {CLAIM_NAME})
    if strange:
        raise OutputError(
            "the place holds something else than a dataset",
            where=to.uri,
            found=", ".join(strange[:5]),
            remedy="choose another one",
        )
    if overwrite or not names:
        return
    if HEADER in names:
        raise OutputError(
            "there is a dataset already", where=to.uri, remedy="pass --overwrite, or choose another place"
        )
    if theirs:
        raise OutputError(
            "another run is writing here, or was broken off",
            where=to.uri,
            found=CLAIM_NAME,
            remedy="wait for it; or run its command again on its machine; or pass --overwrite to take its place",
        )


def as_row(report: Any) -> Row:
    """Return a report as plain values, without where the dataset is."""
    return {name: value for name, value in asdict(report).items() if name != "out"}


def shards_of(folder: Path) -> list[Path]:
    """Return the files of the tars in a folder."""
    return sorted((folder / SHARDS_FOLDER).glob("*"))
