"""Datasets and tars that a stream cannot read: the error says which one and why, and only their clips are lost."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from framedex import ClipDataset, ClipStream
from framedex.errors import DecodeError, FormatError, FramedexError, StaleError
from tests.support import media
from tests.support.datasets import run
from tests.support.streams import pack


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """A copy of a packed dataset that a test may damage."""
    return Path(shutil.copytree(packed, tmp_path / "COPY"))


def second_tar(dataset: Path) -> Path:
    return sorted((dataset / "shards").glob("*.tar"))[1]


def clips_in(dataset: Path, tar: Path) -> set[str]:
    """Return the names of the clips in a tar."""
    clips = ClipDataset(dataset)
    found = [clips.clip(number) for number in range(len(clips))]
    return {clip.clip_id for clip in found if clip.source.path == str(tar)}


def cut_short(tar: Path) -> None:
    tar.write_bytes(tar.read_bytes()[:-5000])


def changed(tar: Path) -> None:
    content = bytearray(tar.read_bytes())
    content[:512] = bytes(512)
    tar.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], None]] = {"missing": Path.unlink, "cut short": cut_short, "changed": changed}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_tar_that_is_not_the_packed_one_is_named(copy: Path, damage: str) -> None:
    tar = second_tar(copy)
    whole = tar.stat().st_size
    DAMAGE[damage](tar)
    with pytest.raises(StaleError, match="the tar is missing, too short, or was changed") as caught:
        list(ClipStream(copy, decode="movie"))
    error = caught.value
    assert error.where == str(tar)
    expected = {"missing": "No such file", "cut short": f"{whole - 5000} bytes", "changed": f"{whole} bytes of other"}
    assert expected[damage] in str(error.found)
    assert f"{whole} bytes" in str(error.allowed)
    assert error.remedy is not None
    assert "skip" in error.remedy


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("workers", [0, 2])
def test_only_the_clips_of_that_tar_are_skipped_and_reported(
    copy: Path, damage: str, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    tar = second_tar(copy)
    names = [ClipDataset(copy).clip(number).clip_id for number in range(len(ClipDataset(copy)))]
    lost = clips_in(copy, tar)
    DAMAGE[damage](tar)
    stream = ClipStream(copy, shuffle=4, decode="movie", on_error="skip")
    with caplog.at_level(logging.WARNING, "framedex.loader"):
        batches = list(DataLoader(stream, batch_size=3, collate_fn=list, num_workers=workers))
    delivered = [item["clip_id"] for batch in batches for item in batch]
    assert sorted(delivered) == sorted(set(names) - lost)
    skipped = stream.skipped()
    assert {names[skip.clip] for skip in skipped} == lost
    assert {(skip.where, skip.kind) for skip in skipped} == {(str(tar), "stale")}
    assert "the tar is missing, too short, or was changed" in skipped[0].message
    assert workers or str(tar) in caplog.text


def test_a_run_that_skips_clips_goes_on_behind_them(copy: Path) -> None:
    lost = clips_in(copy, second_tar(copy))
    second_tar(copy).unlink()
    names = {ClipDataset(copy).clip(number).clip_id for number in range(len(ClipDataset(copy)))}
    for stop in range(0, 21, 4):
        stream = ClipStream(copy, shuffle=4, seed=1, decode="movie", on_error="skip")
        loader = DataLoader(stream, batch_size=3, collate_fn=list, num_workers=2)
        first = [item["clip_id"] for batch in itertools.islice(loader, stop) for item in batch]
        state = stream.state_dict(loader, batches=stop)
        again = ClipStream(copy, shuffle=4, seed=1, decode="movie", on_error="skip")
        again.load_state_dict(state)
        rest = [
            item["clip_id"]
            for batch in DataLoader(again, batch_size=3, collate_fn=list, num_workers=2)
            for item in batch
        ]
        assert sorted(first + rest) == sorted(names - lost), stop


def test_damaged_pictures_are_an_error_of_their_clip(packed_images: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(packed_images, tmp_path / "COPY"))
    clip = ClipDataset(copy).clip(7)
    tar = Path(clip.source.path)
    content = bytearray(tar.read_bytes())
    place = int(clip.recipe.range_offset[0] + clip.recipe.range_length[0] // 2)
    content[place] ^= 255
    tar.write_bytes(content)
    stream = ClipStream(copy, on_error="skip")
    count = len(list(stream))
    kinds = [(skip.clip, skip.kind) for skip in stream.skipped()]
    if len(kinds) > 1:  # the fingerprint of a small tar covers all of it
        assert clip.clip_id in clips_in(copy, tar)
        assert len(kinds) == len(clips_in(copy, tar))
    else:
        assert kinds == [(7, "stale")]
    assert count + len(kinds) == len(ClipDataset(copy))


def test_clips_that_do_not_decode_are_skipped_alone(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, real = ClipDataset(copy).clip(5).clip_id, ClipStream._read_item

    def failing(stream: ClipStream, read: Any, epoch: int) -> Any:
        if read.clip.clip_id == bad:
            raise DecodeError("made up", where=read.clip.medium.path)
        return real(stream, read, epoch)

    monkeypatch.setattr(ClipStream, "_read_item", failing)
    stream = ClipStream(copy, decode="movie", on_error="skip")
    assert len(list(stream)) == len(ClipDataset(copy)) - 1
    assert [(skip.clip, skip.kind) for skip in stream.skipped()] == [(5, "undecodable")]
    with pytest.raises(DecodeError, match="made up"):
        list(ClipStream(copy, decode="movie"))


def test_a_dataset_of_another_version_is_refused(copy: Path) -> None:
    header = copy / "dataset.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"schema_version": "4.0"}))
    with pytest.raises(FormatError, match="another major version") as caught:
        ClipStream(copy)
    assert (caught.value.found, caught.value.allowed) == ("schema version 4.0", "3.x")


def test_a_place_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is not a framedex dataset"):
        ClipStream(tmp_path)


def test_clips_outside_of_tars_are_refused(small_index: Path, medium: Callable[[str], Path], tmp_path: Path) -> None:
    policy = "policy: uniform\nframes: 2\n"
    with pytest.raises(FramedexError, match="needs a dataset whose clips are in tars") as caught:
        ClipStream(pack(small_index, tmp_path / "D", policy))
    assert caught.value.found == "5 of 5 clips are not in tars"
    assert caught.value.allowed == "a dataset of --pack clips or --pack images"
    (tmp_path / "mixed").mkdir()
    media.remux(medium("h264_default.mp4"), tmp_path / "mixed" / "transport.ts")
    shutil.copy(medium("h264_default.mp4"), tmp_path / "mixed")
    run("index", tmp_path / "mixed", "--out", tmp_path / "MIXED")
    with pytest.raises(FramedexError, match="needs a dataset whose clips are in tars") as caught:
        ClipStream(pack(tmp_path / "MIXED", tmp_path / "NEEDED", policy, "--pack", "needed"))
    assert caught.value.found == "1 of 2 clips are not in tars"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"shuffle": -1}, "shuffle must be the number of clips"),
    ({"shuffle": True}, "shuffle must be the number of clips"),
    ({"seed": -1}, "seed is out of range"),
    ({"rank": 1}, "rank and world_size together"),
    ({"rank": 2, "world_size": 2}, "rank is out of range"),
    ({"uneven": "some"}, "unknown uneven"),
    ({"on_error": "ignore"}, "unknown on_error"),
    ({"decode": "gpu"}, "unknown decode"),
    ({"size": 224}, "size must be"),
    ({"where": {"label": 1}}, "no such column"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=str)
def test_wrong_arguments_are_refused(packed: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(FramedexError, match=message):
        ClipStream(packed, **options)
