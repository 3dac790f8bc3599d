"""The table of all media or clips in a report, which the page contains as compact JSON."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from framedex.auditor.findings import Audit
from framedex.auditor.tables.database import Database
from framedex.auditor.tables.subject import Kind, quoted
from framedex.html.document import safe

MAX_ROWS = 10_000  # maximum number of rows, so that a web browser can filter them while the user types
LONGEST_NAME = 300  # maximum number of characters of a text
DIGITS = 6  # default number of significant digits of numbers, to keep the page small
Form = Literal["text", "number"]
Values = Mapping[str, Sequence[Any]]  # the result of the query, as values by column
# The state of a medium in the words of the summary: files without a video stream are not counted as refused.
STATE = "CASE WHEN status = 'refused' AND error_kind = 'no_video' THEN 'without video' ELSE status END"
NOWHERE = "SELECT NULL::VARCHAR AS identity, 0 AS finding WHERE false"  # a query without rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table.

    Attributes:
        key: The name of the column in filters.
        title: The title of the column.
        form: Whether the values are texts or numbers.
        values: The value of each row.
        ratio: The keys of two columns whose quotient is this column. The page then computes the values. None for other
            columns.
        help: A description of the column. None if the title suffices.
    """

    key: str
    title: str
    form: Form
    values: list[Any]
    ratio: tuple[str, str] | None = None
    help: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaTable:
    """The table of media or clips.

    Attributes:
        of: The kind of the rows, `media` or `clips`.
        total: The number of all media or clips, including those that the table leaves out.
        columns: The columns.
    """

    of: str
    total: int
    columns: list[Column]

    def __len__(self) -> int:
        return len(self.columns[0].values)

    def first(self, rows: int) -> MediaTable:
        """Return a table with only the first `rows` rows."""
        return replace(self, columns=[replace(column, values=column.values[:rows]) for column in self.columns])


OWN_COLUMNS = ("split", "label")  # the user's columns that the table shows if they exist
TABLE_SQL: dict[Kind, str] = {
    "index": f"""
SELECT uri, member, CASE WHEN video_streams > 1 THEN stream_index END AS stream, codec, width, height,
    CASE WHEN pts_source <> 'counted' THEN duration_seconds END AS seconds, frame_count, mean_gop, bit_rate / 1e6 AS \
megabits,
    {STATE} AS status, numbers
FROM videos LEFT JOIN ({{found}}) ON identity = media_id
ORDER BY coalesce(numbers[1], {{most}}), -coalesce(len(numbers), 0), uri, media_id LIMIT {{rows}}""",
    "dataset": """
SELECT clip_id, uri, member, codec, begin_seconds, end_seconds - begin_seconds AS seconds, wanted_frames,
    padded_frames, decoded_packets / nullif(distinct_frames, 0) AS cost, bytes_read / 1e3 AS kilobytes, numbers{own}
FROM clips LEFT JOIN ({found}) ON identity = clip_id
ORDER BY coalesce(numbers[1], {most}), -coalesce(len(numbers), 0), clip LIMIT {rows}""",
}


def media_table(db: Database, found: Audit) -> MediaTable:
    """Return the table of media or clips. Rows with the most severe findings come first."""
    kind = db.audited.kind
    own = [name for name in OWN_COLUMNS if kind == "dataset" and name in db.columns("clips")]
    sql = TABLE_SQL[kind].format(
        found=_findings_sql(found, kind),
        most=len(found.findings),
        rows=MAX_ROWS,
        own="".join(f", {quoted(name)} AS {quoted(name)}" for name in own),  # AS sets the case of the name
    )
    answer = db.ask(sql)
    values = {name: [row[place] for row in answer.rows] for place, name in enumerate(answer.names)}
    streams = values.get("stream", itertools.repeat(None))
    names = [_name_of(*parts) for parts in zip(values["uri"], values["member"], streams, strict=False)]
    checks = [finding.check.name for finding in found.findings]
    findings = [", ".join(checks[number] for number in row) if row else None for row in values["numbers"]]
    columns = _media_columns(values, names) if kind == "index" else _clip_columns(values, names, own)
    columns.append(_text("findings", "Findings", findings))
    ((total,),) = db.ask(f"SELECT count(*) FROM {'videos' if kind == 'index' else 'clips'}").rows
    return MediaTable(of="media" if kind == "index" else "clips", total=int(total), columns=columns)


def _media_columns(values: Values, names: list[str]) -> list[Column]:
    sizes = zip(values["width"], values["height"], strict=True)
    frames, seconds = values["frame_count"], values["seconds"]
    rates = [_short(n / s, 5) if n and s else None for n, s in zip(frames, seconds, strict=True)]
    return [
        _text("name", "Name", names),
        _text("codec", "Codec", values["codec"]),
        _text("size", "Size", [None if width is None else f"{width}×{height}" for width, height in sizes]),
        _number("seconds", "Seconds", seconds),
        _number("frames", "Frames", frames),
        Column(key="fps", title="Frames/s", form="number", values=rates, ratio=("frames", "seconds")),
        _number("gop", "GOP", values["mean_gop"], digits=4, help="mean packets per random access point"),
        _number("mbit", "Mbit/s", values["megabits"], digits=4),
        _text("status", "Status", values["status"]),
    ]


def _clip_columns(values: Values, names: list[str], own: list[str]) -> list[Column]:
    return [
        _text("clip", "Clip", values["clip_id"]),
        _text("name", "Name", names),
        _text("codec", "Codec", values["codec"]),
        _number("begin", "Begins", values["begin_seconds"], help="time of the first frame, in seconds"),
        _number("seconds", "Seconds", values["seconds"]),
        _number("frames", "Frames", values["wanted_frames"]),
        _number("padded", "Padded", values["padded_frames"]),
        _number("cost", "Cost", values["cost"], digits=4, help="decoded packets per wanted frame"),
        _number("kb", "kB", values["kilobytes"], digits=4, help="kilobytes read per clip"),
        *[_text(name, name.capitalize(), values[name]) for name in own],
    ]


def _findings_sql(found: Audit, kind: Kind) -> str:
    """Return a query with one row per medium or clip: its identity, and the numbers of its findings in ascending order.

    The number of a finding is its position in `found.findings`.
    """
    identity = "media_id" if kind == "index" else "clip_id"
    parts = []
    for number, finding in enumerate(found.findings):
        rows = f"({finding.check.sql})"
        if kind == "dataset" and "clip_id" not in finding.examples[0]:  # a finding about a medium applies to its clips
            rows = f"clips WHERE media_id IN (SELECT media_id FROM {rows})"
        if not finding.examples[0].keys().isdisjoint((identity, "media_id")):
            parts.append(f"SELECT {identity} AS identity, {number} AS finding FROM {rows}")
    union = "\nUNION ALL ".join(parts) or NOWHERE
    return f"SELECT identity, list(DISTINCT finding ORDER BY finding) AS numbers FROM ({union}) GROUP BY identity"


def title_of(uri: str, member: str | None) -> str:
    """Return the name under which the report shows a medium."""
    return uri if member is None else f"{uri} › {member}"


def _name_of(uri: str, member: str | None, stream: int | None) -> str:
    name = title_of(uri, member)
    name = name if stream is None else f"{name} · stream {stream}"
    return name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]


def _text(key: str, title: str, values: Sequence[object]) -> Column:
    texts = [None if value is None else safe(str(value)[:LONGEST_NAME]) for value in values]
    return Column(key=key, title=title, form="text", values=texts)


def _number(
    key: str, title: str, values: Sequence[float | None], *, digits: int = DIGITS, help: str | None = None
) -> Column:
    return Column(key=key, title=title, form="number", values=[_short(value, digits) for value in values], help=help)


def _short(value: float | None, digits: int) -> float | int | None:
    """Round a float to some significant digits. Return an int if the result is integral."""
    if value is None:
        return None
    kept = float(value) if isinstance(value, int) else float(f"{value:.{digits}g}")
    return int(kept) if kept.is_integer() else kept


def as_script(table: MediaTable) -> str:
    """Return the table as JSON for a script element, in which `<`, `>`, `&` and line separators are escaped.

    A column is encoded in the shortest of three forms. The first form has the `values`. The second form has the
    distinct values as `words`, and in `numbers` the index of each row's word, or -1 for null. The third form is for
    texts. It has the length of the prefix that is the `same` as in the previous row, and the `rest` of the text.
    """
    columns = [
        {"key": column.key, "title": column.title, "form": column.form, "help": column.help} | _encoded(column)
        for column in table.columns
    ]
    text = orjson.dumps({"rows": len(table), "total": table.total, "of": table.of, "columns": columns}).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _encoded(column: Column) -> dict[str, Any]:
    """Return a column in the shortest of the forms that `as_script` describes."""
    if column.ratio is not None:
        return {"ratio": column.ratio}
    words = {word: number for number, word in enumerate(dict.fromkeys(v for v in column.values if v is not None))}
    numbers = [-1 if value is None else words[value] for value in column.values]
    forms: list[dict[str, Any]] = [{"values": column.values}, {"words": list(words), "numbers": numbers}]
    if column.form == "text":
        texts = ["" if value is None else value for value in column.values]
        same = [_common_length(*pair) for pair in itertools.pairwise(["", *texts])]
        # JavaScript counts UTF-16 code units, and Python counts characters. Both are equal below U+10000.
        same = [0 if max(text[:n], default="") > "\uffff" else n for text, n in zip(texts, same, strict=True)]
        forms.append({"same": same, "rest": [text[n:] for text, n in zip(texts, same, strict=True)]})
    return min(forms, key=lambda form: len(orjson.dumps(form)))


def _common_length(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    differing = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))
