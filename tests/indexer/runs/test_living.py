"""An index knows its sources: media that they no longer name are pruned, and media are removed to the last byte."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import framedex
from framedex import Index
from tests.support.datasets import content, run
from tests.support.depth import drawn
from tests.support.images import tar_of
from tests.support.living import CAPTION, COUNT, NAME, Forks, files_with, index, write_listing

Medium = Callable[[str], Path]


@pytest.fixture
def folder(tmp_path: Path, medium: Medium) -> Path:
    """Return a folder with videos, and a listing of them with captions beside it."""
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(COUNT):
        shutil.copy(medium("h264_single.mp4"), videos / f"{NAME.format(number)}.mp4")
    write_listing(tmp_path, range(COUNT))
    return videos


def captions(place: Path) -> dict[str, str | None]:
    """Return the caption of each medium, by the number in its name. Check that no medium has two mentions."""
    opened = Index(place / "INDEX")
    listing = opened.listing.to_pylist()
    by_id = {row["media_id"]: row["uri"] for row in opened.columns(["media_id", "uri"]).to_pylist()}
    found = {by_id[row["media_id"]]: row.get("caption") for row in listing if row["media_id"] in by_id}
    assert len(found) == sum(row["media_id"] in by_id for row in listing)
    assert found.keys() == set(by_id.values())
    return found


def uris(numbers: Sequence[int]) -> set[str]:
    return {f"videos/{NAME.format(number)}.mp4" for number in numbers}


def test_a_rerun_counts_what_its_sources_no_longer_name_and_prune_removes_it(folder: Path) -> None:
    place = folder.parent
    index(place)
    write_listing(place, range(2, COUNT))
    report = index(place)
    assert (report["unnamed"], report["pruned"]) == (2, 0)
    assert captions(place).keys() == uris(range(COUNT))
    said = run("index", place / "listing.csv", "--out", place / "INDEX").output
    assert "2 media no longer named by these sources: --prune removes what no other source names" in said
    before = content(place / "INDEX")
    plan = index(place, prune=True, dry_run=True)
    assert set(plan["pruned"]) == uris(range(2))
    assert content(place / "INDEX") == before
    report = index(place, prune=True)
    assert (report["unnamed"], report["pruned"]) == (2, 2)
    assert captions(place) == {f"videos/{NAME.format(n)}.mp4": CAPTION.format(n) for n in range(2, COUNT)}
    after = content(place / "INDEX")
    assert index(place, prune=True)["pruned"] == 0
    assert content(place / "INDEX") == after


def test_media_that_another_source_names_stay_without_the_captions_of_the_pruned_source(folder: Path) -> None:
    place = folder.parent
    index(place, folder, place / "listing.csv")
    index(place, write_listing(place, range(4), "other.csv"))
    write_listing(place, range(2, COUNT))
    assert index(place, prune=True)["pruned"] == 0, "the folder names all media"
    found = captions(place)
    # The listing `other.csv` was read last, so the captions of its media are its own.
    assert found == {f"videos/{NAME.format(n)}.mp4": CAPTION.format(n) for n in range(COUNT)}
    write_listing(place, range(6, COUNT))
    index(place, prune=True, prune_at_most=0.5)
    # The captions of media 2 and 3 were the listing's again since its second run.
    assert {uri for uri, caption in captions(place).items() if caption is None} == uris(range(2, 6))


def test_a_source_of_the_same_run_does_not_keep_the_caption_of_another(folder: Path) -> None:
    place = folder.parent
    index(place, folder, place / "listing.csv")
    write_listing(place, range(1, COUNT))
    report = index(place, folder, place / "listing.csv", prune=True)
    assert (report["unnamed"], report["pruned"]) == (1, 0)
    assert files_with(place / "INDEX" / "listing.parquet", CAPTION.format(0)) == []
    listing = pq.read_table(place / "INDEX" / "listing.parquet").to_pylist()
    assert not [row for row in listing if row["caption"] == CAPTION.format(0)]
    assert len({row["media_id"] for row in listing}) == COUNT


def test_sources_that_lost_more_than_a_tenth_are_refused(folder: Path) -> None:
    place = folder.parent
    index(place)
    write_listing(place, range(3, COUNT))
    before = content(place / "INDEX")
    said = index(place, prune=True, code=1)["output"]
    assert "found:   3 of 24 media (12%)" in said
    assert "--prune-at-most 0.13" in said
    assert index(place, prune=True, dry_run=True, code=1)["output"].startswith("{")
    assert content(place / "INDEX") == before
    assert index(place, prune=True, prune_at_most=0.13)["pruned"] == 3


def test_rows_of_an_earlier_version_are_pruned_only_after_a_run_has_named_them(folder: Path) -> None:
    place = folder.parent
    index(place)
    path = place / "INDEX" / "listing.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["named_by"]), path)
    write_listing(place, range(2, COUNT))
    report = index(place, prune=True)
    assert (report["unnamed"], report["pruned"]) == (0, 0)
    write_listing(place, range(4, COUNT))
    assert index(place, prune=True)["pruned"] == 2
    assert captions(place).keys() == uris([0, 1, *range(4, COUNT)])


def test_media_in_a_tar_that_is_still_named_stay(tmp_path: Path, medium: Medium) -> None:
    video = medium("h264_single.mp4").read_bytes()
    (tmp_path / "tars").mkdir()
    for number in range(12):
        members = [(f"{key}.mp4", video) for key in ("a", "b")] + [("a.txt", f"caption {number}".encode())]
        tar_of(tmp_path / "tars" / f"{number:02d}.tar", members)
    assert index(tmp_path, tmp_path / "tars")["ok"] == 24
    assert index(tmp_path, tmp_path / "tars", prune=True)["pruned"] == 0
    (tmp_path / "list.txt").write_text("".join(f"tars/{number:02d}.tar\n" for number in range(12)))
    index(tmp_path, f"@{tmp_path / 'list.txt'}")
    (tmp_path / "list.txt").write_text("".join(f"tars/{number:02d}.tar\n" for number in range(11)))
    report = index(tmp_path, f"@{tmp_path / 'list.txt'}", prune=True)
    assert (report["unnamed"], report["pruned"]) == (2, 0), "the folder names them"
    run("index", "--remove", tmp_path / "tars" / "11.tar", tmp_path / "INDEX")
    assert len(Index(tmp_path / "INDEX")) == 22


def test_all_streams_of_a_file_are_pruned_together(tmp_path: Path, medium: Medium, corpus: Path) -> None:
    (tmp_path / "videos").mkdir()
    shutil.copy(corpus / "two_video.mp4", tmp_path / "videos" / "two.mp4")
    shutil.copy(medium("h264_single.mp4"), tmp_path / "videos" / "one.mp4")
    (tmp_path / "list.txt").write_text("videos/two.mp4\nvideos/one.mp4\n")
    source = f"@{tmp_path / 'list.txt'}"
    assert index(tmp_path, source, streams="all")["ok"] == 3
    (tmp_path / "list.txt").write_text("videos/one.mp4\n")
    assert index(tmp_path, source, streams="all", prune=True, prune_at_most=0.5)["pruned"] == 1
    assert Index(tmp_path / "INDEX").columns(["uri"])["uri"].to_pylist() == ["videos/one.mp4"]


def test_slices_do_not_prune(folder: Path) -> None:
    said = index(folder.parent, prune=True, task="0/2", code=2)["output"]
    assert "--prune has no effect with --task and --finish: prune in an undivided run" in said
    assert "--prune-at-most needs --prune" in index(folder.parent, prune_at_most=0.5, code=2)["output"]


@pytest.mark.parametrize("spelled", ["videos/secret05.mp4", "{place}/videos/secret05.mp4", "@{place}/list.txt"])
def test_a_medium_is_removed_by_its_name_or_path_or_by_a_list(folder: Path, spelled: str) -> None:
    place = folder.parent
    (place / "list.txt").write_text("videos/secret05.mp4\n\nvideos/secret05.mp4\n")
    index(place)
    name = spelled.format(place=place)
    report = json.loads(run("index", "--remove", name, place / "INDEX", "--json").output)
    assert report == {"removed": 1, "unknown": []}
    assert captions(place).keys() == uris(range(COUNT)) - uris([5])
    before = content(place / "INDEX")
    report = json.loads(run("index", "--remove", name, place / "INDEX", "--json").output)
    assert report["removed"] == 0
    assert len(report["unknown"]) == 1
    assert content(place / "INDEX") == before
    assert index(place)["new"] == 1, "a source that still names it brings it back"


def test_options_beside_remove_are_refused(folder: Path) -> None:
    index(folder.parent)
    place = folder.parent / "INDEX"
    assert "needs one index" in run("index", "--remove", "x", code=2).output
    assert "has no effect with --remove" in run("index", "--remove", "x", place, "--retry", code=2).output
    assert "is not a framedex index" in run("index", "--remove", "x", folder, code=1).output
    assert "Missing option '--out'" in run("index", folder, code=2).output
    assert "the list cannot be read" in run("index", "--remove", "@nothing", place, code=1).output


def test_no_byte_of_a_compacted_index_names_what_was_removed(folder: Path) -> None:
    place = folder.parent
    (folder / "broken-secret90.mp4").write_bytes(b"no video")
    with (place / "listing.csv").open("a") as file:
        file.write("videos/broken-secret90.mp4,caption of 90\n")
    index(place, max_failures=1)
    taken = [0, 7, 23, 90]
    (folder / f"{NAME.format(0)}.mp4").unlink()  # gone
    index(place, folder, max_failures=1)
    # The folder does not name a file that is gone, but the listing still does.
    write_listing(place, [n for n in range(COUNT) if n not in taken])
    run("index", "--remove", f"videos/{NAME.format(7)}.mp4", place / "INDEX")
    run("index", "--remove", "videos/broken-secret90.mp4", place / "INDEX")
    for name in ("secret07.mp4", "secret23.mp4", "broken-secret90.mp4"):
        (folder / name).unlink()
    index(place, folder, place / "listing.csv", prune=True)
    leave_a_part_of_a_killed_run(place / "INDEX")
    assert [number for number in taken if files_with(place / "INDEX", f"secret{number:02d}")] == taken
    run("index", "--compact", "--out", place / "INDEX")
    for number in taken:
        assert files_with(place / "INDEX", f"secret{number:02d}") == []
        assert files_with(place / "INDEX", CAPTION.format(number)) == []
    assert captions(place) == {
        f"videos/{NAME.format(n)}.mp4": CAPTION.format(n) for n in range(COUNT) if n not in taken
    }
    before = content(place / "INDEX")
    run("index", "--compact", "--out", place / "INDEX")
    assert content(place / "INDEX") == before


def leave_a_part_of_a_killed_run(index: Path) -> None:
    """Leave a part of `frames` without a part of `videos`, and an unfinished file."""
    last = sorted((index / "frames").iterdir())[-1]
    shutil.copy(last, index / "frames" / "part-000099.parquet")
    shutil.copy(last, index / "videos" / ".writing-part-000099.parquet")


def test_the_log_has_a_line_for_each_change_and_names_no_medium(folder: Path) -> None:
    place = folder.parent
    index(place)
    index(place)
    write_listing(place, range(1, COUNT))
    index(place, prune=True, retry=True)
    run("index", "--remove", f"videos/{NAME.format(2)}.mp4", place / "INDEX")
    run("index", "--compact", "--out", place / "INDEX")
    lines = [json.loads(line) for line in run("log", place / "INDEX", "--json").output.splitlines()]
    assert [line["generation"] for line in lines] == [1, 2, 3, 4]
    assert [line["counts"] for line in lines] == [
        {"ok": COUNT},
        {"gone": 1},
        {"gone": 1},
        {"media": COUNT - 2, "dropped": 4, "unlisted": 0},
    ]
    asked = [{"sources": 1}, {"sources": 1, "prune": True, "retry": True}, {"remove": 1}, {"compact": True}]
    assert [line["options"] for line in lines] == asked
    assert all(line["version"] == framedex.__version__ and line["date"].endswith("Z") for line in lines)
    said = run("log", place / "INDEX").output
    assert f"index sources=1: {COUNT} ok" in said
    assert "secret" not in said + (place / "INDEX" / "log.jsonl").read_text()
    assert set(Index(place / "INDEX").columns(["generation"])["generation"].to_pylist()) == {1}


def test_a_filter_can_use_the_date_of_a_generation(folder: Path) -> None:
    place = folder.parent
    write_listing(place, range(20))
    index(place)
    write_listing(place, range(20, COUNT), "more.csv")
    index(place, place / "more.csv")
    log = place / "INDEX" / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    dates = ("2026-01-31T10:00:00Z", "2026-02-01T10:00:00Z")
    log.write_text("".join(json.dumps(line | {"date": date}) + "\n" for line, date in zip(lines, dates, strict=True)))
    policy = {"policy": "uniform", "frames": 2}
    for condition, count in (('>= "2026-02"', COUNT - 20), ('< "2026-02-01"', 20), ("is None", 0)):
        where = f"indexed_at {condition}"
        if count:
            assert len(framedex.ClipDataset.from_index(place / "INDEX", policy | {"filter": where})) == count
        else:
            with pytest.raises(framedex.FramedexError, match="leaves out all"):
                framedex.ClipDataset.from_index(place / "INDEX", policy | {"filter": where})
    log.unlink()
    assert len(framedex.ClipDataset.from_index(place / "INDEX", policy | {"filter": "indexed_at is None"})) == COUNT


def test_a_dataset_logs_how_it_was_made(folder: Path) -> None:
    place = folder.parent
    index(place)
    (place / "fps.yaml").write_text("policy: fps\nfps: 2\nframes: 2\n")
    made = ["shard", place / "INDEX", "--policy", place / "fps.yaml", "--pack", "clips", "--out", place / "D"]
    run(*made)
    run(*made)
    (line,) = map(json.loads, run("log", place / "D", "--json").output.splitlines())
    assert line["counts"] == {"clips": COUNT, "media": COUNT, "tars": 1}
    asked = {"index": str(place / "INDEX"), "index_generation": 1, "policy": "fps", "pack": "clips"}
    assert asked.items() <= line["options"].items()
    assert (line["generation"], line["command"]) == (1, "shard")
    assert "policy=fps" in run("log", place / "D").output
    before = content(place / "D")
    run(*made, "--overwrite")
    assert content(place / "D") == before


@pytest.mark.parametrize("text", ["{", "[]", '{"generation": -1}', "\udcff"])
def test_a_damaged_log_is_an_error_that_says_so(folder: Path, text: str) -> None:
    index(folder.parent)
    (folder.parent / "INDEX" / "log.jsonl").write_bytes(text.encode("utf-8", "surrogateescape") + b"\n")
    assert "restore the log, or delete it" in run("log", folder.parent / "INDEX", code=1).output
    (folder.parent / "INDEX" / "log.jsonl").unlink()
    assert run("log", folder.parent / "INDEX").output == ""
    assert "is neither an index nor a dataset" in run("log", folder, code=1).output


COMMANDS = {
    "prune": ["index", "listing.csv", "--out", "INDEX", "--prune", "--workers", "0"],
    "remove": ["index", "--remove", "@list.txt", "INDEX"],
    "compact": ["index", "--compact", "--out", "INDEX"],
    "add": ["index", "more.csv", "--out", "INDEX", "--workers", "0"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_kill_at_any_moment_leaves_the_old_or_the_new_index(
    folder: Path, tmp_path: Path, forks: Forks, name: str
) -> None:
    write_listing(tmp_path, range(4, COUNT))
    index(tmp_path)
    (tmp_path / "INDEX" / "log.jsonl").unlink()  # it has a date
    index(tmp_path, write_listing(tmp_path, range(4, COUNT - 1)))
    write_listing(tmp_path, range(5, COUNT - 1))
    write_listing(tmp_path, range(4), "more.csv")
    (tmp_path / "list.txt").write_text("\n".join(sorted(uris(range(6, 8)))))
    if name == "compact":
        index(tmp_path, prune=True)
    old = captions(tmp_path)
    shutil.copytree(tmp_path / "INDEX", tmp_path / "OLD")

    def restore() -> None:
        shutil.rmtree(tmp_path / "INDEX")
        shutil.copytree(tmp_path / "OLD", tmp_path / "INDEX")

    def call(moment: int | None = None) -> int:
        return forks.run(*COMMANDS[name], kill_before=moment)

    assert call() == 0
    new, files = captions(tmp_path), content(tmp_path / "INDEX")
    assert new != old or name == "compact"
    assert forks.moments >= 4
    for moment in drawn("moments at which such a change is killed", range(forks.moments), seed=1):
        restore()
        assert call(moment) == -signal.SIGKILL
        assert captions(tmp_path) in (old, new), moment
        assert call() == 0
        assert captions(tmp_path) == new, moment
        assert name == "compact" or content(tmp_path / "INDEX") == files, moment
        assert not list((tmp_path / "INDEX").rglob(".writing-*"))
        lines = run("log", tmp_path / "INDEX", "--json").output.splitlines()
        assert all(json.loads(line)["counts"] is not None for line in lines)
