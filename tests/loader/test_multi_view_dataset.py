"""MultiViewDataset: what it refuses, what it masks, and batches with clips that are not available."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import framedex
from framedex import ClipDataset, ClipLoader, ClipSampler, FramedexError, MultiViewDataset
from framedex.errors import FormatError, StaleError
from tests.support.counted import some
from tests.support.datasets import run, shard_clips
from tests.support.scenes import VIEWS, write_scenes

POLICY = {
    "policy": "fps",
    "fps": 5,
    "frames": 4,
    "views": {"group": "episode", "view": "camera", "clock": "front", "missing": "mask"},
}


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of three scenes."""
    folder = tmp_path_factory.mktemp("scenes")
    run("index", write_scenes(folder / "MEDIA"), "--out", folder / "INDEX")
    return folder / "INDEX"


@pytest.fixture
def dataset(indexed: Path, tmp_path: Path) -> Path:
    """A dataset in tars of its own, which tests may damage."""
    framedex.shard(indexed, tmp_path / "D", policy=POLICY, pack="clips", workers=0, progress=False)
    return tmp_path / "D"


def test_clips_that_stand_alone_have_no_views(indexed: Path, tmp_path: Path) -> None:
    alone = shard_clips(indexed, tmp_path / "D", [{"uri": "a-front.mp4", "frames": [0]}])
    with pytest.raises(FramedexError, match="the dataset was made without `views`"):
        MultiViewDataset(ClipDataset(alone))


def test_each_view_is_a_clip_of_its_own_too(dataset: Path) -> None:
    clips, views = ClipDataset(dataset), MultiViewDataset(ClipDataset(dataset))
    assert len(clips) == 24
    clip = clips[views.numbers(4)["left"]]
    assert (clip["multiview_id"], clip["view_name"], clip["camera"]) == ("b-000000", "left", "left")
    assert np.array_equal(clip["frames"], views[4]["frames"]["left"])


def test_a_view_that_a_clip_lacks_is_masked(dataset: Path) -> None:
    item = MultiViewDataset(ClipDataset(dataset))[-1]
    assert item["multiview_id"] == "c-000001"
    assert item["frames"]["wrist"].shape == (4, 160, 208, 3)
    assert not item["frames"]["wrist"].any()
    assert not item["mask"]["wrist"].any()
    assert (item["frame_index"]["wrist"] == -1).all()
    assert np.isnan(item["seconds"]["wrist"]).all()
    assert item["clip_id"]["wrist"] == ""
    movies = MultiViewDataset(ClipDataset(dataset, decode="movie"))[-1]
    assert len(movies["movie"]["wrist"]) == 0
    assert len(movies["movie"]["left"]) > 0


def test_clips_are_chosen_by_columns(dataset: Path) -> None:
    views = MultiViewDataset(ClipDataset(dataset, where={"episode": "b"}))
    assert [views[number]["multiview_id"] for number in range(len(views))] == [f"b-00000{n}" for n in range(3)]
    one = MultiViewDataset(ClipDataset(dataset, where={"camera": "left"}))
    assert len(one) == 9
    assert not one[0]["mask"]["front"].any()


def test_numbers_outside_are_an_error_and_negative_ones_count_from_the_end(dataset: Path) -> None:
    views = MultiViewDataset(ClipDataset(dataset))
    assert views[-9]["multiview_id"] == views[0]["multiview_id"]
    with pytest.raises(IndexError, match="clip 9 of 9"):
        views[9]


def test_it_survives_pickling_and_is_shuffled_by_tars(dataset: Path) -> None:
    views = pickle.loads(pickle.dumps(MultiViewDataset(ClipDataset(dataset))))
    sampler = ClipSampler(views, shuffle=True, blocks="tar", seed=3)
    assert sorted(sampler) == list(range(9))
    assert repr(views).endswith("D: 9 clips of front, left, wrist>")


def names(loader: ClipLoader) -> list[str]:
    return [name for batch in some(loader) for name in batch["multiview_id"]]


def test_a_view_that_is_gone_takes_its_clips_with_it(indexed: Path, tmp_path: Path) -> None:
    shutil.copytree(indexed.parent / "MEDIA", tmp_path / "MEDIA")
    framedex.shard(indexed, tmp_path / "D", policy=POLICY, workers=0, progress=False)
    views = MultiViewDataset(ClipDataset(tmp_path / "D", root=tmp_path / "MEDIA"))
    everything = names(ClipLoader(views, batch_size=2))
    (tmp_path / "MEDIA/b-left.mp4").unlink()
    views = MultiViewDataset(ClipDataset(tmp_path / "D", root=tmp_path / "MEDIA"))  # the other one holds the file open
    with pytest.raises(StaleError):
        names(ClipLoader(views, batch_size=2))
    skipping = ClipLoader(views, batch_size=2, on_error="skip")
    left = [name for name in everything if not name.startswith("b")]
    found = names(skipping)
    assert found[:4] + found[5:] == left  # a batch of which nothing is left has another clip
    assert found[4] in left
    replacing = ClipLoader(views, batch_size=3, on_error="replace", num_workers=1, output="numpy")
    found = names(replacing)
    assert len(found) == len(everything)
    assert set(found) == set(left)
    assert replacing.report.replaced == 3
    for batch in some(replacing):
        real = batch["mask"]["left"] & batch["mask"]["front"]
        apart = batch["seconds"]["left"] - batch["seconds"]["front"]
        assert np.abs(apart[real]).max() < 0.06  # the views of one clip, not of two
    replacing.close()


def test_a_view_that_no_decoder_takes_is_not_replaced_alone(indexed: Path, tmp_path: Path) -> None:
    shutil.copytree(indexed.parent / "MEDIA", tmp_path / "MEDIA")
    framedex.shard(indexed, tmp_path / "D", policy=POLICY, workers=0, progress=False)
    (tmp_path / "MEDIA/b-left.mp4").unlink()
    views = MultiViewDataset(ClipDataset(tmp_path / "D", root=tmp_path / "MEDIA"))
    loader = ClipLoader(views, batch_size=2, on_error="replace")
    gone = views.numbers(4)["left"]
    assert loader._batches.supply.decoded_by_cpu(gone, replaceable=False) is None  # type: ignore[attr-defined]


def test_shared_columns_are_those_of_the_clock_in_each_item_that_has_it(dataset: Path) -> None:
    views = MultiViewDataset(ClipDataset(dataset))
    views._table[1, views.views.index("front")] = -1  # as if the clip of the clock had been damaged
    expected = ["front", "left", *["front"] * 7]
    assert [views[number]["camera"] for number in range(9)] == expected
    for size in (3, 9):
        batches = some(ClipLoader(views, batch_size=size))
        assert [camera for batch in batches for camera in batch["camera"]] == expected


def test_no_clip_with_all_views_is_an_error(indexed: Path) -> None:
    skipping = POLICY | {"views": {**POLICY["views"], "missing": "skip"}}  # type: ignore[dict-item]
    with pytest.raises(FramedexError, match="no clip has all of its views"):
        MultiViewDataset(ClipDataset.from_index(indexed, skipping, where={"camera": "front"}))
    one = MultiViewDataset(ClipDataset.from_index(indexed, POLICY, where={"camera": "left"}))
    assert one[0]["frames"]["wrist"].shape == (4, 160, 208, 3)  # its own size, though no clip of it was chosen


def test_a_last_batch_is_padded_with_whole_clips(dataset: Path) -> None:
    batches = list(ClipLoader(MultiViewDataset(ClipDataset(dataset)), batch_size=5, last="pad", output="numpy"))
    assert [len(batch["multiview_id"]) for batch in batches] == [5, 5]
    assert batches[1]["is_padding"].tolist() == [False] * 4 + [True]
    assert batches[1]["frames"]["front"].shape == (5, 4, 144, 176, 3)


def test_an_epoch_is_resumed_by_whole_clips(dataset: Path) -> None:
    views = MultiViewDataset(ClipDataset(dataset))
    loader = ClipLoader(views, batch_size=2, sampler=ClipSampler(views, shuffle=True, seed=1), num_workers=1)
    everything = names(loader)
    loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
    first = next(iter(loader))["multiview_id"]
    state = loader.state_dict()
    loader.close()
    again = ClipLoader(views, batch_size=2, sampler=ClipSampler(views, shuffle=True, seed=1))
    again.load_state_dict(state)
    assert first + names(again) == everything


def test_lists_are_not_stacked(dataset: Path) -> None:
    views = MultiViewDataset(ClipDataset(dataset), stack=True)
    with pytest.raises(FramedexError, match="lists of views cannot be stacked"):
        ClipLoader(views, batch_size=2, collate="list")
    apart = next(iter(ClipLoader(MultiViewDataset(ClipDataset(dataset)), batch_size=2, collate="list")))
    assert [tuple(clip.shape) for clip in apart["frames"]["wrist"]] == [(4, 160, 208, 3)] * 2


def rewrite(dataset: Path, column: str, change: Any) -> None:
    for file in (dataset / "clips/part-000000.parquet", dataset / "fields.parquet"):
        table = pq.ParquetFile(file).read()
        place = table.schema.get_field_index(column)
        values = change(table[column].to_pylist())
        table = table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))
        pq.write_table(table, file, row_group_size=32)


def test_a_manifest_that_contradicts_itself_is_refused(dataset: Path) -> None:
    rewrite(dataset, "view_name", lambda names: ["front", "front", *names[2:]])
    with pytest.raises(FormatError, match="the view of another clip with the same multiview_id"):
        MultiViewDataset(ClipDataset(dataset))
    rewrite(dataset, "view_name", lambda names: ["front", "above", *names[2:]])
    with pytest.raises(FormatError, match="above"):
        MultiViewDataset(ClipDataset(dataset))


def test_columns_of_views_are_those_of_the_clock(dataset: Path) -> None:
    item = MultiViewDataset(ClipDataset(dataset))[3]
    assert (item["camera"], item["task"], list(item["pts"])) == ("front", "stack", list(VIEWS))
