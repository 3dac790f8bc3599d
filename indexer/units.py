"""Finds the samples that hold parameter sets or end a sequence, by a look at the header of every NAL unit in a file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# By the first byte of a NAL unit: those that change how later pictures are decoded. H.264 SPS and PPS (table 7-1); HEVC VPS, SPS
# and PPS, end of sequence, end of bitstream (table 7-1).
_HEADERS = np.arange(256)
LASTING = {
    "h264": np.isin(_HEADERS & 31, (7, 8)),
    "hevc": np.isin(_HEADERS >> 1 & 63, (32, 33, 34, 36, 37)),
}
ENDING = {"h264": np.zeros(256, np.bool_), "hevc": np.isin(_HEADERS >> 1 & 63, (36, 37))}
MOST_UNITS = 4096  # of a sample; one with more counts as found
SPARSE_BYTES = 64 << 10  # a sample on average; of larger ones, single pages are read, at the same time

Heads = Callable[[NDArray[np.int64], int], NDArray[np.uint8]]  # (offsets [n], bytes) → uint8 [n, bytes]


def find_lasting(
    descriptor: int, codec: str, length_size: int, offset: NDArray[np.int64], size: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return bool [samples]: those that hold a unit which changes how later pictures are decoded, or that follow the end of a
    sequence.

    descriptor: an open file, in which samples of `size` bytes lie at `offset`, int64 [samples] each, within the file.
    length_size: bytes of each unit's length. A file that is cut short meanwhile ends this process (SIGBUS), as a crash of a worker.
    """
    if size.mean() > SPARSE_BYTES:
        return _find(lambda at, count: _read_apart(descriptor, at, count), codec, length_size, offset, size)
    data = np.frombuffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ), np.uint8)
    return _find(lambda at, count: data[at[:, None] + np.arange(count)], codec, length_size, offset, size)


def _read_apart(descriptor: int, offset: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    """Read `count` bytes at each offset. The kernel is told of all first, so that a disk seeks them at the same time."""
    places = offset.tolist()
    for at in places:
        os.posix_fadvise(descriptor, at, count, os.POSIX_FADV_WILLNEED)
    data = b"".join(os.pread(descriptor, count, at).ljust(count, b"\0") for at in places)
    return np.frombuffer(data, np.uint8).reshape(len(places), count)


def _find(
    heads: Heads, codec: str, length_size: int, offset: NDArray[np.int64], size: NDArray[np.int64]
) -> NDArray[np.bool_]:
    found, ended = np.zeros(len(offset), np.bool_), np.zeros(len(offset), np.bool_)
    sample, at, end = np.arange(len(offset)), offset, offset + size
    for _ in range(MOST_UNITS):
        whole = at + length_size < end
        sample, at, end = sample[whole], at[whole], end[whole]
        if not len(sample):
            break
        head = heads(at, length_size + 1)
        length = np.zeros(len(at), np.int64)
        for byte in range(length_size):
            length = length << 8 | head[:, byte]
        header = head[:, length_size]
        some = length > 0
        found[sample[LASTING[codec][header] & some]] = True
        ended[sample[ENDING[codec][header] & some]] = True
        at = at + length_size + length
    found[sample] = True
    found[1:] |= ended[:-1]
    return found
