"""Decodes clips in worker processes and stores their frames in another form: as images, or encoded again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import DecodeError, StaleError, UncuttableError
from framedex.execution.choice import Workers
from framedex.execution.engine import Calls, Outcome
from framedex.records.dataset import Failure
from framedex.sharder.clips.clip import Clip, failure_of, internal_failure
from framedex.sharder.clips.samples import Step
from framedex.sharder.reading.sources import EncodedClip, SourceFiles

CLIPS_IN_FLIGHT = 4  # per worker: as packets, and in their new form
SECONDS_A_CLIP = 600.0  # decoding a clip is aborted after this time
Made = TypeVar("Made")
Make = Callable[[Clip, EncodedClip], Made]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task(Generic[Made]):
    """A step whose clip is to be decoded and stored in another process.

    Attributes:
        encoded: The clip's packets; None if there is nothing to do.
    """

    step: Step
    encoded: EncodedClip | None
    make: Make[Made]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a clip cannot be stored: the kind and the message of a failure."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoding(Generic[Made]):
    """Decodes each clip once, in worker processes, and stores its new form.

    Attributes:
        make: Runs in a worker: a clip and its packets → its new form. It can be pickled. It raises DecodeError for a
            clip that does not decode, and UncuttableError for one that cannot have that form.
        finish: Runs in this process: a clip, its new form and the progress of the plan → a step with members. It raises
            UncuttableError as `make` does.
    """

    make: Make[Made]
    finish: Callable[[Clip, Made, int], Step]
    workers: Workers

    def pack(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield every step, with clips in their new form, or failures for clips that have none."""
        calls = Calls(
            function=recode,
            items=self._tasks(steps),
            timeout_seconds=SECONDS_A_CLIP,
            in_flight=CLIPS_IN_FLIGHT,
        )
        for outcome in self.workers.run(calls):
            yield self._step(outcome)

    def _tasks(self, steps: Iterable[Step]) -> Iterator[_Task[Made]]:
        sources = SourceFiles()
        for step in steps:
            clip, encoded = step.outcome, None
            if isinstance(clip, Clip):
                try:
                    encoded = sources.read(clip)
                except StaleError as error:
                    step = Step(outcome=failure_of(clip, error), done=step.done)
                except MEDIUM_ERRORS:
                    raise
                except Exception as error:  # a bug at one clip must not end the run for the others
                    step = Step(outcome=internal_failure(clip.clip_id, clip.medium.name, error), done=step.done)
            yield _Task(step=step, encoded=encoded, make=self.make)

    def _step(self, outcome: Outcome[_Task[Made], Made | Refused | None]) -> Step:
        step, made = outcome.item.step, outcome.result
        clip = step.outcome
        if isinstance(clip, Failure):
            return step
        if made is None or isinstance(made, Refused):
            return Step(outcome=_failure(clip, outcome, made), done=step.done)
        try:
            return self.finish(clip, made, step.done)
        except UncuttableError as error:
            return Step(outcome=failure_of(clip, error), done=step.done)
        except MEDIUM_ERRORS:
            raise
        except Exception as error:  # a bug at one clip must not end the run for the others
            return Step(outcome=internal_failure(clip.clip_id, clip.medium.name, error), done=step.done)


def recode(task: _Task[Made]) -> Made | Refused | None:
    """Return a clip in its new form, or why it has none. Runs in a worker."""
    if task.encoded is None or isinstance(task.step.outcome, Failure):
        return None
    try:
        return task.make(task.step.outcome, task.encoded)
    except DecodeError as error:
        return Refused(kind="undecodable", message=error.text())
    except UncuttableError as error:
        return Refused(kind="uncuttable", message=error.text())


def _failure(clip: Clip, outcome: Outcome[_Task[Made], Made | Refused | None], refused: Refused | None) -> Failure:
    """Return the row of a clip that was refused, or whose worker gave no result."""
    kind, message = (refused.kind, refused.message) if refused else (outcome.kind or "error", outcome.message or "")
    return Failure(clip_id=clip.clip_id, uri=clip.medium.name, kind=kind, message=message, traceback=outcome.traceback)
