"""Records of parameters: wrong values and types are refused, and errors state where the value is written."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from framedex.errors import PolicyError
from framedex.sharder.configuration.parameters import RefusedError
from framedex.sharder.policies import by_time, reading

FPS: dict[str, Any] = {"policy": "fps", "fps": 1}


def refusal(document: object) -> PolicyError:
    with pytest.raises(PolicyError) as refused:
        reading.make_policy(document, where="a.yaml")
    return refused.value


@pytest.mark.parametrize(
    ("document", "where", "found"),
    [
        (FPS | {"frames": 0}, "a.yaml: frames", "0"),
        ({"policy": "frames", "frames": [0, -1]}, "a.yaml: frames[1]", "-1"),
        (
            {"policy": "segments", "segments": [{"fps": 1, "frames": 1}, {"fps": "x"}]},
            "a.yaml: segments[1]: fps",
            "'x'",
        ),
        ({"policy": "segments", "segments": [{"fps": 1}]}, "a.yaml: segments[0]", "none of frames, seconds"),
        ({"policy": "segments", "segments": [{"frames": 1}]}, "a.yaml: segments[0]", "no fps"),
        (FPS | {"range": {"start": 3}}, "a.yaml: range: start", "3"),
        (FPS | {"range": {"strat": 3}}, "a.yaml: range", "'strat'"),
        (FPS | {"split": {"shares": {"train": -1}}}, "a.yaml: split: shares: train", "-1"),
        (FPS | {"split": {"shares": {"a b": 1}}}, "a.yaml: split: shares: a b", "'a b'"),
        (FPS | {"split": {"column": "fold", "names": {0: "a", "0": "b"}}}, "a.yaml: split: names", "'0'"),
        (FPS | {"filter": "width >"}, "a.yaml: filter, character 8", "width >"),
        ({"policy": "random"}, "a.yaml", "no clips, frames"),
    ],
)
def test_an_error_says_where_and_what_was_found(document: dict[str, Any], where: str, found: str) -> None:
    error = refusal(document)
    assert type(error) is PolicyError
    assert (error.where, str(error.found)) == (where, found)


@pytest.mark.parametrize(
    ("key", "value", "allowed", "remedy"),
    [
        ("choose", "nearst", "nearest, previous, next", "did you mean 'nearest'?"),
        (
            "pad",
            "reflect",
            "none, constant, edge, ends, reflect_101, reflect_1001",
            "did you mean 'reflect_101' or 'reflect_1001'?",
        ),
        ("last", "loop", "drop, partial, pad", None),
        ("last", 3, "drop, partial, pad", None),
    ],
)
def test_a_misspelt_word_is_told_what_is_allowed(key: str, value: object, allowed: str, remedy: str | None) -> None:
    error = refusal(FPS | {key: value})
    assert (error.allowed, error.remedy) == (allowed, remedy)


def test_a_misspelt_key_is_told_all_keys_its_own_first() -> None:
    error = refusal(FPS | {"start_second": 1})
    assert error.remedy == "did you mean 'start_seconds'?"
    assert str(error.allowed).startswith("fps, frames, start_seconds, choose, ")


@pytest.mark.parametrize("value", ["3", 3.0, True, 1.5, [3], {"a": 3}])
def test_nothing_but_a_whole_number_is_one(value: object) -> None:
    assert "must be a whole number from 1 to 100,000,000" in str(refusal(FPS | {"frames": value}))


@pytest.mark.parametrize("value", [1, 0, "true", "yes", 1.0])
def test_nothing_but_true_and_false_is_a_boolean(value: object) -> None:
    document = {"policy": "per_row", "fps": 1, "unit": "frames", "include_end": value}
    assert "must be true or false" in str(refusal(document))


@pytest.mark.parametrize("value", [(0, 1), {0, 1}, {0: 1}, "01", 0])
def test_nothing_but_a_list_is_one(value: object) -> None:
    assert "must be a list" in str(refusal({"policy": "frames", "frames": value}))


def test_an_empty_key_is_the_default() -> None:
    empty = dict.fromkeys(("frames", "choose", "seed", "jitter_seconds", "min_frames", "filter", "split"))
    assert reading.make_policy(FPS | empty, where="a.yaml") == reading.make_policy(FPS, where="a.yaml")


def test_records_are_frozen_and_have_no_other_attributes() -> None:
    policy = reading.make_policy(FPS, where="a.yaml").policy
    assert isinstance(policy, by_time.FpsPolicy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.fps = 2  # type: ignore[misc, assignment]
    assert not hasattr(policy, "__dict__")


def test_values_that_do_not_go_together_are_a_policy_error_in_code_too() -> None:
    with pytest.raises(RefusedError, match="exceeds the frames of a clip"):
        by_time.FpsPolicy(fps=1, frames=2, min_frames=3)
