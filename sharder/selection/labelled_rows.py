"""The labels that a dataset records: numbers for the values of a column of the listing, or of explicit clips."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from framedex.errors import PolicyError
from framedex.indexer.parts.index import Index
from framedex.sharder.clips.labels import Labels, WantedLabels, check_name_is_free, made_labels
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.selection.mentions import all_mentions, user_columns


def labels_of_rows(index: Index, file: PolicyFile, wanted: WantedLabels) -> Labels:
    """Return the labels of the clips of a policy: those of all rows of usable media that its filter accepts.

    Raises:
        PolicyError: There is no such column.
        FramedexError: A row has no label, or the column holds no labels.
    """
    columns = user_columns(index, file.split).names
    _check_column(wanted, columns, str(index.path))
    values = all_mentions(index, file.filter, file.split).columns[wanted.column]
    return _checked(wanted, values, columns, str(index.path), "row")


def labels_of_clips(clips: Iterable[dict[str, Any]], schema: pa.Schema, wanted: WantedLabels, where: str) -> Labels:
    """Return the labels of explicit clips.

    Args:
        clips: The user's columns of each.
        schema: The types of these columns.
        where: The file of clips, for errors.

    Raises:
        PolicyError: There is no such column.
        FramedexError: A clip has no label, or the column holds no labels.
    """
    _check_column(wanted, schema.names, where)
    kind = schema.field(wanted.column).type
    values = pa.chunked_array([pa.array([row.get(wanted.column) for row in clips], kind)])
    return _checked(wanted, values, schema.names, where, "clip")


def _check_column(wanted: WantedLabels, columns: list[str], where: str) -> None:
    if wanted.column not in columns:
        raise PolicyError(
            "there is no such column for labels",
            where=where,
            found=wanted.column,
            allowed=", ".join(columns) or "no columns",
            remedy="list it beside the uri, or index with --label-from parent",
        )


def _checked(wanted: WantedLabels, values: pa.ChunkedArray, columns: list[str], where: str, unit: str) -> Labels:
    labels = made_labels(wanted, values, where)
    check_name_is_free(labels, columns, where)
    labels.numbered(values, where, unit)
    return labels
