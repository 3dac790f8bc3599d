"""Limits on memory and on the nesting depth of columns, and reuse of the memory of pictures."""

import contextlib
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.errors import DecodeError, FramedexError

GIBIBYTE = 1 << 30
# Size of the largest blocks that glibc can be made to keep when they are freed (mallopt(3), M_MMAP_THRESHOLD: 32 MiB).
KEPT_BYTES = 31 << 20
# Maximum total size of the free blocks that this module keeps: blocks above KEPT_BYTES, which glibc does not keep.
MAX_KEPT_BLOCKS = 256 << 20

_free_blocks: dict[int, NDArray[np.uint8]] = {}

# Files with the memory limit of a container, in version 2 and in version 1 of Linux control groups. If there is no
# limit, the file contains the word "max", or a number above the machine's memory.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
CLIP_SHARE = 4  # one clip may take a quarter of the memory, so that a batch of smaller clips also fits


Entry = TypeVar("Entry")


def groups_within(entries: Iterable[Entry], most: int, size: Callable[[Entry], int]) -> Iterator[list[Entry]]:
    """Yield entries in order, in groups of at most the total size `most`. A larger entry forms a group alone."""
    group: list[Entry] = []
    total = 0
    for entry in entries:
        own = size(entry)
        if group and total + own > most:
            yield group
            group, total = [], 0
        group.append(entry)
        total += own
    if group:
        yield group


def bytes_of(text: str) -> int | None:
    """Return the number of bytes for a text such as `512MB`, `1.5GiB` or `100000`. None if it is not such a text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    found = float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " ") if match else 0
    return int(found) if found >= 1 else None


@functools.cache
def machine_bytes() -> int:
    """Return the memory of this machine in bytes, or the limit of this container if it is lower."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(name).read_text(encoding="ascii")))
    return min(found)


def usual_clip_bytes() -> int:
    """Return the default limit on the memory of the frames of one clip, in bytes."""
    return machine_bytes() // CLIP_SHARE


def check_room(size_bytes: int, what: str, *, where: str, remedy: str | None = None) -> None:
    """Raise DecodeError if an array would need more memory than this machine has.

    Args:
        size_bytes: The size of the array in bytes.
        what: The name and dimensions of the array, for the message.
        where: The clip or file, for the message.
        remedy: A way to use less memory, for the message.
    """
    if size_bytes > machine_bytes():
        raise DecodeError(
            "an array needs more memory than this machine has",
            where=where,
            found=f"{what}: {size_bytes / GIBIBYTE:,.1f} GiB",
            allowed=f"{machine_bytes() / GIBIBYTE:,.1f} GiB",
            remedy=remedy,
        )


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep the memory of freed pictures, so that this process reuses it for the next pictures.

    By default, glibc returns the memory of a large picture to the system when the picture is freed. The system must
    then clear each memory page for the next picture. On virtual machines, that takes longer than converting the
    picture. When a large block is freed, glibc raises its threshold: from then on, it keeps freed blocks up to the size
    of this block, and free memory up to twice this size. So this function allocates and frees one block of the largest
    possible size, without writing to the block. With other C libraries, the function has no effect.
    """
    np.empty(KEPT_BYTES, np.uint8)


def pixel_array(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return a uint8 array with undefined content.

    When a large array and all its views are freed, the memory is kept for the next arrays, up to `MAX_KEPT_BLOCKS`
    bytes. Otherwise, the system would have to clear 100 MB for each clip of 16 frames of 1080p.
    """
    size_bytes = math.prod(shape)
    if size_bytes <= KEPT_BYTES:
        return np.empty(shape, np.uint8)
    return np.asarray(_Loan(_block(size_bytes), shape))


class _Loan:
    """A block of memory that arrays use. Each of these arrays refers to this object.

    So Python frees this object after the last of the arrays. The block can then be used for other arrays.
    """

    def __init__(self, block: NDArray[np.uint8], shape: tuple[int, ...]) -> None:
        self._block = block
        where: tuple[int, bool] = (block.__array_interface__["data"][0], False)
        self.__array_interface__: dict[str, Any] = {"shape": shape, "typestr": "|u1", "data": where, "version": 3}

    def __del__(self, kept: dict[int, NDArray[np.uint8]] = _free_blocks, most: int = MAX_KEPT_BLOCKS) -> None:
        if self._block.nbytes + sum(block.nbytes for block in list(kept.values())) <= most:
            kept[id(self._block)] = self._block


def _block(size_bytes: int) -> NDArray[np.uint8]:
    """Return a free block that is large enough and at most twice as large as needed, or else a new block."""
    for key, block in list(_free_blocks.items()):
        if size_bytes <= block.nbytes <= 2 * size_bytes and _free_blocks.pop(key, None) is not None:
            return block
    _free_blocks.clear()  # no block fits, so pictures now have another size, and the free blocks are useless
    return np.empty(size_bytes, np.uint8)


# Maximum nesting depth of a user column. Libraries read nested columns recursively: Parquet's reader accepts 100 levels
# of a schema, and a list takes up to three of these levels. orjson accepts 254 levels. pyarrow's JSON reader overflows
# its stack at a still greater depth.
MAX_NESTED = 32
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def json_depth(text: str) -> int:
    """Return an upper bound of the nesting depth of a JSON text. A result above MAX_NESTED is the exact depth.

    An object or list without objects or lists in it has depth 1. If a text has at most MAX_NESTED opening brackets,
    their number is the result, since counting brackets is fast. For a text that is not JSON, the result is meaningless.
    """
    brackets = text.count("[") + text.count("{")
    if brackets <= MAX_NESTED:  # the text cannot be nested too deeply, so the exact depth is not needed
        return brackets
    steps = ((token[0] in "[{") - (token[0] in "]}") for token in _TOKENS.finditer(text))
    return max(itertools.accumulate(steps), default=0)


def type_depth(kind: pa.DataType) -> int:
    """Return the nesting depth of an Arrow type. Types that are not nested have depth 0."""
    depth, kinds = 0, [kind]
    while kinds := [kind.field(number).type for kind in kinds for number in range(kind.num_fields)]:
        depth += 1
    return depth


def check_depth(levels: int, where: str, error: type[FramedexError]) -> None:
    """Raise an error if user columns are nested too deeply.

    Args:
        levels: The nesting depth of the most deeply nested column.
        where: The column or file, for the message.
        error: The class of the error.
    """
    if levels > MAX_NESTED:
        raise error(
            "a user column is nested too deeply",
            where=where,
            found=f"{levels} levels",
            allowed=f"up to {MAX_NESTED}",
            remedy="store the column as text, or split it into several columns",
        )
