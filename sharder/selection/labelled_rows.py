"""The labels that a dataset records: numbers for the values of a column of the listing, or of explicit clips."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from framedex.indexer.parts.index import Index
from framedex.sharder.clips.labels import Labels, WantedLabels, check_is_own, check_name_is_free, made_labels
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.selection.mentions import all_mentions, user_columns


def labels_of_rows(index: Index, file: PolicyFile, wanted: WantedLabels) -> Labels:
    """Return the labels of the clips of a policy: those of all rows of usable media that its filter accepts.

    Raises:
        FramedexError: There is no such column, a row has no label, or the column holds no labels.
    """
    columns = user_columns(index, file.split).names
    check_is_own(wanted, columns, str(index.path))
    values = all_mentions(index, file.filter, file.split).columns[wanted.column]
    return _checked(wanted, values, columns, str(index.path), "row")


def labels_of_clips(clips: Iterable[dict[str, Any]], schema: pa.Schema, wanted: WantedLabels, where: str) -> Labels:
    """Return the labels of explicit clips.

    Args:
        clips: The user's columns of each.
        schema: The types of these columns.
        where: The file of clips, for errors.

    Raises:
        FramedexError: There is no such column, a clip has no label, or the column holds no labels.
    """
    check_is_own(wanted, schema.names, where)
    kind = schema.field(wanted.column).type
    values = pa.chunked_array([pa.array([row.get(wanted.column) for row in clips], kind)])
    return _checked(wanted, values, schema.names, where, "clip")


def _checked(wanted: WantedLabels, values: pa.ChunkedArray, columns: list[str], where: str, unit: str) -> Labels:
    labels = made_labels(wanted, values, where)
    check_name_is_free(labels, columns, where)
    labels.numbered(values, where, unit)
    return labels
