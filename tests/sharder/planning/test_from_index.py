"""ClipDataset.from_index gives the clips of `framedex shard`, planned on request and drawn again in each epoch."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from framedex import AudioOptions, ClipDataset, ClipLoader, ClipSampler, Index
from framedex.errors import DamageError, FormatError, FramedexError, PolicyError, StaleError
from framedex.execution.spawning import SharedNumber
from framedex.sharder.policies.sampling import draws
from tests.support.datasets import run
from tests.support.depth import drawn
from tests.support.media import read_barcode
from tests.support.running import ROOT, environment

Policy = dict[str, Any]

POLICIES: dict[str, Policy] = {
    "fps": {"policy": "fps", "fps": 5, "frames": 4},
    "jittered": {"policy": "fps", "fps": 5, "frames": 4, "jitter_seconds": 0.05, "seed": 3},
    "tolerant": {"policy": "fps", "fps": 8, "frames": 4, "jitter_seconds": 0.05, "tolerance_seconds": 0.03},
    "windows": {"policy": "windows", "frames": 6, "stride": 2, "step": 9, "jitter_frames": 2, "last": "drop"},
    "short": {"policy": "stride", "stride": 3, "frames": 15, "short": "skip"},
    "random": {"policy": "random", "clips": 3, "frames": 4, "fps": 10},
    "keyframes": {"policy": "keyframes", "frames": 2, "last": "drop", "pad": "edge"},
    "uniform": {"policy": "uniform", "frames": 5, "spread": "ends"},
    "whole": {"policy": "fps", "fps": 3},
    "splits": {"policy": "frames", "frames": [0, 3], "split": {"shares": {"train": 2, "val": 1}},
               "filter": "width > 100"},
}  # fmt: skip


def sharded(index: Path, policy: Policy, out: Path, *options: object) -> ClipDataset:
    """Return the dataset that `framedex shard` makes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(policy))
    run("shard", index, "--policy", file, "--out", out, "--max-failures", 100_000, *options)
    return ClipDataset(out)


def same(one: object, other: object) -> bool:
    """Return whether two values are equal. Arrays are compared by type and element, and NaN equals NaN."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return one == other


def assert_same_clip(planned: Any, stored: Any) -> None:
    names = {field.name for field in fields(planned)} - {"media_row", "shard", "recipe", "audio", "audio_source"}
    assert {"frames", "md5", "medium", "stretch_first", "anchor_frame", "view_name"} < names
    for name in sorted(names):
        assert same(getattr(planned, name), getattr(stored, name)), f"{planned.clip_id}: {name}"
    for field in fields(stored.recipe):
        found, expected = (getattr(clip.recipe, field.name) for clip in (planned, stored))
        assert same(found, expected), f"{planned.clip_id}: recipe.{field.name}"
    assert (planned.audio is None) == (stored.audio is None)
    if planned.audio is not None and stored.audio is not None:
        assert (planned.audio.rate, planned.audio.first, planned.audio.count) == (
            stored.audio.rate, stored.audio.first, stored.audio.count,
        )  # fmt: skip
        for name in ("range_offset", "range_length", "packet_size", "packet_sample", "begin_sample", "end_sample"):
            assert same(getattr(planned.audio.recipe, name), getattr(stored.audio.recipe, name)), name


def assert_same_clips(planned: ClipDataset, stored: ClipDataset) -> None:
    assert len(planned) == len(stored)
    for number in np.random.default_rng(0).permutation(len(stored)).tolist():
        assert_same_clip(planned.clip(number), stored.clip(number))


def failure_rows(dataset: ClipDataset) -> list[tuple[Any, ...]]:
    import pyarrow.parquet as pq

    rows = pq.read_table(dataset.manifest.path / "failures.parquet").to_pylist()
    return [(row["clip_id"], row["uri"], row["kind"], row["message"], row["counts"]) for row in rows]


@pytest.mark.parametrize(
    "name, depth", drawn("many long cases", itertools.product(POLICIES, ["tables", "packets"]), seed=1)
)
def test_clips_are_those_of_shard_bit_for_bit(
    name: str, depth: str, index: Index, packets_index: Index, tmp_path: Path
) -> None:
    path = (index if depth == "tables" else packets_index).path
    stored = sharded(path, POLICIES[name], tmp_path / "D")
    planned = ClipDataset.from_index(path, POLICIES[name])
    assert len(stored) > 10
    assert_same_clips(planned, stored)
    found = [(one.clip_id, one.uri, one.kind, one.message, one.counts) for one in planned.failures()]
    assert found == failure_rows(stored)


def test_media_can_be_blocks_of_an_order(index: Index) -> None:
    dataset = ClipDataset.from_index(index.path, POLICIES["fps"])
    media = [dataset.clip(number).medium.media_id for number in range(len(dataset))]
    visited = [media[number] for number in ClipSampler(dataset, shuffle=True, blocks="medium", window=1)]
    assert visited != media
    assert len(list(itertools.groupby(visited))) == len(set(media)) > 3
    with pytest.raises(FramedexError, match="no manifest"):
        dataset.places("tar")


def test_items_are_equal_too(index: Index, tmp_path: Path) -> None:
    stored = sharded(index.path, POLICIES["jittered"], tmp_path / "D")
    planned = ClipDataset.from_index(index.path, tmp_path / "D.yaml")
    for number in range(0, len(stored), 17):
        one, other = planned[number], stored[number]
        assert one.keys() == other.keys()
        assert all(same(one[key], other[key]) for key in one)


def test_sound_is_the_same(index: Index, tmp_path: Path) -> None:
    options = ("--audio", "--audio-rate", 16_000)
    stored = sharded(index.path, POLICIES["fps"], tmp_path / "D", *options)
    planned = ClipDataset.from_index(index.path, POLICIES["fps"], audio=AudioOptions(rate=16_000))
    assert_same_clips(planned, stored)
    heard = [number for number in range(len(stored)) if stored.clip(number).medium.audio is not None]
    assert heard
    assert np.array_equal(planned[heard[0]]["audio"], stored[heard[0]]["audio"])
    assert "audio" in ClipDataset.from_index(index.path, POLICIES["fps"], audio=True)[heard[0]]


@pytest.fixture(scope="module")
def listed(all_media: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index of a listing with ranges, several of them of one video, and labels."""
    folder = tmp_path_factory.mktemp("listed")
    rows = [
        {"uri": str(all_media / name), "start": start, "end": start + 0.7, "label": number, "tags": ["a", str(number)]}
        for number, (name, start) in enumerate(
            [(name, start) for name in ("h264_vfr.mkv", "hevc_closed.mp4") for start in (0.0, 0.31, 99.0)]
            + [("h264_default.mp4", 0.5)]
        )
    ]
    (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("index", folder / "list.jsonl", "--out", folder / "INDEX")
    return folder / "INDEX"


@pytest.mark.filterwarnings("ignore:.*split .* has no clip")
def test_ranges_of_a_listing_and_its_columns_are_the_same(listed: Path, tmp_path: Path) -> None:
    policy = {"policy": "per_row", "fps": 10, "frames": 3, "jitter_seconds": 0.02}
    policy |= {"filter": "label != 1", "split": {"shares": {"train": 1, "val": 1}, "by": "label"}}
    stored = sharded(listed, policy, tmp_path / "D")
    planned = ClipDataset.from_index(listed, policy)
    assert_same_clips(planned, stored)
    assert planned.clip(0).columns["tags"] == ["a", "0"]
    for where in ({"label": 0}, {"split": "train"}, {"split": "train", "label": 6}):
        narrow = ClipDataset.from_index(listed, policy, where=where)
        assert_same_clips(narrow, ClipDataset(tmp_path / "D", where=where))
    with pytest.raises(FramedexError, match="no such column"):
        ClipDataset.from_index(listed, policy, where={"colour": 1})
    with pytest.raises(FramedexError, match="cannot be compared with the values"):
        ClipDataset.from_index(listed, policy, where={"label": "x"})


@pytest.fixture(scope="module")
def hazards(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index of the corpus' damaged and unaddressable media, with intact ones beside them."""
    facts = json.loads((corpus / "manifest.json").read_text())["files"]
    names = [
        name for name in facts
        if (corpus / name).is_file()
        and any(word in name for word in ("damage", "corrupt", "trunc", ".ts", ".mpg", ".ogv"))
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("hazards")
    for name in names[:40]:
        shutil.copy(corpus / name, folder / Path(name).name)
    run("index", folder, "--out", folder / "INDEX", "--depth", "packets", "--max-failures", 1000)
    return folder / "INDEX"


@pytest.mark.parametrize("damaged", ["avoid", "keep"])
def test_what_cannot_be_planned_is_left_out_as_shard_leaves_it_out(hazards: Path, tmp_path: Path, damaged: str) -> None:
    policy = POLICIES["windows"]
    stored = sharded(hazards, policy, tmp_path / "D", "--damaged", damaged)
    planned = ClipDataset.from_index(hazards, policy, keep_damaged=damaged == "keep")
    assert_same_clips(planned, stored)
    found = [(one.clip_id, one.uri, one.kind, one.message, one.counts) for one in planned.failures()]
    assert found == failure_rows(stored)
    kinds = {kind for _, _, kind, _, _ in found}
    assert "policy" in kinds
    assert ("damaged" in kinds) == (damaged == "avoid")


def test_in_any_epoch_every_clip_can_be_had(hazards: Path) -> None:
    planned = ClipDataset.from_index(hazards, POLICIES["windows"] | {"jitter_frames": 6})
    drawn = [[planned.clip(number, epoch=epoch) for number in range(len(planned))] for epoch in range(3)]
    for clips in zip(*drawn, strict=True):
        assert len({clip.clip_id for clip in clips}) == 1
    assert [clip.frames.tolist() for clip in drawn[0]] != [clip.frames.tolist() for clip in drawn[1]]


def draws_of(dataset: ClipDataset) -> list[list[int]]:
    return [dataset.clip(number).frames.tolist() for number in range(len(dataset))]


@pytest.mark.parametrize("name", ["jittered", "random", "windows", "tolerant"])
def test_each_epoch_draws_anew_and_repeatably(index: Index, name: str) -> None:
    dataset = ClipDataset.from_index(index.path, POLICIES[name])
    first = draws_of(dataset)
    dataset.set_epoch(1)
    second = draws_of(dataset)
    assert first != second
    assert dataset.epoch == 1
    assert draws_of(ClipDataset.from_index(index.path, POLICIES[name], epoch=1)) == second
    dataset.set_epoch(0)
    assert draws_of(dataset) == first
    assert [dataset.clip(n, epoch=1).frames.tolist() for n in range(len(dataset))] == second
    assert draws_of(ClipDataset.from_index(index.path, POLICIES[name], seed=9)) != first


def test_epoch_0_draws_what_datasets_on_disk_were_drawn_with() -> None:
    pinned = [8336656537889444909, 6658507601160316101]
    assert draws(3, "abc", "jitter", first=2, count=2).tolist() == pinned
    assert draws(3, "abc", "jitter", first=2, count=2, epoch=0).tolist() == pinned
    assert draws(3, "abc", "jitter", first=2, count=2, epoch=1).tolist() != pinned


def test_without_chance_epochs_are_alike(index: Index) -> None:
    dataset = ClipDataset.from_index(index.path, POLICIES["fps"])
    first = draws_of(dataset)
    dataset.set_epoch(5)
    assert draws_of(dataset) == first


def test_items_may_be_written_to(index: Index) -> None:
    dataset = ClipDataset.from_index(index.path, POLICIES["fps"], size=(8, 8))
    item = dataset[0]
    expected = item["frame_index"].copy()
    item["frame_index"][:] = 7
    item["mask"][:] = False
    assert dataset[0]["frame_index"].tolist() == expected.tolist()
    assert dataset[0]["mask"].all()


WORKERS_LIVE_ON = """
import sys
import torch
from framedex import ClipDataset
from tests.support.media import read_barcode
from tests.sharder.planning.test_from_index import draws_of

POLICY = {"policy": "random", "clips": 1, "frames": 3, "stride": 1, "filter": "width == 176 and height == 144"}

if __name__ == "__main__":
    path, context = sys.argv[1:]
    dataset = ClipDataset.from_index(path, POLICY)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=4, num_workers=2, multiprocessing_context=context, persistent_workers=True, collate_fn=list
    )
    for epoch in (0, 1, 4):
        dataset.set_epoch(epoch)
        items = [item for batch in loader for item in batch]
        assert [item["frame_index"].tolist() for item in items] == draws_of(
            ClipDataset.from_index(path, POLICY, epoch=epoch)
        )
        [item] = [item for item in items if item["uri"] == "h264_default.mp4"]
        assert [read_barcode(frame) for frame in item["frames"]] == item["frame_index"].tolist()
    print("seen", len(items))
"""


@pytest.mark.parametrize("context", drawn("start methods", ["fork", "spawn"], seed=3))
def test_workers_that_live_on_see_the_next_epoch(index: Index, context: str, tmp_path: Path) -> None:
    # In a new process: the threads of other tests must not be forked.
    script = tmp_path / "workers.py"
    script.write_text(WORKERS_LIVE_ON)
    run_script = [sys.executable, str(script), str(index.path), context]
    done = subprocess.run(run_script, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("seen ")


def test_a_clip_loader_takes_it(index: Index) -> None:
    dataset = ClipDataset.from_index(index.path, POLICIES["random"], size=(16, 16))
    loader = ClipLoader(dataset, batch_size=8, sampler=ClipSampler(dataset, shuffle=True), num_workers=1)
    names = [name for batch in loader for name in batch["clip_id"]]
    assert sorted(names) == sorted(dataset.clip(number).clip_id for number in range(len(dataset)))


def test_a_pickled_copy_shares_the_epoch_and_opens_nothing_before_it_must(index: Index) -> None:
    dataset = ClipDataset.from_index(index.path, POLICIES["random"])
    draws_of(dataset)
    stored = pickle.dumps(dataset)
    assert len(stored) < 60_000
    copy = pickle.loads(stored)
    dataset.set_epoch(3)
    assert copy.epoch == 3
    assert draws_of(copy) == draws_of(dataset)
    copy.set_epoch(0)
    assert dataset.epoch == 0


def test_an_epoch_outlives_the_process_that_made_it() -> None:
    script = "import pickle, sys; from framedex.execution.spawning import SharedNumber; one = SharedNumber(6); "
    script += "sys.stdout.buffer.write(pickle.dumps(one))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    copy = pickle.loads(done.stdout)
    assert copy.get() == 6
    other = pickle.loads(pickle.dumps(copy))
    other.set(7)
    assert copy.get() == 7
    assert SharedNumber().get() == 0


@pytest.mark.parametrize("kind", ["pipe", "file", "other number"])
def test_an_epoch_whose_descriptor_is_something_else_by_now_reads_nothing(kind: str, tmp_path: Path) -> None:
    one = SharedNumber(6)
    sent, descriptor = pickle.dumps(one), one._descriptor
    assert descriptor is not None
    reading, writing = os.pipe()
    os.write(writing, b"for another reader, 30 bytes..")
    (tmp_path / "file").write_bytes(bytes(100))
    other = SharedNumber(9)
    with open(tmp_path / "file", "rb") as file:
        now = {"pipe": reading, "file": file.fileno(), "other number": other._descriptor}[kind]
        assert now is not None
        os.dup2(now, descriptor)  # as if it had been closed, and its number given again
        copy = pickle.loads(sent)  # waited for ever, or took bytes from the pipe
    assert copy.get() == 6
    copy.set(7)
    assert (one.get(), other.get()) == (6, 9)
    assert len(os.read(reading, 100)) == 30
    os.close(reading)
    os.close(writing)


def test_what_is_no_epoch_policy_or_index_is_an_error(index: Index, tmp_path: Path) -> None:
    for epoch in (-1, 1.5, True, 1 << 64):
        with pytest.raises(FramedexError, match="epoch"):
            ClipDataset.from_index(index.path, POLICIES["fps"], epoch=epoch)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="unknown policy"):
        ClipDataset.from_index(index.path, {"policy": "fsp"})
    with pytest.raises(FramedexError, match="seed"):
        ClipDataset.from_index(index.path, POLICIES["fps"], seed="x")  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="too short") as error:
        ClipDataset.from_index(index.path, {"policy": "fps", "fps": 10, "frames": 99, "short": "error"})
    assert error.value.where is not None
    with pytest.raises(FormatError, match=r"index\.json"):
        ClipDataset.from_index(tmp_path, POLICIES["fps"])
    with pytest.raises(FramedexError, match="unknown decode"):
        ClipDataset.from_index(index.path, POLICIES["fps"], decode="gpu")  # type: ignore[arg-type]
    dataset = ClipDataset.from_index(index.path, POLICIES["fps"])
    with pytest.raises(FramedexError, match="have no manifest"):
        _ = dataset.manifest
    for number in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError):
            dataset.clip(number)


@pytest.fixture
def moved(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a folder with its own copy of a video, and its index by sample tables beside it."""
    (tmp_path / "videos").mkdir()
    shutil.copy(medium("h264_default.mp4"), tmp_path / "videos/one.mp4")
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    return tmp_path


def test_moved_sources_are_found_and_changed_ones_are_stale(moved: Path) -> None:
    (moved / "videos").rename(moved / "elsewhere")
    for root in (moved / "elsewhere", {str(moved / "videos"): str(moved / "elsewhere")}):
        dataset = ClipDataset.from_index(moved / "INDEX", POLICIES["fps"], root=root)
        assert [read_barcode(frame) for frame in dataset[0]["frames"]] == dataset[0]["frame_index"].tolist()
    dataset = ClipDataset.from_index(moved / "INDEX", POLICIES["fps"])
    with pytest.raises(StaleError, match=f"{dataset.column('clip_id')[0]}") as error:
        dataset[0]
    assert "one.mp4" in str(error.value)


def test_an_index_that_changed_is_an_error_in_copies(moved: Path, medium: Callable[[str], Path]) -> None:
    dataset = ClipDataset.from_index(moved / "INDEX", POLICIES["fps"])
    shutil.copy(medium("hevc_closed.mp4"), moved / "videos/two.mp4")
    run("index", moved / "videos", "--out", moved / "INDEX")
    with pytest.raises(FormatError, match="was changed"):
        pickle.loads(pickle.dumps(dataset))[0]


def test_damage_that_only_the_source_shows_is_an_error_that_names_the_clip(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    shutil.copy(corpus / "corrupt_mid.mp4", tmp_path / "videos/one.mp4")
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    stored = sharded(tmp_path / "INDEX", POLICIES["windows"], tmp_path / "D")
    dataset = ClipDataset.from_index(tmp_path / "INDEX", POLICIES["windows"])
    impossible = [name for name, *_ in failure_rows(stored)]
    assert len(dataset) == len(stored) + len(impossible)
    refused = []
    for number in range(len(dataset)):
        try:
            dataset.clip(number)
        except DamageError as error:
            refused.append(str(error.where).split()[1])
    assert refused == impossible != []
    assert list(dataset.failures()) == [], "what only the source shows is not known"
