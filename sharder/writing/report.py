"""The result of a run of `framedex shard`: counts, and what failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from framedex.errors import INTERNAL_ERROR
from framedex.sharder.selection.left_out import LeftOut
from framedex.storage.places import Place

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What a dataset holds, from this run and earlier runs together.

    Attributes:
        out: The dataset.
        clips: Number of clips.
        media: Number of media that these clips are from.
        frames: Number of frames of these clips, repeats and padding included.
        shards: Number of tars.
        resumed: Number of items that earlier runs processed.
        failures: The clips that are missing, each with its kind and message, as in failures.parquet. They include clips
            that a policy left out by its own rules (`left_out`).
        filtered: The media that the policy's filter leaves out.
    """

    out: Place
    clips: int
    media: int
    frames: int
    shards: int
    resumed: int
    failures: list[Row]
    filtered: LeftOut = field(default_factory=LeftOut)

    @property
    def failed(self) -> int:
        """Number of failed clips, without internal errors and without clips that a policy left out by its own rules."""
        return sum(bool(failure["counts"]) for failure in self.failures) - self.internal

    @property
    def internal(self) -> int:
        """Number of clips at which framedex itself failed."""
        return sum(1 for failure in self.failures if failure["kind"] == INTERNAL_ERROR)

    @property
    def left_out(self) -> dict[str, int]:
        """Number of clips that a policy left out by its own rules, by kind."""
        kinds = [failure["kind"] for failure in self.failures if not failure["counts"]]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}
