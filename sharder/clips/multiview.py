"""Which clips are views of one clip of several views."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.sharder.schema import Missing

ABSENT = -1  # a view that a clip of several views lacks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedViews:
    """Which clips belong together.

    Attributes:
        names: The views, in the order of arrays.
        table: int64 [items, views]: the place of each view's clip among those that were chosen, ABSENT where an item
            lacks the view.
        examples: For each view, the number of a clip of it in the whole dataset, and that of the clip that leads its
            item.
    """

    names: list[str]
    table: NDArray[np.int64]
    examples: dict[str, tuple[int, int]]


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

    def joined(self, chosen: NDArray[np.int64] | None = None) -> JoinedViews:
        """Return the clips of several views. Those that lack a view are left out, unless `missing` is "mask".

        Args:
            chosen: int64, ascending, the clips that count; None for all.
        """
        item, view = (self.item, self.view) if chosen is None else (self.item[chosen], self.view[chosen])
        there, row = np.unique(item, return_inverse=True)
        table = np.full((len(there), len(self.names)), ABSENT, np.int64)
        table[row, view] = np.arange(len(item))
        kept = table if self.missing == "mask" else table[(table != ABSENT).all(axis=1)]
        examples = {name: self._example(place) for place, name in enumerate(self.names)} if len(self.item) else {}
        return JoinedViews(names=self.names, table=kept, examples=examples)

    def _example(self, place: int) -> tuple[int, int]:
        """Return the first clip of a view, and the first clip of the same item; the first of all if it has none."""
        having = np.flatnonzero(self.view == place)
        own = int(having[0]) if len(having) else 0
        return own, int(np.argmax(self.item == self.item[own]))
