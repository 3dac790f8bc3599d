"""Errors suggest the name that was meant: by meaning, by spelling, or by a word in common."""

from __future__ import annotations

import json

import pytest

from framedex.core.words import MEANT, did_you_mean, meant
from framedex.indexer.schema import VIDEOS
from framedex.sharder.clips.clip_source import FIELD_NAMES
from tests.support.counted import some
from tests.support.policies import CONFIGS, NAMES


@pytest.mark.parametrize(
    ("name", "allowed", "found"),
    [
        ("duration", [*VIDEOS.names, "duration_seconds"], ["duration_seconds"]),
        ("vfr", VIDEOS.names, ["is_vfr"]),
        ("vfr", ["copies", "variable_rate"], ["variable_rate"]),
        ("VFR", ["is_vfr", "variable_rate"], ["is_vfr", "variable_rate"]),
        ("fsp", ["fps", "frames"], ["fps"]),
        ("lable", ["label", "split"], ["label"]),
        ("clip", ["clips", "clip_id"], ["clips"]),
        ("Label", ["label", "split"], ["label"]),
        ("num-frames", ["frames", "clips"], ["frames"]),
        ("gop", VIDEOS.names, ["min_gop", "max_gop"]),
        ("weather", ["fps", "frames"], []),
    ],
)
def test_the_name_that_was_meant_is_found(name: str, allowed: list[str], found: list[str]) -> None:
    assert meant(name, allowed) == found


def test_a_remedy_names_all_that_may_be_meant() -> None:
    assert did_you_mean("resolution", ["width", "height"]) == "did you mean 'width' or 'height'?"
    assert did_you_mean("weather", ["width"]) is None


def test_every_meaning_is_a_name_that_exists() -> None:
    records = json.loads((CONFIGS / "policy.schema.json").read_text(encoding="utf-8"))["$defs"]
    policies = some([records[name]["properties"] for name in records if name.endswith("Policy")], len(NAMES))
    keys = {key for policy in policies for key in policy} - {"policy"}
    checks = {"copies", "damaged", "more_than_8_bits", "variable_rate"}
    columns = {"label", "split", "start", "end", "start_seconds", "end_seconds"}
    there = keys | checks | columns | set(VIDEOS.names) | set(FIELD_NAMES)
    assert {name for group in MEANT.values() for name in group} <= there
