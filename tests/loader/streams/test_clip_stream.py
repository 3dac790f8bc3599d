"""A stream gives the items of ClipDataset: every clip, exactly once over ranks and workers, and in every epoch."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from torch.utils.data import DataLoader

from framedex import ClipDataset, ClipStream, decode_sample
from tests.support import media
from tests.support.counted import some
from tests.support.datasets import run, write_clips
from tests.support.packed import tars
from tests.support.streams import full_rgb, pack, same_item

RANKS, WORKERS = 3, 2


def ids(items: Sequence[dict[str, Any]]) -> list[str]:
    return [item["clip_id"] for item in items]


def loader_of(stream: ClipStream, **options: Any) -> DataLoader[dict[str, Any]]:
    """Return a DataLoader with workers that gives lists of items."""
    return DataLoader(stream, batch_size=4, collate_fn=list, num_workers=WORKERS, **options)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("packed", {}),
    ("packed", {"shuffle": 7}),
    ("packed", {"size": (48, 64), "shuffle": 30}),
    ("packed", {"decode": "movie"}),
    ("packed_images", {"shuffle": 7}),
    ("packed_images", {"size": (48, 64)}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_items_are_those_of_clip_dataset(name: str, options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    dataset = ClipDataset(path, **{key: value for key, value in options.items() if key != "shuffle"})
    found = {item["clip_id"]: item for item in ClipStream(path, **options)}
    assert len(found) == len(dataset) > 50
    for number in some(np.random.default_rng(2).permutation(len(dataset)).tolist()):
        expected = dataset[number]
        assert same_item(found[expected["clip_id"]], expected), expected["clip_id"]


def test_frames_in_shuffled_order_are_those_of_a_full_decode(packed: Path, medium: Callable[[str], Path]) -> None:
    """Beside the stream, each sample is decoded by itself."""
    dataset = ClipDataset(packed)
    media_of = {clip.medium.uri: clip.medium for clip in map(dataset.clip, range(len(dataset)))}
    whole = {name: full_rgb(medium(name), facts) for name, facts in media_of.items()}
    urls = [str(path) for path in tars(packed)]
    alone = list(webdataset.WebDataset(urls, shardshuffle=False).map(decode_sample))
    streamed = list(ClipStream(packed, shuffle=20, seed=5))
    for item in some([*streamed, *alone], 2 * len(dataset)):
        wanted = item["frame_index"][item["frame_index"] >= 0].tolist()
        expected = np.stack([whole[item["uri"]][number] for number in wanted])
        assert np.array_equal(item["frames"][: len(wanted)], expected), item["clip_id"]
    assert len(whole) == 5
    assert ids(streamed) != sorted(ids(streamed))


def test_frames_show_their_numbers(packed: Path) -> None:
    checked = 0
    for item in ClipStream(packed, shuffle=20, seed=5):
        wanted = item["frame_index"][item["frame_index"] >= 0]
        shown = [media.read_barcode(frame) for frame in item["frames"][: len(wanted)]]
        assert shown == wanted.tolist(), item["clip_id"]
        checked += len(shown)
    assert checked > 200


def test_items_with_audio_and_columns_are_those_of_clip_dataset(small_index: Path, tmp_path: Path) -> None:
    clips = [
        {
            "uri": name,
            "frames": [number, number + 4],
            "label": number,
            "share": number / 3,
            "caption": None,
            "tags": ["a"],
        }
        for name in ("h264_audio.mp4", "h264_default.mp4")
        for number in range(8)
    ]
    path = write_clips(tmp_path / "clips.jsonl", clips)
    options = ("--pack", "clips", "--audio", "--shard-size", "60KB")
    run("shard", small_index, "--clips", path, "--out", tmp_path / "D", *options)
    dataset = ClipDataset(tmp_path / "D")
    found = {item["clip_id"]: item for item in ClipStream(tmp_path / "D", shuffle=5)}
    assert len(found) == len(dataset) == 16
    for number in range(16):
        assert same_item(found[dataset[number]["clip_id"]], dataset[number])
    assert {"audio", "audio_mask", "audio_rate", "label", "tags"} <= dataset[0].keys()


def test_without_a_buffer_clips_come_in_the_order_of_the_dataset(packed: Path) -> None:
    dataset = ClipDataset(packed)
    assert ids(list(ClipStream(packed))) == [dataset.clip(number).clip_id for number in range(len(dataset))]


@pytest.mark.parametrize("uneven", ["allow", "pad", "drop"])
def test_ranks_and_workers_deliver_each_clip_once(packed: Path, uneven: Any) -> None:
    count = len(ClipDataset(packed))
    per_rank = []
    for rank in range(RANKS):
        stream = ClipStream(packed, shuffle=6, rank=rank, world_size=RANKS, uneven=uneven, decode="movie")
        loader = loader_of(stream)
        batches = list(loader)
        assert len(batches) == stream.batch_count(loader)
        per_rank.append(ids([item for batch in batches for item in batch]))
        assert len(per_rank[-1]) == stream.clip_count
    delivered = sorted(name for names in per_rank for name in names)
    assert count % RANKS
    if uneven == "allow":
        assert len(set(delivered)) == len(delivered) == count
    else:
        assert len({len(names) for names in per_rank}) == 1
        assert len(set(delivered)) == (count if uneven == "pad" else count - count % RANKS)


def test_persistent_workers_see_the_epoch(packed: Path) -> None:
    stream = ClipStream(packed, shuffle=10, decode="movie")
    loader = loader_of(stream, persistent_workers=True)
    orders = []
    for epoch in range(2):
        stream.set_epoch(epoch)
        orders.append(ids([item for batch in loader for item in batch]))
    stream.set_epoch(0)
    again = ids([item for batch in loader for item in batch])
    assert orders[0] == again != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert len(set(orders[0])) == len(orders[0]) == len(ClipDataset(packed))


def test_spawned_workers_deliver_the_same(packed: Path) -> None:
    stream = ClipStream(packed, shuffle=10, decode="movie")
    forked = ids([item for batch in loader_of(stream) for item in batch])
    spawned = ids([item for batch in loader_of(stream, multiprocessing_context="spawn") for item in batch])
    assert spawned == forked


def test_more_workers_than_tars_and_more_than_clips_share_the_clips(
    packed: Path, tmp_path: Path, small_index: Path
) -> None:
    few = pack(small_index, tmp_path / "FEW", "policy: uniform\nframes: 2\n", "--pack", "clips")
    delivered = [
        item["clip_id"]
        for rank in range(4)
        for item in ClipStream(few, rank=rank, world_size=4, uneven="allow", shuffle=2)
    ]
    assert len(list((few / "shards").glob("*.tar"))) == 1
    assert sorted(delivered) == sorted(ids(list(ClipStream(few))))
    padded = [len(list(ClipStream(few, rank=rank, world_size=9))) for rank in range(9)]
    assert padded == [1] * 9


def test_where_keeps_the_clips_with_these_values(small_index: Path, tmp_path: Path) -> None:
    policy = "policy: stride\nstride: 3\nframes: 4\nsplit: {shares: {train: 1, val: 1}, seed: 1}\n"
    path = pack(small_index, tmp_path / "D", policy, "--pack", "clips", "--shard-size", "60KB")
    wanted = {"split": "val"}
    dataset = ClipDataset(path, where=wanted)
    found = list(ClipStream(path, where=wanted, shuffle=4))
    assert {item["split"] for item in found} == {"val"}
    assert sorted(ids(found)) == sorted(dataset.clip(number).clip_id for number in range(len(dataset)))


def test_a_stream_is_pickled_small_and_describes_itself(packed: Path) -> None:
    stream = ClipStream(packed, shuffle=3)
    copy = pickle.loads(pickle.dumps(stream))
    assert ids(list(copy)) == ids(list(stream))
    clips, tars = len(ClipDataset(packed)), len(list((packed / "shards").glob("*.tar")))
    assert repr(stream) == f"<ClipStream {packed}: {clips} clips in {tars} tars>"
    assert stream.columns == ClipDataset(packed).columns


def test_ranks_are_those_of_the_environment_unless_they_are_given(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert (ClipStream(packed).rank, ClipStream(packed).world_size) == (1, 3)
    given = ClipStream(packed, rank=0, world_size=2)
    assert (given.rank, given.world_size) == (0, 2)
