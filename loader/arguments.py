"""Checks of the arguments of ClipLoader and of the samplers."""

import re
from typing import Literal

import numpy as np

from framedex.core.limits import bytes_of
from framedex.errors import FramedexError

Device = Literal["cpu", "gpu"]
Decode = Literal["auto", "gpu", "cpu"]
Last = Literal["partial", "drop", "pad"]
Output = Literal["torch", "numpy"]
Unit = Literal["clips", "batches"]  # the kind of a sampler's entries: single clip numbers, or lists of clip numbers


def placed(device: object, device_id: int) -> tuple[Device, int]:
    """Parse ClipLoader's `device` argument. Return the kind of the device and the index of the GPU.

    Args:
        device: The argument of ClipLoader, such as "cpu", "gpu", "cuda", "cuda:1" or a torch.device.
        device_id: The index of the GPU. It is used if `device` contains no index.

    Returns:
        "cpu" or "gpu", and the index of the GPU. The index is 0 for "cpu".

    Raises:
        FramedexError: `device` is not one of these values, or its index differs from `device_id`.
    """
    match = re.fullmatch(r"cpu|gpu|cuda(?::(\d{1,4}))?", str(device))
    if match is None:
        raise FramedexError("unknown device", found=repr(device), allowed="'cpu', 'gpu', 'cuda', 'cuda:0', 'cuda:1', …")
    number = device_id if match[1] is None else int(match[1])
    if number != device_id != 0:  # device_id=0 is the default: `device` may contain another index
        raise FramedexError(
            "device and device_id select different GPUs",
            found=f"{device!r} and {device_id}",
            remedy="leave out device_id",
        )
    return ("cpu", 0) if match[0] == "cpu" else ("gpu", number)


def check_counts(**counts: tuple[int, int]) -> None:
    """Raise FramedexError if an argument is not a whole number, or is too small.

    Args:
        counts: For each argument, by its name, a tuple (value, smallest allowed value).
    """
    for name, (value, least) in counts.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise FramedexError(f"{name} is out of range", found=repr(value), allowed=f"{least} or more")


def byte_count(name: str, value: object) -> int:
    """Return the number of bytes for an argument: a number, or a text such as "512MB". Raises FramedexError.

    Args:
        name: The name of the argument.
        value: The value that the user gave.
    """
    found = bytes_of(value) if isinstance(value, str) else value
    if isinstance(found, bool) or not isinstance(found, int | np.integer) or found < 0:
        raise FramedexError(
            f"{name} is not a number of bytes", found=repr(value), allowed="such as 500_000_000, '500MB', '1.5GiB'"
        )
    return int(found)


def check_normalize(normalize: object) -> None:
    """Raise FramedexError unless `normalize` is None, or (mean, std) with three finite numbers each and std above 0."""
    if normalize is None:
        return
    try:
        values = np.array(normalize, np.float64)
    except (TypeError, ValueError):
        values = np.zeros(0)
    if values.shape != (2, 3) or not np.isfinite(values).all() or not (values[1] > 0).all():
        raise FramedexError(
            "normalize must be (mean, std) for RGB in 0…1, with three numbers each and every std above 0",
            found=repr(normalize)[:80],
            allowed="such as ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))",
        )


def check_batch_sampler(*, batch_size: int, sampler: object, last: Last) -> None:
    """Raise FramedexError if arguments are given that cannot be combined with a sampler of batches."""
    given = {"batch_size": batch_size != 1, "sampler": sampler is not None, "last": last != "partial"}
    twice = [name for name, is_given in given.items() if is_given]
    if twice:
        raise FramedexError(
            "batch_sampler determines the batches, so other arguments for batches cannot be given",
            found=f"batch_sampler and {', '.join(twice)}",
            remedy=f"leave out {', '.join(twice)}, or batch_sampler",
        )


def check_unit(found: Unit, wanted: Unit) -> None:
    """Raise FramedexError if a sampler of batches was given as `sampler`, or a sampler of clips as `batch_sampler`."""
    if found != wanted:
        right = "sampler" if found == "clips" else "batch_sampler"
        raise FramedexError(f"the sampler yields {found}, not {wanted}", remedy=f"pass it as {right}=")
