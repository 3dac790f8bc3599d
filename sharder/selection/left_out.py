"""The media that a policy's filter leaves out. If it leaves out all, an error says what the media have instead."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from framedex.core.tallies import SHOWN, tally, values_text
from framedex.errors import PolicyError
from framedex.indexer.parts.index import Index
from framedex.sharder.configuration.filters import columns_in
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.selection.mentions import joined_mentions, mentions


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The usable media for which a filter accepts no row. `examples`: the uris of the first ones."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


def left_out(index: Index, file: PolicyFile) -> LeftOut:
    """Return which media a policy's filter leaves out. Raises PolicyError if it leaves out all media."""
    if file.filter is None:
        return LeftOut()
    usable, taken, examples = 0, 0, list[str]()
    for several in mentions(index, file.filter, None):
        there, chosen = len(several.videos), np.unique(several.video)
        usable, taken = usable + there, taken + len(chosen)
        if len(examples) < SHOWN:
            others = np.setdiff1d(np.arange(there), chosen)[:SHOWN]
            examples += several.videos["uri"].take(pa.array(others)).to_pylist()
    if usable and not taken:
        raise _matches_nothing(index, file, usable)
    return LeftOut(count=usable - taken, examples=examples[:SHOWN])


def _matches_nothing(index: Index, file: PolicyFile, usable: int) -> PolicyError:
    text = str(file.resolved["filter"])
    values: dict[str, Counter[str]] = {name: Counter() for name in columns_in(text)}
    for _, _, _, joined in joined_mentions(index):
        for name, counts in values.items():
            counts.update(tally(joined[name].chunks))
    return PolicyError(
        f"the filter leaves out {'the only usable medium' if usable == 1 else f'all {usable:,} usable media'}",
        where=f"filter, asked of {index.path}",
        found=text,
        allowed=values_text(values),
        remedy="ask for values that there are",
    )
