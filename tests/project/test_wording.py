"""The whole messages of typical mistakes, in one file: tests/data/wording.txt.

Other tests look at an error's class and parts. After a change of wording, `make wording` writes the file anew, and its
difference shows what users will read.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import framedex
from tests.support import made
from tests.support.datasets import attempt
from tests.support.running import ROOT

FILE = ROOT / "tests" / "data" / "wording.txt"
VIDEOS = ("h264_default.mp4", "h264_vfr.mkv", "hevc_closed.mp4")
POLICY = {"policy": "stride", "stride": 3, "frames": 4, "last": "drop"}
NAMES = {name: getattr(framedex, name) for name in framedex.__all__} | {"POLICY": POLICY}
INPUT = re.compile(r"^(?:\$ framedex (?P<command>.*)|>>> (?P<call>.*))$", re.MULTILINE)


@contextlib.contextmanager
def place() -> Iterator[None]:
    """Enter a folder with videos, a listing, an index, and datasets with and without tars."""
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
        for folder in ("videos", "notes"):
            Path(folder).mkdir()
        for name in VIDEOS:
            shutil.copy(made.media() / name, "videos")
        Path("notes/read.me").write_text("nothing to see")
        rows = [f"videos/{name},{label}" for name, label in zip(VIDEOS, ("walk", "run", "walk"), strict=True)]
        Path("list.csv").write_text("\n".join(["uri,label", *rows]) + "\n")
        Path("fps.yaml").write_text("policy: fps\nfps: 2\nframes: 8\n")
        quiet = {"workers": 0, "progress": False}
        framedex.index("list.csv", "INDEX", **quiet)
        framedex.shard("INDEX", "DATASET", policy=POLICY, **quiet)
        framedex.shard("INDEX", "PACKED", policy=POLICY, pack="clips", **quiet)
        yield


def said_by(match: re.Match[str]) -> str:
    """Return the output of a command, or the error that a call raises."""
    if match["command"]:
        result = attempt(*shlex.split(match["command"]))
        assert result.exit_code, f"{match[0]}: succeeds"
        # What stands before an error of usage is click's, not ours.
        return re.sub(r"(?s)^Usage: .*(?=Error: )", "", result.output).replace(f"{Path.cwd()}/", "").strip("\n")
    try:
        eval(match["call"], NAMES)
    except framedex.FramedexError as error:
        return f"{type(error).__name__}: {error}".replace(f"{Path.cwd()}/", "")
    raise AssertionError(f"{match[0]}: succeeds")


def anew(text: str) -> str:
    """Return the file with the message that each of its commands and calls gives now."""
    parts = []
    with place():
        for part in re.split(r"\n\n(?=# |\$ |>>> )", text.strip()):
            match = INPUT.match(part)
            parts.append(part if match is None else f"{match[0]}\n{said_by(match)}")
    return "\n\n".join(parts) + "\n"


def test_every_error_says_what_the_file_shows() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert len(INPUT.findall(text)) > 60
    assert anew(text) == text, "run `make wording`, and read the difference"


if __name__ == "__main__":
    FILE.write_text(anew(FILE.read_text(encoding="utf-8")), encoding="utf-8")
