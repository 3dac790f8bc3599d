"""Columns of frames' tables: values at a clip's frames and at times around it, and tables that do not fit."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.utils.data

from framedex import ClipDataset, ClipStream
from framedex.errors import FormatError, FramedexError
from tests.support.datasets import run
from tests.support.streams import pack, same_item

FRAMES, FIRST = 50, 10  # of the video; rows of the table before its own


@pytest.fixture
def table(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """A table with a row for each frame of an indexed video, in several row groups, behind rows of something else."""
    numbers = np.arange(-FIRST, FRAMES)
    columns = {
        "frame_index": numbers,
        "timestamp": numbers / 25,
        "action": [[number, number + 0.5] for number in numbers.tolist()],
        "matrix": [[[number, 1], [2, 3]] for number in numbers.tolist()],
        "gripper": numbers % 2 == 0,
        "text": [str(number) for number in numbers],
        "ragged": [[1] * (1 + number % 2) for number in numbers.tolist()],
        "partly": [None if number == 5 else number for number in numbers.tolist()],
    }
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=16)
    line = {"uri": str(medium("h264_default.mp4")), "frame_table": str(path), "frame_row": FIRST}
    (tmp_path / "list.jsonl").write_text(f"{line}".replace("'", '"'))
    run("index", tmp_path / "list.jsonl", "--out", tmp_path / "INDEX")
    return path


def clips(table: Path, columns: Any, **policy: Any) -> ClipDataset:
    """Return clips of the table's video."""
    own = policy or {"policy": "stride", "stride": 2, "frames": 4}
    return ClipDataset.from_index(table.with_name("INDEX"), own, frame_columns=columns, size=(8, 8))


def test_values_are_those_of_the_clips_frames(table: Path) -> None:
    found = clips(table, ["action", "matrix", "gripper"])
    order = np.random.default_rng(0).permutation(len(found) - 1).tolist()
    assert len(order) == 6
    for number in order:
        clip = found[number]
        frames = clip["frame_index"]
        assert np.array_equal(clip["action"], np.stack([frames, frames + 0.5], axis=1))
        assert np.array_equal(clip["matrix"][:, 0, 0], frames)
        assert clip["matrix"].shape == (4, 2, 2)
        assert np.array_equal(clip["gripper"], frames % 2 == 0)


def test_the_rows_of_a_clips_stretch_have_their_memory_counted(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = clips(table, ["action"])
    assert found[0]["action"].shape == (4, 2)
    monkeypatch.setattr("framedex.loader.dataset.frame_tables.usual_clip_bytes", lambda: 50 * 16)
    with pytest.raises(FormatError, match="column 'action' of a clip's stretch takes too much memory"):
        _ = found[0]


def test_padding_by_a_constant_is_zero_and_repeated_frames_repeat(table: Path) -> None:
    last = clips(table, ["action"])[-1]
    assert (last["frame_index"] == -1).any()
    assert (last["action"][last["frame_index"] == -1] == 0).all()
    ends = clips(table, ["action"], policy="stride", stride=2, frames=4, pad="ends")[-1]
    assert np.array_equal(ends["action"][:, 0], ends["frame_index"])


def test_times_count_from_the_anchor(table: Path) -> None:
    found = clips(table, {"action": [-0.08, 0, 0.05], "gripper": None}, policy="around", frames=[0, 1], pad="ends")
    assert len(found) == FRAMES
    for number in np.random.default_rng(1).permutation(FRAMES).tolist():
        clip = found[number]
        wanted = np.array([number - 2, number, number + 1])  # 0.05 s is nearer to one frame than to two
        assert np.array_equal(clip["action_mask"], (wanted >= 0) & (wanted < FRAMES))
        assert np.array_equal(clip["action"][:, 0], np.clip(wanted, 0, FRAMES - 1))
        assert np.array_equal(clip["gripper"], clip["frame_index"] % 2 == 0)


def test_times_count_from_the_first_frame_where_there_is_no_anchor(table: Path) -> None:
    clip = clips(table, {"action": [0.04]})[2]
    assert clip["action"].tolist() == [[clip["frame_index"][0] + 1, clip["frame_index"][0] + 1.5]]


def test_times_count_from_the_first_frame_behind_padding(table: Path) -> None:
    clip = clips(table, {"action": [0.04]}, policy="frames", frames=[FRAMES + 5, 7])[0]
    assert clip["frame_index"].tolist() == [-1, 7]
    assert clip["action"].tolist() == [[8, 8.5]]


def test_datasets_with_tables_go_to_workers(table: Path) -> None:
    found = clips(table, ["action"])
    copy = pickle.loads(pickle.dumps(found))
    assert np.array_equal(copy[1]["action"], found[1]["action"])
    loader = torch.utils.data.DataLoader(found, batch_size=2, num_workers=1, multiprocessing_context="spawn")
    assert np.array_equal(next(iter(loader))["action"][1], found[1]["action"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["speed"], "no such column"),
        (["text"], "not numbers"),
        (["ragged"], "different lengths"),
        (["partly"], "missing"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(table: Path, columns: list[str], message: str) -> None:
    with pytest.raises(FramedexError, match=message):
        clips(table, columns)[2]


@pytest.mark.parametrize("columns", ["action", [], {"action": []}, {"action": "x"}, {"action": [float("nan")]}])
def test_wrong_arguments_are_refused_at_once(table: Path, columns: Any) -> None:
    with pytest.raises(FramedexError, match="frame_columns"):
        clips(table, columns)


def test_rows_of_other_frames_are_refused(table: Path) -> None:
    rows = pq.read_table(table)
    pq.write_table(rows.slice(0, 20), table)
    with pytest.raises(FormatError, match="too short"):
        clips(table, ["action"])[0]
    pq.write_table(pa.concat_tables([rows.slice(1), rows.slice(0, 1)]), table)
    with pytest.raises(FormatError, match="do not correspond to the clip's stretch"):
        clips(table, ["action"])[0]


def test_a_missing_table_is_named(table: Path) -> None:
    table.unlink()
    with pytest.raises(FormatError, match="per-frame table cannot be read"):
        clips(table, ["action"])[0]


def test_a_clip_without_a_table_says_what_a_listing_needs(medium: Callable[[str], Path], tmp_path: Path) -> None:
    run("index", medium("h264_default.mp4"), "--out", tmp_path / "INDEX")
    with pytest.raises(FramedexError, match="frame_table"):
        clips(tmp_path / "table.parquet", ["action"])[0]


def test_a_stream_has_the_columns_of_its_dataset(table: Path) -> None:
    policy = "policy: stride\nstride: 2\nframes: 4\n"
    packed = pack(table.with_name("INDEX"), table.with_name("PACKED"), policy, "--pack", "clips")
    columns = {"action": [-0.08, 0.0], "gripper": None}
    dataset = ClipDataset(packed, frame_columns=columns, size=(8, 8))
    found = {item["clip_id"]: item for item in ClipStream(packed, frame_columns=columns, size=(8, 8), shuffle=3)}
    assert len(found) == len(dataset) == 7
    for number in range(7):
        assert same_item(found[dataset[number]["clip_id"]], dataset[number])
    assert {"action", "action_mask", "gripper"} <= dataset[0].keys()
