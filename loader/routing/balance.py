"""The choice between a worker and the GPU for each clip: the one that would finish it first decodes it.

A worker that has read a clip asks which of them decodes it. If the GPU's queue is so long that the worker would finish
earlier, the worker decodes it. So both always have work, whatever their speeds.

The times are estimated from the manifest. The constants are rates of one H200 and of one core of its host. A loader
corrects them by measured times, so only the proportions between clips matter.
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
class ClipCost:
    """Estimated seconds for one clip.

    Attributes:
        codec: The codec. Measured times correct the CPU's estimates for each codec.
        cpu: Seconds of one core.
        gpu: Seconds of the GPU's decoders, if they are idle.
    """

    codec: str
    cpu: float
    gpu: float


# The nanoseconds in which one core decodes a pixel of a picture, and a byte, by codec.
CPU_RATES = {
    "h264": (1.7, 140.0),
    "hevc": (1.6, 240.0),
    "vp9": (2.5, 50.0),
    "av1": (0.9, 300.0),
    "mjpeg": (3.0, 20.0),
}
OTHER_RATE = (2.0, 100.0)
CPU_CLIP = 1e-3  # seconds per clip, in addition to its pixels and bytes
CPU_CONVERTED = 1.3e-9  # seconds per pixel of a wanted picture, which is converted to RGB and scaled
GPU_CLIP, GPU_PACKET, GPU_PIXEL = 1.2e-3, 10e-6, 60e-12  # seconds on NVDEC (benchmarks/results/nvdec.json)
NVJPEG_IMAGE, NVJPEG_PIXEL = 50e-6, 200e-12  # seconds


def clip_cost(clip: Clip) -> ClipCost:
    """Return the estimated cost of a clip."""
    medium, recipe = clip.medium, clip.recipe
    pixels, packets = medium.width * medium.height, len(recipe.packet_size)
    wanted = len(np.unique(recipe.position[recipe.position >= 0]))
    per_pixel, per_byte = CPU_RATES.get(medium.codec, OTHER_RATE)
    cpu = (
        CPU_CLIP
        + 1e-9 * per_pixel * packets * pixels
        + 1e-9 * per_byte * float(recipe.packet_size.sum())
        + CPU_CONVERTED * wanted * pixels
    )
    if medium.kind == IMAGES:
        gpu = packets * (NVJPEG_IMAGE + NVJPEG_PIXEL * pixels)
    else:
        gpu = GPU_CLIP + packets * (GPU_PACKET + GPU_PIXEL * pixels)
    return ClipCost(codec=medium.codec, cpu=cpu, gpu=gpu)


# Workers decode only if the GPU has this many seconds of work. The GPU decodes many clips at once nearly as fast as a
# few, so a short queue would waste its decoders.
MIN_QUEUE = 0.04
# The weights of earlier measurements when a worker has decoded a clip, or the GPU a part of a batch. Single clips vary
# more than parts.
CPU_MEMORY, GPU_MEMORY = 0.9, 0.8


class Balance:
    """The GPU's queue, and the measured speeds of the GPU and the workers. Threads share it.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._queued: dict[int, float] = {}  # estimated seconds of the GPU, by batch
        self._cpu_factors: dict[str, float] = {}  # measured time / estimated time, by codec
        self._gpu_seconds = self._gpu_estimated = 0.0  # times of recent parts, measured and estimated
        self._active: list[float] = []  # estimated seconds of each part that the GPU is decoding
        self._since = 0.0  # the last time at which a part began or ended
        self._done = 0.0  # seconds spent so far on the active parts

    def begin(self, batch: int) -> None:
        """Start to count the GPU's clips of a batch, until `end`."""
        with self._lock:
            self._queued[batch] = 0.0

    def end(self, batch: int) -> None:
        """Stop counting a batch that is complete or cancelled."""
        with self._lock:
            self._queued.pop(batch, None)

    def gives_to_gpu(self, batch: int, cost: ClipCost) -> bool:
        """Return whether the GPU decodes a clip that a worker has read. If so, add the clip to the GPU's queue.

        Args:
            batch: The number of the batch.
            cost: The estimated cost of the clip.
        """
        with self._lock:
            factor = self._gpu_factor()
            by_cpu = cost.cpu * self._cpu_factors.get(cost.codec, 1.0)
            done = min(self._done + self._clock() - self._since, sum(self._active) * factor) if self._active else 0.0
            waiting = max(0.0, sum(self._queued.values()) * factor - done)  # seconds until the GPU's queue is empty
            if max(by_cpu, MIN_QUEUE) < waiting + cost.gpu * factor:
                return False
            if batch in self._queued:
                self._queued[batch] += cost.gpu
            return True

    def decoded_by_cpu(self, cost: ClipCost, seconds: float) -> None:
        """Correct a codec's estimates by the measured seconds in which a worker decoded a clip."""
        with self._lock:
            before = self._cpu_factors.get(cost.codec, seconds / cost.cpu)
            self._cpu_factors[cost.codec] = CPU_MEMORY * before + (1 - CPU_MEMORY) * seconds / cost.cpu

    @contextmanager
    def decoding(self, seconds: Mapping[int, float]) -> Iterator[None]:
        """Measure the time in which the GPU decodes a part: clips that are decoded together.

        Several parts may be decoded at once. Their common time counts only once.

        Args:
            seconds: The estimated seconds of the clips, by batch.
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
        """Add the time since a part last began or ended, if the GPU was decoding, and return this time."""
        now = self._clock()
        spent = now - self._since if self._active else 0.0
        self._since, self._done = now, self._done + spent
        return spent

    def _gpu_factor(self) -> float:
        """Return the ratio of the GPU's measured time to its estimated time."""
        return self._gpu_seconds / self._gpu_estimated if self._gpu_estimated > 0 else 1.0
