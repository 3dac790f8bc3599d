"""The index: what a run writes, what a rerun does, and what survives failures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
import pyarrow.parquet as pq
import pytest

from framedex import Index
from framedex import index as framedex_index
from framedex.errors import FormatError, OutputError
from framedex.indexer.schema import FRAMES, SCHEMA_VERSION, VIDEOS
from tests.support import running as pool
from tests.support import sent
from tests.support.counted import some
from tests.support.datasets import run
from tests.support.media import remux
from tests.support.probed import probed
from tests.support.running import environment

Medium = Callable[[str], Path]


@pytest.fixture
def folder(tmp_path: Path, medium: Medium) -> Path:
    """Return a folder with its own copies of three videos."""
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("h264_default.mp4", "h264_vfr.mkv", "hevc_closed.mp4"):
        shutil.copy(medium(name), videos / name)
    return videos


def build(folder: Path, **options: Any) -> tuple[Index, Any]:
    out = folder.parent / "INDEX"
    report = framedex_index(folder, out, **{"workers": 0, "progress": False} | options)
    return Index(out), report


def rows(index: Index) -> dict[str, dict[str, object]]:
    return {row["uri"]: row for row in index.videos.to_pylist()}


def test_parts_follow_their_schema_and_are_stamped(folder: Path) -> None:
    index, _ = build(folder)
    for name, schema in (("videos", VIDEOS), ("frames", FRAMES)):
        (path,) = (index.path / name).glob("*.parquet")
        found = pq.read_schema(path)
        assert found.remove_metadata().equals(schema.remove_metadata())
        assert found.metadata[b"framedex.schema_version"] == SCHEMA_VERSION.encode()
        assert "av" in json.loads(found.metadata[b"framedex.libraries"])
        assert all(field.metadata[b"doc"] for field in found)


def test_facts_of_a_video(folder: Path, medium: Medium) -> None:
    row = rows(build(folder)[0])["h264_vfr.mkv"]
    assert (row["status"], row["codec"], row["container"], row["width"], row["height"]) == (
        "ok",
        "h264",
        "matroska",
        176,
        144,
    )
    assert (row["frame_count"], row["is_vfr"], row["byte_addressable"]) == (50, True, True)
    assert row["size_bytes"] == medium("h264_vfr.mkv").stat().st_size


def test_packets_are_the_files_bytes(folder: Path) -> None:
    index, _ = build(folder)
    row = rows(index)["h264_default.mp4"]
    packets = index.packets(str(row["media_id"]))
    content = (folder / "h264_default.mp4").read_bytes()
    import av

    with av.open(str(folder / "h264_default.mp4")) as container:
        truth = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    assert [content[at : at + size] for at, size in zip(packets.offset, packets.size, strict=True)] == truth


def test_audio_facts(index: Index) -> None:
    row = rows(index)["h264_audio.mp4"]
    assert (row["audio_codec"], row["audio_rate"], row["audio_channels"]) == ("aac", 48_000, 2)
    assert rows(index)["h264_default.mp4"]["audio_codec"] is None


def test_a_rerun_probes_only_what_is_new_changed_or_failed(folder: Path, medium: Medium) -> None:
    (folder / "broken.mp4").write_text("not a video")
    _, first = build(folder)
    assert (first.ok, first.failed, first.unchanged) == (3, 1, 0)
    os.utime(folder / "h264_vfr.mkv", ns=(1, 1))  # a new mtime alone is not a change
    shutil.copy(medium("h264_baseline.mp4"), folder / "h264_default.mp4")  # changed
    shutil.copy(medium("h264_slices.mov"), folder / "new.mov")
    shutil.copy(medium("h264_single.mp4"), folder / "broken.mp4")  # repaired
    index, second = build(folder)
    assert (second.ok, second.failed, second.unchanged) == (3, 0, 2)
    assert len(index.videos) == 5
    assert {row["status"] for row in rows(index).values()} == {"ok"}
    assert rows(index)["h264_default.mp4"]["profile"] == "Constrained Baseline"
    changed = str(rows(index)["h264_default.mp4"]["media_id"])
    assert len(index.packets(changed).pts) == rows(index)["h264_default.mp4"]["packet_count"]


def test_a_second_run_over_the_same_media_writes_no_part(folder: Path) -> None:
    index, _ = build(folder)
    before = sorted(path.name for path in index.path.rglob("part-*"))
    build(folder)
    assert sorted(path.name for path in index.path.rglob("part-*")) == before


def test_user_columns_can_change_without_probing(folder: Path) -> None:
    out = folder.parent / "INDEX"
    listing = folder / "listing.csv"
    for label in ("cat", "dog"):
        listing.write_text(f"uri,label\nh264_default.mp4,{label}\n")
        report = framedex_index(listing, out, workers=0, progress=False)
    assert report.unchanged == 1
    assert Index(out).listing["label"].to_pylist() == ["dog"]


def test_adding_files_does_not_cost_the_others_their_labels(folder: Path) -> None:
    out = folder.parent / "INDEX"
    listing = folder / "listing.csv"
    listing.write_text("uri,label\nh264_default.mp4,cat\n")
    run("index", listing, "--out", out)
    run("index", folder, "--out", out)
    labels = dict(
        zip(Index(out).listing["listed_uri"].to_pylist(), Index(out).listing["label"].to_pylist(), strict=True)
    )
    assert labels["h264_default.mp4"] == "cat"
    assert len(labels) == 3


def test_refused_media_count_in_every_run(folder: Path) -> None:
    (folder / "list.mp4").write_text("ffconcat version 1.0\nfile 'h264_vfr.mkv'\n")
    for _ in range(2):
        assert "1 refused" in run("index", folder, "--out", folder.parent / "INDEX", code=3).output


def test_the_table_shows_usable_media_first(folder: Path) -> None:
    for number in range(25):
        (folder / f"a_{number:02}.mp4").write_bytes(b"no video")
    output = run("index", folder, "--out", folder.parent / "INDEX", code=3).output
    lines = output.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["h264_default.mp4", "h264_vfr.mkv", "hevc_closed.mp4"]
    assert "more media" not in output


def test_a_listing_that_cannot_be_stored_leaves_no_index(folder: Path) -> None:
    (folder / "l.jsonl").write_text('{"uri": "h264_default.mp4", "label": 1}\n{"uri": "h264_vfr.mkv", "label": "x"}\n')
    run("index", folder / "l.jsonl", "--out", folder.parent / "INDEX", code=1)
    assert not (folder.parent / "INDEX" / "index.json").exists()


def test_what_was_left_aside_is_not_seen_and_is_removed(folder: Path) -> None:
    index, _ = build(folder)
    (index.path / "videos" / ".writing-part-000001.parquet").write_bytes(b"half")
    shutil.copy(
        index.path / "frames" / "part-000000.parquet", index.path / "frames" / "part-000001.parquet"
    )  # no videos yet
    assert len(Index(index.path).videos) == 3
    build(folder)
    assert not list(index.path.rglob(".writing-*"))


def test_another_root_is_refused(folder: Path) -> None:
    build(folder)
    with pytest.raises(OutputError, match="another root"):
        build(folder, root="/elsewhere")


def test_a_folder_with_something_else_is_refused_untouched(folder: Path) -> None:
    with pytest.raises(OutputError, match="is not an index"):
        framedex_index(folder, folder, progress=False)
    assert sorted(path.name for path in folder.iterdir()) == ["h264_default.mp4", "h264_vfr.mkv", "hevc_closed.mp4"]


def test_two_runs_at_once_are_refused(folder: Path) -> None:
    import fcntl

    index, _ = build(folder)
    with open(index.path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="another run"):
            build(folder)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (None, "no index.json"),
        ("{", "cannot be read"),
        ('{"format": "framedex-dataset", "schema_version": "3.0"}', "framedex-dataset"),
        ('{"format": "framedex-index", "schema_version": "4.0"}', "another major version"),
    ],
)
def test_what_is_not_an_index_of_this_version_is_refused(tmp_path: Path, header: str | None, says: str) -> None:
    if header is not None:
        (tmp_path / "index.json").write_text(header)
    with pytest.raises(FormatError) as refused:
        Index(tmp_path)
    assert says in str(refused.value)


def test_a_crash_or_a_hang_costs_one_item_and_order_is_kept() -> None:
    items = ["a", "crash", "b", "hang", "c", "raise", "d"]
    outcomes = pool.outcomes(sent.sleep_die_or_echo, items, workers=2, timeout_seconds=3)
    assert [outcome.item for outcome in outcomes] == items
    assert [outcome.result for outcome in outcomes] == ["a", None, "b", None, "c", None, "d"]
    assert [outcome.kind for outcome in outcomes if outcome.kind] == ["crash", "timeout", "internal_error"]


def test_too_large_an_allocation_costs_one_item_and_not_the_run() -> None:
    sizes = [1 << 20, 3 << 30, 1 << 20, 1 << 40, 1 << 20]
    outcomes = pool.outcomes(sent.allocate, sizes, memory_bytes=2 << 30)
    assert [outcome.kind for outcome in outcomes] == [None, "memory", None, "memory", None]
    assert outcomes[1].message == "needs more memory than the limit of 2 GiB"
    (outcome,) = pool.outcomes(sent.raise_as_libav_does, [12])
    assert outcome.kind == "memory"


def test_the_least_memory_that_may_be_asked_for_is_enough_for_plain_video(folder: Path) -> None:
    _, report = build(folder, workers=2, memory_bytes=1 << 30)
    assert (report.ok, report.failed) == (3, 0)


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "from tests.support.sent import process_id_then_hang; "
        "from framedex.execution.engine import Calls, run_local\n"
        "if __name__ == '__main__': list(run_local(Calls(function=process_id_then_hang, "
        f"items=['{tmp_path}/0', '{tmp_path}/1'], timeout_seconds=None), workers=2))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], env=environment())
    names = [tmp_path / "0", tmp_path / "1"]
    _wait_until(lambda: all(name.exists() and name.read_text() for name in names))
    process.kill()
    process.wait()
    _wait_until(lambda: not any(_is_running(int(name.read_text())) for name in names))


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _is_running(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_hanging_medium_becomes_a_failure_row(folder: Path) -> None:
    os.mkfifo(folder / "pipe.mp4")
    index, _ = build(folder, workers=1, timeout_seconds=20.0)
    assert rows(index)["pipe.mp4"]["error_kind"] == "unreadable"


def test_a_run_killed_midway_leaves_an_index_that_a_rerun_completes(folder: Path, medium: Medium) -> None:
    for number in range(40):
        shutil.copy(medium("h264_default.mp4"), folder / f"{number:02d}.mp4")
    out = folder.parent / "INDEX"
    command = [sys.executable, "-c", "from framedex.cli import main; main()", "index", str(folder), "--out", str(out)]
    for wait in (0.4, 0.8, 1.2):
        process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(wait)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if (out / "index.json").exists():
            for row in Index(out).videos.to_pylist():
                assert len(Index(out).packets(row["media_id"]).pts) == row["packet_count"]
    index, _ = build(folder)
    assert len(index.videos) == 43
    assert set(index.videos["status"].to_pylist()) == {"ok"}


def test_frames_of_one_medium_are_found_among_many_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr("framedex.indexer.schema.FRAMES_PER_ROW_GROUP", 60)
    index, _ = build(folder)
    for row in some(index.videos.to_pylist()):
        assert np.array_equal(np.sort(index.packets(row["media_id"]).pts)[0], row["start_pts"])
        assert len(index.packets(row["media_id"]).pts) == row["packet_count"]


def test_the_prober_never_raises_for_a_bad_medium(tmp_path: Path) -> None:
    video, frames = probed(tmp_path / "missing.mp4")
    assert (video["status"], video["error_kind"]) == ("failed", "missing")
    assert frames["pts"] == []


def test_dry_run_writes_nothing(folder: Path) -> None:
    out = folder.parent / "INDEX"
    result = run("index", folder, "--out", out, "--dry-run")
    assert "would probe 3 media" in result.output
    assert not out.exists()


def test_what_headers_state_is_recorded(folder: Path, medium: Medium) -> None:
    (folder / "h264_vfr.mkv").rename(folder / "variable.mkv")
    remux(medium("h264_default.mp4"), folder / "fragmented.mp4", movflags="frag_keyframe+empty_moov")
    with av.open(str(folder / "rate.mp4"), "w") as out:
        stream = out.add_stream("libx264", rate=24)
        for number in range(24):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), number, np.uint8))
            frame.pts = number * 2  # half the frame rate that the encoder was given
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    found = rows(build(folder)[0])
    assert (found["rate.mp4"]["stated_rate"], found["rate.mp4"]["median_gap_seconds"]) == (24.0, pytest.approx(2 / 24))
    plain = found["h264_default.mp4"]  # its encoder counts in ticks of a clock
    assert (plain["stated_frames"], plain["stated_duration_seconds"], plain["stated_rate"]) == (50, 2.0, None)
    assert plain["packet_bytes"] == sum(Index(folder.parent / "INDEX").packets(str(plain["media_id"])).size)
    assert found["variable.mkv"]["stated_frames"] is None  # Matroska states no number of frames
    assert found["fragmented.mp4"]["stated_duration_seconds"] is None  # no header states the content of fragments
    assert len({row["first_packets"] for row in found.values()}) == 4  # two files contain the same stream


def test_streams_of_the_same_packets_are_told_by_their_sizes(folder: Path, medium: Medium) -> None:
    remux(medium("h264_default.mp4"), folder / "the_same.mkv")
    found = rows(build(folder)[0])
    assert found["the_same.mkv"]["first_packets"] == found["h264_default.mp4"]["first_packets"]


def test_parts_of_an_older_minor_version_have_nulls_for_what_it_did_not_know(folder: Path) -> None:
    index, _ = build(folder)
    (path,) = (index.path / "videos").glob("*.parquet")
    pq.write_table(pq.read_table(path).drop_columns(["stated_rate", "seek_packets"]), path)
    header = index.path / "index.json"
    header.write_text(header.read_text().replace(f'"{SCHEMA_VERSION}"', '"3.0"'))
    (folder / "another.mkv").write_bytes((folder / "h264_vfr.mkv").read_bytes()[:-1])
    index, _ = build(folder)
    old = rows(index)["h264_vfr.mkv"]
    assert (old["stated_rate"], old["seek_packets"], old["frame_count"]) == (None, None, 50)
    assert index.video(str(old["media_id"])) == old
    assert rows(index)["another.mkv"]["seek_packets"]
    assert [row["uri"] for table in index.some_videos(2) for row in table.to_pylist()] == [*rows(index)]
    run("index", "--compact", "--out", index.path)
    assert rows(Index(index.path)) == rows(index)
