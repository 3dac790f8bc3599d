"""Media are removed from datasets to the last byte, and clips that stay keep their frames, ids and tars."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import re
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex import ClipDataset, ClipLoader, ClipSampler, ClipStream, FramedexError
from tests.support.datasets import content, run
from tests.support.depth import drawn
from tests.support.images import tar_of
from tests.support.living import CAPTION, COUNT, NAME, Forks, copy_videos, files_with, index, write_listing

Medium = Callable[[str], Path]
KINDS = {
    "reference": [],
    "clips": ["--pack", "clips", "--shard-size", "150kB"],
    "images": ["--pack", "images", "--shard-size", "300kB"],
    "encoded": ["--pack", "clips", "--encode", "h264", "--shard-size", "100kB"],
    "sound": ["--pack", "images", "--shard-size", "300kB", "--audio"],
    "needed": ["--pack", "needed"],
}
TAKEN = (3, 4, 9, 23)


@pytest.fixture
def place(tmp_path: Path, medium: Medium) -> Path:
    """Return a folder with videos of several kinds, a listing of them with captions, and their index."""
    copy_videos(tmp_path, medium)
    write_listing(tmp_path, range(COUNT))
    index(tmp_path)
    return tmp_path


def shard(place: Path, *options: str, out: str = "D", policy: str = "{policy: fps, fps: 4, frames: 2}") -> Path:
    """Make a dataset."""
    run("shard", place / "INDEX", "--policy", policy, "--out", place / out, *options)
    return place / out


def remove(dataset: Path, *numbers: int, code: int = 0) -> dict[str, Any]:
    """Remove media by their numbers, and return the report, or the output if the command fails."""
    names = [word for number in numbers for word in ("--remove", f"videos/{NAME.format(number)}.mp4")]
    said = run("shard", dataset, *names, "--json", code=code)
    return dict(json.loads(said.output)) if code == 0 else {"output": said.output}


def items(dataset: Path) -> dict[str, dict[str, Any]]:
    """Return the items of a dataset in order, by their clip ids."""
    clips = ClipDataset(dataset)
    return {item["clip_id"]: item for item in (clips[number] for number in range(len(clips)))}


def number_of(item: dict[str, Any]) -> int:
    """Return the number of an item's medium, by its caption."""
    return int(item["caption"].removeprefix(CAPTION.format(0)[:-2]))


def check_same(found: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]]) -> None:
    """Check that items are the same, in the same order."""
    assert list(found) == list(expected)
    for name, item in found.items():
        for key, value in expected[name].items():
            np.testing.assert_array_equal(item[key], value, err_msg=f"{name}, {key}")


@pytest.mark.parametrize("kind", KINDS)
def test_clips_that_stay_are_the_same_and_no_byte_names_the_others(place: Path, kind: str) -> None:
    dataset = shard(place, *KINDS[kind])
    before, tars = items(dataset), {path.name for path in dataset.glob("shards/*")}
    concerned = {
        row["shard"] for row in json.loads(audited(dataset, "SELECT uri, shard FROM clips")) if number_in(row) in TAKEN
    }
    left = {name: item for name, item in before.items() if number_of(item) not in TAKEN}
    report = remove(dataset, *TAKEN)
    assert (report["media"], report["clips"], report["unknown"]) == (len(TAKEN), len(before) - len(left), [])
    assert report["left"] == len(left)
    check_same(items(dataset), left)
    for number in TAKEN:
        assert files_with(dataset, NAME.format(number)) == []
        assert files_with(dataset, CAPTION.format(number)) == []
    gone = {name for name in tars if not (dataset / "shards" / name).exists()}
    if kind in ("reference", "needed"):
        assert report["tars"] == 0
        assert not tars
    else:
        assert 0 < report["tars"] == len(concerned) < len(tars) / 2
        assert gone == {f"{name}-{number:06d}.{ending}" for number in concerned for ending in ("tar", "idx")
                        for name in {path.split("-")[0] for path in tars}}  # fmt: skip
    check_verified(dataset)
    after = content(dataset)
    assert remove(dataset, *TAKEN) == report | {"media": 0, "clips": 0, "tars": 0, "failures": 0}
    assert content(dataset) == after
    # Once more, from a dataset that was changed already: all of a tar, and media before and after the first ones.
    more = {
        number_in(row)
        for row in json.loads(audited(dataset, "SELECT uri, shard FROM clips"))
        if row["shard"] in (0, None)
    }
    more = set(sorted(more)[:6]) if kind in ("reference", "needed") else more
    remove(dataset, *more, 20)
    check_same(items(dataset), {n: item for n, item in left.items() if number_of(item) not in more | {20}})
    check_verified(dataset)
    check_tables(dataset)


def check_verified(dataset: Path) -> None:
    """Check that `framedex verify` finds all clips right."""
    assert re.match(rf"{len(ClipDataset(dataset))} (exact|nearest) ", run("verify", dataset).output)


def number_in(row: dict[str, Any]) -> int:
    return int(Path(row["uri"]).stem.removeprefix("secret"))


def audited(dataset: Path, sql: str) -> str:
    return run("audit", dataset, "--sql", sql, "--format", "json").output


def check_tables(dataset: Path) -> None:
    """Check the views of an audit against the dataset itself."""
    clips = ClipDataset(dataset)
    rows = json.loads(audited(dataset, "SELECT clip, clip_id, uri, shard FROM clips ORDER BY clip"))
    assert [row["clip"] for row in rows] == list(range(len(clips)))
    for row in rows:
        clip = clips.clip(row["clip"])
        assert (row["clip_id"], row["uri"]) == (clip.clip_id, clip.medium.uri)
    tars = {row["shard"]: row for row in json.loads(audited(dataset, "SELECT * FROM shards"))}
    for number, shard in tars.items():
        assert shard["clips"] == sum(row["shard"] == number for row in rows)
        assert (dataset / shard["name"]).stat().st_size == shard["size_bytes"]
    assert {row["shard"] for row in rows} <= {None, *tars}


def test_the_log_counts_what_was_removed_and_names_nothing(place: Path) -> None:
    dataset = shard(place, *KINDS["clips"])
    (place / "list.txt").write_text("".join(f"videos/{NAME.format(number)}.mp4\n" for number in TAKEN))
    said = run("shard", dataset, "--remove", f"@{place / 'list.txt'}").output
    assert said.startswith("4 media with ")
    assert remove(dataset, 99)["unknown"] == [f"videos/{NAME.format(99)}.mp4"]
    lines = [json.loads(line) for line in run("log", dataset, "--json").output.splitlines()]
    assert [(line["generation"], line["command"]) for line in lines] == [(1, "shard"), (2, "shard")]
    assert lines[1]["options"] == {"remove": 4}
    assert lines[1]["counts"]["media"] == 4


def test_a_dataset_follows_its_index(place: Path) -> None:
    dataset = shard(place, *KINDS["clips"])
    before = items(dataset)
    assert json.loads(run("shard", dataset, "--follow", place / "INDEX", "--json").output)["media"] == 0
    run("index", "--remove", f"videos/{NAME.format(5)}.mp4", place / "INDEX")
    report = json.loads(run("shard", dataset, "--follow", place / "INDEX", "--json").output)
    assert report["media"] == 1
    check_same(items(dataset), {name: item for name, item in before.items() if number_of(item) != 5})
    after = content(dataset)
    write_listing(place, range(20), "other.csv")
    run("index", place / "other.csv", "--out", place / "OTHER")
    said = run("shard", dataset, "--follow", place / "OTHER", code=1).output
    assert "found:   4 of 23 media (17%)" in said
    assert "pass --prune-at-most 0.18" in said
    assert content(dataset) == after
    run("shard", dataset, "--follow", place / "OTHER", "--prune-at-most", "0.18")
    assert {number_of(item) for item in items(dataset).values()} == {*range(20)} - {5}


def test_failures_of_removed_media_leave_too(place: Path) -> None:
    policy = "{policy: per_row, uniform: 2}"
    lines = [
        "uri,start,end,caption",
        *(f"videos/{NAME.format(n)}.mp4,{50 if n == 7 else 0},51,c" for n in range(COUNT)),
    ]
    (place / "ranges.csv").write_text("\n".join(lines) + "\n")
    run("index", place / "ranges.csv", "--out", place / "RANGES")
    run("shard", place / "RANGES", "--policy", policy, "--out", place / "D", "--max-failures", "9")
    dataset = place / "D"
    assert files_with(dataset, NAME.format(7)) == ["failures.parquet"]
    report = remove(dataset, 7)
    assert (report["media"], report["clips"], report["failures"]) == (0, 0, 1)
    assert files_with(dataset, NAME.format(7)) == []
    assert remove(dataset, 7) == report | {"failures": 0}
    check_verified(dataset)


def test_a_tar_stands_for_all_media_in_it_and_is_known_afterwards(place: Path, medium: Medium) -> None:
    video = medium("h264_open_gop.mp4").read_bytes()
    (place / "tars").mkdir()
    for number in range(3):
        tar_of(place / "tars" / f"{number}.tar", [(f"{key}{number}.mp4", video) for key in "ab"])
    run("index", place / "tars", "--out", place / "TARS")
    run("shard", place / "TARS", "--policy", "{policy: uniform, frames: 2}", "--out", place / "D")

    def removed(name: str) -> dict[str, Any]:
        return dict(json.loads(run("shard", place / "D", "--remove", place / name, "--json").output))

    assert removed("tars/1.tar")["media"] == 2
    assert removed("tars/2.tar/b2.mp4")["media"] == 1
    after = content(place / "D")
    for name in ("tars/1.tar", "tars/1.tar/a1.mp4", "tars/2.tar/b2.mp4"):
        assert removed(name)["unknown"] == []
    assert removed("tars/1.tar/c1.mp4")["unknown"] != []
    assert content(place / "D") == after
    assert len(ClipDataset(place / "D")) == 3
    check_verified(place / "D")


def test_the_last_clip_cannot_be_removed(place: Path) -> None:
    dataset = shard(place)
    before = content(dataset)
    said = remove(dataset, *range(COUNT), code=1)["output"]
    assert "no clip would be left" in said
    assert "delete the whole dataset instead" in said
    assert content(dataset) == before


def test_options_that_have_no_effect_are_refused(place: Path) -> None:
    dataset = shard(place)
    assert "has no effect with --remove" in run("shard", dataset, "--remove", "x", "--overwrite", code=2).output
    assert (
        "--prune-at-most needs --follow" in run("shard", dataset, "--remove", "x", "--prune-at-most", 1, code=2).output
    )
    both = run("shard", dataset, "--remove", "x", "--follow", place / "INDEX", code=2).output
    assert "--follow has no effect with --remove" in both
    assert "is not a framedex dataset" in run("shard", place / "INDEX", "--remove", "x", code=1).output
    assert "Missing option '--out'" in run("shard", dataset, code=2).output


def test_a_changed_dataset_is_not_taken_for_a_finished_one(place: Path) -> None:
    dataset = shard(place)
    remove(dataset, 1)
    after = content(dataset)
    again = ["shard", place / "INDEX", "--policy", "{policy: fps, fps: 4, frames: 2}", "--out", dataset]
    assert "already has a dataset" in run(*again, code=1).output
    assert content(dataset) == after
    run(*again, "--overwrite")
    assert {number_of(item) for item in items(dataset).values()} == {*range(COUNT)}
    assert {"fields.parquet", "failures.parquet"} <= {path.name for path in dataset.iterdir()}
    assert not list(dataset.glob("fields-*"))


def test_readers_that_are_open_say_to_open_the_dataset_again(place: Path) -> None:
    for kind in ("clips", "reference"):
        dataset = shard(place, *KINDS[kind], out=kind)
        unread, read = ClipDataset(dataset), ClipDataset(dataset)
        last = len(read) - 1
        assert all(read[number] for number in range(len(read)))  # all tars are open
        forked = pickle.loads(pickle.dumps(read))
        remove(dataset, 23)
        for reader in (unread, read, forked):
            with pytest.raises(FramedexError, match="the dataset was changed since it was opened") as error:
                reader[last]
            assert "open it again" in str(error.value)
            with pytest.raises(FramedexError, match="the dataset was changed since it was opened"):
                reader.column("caption")
        shutil.rmtree(dataset)
        with pytest.raises(FramedexError, match="the dataset was changed since it was opened"):
            read[0]


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_changed_dataset_ends_a_run_whatever_is_done_about_single_clips(place: Path, on_error: str) -> None:
    dataset = shard(place, *KINDS["clips"])
    clips, stream = ClipDataset(dataset), ClipStream(dataset, on_error=on_error)
    with contextlib.closing(ClipLoader(clips, batch_size=2, num_workers=1, on_error=on_error, prefetch=1)) as loader:
        batches, items = iter(loader), iter(stream)
        next(batches), next(items)
        remove(dataset, 3)
        for rest in (batches, items):
            with pytest.raises(FramedexError, match="the dataset was changed since it was opened"):
                list(rest)
        with pytest.raises(FramedexError, match="the dataset was changed since it was opened"):
            clips[0]


ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "shuffled": {"shuffle": True},
    "blocks of tars": {"shuffle": True, "blocks": "tar", "window": 2},
    "blocks of media": {"shuffle": True, "blocks": "medium", "window": 3},
    "groups": {"shuffle": True, "share": 2, "window": 4},
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_an_epoch_goes_on_without_the_clips_that_were_removed(place: Path, name: str, ranks: int) -> None:
    dataset = shard(place, *KINDS["clips"])

    def samplers(world_size: int = ranks) -> list[ClipSampler]:
        clips = ClipDataset(dataset)
        own = [
            ClipSampler(clips, seed=4, rank=rank, world_size=world_size, uneven="allow", **ORDERS[name])
            for rank in range(world_size)
        ]
        for one in own:
            one.set_epoch(2)
        return own

    def given(of: list[ClipSampler], count: int | None = None) -> list[str]:
        """Return the ids of clips that all ranks give, in the order in which they take turns."""
        clips = ClipDataset(dataset)
        turns = itertools.zip_longest(*(iter(one) for one in of))
        found = [number for turn in turns for number in turn if number is not None]
        return [clips.clip(number).clip_id for number in found[:count]]

    whole = given(samplers())
    first = samplers()
    state = {}
    for one in first:
        iterator = iter(one)
        for _ in range(4):
            next(iterator)
        state = one.state_dict(delivered=4)
    delivered = whole[: 4 * ranks]
    taken: tuple[int, ...] = (3, 9, 17)
    remove(dataset, *taken)
    there = set(items(dataset))
    rest = [clip for clip in whole[4 * ranks :] if clip in there]
    second = samplers()
    for one in second:
        one.load_state_dict(state)
    assert given(second) == rest
    for one in second:
        one.load_state_dict(state)
        assert one.remaining == len(rest[one.rank :: ranks])
        iterator = iter(one)
        for _ in range(5):
            next(iterator)
        later = one.state_dict(delivered=5)
    remove(dataset, 1, 2)
    there = set(items(dataset))
    rest = [clip for clip in rest[5 * ranks :] if clip in there]
    for world_size in (1, ranks, 2):
        third = samplers(world_size)
        for one in third:
            one.load_state_dict(json.loads(json.dumps(later)))
        assert given(third) == rest
        # The next epoch is that of the dataset as it is now.
        fresh = samplers(world_size)
        for one in fresh:
            one.set_epoch(3)
        assert third[0].next_epoch == 3
        assert given(third) == given(fresh)
        assert sorted(given(fresh)) == sorted(there)
    assert not set(rest) & set(delivered)


def test_a_loader_goes_on_without_the_clips_that_were_removed(place: Path) -> None:
    dataset = shard(place, *KINDS["clips"])

    def loader() -> ClipLoader:
        clips = ClipDataset(dataset)
        order = ClipSampler(clips, shuffle=True, seed=7)
        return ClipLoader(clips, batch_size=3, sampler=order, device="cpu", decode="cpu", num_workers=1)

    def given(batches: Iterable[Any]) -> list[str]:
        return [clip for batch in batches for clip in batch["clip_id"]]

    with contextlib.closing(loader()) as first:
        whole = given(first)
    with contextlib.closing(loader()) as second:
        given(itertools.islice(second, 4))
        state = second.state_dict()
    remove(dataset, 2, 8, 11)
    there = set(items(dataset))
    with contextlib.closing(loader()) as third:
        third.load_state_dict(state)
        assert given(third) == [clip for clip in whole[12:] if clip in there]
        assert sorted(given(third)) == sorted(there)


def test_states_of_the_dataset_before_are_refused_if_they_cannot_be_continued(place: Path) -> None:
    dataset = shard(place)
    clips = ClipDataset(dataset)
    old = ClipSampler(clips, shuffle=True, seed=1)
    state, drawn = old.state_dict(delivered=3), ClipSampler(clips, balance="caption").state_dict(delivered=3)
    where = {"caption": [CAPTION.format(number) for number in range(10)]}
    chosen = ClipSampler(ClipDataset(dataset, where=where)).state_dict(delivered=3)
    remove(dataset, 5)
    changed = ClipDataset(dataset)
    with pytest.raises(FramedexError, match="another version of the dataset, in which clips have other numbers"):
        ClipSampler(changed, balance="caption").load_state_dict(drawn)
    with pytest.raises(FramedexError, match="another version of the dataset"):
        ClipSampler(ClipDataset(dataset, where=where)).load_state_dict(chosen)
    with pytest.raises(FramedexError, match="another seed"):
        ClipSampler(changed, shuffle=True, seed=2).load_state_dict(state)
    again = ClipSampler(changed, shuffle=True, seed=1)
    again.load_state_dict(state)
    with pytest.raises(FramedexError, match="changed since it was opened"):
        old.load_state_dict(again.state_dict())
    with pytest.raises(FramedexError, match="weights must have a value for each clip"):
        ClipSampler(changed, weights=np.ones(len(old)))


def test_another_command_after_a_kill_does_not_harm_the_change_before(place: Path, forks: Forks) -> None:
    dataset = shard(place, *KINDS["clips"])
    whole = items(dataset)

    def killed(moment: int, number: int) -> bool:
        return forks.run("shard", "D", "--remove", f"videos/{NAME.format(number)}.mp4", kill_before=moment) != 0

    moment = 0
    while killed(moment, 3) and json.loads((dataset / "dataset.json").read_text()).get("generation") is None:
        moment += 1
    for more in range(3, 9, 2):
        assert killed(more, 4)
        check_same(items(dataset), {name: item for name, item in whole.items() if number_of(item) != 3})
    remove(dataset, 4)
    check_same(items(dataset), {name: item for name, item in whole.items() if number_of(item) not in (3, 4)})
    lines = [json.loads(line) for line in run("log", dataset, "--json").output.splitlines()]
    assert lines[1]["counts"] is not None
    assert lines[-1]["generation"] == json.loads((dataset / "dataset.json").read_text())["generation"]


def test_a_dataset_without_a_table_is_not_changed(place: Path) -> None:
    dataset = shard(place, *KINDS["clips"])
    (dataset / "shards.parquet").unlink()
    before = content(dataset)
    for number in (5, 99):
        assert "a clip has a number that no row has" in remove(dataset, number, code=1)["output"]
        assert content(dataset) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("parts", {}), ("parts", {"clips": [], "media": []}), ("files", None), ("files", {"fields.parquet": "x"}),
        ("gone", None), ("gone", {"media": [[3, 2]]}), ("gone", {"media": [[30, 2**31 - 1]]}), ("gone", {}),
        ("before", 5), ("before", [[1, 2]]), ("before", [{"generation": 1}]), ("generation", "x"),
        ("generation", 2**63), ("root", 3),
    ],
)  # fmt: skip
def test_a_header_with_wrong_values_is_refused(place: Path, key: str, value: Any) -> None:
    dataset = shard(place)
    remove(dataset, 23, 3)
    path = dataset / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    before = content(dataset)
    said = remove(dataset, 4, code=1)["output"]
    assert "framedex itself failed" not in said
    assert content(dataset) == before
    with pytest.raises(FramedexError):
        ids(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reference", "clips"])
def test_a_kill_at_any_moment_leaves_the_old_or_the_new_dataset(place: Path, forks: Forks, kind: str) -> None:
    dataset = shard(place, *KINDS[kind])
    remove(dataset, 0)
    (place / "list.txt").write_text("".join(f"videos/{NAME.format(number)}.mp4\n" for number in TAKEN))
    old = ids(dataset)
    shutil.copytree(dataset, place / "OLD")

    def call(moment: int | None = None) -> int:
        return forks.run("shard", "D", "--remove", "@list.txt", kill_before=moment)

    def restore() -> None:
        shutil.rmtree(dataset)
        shutil.copytree(place / "OLD", dataset)

    assert call() == 0
    new, files = ids(dataset), content(dataset)
    assert set(new) < set(old)
    assert forks.moments >= 8
    for moment in drawn("moments at which such a change is killed", range(forks.moments), seed=1):
        restore()
        assert call(moment) == -signal.SIGKILL
        assert ids(dataset) in (old, new), moment
        assert call() == 0
        assert content(dataset) == files, moment
        assert all(files_with(dataset, NAME.format(number)) == [] for number in TAKEN)
        lines = run("log", dataset, "--json").output.splitlines()
        assert [json.loads(line)["counts"] is not None for line in lines] == [True] * 3


def ids(dataset: Path) -> list[str]:
    """Return the ids of all clips, after the first and the last one were decoded."""
    clips = ClipDataset(dataset)
    assert clips[0]["clip_id"] != clips[len(clips) - 1]["clip_id"]
    return [clips.clip(number).clip_id for number in range(len(clips))]
