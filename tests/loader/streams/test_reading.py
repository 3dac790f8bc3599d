"""What is read together, and what the processes of a stream tell each other."""

from __future__ import annotations

import multiprocessing
import pickle

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from framedex.loader.streams.progress import History, SharedLog, Skip
from framedex.loader.streams.reading import spans

GAP_BYTES = 256 << 10  # reading so many bytes in between takes less time than another request


@given(st.lists(st.tuples(st.integers(0, 2 * GAP_BYTES), st.integers(1, 9)), min_size=1, max_size=20))
def test_spans_cover_all_stretches_and_join_neighbours(steps: list[tuple[int, int]]) -> None:
    gaps, lengths = np.array(steps, np.int64).T
    begin = np.cumsum(gaps + lengths) - lengths
    first, last = spans(begin, begin + lengths)
    span = np.searchsorted(first, begin, side="right") - 1
    assert (first[span] <= begin).all()
    assert (begin + lengths <= last[span]).all()
    assert (first[1:] - last[:-1] > GAP_BYTES).all()
    assert len(first) == 1 + np.count_nonzero(gaps[1:] > GAP_BYTES)


def a_skip(place: int) -> Skip:
    return Skip(epoch=1, rank=0, worker=1, workers=2, place=place, clip=7, where="a.tar", kind="stale", message="é\n")


def add_skips(history: History, first: int) -> None:
    for place in range(first, first + 100):
        history.skip(a_skip(place))


def test_processes_share_a_history() -> None:
    history = History()
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=add_skips, args=(history, first)) for first in (0, 100)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert sorted(skip.place for skip in history.skips()) == list(range(200))
    assert history.skips()[0].message == "é\n"


def test_a_log_that_cannot_be_reached_begins_anew() -> None:
    log = SharedLog()
    log.add({"event": "skip"})
    state = log.__getstate__()
    assert pickle.loads(pickle.dumps(log)).records("skip") == [{"event": "skip"}]
    for place in ("/proc/0/fd/3", "/proc/self/fd/0"):  # no such process; another file
        other = SharedLog.__new__(SharedLog)
        other.__setstate__(state | {"place": place})
        assert other.records("skip") == []
        other.add({"event": "skip"})
        assert len(other.records("skip")) == 1


def test_a_state_is_consumed_when_its_iteration_has_ended() -> None:
    history = History()
    assert history.restarted() == (0, False)
    history.restart(1, resumed=True)
    assert history.restarted() == (1, True)
    assert not history.has_begun(1)
    history.begin(1, 0)
    history.begin(1, 1)
    history.end(1, 0)
    assert history.has_begun(1)
    assert not history.is_used(1, 2, iterating=True)
    history.begin(1, 0)  # the iteration was broken off
    history.begin(1, 1)
    assert not history.is_used(1, 2, iterating=True)
    history.end(1, 0)
    history.end(1, 1)
    assert [history.is_used(1, 2, iterating=iterating) for iterating in (True, False)] == [True, False]
    history.begin(1, 1)
    assert [history.is_used(1, 2, iterating=iterating) for iterating in (True, False)] == [True, True]
    assert not history.is_used(2, 2, iterating=True)
