"""Limits on memory and on the nesting of columns, and reuse of memory for pictures."""

import contextlib
import functools
import itertools
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.errors import DecodeError, FramedexError

GIBIBYTE = 1 << 30
KEPT_BYTES = 31 << 20  # glibc adapts to blocks of up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD)
MAX_KEPT_BLOCKS = 256 << 20  # bytes of larger blocks that are kept, which glibc would return to the system

_free_blocks: dict[int, NDArray[np.uint8]] = {}

# The memory limit of a container in control groups of version 2 and 1. A file may contain the word "max", or a number
# above the machine's memory.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
CLIP_SHARE = 4  # one clip may take a quarter of the memory, which leaves room for a batch of smaller ones


@functools.cache
def machine_bytes() -> int:
    """Return the memory of this machine or container in bytes."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(name).read_text(encoding="ascii")))
    return min(found)


def usual_clip_bytes() -> int:
    """Return the memory that the frames of one clip may take, unless the user chose another limit."""
    return machine_bytes() // CLIP_SHARE


def check_room(size_bytes: int, what: str, *, where: str, remedy: str | None = None) -> None:
    """Raise DecodeError if an array would need more memory than this machine has.

    Args:
        size_bytes: The memory that is needed.
        what: The name and dimensions of the array, for the message.
        where: The clip or file, for the message.
        remedy: How to need less memory, for the message.
    """
    if size_bytes > machine_bytes():
        raise DecodeError(
            "needs more memory than this machine has",
            where=where,
            found=f"{what}: {size_bytes / GIBIBYTE:,.1f} GiB",
            allowed=f"{machine_bytes() / GIBIBYTE:,.1f} GiB",
            remedy=remedy,
        )


@functools.cache
def keep_freed_memory() -> None:
    """Let this process reuse the memory of freed pictures for the next pictures.

    glibc returns the memory of a picture to the system when it is freed, and the system clears each page again for the
    next picture. On virtual machines, that takes longer than converting the picture. glibc adapts to blocks that are
    freed: it then keeps blocks of that size, and up to twice that size of free memory. So one block is allocated here,
    not touched, and freed. Other C libraries are not affected.
    """
    np.empty(KEPT_BYTES, np.uint8)


def pixel_array(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an uint8 array with arbitrary content.

    When a large array and all its views are freed, its memory is kept for the next arrays, up to `MAX_KEPT_BLOCKS`.
    Otherwise the system would clear 100 MB for each clip of 16 frames of 1080p.
    """
    size_bytes = math.prod(shape)
    if size_bytes <= KEPT_BYTES:
        return np.empty(shape, np.uint8)
    return np.asarray(_Loan(_block(size_bytes), shape))


class _Loan:
    """A block of memory in use. The arrays in the block refer to the loan, so it ends with the last array."""

    def __init__(self, block: NDArray[np.uint8], shape: tuple[int, ...]) -> None:
        self._block = block
        where: tuple[int, bool] = (block.__array_interface__["data"][0], False)
        self.__array_interface__: dict[str, Any] = {"shape": shape, "typestr": "|u1", "data": where, "version": 3}

    def __del__(self, kept: dict[int, NDArray[np.uint8]] = _free_blocks, most: int = MAX_KEPT_BLOCKS) -> None:
        if self._block.nbytes + sum(block.nbytes for block in list(kept.values())) <= most:
            kept[id(self._block)] = self._block


def _block(size_bytes: int) -> NDArray[np.uint8]:
    """Return a free block of at most twice the size, or a new one."""
    for key, block in list(_free_blocks.items()):
        if size_bytes <= block.nbytes <= 2 * size_bytes and _free_blocks.pop(key, None) is not None:
            return block
    _free_blocks.clear()  # none fits, so pictures have another size now
    return np.empty(size_bytes, np.uint8)


# Libraries read nested columns recursively. Parquet's reader accepts 100 levels of a schema, and a list takes up to
# three of them. orjson stops at 254 levels, and pyarrow's JSON reader overflows its stack at a greater depth.
MAX_NESTED = 32
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def json_depth(text: str) -> int:
    """Return the nesting depth of a JSON text. An object or list of plain values has depth 1.

    The result is an upper bound if it is at most MAX_NESTED. For a text that is not JSON, the result has no meaning.
    """
    brackets = text.count("[") + text.count("{")
    if brackets <= MAX_NESTED:  # the text cannot be too deep, so it need not be scanned
        return brackets
    steps = ((token[0] in "[{") - (token[0] in "]}") for token in _TOKENS.finditer(text))
    return max(itertools.accumulate(steps), default=0)


def type_depth(kind: pa.DataType) -> int:
    """Return the nesting depth of an Arrow type: 0 for plain values."""
    depth, kinds = 0, [kind]
    while kinds := [kind.field(number).type for kind in kinds for number in range(kind.num_fields)]:
        depth += 1
    return depth


def check_depth(levels: int, where: str, error: type[FramedexError]) -> None:
    """Raise an error of the given type if columns have too many levels."""
    if levels > MAX_NESTED:
        raise error(
            "a user column is nested too deeply",
            where=where,
            found=f"{levels} levels",
            allowed=f"up to {MAX_NESTED}",
            remedy="store it as a text, or as columns of its own",
        )
