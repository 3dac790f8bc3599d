"""Warns once that frames lose the lower bits of their samples: they are delivered as uint8, whatever the medium has."""

from __future__ import annotations

import warnings

from framedex.errors import printable
from framedex.sharder.clips.medium import Medium

MOST_BITS = 8  # per sample of a delivered frame
_told: set[str] = set()  # places for which this process has already warned


def warn_of_lost_bits(place: str, medium: Medium) -> None:
    """Warn, once per dataset in this process, of the first medium whose samples have more bits than frames have.

    Args:
        place: the place of the dataset or index.
        medium: the medium of a clip whose frames are decoded.
    """
    if place in _told or medium.bits <= MOST_BITS:
        return
    _told.add(place)
    warnings.warn(
        f"{printable(place)}: the samples of {printable(medium.uri)} have more than {MOST_BITS} bits "
        f"({medium.bits}, {medium.pixel_format}); frames are uint8, and the lower bits are lost. "
        "ClipDataset(dtype='uint16') keeps them. `framedex audit --check more_than_8_bits` lists all such media",
        stacklevel=4,
    )
