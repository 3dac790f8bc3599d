"""Steps of a loader on a GPU that need only torch, and no DALI: checks, the last form of frames, copies to the host."""

import os
import re
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from framedex.core.limits import GIBIBYTE
from framedex.errors import FramedexError
from framedex.loader.batches.frames import Finish
from framedex.loader.pixels.options import CHANNEL_AXIS
from framedex.loader.routing.driver import driver_support
from framedex.sharder.decoding.cutout import Cutout, cut_into

VISIBLE = "CUDA_VISIBLE_DEVICES"


def check_cuda(device_id: int) -> None:
    """Raise FramedexError if torch cannot use the GPU with this number."""
    if torch.version.cuda is None:
        raise _unusable(
            f"torch {torch.__version__}, a build without CUDA",
            "install a build of torch with CUDA, or use device='cpu'",
        )
    if not torch.cuda.is_available():
        hidden = f"{VISIBLE}={os.environ[VISIBLE]!r}" if VISIBLE in os.environ else None
        reason = driver_support(0).reason or hidden or "no GPU that torch can use"
        raise _unusable(reason, "check that nvidia-smi lists a GPU, or use device='cpu'")
    count = torch.cuda.device_count()
    if device_id >= count:
        raise FramedexError(
            "there is no such GPU",
            found=f"cuda:{device_id}",
            allowed="cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}",
            remedy=f"choose an allowed GPU; {VISIBLE} sets the GPUs that a process can use",
        )


def _unusable(found: str, remedy: str) -> FramedexError:
    return FramedexError("decoding on a GPU needs an NVIDIA GPU that torch can use", found=found, remedy=remedy)


# The messages by which RuntimeErrors of torch, DALI and NVDEC say that GPU memory is full.
OUT_OF_MEMORY = re.compile(
    r"out[ _]of[ _]memory|cudaErrorMemoryAllocation|CUDA allocation failed|bad_alloc", re.IGNORECASE
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch, DALI or NVDEC means that the GPU's memory is full."""
    return isinstance(error, torch.OutOfMemoryError) or OUT_OF_MEMORY.search(str(error)) is not None


def free_memory(device_id: int) -> str:
    """Return a text with the free and the total memory of a GPU."""
    free, total = torch.cuda.mem_get_info(device_id)
    return f"{free / GIBIBYTE:.1f} of {total / GIBIBYTE:.1f} GiB free on cuda:{device_id}"


class FrameFinisher:
    """Normalizes frames on a GPU, and lays them out.

    Args:
        finish: The wanted form. Its transforms are not applied.
    """

    def __init__(self, finish: Finish) -> None:
        self._finish = finish
        self._constants: tuple[Tensor, ...] = ()  # copied to the GPU once, because that waits for the GPU

    def __call__(self, frames: Any) -> Any:
        """Return frames in the wanted form.

        Args:
            frames: uint8 or uint16 […, F, H, W, 3] on a GPU, or a list of such tensors. Frames of uint16 may be viewed
                as int16, because torch has few operations for uint16 on a GPU.
        """
        if isinstance(frames, list):
            return [self(one) for one in frames]
        if frames.dtype == torch.uint16:
            frames = frames.view(torch.int16)
        if self._finish.normalize is not None:
            if not self._constants:
                values = self._finish.scale_and_offset()
                self._constants = tuple(torch.from_numpy(one).to(frames.device) for one in values)
            scale, offset = self._constants
            wide = frames.to(torch.int32) & 0xFFFF if frames.dtype == torch.int16 else frames
            frames = torch.addcmul(offset, wide.float(), scale)
        axis = CHANNEL_AXIS[self._finish.layout]
        frames = frames if axis == -1 else frames.movedim(-1, axis).contiguous()
        return frames.view(torch.uint16) if frames.dtype == torch.int16 else frames


def windows_of(decoded: Tensor, cutout: Cutout | None) -> Tensor:
    """Return the windows of decoded frames, [windows, unique, H, W, 3]. Without a cutout, they share memory.

    Args:
        decoded: The decoded and scaled frames, [unique, H, W, 3].
        cutout: The turn and the windows. If None, the frames are a single window.
    """
    if cutout is None:
        return decoded[None]
    windows = decoded.new_zeros((len(cutout.windows), len(decoded), *cutout.size, decoded.shape[-1]))
    cut_into(windows, decoded, cutout, torch)
    return windows


class HostCopies:
    """Copies from a GPU to the host, on a CUDA stream of their own. Thread-safe.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, pairs: list[tuple[Tensor, NDArray[Any]]]) -> None:
        """Copy each CUDA tensor into an array with as many bytes. Wait until all copies are complete.

        The copies begin after the work that the current stream has queued.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        try:
            with torch.cuda.stream(self._stream):
                for tensor, array in pairs:
                    target = torch.from_numpy(array.reshape(-1).view(np.uint8))
                    target.copy_(tensor.contiguous().view(-1).view(torch.uint8), non_blocking=True)
        finally:  # after an error, too, because the array may be used again
            self._stream.synchronize()
