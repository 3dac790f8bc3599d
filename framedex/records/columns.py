"""Functions for records: dataclasses whose fields declare the columns of a table.

A field that `column` returns declares one column completely. The following are derived from the fields of a record: the
schema of the table, the rules for values, the rows, the JSON in tars, the keys in items of loaders, and the names that
the user's columns must not have.
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
    """Return the rule that a number, or each number of a list, is from `least` to `most`. `needed`: see ColumnRule."""
    return ColumnRule(bounds=(least, most), needed=needed)


def among(texts: Iterable[str], *, needed: bool = False) -> ColumnRule:
    """Return the rule that a text is one of the given texts. `needed`: see ColumnRule."""
    return ColumnRule(among=frozenset(texts), needed=needed)


NEEDED = ColumnRule(needed=True)
INT32 = (1 << 31) - 1
COUNT, POSITIVE, BYTES = between(0, INT32), between(1, INT32), between(0, FAR)
CRC32 = between(0, (1 << 32) - 1, needed=False)
COLUMN = "column"  # key of the `Column` in the metadata of a dataclass field
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The declaration of a column of a table.

    Attributes:
        kind: The Arrow type.
        doc: The meaning of the column, for docs/format.md. `doc` and `unit` are stored in the metadata of the file.
        unit: Unit of the values. Empty if they have no unit.
        nullable: Whether the table may have null.
        rule: The rule for the values. It is checked for rows that are used.
        since: The version of the format from which on tables have the column, or None if all versions have it. In files
            of an earlier version, a column of this name was defined by the user.
        also_in: Names of other tables and files that also store the column. The record's module defines these names.
        key: The key of the value in items of loaders, or None if items lack it.
        dtype: The type of the numpy array in the record, or None if the record has a Python object.
        padding: For a column of lists, the value that fills the array after its last element, and that stands for null
            if elements may be null. For other columns, the value that items have in place of null.
        has_nulls: Whether elements of the column's lists may be null.
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
        """Whether null is an error in a row that is used."""
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
    """Return a dataclass field that declares a column. The docstring of the record describes the column.

    For arguments that are not described here, see `Column`.

    Args:
        kind: The Arrow type.
        dtype: The type of the numpy array. If None and the column has lists of numbers or booleans, the type of the
            elements of these lists.
        default: The default of the dataclass field. If None and the column may have null, the default is None. If None
            and the column must not have null, the field has no default.
        of_table: Whether the value is known only when the row is written, such as the number of a row in another table.
            Such a field has the default None, and is ignored when records are compared.
    """
    if rule is None and not nullable and not of_table:
        rule = NEEDED
    if dtype is None and pa.types.is_list(kind) and pa.types.is_primitive(kind.value_type):
        dtype = str(kind.value_type)  # `to_pandas_dtype` would need pandas in early versions of pyarrow
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
    """Return an Arrow field with a description and a unit. For the arguments, see `Column`."""
    return pa.field(name, kind, nullable=nullable, metadata={"doc": doc, "unit": unit})


def required(name: str, kind: pa.DataType, doc: str, *, unit: str = "") -> pa.Field:
    """Return an Arrow field that must not be null, with a description and a unit. For the arguments, see `Column`."""
    return field_of(name, kind, doc, unit=unit, nullable=False)


def list_of(kind: pa.DataType, *, nullable: bool = False) -> pa.DataType:
    """Return an Arrow list type with elements of type `kind`. If `nullable` is True, elements may be null."""
    return pa.list_(pa.field("element", kind, nullable=nullable))


def documented(record: type[object]) -> dict[str, str]:
    """Return field name → description, from the `Attributes:` in the docstrings of a record and its base classes."""
    found: dict[str, str] = {}
    for one in reversed(record.__mro__[:-1]):
        section = (inspect.getdoc(one) or "").partition("\n\nAttributes:\n")[2].partition("\n\n")[0]
        for entry in re.split(r"\n(?=    \w+: )", f"\n{section}")[1:]:
            name, _, text = entry.strip().partition(": ")
            found[name] = " ".join(text.split())
    return found


_declared: dict[type[object], dict[str, Column]] = {}


def columns_of(record: type[object]) -> dict[str, Column]:
    """Return column name → `Column` for a record, in the order of its fields. Fields without a column are left out."""
    if record not in _declared:
        fields, docs = dataclasses.fields(record), documented(record)  # type: ignore[arg-type]
        _declared[record] = {
            field.name: dataclasses.replace(field.metadata[COLUMN], doc=docs.get(field.name, ""))
            for field in fields
            if COLUMN in field.metadata
        }
    return _declared[record]


def schema_of(record: type[object], *, also_in: str | None = None, prefix: str = "") -> pa.Schema:
    """Return the Arrow schema of the table of a record, or of another table that also has some of the columns.

    Args:
        record: The class of the record.
        also_in: The name of the other table, as in `Column.also_in`. If None, the schema has all columns of the record.
        prefix: The prefix of the names of the columns.
    """
    return pa.schema(
        [
            field_of(prefix + name, one.kind, one.doc, unit=one.unit, nullable=one.nullable)
            for name, one in columns_of(record).items()
            if also_in is None or also_in in one.also_in
        ]
    )


def rules_of(record: type[object], *, prefix: str = "") -> dict[str, ColumnRule]:
    """Return prefix + column name → rule, for the columns of a record that have a rule."""
    return {prefix + name: one.rule for name, one in columns_of(record).items() if one.rule is not None}


def names_in(record: type[object], version: str) -> list[str]:
    """Return the names of the columns that exist in a version of the format, such as "3.6"."""
    return [name for name, one in columns_of(record).items() if one.since is None or is_since(version, one.since)]


def keys_of(record: type[object]) -> dict[str, Column]:
    """Return key → `Column`, for the columns of a record whose values are in items of loaders."""
    return {one.key: one for one in columns_of(record).values() if one.key is not None}


def item_of(instance: Any) -> Row:
    """Return the values of a record for an item of a loader, by key.

    A value that is None is left out. But if it is a single value (not a list) and its column has a `padding`, the item
    gets the padding.
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
    """Return field name → value for a record. Unlike in `dataclasses.asdict`, arrays are not copied."""
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


def row_of(instance: Any, *, prefix: str = "") -> Row:
    """Return the table row of a record as prefix + column name → value.

    In lists whose elements may be null, elements that are equal to the column's `padding` become null.
    """
    columns = columns_of(type(instance))
    return {
        prefix + name: _with_nulls(getattr(instance, name), one) if one.has_nulls else getattr(instance, name)
        for name, one in columns.items()
    }


def json_of(instance: Any, also_in: str) -> Row:
    """Return column name → value for the columns with `also_in` in `Column.also_in`, as JSON values.

    Values that are None are left out.
    """
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
    """Return column name → value from JSON that `json_of` made. The values are checked by the rules of the columns.

    A value that `json_of` left out because it was None is None again. For a column that the JSON never has, the result
    has None if the column may have null, and no value otherwise.

    Args:
        record: The class of the record.
        content: The JSON object.
        also_in: The name that `json_of` got as its argument `also_in`.
        at: The position of the JSON object, for errors.
        prefix: The prefix of the names in the JSON object. The returned names do not have it.

    Raises:
        FormatError: A value breaks its rule.
        KeyError: The JSON object does not have a column that must not be null.
        TypeError, ValueError, OverflowError: A value cannot be converted to the type of its column.
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
    """Return column name → value for a row of a table. The values are checked by the rules of the columns.

    The value of a column that the file does not have is None.

    Args:
        record: The class of the record.
        row: The row, as a batch with one row.
        at: The position of the row, for errors.
        names: The names of the columns that the format defines, as `names_in` returns them. Columns with other names
            were defined by the user, and are ignored. If None, all columns are taken as defined by the format.
        prefix: The prefix of the names in the table. The returned names do not have it.

    Raises:
        FormatError: A value breaks its rule, is null but must not be null, or cannot be represented in Python.
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
    """Return the only list of a column as a numpy array. Nulls become padding.

    Args:
        lists: The column of a batch with one row.
        name: The name of the column, for errors.
        declared: The declaration of the column.
        at: The position of the row, for errors.

    Raises:
        FormatError: The list or an element is null but must not be null, or an element breaks the rule.
    """
    if lists.null_count:
        raise at.wrong(name, "null", "a list")
    values = lists.flatten()
    nulls = values.null_count
    if nulls and not declared.has_nulls:
        raise at.wrong(name, "null", "a list without null elements")
    array = as_numpy(values.drop_null() if nulls else values)
    if declared.rule is not None and declared.rule.bounds is not None:
        # The integers in the file may have more bits than `declared.dtype`, so check the bounds before the conversion.
        check_row({name: array}, {name: declared.rule}, at)
    if nulls:
        array = as_numpy(values.fill_null(declared.padding))
    return array if array.dtype == declared.dtype else array.astype(declared.dtype)


def plain_value(row: pa.RecordBatch, name: str, at: RowAt) -> Any:
    """Return the value of a column as a Python object.

    Args:
        row: A batch with one row.
        name: The name of the column.
        at: The position of the row, for errors.

    Raises:
        FormatError: Python cannot represent the value. Examples are a text that is not UTF-8 and a time in the year
            10 000.
    """
    try:
        return row[name][0].as_py()
    except (ValueError, OverflowError, TypeError, RecursionError, pa.ArrowException) as error:
        raise at.wrong(name, error, "a value that Python can represent") from error
