"""The labels of the clips that are loaded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.sharder.clips.clip_source import ClipSource
from framedex.sharder.clips.labels import (
    Labels,
    LabelsArgument,
    check_is_own,
    check_name_is_free,
    made_labels,
    wanted_labels,
)


def labels_of(
    origin: ClipSource, labels: LabelsArgument | None, chosen: NDArray[np.int64] | None = None
) -> Labels | None:
    """Return the labels of a dataset's clips; None if the values of no column are numbered.

    Args:
        origin: all clips.
        labels: as for ClipDataset. None: those that the dataset records.
        chosen: int64, the clips that are loaded; None for all.

    Raises:
        FramedexError: `labels` is wrong, there is no such column, or a clip that is loaded has no label.
    """
    recorded, where = origin.labels, str(origin.path)
    if labels is None:
        return recorded
    wanted = wanted_labels(labels)
    if recorded is not None and wanted.numbers is None and wanted.column == recorded.column:
        return recorded
    check_is_own(wanted, origin.columns, where)
    found = made_labels(wanted, origin.label_values(wanted.column), where)
    check_name_is_free(found, origin.columns, where)
    values = origin.column(wanted.column)
    found.numbered(values if chosen is None else values.take(pa.array(chosen)), where)
    return found


def classes_of(labels: Labels | None, reader: str, path: object) -> list[str]:
    """Return the names of labels, by their numbers.

    Args:
        labels: those of a dataset. None: it has none.
        reader: the class that reads the dataset, for the error.
        path: the dataset or index, for the error.

    Raises:
        FramedexError: the dataset has no labels.
    """
    if labels is None:
        raise FramedexError(
            "the dataset has no labels",
            where=str(path),
            remedy=f"{reader}(…, labels='label') numbers the values of the column label",
        )
    return labels.classes
