"""Motion JPEG (ITU-T T.81): pictures that bring their tables, and abbreviated ones that rely on earlier tables."""

from __future__ import annotations

import numpy as np

from framedex.indexer.bitstream.pictures import CLOSED_START, NO_START, Pictures, pictures_of

SOI, SOS, DHT, DQT = 0xD8, 0xDA, 0xC4, 0xDB  # markers, table B.1


class MjpegScanner:
    """Scans JPEG pictures, one a packet (or two fields). Tables stay in a decoder: T.81 B.5 calls that abbreviated.

    Decoding may start where a picture brings quantisation and Huffman tables. A stream that never brings Huffman tables
    relies on the typical ones (K.3), which a decoder has from the beginning.
    """

    def __init__(self, configuration: bytes) -> None:
        self._tables: list[tuple[bool, bool]] = []

    def feed(self, data: bytes) -> None:
        """Look at the next packet in decode order."""
        quantisation = huffman = False
        at, size = data.find(b"\xff\xd8") + 2, len(data)
        while 2 <= at < size - 3:
            if data[at] != 0xFF:
                break
            marker = data[at + 1]
            if marker == 0xFF:
                at += 1
                continue
            if marker == SOS:
                break
            quantisation |= marker == DQT
            huffman |= marker == DHT
            at += 2 if marker == SOI else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        self._tables.append((quantisation, huffman))

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        tables = np.array(self._tables, np.bool_).reshape(-1, 2)
        none_before = np.cumsum(tables, axis=0) == tables  # no earlier packet brought any
        alone = np.all(tables | none_before, axis=1)
        start = np.where(alone, CLOSED_START, NO_START).astype(np.uint8)
        return pictures_of(start, non_reference=np.append(alone[1:], True)[: len(alone)])
