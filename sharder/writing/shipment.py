"""Writing of a dataset into object storage: first into a local folder, then tar by tar into the store, header last.

While a run writes to the uri, `unfinished.json` names that run. A dataset exists as soon as its header exists.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framedex.errors import FormatError, OutputError, StorageError
from framedex.files.outputs import LOCK_NAME, check_writable, held, write_json_aside
from framedex.files.parquet_parts import PART_NAME
from framedex.sharder.schema import CLIPS_FOLDER, FILE_NAMES, HEADER, MEDIA_FOLDER, RECIPES_FOLDER, SHARDS_FOLDER
from framedex.sharder.writing.output import TAR_NAME, dataset_header
from framedex.storage.objects import Facts, delete, exists, listing, put, upload, whole
from framedex.storage.places import Stored

Row = dict[str, Any]

CLAIM_NAME = "unfinished.json"
REPORT_NAME = "report.json"
RUN_NAME, CLEARED_NAME, SHIPPED_NAME = "run.json", "cleared", "shipped.json"
MAX_CLAIM_BYTES = 1 << 16  # a claim has a few kilobytes; an unrelated object of that name may have any size
# Replacing a dataset removes only objects with these names.
OWN_NAME = re.compile(
    rf"(?:{CLIPS_FOLDER}|{RECIPES_FOLDER}|{MEDIA_FOLDER})/{PART_NAME.pattern}|{SHARDS_FOLDER}/{TAR_NAME.pattern}"
    rf"|{'|'.join(map(re.escape, (*FILE_NAMES, CLAIM_NAME)))}"
)


@dataclass(slots=True, kw_only=True)
class Shipment:
    """A run that writes a dataset to a uri.

    Attributes:
        folder: Local folder that only this dataset uses.
        claim: The facts of this run's claim, an object that marks the uri as taken.
    """

    to: Stored
    folder: Path
    claim: Facts

    @property
    def local(self) -> Path:
        """The local folder into which the dataset is written first."""
        return self.folder / "DATASET"

    def ship(self, *paths: Path, inside: Path) -> None:
        """Write complete files into the store, and remove the local ones.

        Args:
            inside: The folder to which the objects' names are relative.
        """
        # Checked on both sides of the upload: a run that lost its place must not record the objects as its own.
        self._check_claim()
        done = self._shipped()
        for path in paths:
            name = path.relative_to(inside).as_posix()
            done[name] = upload(path, f"{self.to.uri}/{name}").tag
        self._check_claim()
        write_json_aside(self.folder / SHIPPED_NAME, done)
        for path in paths:
            path.unlink()

    def _shipped(self) -> dict[str, str]:
        """Return the names of all objects that this run wrote, with their tags."""
        return _read_json(self.folder / SHIPPED_NAME) or {}

    def deliver(self) -> None:
        """Write all remaining files, the header last. Raises OutputError if another run took this run's place."""
        header = self.local / HEADER
        rest = [path for path in sorted(self.local.rglob("*")) if path.is_file() and path != header]
        for path in rest:
            self.ship(path, inside=self.local)
        there = {uri[len(self.to.uri) + 1 :]: facts.tag for uri, facts in listing(self.to.uri)}
        if {name: there.get(name) for name in self._shipped()} != self._shipped():
            raise self._displaced()
        self._check_claim()
        put(f"{self.to.uri}/{HEADER}", header.read_bytes())
        self._release()

    def note(self, report: Row) -> None:
        """Record that the local dataset is complete. If the run is killed now, the next run only delivers it."""
        write_json_aside(self.folder / REPORT_NAME, report)

    def noted(self) -> Row | None:
        """Return the report that `note` recorded, or None if the dataset is not complete yet."""
        return _read_json(self.folder / REPORT_NAME)

    def withdraw(self) -> None:
        """Give the place up without a dataset."""
        self._check_claim()
        self._release()

    def _release(self) -> None:
        """Remove the claim and the local folder."""
        delete([f"{self.to.uri}/{CLAIM_NAME}"])
        shutil.rmtree(self.folder)

    def _check_claim(self) -> None:
        if exists(f"{self.to.uri}/{CLAIM_NAME}") != self.claim:
            raise self._displaced()

    def _displaced(self) -> OutputError:
        return OutputError(
            "another run has taken this one's place",
            where=self.to.uri,
            found=f"another {CLAIM_NAME}, or other tars",
            remedy="leave it to that run, or run again with --overwrite when it has ended",
        )


def _read_json(path: Path) -> Row | None:
    """Return the object of a JSON file, or None if the file does not exist."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


@contextlib.contextmanager
def shipped(to: Stored, job: Row, *, overwrite: bool, scratch: Path | None) -> Iterator[Shipment]:
    """Provide the shipment of a dataset, new or continued.

    Args:
        scratch: The local folder for datasets that are being written; None for the system's temporary folder.

    Raises:
        OutputError: The place is taken.
    """
    name = hashlib.blake2b(to.uri.encode(), digest_size=8).hexdigest()
    base = Path(tempfile.gettempdir()) / f"framedex-{os.getuid()}" if scratch is None else scratch
    folder = base / f"shard-{name}"
    check_writable(to)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        raise OutputError("the scratch folder is somebody else's", where=str(base), remedy="choose one with --scratch")
    with held(folder):
        claim = _claim(to, folder, json.dumps(job, sort_keys=True), overwrite=overwrite)
        yield Shipment(to=to, folder=folder, claim=claim)


def _claim(to: Stored, folder: Path, job: str, *, overwrite: bool) -> Facts:
    """Return the claim of the run that this run continues, or else put a new claim. Raises OutputError."""
    uri, names = f"{to.uri}/{CLAIM_NAME}", to.names()
    run, cleared = folder / RUN_NAME, folder / CLEARED_NAME
    mine = run.read_bytes() if run.exists() else None
    theirs = whole(uri, most=MAX_CLAIM_BYTES) if CLAIM_NAME in names else None
    if theirs is not None and mine is not None and theirs[0] == mine and json.loads(mine)["job"] == job:
        claim = theirs[1]
    else:
        _check_free(to, names, overwrite=overwrite)
        for path in folder.iterdir():
            if not path.name.startswith(LOCK_NAME):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_json_aside(run, {"run": uuid.uuid4().hex, "job": job})
        try:
            claim = put(uri, run.read_bytes(), replaces=None if theirs is None else theirs[1])
        except StorageError as error:
            if error.kind not in ("exists", "changed"):
                raise
            raise OutputError("another run has just begun to write here", where=uri, remedy="wait for it") from error
    if not cleared.exists():
        # Listed again, because a run may have ended in the meantime. The header goes first, so that readers do not see
        # a dataset that lacks files.
        rest = [name for name in to.names() if name != CLAIM_NAME and OWN_NAME.fullmatch(name)]
        delete([f"{to.uri}/{name}" for name in sorted(rest, key=lambda name: name != HEADER)])
        cleared.touch()
    return claim


def _check_free(to: Stored, names: list[str], *, overwrite: bool) -> None:
    """Raise OutputError unless the uri is empty, or has nothing but a dataset that may be removed."""
    if not names:
        return
    strange = [name for name in names if not OWN_NAME.fullmatch(name)]
    if HEADER in names:
        try:
            dataset_header(to)
        except FormatError as error:
            strange = strange or [f"{HEADER}: {error.what}"]
    elif CLAIM_NAME not in names:
        strange = strange or names
    if strange:
        raise OutputError(
            "the place holds something else than a dataset",
            where=to.uri,
            found=", ".join(strange[:5]),
            remedy="choose another one",
        )
    if overwrite:
        return
    if HEADER in names:
        raise OutputError(
            "there is a dataset already", where=to.uri, remedy="pass --overwrite, or choose another place"
        )
    raise OutputError(
        "another run is writing here, or was broken off",
        where=to.uri,
        found=CLAIM_NAME,
        remedy="wait for it; or run its command again on its machine; or pass --overwrite to take its place",
    )
