"""Write a dataset into object storage. Files are written into a local folder first, and then uploaded.

Each tar is uploaded when it is complete, and the header is uploaded last. Readers consider the dataset to exist once
its header exists. While a run writes to a uri, the object `unfinished.json` at this uri (the claim) identifies the run,
so that no other run writes to the same uri.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framedex.errors import FormatError, OutputError, StorageError
from framedex.files.outputs import LOCK_NAME, check_writable, held, write_json_aside
from framedex.sharder.layout import dataset_header
from framedex.sharder.schema import CLAIM_NAME, HEADER, OWN_NAME
from framedex.storage.objects import Facts, delete, exists, listing, put, upload, whole
from framedex.storage.places import Stored

Row = dict[str, Any]

REPORT_NAME = "report.json"
RUN_NAME, CLEARED_NAME, SHIPPED_NAME = "run.json", "cleared", "shipped.json"
# Limit for reading `unfinished.json`. A claim has a few kilobytes, but an unrelated object of this name may be large.
MAX_CLAIM_BYTES = 1 << 16


@dataclass(slots=True, kw_only=True)
class Shipment:
    """The upload of a dataset to a uri by one run.

    Attributes:
        to: The uri of the dataset.
        folder: The local folder for this dataset and for the records of its upload.
        claim: The metadata of the object `unfinished.json` (the claim) that this run wrote to the uri.
    """

    to: Stored
    folder: Path
    claim: Facts

    @property
    def local(self) -> Path:
        """The local folder into which the dataset is written first."""
        return self.folder / "DATASET"

    def ship(self, *paths: Path, inside: Path) -> None:
        """Upload complete files, and remove the local copies.

        Args:
            paths: The local files.
            inside: The local folder that corresponds to the uri of the dataset. A path relative to this folder becomes
                the name of the object below the uri.
        """
        # The claim is checked before and after the upload. If another run has taken over the uri, the uploaded objects
        # must not be recorded as objects of this run.
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
        """Return {name: tag} of all objects that this run uploaded."""
        return _read_json(self.folder / SHIPPED_NAME) or {}

    def deliver(self) -> None:
        """Upload all remaining files, and the header last. Raises OutputError if another run has taken over the uri."""
        header = self.local / HEADER
        for path in [path for path in sorted(self.local.rglob("*")) if path.is_file() and path != header]:
            self.ship(path, inside=self.local)
        there = {uri[len(self.to.uri) + 1 :]: facts.tag for uri, facts in listing(self.to.uri)}
        if {name: there.get(name) for name in self._shipped()} != self._shipped():
            raise self._displaced()
        self._check_claim()
        put(f"{self.to.uri}/{HEADER}", header.read_bytes())
        self._release()

    def note(self, report: Row) -> None:
        """Record that the local dataset is complete, with its report. A later run then only has to upload it."""
        write_json_aside(self.folder / REPORT_NAME, report)

    def noted(self) -> Row | None:
        """Return the report that `note` recorded. Return None if the local dataset is not complete yet."""
        return _read_json(self.folder / REPORT_NAME)

    def withdraw(self) -> None:
        """Remove the claim and the local folder without uploading a dataset."""
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
            "another run has begun to write a dataset to this uri",
            where=self.to.uri,
            found=f"{CLAIM_NAME} or tars of another run",
            remedy="let the other run finish, or run again with --overwrite after it has ended",
        )


def _read_json(path: Path) -> Row | None:
    """Return the content of a JSON file that has one object. Return None if the file does not exist."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


@contextlib.contextmanager
def shipped(to: Stored, job: Row, *, overwrite: bool, scratch: Path | None) -> Iterator[Shipment]:
    """Begin or continue the upload of a dataset. This is a context manager, which locks the local folder.

    Args:
        to: The uri of the dataset.
        job: The values that identify the job. A run with equal values can continue an interrupted upload.
        overwrite: Whether a dataset at the uri, or another run's claim, may be replaced.
        scratch: The local folder in which datasets are written first. If None, a folder in the system's temporary
            folder is used.

    Raises:
        OutputError: The uri has other objects, a dataset or another run's claim, or the scratch folder belongs to
            another user.
    """
    name = hashlib.blake2b(to.uri.encode(), digest_size=8).hexdigest()
    base = Path(tempfile.gettempdir()) / f"framedex-{os.getuid()}" if scratch is None else scratch
    folder = base / f"shard-{name}"
    check_writable(to)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        raise OutputError(
            "the scratch folder belongs to another user", where=str(base), remedy="choose a folder with --scratch"
        )
    with held(folder):
        claim = _claim(to, folder, json.dumps(job, sort_keys=True), overwrite=overwrite)
        yield Shipment(to=to, folder=folder, claim=claim)


def _claim(to: Stored, folder: Path, job: str, *, overwrite: bool) -> Facts:
    """Return the metadata of the claim at the uri.

    If an earlier run of the same job was interrupted, its claim is kept. Otherwise a new claim is written, and the
    objects of the replaced dataset are removed.

    Raises:
        OutputError: The uri may not be used, or another run wrote a claim at the same time.
    """
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
            raise OutputError(
                "another run has just begun to write to this uri", where=uri, remedy="wait until it has ended"
            ) from error
    if not cleared.exists():
        # The names are listed again, because another run may have added objects before it ended. The header is deleted
        # first, so that readers do not see a dataset with missing files.
        rest = [name for name in to.names() if name != CLAIM_NAME and OWN_NAME.fullmatch(name)]
        delete([f"{to.uri}/{name}" for name in sorted(rest, key=lambda name: name != HEADER)])
        cleared.touch()
    return claim


def _check_free(to: Stored, names: list[str], *, overwrite: bool) -> None:
    """Raise OutputError if the uri has objects, except for objects of a dataset that may be replaced."""
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
            "the uri has objects that do not belong to a dataset",
            where=to.uri,
            found=", ".join(strange[:5]),
            remedy="choose another uri",
        )
    if overwrite:
        return
    if HEADER in names:
        raise OutputError(
            "the uri already has a dataset", where=to.uri, remedy="pass --overwrite, or choose another uri"
        )
    raise OutputError(
        "another run is writing to this uri, or was interrupted",
        where=to.uri,
        found=CLAIM_NAME,
        remedy="if another run is writing, wait for its end. If a run was interrupted, repeat its command on the same "
        "machine, or pass --overwrite",
    )
