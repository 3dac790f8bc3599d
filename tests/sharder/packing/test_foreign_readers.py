"""webdataset, DALI with our index, Hugging Face datasets and tar read the same bytes from packed datasets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex import Index
from tests.support.counted import some
from tests.support.datasets import run, write_clips
from tests.support.depth import drawn
from tests.support.packed import Sample, samples, tars

ROOT = Path(__file__).resolve().parents[3]

CLIPS = [
    {
        "uri": "h264_default.mp4",
        "frames": [number, number + 1, number + 2],
        "label": number,
        "caption": f"frame {number}",
    }
    for number in range(24)
]
PACKS = {"clips": ["--pack", "clips"], "images": ["--pack", "images"]}


@pytest.fixture(scope="module", params=PACKS)
def dataset(index: Index, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return the same clips in several tars, packed in either way."""
    out = tmp_path_factory.mktemp("foreign") / "D"
    path = write_clips(out.with_suffix(".jsonl"), CLIPS)
    run("shard", index.path, "--clips", path, "--out", out, *PACKS[request.param], "--shard-size", "60KB")
    assert len(tars(out)) > 2
    return out


@pytest.fixture(scope="module")
def expected(dataset: Path) -> dict[str, Sample]:
    """Return every sample as Python's own tar reader reads it."""
    return dict(samples(dataset))


def test_webdataset(dataset: Path, expected: dict[str, Sample]) -> None:
    import webdataset

    found = webdataset.WebDataset([str(path) for path in tars(dataset)], shardshuffle=False)
    read = {sample["__key__"]: {k: v for k, v in sample.items() if not k.startswith("__")} for sample in found}
    assert read == expected
    decoded = webdataset.WebDataset([str(path) for path in tars(dataset)], shardshuffle=False).decode("rgb8")
    labels = [sample["json"]["label"] for sample in decoded]
    assert labels == [clip["label"] for clip in CLIPS]


def test_dali_by_our_index(dataset: Path, expected: dict[str, Sample]) -> None:
    from nvidia.dali import fn, pipeline_def, types

    suffixes = list(next(iter(expected.values())))

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline() -> Any:
        paths = [str(path) for path in tars(dataset)]
        return tuple(
            fn.readers.webdataset(
                paths=paths,
                index_paths=[path.replace(".tar", ".idx") for path in paths],
                ext=suffixes,
                dtypes=[types.UINT8] * len(suffixes),
                missing_component_behavior="error",
            )
        )

    built = pipeline()
    built.build()
    for sample in some(expected.values()):
        read = dict(zip(suffixes, (np.asarray(output[0]).tobytes() for output in built.run()), strict=True))
        assert read == sample


@pytest.mark.usefixtures("torchcodec")
def test_hugging_face_datasets(dataset: Path, expected: dict[str, Sample], tmp_path: Path) -> None:
    import datasets

    loaded = datasets.load_dataset(
        "webdataset",
        data_files={"train": str(dataset / "shards" / "*.tar")},
        split="train",
        cache_dir=str(tmp_path),
    )
    assert loaded["__key__"] == list(expected)
    for column in loaded.column_names:
        if column.endswith(("jpg", "mp4")):
            loaded = loaded.cast_column(
                column, {"jpg": datasets.Image, "mp4": datasets.Video}[column[-3:]](decode=False)
            )
    for row, sample in zip(loaded, expected.values(), strict=True):
        content = json.loads(sample["json"])
        assert row["json"] == content
        for suffix in sample.keys() - {"json"}:
            assert row[suffix]["bytes"] == sample[suffix]


@pytest.mark.usefixtures("torchcodec")
def test_hugging_face_datasets_streaming(dataset: Path, expected: dict[str, Sample], tmp_path: Path) -> None:
    import datasets

    streamed = datasets.load_dataset(
        "webdataset",
        data_files={"train": str(dataset / "shards" / "*.tar")},
        split="train",
        streaming=True,
        cache_dir=str(tmp_path),
    )
    labels = [row["json"]["label"] for row in streamed.select_columns(["__key__", "json"])]
    assert labels == [clip["label"] for clip in CLIPS]


def test_tar(dataset: Path, expected: dict[str, Sample], tmp_path: Path) -> None:
    for path in tars(dataset):
        subprocess.run(["tar", "-xf", path, "-C", tmp_path], check=True)
    extracted = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert extracted == {f"{key}.{suffix}": file for key, sample in expected.items() for suffix, file in sample.items()}


SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "shards.md").read_text(encoding="utf-8"), re.DOTALL)
CALLS = {"pipeline()": "built = pipeline()\nbuilt.build()\nassert len(built.run()[0]) == 4\n"}


@pytest.mark.usefixtures("torchcodec")
@pytest.mark.parametrize("number", drawn("few long cases", range(len(SNIPPETS)), seed=1))
def test_the_documents_snippets_run(index: Index, tmp_path: Path, number: int) -> None:
    path = write_clips(tmp_path / "clips.jsonl", CLIPS[:6])
    run("shard", index.path, "--clips", path, "--out", tmp_path / "DATASET", "--pack", "clips")
    script = SNIPPETS[number] + "".join(call for name, call in CALLS.items() if name in SNIPPETS[number])
    environment = os.environ | {"HF_HOME": str(tmp_path / "hf")}
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
