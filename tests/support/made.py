"""Things that many tests only read, made once per machine: media, their full decodes and their indexes.

They lie in FRAMEDEX_TEST_CACHE, or in ~/.cache/framedex-tests. The name of a folder there has a digest of all that
decides its contents: the recipe, the versions of the libraries, and the source files that make it. So an edited indexer
never reads an old index. Tests that change files must copy them first: a folder that was changed is an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import av
import numpy
import pyarrow

from benchmarks.exactness import Oracle, full_decode
from framedex import Index
from framedex import index as make_index
from tests.support.hazards import HAZARDS
from tests.support.media import RECIPES, make, make_long

ROOT = Path(__file__).resolve().parents[2]
EDITS = ("bitstream_edits", "h26x_edits", "mpeg_edits", "still_edits")
MEDIA_SOURCES = tuple(f"tests/support/{name}.py" for name in ("media", "hazards", *EDITS))
INDEX_SOURCES = (*MEDIA_SOURCES, "indexer", "framedex")
KEPT = 6  # versions of one thing
Kind = Literal["media", "hazards"]
RECIPES_OF = {"media": RECIPES, "hazards": HAZARDS}
CONTENTS = ".contents.json"


def cache() -> Path:
    """Return the folder for this machine."""
    named = os.environ.get("FRAMEDEX_TEST_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "framedex-tests"


@functools.cache
def digest_of(*sources: str) -> str:
    """Return a digest of source files (all Python files of folders) and of the libraries that media depend on."""
    digest = hashlib.blake2b(digest_size=10)
    digest.update(f"{av.__version__} {av.ffmpeg_version_info} {numpy.__version__} {pyarrow.__version__}".encode())
    for source in sources:
        path = ROOT / source
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):  # rglob does not follow links
            name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
            digest.update(f"\0{name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def folder(name: str, *sources: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of a thing.

    Args:
        name: what it is.
        sources: the files and folders of the project that decide what is made.
        make: makes it in the folder that it is given, which is there and has its final name; called if the machine
            does not have it.

    Raises:
        AssertionError: something has changed the folder since it was made.
    """
    place = cache() / name / digest_of(*sources)
    with _locked(place):
        if not (place / CONTENTS).exists():
            shutil.rmtree(place, ignore_errors=True)  # of a run that was killed
            place.mkdir(parents=True)
            make(place)
            (place / CONTENTS).write_text(json.dumps(_contents(place)), encoding="utf-8")
            _forget_old(place.parent)
        os.utime(place / CONTENTS)
    _check(place)
    return place


@functools.cache
def _check(place: Path) -> None:
    changed = dict(json.loads((place / CONTENTS).read_text(encoding="utf-8"))).items() ^ _contents(place).items()
    names = sorted({name for name, _ in changed})
    assert not names, f"{place}: a test has changed {names}; copy what you change, and remove this folder"


def _contents(place: Path) -> dict[str, str]:
    """Return the size and time of every file."""
    found = {}
    for path in sorted(place.rglob("*")):
        if path.is_file() and path.name != CONTENTS:
            status = path.stat()
            found[str(path.relative_to(place))] = f"{status.st_size} {status.st_mtime_ns}"
    return found


@functools.cache
def media(kind: Kind = "media") -> Path:
    """Return a folder with the files of all recipes of a kind."""

    def encode_all(place: Path) -> None:
        (place / "videos").mkdir()
        for recipe in RECIPES_OF[kind].values():
            make(recipe, place / "videos")

    return folder(kind, *MEDIA_SOURCES, make=encode_all) / "videos"


def long_mp4() -> Path:
    """Return the file of `media.make_long`."""

    def encode(place: Path) -> None:
        make_long(place)

    return folder("long", *MEDIA_SOURCES, make=encode) / "end.mp4"


@functools.cache
def truth(kind: Kind = "media") -> Oracle:
    """Return the full decode of all recipes of a kind."""

    def decode_all(place: Path) -> None:
        found = {path.name: full_decode(path, 0) for path in sorted(media(kind).iterdir())}
        (place / "frames.json").write_text(json.dumps(found), encoding="utf-8")

    sources = (*MEDIA_SOURCES, "benchmarks/exactness.py", "indexer/containers.py")
    text = (folder(f"truth-{kind}", *sources, make=decode_all) / "frames.json").read_text(encoding="utf-8")
    return {(name, 0): [(pts, md5) for pts, md5 in frames] for name, frames in json.loads(text).items()}


def index(depth: str) -> Index:
    """Return an index of all recipes at a depth."""

    def build(place: Path) -> None:
        report = make_index(media(), place / "INDEX", depth=depth, workers=0, progress=False)
        assert report.problems == []

    return Index(folder(f"index-{depth}", *INDEX_SOURCES, make=build) / "INDEX")


def corpus_index(corpus: Path) -> Index:
    """Return an index of the corpus of hazards, whose manifest names all that lies there."""

    def build(place: Path) -> None:
        make_index(corpus, place / "INDEX", workers=0, progress=False)

    return Index(folder("index-corpus", *INDEX_SOURCES, str(corpus / "manifest.json"), make=build) / "INDEX")


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _forget_old(parent: Path) -> None:
    """Remove the versions of a thing that were not used for longest."""
    versions = sorted(parent.glob(f"*/{CONTENTS}"), key=lambda path: path.stat().st_mtime_ns)
    for old in versions[:-KEPT]:
        shutil.rmtree(old.parent, ignore_errors=True)
