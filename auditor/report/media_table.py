"""The table of a report: one row per medium or clip, those with findings first. Its columns are compact JSON."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from framedex.auditor.findings import Audit
from framedex.auditor.tables.database import Database
from framedex.auditor.tables.subject import Kind, quoted
from framedex.html.document import safe

MAX_ROWS = 10_000
LONGEST_NAME = 300
DIGITS = 6
Form = Literal["text", "number"]
NOWHERE = "SELECT NULL::VARCHAR AS identity, 0 AS finding WHERE false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table.

    Attributes:
        key: The name of the column in filters.
        title: The title of the column.
        form: Whether the values are texts or numbers.
        values: One value per row.
        ratio: The two columns whose quotient it is. The page computes it. None: the values are stored.
        help: A description, if the title is short.
    """

    key: str
    title: str
    form: Form
    values: list[Any]
    ratio: tuple[str, str] | None = None
    help: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaTable:
    """The rows that a page may show.

    Attributes:
        of: What the rows are: `media` or `clips`.
        total: The number of all rows, including those that are not in the columns.
        columns: The columns.
    """

    of: str
    total: int
    columns: list[Column]

    def __len__(self) -> int:
        return len(self.columns[0].values)

    def first(self, rows: int) -> MediaTable:
        """Return the table with only its first rows."""
        columns = [replace(column, values=column.values[:rows]) for column in self.columns]
        return replace(self, columns=columns)


OWN_COLUMNS = ("split", "label")  # the user's columns that the table shows if they exist
TABLE_SQL: dict[Kind, str] = {
    "index": """
SELECT uri, member, CASE WHEN video_streams > 1 THEN stream_index END AS stream, codec, width, height,
    CASE WHEN pts_source <> 'counted' THEN duration_seconds END AS seconds, frame_count, mean_gop, bit_rate / 1e6 AS \
megabits,
    status, numbers
FROM videos LEFT JOIN ({found}) ON identity = media_id
ORDER BY coalesce(numbers[1], {most}), -coalesce(len(numbers), 0), uri, media_id LIMIT {rows}""",
    "dataset": """
SELECT clip_id, uri, member, codec, begin_seconds, end_seconds - begin_seconds AS seconds, wanted_frames,
    padded_frames, decoded_packets / nullif(distinct_frames, 0) AS cost, bytes_read / 1e3 AS kilobytes, numbers{own}
FROM clips LEFT JOIN ({found}) ON identity = clip_id
ORDER BY coalesce(numbers[1], {most}), -coalesce(len(numbers), 0), clip LIMIT {rows}""",
}


def media_table(db: Database, found: Audit) -> MediaTable:
    """Return the rows of media or clips. Those with the most severe findings come first."""
    return _of_index(db, found) if db.audited.kind == "index" else _of_dataset(db, found)


def _of_index(db: Database, found: Audit) -> MediaTable:
    sql = TABLE_SQL["index"].format(found=_found_sql(found, "index"), most=len(found.findings), rows=MAX_ROWS)
    uri, member, stream, codec, width, height, seconds, frames, gop, megabits, status, numbers = _transposed(
        db, sql, 12
    )
    columns = [
        _text("name", "Name", [_named(*parts) for parts in zip(uri, member, stream, strict=True)]),
        _text("codec", "Codec", codec),
        _text("size", "Size", _sizes(width, height)),
        _number("seconds", "Seconds", seconds),
        _number("frames", "Frames", frames),
        Column(
            key="fps", title="Frames/s", form="number", values=_ratios(frames, seconds), ratio=("frames", "seconds")
        ),
        _number("gop", "GOP", gop, digits=4, help="mean distance of start points, in packets"),
        _number("mbit", "Mbit/s", megabits, digits=4),
        _text("status", "Status", status),
        _text("findings", "Findings", _names_of(found, numbers)),
    ]
    return MediaTable(of="media", total=_count(db, "videos"), columns=columns)


def _of_dataset(db: Database, found: Audit) -> MediaTable:
    own = [name for name in OWN_COLUMNS if name in db.columns("clips")]
    sql = TABLE_SQL["dataset"].format(
        found=_found_sql(found, "dataset"),
        most=len(found.findings),
        rows=MAX_ROWS,
        own="".join(f", {quoted(name)}" for name in own),
    )
    clip, uri, member, codec, begin, seconds, frames, padded, cost, kilobytes, numbers, *rest = _transposed(
        db, sql, 11 + len(own)
    )
    columns = [
        _text("clip", "Clip", clip),
        _text("name", "Name", [_named(*parts) for parts in zip(uri, member, [None] * len(uri), strict=True)]),
        _text("codec", "Codec", codec),
        _number("begin", "Begins", begin, help="its first frame, in seconds"),
        _number("seconds", "Seconds", seconds),
        _number("frames", "Frames", frames),
        _number("padded", "Padded", padded),
        _number("cost", "Cost", cost, digits=4, help="packets decoded for each frame that is wanted"),
        _number("kb", "kB", kilobytes, digits=4, help="read of the medium"),
        *[_text(name, name.capitalize(), _words(values)) for name, values in zip(own, rest, strict=True)],
        _text("findings", "Findings", _names_of(found, numbers)),
    ]
    return MediaTable(of="clips", total=_count(db, "clips"), columns=columns)


def _found_sql(found: Audit, kind: str) -> str:
    """Return a query of the numbers of the findings of each medium or clip, ascending."""
    parts = []
    for number, finding in enumerate(found.findings):
        names = finding.examples[0]
        if kind == "index" and "media_id" in names:
            parts.append(f"SELECT media_id AS identity, {number} AS finding FROM ({finding.check.sql})")
        elif kind == "dataset" and "clip_id" in names:
            parts.append(f"SELECT clip_id AS identity, {number} AS finding FROM ({finding.check.sql})")
        elif kind == "dataset" and "media_id" in names:
            parts.append(
                f"SELECT clip_id AS identity, {number} AS finding FROM clips WHERE media_id IN"
                f" (SELECT media_id FROM ({finding.check.sql}))"
            )
    union = "\nUNION ALL ".join(parts) or NOWHERE
    return f"SELECT identity, list(DISTINCT finding ORDER BY finding) AS numbers FROM ({union}) GROUP BY identity"


def _transposed(db: Database, sql: str, width: int) -> list[list[Any]]:
    rows = db.ask(sql).rows
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def _count(db: Database, view: str) -> int:
    ((count,),) = db.ask(f"SELECT count(*) FROM {view}").rows
    return int(count)


def title_of(uri: str, member: str | None) -> str:
    """Return the name of a medium as the report shows it."""
    return uri if member is None else f"{uri} › {member}"


def _named(uri: str, member: str | None, stream: int | None) -> str:
    name = title_of(uri, member)
    name = name if stream is None else f"{name} · stream {stream}"
    return name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]


def _sizes(widths: Sequence[int | None], heights: Sequence[int | None]) -> list[str | None]:
    return [None if width is None else f"{width}×{height}" for width, height in zip(widths, heights, strict=True)]


def _names_of(found: Audit, numbers: Sequence[list[int] | None]) -> list[str | None]:
    checks = [finding.check.name for finding in found.findings]
    return [", ".join(checks[number] for number in row) if row else None for row in numbers]


def _words(values: Sequence[object]) -> list[str | None]:
    return [None if value is None else str(value) for value in values]


def _text(key: str, title: str, values: Sequence[str | None]) -> Column:
    return Column(
        key=key,
        title=title,
        form="text",
        values=[None if value is None else safe(value[:LONGEST_NAME]) for value in values],
    )


def _number(
    key: str, title: str, values: Sequence[float | None], *, digits: int = DIGITS, help: str | None = None
) -> Column:
    return Column(key=key, title=title, form="number", values=[_short(value, digits) for value in values], help=help)


def _short(value: float | None, digits: int) -> float | int | None:
    """Return a number with this many digits, as an int if it is whole."""
    if value is None:
        return None
    kept = float(value) if isinstance(value, int) else float(f"{value:.{digits}g}")
    return int(kept) if kept.is_integer() else kept


def _ratios(above: Sequence[float | None], below: Sequence[float | None]) -> list[float | None]:
    return [
        None if not numerator or not denominator else _short(numerator / denominator, 5)
        for numerator, denominator in zip(above, below, strict=True)
    ]


def as_script(table: MediaTable) -> str:
    """Return the rows as JSON that may be in a script element: without `<`, `>`, `&` and line separators.

    A column has one of three forms: its `values`; `words` and for each row the number of its word (-1: none); or, for
    sorted texts, the length of the `same` beginning as in the previous row, and the `rest` after it.
    """
    columns = [
        {"key": column.key, "title": column.title, "form": column.form, "help": column.help} | _encoded(column)
        for column in table.columns
    ]
    text = _dumped({"rows": len(table), "total": table.total, "of": table.of, "columns": columns}).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _encoded(column: Column) -> dict[str, Any]:
    """Return a column in the shortest of its forms."""
    if column.ratio is not None:
        return {"ratio": column.ratio}
    forms: list[Callable[[list[Any]], dict[str, Any]]] = [_plain, _by_words]
    if column.form == "text":
        forms.append(_front_coded)
    return min((form(column.values) for form in forms), key=lambda form: len(_dumped(form)))


def _plain(values: list[Any]) -> dict[str, Any]:
    return {"values": values}


def _by_words(values: list[Any]) -> dict[str, Any]:
    words = {word: number for number, word in enumerate(dict.fromkeys(value for value in values if value is not None))}
    return {"words": list(words), "numbers": [-1 if value is None else words[value] for value in values]}


def _front_coded(values: list[str | None]) -> dict[str, Any]:
    texts = ["" if value is None else value for value in values]
    same = [_common(*pair) for pair in itertools.pairwise(["", *texts])]
    # Browsers count UTF-16 units, Python characters: they agree below U+10000.
    same = [0 if max(text[:count], default="") > "\uffff" else count for text, count in zip(texts, same, strict=True)]
    return {"same": same, "rest": [text[count:] for text, count in zip(texts, same, strict=True)]}


def _common(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    differing = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def _dumped(value: object) -> bytes:
    return orjson.dumps(value)
