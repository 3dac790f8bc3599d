"""Ranges of a listing: every policy samples them, and none silently ignores them."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from framedex import ClipDataset
from framedex.errors import PolicyError
from framedex.sharder.policies.ranges import range_columns
from tests.sharder.planning.test_from_index import assert_same_clips, failure_rows
from tests.support.datasets import run as framedex
from tests.support.media import Medium
from tests.support.policies import THIRTY, Document, clips_of, kinds, policy_of, run, sample
from tests.support.policy_reference import Stretch, Video, expected, frame_times, stretch_of_frames
from tests.support.policy_strategies import OWN, TERMS, TIMES, VIDEOS

COLUMNS = {"range": {"start": "from", "end": "to"}}


@pytest.mark.parametrize("name", OWN)
@given(data=st.data(), video=VIDEOS, terms=TERMS, ends=st.tuples(TIMES, TIMES))
def test_any_policy_samples_a_range_as_a_video_of_its_own(
    name: str, data: st.DataObject, video: Video, terms: Document, ends: tuple[Fraction, Fraction]
) -> None:
    start, end = min(ends), max(ends)
    document = {"policy": name} | data.draw(OWN[name]) | terms
    sampling = run(document | COLUMNS, video, {"from": str(start), "to": str(end)})
    end = min(end, video.seconds)
    inside = [frame for frame, shown in enumerate(frame_times(video)) if start <= shown < end]
    if not inside:
        assert kinds(sampling) == ["row"]
        return
    assert clips_of(sampling) == expected(document, video, Stretch(inside[0], inside[-1] + 1, start, end))
    assert all(frame in inside for clip in sampling.clips for frame in clip.frames[clip.mask])


@pytest.mark.parametrize("name", OWN)
@given(data=st.data(), video=VIDEOS, terms=TERMS, first=st.integers(-70, 70), last=st.integers(-70, 70))
def test_ranges_of_frames_may_include_their_end_and_count_from_the_back(
    name: str, data: st.DataObject, video: Video, terms: Document, first: int, last: int
) -> None:
    document = {"policy": name} | data.draw(OWN[name]) | terms
    told = {"range": {"start": "from", "end": "to", "unit": "frames", "include_end": True}}
    sampling = run(document | told, video, {"from": first, "to": last})
    stretch = stretch_of_frames(video, first, last, include_end=True)
    if stretch is None:
        assert kinds(sampling) == ["row"]
        return
    assert clips_of(sampling) == expected(document, video, stretch)


@pytest.mark.parametrize("way", [{"fps": 10}, {"stride": 3}])
def test_random_clips_lie_in_their_range_and_those_of_two_ranges_differ(way: Document) -> None:
    document = {"policy": "random", "clips": 40, "frames": 4} | way | COLUMNS
    found = [sample(document, THIRTY, {"from": start, "to": start + 2}) for start in (1, 5)]
    for start, clips in zip((1, 5), found, strict=True):
        assert len(clips) == 40
        assert all(30 * start <= frame < 30 * (start + 2) for clip in clips for frame in clip)
        assert len({clip[0] for clip in clips}) > 10
    assert [clip[0] - 30 for clip in found[0]] != [clip[0] - 150 for clip in found[1]]


@pytest.mark.parametrize("empty", [None, math.nan, "", " "])
def test_an_empty_end_is_the_end_of_the_video_and_an_empty_start_its_start(empty: object) -> None:
    document = {"policy": "stride", "stride": 30} | COLUMNS
    seconds = {
        (2, empty): range(60, 300, 30),
        (empty, 2): range(0, 60, 30),
        (empty, empty): range(0, 300, 30),
        (0, empty): range(0, 300, 30),
    }
    for (start, end), frames in seconds.items():
        assert sample(document, THIRTY, {"from": start, "to": end}) == [list(frames)]
    assert sample(document | {"range": {"start": "from"}}, THIRTY, {"from": 9}) == [[270]]
    assert sample(document | {"range": {"end": "to", "unit": "frames"}}, THIRTY, {"to": 31}) == [[0, 30]]
    assert kinds(run(document, THIRTY, {"from": 11, "to": empty})) == ["row"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"from": 1}, "no such column"),
        ({"from": "soon", "to": 2}, "must be a number"),
        ({"from": -1, "to": 2}, "is before the start of the video"),
        ({"from": 2, "to": 2}, "must end after it starts"),
        ({"from": 11, "to": 12}, "the range contains no frame"),
    ],
)
def test_a_row_that_names_no_stretch_is_a_failure_with_its_reason(row: Document, said: str) -> None:
    sampling = run({"policy": "fps", "fps": 1} | COLUMNS, THIRTY, row)
    [missed] = sampling.missed
    assert (sampling.clips, missed.kind, missed.counts) == ([], "row", True)
    assert said in missed.message


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"range": {}}, "needs the name of a column"),
        ({"range": "start"}, "must be a mapping"),
        ({"range": {"begin": "a"}}, "unknown key"),
        ({"range": {"start": "a", "unit": "hours"}}, "unknown value"),
        ({"range": {"start": "a", "end": "b", "include_end": True}}, "include_end requires a column end, in frames"),
        ({"policy": "per_row", "range": {"start": "a"}}, "has other keys for ranges"),
    ],
)
def test_what_is_no_range_is_refused(wrong: Document, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        policy_of({"policy": "fps", "fps": 1} | wrong)


@pytest.mark.parametrize("said", [{}, {"range": None}, COLUMNS])
def test_what_is_said_of_ranges_reads_back_equal(said: Document) -> None:
    made = policy_of({"policy": "fps", "fps": 1} | said)
    assert policy_of(made.resolved) == made
    assert ("range" in made.resolved) == bool(said)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["label", "start", "end"], ("start", "end")),
        (["begin", "stop"], ("begin", "stop")),
        (["start_seconds", "end_seconds", "start_frame"], ("start_seconds", "end_seconds")),
        (["StartTime", "EndTime"], ("StartTime", "EndTime")),
        (["frame_start", "frame_end"], ("frame_start", "frame_end")),
        (["start_frame", "end_seconds"], None),
        (["start", "weekend"], None),
        (["started", "ended", "endpoint"], None),
        (["start"], None),
    ],
)
def test_columns_are_known_for_ranges_by_their_names(names: list[str], found: tuple[str, str] | None) -> None:
    assert range_columns(tuple(names)) == found


ROWS: list[dict[str, Any]] = [
    {"uri": "h264_default.mp4", "begin": 0.2, "finish": 0.9, "label": 0},
    {"uri": "h264_default.mp4", "begin": 1.0, "finish": None, "label": 1},
    {"uri": "hevc_closed.mp4", "begin": None, "finish": 0.5, "label": 2},
    {"uri": "h264_vfr.mkv", "begin": None, "finish": None, "label": 3},
    {"uri": "h264_vfr.mkv", "begin": 99, "finish": None, "label": 4},
]
SAMPLED: dict[str, Document] = {
    "fps": {"policy": "fps", "fps": 10, "frames": 3},
    "segments": {"policy": "segments", "segments": [{"fps": 10, "frames": 2}, {"fps": 5, "frames": 2}],
                 "every_seconds": 0.5},
    "windows": {"policy": "windows", "frames": 4, "step": 5, "last": "drop"},
    "random": {"policy": "random", "clips": 3, "frames": 2, "fps": 8},
    "keyframes": {"policy": "keyframes"},
    "uniform": {"policy": "uniform", "frames": 5, "jitter_seconds": 0.02},
    "frames": {"policy": "frames", "frames": [0, 3, 1]},
}  # fmt: skip


@pytest.fixture(scope="module")
def make_index(all_media: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that indexes a listing whose range columns have two given names."""

    def made(start: str, end: str, rows: list[dict[str, Any]] = ROWS) -> Path:
        folder = tmp_path_factory.mktemp("ranges")
        with open(folder / "list.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["uri", start, end, "label"])
            writer.writerows([all_media / row["uri"], row["begin"], row["finish"], row["label"]] for row in rows)
        framedex("index", folder / "list.csv", "--out", folder / "INDEX")
        return folder / "INDEX"

    return made


@pytest.fixture(scope="module")
def listed(make_index: Callable[..., Path]) -> Path:
    return make_index("start", "end")


def shard(index: Path, policy: Document, out: Path, code: int = 0) -> str:
    out.with_suffix(".yaml").write_text(yaml.safe_dump(policy))
    return framedex("shard", index, "--policy", out.with_suffix(".yaml"), "--out", out, code=code).output


@pytest.mark.parametrize("name", SAMPLED)
def test_rows_of_one_video_become_clips_of_their_own_and_planning_on_the_fly_gives_the_same(
    name: str, listed: Path, tmp_path: Path
) -> None:
    policy = SAMPLED[name] | {"range": {"start": "start", "end": "end"}}
    shard(listed, policy, tmp_path / "D", code=3)  # one row lies behind its video's end
    stored, planned = ClipDataset(tmp_path / "D"), ClipDataset.from_index(listed, policy)
    assert_same_clips(planned, stored)
    found = [(one.clip_id, one.uri, one.kind, one.message, one.counts) for one in planned.failures()]
    assert found == failure_rows(stored)
    assert [kind for _, _, kind, _, counts in found if counts] == ["row"]
    seconds = [(clip.columns["label"], clip.seconds[clip.mask]) for clip in map(stored.clip, range(len(stored)))]
    assert {label for label, _ in seconds} == {0, 1, 2, 3}
    assert all((shown >= 0.2).all() and (shown < 0.9).all() for label, shown in seconds if label == 0)
    assert all((shown >= 1.0).all() for label, shown in seconds if label == 1)
    assert all((shown < 0.5).all() for label, shown in seconds if label == 2)


@pytest.mark.parametrize("name", SAMPLED)
def test_ranges_that_a_policy_ignores_are_an_error_that_says_what_to_write(
    name: str, listed: Path, tmp_path: Path
) -> None:
    said = shard(listed, SAMPLED[name], tmp_path / "D", code=1)
    assert "the listing has ranges, and the policy ignores them" in said
    assert "columns 'start' and 'end': 0.2 to 0.9 of " in said
    assert "`range: {start: start, end: end}`" in said
    assert "`range: null`" in said
    assert not (tmp_path / "D").exists()
    with pytest.raises(PolicyError, match="the policy ignores them"):
        ClipDataset.from_index(listed, SAMPLED[name])


def test_a_policy_says_that_whole_videos_are_meant(listed: Path, tmp_path: Path) -> None:
    shard(listed, SAMPLED["uniform"] | {"range": None}, tmp_path / "D")
    assert len(ClipDataset(tmp_path / "D")) == len(ROWS)
    assert len(ClipDataset.from_index(listed, SAMPLED["uniform"] | {"range": None})) == len(ROWS)


def test_per_row_reads_its_columns_as_it_did(listed: Path, tmp_path: Path) -> None:
    shard(listed, {"policy": "per_row", "uniform": 2, "filter": "label == 0"}, tmp_path / "D")
    assert len(ClipDataset(tmp_path / "D")) == 1


def test_columns_of_other_names_are_no_ranges_unless_the_policy_names_them(
    make_index: Callable[..., Path], tmp_path: Path
) -> None:
    index = make_index("from_here", "to_there")
    shard(index, SAMPLED["uniform"], tmp_path / "D")
    named = SAMPLED["uniform"] | {"range": {"start": "from_here", "end": "to_there"}}
    shard(index, named, tmp_path / "E", code=3)
    assert len(ClipDataset(tmp_path / "E")) == len(ROWS) - 1
    said = shard(index, SAMPLED["uniform"] | {"range": {"start": "from_her"}}, tmp_path / "F", code=1)
    assert "the listing has no such column" in said
    assert "did you mean 'from_here'?" in said


def test_columns_for_ranges_that_hold_nothing_are_no_ranges(make_index: Callable[..., Path], tmp_path: Path) -> None:
    rows = [row | {"begin": None, "finish": None} for row in ROWS]
    shard(make_index("start", "end", rows), SAMPLED["uniform"], tmp_path / "D")
    assert len(ClipDataset(tmp_path / "D")) == len(rows)


PER_ROW = {"policy": "per_row", "fps": 10}


@pytest.fixture
def seconds_listed(medium: Medium, tmp_path: Path) -> Path:
    """An index of a listing whose ranges are in columns start_sec and end_sec."""
    return listed_as(tmp_path, medium, "start_sec", "end_sec", [(0.2, 0.9), (1.0, 1.5)])


def listed_as(folder: Path, medium: Medium, start: str, end: str, ranges: list[tuple[float, float]]) -> Path:
    """Return an index of a listing with ranges of one video."""
    rows = [f"{medium('h264_default.mp4')},{first},{last}" for first, last in ranges]
    (folder / "l.csv").write_text("\n".join([f"uri,{start},{end}", *rows]), encoding="utf-8")
    framedex("index", folder / "l.csv", "--out", folder / "L")
    return folder / "L"


def test_per_row_finds_columns_that_look_like_start_and_end(seconds_listed: Path, tmp_path: Path) -> None:
    named = PER_ROW | {"start": "start_sec", "end": "end_sec"}
    found, told = (ClipDataset.from_index(seconds_listed, policy) for policy in (PER_ROW, named))
    assert [found.clip(number).frames.tolist() for number in range(len(found))] == [
        told.clip(number).frames.tolist() for number in range(len(told))
    ]
    assert len(found) == 2


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"start": "begin"}, ["'begin'", "start_sec"]),
        ({"cuts": "shots"}, ["'shots'", "start_sec"]),
        ({"unit": "frames"}, ["columns show that the ranges are in seconds"]),
    ],
)
def test_columns_that_are_not_there_are_one_error_and_nothing_is_written(
    keys: Document, parts: list[str], seconds_listed: Path, tmp_path: Path
) -> None:
    policy = yaml.safe_dump(PER_ROW | keys)
    with pytest.raises(PolicyError) as caught:
        ClipDataset.from_index(seconds_listed, policy)
    said = framedex("shard", seconds_listed, "--policy", policy, "--out", tmp_path / "D", code=1).output
    for part in parts:
        assert part in str(caught.value)
        assert said.count(part) == 1
    assert not list(tmp_path.glob("D*"))
    framedex("shard", seconds_listed, "--policy", yaml.safe_dump(PER_ROW), "--out", tmp_path / "D")


@pytest.mark.parametrize(
    ("start", "end", "unit", "said"),
    [
        ("start_frame", "end_frame", "frames", None),
        ("start_frame", "end_frame", "seconds", "ranges are in frames"),
        ("begin_ms", "end_ms", "seconds", "ranges are in milliseconds"),
        ("start_time", "stop_time", "seconds", None),
    ],
)
def test_the_names_of_columns_agree_with_the_unit(
    start: str, end: str, unit: str, said: str | None, medium: Medium, tmp_path: Path
) -> None:
    index = listed_as(tmp_path, medium, start, end, [(1, 2)])
    policy = PER_ROW | {"unit": unit}
    if said is None:
        assert len(ClipDataset.from_index(index, policy)) == 1
        return
    with pytest.raises(PolicyError, match=said):
        ClipDataset.from_index(index, policy)
