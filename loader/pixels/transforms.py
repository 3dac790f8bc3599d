"""Calls the user's transform of a clip's frames, with random numbers that depend only on the seed, epoch and clip."""

from __future__ import annotations

import contextlib
import pickle
import random
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError, TransformError
from framedex.loader.pixels.cutouts import Draw

Transform = Callable[[Any], Any]
NUMPY_SEED_BITS = 32  # of numpy's global generator


def transformed(frames: NDArray[Any], transform: Transform, draw: Draw) -> Any:
    """Return what a transform makes of a clip's frames: a torch tensor where torch is installed, otherwise an array.

    Args:
        frames: the frames in the layout that the transform takes.
        transform: the user's function.
        draw: seeds the global generators of Python, numpy and torch during the call.

    Raises:
        TransformError: the transform raises an exception.
    """
    with _seeded(draw):
        try:
            return transform(_tensor(frames))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise TransformError(
                f"the transform fails on clip {draw.name}",
                found=f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})",
                remedy=f"the transform got {frames.dtype} of shape {frames.shape}; layout= chooses the order of axes",
            ) from error


def sendable(value: Any) -> Any:
    """Return the result of a transform as it is sent to another process: tensors as arrays.

    Raises:
        TransformError: numpy has no such numbers.
    """
    torch = _torch()
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    try:
        return value.detach().cpu().contiguous().numpy()
    except TypeError as error:
        raise TransformError(
            "ClipLoader collates frames as numpy arrays, which cannot have this type",
            found=str(value.dtype),
            remedy="have the transform return float32 or float16, and convert batches",
        ) from error


def check_transform(transform: object, *, workers: int = 0) -> None:
    """Raise FramedexError if a transform cannot be called, or if it cannot be sent to worker processes."""
    if transform is not None and not callable(transform):
        raise FramedexError("transform is a function of a clip's frames", found=repr(transform)[:80])
    if transform is None or not workers:
        return
    try:
        pickle.dumps(transform)
    except Exception as error:
        raise FramedexError(
            "the transform cannot be sent to worker processes",
            found=f"{type(error).__name__}: {error}",
            remedy="define it with def at the top of a module, not inside a function or as lambda; or num_workers=0",
        ) from error


def _tensor(frames: NDArray[Any]) -> Any:
    torch = _torch()
    return frames if torch is None else torch.from_numpy(frames)


def _torch() -> Any:
    """Return torch, or None where it is not installed."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    return torch


@contextlib.contextmanager
def _seeded(draw: Draw) -> Iterator[None]:
    """Seed the global generators of Python, numpy and torch (on the CPU), and restore their states afterwards."""
    (number,) = draw.numbers("transform", 1)
    torch = _torch()
    of_python, of_numpy = random.getstate(), np.random.get_state()
    of_torch = None if torch is None else torch.get_rng_state()
    try:
        random.seed(number)
        np.random.seed(number >> (64 - NUMPY_SEED_BITS))
        if torch is not None:
            torch.default_generator.manual_seed(number)  # `torch.manual_seed` would also seed GPUs
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if torch is not None:
            torch.set_rng_state(of_torch)
