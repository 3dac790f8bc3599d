"""Memory that pictures are freed from is used again."""

from __future__ import annotations

import platform
import subprocess
import sys

import numpy as np
import pytest

from framedex.core import limits

BLOCKS, BLOCK_BYTES, ROUNDS = 3, 6 << 20, 20
SCRIPT = f"""
import resource, sys
from framedex.core.limits import keep_freed_memory
if sys.argv[1] == "keeping":
    keep_freed_memory()
for number in range({ROUNDS + 1}):
    blocks = [bytearray({BLOCK_BYTES}) for _ in range({BLOCKS})]
    del blocks
    if number == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    """Return how many pages the system cleared for blocks like those that were freed before."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_used_again() -> None:
    assert page_faults("keeping") < ROUNDS
    assert page_faults("as it is") > 100 * ROUNDS


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    limits._free_blocks.clear()


def test_a_large_array_s_memory_is_used_again_when_its_last_view_is_gone() -> None:
    first = limits.pixel_array((3, limits.KEPT_BYTES))
    assert (first.shape, first.dtype) == ((3, limits.KEPT_BYTES), np.uint8)
    where, view = address(first), first[1:, ::2]
    view[...] = 7
    del first
    other = limits.pixel_array((3, limits.KEPT_BYTES))
    assert address(other) != where
    assert (view == 7).all()
    del view
    assert address(limits.pixel_array((2, limits.KEPT_BYTES))) == where


def test_arrays_that_are_alive_share_no_memory() -> None:
    made = [limits.pixel_array((2, limits.KEPT_BYTES)) for _ in range(3)]
    for number, array in enumerate(made):
        array[...] = number
    assert [set(array[:, ::1000].ravel().tolist()) for array in made] == [{0}, {1}, {2}]


def test_kept_memory_is_bounded() -> None:
    made = [limits.pixel_array((2, limits.KEPT_BYTES)) for _ in range(8)]
    del made
    kept = sum(block.nbytes for block in limits._free_blocks.values())
    assert 0 < kept <= limits.MAX_KEPT_BLOCKS
    too_large = limits.pixel_array((limits.MAX_KEPT_BLOCKS + 1,))
    assert not limits._free_blocks  # they do not fit
    del too_large
    assert not limits._free_blocks


def test_small_arrays_are_numpy_s_own() -> None:
    assert limits.pixel_array((2, 3)).base is None
