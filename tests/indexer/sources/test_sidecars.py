"""Sidecars of a webdataset sample become the user's columns, and what is wrong with them is said."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from framedex.indexer.sources.named_medium import (
    SIDECARS,
    sample_parts,
    sidecar_column,
    sidecar_columns,
    sidecar_text,
    sidecars_of,
)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a/b.mp4", ("a/b", "mp4")),
        ("a.dir/b.Left.MP4", ("a.dir/b", "left.mp4")),
        ("b.mp4", ("b", "mp4")),
        ("b", None),
        ("a/.b.mp4", None),
        ("line\nbreak.json", ("line\nbreak", "json")),
    ],
)
def test_a_sample_is_named_up_to_the_first_dot(name: str, parts: tuple[str, str] | None) -> None:
    assert sample_parts(name) == parts


def test_sidecars_become_columns_of_plain_values() -> None:
    content = json.dumps({"caption": "a dog", "tags": ["x"], "uri": "https://x", "label": 3, "txt": "y"}).encode()
    text, problem = sidecar_text(SIDECARS, "a/b", {"json": content, "txt": b"text\n", "cls": b" 7\n"})
    assert problem is None
    assert sidecar_columns(text, SIDECARS, ["uri", "label"]) == {
        "txt": "text\n",
        "cls": 7,
        "__key__": "a/b",
        "caption": "a dog",
        "tags": '["x"]',
        "json.uri": "https://x",
        "json.label": 3,
        "json.txt": "y",
    }
    assert sidecar_columns(text, ["cls"], []) == {"cls": 7}


def test_a_json_that_is_no_object_is_one_column() -> None:
    text, _ = sidecar_text(["json"], "k", {"json": b"[1, 2]"})
    assert sidecar_columns(text, SIDECARS, []) == {"json": "[1, 2]"}


def test_kinds_that_a_sample_lacks_are_known_to_be_missing() -> None:
    text, problem = sidecar_text(["json", "txt"], "k", {})
    assert (json.loads(text), problem) == ({"json": None, "txt": None}, None)
    assert sidecar_columns(text, SIDECARS, []) == {}


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("json", b"{'a': 1}", "k.json is not JSON"),
        ("json", b"", "k.json is not JSON"),
        ("json", b"[" * 99 + b"]" * 99, "nested more than 32 levels"),
        ("json", b"\xff", "is not valid UTF-8"),
        ("txt", b"\xff", "k.txt is not valid UTF-8"),
        ("cls", b"dog", "is not a whole number: 'dog'"),
    ],
)
def test_what_is_wrong_with_a_sidecar_is_said_and_costs_only_its_column(kind: str, content: bytes, said: str) -> None:
    good = {"cls": b"1"} if kind != "cls" else {"txt": b"text"}
    text, problem = sidecar_text(SIDECARS, "k", {kind: content} | good)
    assert problem is not None
    assert said in problem
    assert set(sidecar_columns(text, SIDECARS, [])) == {"__key__", *good}


def test_values_of_several_types_become_texts() -> None:
    assert sidecar_column([1, None, 2.5]).to_pylist() == [1.0, None, 2.5]
    assert sidecar_column([1, "a", None, True]).to_pylist() == ["1", "a", None, "true"]
    assert sidecar_column([1 << 70]).type == pa.string()


def test_unknown_kinds_are_refused() -> None:
    assert sidecars_of(["cls", "json"]) == ("json", "cls")
    with pytest.raises(ValueError, match="'yaml'; allowed are json, txt, cls, __key__"):
        sidecars_of(["json", "yaml"])
