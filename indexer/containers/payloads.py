"""Finds where a file holds the bytes of a packet that libavformat returned."""

from __future__ import annotations

from framedex.storage.reader import Read

PAYLOAD_OFFSETS = (0, 4, 12, 16)  # from packet.pos to the payload: ISO BMFF and AVI, Matroska, IVF and FLV, long FLV
SEARCH_BYTES = 64  # how far after packet.pos a payload may begin otherwise


class PayloadFinder:
    """Finds where a file holds exactly a packet's bytes, starting from the position that the demuxer states.

    It compares the bytes and does not rely on that position.

    Args:
        read: reads ranges of the file.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._delta = 0  # where the last one was found
        self._position, self._end = -1, 0
        self.found_all = True

    def find(self, position: int | None, data: bytes) -> int:
        """Return the offset of a packet's payload, or -1 from the first packet on that was not found."""
        if not self.found_all or position is None or position < 0:
            self.found_all = False
            return -1
        if position == self._position:  # laced: several frames share a block (RFC 9559 10.3)
            candidates: tuple[int, ...] = (self._end,)
        else:
            candidates = (position + self._delta, *(position + delta for delta in PAYLOAD_OFFSETS))
        for offset in candidates:
            if self._read(offset, len(data)) == data:
                return self._note(position, offset, data)
        window = self._read(position, len(data) + SEARCH_BYTES)
        at = window.find(data)
        if at < 0:
            self.found_all = False
            return -1
        return self._note(position, position + at, data)

    def _note(self, position: int, offset: int, data: bytes) -> int:
        self._delta, self._position, self._end = offset - position, position, offset + len(data)
        return offset
