"""Convert the progress of a stream to a state of plain values and back.

`Resumption` determines, in all processes of the stream, the progress from which the next iteration begins.
"""

import random
import secrets
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import webdataset

from framedex.errors import FramedexError
from framedex.execution.spawning import SharedNumber
from framedex.loader.order.order import check_state
from framedex.loader.streams.lanes import Order, Stage, Workers
from framedex.loader.streams.progress import History, OneLane, Progress

MAX_WORKERS = 1 << 24  # maximum number of workers in a state, so that a malformed state does not fill the memory
# Number of integers that are passed through webdataset's shuffle buffer. Their order shows whether the state was saved
# with a version of webdataset that shuffles in the same way.
TRIED = 1000


def order_facts(order: Order) -> dict[str, Any]:
    """Return the values that identify the order of a stream's clips. If they are equal, all epochs are equal, too."""
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
    """Convert the progress to a state of plain values, which can be stored as JSON."""

    def plain(part: Stage | OneLane) -> dict[str, Any]:
        return {"world_size": part.workers.world_size, "workers": part.workers.per_rank}

    lane = progress.lane
    return order_facts(order) | {
        "epoch": progress.epoch,
        "stages": [plain(stage) | {"passed": stage.passed.tolist()} for stage in progress.stages],
        "lane": lane and plain(lane) | {"rank": lane.rank, "worker": lane.worker, "passed": lane.passed},
    }


def progress_of(order: Order, state: object) -> Progress:
    """Return the progress that a state describes.

    Raises:
        FramedexError: `state` is not a state of a stream, or belongs to another order of clips.
    """
    facts = order_facts(order)
    found = check_state(state, "ClipStream", facts.keys() | {"epoch", "stages", "lane"}, facts)
    try:
        return Progress(epoch=_whole(found["epoch"]), stages=_stages(found["stages"]), lane=_lane(found["lane"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FramedexError(
            "the loaded state is not a state of a ClipStream",
            found=repr(error)[:80],
            allowed="a state that state_dict() returned",
        ) from error


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is not a whole number of 0 or more")
    return value


def _workers(record: Mapping[str, Any]) -> Workers:
    workers = Workers(world_size=_whole(record["world_size"]), per_rank=_whole(record["workers"]))
    if not 0 < workers.world_size * workers.per_rank <= MAX_WORKERS:
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


# Random versions are below this number. It is so large that they practically never equal a counted version (0, 1, …).
MAX_VERSION = 1 << 62


class Resumption:
    """The epoch, and the loaded state from which the next iteration begins. Copies in other processes share the epoch.

    Workers receive a copy of the loaded state when they start, and cannot see a state that is loaded later. So each
    state has a version number, and all processes see the version number of the latest state.

    Args:
        history: The log of events of all processes of the stream.
    """

    def __init__(self, history: History) -> None:
        self._epoch, self._history = SharedNumber(), history
        self._loaded: Progress | None = None
        self._version = 0  # the version of the state that this copy has
        self._local: int | None = None  # the version of a state that was loaded only in this worker

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._epoch.get()

    @property
    def version(self) -> int:
        """The version of the state that this copy has."""
        return self._version if self._local is None else self._local

    @property
    def running(self) -> int:
        """The version of the state from which the next iteration begins. This copy may have an older state."""
        return self._history.restarted()[0] if self._local is None else self._local

    def set_epoch(self, epoch: int) -> bool:
        """Set the epoch. Return whether the next iteration delivers the whole epoch."""
        self._epoch.set(epoch)
        is_new = self._loaded is None or self._loaded.epoch != epoch
        if is_new:
            self._restart(None)
        return is_new

    def load(self, progress: Progress, *, own: bool) -> None:
        """Let the next iteration begin from a state, in this process and in workers that start later.

        Args:
            progress: The progress that the state describes.
            own: Whether the state is only for this process. This is the case in a worker of a StatefulDataLoader.
        """
        self._epoch.set(progress.epoch)
        if own:
            self._loaded, self._local = progress, secrets.randbelow(MAX_VERSION)
        else:
            self._restart(progress)

    def _restart(self, loaded: Progress | None) -> None:
        self._loaded, self._local = loaded, None
        self._version = self._history.restarted()[0] + 1
        self._history.restart(self._version, resumed=loaded is not None)

    def start(self, workers: int, *, iterating: bool) -> Progress:
        """Return the progress from which the next iteration begins, or from which the current iteration began.

        A state is used for a single iteration. After this iteration has ended, the next one delivers a whole epoch.

        Args:
            workers: The number of workers of the rank.
            iterating: Whether a worker begins to iterate now. If not, workers may be iterating already.

        Raises:
            FramedexError: A state was loaded after this worker had started.
        """
        whole = Progress(epoch=self.epoch)
        version, resumed = self._history.restarted()
        if version != self._version:
            if resumed:
                raise FramedexError(
                    "a state was loaded after the workers had started, so the workers do not have it",
                    remedy="load the state before the first iteration, or make a new DataLoader",
                )
            return whole
        if self._loaded is None or self._loaded.epoch != whole.epoch:
            return whole
        count = workers if self._local is None else 1
        return whole if self._history.is_used(self.version, count, iterating=iterating) else self._loaded
