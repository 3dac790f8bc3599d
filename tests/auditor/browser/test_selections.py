"""Filters, findings and queries of the browser show the clips that the same SQL selects, page by page."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framedex import audit, query
from framedex.auditor.browser.selections import OPERATIONS, Filter
from framedex.errors import FramedexError
from tests.auditor.test_audit_sql import ODD, READING_ELSEWHERE, SHOWN_IN_CELLS, WRITING
from tests.support.datasets import content
from tests.support.served import Client, served

PAGE, ROWS, ANSWER_BYTES = 24, 1000, 16_000_000  # what one answer has at most


@pytest.fixture(scope="module")
def client(synthetic: Path) -> Iterator[Client]:
    with served(synthetic / "DS") as found:
        yield found


@pytest.fixture(scope="module")
def index_client(synthetic: Path) -> Iterator[Client]:
    with served(synthetic / "INDEX") as found:
        yield found


def all_keys(client: Client, **wanted: object) -> list[str]:
    total = client.post("items", {"wanted": wanted, "page": 0}).json()["total"]
    found = [key for page in range(-(-total // PAGE)) for key in client.keys(page, **wanted)]
    assert len(found) == total
    return found


def clips(synthetic: Path, rest: str) -> list[str]:
    return [str(clip) for clip in query(synthetic / "DS", f"SELECT clip FROM clips {rest}")["clip"].to_pylist()]


def test_pages_together_are_all_clips(client: Client, synthetic: Path) -> None:
    every = all_keys(client)
    assert every == clips(synthetic, "ORDER BY clip")
    assert len(every) > 3 * PAGE
    assert client.keys(10_000) == []


@pytest.mark.parametrize(
    ("column", "operation", "value", "condition"),
    [
        ("label", "=", "cook", "label = 'cook'"),
        ("label", "≠", "cook", "label IS DISTINCT FROM 'cook'"),
        ("label", "contains", "OO", "label LIKE '%oo%'"),
        ("label", "=", "' OR true --", "false"),
        ("split", "is empty", "", "split IS NULL"),
        ("split", "is not empty", "", "split IS NOT NULL"),
        ("wanted_frames", "=", "8", "wanted_frames = 8"),
        ("wanted_frames", "=", "8.0", "wanted_frames = 8"),
        ("begin_seconds", ">", "4.5", "begin_seconds > 4.5"),
        ("begin_seconds", "≤", "4.5", "begin_seconds <= 4.5"),
        ("codec", "≥", "hevc", "codec >= 'hevc'"),
        ("codec", "<", "hevc", "codec < 'hevc'"),
        ("damaged", "=", "false", "NOT damaged"),
    ],
)
def test_a_filter_selects_what_its_condition_does(
    column: str, operation: str, value: str, condition: str, client: Client, synthetic: Path
) -> None:
    filters = [{"column": column, "operation": operation, "value": value}]
    assert all_keys(client, filters=filters) == clips(synthetic, f"WHERE {condition} ORDER BY clip")


def test_filters_hold_together_and_sort(client: Client, synthetic: Path) -> None:
    filters = [
        {"column": "label", "operation": "=", "value": "juggle"},
        {"column": "codec", "operation": "≠", "value": "h264"},
    ]
    found = all_keys(client, filters=filters, sort="bytes_read", descending=True)
    rest = "WHERE label = 'juggle' AND codec <> 'h264' ORDER BY bytes_read DESC, clip"
    assert found == clips(synthetic, rest)
    assert len(found) > 5


def test_columns_offer_their_values(client: Client, synthetic: Path) -> None:
    answer = client.get("values", column="label").json()
    counts = {one["value"]: one["count"] for one in answer["values"]}
    rows = query(synthetic / "DS", "SELECT label, count(*) AS n FROM clips GROUP BY label").to_pylist()
    assert counts == {row["label"]: row["n"] for row in rows}
    assert not answer["more"]
    assert b"no such column" in client.get("values", column="nothing").content


def test_every_operation_is_for_every_type_or_explains_itself() -> None:
    types = ("VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "INTEGER[]", "STRUCT(a INTEGER)", "TIMESTAMP", "BLOB")
    made, refused = 0, set()
    for operation in OPERATIONS:
        for type_ in types:
            try:
                Filter(column="x", operation=operation, value="1").condition({"x": type_})
                made += 1
            except FramedexError:
                refused.add((operation, type_))
    assert made + len(refused) == len(types) * len(OPERATIONS)
    ordered = ("<", "≤", ">", "≥")
    nested = ("INTEGER[]", "STRUCT(a INTEGER)", "BLOB")
    assert refused == {(operation, type_) for operation in ordered for type_ in nested}


def findings(client: Client) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 60
    while (told := client.get("findings").json())["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert told["state"] == "done", told["message"]
    return list(told["findings"])


def test_a_finding_shows_its_rows_and_its_clips(client: Client, synthetic: Path) -> None:
    found = {finding["name"]: finding for finding in findings(client)}
    checks = {finding.check.name: finding.check for finding in audit(synthetic / "DS").findings}
    assert len(found) >= 2
    for name, finding in found.items():
        rows = client.post("rows", {"wanted": {"finding": name}, "page": 0}).json()
        assert len(rows["rows"]) == min(finding["count"], rows["each"])
        expected = query(synthetic / "DS", checks[name].sql)
        if finding["names_items"] and "clip_id" in expected.column_names:
            ids = {str(value) for value in expected["clip_id"].to_pylist()}
            known = query(synthetic / "DS", "SELECT clip, clip_id FROM clips").to_pylist()
            assert set(all_keys(client, finding=name)) == {str(row["clip"]) for row in known if row["clip_id"] in ids}


def test_a_finding_of_an_index_shows_its_media(index_client: Client, synthetic: Path) -> None:
    names = [finding["name"] for finding in findings(index_client)]
    assert "failed" in names
    failed = query(synthetic / "INDEX", "SELECT media_id FROM videos WHERE status = 'failed' ORDER BY uri")
    assert all_keys(index_client, finding="failed") == failed["media_id"].to_pylist()
    assert len(failed) > 0


@pytest.mark.parametrize(
    ("sql", "rest"),
    [
        (
            "SELECT clip FROM clips WHERE padded_frames > 0 ORDER BY clip DESC;",
            "WHERE padded_frames > 0 ORDER BY clip DESC",
        ),
        ("SELECT clip_id AS CLIP_ID FROM clips ORDER BY bytes_read, clip -- end", "ORDER BY bytes_read, clip"),
        ("FROM clips SELECT media_id LIMIT 0", "WHERE false"),
    ],
)
def test_a_query_selects_clips_in_its_own_order(sql: str, rest: str, client: Client, synthetic: Path) -> None:
    assert all_keys(client, sql=sql) == clips(synthetic, rest)


def test_a_query_and_filters_hold_together(client: Client, synthetic: Path) -> None:
    filters = [{"column": "label", "operation": "=", "value": "dance"}]
    found = all_keys(client, sql="SELECT clip FROM clips WHERE codec = 'h264'", filters=filters)
    assert found == clips(synthetic, "WHERE codec = 'h264' AND label = 'dance' ORDER BY clip")


def test_rows_that_name_no_clip_are_explained(client: Client) -> None:
    answer = client.post("items", {"wanted": {"sql": "SELECT 1 AS one"}, "page": 0})
    assert answer.status == 422
    assert b"do not identify clips" in answer.content


def test_the_answer_to_a_query_is_a_table(client: Client) -> None:
    values = "1152921504606846976 AS big, NULL AS none, [1, NULL] AS list, 'ab'::BLOB AS bytes, 1.5::DECIMAL(4,1) AS d"
    sql = f"SELECT 'a\x1bb' AS \"x\u202e\", {values}"
    answer = client.post("sql", {"sql": sql}).json()
    assert answer["columns"][0] == "x\\u202e"
    assert answer["rows"] == [["a\\x1bb", str(1 << 60), None, "[1,null]", "6162", 1.5]]
    assert not answer["names_items"]
    many = client.post("sql", {"sql": f"FROM range({ROWS + 5})"}).json()
    assert (len(many["rows"]), many["more"]) == (ROWS, True)


def test_every_type_is_shown(client: Client) -> None:
    answer = client.post("sql", {"sql": f"{ODD}, 9007199254740993::DECIMAL(38, 1) AS j"}).json()
    assert answer["rows"] == [[*SHOWN_IN_CELLS.values(), "9007199254740993.0"]]
    assert len(client.post("sql", {"sql": "FROM test_all_types()"}).json()["rows"]) == 3


def test_numbers_that_are_not_finite_are_told_from_nothing(client: Client) -> None:
    numbers = (
        "'nan'::DOUBLE AS a, 'inf'::FLOAT AS b, '-inf'::DOUBLE AS c, NULL::DOUBLE AS d, ['nan'::DOUBLE, NULL] AS e"
    )
    answer = client.post("sql", {"sql": f"SELECT {numbers}"}).json()
    assert answer["rows"] == [["NaN", "inf", "-inf", None, "[NaN,null]"]]


def test_an_explanation_has_lines_and_other_texts_have_none(client: Client) -> None:
    ((_, plan),) = client.post("sql", {"sql": "EXPLAIN SELECT 1"}).json()["rows"]
    assert len(plan.splitlines()) > 3
    assert client.post("sql", {"sql": "SELECT 'a\nb' AS a"}).json()["rows"] == [["a\\nb"]]


def test_a_large_answer_is_cut_or_refused(client: Client) -> None:
    cut = client.post("sql", {"sql": "SELECT i, repeat('x', 1000000) AS x FROM range(100) AS a(i)"}).json()
    assert (len(cut["rows"]), cut["more"]) == (ANSWER_BYTES // 1_000_100, True)
    assert "cut off after 16 MB" in cut["cut"]
    whole = client.post("sql", {"sql": "SELECT 1 AS one"}).json()
    assert (whole["more"], whole["cut"]) == (False, None)
    refused = client.post("sql", {"sql": "SELECT 1 AS a, repeat('x', 100000000) AS b"})
    assert refused.status == 422
    assert b"100 MB, most of it in the column b" in refused.content
    flags = "SELECT list_transform(range(20000000 + i), lambda x: x > 3) FROM range(1) AS a(i)"
    assert b"too large to show" in client.post("sql", {"sql": flags}).content


@pytest.mark.parametrize("sql", WRITING + READING_ELSEWHERE)
@pytest.mark.parametrize("resource", ["sql", "items"])
def test_a_query_reads_the_views_and_does_nothing_else(
    resource: str, sql: str, index_client: Client, synthetic: Path
) -> None:
    before = content(synthetic)
    text = sql.format(there=synthetic / "INDEX")
    body = {"sql": text} if resource == "sql" else {"wanted": {"sql": text}, "page": 0}
    assert index_client.post(resource, body).status == 422
    assert content(synthetic) == before


def test_a_query_that_takes_too_much_memory_leaves_the_others_alone(synthetic: Path) -> None:
    with served(synthetic / "DS", memory_bytes=1 << 29) as client:
        answer = client.post("sql", {"sql": "SELECT sum(length(repeat(left(clip_id, 1), 100000000))) AS n FROM clips"})
        assert (answer.status, b"exceeds its memory limit" in answer.content) == (422, True)
        assert client.post("sql", {"sql": "SELECT 1 AS one"}).json()["rows"] == [[1]]


def test_a_query_can_be_stopped(client: Client) -> None:
    answers = []
    endless = "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range + b.range < 0"
    running = threading.Thread(target=lambda: answers.append(client.post("sql", {"sql": endless})))
    running.start()
    deadline = time.monotonic() + 60
    while running.is_alive() and time.monotonic() < deadline:
        client.post("stop", {})
        time.sleep(0.1)
    running.join(timeout=1)
    assert [json.dumps(answer.content.decode()) for answer in answers] == ['"stopped"']
    assert client.post("sql", {"sql": "SELECT 1 AS one"}).json()["rows"] == [[1]]
