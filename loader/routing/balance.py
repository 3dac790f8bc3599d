"""Load balancing between the CPU and the GPU: each clip is decoded where it is expected to be finished first.

When a worker has read a clip, it asks whether to decode the clip itself or to leave it to the GPU. If the GPU's queue
is so long that the worker would finish earlier, the worker decodes the clip. So both are busy, whatever their speeds.

If many finished batches wait for the trainer, workers decode all clips that they can finish in time. The GPU is then
left to the training, which decoding on the GPU slows down more than decoding on CPU cores.

Decoding times are estimated from the manifest. The constants below were measured on one H200 and one CPU core of its
host. A loader multiplies the estimates by measured ratios, so only the proportions between clips matter.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCost:
    """The estimated decoding times of one clip.

    Attributes:
        codec: The codec. The estimates for the CPU are corrected by measured times, separately for each codec.
        cpu: The seconds in which one CPU core decodes the clip.
        gpu: The seconds in which idle GPU decoders decode the clip.
    """

    codec: str
    cpu: float
    gpu: float


# Decoding time of one CPU core by codec: nanoseconds per pixel of a decoded picture, and nanoseconds per coded byte.
CPU_RATES = {
    "h264": (1.7, 140.0),
    "hevc": (1.6, 240.0),
    "vp9": (2.5, 50.0),
    "av1": (0.9, 300.0),
    "mjpeg": (3.0, 20.0),
}
OTHER_RATE = (2.0, 100.0)
CPU_CLIP = 1e-3  # constant time per clip, in seconds, in addition to the time for pixels and bytes
CPU_CONVERTED = 1.3e-9  # seconds per pixel to convert a wanted picture to RGB and to scale it
# Seconds on NVDEC per clip, per packet and per pixel of a decoded picture (benchmarks/results/nvdec.json).
GPU_CLIP, GPU_PACKET, GPU_PIXEL = 1.2e-3, 10e-6, 60e-12
NVJPEG_IMAGE, NVJPEG_PIXEL = 50e-6, 200e-12  # seconds on nvJPEG per image and per pixel


def clip_cost(clip: Clip) -> ClipCost:
    """Return the estimated decoding times of a clip."""
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


# Workers decode only if the GPU's queue has at least this many seconds of work. The GPU decodes many clips at once
# nearly as fast as a few, so a shorter queue would leave some of its decoders idle.
MIN_QUEUE = 0.04
# The weights of earlier measurements in the moving averages of decoding times, for single clips on the CPU, and for
# parts on the GPU (a part is a set of clips that the GPU decodes together). The time varies more for a single clip.
CPU_MEMORY, GPU_MEMORY = 0.9, 0.8
STEPS = 9  # number of recent steps of the trainer whose median counts, so that a pause does not


class Balance:
    """The length of the GPU's queue, and the measured speeds of the GPU, the workers and the trainer. Thread-safe.

    Args:
        ahead: The number of batches that are begun before the trainer takes the first one. When the trainer has taken
            a batch, another one begins.
        clock: A function that returns the time in seconds.
    """

    def __init__(self, ahead: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._ahead, self._clock = ahead, clock
        self._lock = threading.Lock()
        self._first = self._newest = 0  # the batches of this iteration that were begun first and last
        self._begun = 0.0  # the time at which the last one was begun
        self._steps: deque[float] = deque(maxlen=STEPS)  # seconds between the begins of two batches
        self._step = 0.0  # their median
        self._queued: dict[int, float] = {}  # estimated seconds of the clips that wait for the GPU, by batch
        self._cpu_factors: dict[str, float] = {}  # measured time / estimated time, by codec
        self._gpu_seconds = self._gpu_estimated = 0.0  # measured and estimated seconds of recent parts
        self._active: list[float] = []  # estimated seconds of each part that the GPU is decoding
        self._since = 0.0  # time at which the decoding of a part last began or ended
        self._done = 0.0  # seconds for which the GPU has decoded the active parts, up to `_since`

    def begin(self, batch: int, *, is_first: bool = False) -> None:
        """Add a batch to the queue. `gives_to_gpu` adds the estimated seconds of its clips until `end` is called.

        Args:
            batch: The number of the batch. Batches have consecutive numbers.
            is_first: Whether this is the first batch of an iteration.
        """
        with self._lock:
            now = self._clock()
            if is_first:
                self._first = batch
            if batch - self._first > self._ahead + 1:  # before, the trainer does not determine when a batch begins
                self._steps.append(now - self._begun)
                self._step = sorted(self._steps)[len(self._steps) // 2]
            self._newest, self._begun = batch, now
            self._queued[batch] = 0.0

    def end(self, batch: int) -> None:
        """Remove a batch that is complete or cancelled from the queue."""
        with self._lock:
            self._queued.pop(batch, None)

    def gives_to_gpu(self, batch: int, cost: ClipCost) -> bool:
        """Return whether the GPU decodes a clip that a worker has read. If so, add the clip to the GPU's queue.

        Args:
            batch: The number of the clip's batch.
            cost: The estimated decoding times of the clip.
        """
        with self._lock:
            factor = self._gpu_factor()
            by_cpu = cost.cpu * self._cpu_factors.get(cost.codec, 1.0)
            done = min(self._done + self._clock() - self._since, sum(self._active) * factor) if self._active else 0.0
            waiting = max(0.0, sum(self._queued.values()) * factor - done)  # seconds until the GPU's queue is empty
            if self._has_time(by_cpu) or max(by_cpu, MIN_QUEUE) < waiting + cost.gpu * factor:
                return False
            if batch in self._queued:
                self._queued[batch] += cost.gpu
            return True

    def _has_time(self, by_cpu: float) -> bool:
        """Return whether the trainer has batches for long enough that a worker can decode a clip meanwhile."""
        oldest = min(self._queued, default=self._newest)
        taken = max(self._newest - self._ahead, self._first - 1)  # the batch that the trainer has taken last
        complete = oldest - taken - 1  # batches that the trainer takes before it needs `oldest`
        seconds = complete * self._step - (self._clock() - self._begun)  # until the trainer needs `oldest`
        return self._ahead > 0 and seconds > max(by_cpu, self._ahead / 2 * self._step)

    def decoded_by_cpu(self, cost: ClipCost, seconds: float) -> None:
        """Update the ratio of measured to estimated time of a codec after a worker has decoded a clip.

        Args:
            cost: The estimated decoding times of the clip.
            seconds: The measured time.
        """
        with self._lock:
            before = self._cpu_factors.get(cost.codec, seconds / cost.cpu)
            self._cpu_factors[cost.codec] = CPU_MEMORY * before + (1 - CPU_MEMORY) * seconds / cost.cpu

    @contextmanager
    def decoding(self, seconds: Mapping[int, float]) -> Iterator[None]:
        """Measure the time in which the GPU decodes a part, which is a set of clips that are decoded together.

        Parts may be decoded at the same time. The time in which they overlap is counted only once.

        Args:
            seconds: The estimated seconds of the part's clips, summed by batch.
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
        """Set `_since` to now, and return the seconds since its previous value, or 0 if the GPU was idle.

        The seconds are also added to `_done`.
        """
        now = self._clock()
        spent = now - self._since if self._active else 0.0
        self._since, self._done = now, self._done + spent
        return spent

    def _gpu_factor(self) -> float:
        """Return the ratio of measured to estimated seconds of recent parts, or 1 before any measurement."""
        return self._gpu_seconds / self._gpu_estimated if self._gpu_estimated > 0 else 1.0
