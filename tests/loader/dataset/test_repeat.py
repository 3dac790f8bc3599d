"""from_index(repeat=…): each clip several times, with the random draws of as many epochs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framedex
from framedex import ClipDataset, ClipLoader, ClipSampler, ConcatClips, Framing
from framedex.errors import FramedexError
from tests.support.counted import some

NAMES = ("h264_default.mp4", "hevc_open_gop.mp4")
WINDOWS = {"policy": "windows", "frames": 4, "stride": 1, "step": 9}
RANDOM = {"policy": "random", "frames": 4, "stride": 1, "clips": 2, "seed": 3}
CROPS = Framing(size=(40, 40), scale=(0.3, 1.0), flip=0.5)


@pytest.fixture(scope="module")
def index(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("repeat") / "INDEX"
    framedex.index([medium(name) for name in NAMES], place, workers=0, progress=False)
    return place


def check_equal(item: dict[str, Any], other: dict[str, Any]) -> None:
    assert item.keys() == other.keys()
    for key in some(item):
        np.testing.assert_array_equal(item[key], other[key], key)


@pytest.mark.parametrize("policy", [WINDOWS, RANDOM], ids=["windows", "random"])
def test_an_epoch_has_the_draws_of_consecutive_epochs(index: Path, policy: dict[str, Any]) -> None:
    plain = ClipDataset.from_index(index, policy, framing=CROPS)
    repeated = ClipDataset.from_index(index, policy, framing=CROPS, repeat=3)
    assert len(repeated) == 3 * len(plain)
    for epoch in (0, 2):
        repeated.set_epoch(epoch)
        together = repeated.__getitems__(range(len(repeated)))
        for number in some(range(len(repeated))):
            plain.set_epoch(3 * epoch + number % 3)
            check_equal(repeated[number], plain[number // 3])
            check_equal(together[number], plain[number // 3])
        check_equal(repeated[-1], plain[-1])


def test_columns_filters_and_joined_datasets_repeat(index: Path) -> None:
    how: dict[str, Any] = {"where": f"uri == {NAMES[1]!r}", "framing": CROPS}
    plain = ClipDataset.from_index(index, WINDOWS, **how)
    repeated = ClipDataset.from_index(index, WINDOWS, repeat=2, **how)
    assert repeated.column("clip_id").tolist() == np.repeat(plain.column("clip_id"), 2).tolist()
    assert repeated.shapes().tolist() == np.repeat(plain.shapes(), 2, axis=0).tolist()
    assert repeated.places("medium").tolist() == np.repeat(plain.places("medium"), 2).tolist()
    joined = ConcatClips([plain, repeated])
    joined.set_epoch(1)
    for number in range(4):
        own = dict(joined[len(plain) + number])
        assert own.pop("dataset_number") == 1
        check_equal(own, repeated[number])
        assert joined.epoch_of(len(plain) + number) == 2 + number % 2
        assert joined.epoch_of(number) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_decodes_repeated_clips_once(index: Path, workers: int) -> None:
    repeated = ClipDataset.from_index(index, {**WINDOWS, "step": 30}, framing=CROPS, repeat=4)
    sampler = ClipSampler(repeated, shuffle=True, share=4, spread=False)
    loader = ClipLoader(repeated, batch_size=4, sampler=sampler, num_workers=workers, output="numpy")
    names = repeated.column("clip_id")
    for batch in some(loader):
        assert len(set(batch["clip_id"])) == 1
        (first,) = np.flatnonzero(names == batch["clip_id"][0])[:1]
        expected = [repeated[int(first) + draw]["frames"] for draw in range(4)]
        for frames in batch["frames"]:
            assert sum(np.array_equal(frames, other) for other in expected) == 1
    alone = sum(len(repeated.clip(number).recipe.packet_size) for number in range(len(repeated)))
    assert loader.report.packets == alone / 4
    loader.close()


@pytest.mark.parametrize("repeat", [0, 1.5, None])
def test_wrong_numbers_are_refused(index: Path, repeat: Any) -> None:
    with pytest.raises(FramedexError, match="repeat is out of range"):
        ClipDataset.from_index(index, WINDOWS, repeat=repeat)
    with pytest.raises(FramedexError, match="`repeat` cannot be joined"):
        ClipDataset.from_index(index, WINDOWS, repeat=2).views()
