"""Batches as torch tensors, where torch is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from framedex.errors import MissingExtraError


def tensor_maker() -> Callable[[Any], Any]:
    """Return a function that makes torch tensors of arrays, and of lists of arrays, without a copy.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "torch", "ClipLoader with output='torch'") from error

    def as_torch(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value)
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            return [torch.from_numpy(entry) for entry in value]
        return value

    return as_torch
