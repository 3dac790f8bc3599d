"""docs/design.md lists the actual rooms, and the actual calls that load a clip. (test_layering.py checks imports.)"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from framedex import ClipDataset
from tests.project.test_layering import ROOMS
from tests.support.datasets import run

ROOT = Path(__file__).resolve().parents[2]
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
STEP = re.compile(r"^(\d+)\. `([\w/]+\.py)`: `([\w.]+)`", re.MULTILINE)


def called_by(function: Callable[[], object]) -> list[tuple[str, str]]:
    """Call a function and return (file, function) of the project's functions that it enters, by first call."""
    seen: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename).resolve()
        if event == "call" and path.is_relative_to(ROOT):
            seen.setdefault((path.relative_to(ROOT).as_posix(), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return list(seen)


def test_a_clip_takes_the_way_that_is_told(medium: Callable[[str], Path], tmp_path: Path) -> None:
    steps = STEP.findall(DESIGN)
    assert [int(number) for number, *_ in steps] == list(range(1, 13))
    run("index", medium("h264_default.mp4"), "--out", tmp_path / "INDEX", "--depth", "tables")
    dataset = ClipDataset.from_index(tmp_path / "INDEX", {"policy": "frames", "frames": [9, 2, 20, 2]})
    entered = called_by(lambda: dataset[0])
    told = [(path, function) for _, path, function in steps]
    assert [call for call in entered if call in told] == told


def test_every_room_is_drawn() -> None:
    drawing = DESIGN.split("## Rooms")[1].split("```")[1]
    lines = [line.split(maxsplit=1) for line in drawing.splitlines() if line.strip()]
    drawn = {
        room if stage == "floor" else f"{stage}.{room}" for stage, rooms in lines for room in re.findall(r"\w+", rooms)
    }
    beside = {"framedex", "bench", "indexer", "sharder", "loader", "auditor"}  # modules beside folders
    assert drawn == set(ROOMS) - beside


def test_paths_of_the_design_exist() -> None:
    named = set(
        re.findall(r"`((?:framedex|indexer|sharder|loader|auditor|configs|docs|tests|benchmarks)/[\w./]*)`", DESIGN)
    )
    assert len(named) > 60
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
