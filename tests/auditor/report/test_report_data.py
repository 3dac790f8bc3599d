"""The data of a report's charts and table: it is complete, or the report states what the size limit left out."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from framedex.auditor.report import histograms, media_table
from tests.support.audit_reports import ROWS, rename_media, written

MAX_BYTES = 1_000_000  # of a report without pictures
COUNTED = histograms.Counted(name="n", title="N", form="numbers", axis="units", of="media", sql="")
NUMBERS = arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1e9) | st.integers(0, 50).map(float))


@given(NUMBERS)
def test_every_number_is_in_one_bar(values: np.ndarray) -> None:
    found = histograms.of_numbers(COUNTED, values)
    values = histograms.round_values(values)
    assert sum(bar.count for bar in found.bars) + found.zeros == len(values) == found.total
    assert len(found.bars) < 60
    for bar in found.bars:
        if bar.low is not None and bar.high is not None:
            assert bar.count == int(
                ((values >= bar.low) & (values < bar.high) & ((values > 0) | (not found.logarithmic))).sum()
            )


def test_an_axis_is_logarithmic_where_numbers_span_more_than_two_decades() -> None:
    assert histograms.of_numbers(COUNTED, np.array([1.0, 50, 101])).logarithmic
    assert not histograms.of_numbers(COUNTED, np.array([1.0, 50, 100])).logarithmic
    with_zero = histograms.of_numbers(COUNTED, np.array([0.0, 0, 1, 1000]))
    assert (with_zero.logarithmic, with_zero.zeros) == (True, 2)


def test_many_names_share_a_last_bar() -> None:
    found = histograms.of_names(COUNTED, [f"label {n}" for n in range(40)], list(range(40, 0, -1)))
    assert (len(found.bars), found.others, found.other_count) == (12, 28, sum(range(1, 29)))


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), max_size=30), st.booleans())
def test_texts_come_out_of_the_script_as_they_went_in(texts: list[str], ascending: bool) -> None:
    values: list[str | None] = sorted(texts) if ascending else list(texts)
    column = media_table.Column(key="name", title="Name", form="text", values=[value or None for value in values])
    script = media_table.as_script(media_table.MediaTable(of="media", total=len(texts), columns=[column]))
    assert not set(script) & set("<>&\u2028\u2029")
    assert _decoded(json.loads(script)["columns"][0]) == column.values


def _decoded(column: dict[str, Any]) -> list[str | None]:
    """Return the texts of a column, decoded as page.js decodes them."""
    if "values" in column:
        return list(column["values"])
    if "words" in column:
        return [None if number < 0 else column["words"][number] for number in column["numbers"]]
    found, before = [], ""
    for same, rest in zip(column["same"], column["rest"], strict=True):
        before = before[:same] + rest
        found.append(before or None)
    return found


def test_ten_thousand_rows_stay_within_a_megabyte(many: Path, tmp_path: Path) -> None:
    page, facts = written(many, tmp_path / "r.html", "--no-pictures")
    assert (tmp_path / "r.html").stat().st_size < MAX_BYTES
    assert facts["table"] == {"of": "media", "shown": ROWS, "total": ROWS}
    assert len(page.all("tr")) < 1000, "the page draws the rest when it is opened"


def test_rows_for_which_there_is_no_room_are_left_out_and_it_says_so(many: Path, tmp_path: Path) -> None:
    shutil.copytree(many, tmp_path / "INDEX")
    rename_media(tmp_path / "INDEX", lambda n: hashlib.shake_256(str(n).encode()).hexdigest(90) + ".mp4")
    page, facts = written(tmp_path / "INDEX", tmp_path / "r.html", "--no-pictures")
    assert MAX_BYTES * 0.9 < (tmp_path / "r.html").stat().st_size <= MAX_BYTES
    shown = facts["table"]["shown"]
    assert 3000 < shown < ROWS
    assert f"{shown:,} of 10,000 media, those with findings first" in page.all("main")[0].text
