"""The splits that a dataset gave to groups of rows, which a grown dataset keeps (`split: {keep: DATASET}`)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from framedex.core.column_rules import reading
from framedex.errors import FormatError, PolicyError
from framedex.files.headers import check_format
from framedex.files.row_groups import read_all
from framedex.sharder.configuration.splits import Split, group_text
from framedex.sharder.schema import COLUMNS_NAME, FIELDS, FIELDS_NAME, FORMAT, HEADER, SCHEMA_VERSION
from framedex.storage.places import Place, place

SPLIT_COLUMN = "split"  # of clips: the user's column of that name, or the result of the policy's split
REMEDY = "name a dataset that was made with this split, by a version of framedex that records columns (3.5 or later)"


def kept_splits(split: Split) -> dict[str, str]:
    """Return the split of each group of rows in the dataset `split.keep`. Without one, there are none.

    Raises:
        FormatError: There is no dataset, or it lacks a column.
        PolicyError: A group has several splits there, or one that the policy's shares lack.
    """
    if split.keep is None:
        return {}
    assert split.shares is not None  # as `Split` checked
    where = place(split.keep)
    check_format(where, file_name=HEADER, expected=FORMAT, version=SCHEMA_VERSION, what="a framedex dataset")
    groups, splits = (_column(where, name) for name in (split.by, SPLIT_COLUMN))
    pairs = pa.table({"group": groups, "split": splits}).group_by(["group", "split"]).aggregate([]).to_pylist()
    known: dict[str, str] = {}
    names = [name for name, _ in split.shares]
    for pair in pairs:
        group, name = group_text(pair["group"]), pair["split"]
        if known.setdefault(group, name) != name:
            raise PolicyError(
                "a group has several splits in the dataset whose splits are kept",
                where=f"split, keep: {split.keep}, {split.by} {group!r}",
                found=f"{known[group]} and {name}",
                remedy="split by the column by which that dataset was split",
            )
        if name not in names:
            raise PolicyError(
                "the dataset whose splits are kept has a split without a share",
                where=f"split, keep: {split.keep}",
                found=str(name),
                allowed=", ".join(names),
            )
    return known


def _column(dataset: Place, name: str) -> pa.ChunkedArray:
    """Return a column of all clips of a dataset."""
    path = dataset / (FIELDS_NAME if name in FIELDS.names else COLUMNS_NAME)
    if path.exists():
        with reading(str(path), REMEDY):
            table = read_all(path, [name])
            if name in table.column_names:
                column: pa.ChunkedArray = table[name]
                return pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
    raise FormatError("the dataset has no such column", where=str(path), found=name, remedy=REMEDY)
