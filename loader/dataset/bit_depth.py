"""Warns once that frames lose the lower bits of their samples: they are delivered as uint8, whatever the medium has."""

from __future__ import annotations

from framedex.core.user_lines import user_line, warn_at
from framedex.execution.shared_number import SharedNumber
from framedex.sharder.clips.medium import Medium

MOST_BITS = 8  # per sample of a delivered frame


class LostBits:
    """Warns of the first medium whose samples have more bits than frames have, once for all copies of a dataset.

    Args:
        place: the place of the dataset or index.
    """

    def __init__(self, place: str) -> None:
        self._place, self._warned = place, SharedNumber()
        self._line = user_line()

    def warn(self, medium: Medium) -> None:
        """Warn of a clip's medium, if frames lose bits and no process has warned before.

        The warning names the line that opened the dataset, because a worker process has no line of the user.
        """
        if medium.bits <= MOST_BITS or not self._warned.claim():
            return
        message = (
            f"{self._place}: the samples of {medium.uri} have more than {MOST_BITS} bits "
            f"({medium.bits}, {medium.pixel_format}); frames are uint8, and the lower bits are lost. "
            "ClipDataset(dtype='uint16') keeps them. `framedex audit --check more_than_8_bits` lists all such media"
        )
        warn_at(self._line, message)
