"""Memory that pictures are freed from stays with the process, where the C library is glibc."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

BLOCKS, BLOCK_BYTES, ROUNDS = 3, 6 << 20, 20
SCRIPT = f"""
import resource, sys
from framedex.core.memory import keep_freed_memory
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
