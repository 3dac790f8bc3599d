"""Output for the media in tests/data/guard is what it was when `make guard` wrote the hashes.

They are compared under the versions of packages that made them, since others encode, round and print in other ways.
"""

from __future__ import annotations

import json
import tempfile
from importlib import metadata
from pathlib import Path

from tests.support.guarded import guarded
from tests.support.outcomes import OTHER_VERSIONS, skip_but_in_ci
from tests.support.running import ROOT

FILE = ROOT / "tests" / "data" / "guard.json"
PACKAGES = ("av", "duckdb", "numpy", "orjson", "pillow", "pyarrow", "pydantic")


def versions() -> dict[str, str]:
    """Return the versions on which the hashes depend."""
    return {name: metadata.version(name) for name in PACKAGES}


def test_what_is_written_and_printed_is_what_it_was(tmp_path: Path) -> None:
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    if recorded["versions"] != versions():
        skip_but_in_ci(OTHER_VERSIONS)
    expected, found = recorded["hashes"], guarded(tmp_path)
    assert len(found) > 1000
    differing = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    assert not differing, f"{len(differing)} of {len(found)} differ: {differing[:20]}; make guard writes them anew"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        record = {"versions": versions(), "hashes": guarded(Path(scratch))}
    FILE.write_text(json.dumps(record, indent=0, sort_keys=True) + "\n", encoding="utf-8")
