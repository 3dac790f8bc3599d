"""Policy documents: configs/ load, resolved ones read back equal, wrong ones are refused with what is allowed."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from framedex.errors import PolicyError
from framedex.sharder.policies.reading import changed_settings, make_policy, read_policy
from tests.support.counted import some
from tests.support.policies import CONFIGS, NAMES, THIRTY, Document, policy_of, run
from tests.support.policy_strategies import OWN, TERMS


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_config_loads_and_samples(path: Path) -> None:
    made = read_policy(path)
    assert made.resolved["policy"] in NAMES
    assert make_policy(made.resolved, where="resolved") == made, "what lies beside a dataset reads back the same"
    assert made.policy.sample(THIRTY, {"start": 1, "end": 6, "cuts": [0, 2.5, 7.1]}).clips


def test_every_policy_has_a_config_of_its_name() -> None:
    with pytest.raises(PolicyError) as refused:
        policy_of({"policy": "magic"})
    every = some(str(refused.value.allowed).split(", "), len(NAMES))
    assert [read_policy(CONFIGS / f"{name}.yaml").resolved["policy"] for name in every] == every


@pytest.mark.parametrize("name", OWN)
@given(data=st.data(), terms=TERMS)
def test_what_is_resolved_reads_back_equal(name: str, data: st.DataObject, terms: Document) -> None:
    made = make_policy({"policy": name} | data.draw(OWN[name]) | terms, where="test")
    again = make_policy(made.resolved, where="resolved")
    assert again == made
    assert again.resolved == made.resolved


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"policy": "fps", "fsp": 1}, "did you mean 'fps'"),
        ({"policy": "fps"}, "no fps"),
        ({"policy": "fps", "fps": 0}, "above zero"),
        ({"policy": "fps", "fps": "fast"}, "30000/1001"),
        ({"policy": "fps", "fps": "1/0"}, "30000/1001"),
        ({"policy": "fps", "fps": True}, "must be a number"),
        ({"policy": "fps", "fps": 1, "frames": 0}, "from 1 to"),
        ({"policy": "fps", "fps": 1, "frames": 10**12}, "from 1 to"),
        ({"policy": "fps", "fps": 1, "frames": 10**8}, "at most 20,000,000 frames"),
        ({"policy": ["fps"], "fps": 1}, "fps, segments, stride"),
        ({"policy": "fps", "fps": None}, "no fps"),
        ({"policy": "fps", "fps": 1, "frames": 1.5}, "whole number"),
        ({"policy": "fps", "fps": 1, "choose": "last"}, "nearest, previous, next"),
        ({"policy": "fps", "fps": 1, "last": "loop"}, "drop, partial, pad"),
        ({"policy": "fps", "fps": 1, "pad": "reflect"}, "none, constant, edge, ends, reflect_101, reflect_1001"),
        ({"policy": "fps", "fps": 1, "short": "drop"}, "skip, pad, error"),
        ({"policy": "fps", "fps": 1, "seed": -1}, "a seed must be"),
        ({"policy": "fps", "fps": 1, "seed": 1 << 63}, "a seed must be"),
        ({"policy": "fps", "fps": 1, "tolerance_seconds": -1}, "not be negative"),
        ({"policy": "fps", "fps": 1, "jitter_frames": 1}, "jitter_seconds"),
        ({"policy": "fps", "fps": 1, "frames": 4, "min_frames": 5}, "exceeds the frames of a clip"),
        ({"policy": "fps", "fps": float("nan")}, "must be a number"),
        ({"policy": "segments", "segments": []}, "{fps: 1, frames: 8}"),
        ({"policy": "segments", "segments": [3]}, "test: segments[0]"),
        ({"policy": "segments", "segments": [{"fps": 1}]}, "either frames or seconds"),
        ({"policy": "segments", "segments": [{"fps": 1, "frames": 1, "seconds": 1}]}, "either frames or seconds"),
        ({"policy": "segments", "segments": [{"fps": 1, "frames": 1, "colour": 1}]}, "unknown key"),
        ({"policy": "segments", "segments": [{"fps": "1e99", "seconds": "1e99"}]}, "at most"),
        ({"policy": "stride", "stride": 1, "start": -1}, "from 0 to"),
        ({"policy": "stride", "stride": 1, "jitter_seconds": 1}, "jitter_frames"),
        ({"policy": "frames", "frames": []}, "[0, 7, 3, 3]"),
        ({"policy": "frames", "frames": 3}, "[0, 7, 3, 3]"),
        ({"policy": "frames", "frames": [0, -1]}, "frames[1]"),
        ({"policy": "seconds", "seconds": [0, -1]}, "seconds[1]"),
        ({"policy": "windows", "frames": 2, "step_seconds": 1}, "step_seconds"),
        ({"policy": "windows", "frames": 2, "fps": 1, "stride": 1}, "select by time"),
        ({"policy": "random", "clips": 1, "frames": 2}, "either fps or stride"),
        ({"policy": "random", "clips": 1, "frames": 2, "fps": 1, "stride": 1}, "either fps or stride"),
        ({"policy": "uniform", "frames": 2, "by": "size"}, "time, number"),
        ({"policy": "uniform"}, "either frames or fps"),
        ({"policy": "uniform", "frames": 2, "fps": 1}, "add `clips: 1`"),
        ({"policy": "uniform", "frames": 2, "stride": 1}, "clips and frames"),
        ({"policy": "uniform", "clips": 2, "frames": 2}, "either fps or stride"),
        ({"policy": "uniform", "clips": 2, "fps": 2}, "clips, fps without frames"),
        ({"policy": "uniform", "clips": 2, "frames": 2, "fps": 1, "stride": 1}, "clips, fps, stride"),
        ({"policy": "uniform", "clips": 2, "frames": 2, "fps": 1, "by": "number"}, "by cannot be used with clips"),
        ({"policy": "uniform", "frames": 2, "rounding": "down"}, "spread: ends, and by: number or stride"),
        ({"policy": "uniform", "frames": 2, "multiple": 2}, "leave out frames"),
        ({"policy": "uniform", "fps": 2, "least_frames": 5, "max_frames": 7, "multiple": 4}, "between the bounds"),
        ({"policy": "fps", "fps": 2, "frames": 4, "max_frames": 8}, "max_clips"),
        ({"policy": "fps", "fps": 2, "max_clips": 0}, "from 1 to"),
        ({"policy": "fps", "fps": 2, "max_seconds": 0}, "above zero"),
        ({"policy": "per_row"}, "one of fps, stride and uniform"),
        ({"policy": "per_row", "fps": 1, "stride": 1}, "one of fps, stride and uniform"),
        ({"policy": "per_row", "uniform": 1, "frames": 1}, "determines the number of frames"),
        ({"policy": "per_row", "fps": 1, "cuts": "a", "start": "b"}, "or by cuts"),
        ({"policy": "per_row", "fps": 1, "include_end": True}, "include_end"),
        ({"policy": "per_row", "fps": 1, "start": 3}, "name of a column"),
        ({"policy": "fps", "fps": 1, "filter": "width >"}, "test: filter, character"),
        ({"policy": "fps", "fps": 1, "filter": 3}, "expression in text"),
        ({"policy": "fps", "fps": 1, "split": {"share": {}}}, "did you mean 'shares'"),
        ({"policy": "window", "frames": 1}, "did you mean 'windows'"),
        ({"policy": "magic"}, "fps, segments, stride"),
        (["fps"], "mapping"),
        (None, "mapping"),
    ],
)
def test_a_wrong_document_is_refused_with_what_is_allowed(document: object, says: str) -> None:
    with pytest.raises(PolicyError, match="test") as refused:
        make_policy(document, where="test")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("by_number", "document"),
    [
        (False, {"policy": "fps", "fps": 1}),
        (False, {"policy": "segments", "segments": [{"fps": 1, "frames": 2}]}),
        (True, {"policy": "stride", "stride": 2}),
        (True, {"policy": "frames", "frames": [0, 3]}),
        (False, {"policy": "seconds", "seconds": [0, 3]}),
        (True, {"policy": "keyframes"}),
        (True, {"policy": "windows", "frames": 2, "stride": 2}),
        (False, {"policy": "windows", "frames": 2, "fps": 1}),
        (True, {"policy": "random", "clips": 1, "frames": 2, "stride": 1}),
        (False, {"policy": "random", "clips": 1, "frames": 2, "fps": 1}),
        (True, {"policy": "uniform", "frames": 2, "by": "number"}),
        (False, {"policy": "uniform", "frames": 2}),
        (True, {"policy": "uniform", "clips": 2, "frames": 2, "stride": 1}),
        (True, {"policy": "around", "frames": [-1, 0]}),
        (False, {"policy": "around", "seconds": [-0.1, 0]}),
        (True, {"policy": "per_row", "stride": 2}),
        (False, {"policy": "per_row", "fps": 1}),
        (True, {"policy": "per_row", "uniform": 2, "start": "a", "end": "b", "unit": "frames"}),
        (False, {"policy": "per_row", "uniform": 2, "start": "a", "end": "b"}),
    ],
    ids=str,
)
def test_places_by_number_are_jittered_by_frames_and_places_by_time_by_seconds(
    by_number: bool, document: Document
) -> None:
    right, wrong = ("jitter_frames", "jitter_seconds") if by_number else ("jitter_seconds", "jitter_frames")
    make_policy(document | {right: 1}, where="test")
    with pytest.raises(PolicyError) as refused:
        make_policy(document | {wrong: 1}, where="test")
    assert (refused.value.found, refused.value.allowed) == (wrong, right)


def nested(levels: int) -> object:
    """Return nested lists that contain one list twice, like YAML aliases: written out, they double at each level."""
    value: object = "x"
    for _ in range(levels):
        value = [value, value]
    return value


@pytest.mark.parametrize("value", [10**5000, nested(60)], ids=["digits", "aliases"])
@pytest.mark.parametrize("key", ["last", "short", "pad"])
def test_values_that_no_text_should_hold_are_refused(key: str, value: object) -> None:
    document = {"policy": "stride", "stride": 1, "frames": 8, key: value}
    with pytest.raises(PolicyError):
        make_policy(document, where="policy")


def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("policy: [fps")
    with pytest.raises(PolicyError, match="cannot be read"):
        read_policy(path)


@pytest.mark.parametrize(
    "document",
    [
        {"policy": "windows", "frames": 2, "fps": 1, "step_seconds": "1e-9"},
        {"policy": "fps", "fps": "1e99"},
        {"policy": "fps", "fps": "1e99", "frames": 16},
        {"policy": "segments", "segments": [{"fps": 1, "frames": 1}], "every_seconds": "1e-9"},
        {"policy": "random", "clips": 2_000_000, "frames": 1, "fps": 1},
        {"policy": "random", "clips": 100_000, "frames": 1000, "stride": 1},
        {"policy": "per_row", "fps": "1e15"},
    ],
)
def test_too_many_clips_are_refused_before_they_fill_the_memory(document: Document) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PolicyError, match="too many clips out of one video"):
            run(document, THIRTY, {"start": 0, "end": 5})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"policy": "fps", "fps": 2, "frames": 8}, "policy: fps, fps: 2, frames: 8"),
        (
            {"policy": "fps", "fps": "30000/1001", "frames": 8, "pad": "constant", "last": "drop", "seed": 0},
            "policy: fps, fps: 30000/1001, frames: 8, last: drop",
        ),
        (
            {"policy": "uniform", "frames": 4, "split": {"shares": {"train": 9, "val": 1}}},
            "policy: uniform, frames: 4, split: {shares: {train: 9, val: 1}}",
        ),
        ({"policy": "clips", "choose": None, "clips": "abc"}, "policy: clips, clips: abc"),
        ({"policy": "of a later version", "frames": 4, "x": None}, "policy: of a later version, frames: 4"),
    ],
)
def test_settings_that_differ_from_the_defaults_are_one_line(document: dict[str, object], line: str) -> None:
    assert changed_settings(yaml.safe_dump(document, sort_keys=False)) == line


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_changed_settings_alone_give_the_same_policy(path: Path) -> None:
    found = read_policy(path)
    line = changed_settings(yaml.safe_dump(found.resolved, sort_keys=False))
    assert make_policy(yaml.safe_load("{" + line + "}"), where="line").policy == found.policy
