"""Splits by a column or by hash: only a row's own value decides which split it belongs to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.errors import PolicyError
from framedex.sharder.configuration.listing_rows import Split
from framedex.sharder.configuration.parameters import record

VALUES = st.lists(st.text(max_size=8), min_size=1, max_size=40)


def assign(content: dict[str, Any], **columns: Any) -> list[str]:
    assigned = record(Split, content, "test").assign(pa.table(columns))
    assert assigned.type == pa.string()
    return assigned.to_pylist()


SHARES = {"shares": {"train": 8, "val": 1, "test": "1/2"}}


@given(VALUES, st.randoms())
def test_a_hash_split_is_stable_under_order_and_other_rows(values: list[str], random: Any) -> None:
    found = dict(zip(values, assign(SHARES, media_id=values), strict=True))
    others = [*values, *values, "another", "one more"]
    random.shuffle(others)
    again = assign(SHARES, media_id=others)
    assert all(found.get(value, split) == split for value, split in zip(others, again, strict=True))


def test_rows_that_agree_go_together() -> None:
    people = [f"person {number % 50}" for number in range(500)]
    splits = assign(SHARES | {"by": "person"}, person=people, media_id=[str(number) for number in range(500)])
    assert len(set(zip(people, splits, strict=True))) == 50
    assert len(set(splits)) > 1


def test_shares_are_kept_within_chance() -> None:
    counts = Counter(assign({"shares": {"train": 8, "val": 1, "test": 1, "none": 0}}, media_id=list(range(20_000))))
    assert counts.keys() == {"train", "val", "test"}
    assert abs(counts["train"] - 16_000) < 300
    assert abs(counts["val"] - 2_000) < 200


def test_a_seed_gives_another_split_and_a_split_is_the_same_for_ever() -> None:
    """Compare with recorded values, because no later version may move a video from training to test."""
    even = {"a": 1, "b": 1}
    ids = [f"{number:016x}" for number in range(12)]
    assert "".join(assign({"shares": even}, media_id=ids)) == "abbaaababaaa"
    assert "".join(assign({"shares": even, "seed": 1}, media_id=ids)) == "bbbabaabaaaa"


def test_a_growing_share_takes_nothing_from_the_first() -> None:
    ids = list(range(1000))
    small, large = (assign({"shares": {"train": train, "test": 10 - train}}, media_id=ids) for train in (7, 8))
    assert all(after == "train" for before, after in zip(small, large, strict=True) if before == "train")


@pytest.mark.parametrize(
    "values", [[0, 1, 0], [0.0, 1.0, 0.0], ["0", "1", "0"], pa.array(["0", "1", "0"]).dictionary_encode()]
)
def test_a_column_is_read_alike_however_its_numbers_are_stored(values: Any) -> None:
    assert assign({"column": "fold", "names": {0: "train", "1": "val"}}, fold=values) == ["train", "val", "train"]
    assert assign(SHARES | {"by": "fold"}, fold=values) == assign(SHARES | {"by": "fold"}, fold=[0, 1, 0])


def test_a_columns_own_values_are_names() -> None:
    assert assign({"column": "set"}, set=["train", "test"]) == ["train", "test"]
    assert assign({"column": "set"}, set=pa.chunked_array([["train"], ["test"], []], pa.string())) == ["train", "test"]


@pytest.mark.parametrize(
    ("content", "columns", "says"),
    [
        ({"column": "fodl"}, {"fold": ["a"]}, "did you mean 'fold'"),
        ({"column": "fold"}, {"fold": ["a", None]}, "filter: fold is not None"),
        ({"column": "fold"}, {"fold": ["a/b"]}, "letters, digits"),
        ({"column": "fold"}, {"fold": [[1]]}, "cannot be split by a column"),
        ({"column": "fold", "names": {0: "train"}}, {"fold": [0, 2]}, "found:   2"),
        ({"column": "fold", "names": {0: "train"}}, {"fold": [float("nan")]}, "names lacks a value"),
        ({"shares": {"train": 1}}, {"fold": [0]}, "no such column"),
    ],
)
def test_a_row_without_a_split_is_an_error(content: dict[str, Any], columns: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError) as refused:
        assign(content, **columns)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("train", "mapping"),
        ({}, "either column or shares"),
        ({"column": "a", "shares": {"b": 1}}, "either column or shares"),
        ({"shares": {"b": 1}, "names": {0: "b"}}, "names requires column"),
        ({"shares": {}}, "train: 8"),
        ({"shares": {"a": 0}}, "above zero"),
        ({"shares": {"a": -1}}, "not be negative"),
        ({"shares": {"a b": 1}}, "letters, digits"),
        ({"shares": {1: 1, "1": 2}}, "has two shares"),
        ({"column": "a", "names": {0: "x", "0": "y"}}, "given only once"),
        ({"column": "a", "names": {None: "x"}}, "number from the column"),
        ({"column": ""}, "name of a column"),
        ({"shares": {"a": 1}, "keep": "D"}, "keep requires stratify"),
        ({"shares": {"a": 1}, "stratify": "b", "keep": 5}, "name of a folder"),
        ({"shares": {"a": 1}, "sead": 1}, "did you mean 'seed'"),
    ],
)
def test_a_wrong_split_is_refused(content: object, says: str) -> None:
    with pytest.raises(PolicyError, match="test") as refused:
        record(Split, content, "test")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        SHARES,
        SHARES | {"by": "a", "seed": 4},
        SHARES | {"stratify": "a", "keep": "D"},
        {"column": "a"},
        {"column": "a", "names": {0: "x", "b": "y"}},
    ],
)
def test_a_split_reads_back_equal(content: dict[str, Any]) -> None:
    split = record(Split, content, "test")
    assert record(Split, split.plain(), "test") == split


STRATIFIED = {"shares": {"train": 8, "val": 1, "test": 1}, "by": "person", "stratify": "label"}


def stratified(content: dict[str, Any], known: dict[str, str] | None = None, **columns: Any) -> list[str]:
    """Assign rows that are dealt in two tables, beside groups with a known split."""
    split, table = record(Split, content, "test"), pa.table(columns)
    half = len(table) // 2
    dealt = split.deal(split.stratify or "", [table.slice(0, half), table.slice(half)], known or {})
    assigned: list[str] = split.assign(table, dealt).to_pylist()
    return assigned


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.randoms())
def test_each_label_meets_the_shares_to_one_group(sizes: list[int], random: Any) -> None:
    rows = [(f"l{label}", f"p{label}-{person}") for label, people in enumerate(sizes) for person in range(people)] * 2
    random.shuffle(rows)
    found = stratified(STRATIFIED, label=[label for label, _ in rows], person=[person for _, person in rows])
    groups = dict(zip([person for _, person in rows], found, strict=True))
    assert len(set(zip([person for _, person in rows], found, strict=True))) == sum(sizes)
    for label, people in enumerate(sizes):
        counts = Counter(groups[f"p{label}-{person}"] for person in range(people))
        for name, share in STRATIFIED["shares"].items():  # type: ignore[attr-defined]
            assert abs(counts[name] - people * share / 10) <= 1


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4), st.integers(0, 9))
def test_groups_that_are_there_keep_their_split_and_new_ones_make_up_for_the_shares(
    sizes: list[tuple[int, int]], seed: int
) -> None:
    def rows(sizes: list[int]) -> dict[str, list[str]]:
        people = [(f"l{label}", f"p{label}-{one}") for label, most in enumerate(sizes) for one in range(most)]
        return {"label": [label for label, _ in people], "person": [person for _, person in people]}

    before, after = rows([old for old, _ in sizes]), rows([old + new for old, new in sizes])
    known = dict(zip(before["person"], stratified(STRATIFIED | {"seed": seed}, **before), strict=True))
    found = dict(zip(after["person"], stratified(STRATIFIED, known, **after), strict=True))
    assert {person: found[person] for person in known} == known
    for label, (old, new) in enumerate(sizes):
        counts = Counter(found[f"p{label}-{person}"] for person in range(old + new))
        for name, share in STRATIFIED["shares"].items():  # type: ignore[attr-defined]
            assert abs(counts[name] - (old + new) * share / 10) <= 2
    assert stratified(STRATIFIED, known, **before) == list(known.values())


def test_splits_with_more_than_their_share_get_nothing_more() -> None:
    people = [f"p{number}" for number in range(10)]
    known = dict.fromkeys(people[:4], "test")
    found = Counter(stratified(STRATIFIED, known, label=["a"] * 10, person=people))
    assert found == {"train": 5, "val": 1, "test": 4}


def test_a_stratified_split_does_not_depend_on_order_and_its_seed_deals_anew() -> None:
    labels, people = ["a", "b"] * 50, [f"p{number}" for number in range(100)]
    first = stratified(STRATIFIED, label=labels, person=people)
    again = stratified(STRATIFIED, label=labels[::-1], person=people[::-1])
    assert first == again[::-1]
    assert Counter(first) == {"train": 80, "val": 10, "test": 10}
    assert first != stratified(STRATIFIED | {"seed": 1}, label=labels, person=people)


def test_a_group_of_several_labels_is_named() -> None:
    with pytest.raises(PolicyError) as caught:
        stratified(STRATIFIED, label=["a", "b", "a"], person=["p", "q", "q"])
    assert "person 'q'" in str(caught.value)
    assert "label: 'b' and 'a'" in str(caught.value)


def test_stratify_needs_shares_and_a_column() -> None:
    with pytest.raises(PolicyError, match="stratify requires shares"):
        record(Split, {"column": "fold", "stratify": "label"}, "test")
    with pytest.raises(PolicyError, match="no such column"):
        stratified(STRATIFIED, label=["a"], persons=["p"])
    made = record(Split, STRATIFIED, "test")
    assert record(Split, made.plain(), "test") == made
