"""Records whose fields declare the columns of a table.

A field made by `column` declares everything about one column. The table's schema, the rules for its values, its rows,
its JSON, its keys in items and its reserved names are derived from these fields.
"""

import dataclasses
import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from framedex.core.column_rules import FAR, ColumnRule, RowAt, as_numpy, check_row
from framedex.files.headers import is_since


def between(least: int, most: int, *, needed: bool = True) -> ColumnRule:
    """Return the rule for a number, or for each number of a list, from `least` to `most`."""
    return ColumnRule(bounds=(least, most), needed=needed)


def among(texts: Iterable[str], *, needed: bool = False) -> ColumnRule:
    """Return the rule for a text that must be one of some texts."""
    return ColumnRule(among=frozenset(texts), needed=needed)


NEEDED = ColumnRule(needed=True)
INT32 = (1 << 31) - 1
COUNT, POSITIVE, BYTES = between(0, INT32), between(1, INT32), between(0, FAR)
CRC32 = between(0, (1 << 32) - 1, needed=False)
COLUMN = "column"  # key in the metadata of a record's field
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The declaration of a column.

    Attributes:
        kind: The Arrow type.
        doc: The meaning, for docs/format.md. It is stored in the metadata of the file's schema, as is `unit`.
        unit: Unit of the values, or empty.
        nullable: Whether the table may have null.
        rule: The rule for the values of a row that is used.
        since: The version of the format from which on tables have the column, or None if all versions have it. In files
            of an earlier version, a column of this name is the user's.
        also_in: Names of other places that store the column. The record's module defines these names.
        key: The key of the value in items of loaders, or None if items lack it.
        dtype: The type of the numpy array in the record, or None if the record has a Python object.
        padding: The element that pads such an array, and that stands for null if elements may be null. For a single
            value, the value that items have in place of null.
        has_nulls: Whether elements of its lists may be null.
    """

    kind: pa.DataType
    doc: str
    unit: str
    nullable: bool
    rule: ColumnRule | None
    since: tuple[int, int] | None
    also_in: frozenset[str]
    key: str | None
    dtype: np.dtype[Any] | None
    padding: Any
    has_nulls: bool

    @property
    def is_needed(self) -> bool:
        """Whether a row that is used must have a value."""
        return not self.nullable or (self.rule is not None and self.rule.needed)


def column(
    kind: pa.DataType,
    *,
    unit: str = "",
    nullable: bool = True,
    rule: ColumnRule | None = None,
    since: tuple[int, int] | None = None,
    also_in: Iterable[str] = (),
    key: str | None = None,
    dtype: DTypeLike | None = None,
    padding: Any = None,
    default: Any = None,
    of_table: bool = False,
) -> Any:
    """Return the field of a record that declares a column. The record's docstring describes the column.

    A field defaults to None if a row that is used may have null. For the other arguments, see `Column`.

    Args:
        dtype: See `Column`. Defaults to the type of the elements of a list of numbers or bools.
        default: The default of the record's field.
        of_table: Whether the column is a link between rows of tables, which a record gets when its row is written.
    """
    if rule is None and not nullable and not of_table:
        rule = NEEDED
    if dtype is None and pa.types.is_list(kind) and pa.types.is_primitive(kind.value_type):
        dtype = str(kind.value_type)  # to_pandas_dtype of an early pyarrow needs pandas
    declared = Column(
        kind=kind,
        doc="",
        unit=unit,
        nullable=nullable,
        rule=rule,
        since=since,
        also_in=frozenset(also_in),
        key=key,
        dtype=None if dtype is None else np.dtype(dtype),
        padding=padding,
        has_nulls=pa.types.is_list(kind) and bool(kind.value_field.nullable),
    )
    if default is None and declared.is_needed and not of_table:
        default = dataclasses.MISSING
    return dataclasses.field(default=default, compare=not of_table, metadata={COLUMN: declared})


def field_of(name: str, kind: pa.DataType, doc: str, *, unit: str = "", nullable: bool = True) -> pa.Field:
    """Return a documented column of a table that has no record. For the arguments, see `Column`."""
    return pa.field(name, kind, nullable=nullable, metadata={"doc": doc, "unit": unit})


def required(name: str, kind: pa.DataType, doc: str, *, unit: str = "") -> pa.Field:
    """Return a documented column that is never null."""
    return field_of(name, kind, doc, unit=unit, nullable=False)


def list_of(kind: pa.DataType, *, nullable: bool = False) -> pa.DataType:
    """Return a list type. Its elements are never null, unless `nullable` is set."""
    return pa.list_(pa.field("element", kind, nullable=nullable))


def documented(record: type[object]) -> dict[str, str]:
    """Return the meaning of each field from the docstrings of a record and its base classes."""
    found: dict[str, str] = {}
    for one in reversed(record.__mro__[:-1]):
        section = (inspect.getdoc(one) or "").partition("\n\nAttributes:\n")[2].partition("\n\n")[0]
        for entry in re.split(r"\n(?=    \w+: )", f"\n{section}")[1:]:
            name, _, text = entry.strip().partition(": ")
            found[name] = " ".join(text.split())
    return found


_declared: dict[type[object], dict[str, Column]] = {}


def columns_of(record: type[object]) -> dict[str, Column]:
    """Return the declared columns of a record by name, in their order. Other fields are left out."""
    if record not in _declared:
        fields, docs = dataclasses.fields(record), documented(record)  # type: ignore[arg-type]
        _declared[record] = {
            field.name: dataclasses.replace(field.metadata[COLUMN], doc=docs.get(field.name, ""))
            for field in fields
            if COLUMN in field.metadata
        }
    return _declared[record]


def schema_of(record: type[object], *, also_in: str | None = None, prefix: str = "") -> pa.Schema:
    """Return the schema of a record's table, or of another place that stores some of its columns.

    Args:
        also_in: One of the places in `Column.also_in`. If None, the schema has all columns.
        prefix: The prefix of the columns' names.
    """
    return pa.schema(
        [
            field_of(prefix + name, one.kind, one.doc, unit=one.unit, nullable=one.nullable)
            for name, one in columns_of(record).items()
            if also_in is None or also_in in one.also_in
        ]
    )


def rules_of(record: type[object], *, prefix: str = "") -> dict[str, ColumnRule]:
    """Return the rules of a record's columns by name, with a prefix."""
    return {prefix + name: one.rule for name, one in columns_of(record).items() if one.rule is not None}


def names_in(record: type[object], version: str) -> list[str]:
    """Return the columns that a version of the format has, such as "3.6"."""
    return [name for name, one in columns_of(record).items() if one.since is None or is_since(version, one.since)]


def keys_of(record: type[object]) -> dict[str, Column]:
    """Return the columns that items of loaders have, by their keys there."""
    return {one.key: one for one in columns_of(record).values() if one.key is not None}


def item_of(instance: Any) -> Row:
    """Return the values of a record for an item of a loader, by key.

    A value that is None is left out, but for single values with a padding, which replaces it.
    """
    found: Row = {}
    for name, one in columns_of(type(instance)).items():
        value = getattr(instance, name)
        if value is None and one.dtype is None:
            value = one.padding
        if one.key and value is not None:
            found[one.key] = value
    return found


def values_of(instance: Any) -> Row:
    """Return the fields of a record by name. The values are not copied (`dataclasses.asdict` would copy arrays)."""
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


def row_of(instance: Any, *, prefix: str = "") -> Row:
    """Return the row of a record, by name with a prefix. Padding of elements that may be null is null."""
    return {
        prefix + name: _with_nulls(getattr(instance, name), one) if one.has_nulls else getattr(instance, name)
        for name, one in columns_of(type(instance)).items()
    }


def json_of(instance: Any, also_in: str) -> Row:
    """Return the values of a record for a place of `Column.also_in`. Values that are None are left out."""
    found: Row = {}
    for name, one in columns_of(type(instance)).items():
        value = getattr(instance, name) if also_in in one.also_in else None
        if value is not None:
            nulls = _with_nulls(value, one)
            found[name] = nulls.tolist() if isinstance(nulls, np.ma.MaskedArray) else value
    return found


def _with_nulls(value: Any, declared: Column) -> Any:
    if not declared.has_nulls or not isinstance(value, np.ndarray):
        return value
    null = np.isnan(value) if value.dtype.kind == "f" else value == declared.padding
    return np.ma.masked_array(value, null) if null.any() else value


def values_of_json(
    record: type[object], content: Mapping[str, Any], also_in: str, at: RowAt, *, prefix: str = ""
) -> Row:
    """Return the values of a record that `json_of` stored, by name. They are checked by the rules.

    A value that `json_of` left out is None. A column that `also_in` lacks is None if it may be null, and else missing.

    Args:
        content: The JSON object.
        also_in: As for `json_of`.
        at: The position of the JSON object, for errors.
        prefix: The prefix of the stored names, which the returned names lack.

    Raises:
        FormatError: A value breaks its rule.
        KeyError: A column that is never null is missing.
        TypeError, ValueError, OverflowError: A value has a type that the column does not accept.
    """
    columns = {name: one for name, one in columns_of(record).items() if also_in in one.also_in}
    found: Row = {name: None for name, one in columns_of(record).items() if one.nullable}
    for name, one in columns.items():
        value = content.get(prefix + name) if one.nullable else content[prefix + name]
        if value is not None and one.dtype is not None:
            elements = [one.padding if element is None else element for element in value] if one.has_nulls else value
            value = np.array(elements, one.dtype)
        elif value is not None and pa.types.is_string(one.kind):
            value = str(value)
        elif value is not None and pa.types.is_boolean(one.kind):
            value = bool(value)
        found[name] = value
    rules = {prefix + name: one.rule for name, one in columns.items() if one.rule is not None}
    check_row({prefix + name: value for name, value in found.items()}, rules, at)
    return found


def values_of_row(
    record: type[object], row: pa.RecordBatch, at: RowAt, *, names: Collection[str] | None = None, prefix: str = ""
) -> Row:
    """Return the values of a table's row by name, checked by the rules. A column that the row's part lacks is None.

    Args:
        row: A batch of one row.
        at: The position of the row, for errors.
        names: The names of framedex's own columns (`names_in`). If None, all columns are framedex's own.
        prefix: The prefix of the stored names, which the returned names lack.

    Raises:
        FormatError: A value breaks its rule, is null without being allowed to, or cannot be a Python object.
    """
    found: Row = {}
    there = set(row.schema.names).intersection(row.schema.names if names is None else names)
    for name, one in columns_of(record).items():
        stored = prefix + name
        values = row[stored] if stored in there else None
        if values is None or (one.nullable and values.null_count):
            found[name] = None
        elif one.dtype is None:
            found[name] = plain_value(row, stored, at)
        else:
            found[name] = _array_of(values, stored, one, at)
            continue
        if one.rule is not None:
            check_row({stored: found[name]}, {stored: one.rule}, at)
    return found


def _array_of(lists: pa.Array, name: str, declared: Column, at: RowAt) -> NDArray[Any]:
    """Return the elements of the list in a column of one row, with padding for nulls. Raises FormatError."""
    if lists.null_count:
        raise at.wrong(name, "null", "a list")
    values = lists.flatten()
    nulls = values.null_count
    if nulls and not declared.has_nulls:
        raise at.wrong(name, "null", "a value at each place")
    array = as_numpy(values.drop_null() if nulls else values)
    if declared.rule is not None and declared.rule.bounds is not None:
        # A file may have wider integers, so check the numbers before the conversion makes them narrower.
        check_row({name: array}, {name: declared.rule}, at)
    if nulls:
        array = as_numpy(values.fill_null(declared.padding))
    return array if array.dtype == declared.dtype else array.astype(declared.dtype)


def plain_value(row: pa.RecordBatch, name: str, at: RowAt) -> Any:
    """Return a value of a batch of one row as a Python object.

    Raises:
        FormatError: Python cannot represent the value, such as a text that is not UTF-8 or a time in the year 10 000.
    """
    try:
        return row[name][0].as_py()
    except (ValueError, OverflowError, TypeError, RecursionError, pa.ArrowException) as error:
        raise at.wrong(name, error, "a value that Python can represent") from error
