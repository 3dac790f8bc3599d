"""Clips go to whoever finishes them first: simulated with workers and a GPU of many speeds, on a clock of its own."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import pytest

from framedex.loader.routing.balance import Balance, ClipCost

DECODERS, AT_ONCE, READ = 2, 16, 0.003
FEWEST, PATIENCE = 8, 0.02
PART = 0.01  # seconds for which the GPU sets up each part


@dataclass
class Simulation:
    """A loader whose workers and GPU take the time that they are said to take.

    Attributes:
        workers: how many.
        cost: the estimate of each clip.
        cpu: by what a core's time differs from its estimate.
        gpu: by what the GPU's time differs from its estimate.
        batch: clips per batch.
        ahead: batches in progress besides the oldest one.
        training: the seconds of a training step.
        epoch: batches per epoch, 0 if there is one epoch.
        pause: seconds for which the trainer pauses, by batch.
    """

    workers: int
    cost: list[ClipCost]
    cpu: Callable[[int], float]
    gpu: float
    batch: int = 16
    ahead: int = 6
    training: float = 0.0
    epoch: int = 0
    pause: dict[int, float] = field(default_factory=dict)
    now: float = 0.0
    on_cpu: int = 0
    waited: float = 0.0
    trained_until: float = 0.0
    gpu_until: float = 0.0
    since: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def run(self) -> float:
        """Return the seconds until all clips are decoded."""
        self.balance = Balance(self.ahead, lambda: self.now)
        self.to_begin = deque(range(-(-len(self.cost) // self.batch)))
        self.asked: deque[int] = deque()
        self.left: dict[int, int] = {}
        self.ready: dict[int, deque[int]] = {}
        self.idle, self.free = self.workers, DECODERS
        self.step()
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self.step()
        assert not self.left
        return self.now

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._count), event))

    def step(self) -> None:
        """Begin all that can begin."""
        while self.now >= self.trained_until:  # a trainer begins batches, and then takes the oldest one
            self.begin()
            if not self.left or self.left[next(iter(self.left))]:
                break
            key = next(iter(self.left))
            del self.left[key], self.ready[key]
            self.waited += self.now - self.trained_until
            seconds = self.training + self.pause.get(key, 0.0)
            self.trained_until = self.now + seconds
            if seconds:
                self.at(seconds, lambda: None)
        while self.idle and self.asked:
            self.fetch(self.asked.popleft())
        while self.free and (ready := sum(map(len, self.ready.values()))):
            if ready < FEWEST and self.now < self.since + PATIENCE - 1e-9:
                self.at(self.since + PATIENCE - self.now, lambda: None)
                break
            self.decode()
            self.since = self.now

    def begin(self) -> None:
        while self.to_begin and len(self.left) <= self.ahead:
            key = self.to_begin[0]
            is_first = key == 0 or (self.epoch > 0 and key % self.epoch == 0)
            if is_first and self.left:
                return
            self.to_begin.popleft()
            clips = range(key * self.batch, min((key + 1) * self.batch, len(self.cost)))
            self.balance.begin(key, is_first=is_first)
            self.left[key], self.ready[key] = len(clips), deque()
            self.asked += clips

    def made(self, key: int) -> None:
        self.left[key] -= 1
        if not self.left[key]:
            self.balance.end(key)

    def fetch(self, clip: int) -> None:
        self.idle -= 1
        key, cost = clip // self.batch, self.cost[clip]

        def read() -> None:
            if self.balance.gives_to_gpu(key, cost):
                self.idle += 1
                self.since = self.since if any(self.ready.values()) else self.now
                self.ready[key].append(clip)
            else:
                self.at(cost.cpu * self.cpu(clip), decoded)

        def decoded() -> None:
            self.balance.decoded_by_cpu(cost, cost.cpu * self.cpu(clip))
            self.idle += 1
            self.on_cpu += 1
            self.made(key)

        self.at(READ, read)

    def decode(self) -> None:
        self.free -= 1
        ready = [(key, clip) for key, clips in self.ready.items() for clip in clips][:AT_ONCE]
        seconds: Counter[int] = Counter()
        for key, clip in ready:
            self.ready[key].remove(clip)
            seconds[key] += self.cost[clip].gpu  # type: ignore[assignment]
        measured = ExitStack()
        measured.enter_context(self.balance.decoding(seconds))

        def done() -> None:
            measured.close()
            self.free += 1
            for key, _ in ready:
                self.made(key)

        self.gpu_until = max(self.now, self.gpu_until) + PART + sum(seconds.values()) * self.gpu
        self.at(self.gpu_until - self.now, done)


def costs(count: int, cpu: float, gpu: float) -> list[ClipCost]:
    return [ClipCost(codec="h264", cpu=cpu, gpu=gpu) for _ in range(count)]


def rates(workers: int, cost: ClipCost, cpu: float, gpu: float) -> tuple[float, float, float]:
    """Return clips per second of the GPU alone, of the workers alone, and of both; workers also read for the GPU."""
    a_clip = cost.cpu * cpu + READ
    on_gpu = min(1 / (cost.gpu * gpu + PART / AT_ONCE), workers / READ)
    return on_gpu, workers / a_clip, on_gpu + max(0.0, workers - on_gpu * READ) / a_clip


# A core's and the GPU's seconds for a clip, and by how much these estimates are wrong.
SPEEDS = [
    (0.5, 0.046, 1.0, 1.0),
    (0.16, 0.0075, 1.0, 1.0),
    (0.025, 0.0017, 1.0, 1.0),
    (0.02, 0.04, 1.0, 1.0),
    (1.0, 0.01, 1.0, 1.0),
    (0.5, 0.046, 3.0, 1.0),
    (0.025, 0.0017, 3.0, 1.0),
    (0.5, 0.046, 1.0, 4.0),
    (0.16, 0.0075, 1.0, 4.0),
    (0.025, 0.0017, 1.0, 4.0),
    (0.5, 0.046, 0.3, 0.5),
    (0.16, 0.0075, 0.3, 0.5),
]


@pytest.mark.parametrize("workers", [2, 8, 16])
@pytest.mark.parametrize(("cpu", "gpu", "cpu_wrong", "gpu_wrong"), SPEEDS)
def test_both_together_are_nearly_as_fast_as_the_sum_of_their_speeds(
    workers: int, cpu: float, gpu: float, cpu_wrong: float, gpu_wrong: float
) -> None:
    clips = costs(1024, cpu, gpu)
    seconds = Simulation(workers, clips, lambda clip: cpu_wrong, gpu_wrong).run()
    on_gpu, on_cpu, both = rates(workers, clips[0], cpu_wrong, gpu_wrong)
    assert len(clips) / seconds >= 0.79 * both
    assert len(clips) / seconds >= 0.93 * max(on_gpu, on_cpu)


def test_mixed_clips_are_decoded_nearly_as_fast_as_possible() -> None:
    rng = np.random.default_rng(2)
    kinds = ClipCost(codec="h264", cpu=0.5, gpu=0.046), ClipCost(codec="vp9", cpu=0.03, gpu=0.002)
    mixed = [kinds[int(rng.random() < 0.5)] for _ in range(1024)]
    simulation = Simulation(16, mixed, lambda clip: 0.7 + 0.6 * (clip * 7919 % 100) / 100, 1.3)
    seconds = simulation.run()
    on_gpu_alone = sum(cost.gpu for cost in mixed) * 1.3
    on_cpu_alone = sum(cost.cpu + READ for cost in mixed) / 16
    assert seconds < 1.1 / (1 / on_gpu_alone + 1 / on_cpu_alone)
    assert 0 < simulation.on_cpu < len(mixed)


@pytest.mark.parametrize(("workers", "cpu", "gpu"), [(12, 0.02, 0.0017), (16, 0.1, 0.0075)])
def test_the_gpu_is_left_to_a_trainer_whose_batches_wait(workers: int, cpu: float, gpu: float) -> None:
    clips = costs(4096, cpu, gpu)
    _, on_cpu, both = rates(workers, clips[0], 1.0, 1.0)

    def trained(share: float) -> tuple[float, float]:
        """Return the shares of the clips on the CPU, and of the time that a trainer waits with this share of `both`."""
        simulation = Simulation(workers, clips, lambda clip: 1.0, 1.0, training=16 / (share * both))
        seconds = simulation.run()
        return simulation.on_cpu / len(clips), simulation.waited / seconds

    slow, waited = trained(0.8 * on_cpu / both)
    assert slow > 0.9
    assert waited < 0.02
    quick, waited = trained(0.75)
    assert 0.3 < quick < 1
    assert waited < 0.05


@pytest.mark.parametrize("pause", [{}, {60: 10.0}, {0: 30.0, 100: 60.0}])
def test_a_pause_of_the_trainer_does_not_count_as_a_slow_step(pause: dict[int, float]) -> None:
    clips = costs(4096, 0.1, 0.0075)
    _, _, both = rates(16, clips[0], 1.0, 1.0)
    simulation = Simulation(16, clips, lambda clip: 1.0, 1.0, training=16 / (0.75 * both), pause=pause)
    seconds = simulation.run()
    assert simulation.waited < 0.05 * (seconds - sum(pause.values()))


@pytest.mark.parametrize("epoch", [3, 20])
def test_the_first_batch_of_an_epoch_does_not_wait_for_slow_cores(epoch: int) -> None:
    clips = costs(16 * 5 * epoch, 0.5, 0.01)
    simulation = Simulation(16, clips, lambda clip: 1.0, 1.0, training=1.0, epoch=epoch)
    simulation.run()
    assert simulation.waited < 5 * 0.3


@pytest.mark.parametrize("is_first", [False, True])
def test_no_batches_wait_for_the_trainer_when_an_epoch_begins(is_first: bool) -> None:
    now = [0.0]
    balance, cost = Balance(4, lambda: now[0]), ClipCost(codec="h264", cpu=0.5, gpu=0.1)
    for batch in range(12):
        balance.begin(batch, is_first=batch == 0)
        balance.end(batch)
        now[0] += 1.0
    balance.begin(12, is_first=is_first)
    assert balance.gives_to_gpu(12, cost) == is_first
    now[0] += 5.0  # the trainer has taken all batches before
    assert balance.gives_to_gpu(12, cost)


def test_a_clip_goes_to_a_core_if_the_gpu_would_be_done_with_it_later() -> None:
    balance = Balance(6)
    slow, quick = ClipCost(codec="h264", cpu=1.0, gpu=0.25), ClipCost(codec="h264", cpu=0.1, gpu=0.25)
    balance.begin(0)
    assert not balance.gives_to_gpu(0, quick)
    assert [balance.gives_to_gpu(0, slow) for _ in range(5)] == [True, True, True, True, False]
    balance.end(0)
    assert balance.gives_to_gpu(0, slow)


def test_a_cancelled_batch_is_forgotten() -> None:
    balance = Balance(6)
    cost = ClipCost(codec="h264", cpu=1.0, gpu=0.6)
    balance.begin(1)
    assert [balance.gives_to_gpu(1, cost) for _ in range(2)] == [True, False]
    balance.end(1)
    assert [balance.gives_to_gpu(1, cost) for _ in range(2)] == [True, True]  # a worker that was still reading


def test_estimates_are_corrected_by_what_workers_need() -> None:
    balance, cost = Balance(6), ClipCost(codec="vp9", cpu=0.1, gpu=0.2)
    assert not balance.gives_to_gpu(0, cost)
    for _ in range(50):
        balance.decoded_by_cpu(cost, 0.3)
    assert balance.gives_to_gpu(0, cost)
    for _ in range(100):
        balance.decoded_by_cpu(cost, 0.1)
    assert not balance.gives_to_gpu(0, cost)


def test_estimates_are_corrected_by_what_the_gpu_needs() -> None:
    now = [0.0]
    balance, cost = Balance(6, lambda: now[0]), ClipCost(codec="h264", cpu=0.5, gpu=0.1)
    assert balance.gives_to_gpu(0, cost)
    with balance.decoding({0: 0.1}):
        now[0] += 1.0
    assert not balance.gives_to_gpu(0, cost)
    for _ in range(50):
        with balance.decoding({0: 0.1}):
            now[0] += 0.1
    assert balance.gives_to_gpu(0, cost)
