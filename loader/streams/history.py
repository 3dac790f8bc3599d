"""What happened to a stream in all of its processes: skipped clips, states that were loaded, lanes that began."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from framedex.loader.streams.shared_log import SharedLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A clip that a stream left out.

    Attributes:
        epoch: the epoch.
        rank: the rank that would have delivered it.
        worker: the worker.
        workers: how many workers the rank had.
        place: its place in the worker's order of delivery.
        clip: its number in the dataset.
        where: the tar that holds it.
        kind: `stale`, `undecodable`, `damaged` or `error`, as in a ClipLoader's report.
        message: the reason.
    """

    epoch: int
    rank: int
    worker: int
    workers: int
    place: int
    clip: int
    where: str
    kind: str
    message: str


class History:
    """The events of a stream in all of its processes: skipped clips, states that were loaded, lanes that began."""

    def __init__(self) -> None:
        self._log = SharedLog()

    def skip(self, skip: Skip) -> None:
        """Record a clip that was left out."""
        self._log.add({"event": "skip"} | asdict(skip))

    def skips(self) -> list[Skip]:
        """Return the clips that were left out."""
        return [Skip(**{name: record[name] for name in Skip.__slots__}) for record in self._log.records("skip")]

    def skips_now(self) -> list[Skip]:
        """Return the clips that were left out since each worker began its lane for the last time."""
        found: dict[int, list[Skip]] = {}
        for record in self._log.records("skip", "lane"):
            own = found.setdefault(record["worker"], [])
            if record["event"] == "skip":
                own.append(Skip(**{name: record[name] for name in Skip.__slots__}))
            elif not record["ended"]:
                own.clear()
        return [skip for own in found.values() for skip in own]

    def restart(self, version: int, *, resumed: bool) -> None:
        """Record that the next iteration begins from state `version`: the rest of an epoch, or a whole one."""
        self._log.add({"event": "restart", "version": version, "resumed": resumed})

    def restarted(self) -> tuple[int, bool]:
        """Return the version of the last state, and whether it is the rest of an epoch; (0, False) before any."""
        records = self._log.records("restart")
        return (records[-1]["version"], records[-1]["resumed"]) if records else (0, False)

    def begin(self, version: int, worker: int) -> None:
        """Record that a worker began its lane."""
        self._log.add({"event": "lane", "version": version, "worker": worker, "ended": False})

    def end(self, version: int, worker: int) -> None:
        """Record that a worker delivered its lane to the end."""
        self._log.add({"event": "lane", "version": version, "worker": worker, "ended": True})

    def has_begun(self, version: int) -> bool:
        """Return whether a worker began a lane from this state."""
        return any(record["version"] == version for record in self._log.records("lane"))

    def has_ended(self, version: int, workers: int) -> bool:
        """Return whether an iteration from this state was delivered to its end.

        Args:
            version: of the state.
            workers: how many workers delivered it.
        """
        ended, begun_again = self._lanes(version, workers)
        return begun_again or len(ended) == workers

    def is_consumed(self, version: int, workers: int) -> bool:
        """Return whether another iteration began after the one from this state had ended. Arguments as above."""
        return self._lanes(version, workers)[1]

    def _lanes(self, version: int, workers: int) -> tuple[set[int], bool]:
        """Return the workers that ended their lanes, and whether an iteration began after all had ended."""
        ended: set[int] = set()
        for record in self._log.records("lane"):
            if record["version"] != version:
                continue
            if record["ended"]:
                ended.add(record["worker"])
            elif len(ended) == workers:
                return ended, True
            else:  # an iteration that was broken off begins again
                ended.discard(record["worker"])
        return ended, False
