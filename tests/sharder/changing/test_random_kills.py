"""Changes of an index or a dataset are killed at random times: readers see the old or the new one, never a third."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.sharder.changing.test_removing import KINDS, ids
from tests.support.datasets import content, run
from tests.support.depth import rounds
from tests.support.living import COUNT, NAME, Forks, write_listing

POLICY = "{policy: fps, fps: 4, frames: 2}"
SHARD = ("shard", "INDEX", "--policy", POLICY, *KINDS["clips"], "--out", "DATASET")
# By name: the folder that changes, and the command that is killed.
CHANGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "prune": ("INDEX", ("index", "listing.csv", "--out", "INDEX", "--prune", "--workers", "0")),
    "compact": ("INDEX", ("index", "--compact", "--out", "INDEX")),
    "remove": ("DATASET", ("shard", "DATASET", *(f"--remove=videos/{NAME.format(n)}.mp4" for n in (3, 12)))),
    "append": ("DATASET", (*SHARD, "--append", "--workers", "0")),
}


def prepare(place: Path, video: Path) -> None:
    """Make an index of which media can be pruned, and a dataset of some of its media."""
    (place / "videos").mkdir()
    for number in range(COUNT):
        shutil.copy(video, place / "videos" / f"{NAME.format(number)}.mp4")
    for count in (16, COUNT):
        run("index", write_listing(place, range(count)), "--out", place / "INDEX")
        if count < COUNT:
            run("shard", place / "INDEX", *SHARD[2:-1], place / "DATASET")
    write_listing(place, [number for number in range(COUNT) if number not in (2, 19)])


@pytest.mark.parametrize("name", CHANGES)
def test_a_kill_at_a_random_time_leaves_the_old_or_the_new(
    tmp_path: Path, medium: Callable[[str], Path], forks: Forks, name: str
) -> None:
    prepare(tmp_path, medium("h264_open_gop.mp4"))
    folder, command = CHANGES[name]
    place = tmp_path / folder
    shutil.copytree(place, tmp_path / "OLD")

    def seen() -> list[str]:
        if folder == "DATASET":
            return ids(place)
        return run("audit", place, "--sql", "SELECT uri FROM videos ORDER BY uri", "--format", "csv").output.split()

    def restore() -> None:
        for path in tmp_path.glob(f"{folder}*"):
            shutil.rmtree(path)
        shutil.copytree(tmp_path / "OLD", place)

    old = seen()
    assert forks.run(*command) == 0
    seconds = forks.seconds
    new, files = seen(), content(place)
    assert name == "compact" or new != old
    killed, random = 0, np.random.default_rng(len(name))
    for _ in range(rounds("kills of a change of an index or a dataset")):
        restore()
        killed += forks.run(*command, kill_after=seconds * random.random()) == -signal.SIGKILL
        assert seen() in (old, new)
        assert forks.run(*command) == 0
        assert seen() == new
        assert name == "compact" or content(place) == files  # compacting gives other numbers to parts
        assert [path.name for path in tmp_path.glob(f"{folder}*")] == [folder]
    assert killed
