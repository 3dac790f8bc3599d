"""Runs over tars that were stopped, changed, or asked again with other options; and names inside of tars."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from framedex import ClipDataset, Index
from tests.support.datasets import run, shard_clips, write_clips
from tests.support.images import encoded, indexed, listing, rows, tar_of
from tests.support.media import Medium
from tests.support.object_datasets import index_here
from tests.support.packed import samples


@pytest.fixture
def video(medium: Medium) -> bytes:
    return medium("h264_single.mp4").read_bytes()


def test_a_run_that_is_stopped_within_a_tar_reads_it_again(tmp_path: Path, video: bytes) -> None:
    tar = tar_of(tmp_path / "t.tar", [(f"{n}.mp4", video) for n in range(6)])

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index_here(tmp_path / "INDEX", tar, on_progress=stop)
    report, index = indexed(tmp_path / "INDEX", tar)
    assert (report.ok, len(rows(index))) == (6, 6)


def test_options_that_change_apply_to_a_tar_with_a_failed_video(tmp_path: Path, video: bytes) -> None:
    files = [("a.mp4", video), ("a.cls", b"3"), ("bad.mp4", b"garbage" * 99), ("s/0.png", encoded(0))]
    tar = tar_of(tmp_path / "t.tar", files)
    run("index", tar, "--out", tmp_path / "INDEX", "--sidecars", "none", code=3)
    run("index", tar, "--out", tmp_path / "INDEX", code=3)
    assert listing(tmp_path / "INDEX")["t.tar/a.mp4"]["cls"] == 3
    run("index", tar, "--out", tmp_path / "INDEX", "--image-fps", "5", code=3)
    assert rows(Index(tmp_path / "INDEX"))["t.tar/s"]["time_base_den"] == 5
    assert "1 unchanged" in run("index", tar, "--out", tmp_path / "INDEX", "--image-fps", "5", code=3).output


def test_what_a_changed_tar_no_longer_holds_is_gone(tmp_path: Path, video: bytes) -> None:
    whole = tar_of(tmp_path / "t.tar", [("a.mp4", video), ("s/0.png", encoded(0)), ("b.mp4", video)])
    indexed(tmp_path / "INDEX", whole)
    whole.write_bytes(whole.read_bytes()[: whole.read_bytes().rindex(video) + len(video) // 2])
    _, index = indexed(tmp_path / "INDEX", whole)
    assert rows(index)["t.tar"]["status"] == "failed"
    tar_of(whole, [("b.mp4", video), ("r/0.png", encoded(0))])
    _, index = indexed(tmp_path / "INDEX", whole)
    assert {name: row["status"] for name, row in rows(index).items() if row["status"] != "gone"} == {
        "t.tar/b.mp4": "ok",
        "t.tar/r": "ok",
    }
    assert indexed(tmp_path / "INDEX", whole)[0].unchanged == 1


def test_choosing_other_images_is_done_once(tmp_path: Path, video: bytes) -> None:
    (tmp_path / "data").mkdir()
    tar_of(tmp_path / "data/t.tar", [("v.mp4", video), ("s/0.png", encoded(0))])
    done = []
    for images in ("ignore", "sequences", "single"):
        indexed(tmp_path / "INDEX", tmp_path / "data", images=images)
        report, index = indexed(tmp_path / "INDEX", tmp_path / "data", images=images)
        done.append(
            (images, report.unchanged, report.retried, sum(row["status"] == "ok" for row in rows(index).values()))
        )
    assert done == [("ignore", 1, 0, 1), ("sequences", 1, 0, 2), ("single", 1, 0, 2)]


def test_a_second_tar_behind_the_first_is_noticed(tmp_path: Path, video: bytes) -> None:
    first = tar_of(tmp_path / "a.tar", [("a.mp4", video)]).read_bytes()
    (tmp_path / "t.tar").write_bytes(first + tar_of(tmp_path / "b.tar", [("b.mp4", video)]).read_bytes())
    _, index = indexed(tmp_path / "INDEX", tmp_path / "t.tar")
    found = rows(index)
    assert {name: row["status"] for name, row in found.items()} == {"t.tar": "failed", "t.tar/a.mp4": "ok"}
    assert "such as another tar" in found["t.tar"]["error_message"]


def test_a_video_with_the_name_of_a_sequence_is_refused(tmp_path: Path, video: bytes) -> None:
    tar = tar_of(tmp_path / "t.tar", [("c.mp4", video), ("c.mp4/0.png", encoded(0)), ("d.mp4", video)])
    report, _ = indexed(tmp_path / "INDEX", tar)
    assert (report.ok, report.refused) == (2, 1)
    assert "also has a sequence of images with this name" in report.problems[0]["error_message"]


def test_half_of_a_surrogate_pair_costs_only_its_sidecar(tmp_path: Path, video: bytes) -> None:
    tar = tar_of(tmp_path / "t.tar", [("a.mp4", video), ("a.json", b'{"t": "\\ud800"}'), ("b.mp4", video)])
    report, index = indexed(tmp_path / "INDEX", tar)
    assert report.ok == 2
    assert "an unpaired surrogate" in rows(index)["t.tar/a.mp4"]["error_message"]


def test_many_keys_stay_one_column(tmp_path: Path, video: bytes) -> None:
    keys = [json.dumps({f"key {number}-{n}": n for n in range(300)}).encode() for number in range(3)]
    files = [(f"{n}.{kind}", data) for n in range(3) for kind, data in (("mp4", video), ("json", keys[n]))]
    _, index = indexed(tmp_path / "INDEX", tar_of(tmp_path / "t.tar", files))
    assert len(index.listing.column_names) < 10
    assert json.loads(index.listing["json"][0].as_py())["key 0-7"] == 7


def test_labels_of_a_listing_stay_beside_sidecars(tmp_path: Path, video: bytes) -> None:
    tar_of(tmp_path / "t.tar", [("a.mp4", video), ("a.cls", b"3")])
    (tmp_path / "l.csv").write_text("uri,label\nt.tar,walk\n")
    indexed(tmp_path / "INDEX", tmp_path / "l.csv")
    assert listing(tmp_path / "INDEX")["t.tar/a.mp4"]["cls"] == 3
    indexed(tmp_path / "INDEX", tmp_path / "t.tar", sidecars=())
    row = listing(tmp_path / "INDEX")["t.tar/a.mp4"]
    assert (row["label"], row.get("cls")) == ("walk", None)


def test_names_of_packed_clips_are_no_columns(tmp_path: Path, video: bytes) -> None:
    tar = tar_of(tmp_path / "t.tar", [("a.mp4", video), ("a.json", b'{"width": 9, "start": 1}')])
    run("index", tar, "--out", tmp_path / "INDEX")
    row = listing(tmp_path / "INDEX")["t.tar/a.mp4"]
    assert (row["json.width"], row["json.start"]) == (9, 1)
    clips = write_clips(tmp_path / "c.jsonl", [{"uri": "t.tar/a.mp4", "frames": [0]}])
    run("shard", tmp_path / "INDEX", "--clips", clips, "--out", tmp_path / "D", "--pack", "clips")
    ((_, sample),) = samples(tmp_path / "D")
    packed = json.loads(sample["json"])
    assert packed["member"] == "a.mp4"
    taken = packed.keys() - {"json.width", "json.start", "__key__"}
    assert {"clip_id", "frames", "pts", "framedex"} <= taken
    every = tar_of(tmp_path / "u.tar", [("a.mp4", video), ("a.json", json.dumps(dict.fromkeys(taken, 1)).encode())])
    run("index", every, "--out", tmp_path / "EVERY")
    assert {f"json.{name}" for name in taken} <= listing(tmp_path / "EVERY")["u.tar/a.mp4"].keys()


def test_streams_of_videos_in_a_tar_are_named(tmp_path: Path, corpus: Path) -> None:
    data = (corpus / "two_video.mp4").read_bytes()
    tar = tar_of(tmp_path / "t.tar", [("a.mp4", data), ("b.mp4", data)])
    run("index", tar, "--out", tmp_path / "INDEX", "--streams", "all")
    index = Index(tmp_path / "INDEX")
    known = {(row["member"], row["stream_index"]): row["media_id"] for row in index.videos.to_pylist()}
    assert len(known) == 4
    named = {key: {"uri": f"t.tar/{key[0]}", "stream": key[1], "frames": [0]} for key in known}
    dataset = ClipDataset(
        shard_clips(index.path, tmp_path / "D", [*named.values(), {"uri": "t.tar/a.mp4", "frames": [0]}])
    )
    found = dataset.column("media_id").tolist()
    assert found[:-1] == [known[key] for key in named]
    assert found[-1] in known.values()


def test_a_video_that_the_end_of_a_tar_cuts_off_is_verified(tmp_path: Path, medium: Medium) -> None:
    data = medium("h264_faststart.mp4").read_bytes()
    tar = tar_of(tmp_path / "t.tar", [("a.mp4", data)])
    tar.write_bytes(tar.read_bytes()[: 512 + len(data) * 9 // 10])
    run("index", tar, "--out", tmp_path / "INDEX", code=3)
    clips = write_clips(tmp_path / "c.jsonl", [{"uri": "t.tar/a.mp4", "frames": [3, 9]}])
    run("shard", tmp_path / "INDEX", "--clips", clips, "--out", tmp_path / "D")
    assert "1 exact" in run("verify", tmp_path / "D").output
