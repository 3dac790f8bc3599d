"""The clips of a dataset or a plan that `where` of a loader keeps: by the values of columns, or by an expression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.equal_values import equal_values
from framedex.core.tallies import no_clip_has, tally
from framedex.errors import FramedexError
from framedex.sharder.clips.clip_source import ClipSource
from framedex.sharder.configuration.filters import columns_in, matches, parse_filter

Where: TypeAlias = Mapping[str, object] | str


def clips_where(clips: ClipSource, where: object, path: str) -> NDArray[np.int64]:
    """Return int64, ascending: the numbers of the clips that `where` keeps. Reads only the columns that it names.

    Args:
        where: The value of each column, or a list of values of which it has one; or an expression, as policies have it
            for `filter`.
        path: The dataset or index, for errors.

    Raises:
        FramedexError: `where` is neither, a column does not exist or never has such a value, or no clip is kept.
    """
    asked: Mapping[str, object]
    if isinstance(where, str):
        expression, asked = parse_filter(where), {"where": where}
        columns = {name: clips.column(name) for name in columns_in(where)}
        everything = pa.table({**columns, "": pa.nulls(len(clips))})  # a table without columns would have no rows
        kept = matches(everything, expression, path)
    else:
        asked = _checked(where)
        columns = {name: clips.column(name) for name in asked}
        kept = np.ones(len(clips), np.bool_)
        for name, value in asked.items():
            several = value if isinstance(value, list | tuple | set | frozenset) else (value,)
            kept &= equal_values(columns[name], several, name, path)
    found = np.flatnonzero(kept)
    if asked and not len(found):
        raise no_clip_has(asked, {name: tally(column.chunks) for name, column in columns.items()}, path)
    return found


def _checked(where: object) -> Mapping[str, object]:
    if isinstance(where, Mapping) and all(isinstance(name, str) for name in where):
        return where
    raise FramedexError(
        "where is the values of columns, or an expression",
        found=repr(where)[:80],
        allowed="such as {'split': 'train'}, {'codec': ['h264', 'hevc']} or \"frame_rate > 20 and codec != 'av1'\"",
    )
