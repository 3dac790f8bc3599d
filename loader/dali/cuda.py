"""What torch reports about a GPU: whether it can be used, and whether its memory is full."""

from __future__ import annotations

import os
import re

import torch

from framedex.errors import FramedexError
from framedex.loader.routing.driver import driver_support

GIBIBYTE = 1 << 30
# The messages of torch, DALI and NVDEC. Each has a RuntimeError of its own.
OUT_OF_MEMORY = re.compile(
    r"out[ _]of[ _]memory|cudaErrorMemoryAllocation|CUDA allocation failed|bad_alloc", re.IGNORECASE
)
VISIBLE = "CUDA_VISIBLE_DEVICES"


def check_cuda(device_id: int) -> None:
    """Raise FramedexError, with what was found and what to do, if torch cannot use the GPU."""
    if torch.version.cuda is None:
        raise _unusable(
            f"torch {torch.__version__}, a build without CUDA",
            "install a build of torch with CUDA, or take device='cpu'",
        )
    if not torch.cuda.is_available():
        hidden = f"{VISIBLE}={os.environ[VISIBLE]!r}" if VISIBLE in os.environ else None
        reason = driver_support(0).reason or hidden or "no GPU that torch can use"
        raise _unusable(reason, "check that nvidia-smi lists a GPU, or take device='cpu'")
    count = torch.cuda.device_count()
    if device_id >= count:
        raise FramedexError(
            "there is no such GPU",
            found=f"cuda:{device_id}",
            allowed="cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}",
            remedy=f"name one of these; {VISIBLE} says which GPUs a process sees",
        )


def _unusable(found: str, remedy: str) -> FramedexError:
    return FramedexError("decoding on a GPU needs an NVIDIA GPU that torch can use", found=found, remedy=remedy)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch, DALI or NVDEC says that the GPU's memory is full."""
    return isinstance(error, torch.OutOfMemoryError) or OUT_OF_MEMORY.search(str(error)) is not None


def free_memory(device_id: int) -> str:
    """Return how much of a GPU's memory is free, in words."""
    free, total = torch.cuda.mem_get_info(device_id)
    return f"{free / GIBIBYTE:.1f} of {total / GIBIBYTE:.1f} GiB free on cuda:{device_id}"
