"""One clip that is not available does not end an epoch of a plain DataLoader, if the user says so."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import framedex
from framedex import ClipDataset, ClipLoader, ClipStream, ConcatClips, MultiViewDataset
from framedex.errors import DecodeError, FramedexError, StaleError
from tests.support.datasets import shard_clips
from tests.support.media import Medium

NAMES = ("h264_default.mp4", "hevc_closed.mp4", "h264_vfr.mkv")
EVERY = {"policy": "stride", "stride": 1, "frames": 10, "last": "drop"}


@pytest.fixture
def videos(tmp_path: Path, medium: Medium) -> Path:
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(medium(name), folder)
    framedex.index(folder, tmp_path / "I", workers=0, progress=False)
    framedex.shard(tmp_path / "I", tmp_path / "D", policy=EVERY, workers=0, progress=False)
    return folder


def spoil(path: Path) -> None:
    """Change the end of a file, so that it is not the one that was indexed."""
    path.write_bytes(path.read_bytes()[:-9] + b"different")


def of(dataset: ClipDataset, name: str) -> list[int]:
    """Return the numbers of the clips of a medium."""
    return [number for number, uri in enumerate(dataset.column("uri")) if uri == name]


def test_an_epoch_of_a_plain_dataloader_goes_on(videos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spoil(videos / NAMES[1])
    dataset = ClipDataset(tmp_path / "D", on_error="replace")
    bad = of(dataset, NAMES[1])
    with caplog.at_level(logging.WARNING, "framedex.loader"):
        items = list(DataLoader(dataset, batch_size=None))
    assert len(items) == len(dataset)
    assert NAMES[1] not in {item["uri"] for item in items}
    assert len([record for record in caplog.records if "is replaced by clip" in record.message]) == len(bad) > 0
    whole = ClipDataset(tmp_path / "D")
    for number in set(range(len(dataset))) - set(bad):
        assert np.array_equal(items[number]["frames"], whole[number]["frames"])
    again = [dataset[number]["clip_id"] for number in bad]
    assert again == [items[number]["clip_id"] for number in bad]
    workers = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert [item["clip_id"] for item in workers] == [item["clip_id"] for item in items]


def test_without_it_the_error_is_raised_with_a_remedy_that_fits(videos: Path, tmp_path: Path) -> None:
    framedex.shard(tmp_path / "I", tmp_path / "T", policy=EVERY, pack="clips", workers=0, progress=False)
    tar = next((tmp_path / "T/shards").glob("*.tar"))
    spoil(videos / NAMES[0])
    tar.write_bytes(tar.read_bytes()[:20_000])
    datasets = {
        "index and shard again": ClipDataset(tmp_path / "D"),
        "index again, or set root": ClipDataset.from_index(tmp_path / "I", EVERY),
        "copy the tar from the dataset": ClipDataset(tmp_path / "T"),
    }
    for remedy, dataset in datasets.items():
        [number, *_] = of(dataset, NAMES[0])
        with pytest.raises(StaleError, match=remedy) as caught:
            dataset[number]
        assert caught.value.remedy in str(caught.value)
        loader = ClipLoader(dataset, sampler=[number], output="numpy")
        with pytest.raises(StaleError, match=remedy):
            next(iter(loader))
    assert len(datasets) == 3


def test_a_clip_that_does_not_decode_is_replaced(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ClipDataset(tmp_path / "D", on_error="replace")
    bad, chosen = of(dataset, NAMES[0]), type(dataset._clips)
    real = chosen.item

    def item(clips: Any, clip: Any, *others: Any) -> dict[str, Any]:
        if clip.medium.uri == NAMES[0]:
            raise DecodeError("made up", remedy="framedex verify shows which clips decode")
        return real(clips, clip, *others)

    monkeypatch.setattr(chosen, "item", item)
    assert dataset[bad[0]]["uri"] != NAMES[0]
    with pytest.raises(DecodeError, match="framedex verify"):
        ClipDataset(tmp_path / "D")[bad[0]]
    with pytest.raises(DecodeError, match="index --verify"):
        ClipDataset.from_index(tmp_path / "I", EVERY)[bad[0]]


def test_if_no_other_clip_is_there_the_run_ends(videos: Path, tmp_path: Path) -> None:
    for name in NAMES:
        spoil(videos / name)
    with pytest.raises(DecodeError, match="none of 8 clips drawn"):
        ClipDataset(tmp_path / "D", on_error="replace")[0]


def test_errors_of_the_caller_are_raised(videos: Path, tmp_path: Path) -> None:
    dataset = ClipDataset(tmp_path / "D", on_error="replace", transform=failing)
    with pytest.raises(FramedexError, match="transform"):
        dataset[0]
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    with pytest.raises(FramedexError, match="ClipLoader"):
        ClipDataset(tmp_path / "D", on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(FramedexError, match="on_error"):
        ClipDataset.from_index(tmp_path / "I", EVERY, on_error="ignore")  # type: ignore[arg-type]


def failing(frames: Any) -> Any:
    raise ValueError("of the user")


def test_a_loader_does_as_the_dataset_says(videos: Path, tmp_path: Path) -> None:
    spoil(videos / NAMES[1])
    dataset = ClipDataset(tmp_path / "D", on_error="replace")
    loader = ClipLoader(dataset, batch_size=1, output="numpy")
    assert NAMES[1] not in {batch["uri"][0] for batch in loader}
    assert loader.report.replaced == len(of(dataset, NAMES[1]))
    raising = ClipLoader(dataset, batch_size=1, sampler=of(dataset, NAMES[1]), output="numpy", on_error="raise")
    with pytest.raises(StaleError):
        next(iter(raising))
    both = ConcatClips([dataset, dataset])
    assert both[of(dataset, NAMES[1])[0]]["uri"] != NAMES[1]
    assert len(list(ClipLoader(both, output="numpy"))) == len(both)
    mixed = ConcatClips([dataset, ClipDataset(tmp_path / "D")])
    with pytest.raises(FramedexError, match="on_error"):
        ClipLoader(mixed)


def test_an_item_of_several_views_is_replaced_as_a_whole(tmp_path: Path, medium: Medium) -> None:
    rows = []
    for scene in range(3):
        for view in ("left", "right"):
            name = f"{scene}-{view}.mp4"
            shutil.copy(medium(NAMES[0]), tmp_path / name)
            with open(tmp_path / name, "ab") as file:  # another file each
                file.write(len(rows).to_bytes(4, "big") + b"free" + bytes(len(rows)))
            rows.append(f"{name},{scene},{view}")
    (tmp_path / "l.csv").write_text("\n".join(["uri,scene,camera", *rows]), encoding="utf-8")
    framedex.index(tmp_path / "l.csv", tmp_path / "I", workers=0, progress=False)
    policy = EVERY | {"views": {"group": "scene", "view": "camera", "clock": "left"}}
    clips = ClipDataset.from_index(tmp_path / "I", policy, on_error="replace")
    views = MultiViewDataset(clips)
    spoil(tmp_path / "1-right.mp4")
    whole = [views[number] for number in range(len(views))]
    assert len(whole) == len(views)
    assert {item["scene"] for item in whole} == {0, 2}
    for item in whole:
        assert {uri[0] for uri in item["uri"].values()} == {str(item["scene"])}


def test_a_stream_replaces_a_clip_that_does_not_decode(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = [{"uri": NAMES[number % 3], "frames": [number, number + 1]} for number in range(12)]
    packed = shard_clips(tmp_path / "I", tmp_path / "T", clips, "--pack", "clips")
    names = ClipDataset(packed).column("clip_id").tolist()
    chosen = type(ClipStream(packed)._clips)
    real = chosen.item

    def item(clips: Any, clip: Any, *others: Any) -> dict[str, Any]:
        if clip.clip_id == names[5]:
            raise DecodeError("made up", where=clip.medium.path)
        return real(clips, clip, *others)

    monkeypatch.setattr(chosen, "item", item)
    stream = ClipStream(packed, on_error="replace")
    items = list(stream)
    found = [item["clip_id"] for item in items]
    assert [number for number, name in enumerate(names) if found[number] != name] == [5]
    assert (found[5] in names, stream.skipped()) == (True, [])
    again = ClipDataset(packed)[names.index(found[5])]
    assert np.array_equal(items[5]["frames"], again["frames"])
    with pytest.raises(DecodeError, match="made up"):
        list(ClipStream(packed))
    assert [item["clip_id"] for item in ClipStream(packed, on_error="skip")] == names[:5] + names[6:]
