"""Sidecars: the files of a webdataset sample beside its video, and the user's columns that they become.

The files of a sample share a key: their path up to the first dot of the name. `a/b.left.mp4` has the key `a/b`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import pyarrow as pa

from framedex.core.nesting import MOST_NESTED, json_depth
from framedex.files.parquet_parts import UNSTORABLE
from framedex.records.names import SAMPLE_KEYS

Sidecar = Literal["json", "txt", "cls", "__key__"]
SIDECARS: tuple[Sidecar, ...] = get_args(Sidecar)
KEY: Sidecar = "__key__"
COLUMNS = "columns"  # of a Parquet file, beside its videos
# Names of the stretch that policies take from a listing. A key of a sidecar takes none of these and of SAMPLE_KEYS:
# whoever wrote it did not have framedex in mind.
OF_STRETCHES = frozenset({"start", "end"})
MOST_SIDECAR_BYTES = 1 << 20
SAMPLE_FILE = re.compile(r"(?P<key>(?:.*/)?[^./][^./]*)\.(?P<ending>[^/]*)", re.DOTALL)


def sidecars_of(kinds: Iterable[str]) -> tuple[Sidecar, ...]:
    """Return kinds of sidecars by their names. Raises ValueError for other names."""
    names = list(kinds)
    wrong = [name for name in names if name not in SIDECARS]
    if wrong:
        raise ValueError(f"{', '.join(map(repr, wrong))}: allowed are {', '.join(SIDECARS)}")
    return tuple(kind for kind in SIDECARS if kind in names)


def sample_parts(name: str) -> tuple[str, str] | None:
    """Return (key, ending in lower case) of a file of a sample, or None if its name has no such form."""
    match = SAMPLE_FILE.fullmatch(name)
    return None if match is None else (match["key"], match["ending"].lower())


def sidecar_text(
    wanted: Sequence[Sidecar], key: str | None, contents: Mapping[str, bytes], problems: Iterable[str] = ()
) -> tuple[str, str | None]:
    """Return (the values of a sample's sidecars as JSON, what is wrong with them or None).

    Args:
        wanted: the kinds that are read. Each has a value in the result, null if the sample has none.
        key: of the sample. None: the name of the video has no key.
        contents: the bytes of the sidecars, by kind.
        problems: what was wrong before.
    """
    values: dict[str, Any] = {}
    said = list(problems)
    for kind in wanted:
        if kind == KEY:
            values[kind] = key
            continue
        values[kind] = None
        if kind in contents:
            try:
                values[kind] = _parsed(kind, contents[kind])
            except (ValueError, RecursionError) as error:
                said.append(f"{key}.{kind} {error}")
    return json.dumps(values), "; ".join(said) or None


def _parsed(kind: str, content: bytes) -> Any:
    """Return the value of a sidecar. Raises ValueError with the rest of a sentence about it."""
    try:
        text = content.decode("utf-8-sig" if kind == "json" else "utf-8")
    except UnicodeDecodeError:
        raise ValueError("is not valid UTF-8") from None
    if kind == "txt":
        return text
    if kind == "cls":
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"holds no whole number, but {text[:40]!r}") from None
    if json_depth(text) > MOST_NESTED:
        raise ValueError(f"is nested more than {MOST_NESTED} levels deep")
    try:
        value = json.loads(text, parse_constant=lambda name: None, parse_float=_finite)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is no text") from None
    return value


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def sidecar_columns(text: str, wanted: Sequence[str], taken: Iterable[str], *, flat: bool = True) -> dict[str, Any]:
    """Return the user's columns that the sidecars of a video become.

    An object in a `json` sidecar becomes a column for each of its keys. Values that are objects or lists stay JSON
    texts. A key that is already the name of another column, or one of `SAMPLE_KEYS`, gets the prefix `json.`. The
    columns of a Parquet file are treated likewise, with the prefix `columns.`.

    Args:
        text: what `sidecar_text` returned, or the columns of a row as JSON.
        wanted: the kinds that become columns.
        taken: names of other columns.
        flat: make a column for each key of an object. If not, the object stays a JSON text.
    """
    kinds = {*wanted, COLUMNS}
    values = {kind: value for kind, value in json.loads(text).items() if kind in kinds and value is not None}
    columns: dict[str, Any] = {}
    for kind, value in values.items():
        others = {*taken, *SAMPLE_KEYS, *(() if kind == COLUMNS else (*SIDECARS, *OF_STRETCHES))}
        if flat and kind in ("json", COLUMNS) and isinstance(value, dict):
            columns |= {f"{kind}.{name}" if name in others else name: one for name, one in value.items()}
        else:
            columns[kind] = value
    return {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in columns.items()}


def sidecar_column(values: Sequence[Any]) -> pa.Array:
    """Return the values of a column of sidecars. If they have no common type, they become texts."""
    try:
        return pa.array(values)
    except UNSTORABLE:
        return pa.array([as_text(value) for value in values], pa.string())


def as_text(value: Any) -> str | None:
    """Return a value as a text: a text itself, others as JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
