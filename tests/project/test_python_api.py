"""The Python API gives the same results as the shell commands, also in scripts without a guard, and lists its names."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import framedex
from framedex import ClipDataset
from framedex.errors import FramedexError
from tests.support.datasets import run
from tests.support.policies import policy_of
from tests.support.running import environment

NAMES = ("h264_default.mp4", "hevc_closed.mp4", "h264_cropped.mp4")
POLICY = {"policy": "fps", "fps": 5, "frames": 4}
SCRIPT = """
import framedex

print("script", __name__)
indexed = framedex.index("videos", "INDEX", workers=1)
made = framedex.shard("INDEX", "DATASET", policy={"policy": "fps", "fps": 5, "frames": 4}, pack="clips", workers=1)
checked = framedex.verify("DATASET", workers=1)
loader = framedex.ClipLoader(framedex.ClipDataset("DATASET"), batch_size=2, num_workers=1, \
output="numpy", collate="list")
print(indexed.ok, made.clips, checked.is_exact, sum(len(batch["frames"]) for batch in loader))
"""


@pytest.fixture(scope="module")
def videos(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a folder of three videos, and an index and a dataset made by commands."""
    home = tmp_path_factory.mktemp("python_api")
    (home / "videos").mkdir()
    for name in NAMES:
        (home / "videos" / name).symlink_to(medium(name))
    run("index", home / "videos", "--out", home / "INDEX", "--follow-symlinks")
    run("shard", home / "INDEX", "--policy", json.dumps(POLICY), "--out", home / "DATASET")
    return home


def tables(folder: Path) -> dict[str, object]:
    """Return the rows of all Parquet files, except the values that differ between runs."""
    return {
        str(path.relative_to(folder)): pq.read_table(path).drop_columns(
            [name for name in ("probe_seconds",) if name in pq.read_schema(path).names]
        )
        for path in sorted(folder.rglob("*.parquet"))
    }


def test_an_index_and_a_dataset_are_those_of_the_commands(videos: Path, tmp_path: Path) -> None:
    indexed = framedex.index(videos / "videos", tmp_path / "INDEX", follow_symlinks=True)
    assert (indexed.ok, indexed.new, indexed.failed) == (3, 3, 0)
    assert tables(tmp_path / "INDEX") == tables(videos / "INDEX")
    made = framedex.shard(tmp_path / "INDEX", tmp_path / "DATASET", policy=POLICY)
    assert made.clips == len(ClipDataset(videos / "DATASET")) > 0
    assert tables(tmp_path / "DATASET") == tables(videos / "DATASET")
    assert framedex.shard(tmp_path / "INDEX", tmp_path / "DATASET", policy=POLICY).finished
    with pytest.raises(FramedexError, match="already has a dataset"):
        framedex.shard(tmp_path / "INDEX", tmp_path / "DATASET", policy=POLICY, keep_damaged=True)


def test_clips_are_mappings_or_a_file(videos: Path, tmp_path: Path) -> None:
    clips = [{"uri": name, "frames": np.array([2, 0, 1]), "caption": name.upper()} for name in NAMES]
    made = framedex.shard(videos / "INDEX", tmp_path / "A", clips=clips)
    assert (made.clips, made.failed) == (3, 0)
    file = tmp_path / "clips.jsonl"
    file.write_text("".join(json.dumps(clip | {"frames": [2, 0, 1]}) + "\n" for clip in clips))
    framedex.shard(framedex.Index(videos / "INDEX"), tmp_path / "B", clips=file)
    assert tables(tmp_path / "A") == tables(tmp_path / "B")
    item = ClipDataset(tmp_path / "A")[1]
    assert item["caption"] == NAMES[1].upper()
    assert item["frame_index"].tolist() == [2, 0, 1]
    with pytest.raises(FramedexError, match="clip 2"):
        framedex.shard(videos / "INDEX", tmp_path / "C", clips=[clips[0], {"uri": NAMES[1], "frames": {1, 2}}])
    with pytest.raises(FramedexError, match="either policy or clips"):
        framedex.shard(videos / "INDEX", tmp_path / "C")


def test_verifying_and_asking(videos: Path, tmp_path: Path) -> None:
    checked = framedex.verify(videos / "DATASET")
    assert checked.is_exact
    assert checked.verdicts == {"exact": checked.clips}
    assert checked.clips == len(ClipDataset(videos / "DATASET"))
    assert framedex.verify(videos / "DATASET", sample=2).clips == 2
    with pytest.raises(FramedexError, match="too few workers"):
        framedex.verify(videos / "DATASET", workers=-1)
    with pytest.raises(FramedexError, match="unknown decode"):
        framedex.verify(videos / "DATASET", decode="tpu")  # type: ignore[arg-type]

    one = framedex.audit(videos / "INDEX", checks="open_gops")
    assert [*(finding.check.name for finding in one.findings), *(check.name for check in one.passed)] == ["open_gops"]
    report = tmp_path / "report.html"
    found = framedex.audit(videos / "INDEX", report=report, pictures=False)
    assert found.as_json() == json.loads(run("audit", videos / "INDEX", "--json").stdout)
    assert report.exists()
    with pytest.raises(FramedexError, match="exists already"):
        framedex.audit(videos / "INDEX", report=report)
    framedex.audit(videos / "INDEX", report=report, pictures=False, overwrite=True)
    with pytest.raises(FramedexError, match=r"\.html"):
        framedex.audit(videos / "INDEX", report=tmp_path / "report.pdf")

    table = framedex.query(videos / "INDEX", "SELECT uri, count(*) AS n FROM frames GROUP BY uri")
    assert set(table["uri"].to_pylist()) == set(NAMES)
    assert min(table["n"].to_pylist()) > 0
    with pytest.raises(FramedexError, match="a single statement that only reads"):
        framedex.query(videos / "INDEX", "DROP TABLE videos")


def test_a_script_needs_no_guard(videos: Path, tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    for path in (videos / "videos").iterdir():
        (tmp_path / "videos" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    clips = len(ClipDataset(tmp_path / "DATASET"))
    assert done.stdout.splitlines() == ["script __main__", f"3 {clips} True {clips}"]


def test_what_a_script_defines_reaches_its_workers(videos: Path, tmp_path: Path) -> None:
    """The script has a guard, because its workers import it."""
    script = (
        "import sys\nfrom framedex import ClipDataset, ClipLoader\n"
        "class Mine(ClipDataset):\n"
        "    def clip(self, number, *, epoch=None):\n        return super().clip(0, epoch=epoch)\n"
        "if __name__ == '__main__':\n"
        "    loader = ClipLoader(Mine(sys.argv[1]), batch_size=2, num_workers=1, output='numpy', collate='list')\n"
        "    print({name for batch in loader for name in batch['clip_id']})\n"
    )
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "script.py", str(videos / "DATASET")]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str({ClipDataset(videos / "DATASET").clip(0).clip_id})


def test_policies_come_with_the_package(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = Path(framedex.__file__).parent / "configs"
    names = {path.stem for path in shipped.glob("*.yaml")}
    assert {"fps", "windows", "uniform", "random"} <= names
    assert policy_of("fps") == policy_of(shipped / "fps.yaml") == policy_of(str(shipped / "fps.yaml"))
    assert (
        policy_of("{policy: fps, fps: 5, frames: 4}")
        == policy_of("policy: fps\nfps: 5\nframes: 4")
        == policy_of(POLICY)
    )
    monkeypatch.chdir(tmp_path)
    Path("fps").write_text("{policy: frames, frames: [0]}")
    assert policy_of("fps").resolved["policy"] == "frames", "a file of that name goes first"
    for said, told in (
        ("fsp", "did you mean 'fps'"),
        ("no/such.yaml", "cannot be read"),
        ("{policy: fps, fps", "not valid YAML"),
    ):
        with pytest.raises(FramedexError, match=told):
            policy_of(said)
    run("shard", videos / "INDEX", "--policy", "uniform", "--out", tmp_path / "D")
    assert "did you mean" in run("shard", videos / "INDEX", "--policy", "strid", "--out", tmp_path / "E", code=1).output
    text = "{policy: fps, fps: 5, frames: 4, filter: '" + " or ".join(["width > 0"] * 40) + "'}"
    run("shard", videos / "INDEX", "--policy", text, "--out", tmp_path / "LONG")
    run("shard", videos / "INDEX", "--policy", (shipped / "uniform.yaml").as_uri(), "--out", tmp_path / "URI")
    assert len(ClipDataset(tmp_path / "LONG")) == len(ClipDataset(videos / "DATASET"))
    dataset = ClipDataset.from_index(videos / "INDEX", "uniform")
    assert len(dataset) == len(ClipDataset(tmp_path / "URI"))
    assert len(dataset) == len(ClipDataset(tmp_path / "D"))


def test_the_package_and_a_dataset_say_what_they_have(videos: Path, tmp_path: Path) -> None:
    assert dir(framedex) == sorted(framedex.__all__)
    for name in framedex.__all__:
        if name != "clip_pipeline":  # it needs DALI
            assert getattr(framedex, name) is not None
    clips = len(ClipDataset(videos / "DATASET"))
    assert repr(ClipDataset(videos / "DATASET")) == f"<ClipDataset {videos / 'DATASET'}: {clips} clips>"
    framedex.shard(
        videos / "INDEX", tmp_path / "D", clips=[{"uri": NAMES[0], "frames": [0], "caption": "a", "label": 3}]
    )
    assert repr(ClipDataset(tmp_path / "D")) == f"<ClipDataset {tmp_path / 'D'}: 1 clip, columns caption, label>"
    planned = ClipDataset.from_index(videos / "INDEX", POLICY)
    assert repr(planned) == f"<ClipDataset {videos / 'INDEX'}: {clips} clips, planned from an index>"
