"""Gives each clip to whoever would finish it first: a worker, or the GPU with what waits for it.

A worker that has read a clip asks who decodes it. If the GPU has so much to do that the worker would finish earlier,
the worker does. So both have work all the time, whatever their speeds. Estimates are corrected by what workers and the
GPU turn out to need.

Estimates how long a CPU core and a GPU take for a clip, from what the manifest says: pure functions of the clip.

The constants are rates of one H200 and of one core of its host. A loader corrects them by what it measures
(`balance`), so that only their proportions between clips matter.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRate:
    """What a core needs to decode a codec.

    Attributes:
        pixel: nanoseconds per pixel of a decoded picture.
        byte: nanoseconds per byte.
    """

    pixel: float
    byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCost:
    """Estimated seconds for one clip.

    Attributes:
        codec: the codec, because a CPU's correction differs between codecs.
        cpu: seconds of one core.
        gpu: seconds of the GPU's decoders, if it has nothing else to decode.
    """

    codec: str
    cpu: float
    gpu: float


CPU_RATES = {
    "h264": CpuRate(pixel=1.7, byte=140.0),
    "hevc": CpuRate(pixel=1.6, byte=240.0),
    "vp9": CpuRate(pixel=2.5, byte=50.0),
    "av1": CpuRate(pixel=0.9, byte=300.0),
    "mjpeg": CpuRate(pixel=3.0, byte=20.0),
}
OTHER_RATE = CpuRate(pixel=2.0, byte=100.0)
CPU_CLIP = 1e-3  # seconds, besides pixels and bytes
CPU_CONVERTED = 1.3e-9  # seconds per pixel of a wanted picture, converted to RGB and scaled
GPU_CLIP, GPU_PACKET, GPU_PIXEL = 1.2e-3, 10e-6, 60e-12  # seconds on NVDEC (benchmarks/results/nvdec.json)
NVJPEG_IMAGE, NVJPEG_PIXEL = 50e-6, 200e-12  # seconds


def clip_cost(clip: Clip) -> ClipCost:
    """Return the estimated cost of a clip."""
    medium, recipe = clip.medium, clip.recipe
    pixels, packets = medium.width * medium.height, len(recipe.packet_size)
    wanted = len(np.unique(recipe.position[recipe.position >= 0]))
    rate = CPU_RATES.get(medium.codec, OTHER_RATE)
    cpu = (
        CPU_CLIP
        + 1e-9 * rate.pixel * packets * pixels
        + 1e-9 * rate.byte * float(recipe.packet_size.sum())
        + CPU_CONVERTED * wanted * pixels
    )
    if medium.kind == IMAGES:
        gpu = packets * (NVJPEG_IMAGE + NVJPEG_PIXEL * pixels)
    else:
        gpu = GPU_CLIP + packets * (GPU_PACKET + GPU_PIXEL * pixels)
    return ClipCost(codec=medium.codec, cpu=cpu, gpu=gpu)


# Seconds of work that the GPU always has before workers decode anything. It decodes many clips at once nearly as fast
# as a few, and takes them one after the other where its queue is short.
MIN_QUEUE = 0.04
CPU_MEMORY = 0.9  # the weight of what was known when a worker has decoded another clip
GPU_MEMORY = 0.8  # the same for each part that a GPU decoded


class Balance:
    """What a GPU was given and has not decoded yet, and how fast it and the workers are. Threads share it.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._queued: dict[int, float] = {}  # estimated seconds of the GPU, by batch
        self._cpu_factors: dict[str, float] = {}
        self._gpu_seconds = self._gpu_estimated = 0.0  # of the last parts
        self._active: list[float] = []  # estimated seconds of the parts that the GPU is decoding
        self._since = 0.0  # when one of them began or ended
        self._done = 0.0  # seconds that were spent on those that are not complete

    def begin(self, batch: int) -> None:
        """Count what is given to the GPU for a batch, until `end`."""
        with self._lock:
            self._queued[batch] = 0.0

    def end(self, batch: int) -> None:
        """Forget a batch, which is complete or cancelled."""
        with self._lock:
            self._queued.pop(batch, None)

    def gives_to_gpu(self, batch: int, cost: ClipCost) -> bool:
        """Return whether the GPU decodes a clip, which a worker has read. If so, count it.

        Args:
            batch: the batch.
            cost: the estimated cost of the clip.
        """
        with self._lock:
            factor = self._gpu_factor()
            by_cpu = cost.cpu * self._cpu_factors.get(cost.codec, 1.0)
            by_gpu = self._waiting(factor) + cost.gpu * factor
            if max(by_cpu, MIN_QUEUE) < by_gpu:
                return False
            if batch in self._queued:
                self._queued[batch] += cost.gpu
            return True

    def decoded_by_cpu(self, cost: ClipCost, seconds: float) -> None:
        """Correct estimates of a codec by the seconds in which a worker decoded a clip."""
        with self._lock:
            before = self._cpu_factors.get(cost.codec, seconds / cost.cpu)
            self._cpu_factors[cost.codec] = CPU_MEMORY * before + (1 - CPU_MEMORY) * seconds / cost.cpu

    @contextmanager
    def decoding(self, seconds: Mapping[int, float]) -> Iterator[None]:
        """Measure clips that the GPU decodes together.

        Several such parts may be decoded at once. What counts is the time in which at least one is.

        Args:
            seconds: the estimated seconds of the clips, by batch.
        """
        estimated = sum(seconds.values())
        with self._lock:
            self._advance()
            self._active.append(estimated)
        try:
            yield
        finally:
            with self._lock:
                spent = self._advance()
                self._gpu_seconds = GPU_MEMORY * self._gpu_seconds + spent
                self._gpu_estimated = GPU_MEMORY * self._gpu_estimated + estimated
                self._active.remove(estimated)
                self._done = max(0.0, self._done - estimated * self._gpu_factor()) if self._active else 0.0
                for batch in seconds.keys() & self._queued.keys():
                    self._queued[batch] = max(0.0, self._queued[batch] - seconds[batch])

    def _advance(self) -> float:
        """Count the time since a part began or ended, if the GPU was decoding. Return it."""
        now = self._clock()
        spent = now - self._since if self._active else 0.0
        self._since, self._done = now, self._done + spent
        return spent

    def _gpu_factor(self) -> float:
        return self._gpu_seconds / self._gpu_estimated if self._gpu_estimated > 0 else 1.0

    def _waiting(self, factor: float) -> float:
        """Return the seconds until the GPU has decoded all that it was given."""
        done = min(self._done + self._clock() - self._since, sum(self._active) * factor) if self._active else 0.0
        return max(0.0, sum(self._queued.values()) * factor - done)
