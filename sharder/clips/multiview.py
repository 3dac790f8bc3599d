"""Which clips are views of one clip of several views."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.sharder.configuration.views import Missing

ABSENT = -1  # a view that a clip of several views lacks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewsOfClips:
    """The clips of several views of a dataset.

    Attributes:
        names: The views, in the order of arrays.
        missing: What becomes of clips that lack a view.
        item: int64 [clips], ascending: the number of the clip of several views that each clip belongs to.
        view: int64 [clips]: which of `names` each clip is.
    """

    names: list[str]
    missing: Missing
    item: NDArray[np.int64]
    view: NDArray[np.int64]

    def table(self, chosen: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return int64 [items, views]: the clip of each view, ABSENT where there is none.

        Items that lack a view are left out, unless `missing` is "mask".

        Args:
            chosen: int64, ascending, the clips that count; None for all. The table has their places among these.
        """
        item, view = (self.item, self.view) if chosen is None else (self.item[chosen], self.view[chosen])
        there, row = np.unique(item, return_inverse=True)
        table = np.full((len(there), len(self.names)), ABSENT, np.int64)
        table[row, view] = np.arange(len(item))
        return table if self.missing == "mask" else table[(table != ABSENT).all(axis=1)]
