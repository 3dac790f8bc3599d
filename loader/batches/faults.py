"""What to do with a clip that cannot be had while a run goes on."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

from framedex.errors import DamageError, DecodeError, FramedexError, StaleError, StorageError, printable
from framedex.loader.batches.fetched import Fetched

OnError = Literal["raise", "skip", "replace"]
ON_ERROR: tuple[OnError, ...] = ("raise", "skip", "replace")
KINDS: dict[type[Exception], str] = {StaleError: "stale", DecodeError: "undecodable", DamageError: "damaged"}
ERRORS: dict[str, type[FramedexError]] = {"stale": StaleError, "undecodable": DecodeError}
# What is no fault of a clip, but of the run: whatever is to be done with faults, it ends. The kinds of a StorageError.
OF_THE_RUN = frozenset({"denied", "forked"})

MOST_FAULTS = 1000  # that a report keeps
_COUNTING = threading.Lock()  # held for moments, by the threads of all loaders
LOG = logging.getLogger("framedex.loader")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A clip that cannot be had. kind: `stale`, `undecodable`, `damaged`, `crash` (its worker died), `denied` and `forked` (what
    ends the run: its store cannot be used), or `error`.
    """

    number: int
    kind: str
    message: str

    @property
    def ends_the_run(self) -> bool:
        """Whether no other clip can be had either."""
        return self.kind in OF_THE_RUN

    def error(self) -> FramedexError:
        """Return what is raised for it."""
        if self.ends_the_run:
            return StorageError(self.message, kind=self.kind)
        return ERRORS.get(self.kind, DecodeError)(f"clip {self.number}: {self.message}")


def fault_of(number: int, error: Exception) -> Fault:
    """Return the fault that an exception stands for."""
    kind = next((kind for known, kind in KINDS.items() if isinstance(error, known)), "error")
    if isinstance(error, StorageError) and error.kind in OF_THE_RUN:
        kind = error.kind
    message = error.text() if isinstance(error, FramedexError) else printable(f"{type(error).__name__}: {error}")
    return Fault(number=number, kind=kind, message=message)


@dataclass(slots=True)
class LoaderReport:
    """What a loader did so far. decoded: clips by decoder (`cpu`, `nvdec`, `nvjpeg`). seconds: where time went, of this
    process and, summed over all of them, of workers. failures: clips that could not be had, by kind. retried: clips that a
    decoder failed on and another one decoded, and tasks of workers that died, by kind. replaced, skipped: clips.
    bytes_read: of sources. packets: that were decoded. frames: that were wanted of them.
    """

    decoded: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    failures: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    replaced: int = 0
    skipped: int = 0
    bytes_read: int = 0
    packets: int = 0
    frames: int = 0
    faults: list[Fault] = field(default_factory=list)

    def add_seconds(self, **stages: float) -> None:
        """Add to where time went; for threads."""
        with _COUNTING:
            for name, seconds in stages.items():
                self.seconds[name] += seconds

    def count(self, clip: Fetched) -> None:
        """Count a clip of a batch; for threads."""
        self.add_seconds(**{"workers reading": clip.read_seconds, "workers decoding": clip.decode_seconds})
        with _COUNTING:
            self.decoded["nvdec" if clip.movie else "nvjpeg" if clip.images else "cpu"] += 1
            self.bytes_read += clip.bytes_read
            self.packets += clip.packets
            self.frames += int((clip.item["frame_index"] >= 0).sum())

    def add(self, *, skipped: int = 0, replaced: int = 0, retried: str | None = None) -> None:
        """Add to what became of clips that could not be had at once; for threads."""
        with _COUNTING:
            self.skipped += skipped
            self.replaced += replaced
            if retried is not None:
                self.retried[retried] += 1

    def note(self, fault: Fault) -> None:
        """Count a clip that cannot be had, and log it; for threads."""
        with _COUNTING:
            self.failures[fault.kind] += 1
            if len(self.faults) < MOST_FAULTS:
                self.faults.append(fault)
        LOG.warning("clip %d cannot be had (%s): %s", fault.number, fault.kind, fault.message)
