"""Save and load the state of a stream, which consists of plain values.

`Resumption` determines where the next iteration begins, in all processes of the stream.
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

MAX_WORKERS = 1 << 24  # more lanes in a state are an error, so that a wrong state does not fill the memory
# So many numbers pass through webdataset's shuffle buffer. The checksum of their order differs between its versions.
TRIED = 1000


def order_facts(order: Order) -> dict[str, Any]:
    """Return the facts that identify the order of a stream's clips. Streams with equal facts have equal epochs."""
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
    """Return a state of plain values, as in JSON."""

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
        FramedexError: this is not a state of a stream, or it belongs to another order of clips.
    """
    facts = order_facts(order)
    found = check_state(state, "ClipStream", facts.keys() | {"epoch", "stages", "lane"}, facts)
    try:
        return Progress(epoch=_whole(found["epoch"]), stages=_stages(found["stages"]), lane=_lane(found["lane"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FramedexError(
            "this is not a state of a ClipStream", found=repr(error)[:80], allowed="what state_dict() returned"
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


MAX_VERSION = 1 << 62  # random versions below this number hardly ever equal the small versions that are counted


class Resumption:
    """The epoch, and the state from which its next iteration begins. Copies in other processes share the epoch.

    Workers get a copy of the loaded state when they start. A state that is loaded later cannot reach them. So states
    have versions, and all processes see the last version.

    Args:
        history: the events of all processes of the stream.
    """

    def __init__(self, history: History) -> None:
        self._epoch, self._history = SharedNumber(), history
        self._loaded: Progress | None = None
        self._version = 0  # the version of the state when this copy was made
        self._local: int | None = None  # the version of a state that only this worker loaded

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._epoch.get()

    @property
    def version(self) -> int:
        """The version of the state of this copy."""
        return self._version if self._local is None else self._local

    @property
    def running(self) -> int:
        """The version of the state from which the next iteration begins. Workers with an older copy see it, too."""
        return self._history.restarted()[0] if self._local is None else self._local

    def set_epoch(self, epoch: int) -> bool:
        """Choose the epoch. Return whether the next iteration delivers it from its beginning."""
        self._epoch.set(epoch)
        is_new = self._loaded is None or self._loaded.epoch != epoch
        if is_new:
            self._restart(None)
        return is_new

    def load(self, progress: Progress, *, own: bool) -> None:
        """Let the next iteration begin from a state, in this process and in workers that start later.

        Args:
            progress: the state.
            own: whether this process is a worker with a state of its own. Its state concerns no other process.
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
        """Return the progress from which the next iteration begins, or from which the current one began.

        A state is used once: after its iteration has ended, the next iteration delivers a whole epoch.

        Args:
            workers: how many workers the rank has.
            iterating: whether a worker begins to iterate now. If not, workers may be iterating already.

        Raises:
            FramedexError: a state was loaded after this worker had begun.
        """
        whole = Progress(epoch=self.epoch)
        version, resumed = self._history.restarted()
        if version != self._version:
            if resumed:
                raise FramedexError(
                    "a state was loaded after the workers had begun, and they cannot see it",
                    remedy="load the state before the first iteration, or make a new DataLoader",
                )
            return whole
        if self._loaded is None or self._loaded.epoch != whole.epoch:
            return whole
        count = workers if self._local is None else 1
        return whole if self._history.is_used(self.version, count, iterating=iterating) else self._loaded
