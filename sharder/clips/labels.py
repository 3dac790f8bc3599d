"""Number the values of a column from 0 on, as class labels, and count the clips of each label in each split."""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.core.words import counted, did_you_mean, few, tally
from framedex.errors import FramedexError

LabelsArgument = str | Mapping[Any, Any]

DEFAULT_COLUMN = "label"
NAME_SUFFIX = "_name"  # the original values move to a column that is named like the label column with this suffix
MAX_CLASSES = 100_000  # a column with more different values is assumed to contain captions or names, not labels
NOTHING = object()
LEAVE_OUT = "leave out clips without a label by `where` or by the policy's `filter`"
SHOWN = 20  # maximum number of classes that a message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedLabels:
    """The argument `labels` of a dataset.

    Attributes:
        column: The name of the column whose values are numbered.
        numbers: The number assigned to each value. If None, the values are sorted and numbered in this order.
    """

    column: str
    numbers: dict[Any, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The class numbers that are assigned to the values of a column.

    Attributes:
        column: The name of the column.
        numbers: The number assigned to each value. The numbers are 0, 1, 2 and so on, without a gap. Several values may
            have the same number.
    """

    column: str
    numbers: dict[Any, int]

    @property
    def name_column(self) -> str:
        """The name of the column to which the original values move."""
        return self.column + NAME_SUFFIX

    @property
    def classes(self) -> list[str]:
        """The value of each number, as text. If several values share a number, the first of them is used."""
        found = {number: str(value) for value, number in reversed(self.numbers.items())}
        return [found[number] for number in range(len(found))]

    def applied(self, columns: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return a clip's columns with the label's number in `column` and the original value in `name_column`.

        Args:
            columns: The user's columns of the clip.
            where: The name of the clip, for the error.

        Raises:
            FramedexError: The value has no number.
        """
        value = columns.get(self.column)
        number = self.numbers.get(value) if isinstance(value, Hashable) else None
        if number is None:
            raise self._unknown(where, 1, "empty" if value is None else repr(value))
        return {**columns, self.column: number, self.name_column: value}

    def numbered(self, values: pa.ChunkedArray, where: str, unit: str = "clip") -> NDArray[np.int64]:
        """Return int64 [values]: the number assigned to each value.

        Args:
            values: The values of the column.
            where: The path of the dataset or index, for the error.
            unit: The word that the error uses for the owner of a value, such as "clip".

        Raises:
            FramedexError: A value has no number. The error states the first such value.
        """
        known = pa.array(self.numbers, plain(values.slice(0, 0)).type)
        places = [
            pc.index_in(chunk.dictionary, known).take(chunk.indices)
            if pa.types.is_dictionary(chunk.type)
            else pc.index_in(chunk, known)
            for chunk in values.chunks
        ]
        place: NDArray[np.int32] = pa.chunked_array(places, pa.int32()).fill_null(-1).to_numpy()
        wrong = np.flatnonzero(place < 0)
        if len(wrong):
            first = int(wrong[0])
            found = few(tally(plain(values).take(pa.array(wrong)).chunks))
            raise self._unknown(f"{where}, {unit} {first}", len(wrong), found)
        return np.array(list(self.numbers.values()), np.int64)[place]

    def extended(self, values: pa.ChunkedArray, where: str, unit: str) -> "Labels":
        """Return labels that also have numbers for new values: the next ones, in the order of the sorted values.

        Args:
            values: The values of the column in new rows.
            where: The path of the index, for errors.
            unit: The word that errors use for the owner of a value.

        Raises:
            FramedexError: A value is null, or there would be too many different values.
        """
        new = sorted({*plain(values).drop_null().to_pylist()} - self.numbers.keys())
        if len(self.numbers) + len(new) > MAX_CLASSES:
            raise FramedexError(
                "the column has too many different values for labels",
                where=f"{where}, column {self.column!r}",
                found=counted(len(self.numbers) + len(new), "different value"),
                allowed=f"up to {MAX_CLASSES:,}",
            )
        first = max(self.numbers.values()) + 1
        every = replace(self, numbers=self.numbers | {value: first + at for at, value in enumerate(new)})
        every.numbered(values, where, unit)
        return every

    def _unknown(self, where: str, count: int, found: str) -> FramedexError:
        classes = ", ".join(repr(value) for value in itertools.islice(self.numbers, SHOWN))
        more = f" and {len(self.numbers) - SHOWN:,} more" if len(self.numbers) > SHOWN else ""
        return FramedexError(
            f"column {self.column!r} has a value without a label",
            where=where,
            found=found if count == 1 else f"{found} ({count:,} in all)",
            allowed=classes + more,
            remedy="give the value a number in `labels`, or leave it out by `where` or by the policy's `filter`",
        )

    def stored(self) -> dict[str, Any]:
        """Return the labels as JSON values for a dataset's header."""
        return {"column": self.column, "values": list(self.numbers), "numbers": list(self.numbers.values())}


def stored_labels(stored: Mapping[str, Any] | None) -> Labels | None:
    """Return the labels that a dataset's header records, or None if the header has no labels.

    Raises:
        KeyError, TypeError, ValueError: The recorded labels are malformed.
    """
    if stored is None:
        return None
    column, values, numbers = stored["column"], stored["values"], stored["numbers"]
    of_value = dict(zip(values, numbers, strict=True))
    if not isinstance(column, str) or len(of_value) < len(values) or not _are_consecutive(of_value):
        raise ValueError(f"labels of column {column!r}")
    return Labels(column=column, numbers=of_value)


def wanted_labels(labels: LabelsArgument) -> WantedLabels:
    """Parse the argument `labels`.

    Args:
        labels: One of three forms. A text is the name of a column, whose values are sorted and numbered. {value:
            number} has the numbers for the column `label`. {column: {value: number}} names another column.

    Raises:
        FramedexError: `labels` has none of these forms, or the numbers are not 0, 1, 2 and so on.
    """
    if isinstance(labels, str):
        return WantedLabels(column=str(labels), numbers=None)
    column, numbers = DEFAULT_COLUMN, labels
    if isinstance(labels, Mapping) and len(labels) == 1 and isinstance(next(iter(labels.values())), Mapping):
        [(column, numbers)] = labels.items()
    if not isinstance(numbers, Mapping) or not numbers or not isinstance(column, str):
        raise FramedexError(
            "labels must be the name of a column, or a mapping of values to numbers",
            found=repr(labels)[:80],
            allowed="'label', {'run': 0, 'walk': 1}, {'label': {'run': 0, 'walk': 1}}",
        )
    own = {_of_python(value): _of_python(number) for value, number in numbers.items()}
    if (wrong := next((value for value in own if not _is_label(value)), NOTHING)) is not NOTHING:
        raise FramedexError(
            "the values of labels must be texts or whole numbers",
            where=f"labels of column {column!r}",
            found=repr(wrong)[:80],
            allowed="texts of valid UTF-8, and whole numbers of 64 bits",
            remedy=LEAVE_OUT if wrong != wrong or wrong is None else None,
        )
    if not _are_consecutive(own):
        raise FramedexError(
            "the numbers of labels must be 0, 1, 2 and so on, without a gap",
            where=f"labels of column {column!r}",
            found=", ".join(f"{value!r}: {number!r}" for value, number in itertools.islice(own.items(), SHOWN)),
        )
    return WantedLabels(column=str(column), numbers=own)


def _of_python(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number or string. Return other values unchanged."""
    return value.item() if isinstance(value, np.generic | np.ndarray) and not value.ndim else value


def _is_label(value: object) -> bool:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() == value
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def check_is_own(wanted: WantedLabels, columns: list[str], where: str) -> None:
    """Raise FramedexError if the column of the labels is not one of the user's columns.

    Args:
        wanted: The parsed argument `labels`.
        columns: The names of the user's columns.
        where: The path of the dataset or index, for the error.
    """
    if wanted.column not in columns:
        raise FramedexError(
            "the column for labels does not exist",
            where=where,
            found=wanted.column,
            allowed=f"your columns: {', '.join(columns) or 'none'}",
            remedy=did_you_mean(wanted.column, columns)
            or "add it to the listing as a column, or index with --label-from parent",
        )


def made_labels(wanted: WantedLabels, values: pa.ChunkedArray, where: str) -> Labels:
    """Return labels for a column.

    Args:
        wanted: The parsed argument `labels`.
        values: All values of the column. Nulls get no number.
        where: The path of the dataset or index, for errors.

    Raises:
        FramedexError: The values of the column cannot be labels, or the values in `wanted` do not have the type of the
            column.
    """
    where = f"{where}, column {wanted.column!r}"
    kind = plain(values.slice(0, 0)).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
        raise FramedexError("a column of labels must have texts or whole numbers", where=where, found=kind)
    if wanted.numbers is not None:
        right = int if pa.types.is_integer(kind) else str
        if other := [value for value in wanted.numbers if type(value) is not right]:
            what = "the labels are of another type than the values of the column"
            raise FramedexError(what, where=where, found=repr(other[0]), allowed=str(kind))
        try:
            pa.array(wanted.numbers, kind)
        except (pa.ArrowException, OverflowError) as error:
            what = "a label is outside the range of the column's type"
            raise FramedexError(what, where=where, found=error, allowed=kind) from error
        return Labels(column=wanted.column, numbers=wanted.numbers)
    found = plain(values).unique().drop_null()
    if not len(found) or len(found) > MAX_CLASSES:
        raise FramedexError(
            "the column has too few or too many different values for labels",
            where=where,
            found=counted(len(found), "different value"),
            allowed=f"1 to {MAX_CLASSES:,}",
        )
    numbers = {value: number for number, value in enumerate(sorted(found.to_pylist()))}
    return Labels(column=wanted.column, numbers=numbers)


def checked_labels(
    wanted: WantedLabels,
    values_of: Callable[[str], pa.ChunkedArray],
    columns: list[str],
    where: str,
    *,
    unit: str = "clip",
) -> Labels:
    """Return labels for a column, and check that every value has a label.

    Args:
        wanted: The parsed argument `labels`.
        values_of: A function that returns all values of one of the user's columns.
        columns: The names of the user's columns.
        where: The path of the dataset, the index or the file of clips, for errors.
        unit: The word that errors use for the owner of a value, such as "clip".

    Raises:
        FramedexError: The user has no such column, the column cannot have labels (see `made_labels`), a value has no
            label, or the original values cannot move to `NAME_name`, because the user has a column of this name.
    """
    check_is_own(wanted, columns, where)
    values = values_of(wanted.column)
    labels = made_labels(wanted, values, where)
    check_name_is_free(labels, columns, where)
    labels.numbered(values, where, unit)
    return labels


def check_name_is_free(labels: Labels, columns: list[str], where: str) -> None:
    """Raise FramedexError if clips already have the column to which the original values would move."""
    if labels.name_column in columns:
        raise FramedexError(
            f"the clips already have the column to which the values of column {labels.column!r} would move",
            where=where,
            found=labels.name_column,
            remedy="rename that column in the listing",
        )


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without dictionary encoding."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _are_consecutive(numbers: Mapping[Any, Any]) -> bool:
    """Return whether the set of numbers is 0, 1, …, n without a gap. Numbers may repeat."""
    own = list(numbers.values())
    return all(type(number) is int for number in own) and set(own) == set(range(len(set(own))))


LABEL, SPLIT = "label", "split"  # the default names of the columns
ALL = "clips"  # name of the only group if the clips have no splits
MAX_LABELS = 20  # if there are more labels, a summary is printed instead of one line per label
MAX_LACKING = 10  # maximum number of labels that a sentence lists

Counts = dict[str, dict[str, int]]  # {split: {label: number of clips}}; every split has all labels, sorted


def label_counts_of(table: pa.Table, column: str) -> Counts:
    """Return the number of clips of each label in each split. Clips without a label are not counted.

    Args:
        table: The columns of all clips.
        column: The name of the column of labels. If the table lacks this column, the result is empty.
    """
    if column not in table.column_names:
        return {}
    parts = table[SPLIT] if SPLIT in table.column_names else pa.chunked_array([pa.repeat(ALL, len(table))])
    table = pa.table({LABEL: plain(table[column]), SPLIT: plain(parts)})
    # With one thread, splits have the order of their first clips.
    groups = table.group_by([SPLIT, LABEL], use_threads=False).aggregate([([], "count_all")]).to_pylist()
    pairs = Counter[tuple[str, str | None]]()
    for group in groups:
        name = None if group[LABEL] is None else str(group[LABEL])
        pairs[str(group[SPLIT]), name] += group["count_all"]
    every = sorted({name for _, name in pairs if name is not None})
    return {part: {name: pairs[part, name] for name in every} for part, _ in pairs} if every else {}


def lacking(counts: Counts) -> list[str]:
    """Return a sentence for each split that lacks labels which other splits have. The sentence lists these labels."""
    sentences = []
    for split, labels in counts.items():
        absent = [name for name, clips in labels.items() if not clips]
        if absent:
            more = f" and {len(absent) - MAX_LACKING:,} more" if len(absent) > MAX_LACKING else ""
            shown = ", ".join(absent[:MAX_LACKING])
            sentences.append(f"split {split} has no clip of {counted(len(absent), 'label')}: {shown}{more}")
    return sentences


def label_lines(counts: Counts) -> list[str]:
    """Return a text table of the number of clips of each label in each split, line by line."""
    if not counts:
        return []
    labels = list(next(iter(counts.values())))
    if len(labels) > MAX_LABELS:
        return [f"{split}: {len(labels)} labels, {min(own.values()):,} to {max(own.values()):,} clips of each"
                for split, own in counts.items()]  # fmt: skip
    wide = max(len(LABEL), *(len(name) for name in labels))
    widths = {split: max(len(split), *(len(f"{clips:,}") for clips in own.values())) for split, own in counts.items()}
    heads = "  ".join(f"{split:>{widths[split]}}" for split in counts)
    rows = [
        "  ".join([f"{name:<{wide}}", *(f"{own[name]:>{widths[split]},}" for split, own in counts.items())])
        for name in labels
    ]
    return [f"{LABEL:<{wide}}  {heads}", *rows]
