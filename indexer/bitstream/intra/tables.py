"""Base for codecs whose pictures need no other picture, but may need its tables: JPEG, JPEG-LS, PNG."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.base.pictures import CLOSED_START, NO_START, Pictures, pictures_of


@dataclass(slots=True)
class Uses:
    """What one packet uses and leaves behind in a decoder.

    Attributes:
        brings: tables that it defines.
        lacks: tables that it uses and does not define before.
        traits: everything else that a decoder keeps; only compared.
        doubtful: whether its data may end too early.
    """

    brings: set[Hashable] = field(default_factory=set)
    lacks: set[Hashable] = field(default_factory=set)
    traits: list[Hashable] = field(default_factory=list)
    doubtful: bool = False

    def use(self, table: Hashable) -> None:
        """Note that the packet uses a table."""
        if table not in self.brings:
            self.lacks.add(table)


class TableScanner:
    """Base class of scanners for codecs whose pictures may need the tables of earlier pictures.

    Decoding may start where no packet from there on uses a table that came before. A table that no packet brought is
    the decoder's own, which is the same wherever decoding starts. If packets differ in what else a decoder keeps,
    decoding starts at packet 0 only.
    """

    def __init__(self, configuration: bytes) -> None:
        self._needs: list[int] = []  # the earliest packet that each one needs: itself, where it stands alone
        self._provider: dict[Hashable, int] = {}  # which packet brought each table last
        self._needed: set[int] = set()  # packets that others need
        self._traits: set[tuple[Hashable, ...]] = set()
        self._doubtful = False

    @staticmethod
    def uses(data: bytes) -> Uses:
        """Return what a packet uses and leaves behind."""
        raise NotImplementedError

    def feed(self, data: bytes) -> None:
        """Read the next packet in decode order."""
        number, found = len(self._needs), self.uses(data)
        providers = [self._provider[table] for table in found.lacks if table in self._provider]
        self._needed.update(providers)
        self._needs.append(min(providers, default=number))
        self._provider |= dict.fromkeys(found.brings, number)
        self._traits.add(tuple(found.traits))
        self._doubtful |= found.doubtful

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        n = len(self._needs)
        needs = np.minimum.accumulate(np.array(self._needs, np.int64)[::-1])[::-1]  # of each packet and those behind it
        alone: NDArray[np.bool_] = needs == np.arange(n)
        alike = len(self._traits) < 2
        alone[1:] &= alike
        droppable = alone & alike  # what lacks tables may be damaged, and show what is left of the picture before
        droppable[np.fromiter(self._needed, np.int64)] = False
        start = np.where(alone, CLOSED_START, NO_START).astype(np.uint8)
        return pictures_of(start, non_reference=droppable, doubtful=self._doubtful)
