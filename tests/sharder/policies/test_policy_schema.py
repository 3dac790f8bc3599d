"""The JSON Schema with which editors complete and check policies: it accepts every policy that framedex accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from framedex.errors import PolicyError
from framedex.sharder.configuration.parameters import names
from framedex.sharder.policies import reading
from tests.support.counted import some

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
SCHEMA = Draft202012Validator(reading.policy_schema())

Document = dict[str, Any]


def valid(document: object) -> bool:
    """Return whether the schema accepts a document after its conversion to JSON, in which all keys are strings."""
    return SCHEMA.is_valid(json.loads(json.dumps(document, default=str)))


def taken(document: object) -> bool:
    try:
        reading.make_policy(document, where="test")
    except PolicyError:
        return False
    return True


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(reading.policy_schema())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_is_valid_and_names_the_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert valid(yaml.safe_load(text))
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert named is not None
    assert (path.parent / named[1]).is_file()


def test_what_the_page_shows_is_valid() -> None:
    lines = re.findall(r"^ {4}((?:range|split|filter): .*)$", PAGE, re.MULTILINE)
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for text in some([*lines, *blocks], 20):
        document = yaml.safe_load(text)
        document = document if "policy" in document else {"policy": "fps", "fps": 1} | document
        assert taken(document)
        assert valid(document)


@pytest.mark.parametrize(
    "document",
    [
        {"policy": "fps", "fps": 1, "framse": 8},  # unknown keys
        {"policy": "fps", "fps": 1, "range": {"strat": "start"}},
        {"policy": "segments", "segments": [{"fps": 1, "frames": 2, "colour": 3}]},
        {"policy": "fps", "fps": 1, "split": {"share": {"train": 1}}},
        {"policy": "fps"},  # a required key is missing, or empty
        {"policy": "fps", "fps": None},
        {"policy": "segments", "segments": [{"frames": 2}]},
        {"policy": "fps", "fps": True},  # wrong type
        {"policy": "fps", "fps": "fast"},
        {"policy": "fps", "fps": [1]},
        {"policy": "fps", "fps": 1, "frames": "8"},
        {"policy": "fps", "fps": 1, "frames": 1.5},
        {"policy": "fps", "fps": 1, "frames": True},
        {"policy": "fps", "fps": 1, "choose": "last"},
        {"policy": "fps", "fps": 1, "filter": 3},
        {"policy": "fps", "fps": 1, "range": "start"},
        {"policy": "fps", "fps": 1, "range": {"start": 3}},
        {"policy": "per_row", "fps": 1, "unit": "frames", "include_end": 1},
        {"policy": "frames", "frames": 3},
        {"policy": "frames", "frames": {"0": 1}},
        {"policy": "fps", "fps": 1, "split": {"shares": {"train": "most"}}},
        {"policy": "fps", "fps": 1, "split": {"column": "fold", "names": {0: "a b"}}},
        {"policy": "fps", "fps": 0},  # out of range
        {"policy": "fps", "fps": 1, "start_seconds": -0.5},
        {"policy": "fps", "fps": 1, "frames": 0},
        {"policy": "fps", "fps": 1, "frames": 10**12},
        {"policy": "fps", "fps": 1, "seed": -1},
        {"policy": "fps", "fps": 1, "range": {"start": ""}},
        {"policy": "frames", "frames": []},
        {"policy": "seconds", "seconds": [0, -1]},
        {"policy": "fps", "fps": 1, "split": {"shares": {}}},
        {"policy": ["fps", "stride"], "fps": 1},  # two policies, an unknown one, and none
        {"policy": "fps", "fps": 1, "stride": 2},
        {"fps": {"fps": 1}, "stride": {"stride": 2}},
        {"policy": "magic"},
        {"policy": None},
        {"fps": 1},
        {},
        ["fps"],
        "fps",
        None,
    ],
    ids=str,
)
def test_a_wrong_policy_is_refused_by_the_schema_and_by_framedex(document: object) -> None:
    assert not valid(document)
    assert not taken(document)


# Values that are valid, or almost valid, for some key. The test sets one key of a valid policy to such a value.
WORDS = (
    "nearest previous next pad partial drop skip error none edge reflect_101 time number centres ends seconds frames"
)
NUMBERS = st.one_of(
    st.integers(0, 40),
    st.floats(0, 100),
    st.fractions(0, 100, max_denominator=1001).map(str),
    st.sampled_from(
        [" 2 ", "+.5", "1e3", "٣", "\u00a02", "1e16", "1/0", 1e-9, 1e16, 10**15 - 1, 10**16, (1 << 63) - 1]
    ),
)
NAMES = st.one_of(st.sampled_from(["start", "фолд", "a.b-c", ""]), st.text(max_size=3))
CELLS = st.one_of(st.integers(0, 3), NAMES, st.booleans(), st.none())
RANGES = st.fixed_dictionaries(
    {"start": NAMES}, optional={"end": NAMES, "unit": st.sampled_from(["frames", None]), "include_end": st.booleans()}
)
SPLITS = st.one_of(
    st.fixed_dictionaries({"column": NAMES}, optional={"names": st.dictionaries(CELLS, CELLS, max_size=2)}),
    st.fixed_dictionaries({"shares": st.dictionaries(CELLS, NUMBERS, max_size=2)}, optional={"by": NAMES}),
)
SEGMENTS = st.fixed_dictionaries({"fps": NUMBERS, "frames": st.integers(0, 3)}, optional={"offset": NUMBERS})
VALUES = (
    *(NUMBERS, st.sampled_from(WORDS.split()), NAMES, st.sampled_from([True, False, None, "width > 3"])),
    *(RANGES, SPLITS, st.lists(NUMBERS, max_size=3), st.lists(SEGMENTS, max_size=2)),
)
BASES = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in CONFIGS]
KEYS = [(base, key) for base in BASES for key in names(reading.POLICIES[base["policy"]])]


@pytest.mark.parametrize("kind", range(len(VALUES)))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_schema_refuses_nothing_that_framedex_takes(kind: int, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind])
    for base, key in KEYS:
        document = base | {key: value}
        assert not taken(document) or valid(document)  # the schema takes longer


def test_most_keys_may_be_empty() -> None:
    empty = [(base["policy"], key) for base, key in KEYS if taken(base | {key: None})]
    assert len(empty) > 200
    assert all(valid(base | {key: None}) for base, key in KEYS if (base["policy"], key) in empty)


@pytest.mark.parametrize("name", reading.POLICIES)
def test_the_schema_has_every_key_and_the_page_says_what_it_means(name: str) -> None:
    described = reading.policy_schema()["$defs"][reading.POLICIES[name].__name__]["properties"]
    assert described.keys() == {"policy", *names(reading.POLICIES[name])}
    for key in names(reading.POLICIES[name]):
        assert f"`{key}`" in PAGE
