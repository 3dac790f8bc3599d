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
    if isinstance(where, str):
        expression = parse_filter(where)
        names = columns_in(where)
        table = pa.table({name: clips.column(name) for name in names})
        kept = matches(table, expression, path) if names else np.ones(len(clips), np.bool_)
        asked: Mapping[str, object] = {"where": where}
    else:
        asked = _checked(where)
        names = list(asked)
        kept = np.ones(len(clips), np.bool_)
        for name, value in asked.items():
            kept &= _has(clips.column(name), value, name, path)
    found = np.flatnonzero(kept)
    if names and not len(found):
        raise no_clip_has(asked, {name: tally(clips.column(name).chunks) for name in names}, path)
    return found


def _has(column: pa.ChunkedArray, value: object, name: str, path: str) -> NDArray[np.bool_]:
    """Return bool [clips]: which clips have a value, or one of several."""
    kept = np.zeros(len(column), np.bool_)
    for one in value if isinstance(value, list | tuple | set | frozenset) else (value,):
        kept |= equal_values(column, one, name, path)
    return kept


def _checked(where: object) -> Mapping[str, object]:
    if isinstance(where, Mapping) and all(isinstance(name, str) for name in where):
        return where
    raise FramedexError(
        "where is the values of columns, or an expression",
        found=repr(where)[:80],
        allowed="such as {'split': 'train'}, {'codec': ['h264', 'hevc']} or \"frame_rate > 20 and codec != 'av1'\"",
    )
