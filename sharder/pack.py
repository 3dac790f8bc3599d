"""From planned clips to samples of tars: a clip's file and its JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from framedex.errors import StaleError, UncuttableError
from framedex.sharder.clip import Clip
from framedex.sharder.clip_files import ClipFile, ClipFiles
from framedex.sharder.schema import PAD
from framedex.sharder.tars import Member
from framedex.sharder.writer import Failure

Pack = Literal["clips", "images", "needed"]
PACKS: tuple[Pack, ...] = ("clips", "images", "needed")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A clip on its way into the dataset, or why there is none. members: what a tar holds of it. done: of the plan's
    progress, after this step.
    """

    outcome: Clip | Failure
    done: int
    members: tuple[Member, ...] = ()


class Packing(Protocol):
    """Turns planned clips into samples, in their order."""

    def pack(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield every step, clips with members where they are packed."""
        ...


class ByReference:
    """Packs nothing: ranges point into the sources."""

    def pack(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield the steps as they are."""
        yield from steps


class ClipPacking:
    """Copies each clip's packets into a tiny file. needed: those of media alone that are not addressable by bytes."""

    def __init__(self, *, needed: bool) -> None:
        self._needed, self._files = needed, ClipFiles()

    def pack(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield every step, clips as tiny files, or failures where they cannot be cut."""
        for step in steps:
            clip = step.outcome
            if isinstance(clip, Failure) or (self._needed and clip.source == clip.medium.source):
                yield step
                continue
            try:
                file = self._files.cut(clip)
            except (StaleError, UncuttableError) as error:
                yield Step(outcome=failure_of(clip, error), done=step.done)
                continue
            members = (file.member, Member(suffix="json", pieces=[clip_json(file)]))
            yield Step(outcome=file.clip, done=step.done, members=members)


def failure_of(clip: Clip, error: StaleError | UncuttableError) -> Failure:
    """Return the row that says why a planned clip is not there."""
    kind = "stale" if isinstance(error, StaleError) else "uncuttable"
    return Failure(clip_id=clip.clip_id, uri=clip.medium.uri, kind=kind, message=error.text())


JSON_KEYS = frozenset(
    [
        "clip_id", "uri", "codec", "width", "height", "rotation_degrees", "time_base", "frame_rate", "frames", "mask",
        "pts", "seconds", "frames_in_file", "seconds_in_file", "timestamps", "images",
    ]
)  # fmt: skip


def clip_json(file: ClipFile) -> bytes:
    """Return the JSON member of a clip's file; docs/shards.md says what its keys mean."""
    return as_json(
        describe(file.clip)
        | {
            "frames_in_file": file.frames.tolist(),
            "seconds_in_file": numbers(file.seconds),
            "timestamps": "source" if file.real_times else "ranks",
        }
        | file.clip.columns
    )


def describe(clip: Clip) -> Row:
    """Return what the JSON of any sample says of its clip."""
    medium, padded = clip.medium, clip.frame_index == PAD
    rate = medium.frame_count * medium.time_base_den / (medium.duration_pts * medium.time_base_num or 1)
    return {
        "clip_id": clip.clip_id,
        "uri": medium.uri,
        "codec": medium.codec,
        "width": medium.width,
        "height": medium.height,
        "rotation_degrees": medium.rotation_degrees,
        "time_base": [medium.time_base_num, medium.time_base_den],
        "frame_rate": rate,
        "frames": clip.frame_index.tolist(),
        "mask": clip.mask.tolist(),
        "pts": [None if hole else pts for hole, pts in zip(padded.tolist(), clip.pts.tolist(), strict=True)],
        "seconds": numbers(clip.seconds),
    }


def numbers(values: NDArray[np.float64]) -> list[float | None]:
    """Return floats for JSON, None in place of NaN."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def as_json(content: Row) -> bytes:
    """Return one line of JSON; what JSON has no word for is written as text."""
    return json.dumps(_plain(content), ensure_ascii=False, separators=(",", ":"), default=str).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
