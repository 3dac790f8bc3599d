"""What the processes of a stream share: skips of the iteration that runs, and the last state."""

from __future__ import annotations

from framedex.loader.streams.progress import History, SharedLog, Skip


def skip(worker: int, place: int) -> Skip:
    facts = {"epoch": 0, "rank": 0, "workers": 2, "clip": 7, "where": "a.tar", "kind": "stale", "message": "gone"}
    return Skip(worker=worker, place=place, **facts)  # type: ignore[arg-type]


def test_skips_of_an_earlier_iteration_do_not_count() -> None:
    history = History()
    for worker in (0, 1):
        history.begin(0, worker)
        history.skip(skip(worker, 3))
    history.begin(0, 0)  # again; worker 1 goes on
    assert history.skips_now() == [skip(1, 3)]
    history.skip(skip(0, 5))
    assert history.skips_now() == [skip(0, 5), skip(1, 3)]
    assert history.skips() == [skip(0, 3), skip(1, 3), skip(0, 5)]


def test_a_copy_that_cannot_reach_the_log_knows_the_last_state() -> None:
    history = History()
    history.restart(3, resumed=True)
    state = history.__getstate__() | {"place": "/proc/0/fd/none"}
    copy = SharedLog.__new__(SharedLog)
    copy.__setstate__(state)
    assert copy.records("restart") == [{"event": "restart", "version": 3, "resumed": True}]
