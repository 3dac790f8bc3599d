"""A stretch of a source that is already in memory, from which a clip is read as from its source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.errors import StaleError
from framedex.sharder.clips.byte_source import ByteSource, stale
from framedex.sharder.clips.clip import Clip
from framedex.sharder.reading.sources import EncodedClip, check_content, laid_out


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes of a source that were read before. It reads like `SourceFiles`.

    Attributes:
        first_byte: Where the bytes begin in the source.
        content: uint8 [bytes].
    """

    first_byte: int
    content: NDArray[np.uint8]

    def read(self, clip: Clip) -> EncodedClip:
        """Return the packets of a clip. Raises StaleError if they are not the recorded ones, or not held."""
        encoded, pieces = laid_out(clip)
        for offset, piece in zip(clip.recipe.range_offset.tolist(), pieces, strict=True):
            piece[...] = self._bytes(clip.source, offset, len(piece))
        check_content(clip.source, clip.recipe, pieces)
        return encoded

    def read_ranges(
        self, source: ByteSource, offset: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return uint8 [bytes]: some ranges, joined. Raises StaleError for a range that is not held."""
        pairs = zip(offset.tolist(), length.tolist(), strict=True)
        return np.concatenate([np.zeros(0, np.uint8), *(self._bytes(source, *pair) for pair in pairs)])

    def _bytes(self, source: ByteSource, offset: int, length: int) -> NDArray[np.uint8]:
        begin = offset - self.first_byte
        if begin < 0 or begin + length > len(self.content):
            raise self._missing(source, offset)
        return self.content[begin : begin + length]

    def _missing(self, source: ByteSource, offset: int) -> StaleError:
        return stale(source.path, f"no bytes at {offset}")
