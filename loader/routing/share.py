"""How many clips the CPU decodes beside a GPU: pure functions of a clip's place and a share, and adaptive shares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from framedex.errors import FramedexError
from framedex.loader.arguments import Decode, Device

Share = float | Literal["adaptive"] | None

# How much 720p H.264 one core decodes, in terms of one H200's NVDEC (docs/performance.md).
CORE_IN_NVDECS = 0.12
MOST_SHARE = 0.95
STEP = 0.03  # by how much an adaptive share changes per batch
WAITING = 0.05  # the part of a batch's time above which waiting for workers is too much


def default_share(workers: int) -> float:
    """Return the share of clips that so many workers decode while NVDEC decodes the others."""
    return min(MOST_SHARE, workers * CORE_IN_NVDECS / (1 + workers * CORE_IN_NVDECS))


def is_on_cpu(place: int, share: float) -> bool:
    """Return whether the CPU decodes the clip at a place of an epoch.

    Of any n consecutive clips, the CPU decodes n × share, give or take one.
    """
    return int((place + 1) * share) > int(place * share)


def adapted(share: float, *, waited: float, decoding: float) -> float:
    """Return the share for the next batch.

    Args:
        share: the share of this batch.
        waited: seconds spent waiting for workers after the GPU had decoded.
        decoding: seconds for which the GPU decoded.
    """
    if waited > WAITING * (waited + decoding):
        return max(0.0, share - STEP)
    return min(MOST_SHARE, share + STEP)


class CpuShare:
    """The share of clips that workers decode beside a GPU, as ClipLoader's `cpu_share` says. Raises FramedexError.

    An adaptive share changes with each batch. Threads that make batches change it while other threads read it.
    """

    def __init__(self, device: Device, decode: Decode, cpu_share: Share, workers: int) -> None:
        self._share = first_share(device, decode, cpu_share, workers)
        self._is_adaptive = cpu_share == "adaptive"

    def on_gpu(self, places: Iterable[int]) -> list[bool]:
        """Return whether the clip at each place of an epoch goes to the GPU, if the GPU may decode it."""
        share = self._share
        return [share is not None and not is_on_cpu(place, share) for place in places]

    def learn(self, *, waited: float, decoding: float) -> None:
        """Adapt the share after a batch.

        Args:
            waited: seconds spent waiting for workers after the GPU had decoded.
            decoding: seconds for which the GPU decoded.
        """
        if self._is_adaptive and self._share is not None:
            self._share = adapted(self._share, waited=waited, decoding=decoding)


def first_share(device: Device, decode: Decode, cpu_share: Share, workers: int) -> float | None:
    """Return the share of clips that workers decode beside a GPU. None: no GPU decodes. Raises FramedexError."""
    if cpu_share not in (None, "adaptive") and not (isinstance(cpu_share, int | float) and 0 <= cpu_share <= 1):
        raise FramedexError("cpu_share is out of range", found=repr(cpu_share), allowed="0 to 1, 'adaptive', or None")
    if device == "cpu" or decode == "cpu":
        return None
    if decode == "gpu":
        return 0.0
    if cpu_share is None or cpu_share == "adaptive":
        return default_share(workers)
    return cpu_share
