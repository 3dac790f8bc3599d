"""Runs that share a GPU are staggered, and nobody waits for nobody. Movies: a batch is decoded in parts."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from types import SimpleNamespace

import pytest

from framedex.loader.dali import pipelines, stagger
from framedex.loader.dali.stagger import APART, Stagger


class Clock(contextlib.nullcontext[None]):
    """Time that passes where it is waited for, in place of a Condition."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.waited = 1000.0, 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waited += seconds

    def notify_all(self) -> None:
        """Nobody waits."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that staggered runs go by."""
    made = Clock()
    monkeypatch.setattr(stagger, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(stagger, "threading", SimpleNamespace(Condition=lambda: made))
    return made


def paced(clock: Clock) -> Stagger:
    """Return a stagger whose last run took a second a movie."""
    made = Stagger()
    with made.run(8):
        clock.now += 8
    return made


def test_a_second_run_begins_a_part_of_a_run_later(clock: Clock) -> None:
    shared = paced(clock)
    begun = clock.now
    with shared.run(6):
        assert clock.now == begun
        with shared.run(6):
            assert clock.now == pytest.approx(begun + APART * 6)


def test_runs_that_are_apart_already_wait_for_nothing(clock: Clock) -> None:
    shared = paced(clock)
    with shared.run(6):
        clock.now += 3
        with shared.run(6):
            clock.now += 3
    assert clock.waited == 0


def test_one_run_after_the_other_waits_for_nothing(clock: Clock) -> None:
    shared = Stagger()
    for seconds in (5, 1, 3, 0.1):
        with shared.run(16):
            clock.now += seconds
    assert clock.waited == 0


def test_a_run_that_fails_says_nothing_of_how_long_runs_take(clock: Clock) -> None:
    shared = paced(clock)

    def fail() -> None:
        with shared.run(6):
            clock.now += 600
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    begun = clock.now
    with shared.run(3), shared.run(3):
        assert clock.now == pytest.approx(begun + APART * 3)


def test_threads_that_begin_together_do_not_stay_together() -> None:
    shared, begun = Stagger(), []

    def work() -> None:
        for _ in range(4):
            with shared.run(16):
                begun.append(time.monotonic())
                time.sleep(0.3)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    apart = [later - earlier for earlier, later in itertools.pairwise(begun[2:])]
    assert min(apart) > 0.5 * APART * 0.3


@pytest.mark.parametrize("count", [1, 15, 16, 17, 22, 64, 65])
def test_parts_of_a_batch_are_all_of_it_and_alike(count: int) -> None:
    parts = [range(count)[part] for part in pipelines.even_parts(count, 16)]
    assert [number for part in parts for number in part] == list(range(count))
    lengths = [len(part) for part in parts]
    assert max(lengths) <= 16
    assert max(lengths) - min(lengths) <= 1
    assert len(lengths) == -(-count // 16)
