"""The clips of a dataset before media were removed from it, so that a run can finish an epoch that it had begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from framedex.errors import FramedexError


class Generation(NamedTuple):
    """A generation of a dataset that was changed since.

    Attributes:
        number: The number of the generation.
        version: The version of the dataset, as `ClipDataset.version`.
        clips: The number of clips.
    """

    number: int
    version: str | None
    clips: int


@dataclass(frozen=True, kw_only=True, eq=False)
class EarlierClips:
    """The clips that a dataset had in a generation. For a sampler, it is a dataset, but it has no items.

    Attributes:
        version: The version of the dataset then.
        numbers: int64 [clips then], the number that each clip has in the dataset for which `earlier` was called, or -1
            if it was removed.
        media: int64 [clips then], the number of each clip's medium.
        tars: int64 [clips then], the number of each clip's tar, or -1.
        removed: The table `removed`.
        generations: All generations before, in order.
    """

    version: str | None
    numbers: NDArray[np.int64]
    media: NDArray[np.int64]
    tars: NDArray[np.int64]
    removed: pa.Table
    generations: Sequence[Generation]

    def __len__(self) -> int:
        return len(self.numbers)

    def places(self, kind: Literal["tar", "medium"]) -> NDArray[np.int64]:
        """Return int64 [clips then]: the number of the tar or medium of each clip, as `ClipDataset.places`."""
        if kind == "medium":
            return self.media
        if self.tars.max(initial=-1) < 0:
            raise FramedexError("the dataset had no tars")
        return np.maximum.accumulate(self.tars)

    def earlier(self, version: str | None) -> EarlierClips | None:
        """Return the clips that the dataset had in a version before, or None if it had no such version.

        Raises:
            ValueError: The table `removed` does not fit to the numbers of clips.
        """
        found = replace(self, numbers=np.arange(len(self), dtype=np.int64))
        for place in reversed(range(len(self.generations))):
            found = found._before(self.generations[place], self.generations[:place])
            if found.version == version:
                return found
        return None

    def _before(self, generation: Generation, generations: Sequence[Generation]) -> EarlierClips:
        """Return the clips of the generation before. `generations` are those before that one."""
        is_now = pc.greater(self.removed["generation"], generation.number)
        rows, earlier = self.removed.filter(is_now), self.removed.filter(pc.invert(is_now))
        rows = rows.filter(pc.greater(rows["stop_clip"], rows["first_clip"])).sort_by("first_clip")
        columns = ("first_clip", "stop_clip", "media_row", "shard")
        first, stop, media, tars = (rows[name].fill_null(-1).to_numpy().astype(np.int64) for name in columns)
        count = len(self) + int((stop - first).sum())
        if count < generation.clips:
            raise ValueError(f"generation {generation.number} had {generation.clips:,} clips, not {count:,}")
        if len(rows) and (first.min() < 0 or stop.max() > generation.clips or (first[1:] < stop[:-1]).any()):
            raise ValueError("the positions of removed clips overlap")
        stays = np.ones(count, np.bool_)
        values: dict[str, Any] = {name: np.full(count, -1, np.int64) for name in ("numbers", "media", "tars")}
        for one in range(len(rows)):
            here = slice(first[one], stop[one])
            stays[here], values["media"][here], values["tars"][here] = False, media[one], tars[one]
        for name, found in values.items():
            found[stays] = getattr(self, name)
            values[name] = found[: generation.clips]  # clips that were appended follow
        return replace(self, version=generation.version, removed=earlier, generations=generations, **values)
