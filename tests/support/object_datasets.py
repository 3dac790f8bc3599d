"""Helpers for tests of object storage: a policy file and a comparison of datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from framedex import ClipDataset
from framedex.indexer.runs import build, work
from framedex.storage import objects


def index_here(out: str | Path, *sources: object, **how: Any) -> None:
    """Index sources in this process; `how`: other options of a run."""
    build.build_index(work.IndexOptions(sources=[str(source) for source in sources], out=out, workers=0, **how))


def forget_connections() -> None:
    """Forget which stores were opened, with the access and the servers that environment variables gave then."""
    objects._store.cache_clear()


def segments(folder: Path) -> Path:
    """Write a policy file that samples all frames in clips of 8; return its path."""
    path = folder / "segments.yaml"
    path.write_text("policy: stride\nstride: 1\nframes: 8\nlast: pad\n", encoding="utf-8")
    return path


def same(ours: ClipDataset, theirs: ClipDataset, what: str) -> None:
    """Check that two datasets have the same clips, reading them in shuffled order."""
    assert len(ours) == len(theirs) > 0
    for number in np.random.default_rng(1).permutation(len(ours)).tolist():
        mine, other = ours[number], theirs[number]
        assert np.array_equal(mine["frames"], other["frames"]), (what, number)
        assert np.array_equal(mine["pts"], other["pts"])
