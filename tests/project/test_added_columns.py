"""A column that is added to a record is in tables, JSON of samples, items, reserved names and the docs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.running import ROOT, environment

FOLDERS = ("framedex", "indexer", "sharder", "loader", "auditor", "configs", "docs", "benchmarks")
MEDIUM = "framedex/records/medium.py", "    media_id: str = column("
CLIP = "framedex/records/clip.py", "    clip_id: str = column("
PACKETS = "framedex/records/medium.py", "    pts: NDArray[np.int64] = column("

# (file, text in it, text in front of it): the changes that add a column of media, clips and packets.
OF_MEDIA = [
    (*MEDIUM, '    is_wide: bool | None = column(pa.bool_(), also_in=(MEDIA, SAMPLE), key="is_wide")\n'),
    ("framedex/records/medium.py", "        media_id: Stable", "        is_wide: Whether it is wider than high.\n"),
    ("indexer/facts.py", "    codec_tag: str | None = None\n    bits", "    is_wide: bool | None = None\n"),
    (
        "indexer/probing/probe.py",
        "        codec=context.codec.canonical_name,",
        "        is_wide=context.width > context.height,\n",
    ),
]
OF_PACKETS = [
    (*PACKETS, "    weight: NDArray[np.int32] | None = column(list_of(pa.int32()), rule=SIZE)\n"),
    ("framedex/records/medium.py", "        pts: Presentation timestamp", "        weight: Twice the size.\n"),
    (
        "framedex/records/medium.py",
        "    md5: Sequence[bytes | None] | None = None\n",
        "    weight: NDArray[np.int64] | None = None\n",
    ),
    (
        "indexer/probing/packet_facts.py",
        "        offset=demuxed.offset if",
        "        weight=2 * demuxed.size,\n",
    ),
    ("indexer/parts/packets.py", '        md5=row["md5"],', '        weight=row["weight"],\n'),
]
OF_CLIPS = [
    ("sharder/schema.py", "PROVES = ", 'SCHEMA_VERSION = "3.8"\n'),
    (
        *CLIP,
        '    weight: float | None = column(pa.float64(), since=(3, 8), also_in=(SAMPLE,), key="weight")\n',
    ),
    ("framedex/records/clip.py", "        clip_id: Unique", "        weight: Mean weight of its frames.\n"),
    (
        "sharder/planning/indexed_medium.py",
        "            mask=wanted.mask,",
        "            weight=float(self.packets.weight[self.planner.packet_of(wanted.frames)].mean()),\n",
    ),
]
SCRIPT = """
import json, shutil, sys, tarfile
from pathlib import Path
import pyarrow.parquet as pq
import framedex
from docs.generate import page_text

assert framedex.__file__.startswith(sys.argv[1]), framedex.__file__
quiet = {"workers": 0, "progress": False}
framedex.index(sys.argv[2], "INDEX", depth="packets", **quiet)
policy = {"policy": "windows", "frames": 4, "stride": 1}
framedex.shard("INDEX", "D", policy=policy, **quiet)
framedex.shard("INDEX", "P", policy=policy, pack="clips", **quiet)
(tar,) = Path("P/shards").glob("*.tar")
with tarfile.open(tar) as file:
    content = json.loads(next(file.extractfile(member).read() for member in file if member.name.endswith(".json")))
    file.fileobj.seek(0)
files = {"videos": "INDEX/videos", "frames": "INDEX/frames", "media": "D/media", "clips": "D/clips"}
tables = {name: pq.read_table(folder).to_pylist()[0] for name, folder in files.items()}
items = [dataset[0] for dataset in (framedex.ClipDataset("D"), framedex.ClipDataset("P"),
         framedex.ClipDataset.from_index("INDEX", policy))]
page = page_text("format.md")
Path("list.csv").write_text(f"uri,is_wide,weight\\n{sys.argv[2]},1,2\\n")
try:
    framedex.index("list.csv", "RESERVED", **quiet)
except framedex.FramedexError as error:
    reserved = str(error)
shutil.copytree("D", "EARLIER")  # as if a user's column had the name before framedex had it
header = json.loads(Path("D/dataset.json").read_text())
Path("EARLIER/dataset.json").write_text(json.dumps(header | {"schema_version": "3.7"}))
both = [framedex.ClipDataset(name) for name in ("D", "EARLIER")]
print(json.dumps({
    "tables": {name: {key: row.get(key) for key in ("is_wide", "weight", "size")} for name, row in tables.items()},
    "items": [[item["is_wide"], item["weight"]] for item in items],
    "sample": [content["weight"], json.loads(content["framedex"])["medium"]["is_wide"]],
    "of_users": [[dataset.columns, dataset.clip(0).weight is None] for dataset in both],
    "reserved": reserved,
    "docs": [f"| `{name}` |" in page for name in ("is_wide", "weight")],
}))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the project with one more column of media, of clips and of packets each."""
    tree = tmp_path / "tree"
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=ignored)
    for changes in (OF_MEDIA, OF_CLIPS, OF_PACKETS):
        assert len({file for file, *_ in changes}) <= 4
        for file, behind, text in changes:
            source = (tree / file).read_text(encoding="utf-8")
            assert source.count(behind) == 1, f"{file}: {behind}"
            (tree / file).write_text(source.replace(behind, text + behind), encoding="utf-8")
    return tree


def test_an_added_column_is_everywhere(tree: Path, medium: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    video = medium("h264_default.mp4")
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", tree, video],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tables, weight = found["tables"], found["sample"][0]
    assert (tables["videos"]["is_wide"], tables["media"]["is_wide"]) == (True, True)
    assert tables["frames"]["weight"] == [2 * size for size in tables["frames"]["size"]]
    assert weight > 0
    assert tables["clips"]["weight"] == weight
    assert found["items"] == [[True, weight]] * 3
    assert found["sample"][1] is True
    assert found["of_users"] == [[[], False], [["weight"], True]]
    assert "is_wide" in found["reserved"]
    assert "weight" in found["reserved"]
    assert found["docs"] == [True, True]
