"""Supplemental enhancement information of H.264 and HEVC: the messages of a unit."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.h26x.nal import unescape

FILM_GRAIN = 19  # payloadType (H.264 D.1.1, HEVC D.2.1): FFmpeg's decoders draw the grain, some until further notice


def sei_payloads(body: bytes) -> list[tuple[int, bytes]]:
    """Return the (payloadType, payload) pairs of an SEI NAL unit without its header (H.264 7.3.2.3.1, HEVC 7.3.5)."""
    rbsp, at = unescape(body), 0
    found: list[tuple[int, bytes]] = []
    while at + 2 <= len(rbsp):
        numbers = []
        for _ in range(2):
            value = 0
            while at < len(rbsp) and rbsp[at] == 255:
                value, at = value + 255, at + 1
            if at >= len(rbsp):
                return found
            numbers.append(value + rbsp[at])
            at += 1
        kind, size = numbers
        found.append((kind, rbsp[at : at + size]))
        at += size
    return found


def is_other_message(head: NDArray[np.uint8], size: NDArray[np.int64], kinds: Collection[int]) -> NDArray[np.bool_]:
    """Return bool [units]: SEI units that consist of a single message, of another type than these.

    Args:
        head: uint8 [units, 2], the first bytes of each behind its header: the type and the size of a message.
        size: int64 [units], how many bytes each has behind its header.
        kinds: payload types that are read.
    """
    kind, message = head[:, 0].astype(np.int64), head[:, 1].astype(np.int64)
    other: NDArray[np.bool_] = ~np.isin(kind, list(kinds)) & (kind < 255) & (message < 255)
    # Emulation prevention only shortens what is left for a second message, which takes two bytes and more.
    return other & (size < 2 + message + 2)


def heads_at(data: NDArray[np.uint8], at: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    """Return uint8 [places, count]: the bytes of `data` from each place on. Behind its end: its last byte."""
    heads: NDArray[np.uint8] = data[np.minimum(at[:, None] + np.arange(count), len(data) - 1)]
    return heads
