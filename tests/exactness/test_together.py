"""Clips that are decoded together have the frames that each of them has alone, which are those of a full decode."""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import framedex
from benchmarks.exactness import read_oracle
from framedex import ClipDataset, ClipSampler, Framing, Index
from framedex.errors import DecodeError, FramedexError
from framedex.sharder.clips.together import joined, shared_groups
from tests.conftest import Truth
from tests.support import made
from tests.support.counted import some
from tests.support.datasets import content, run
from tests.support.media import RECIPES, decodes, index_with_broken_gop, read_barcode
from tests.support.reading import Reader, pictures_of

UPSIDE_DOWN = "mjpeg_turned"  # `pictures_of` reads its rows in another order than the full decode
WINDOWS = {"policy": "windows", "frames": 6, "stride": 1, "step": 2}


def drawn_frames(rng: np.random.Generator, count: int) -> list[int]:
    """Return the frames of a clip: consecutive ones, some that are apart, or any in any order."""
    first, kind = int(rng.integers(count)), int(rng.integers(4))
    if kind == 0:
        return list(range(first, min(count, first + int(rng.integers(1, 12)))))
    if kind == 1:
        return list(range(first, count, int(rng.integers(1, 9))))[:10]
    frames = rng.integers(0, count, int(rng.integers(1, 8))).tolist()
    return sorted(frames) if kind == 2 else [*frames, -1]


def differing(reader: Reader, md5: list[str], rng: np.random.Generator, rounds: int) -> Iterator[object]:
    """Decode groups of clips. Yield None for each group with the frames of a full decode, and the group otherwise.

    Groups of frames that cannot be planned, or whose packets are in an unknown order, are left out.
    """
    for _ in range(rounds):
        clips = []
        for _ in range(int(rng.integers(2, 6))):
            try:
                clips.append(reader.clip(drawn_frames(rng, len(md5))))
            except FramedexError:
                continue  # a frame of a damaged GOP, or padding alone
        group = joined(clips) if len(clips) > 1 else None
        if group is None:
            continue
        whole = reader.sources.read(group.whole)
        found = dict(zip(group.whole.recipe.position.tolist(), pictures_of(group.whole, whole), strict=True))
        for number, clip in enumerate(clips):
            alone, part = reader.sources.read(clip), group.encoded(number, whole)
            assert part.payload.tobytes() == alone.payload.tobytes()
            assert part.packet_first.tolist() == alone.packet_first.tolist()
        assert len(group.whole.recipe.packet_size) <= sum(len(clip.recipe.packet_size) for clip in clips)
        taken: set[tuple[int, int]] = set()

        def take(users: list[tuple[int, int]], _: str, taken: set[tuple[int, int]] = taken) -> None:
            taken.update(users)

        complete = [(number, set(taken)) for number in group.complete(found.items(), take)]
        assert sorted(number for number, _ in complete) == list(range(len(clips)))
        for number, ready in complete:
            assert {(number, rank) for rank in clips[number].recipe.position.tolist() if rank >= 0} <= ready
        for clip, ranks in zip(clips, group.ranks, strict=True):
            shown = [None if rank < 0 else found[int(ranks[rank])] for rank in clip.recipe.position.tolist()]
            expected = [None if frame < 0 else md5[frame] for frame in clip.frames.tolist()]
            yield None if shown == expected else [clip.frames.tolist() for clip in clips]


@pytest.mark.parametrize("name", RECIPES)
def test_any_clips_of_a_medium_together_have_the_frames_of_the_full_decode(
    name: str, index: Index, truth: Callable[[str], Truth], rng: np.random.Generator
) -> None:
    assert set(some(differing(Reader(index, name), truth(name).md5, rng, 6))) == {None}


@pytest.mark.slow
@pytest.mark.xdist_group("corpus")
def test_clips_of_the_corpus_together_have_the_frames_of_the_oracle(
    corpus: Path, corpus_index: Index, rng: np.random.Generator
) -> None:
    oracle, tried = read_oracle(corpus), 0
    for row in some(corpus_index.videos.to_pylist(), 100):
        frames = oracle.get((row["uri"], row["stream_index"]))
        if row["status"] != "ok" or frames is None or len(frames) != row["frame_count"] or row["damaged_gop_count"]:
            continue
        found = list(differing(Reader(corpus_index, row["uri"]), [md5 for _, md5 in frames], rng, 5))
        assert [group for group in found if group is not None] == [], row["uri"]
        tried += bool(found)
    assert tried > 90


@pytest.mark.slow
@pytest.mark.xdist_group("hazards")
def test_clips_of_hazards_together_have_the_frames_of_the_full_decode(tmp_path: Path, rng: np.random.Generator) -> None:
    folder, truth, tried = made.media("hazards"), made.truth("hazards"), 0
    framedex.index(folder, tmp_path / "INDEX", depth="packets", workers=0, progress=False)
    index = Index(tmp_path / "INDEX")
    for row in some(index.videos.to_pylist(), 50):
        if row["status"] == "ok" and not row["damaged_gop_count"] and not row["uri"].startswith(UPSIDE_DOWN):
            found = list(differing(Reader(index, row["uri"]), [md5 for _, md5 in truth[row["uri"], 0]], rng, 5))
            assert [group for group in found if group is not None] == [], row["uri"]
            tried += bool(found)
    assert tried > 30


@contextlib.contextmanager
def reads(dataset: ClipDataset) -> Iterator[list[Any]]:
    """Provide a list of the clips that are read from files within a `with` block."""
    found: list[Any] = []
    files = type(dataset.sources)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "read", lambda self, clip, before=files.read: found.append(clip) or before(self, clip))
        yield found


FRAMINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "size": {"size": (48, 64)},
    "random crops": {"framing": Framing(size=(40, 40), scale=(0.3, 1.0), flip=0.5)},
    "windows": {"framing": Framing(crop=(32, 48), position="five")},
    "16 bits": {"dtype": "uint16"},
}


@pytest.mark.parametrize("how", FRAMINGS)
@pytest.mark.parametrize("name", ["h264_b_pyramid.mkv", "hevc_open_gop.mp4", "h264_vfr.mp4"])
def test_a_batch_of_a_dataset_equals_its_items(
    name: str, how: str, medium: Callable[[str], Path], tmp_path: Path, rng: np.random.Generator
) -> None:
    framedex.index(medium(name), tmp_path / "INDEX", workers=0, progress=False)
    framedex.shard(tmp_path / "INDEX", tmp_path / "D", policy=WINDOWS, workers=0, progress=False)
    stored = ClipDataset(tmp_path / "D", **FRAMINGS[how])
    for dataset in (stored, ClipDataset.from_index(tmp_path / "INDEX", WINDOWS, **FRAMINGS[how])):
        numbers = [*rng.permutation(len(dataset))[:8].tolist(), 3, 4, 3, -1]
        with reads(dataset) as read:
            items = dataset.__getitems__(numbers)
        assert len(read) < len(numbers) / 2
        for number, item in some(zip(numbers, items, strict=True)):
            alone = dataset[number]
            assert item.keys() == alone.keys()
            for key in some(item):
                np.testing.assert_array_equal(item[key], alone[key], key)
            if how == "plain":
                shown = item["frames"][item["mask"]]
                assert [read_barcode(frame) for frame in shown] == item["frame_index"][item["mask"]].tolist()


def test_a_batch_that_takes_too_much_memory_is_decoded_in_parts(medium: Callable[[str], Path], tmp_path: Path) -> None:
    framedex.index(medium("h264_default.mp4"), tmp_path / "INDEX", workers=0, progress=False)
    plain = ClipDataset.from_index(tmp_path / "INDEX", WINDOWS)
    size = plain[0]["frames"].nbytes
    for clips, reads_at_least, reads_at_most in ((2, 5, 9), (4, 2, 5), (40, 1, 1)):
        dataset = ClipDataset.from_index(tmp_path / "INDEX", WINDOWS, clip_bytes=clips * size + 60_000)
        with reads(dataset) as read:
            items = dataset.__getitems__(range(10))
        assert reads_at_least <= len(read) <= reads_at_most
        for number, item in some(enumerate(items), 10):
            np.testing.assert_array_equal(item["frames"], plain[number]["frames"])


def test_a_batch_decodes_shared_pictures_once(medium: Callable[[str], Path], tmp_path: Path) -> None:
    framedex.index(medium("h264_default.mp4"), tmp_path / "INDEX", workers=0, progress=False)
    dataset = ClipDataset.from_index(tmp_path / "INDEX", WINDOWS)
    clips = [dataset.clip(number) for number in range(8)]
    group = joined(clips)
    assert group is not None
    assert shared_groups(clips) == [list(range(8))]
    assert len(group.whole.recipe.packet_size) < 0.4 * sum(len(clip.recipe.packet_size) for clip in clips)


PACKS = {"images": ["--pack", "images", "--image-format", "png"], "encoded": ["--pack", "clips", "--encode", "h264"]}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return index_with_broken_gop(tmp_path)


def test_only_clips_that_do_not_decode_are_replaced_or_raise(broken: Path) -> None:
    plain = ClipDataset.from_index(broken, WINDOWS)
    replacing = ClipDataset.from_index(broken, WINDOWS, on_error="replace")
    numbers = list(range(len(plain)))
    wrong = [number for number in numbers if not decodes(plain, number)]
    assert 0 < len(wrong) < len(numbers) - 2
    assert len(shared_groups([plain.clip(number) for number in numbers[:10]])) == 1
    for number, item in some(zip(numbers, replacing.__getitems__(iter(numbers)), strict=True), len(wrong) + 1):
        if number in wrong:
            assert item["clip_id"] not in [plain.clip(other).clip_id for other in wrong]
        else:
            np.testing.assert_array_equal(item["frames"], plain[number]["frames"])
    with pytest.raises(DecodeError, match=plain.clip(wrong[0]).clip_id):
        plain.__getitems__(numbers)
    with pytest.raises(IndexError):
        plain.__getitems__([1, len(plain)])


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("pack", PACKS)
def test_only_clips_that_do_not_decode_fail_to_be_packed(
    pack: str, workers: str, broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_text("policy: windows\nframes: 6\nstride: 1\nstep: 2\n", encoding="utf-8")
    shard = ["shard", broken, "--policy", tmp_path / "policy.yaml", *PACKS[pack], "--max-failures", 100, "--out"]
    run(*shard, tmp_path / "TOGETHER", "--workers", workers)
    monkeypatch.setattr("framedex.sharder.packing.pack.MAX_TOGETHER", 1)
    run(*shard, tmp_path / "ALONE", "--workers", "0")
    both = [tmp_path / name for name in ("TOGETHER", "ALONE")]
    failures = [pq.read_table(out / "failures.parquet").to_pylist() for out in both]
    assert {row["kind"] for row in failures[0]} == {"undecodable"}
    assert failures[0] == failures[1]
    assert content(both[0] / "shards") == content(both[1] / "shards") != {}


def test_clips_that_contradict_each_other_are_decoded_alone(medium: Callable[[str], Path], tmp_path: Path) -> None:
    framedex.index(medium("h264_default.mp4"), tmp_path / "INDEX", workers=0, progress=False)
    dataset = ClipDataset.from_index(tmp_path / "INDEX", WINDOWS)
    one, two = dataset.clip(1), dataset.clip(2)

    def changed(**fields: Any) -> Any:
        return replace(two, recipe=replace(two.recipe, **fields))

    order = two.recipe.packet_order
    assert order is not None
    assert joined([one, changed()]) is not None
    assert joined([one, changed(packet_order=None)]) is None
    assert joined([one, changed(damaged=True)]) is None
    assert joined([one, changed(packet_order=order + 1)]) is None  # packets of the first clip have these numbers
    assert joined([one, changed(packet_order=np.zeros_like(order))]) is None
    assert joined([one, changed(range_offset=two.recipe.range_offset + 1)]) is None
    length, half = two.recipe.range_length, int(two.recipe.packet_size[0]) // 2
    cut = {"range_offset": np.append(two.recipe.range_offset[0], two.recipe.range_offset + half + 7)}
    cut["range_length"] = np.append(half, np.append(length[0] - half, length[1:]))
    assert joined([one, changed(**cut)]) is None  # the second half of the first packet is read elsewhere
    nothing = replace(two, recipe=replace(two.recipe, position=np.full_like(two.recipe.position, -1)))
    assert joined([one, nothing]) is None
    assert joined([one, replace(two, source=replace(two.source, path="other"))]) is None


def test_images_that_contradict_each_other_are_decoded_alone(tmp_path: Path) -> None:
    for number in range(4):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    framedex.index(tmp_path, tmp_path / "INDEX", workers=0, progress=False)
    dataset = ClipDataset.from_index(tmp_path / "INDEX", {"policy": "windows", "frames": 2, "stride": 1, "step": 1})
    one, two = dataset.clip(0), dataset.clip(1)
    assert joined([one, two]) is not None
    shifted = replace(two, recipe=replace(two.recipe, packet_order=one.recipe.packet_order))
    assert joined([one, shifted]) is None
    assert [item["frames"][:, 0, 0, 0].tolist() for item in dataset.__getitems__([0, 1, 2])] == [[0, 1], [1, 2], [2, 3]]


def test_frames_are_freed_without_a_collection_of_garbage(medium: Callable[[str], Path], tmp_path: Path) -> None:
    framedex.index(medium("h264_default.mp4"), tmp_path / "INDEX", workers=0, progress=False)
    dataset = ClipDataset.from_index(tmp_path / "INDEX", WINDOWS)
    gc.collect()
    gc.disable()
    try:
        for items in ([dataset[0]], dataset.__getitems__([1, 2, 3])):
            frames = weakref.ref(items[0]["frames"])
            base = weakref.ref(items[0]["frames"].base) if items[0]["frames"].base is not None else frames
            items.clear()
            assert frames() is None
            assert base() is None
    finally:
        gc.enable()


def test_a_batch_of_a_subclass_has_the_items_of_the_subclass(medium: Callable[[str], Path], tmp_path: Path) -> None:
    class Named(ClipDataset):
        def __getitem__(self, number: int) -> dict[str, Any]:
            return super().__getitem__(number) | {"name": f"clip {number}"}

    framedex.index(medium("h264_default.mp4"), tmp_path / "INDEX", workers=0, progress=False)
    dataset = Named.from_index(tmp_path / "INDEX", WINDOWS)
    assert [item["name"] for item in dataset.__getitems__([1, 2])] == ["clip 1", "clip 2"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_data_loader_decodes_overlapping_clips_together(
    shuffle: bool, medium: Callable[[str], Path], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    framedex.index(medium("h264_default.mp4"), tmp_path / "INDEX", workers=0, progress=False)
    dataset = ClipDataset.from_index(tmp_path / "INDEX", WINDOWS)
    sampler = ClipSampler(dataset, shuffle=shuffle, blocks=8, window=1)
    batches = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler, collate_fn=list)
    with reads(dataset) as read:
        items = [item for batch in batches for item in batch]
    assert len(batches) <= len(read) <= 2 * len(batches) < len(dataset)  # the last block may not be full
    names = [dataset.clip(number).clip_id for number in range(len(dataset))]
    assert sorted(item["clip_id"] for item in items) == names
    assert ([item["clip_id"] for item in items] == names) != shuffle


@pytest.mark.parametrize("pack", PACKS)
def test_packing_clips_together_changes_no_byte(
    pack: str,
    medium: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "framedex")
    framedex.index(medium("h264_b_pyramid.mkv"), tmp_path / "INDEX", workers=0, progress=False)
    (tmp_path / "policy.yaml").write_text("policy: windows\nframes: 6\nstride: 1\nstep: 2\n", encoding="utf-8")
    shard = ["shard", tmp_path / "INDEX", "--policy", tmp_path / "policy.yaml", "--workers", "0", *PACKS[pack], "--out"]
    with reads(ClipDataset.from_index(tmp_path / "INDEX", WINDOWS)) as read:
        run(*shard, tmp_path / "TOGETHER")
    monkeypatch.setattr("framedex.sharder.packing.pack.MAX_TOGETHER", 1)
    run(*shard, tmp_path / "ALONE")
    assert 0 < len(read) < len(ClipDataset(tmp_path / "ALONE")) / 2
    assert "could not be decoded together" not in caplog.text
    tars = [
        [digest for name, digest in content(tmp_path / out).items() if name.endswith(".tar")]
        for out in ("TOGETHER", "ALONE")
    ]
    assert tars[0] == tars[1] != []
