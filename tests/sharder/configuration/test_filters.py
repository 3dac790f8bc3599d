"""Filters select the rows that Python would, and every other expression is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.errors import PolicyError
from framedex.sharder.configuration.filters import matches, parse_filter

TABLE = pa.table(
    {
        "width": pa.array([320, 640, None, 1920], pa.int32()),
        "rate": pa.array([24.0, None, 29.97, 60.0]),
        "label": ["cat", "dog", None, "bird"],
        "is_vfr": [True, False, None, False],
        "kind of": pa.array(["a", "b", "a", "b"]).dictionary_encode(),
        "class": ["x", "y", "x", "y"],
    }
)


def rows(text: str) -> list[int]:
    return matches(TABLE, parse_filter(text), "test").nonzero()[0].tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("width >= 640", [1, 3]),
        ("width >= 640 and label in ['cat', 'dog']", [1]),
        ("width >= 640 and label in ['cat', \"dog\"] and not is_vfr", [1]),
        ("width < 640 or label == 'bird'", [0, 3]),
        ("320 < width <= 640", [1]),
        ("label is None", [2]),
        ("label is not None", [0, 1, 3]),
        ("label != 'cat'", [1, 3]),
        ("label not in ('cat',)", [1, 3]),
        ("not label == 'cat'", [1, 3]),
        ("not (label in {'cat', 'dog'})", [3]),
        ("is_vfr", [0]),
        ("not is_vfr", [1, 3]),
        ("is_vfr == False or label is None", [1, 2, 3]),
        ("column('kind of') == 'a' and column(\"class\") == 'x'", [0, 2]),
        ("column('kind of') in ['a']", [0, 2]),
        ("width in [640, 320]", [0, 1]),
        ("width in [640.0]", [1]),
        ("rate in [24, 60]", [0, 3]),
        ("width * 2 - 1 == 639", [0]),
        ("width / 3 > 106.6", [0, 1, 3]),
        ("rate * width > 7000 and -width < -5", [0, 3]),
        ("width == -(-640)", [1]),
        ("True", [0, 1, 2, 3]),
        ("False or width == 320", [0]),
        ("label == '\\d' or width > 1", [0, 1, 3]),
        ("  width\n  >= 640 ", [1, 3]),
    ],
)
def test_a_filter_says_of_rows_what_python_would(text: str, expected: list[int]) -> None:
    assert rows(text) == expected


@given(st.lists(st.sampled_from(["width > 500", "label == 'cat'", "is_vfr", "rate < 50"]), min_size=1, max_size=200))
def test_long_filters_are_as_true_as_their_parts(parts: list[str]) -> None:
    assert rows(" and ".join(parts)) == sorted(set.intersection(*(set(rows(part)) for part in set(parts))))
    assert rows(" or ".join(parts)) == sorted(set.union(*(set(rows(part)) for part in set(parts))))


@pytest.mark.parametrize(
    ("text", "character"),
    [
        ("__import__('os').system('true')", 1),
        ("width.real > 1", 1),
        ("width > max(1, 2)", 9),
        ("width > column(label)", 9),
        ("width > column('a', 'b')", 9),
        ("[x for x in width]", 1),
        ("lambda: 1", 1),
        ("width if is_vfr else rate", 1),
        ("width[0] == 1", 1),
        ("f'{width}' == '1'", 1),
        ("width > 1j", 9),
        ("label == b'cat'", 10),
        ("width ** 2 > 1", 1),
        ("width // 2 > 1", 1),
        ("width", None),
        ("width and is_vfr", None),
        ("5", 1),
        ("label == None", 10),
        ("label is 'cat'", 10),
        ("label in 'cat'", 10),
        ("label in []", 10),
        ("label in ['cat', None]", 18),
        ("label in ['cat', 1]", 10),
        ("label in [label]", 11),
        ("ü == 'ü' and width > 1j", 22),
        ("width > 99999999999999999999", 9),
        ("label == '\\ud800'", 10),
        ("width >", 8),
        ("class == 'x'", 1),
        ("", 1),
        ("width > 1; label", 10),
        ("(x := 1) > 0", 2),
        ("not " * 100 + "is_vfr", None),
        ("-" * 3000 + "width > 1", None),
        ("(" * 3000, None),
        ("is_vfr and " * 5000 + "is_vfr", None),
        ("width > 1\0", None),
    ],
)
def test_whatever_else_is_refused_with_its_place(text: str, character: int | None) -> None:
    with pytest.raises(PolicyError) as refused:
        rows(text)
    if character is not None:
        assert refused.value.where == f"filter, character {character}"


WORDS = ["width", "is", "not", "None", "in", "[", "]", "(", ")", ",", "'a'", "1", "-", "+", "and", "or", "==", "column"]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        answers = len(matches(TABLE, parse_filter(text), "test"))
    except PolicyError:
        answers = len(TABLE)  # refused, so there are no answers to count
    assert answers == len(TABLE)


def test_an_unknown_column_is_named_with_the_closest_one() -> None:
    with pytest.raises(PolicyError, match="did you mean 'width'") as refused:
        rows("label == 'a' and widht > 3")
    assert (refused.value.found, refused.value.where) == ("'widht'", "test")


@pytest.mark.parametrize("text", ["label > 3", "width == 'a'", "not width", "label * 2 > 1", "width in ['a']"])
def test_types_that_do_not_go_together_are_an_error(text: str) -> None:
    with pytest.raises(PolicyError, match="test: "):
        rows(text)


def test_a_table_of_no_rows_or_of_many_chunks_is_filtered_alike() -> None:
    expression = parse_filter("width >= 640")
    assert matches(TABLE.slice(0, 0), expression, "test").tolist() == []
    table: Any = pa.concat_tables([TABLE] * 3)
    assert matches(table, expression, "test").tolist() == [False, True, False, True] * 3
