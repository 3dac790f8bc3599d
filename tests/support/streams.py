"""Helpers for tests of streams: packed datasets of small videos, and comparison of items."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support import media
from tests.support.datasets import run
from tests.support.pictures import rgb_of


def same_item(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether two items have the same keys, with values of the same types, shapes and contents."""
    return ours.keys() == theirs.keys() and all(same_value(ours[key], theirs[key]) for key in ours)


def same_value(one: object, other: object) -> bool:
    """Return whether two values are the same, of the same type. NaN is the same as NaN."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        is_float = one.dtype.kind == "f"
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=is_float)
    return type(one) is type(other) and (one == other or (one != one and other != other))


def full_rgb(path: Path, medium: Any) -> list[NDArray[np.uint8]]:
    """Return uint8 [H, W, 3] of every frame of a file, decoded from its beginning to its end."""
    colours = medium.color_matrix, {"limited": 1, "full": 2}.get(medium.color_range, 0)
    return [rgb_of(frame, *colours) for frame in media.full_decode(path)]


def pack(index: Path, out: Path, policy: str, *options: object, code: int = 0) -> Path:
    """Shard an index into tars by a policy; return the dataset's path."""
    path = out.with_suffix(".yaml")
    path.write_text(policy, encoding="utf-8")
    run("shard", index, "--policy", path, "--out", out, *options, code=code)
    return out
