"""Random numbers that depend only on a seed, a video's name, an epoch and their place, never on earlier draws."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def draws(seed: int, name: str, purpose: str, *, first: int, count: int, epoch: int = 0) -> NDArray[np.uint64]:
    """Return uint64 [count]: numbers `first`, first + 1, … of an endless random stream.

    Each combination of seed, name, purpose and epoch has a stream of its own. It is the raw stream of PCG64 (O'Neill
    2014), which NumPy keeps the same in all its versions.
    """
    purpose = f"{purpose} of epoch {epoch}" if epoch else purpose  # datasets on disk are of epoch 0
    text = f"{seed}\0{purpose}\0{name}".encode("utf-8", "surrogatepass")
    key = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
    generator = np.random.PCG64(key).advance(first)
    return np.asarray(generator.random_raw(count), np.uint64)


def below(drawn: NDArray[np.uint64], limit: int) -> NDArray[Any]:
    """Return the draws as whole numbers from 0 to below `limit`: int64, or Python integers if those do not fit."""
    if limit < 1 << 62:
        return (drawn % np.uint64(limit)).astype(np.int64)
    return drawn.astype(object) * limit >> 64
