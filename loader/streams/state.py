"""The state of a stream: plain values from which a run continues, and the checks of a state that is loaded."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import webdataset

from framedex.errors import FramedexError
from framedex.loader.streams.lanes import Order, Stage, Workers
from framedex.loader.streams.progress import OneLane, Progress

MOST_WORKERS = 1 << 24  # lanes of a stage
TRIED = 1000  # numbers that go through webdataset's shuffle buffer, to tell its versions apart


def order_facts(order: Order) -> dict[str, Any]:
    """Return what identifies the order of a stream's clips. Streams that agree in it have the same epochs."""
    tried = webdataset.shuffle(TRIED // 10, rng=random.Random("framedex"))(iter(range(TRIED)))
    buffer = np.fromiter(tried, np.int64, TRIED) if order.buffer else np.arange(TRIED)
    return {
        "count": len(order.tar_of),
        "shuffle": order.buffer,
        "seed": order.seed,
        "uneven": order.uneven,
        "clips": order.clips_crc32,
        "tars": zlib.crc32(order.tar_of.tobytes()),
        "webdataset": zlib.crc32(buffer.tobytes()),
    }


def as_state(order: Order, progress: Progress) -> dict[str, Any]:
    """Return a state of plain values, as JSON has them."""
    lane = progress.lane
    return order_facts(order) | {
        "epoch": progress.epoch,
        "stages": [_plain(stage.workers) | {"passed": stage.passed.tolist()} for stage in progress.stages],
        "lane": None
        if lane is None
        else _plain(lane.workers) | {"rank": lane.rank, "worker": lane.worker, "passed": lane.passed},
    }


def _plain(workers: Workers) -> dict[str, int]:
    return {"world_size": workers.world_size, "workers": workers.per_rank}


def progress_of(order: Order, state: object) -> Progress:
    """Return the progress that a state describes.

    Raises:
        FramedexError: this is no state of a stream, or it belongs to another order of clips.
    """
    if not isinstance(state, Mapping):
        raise _no_state(repr(state)[:80])
    facts = order_facts(order)
    if missing := (facts.keys() | {"epoch", "stages", "lane"}) - state.keys():
        raise _no_state(f"no {', '.join(sorted(missing))}")
    for name, value in facts.items():
        if state[name] != value:
            raise FramedexError(
                f"the stream's state has another {name}",
                found=state[name],
                allowed=value,
                remedy="make the stream with the dataset, arguments and version of webdataset that it had before",
            )
    try:
        return Progress(epoch=_whole(state["epoch"]), stages=_stages(state["stages"]), lane=_lane(state["lane"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _no_state(repr(error)[:80]) from error


def _no_state(found: str) -> FramedexError:
    return FramedexError("this is no state of a ClipStream", found=found, allowed="what state_dict() returned")


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no whole number of 0 or more")
    return value


def _workers(record: Mapping[str, Any]) -> Workers:
    workers = Workers(world_size=_whole(record["world_size"]), per_rank=_whole(record["workers"]))
    if not 0 < workers.world_size * workers.per_rank <= MOST_WORKERS:
        raise ValueError(f"{workers}")
    return workers


def _stages(records: Sequence[Mapping[str, Any]]) -> tuple[Stage, ...]:
    stages = []
    for record in records:
        workers = _workers(record)
        passed = np.array([[_whole(count) for count in row] for row in record["passed"]], np.int64)
        if passed.shape != (workers.world_size, workers.per_rank):
            raise ValueError(f"{passed.shape} lanes of {workers}")
        stages.append(Stage(workers=workers, passed=passed))
    return tuple(stages)


def _lane(record: Mapping[str, Any] | None) -> OneLane | None:
    if record is None:
        return None
    lane = OneLane(
        workers=_workers(record),
        rank=_whole(record["rank"]),
        worker=_whole(record["worker"]),
        passed=_whole(record["passed"]),
    )
    if lane.rank >= lane.workers.world_size or lane.worker >= lane.workers.per_rank:
        raise ValueError(f"{lane}")
    return lane
