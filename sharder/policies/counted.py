"""How many frames a clip has whose number of frames follows from a rate: at least, at most, a multiple."""

from __future__ import annotations

from dataclasses import dataclass

from framedex.sharder.configuration.checks import Count, RefusedError
from framedex.sharder.configuration.parameters import parameter
from framedex.sharder.policies.terms import Terms

KEYS = ("least_frames", "max_frames", "multiple")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTerms(Terms):
    """The terms of a policy that may make one clip per video, with as many frames as a rate gives."""

    least_frames: Count | None = parameter("without frames: a clip has at least so many", None)
    max_frames: Count | None = parameter("without frames: a clip has at most so many", None)
    multiple: Count | None = parameter("without frames: their number is rounded down to a multiple of this", None)

    def check_counts(self, *, has_length: bool) -> None:
        """Raise RefusedError for bounds that contradict each other, or the length of clips.

        Args:
            has_length: Whether `frames` says how many frames a clip has.
        """
        given = [name for name in KEYS if getattr(self, name) is not None]
        if given and has_length:
            raise RefusedError(
                "these keys are for clips whose number of frames follows from fps",
                found=f"{', '.join(given)} and frames",
                remedy="leave out frames; `max_clips` bounds the number of clips",
            )
        if self.max_frames is not None and self._least > self._most(self.max_frames):
            found = f"least_frames: {self.least_frames}, max_frames: {self.max_frames}, multiple: {self.multiple}"
            raise RefusedError("no number of frames is between the bounds", found=found)
        if self.max_frames is not None and self.min_frames > self._most(self.max_frames):
            raise RefusedError("min_frames is more than max_frames allows", found=self.min_frames)

    @property
    def _least(self) -> int:
        """The least number of frames, a multiple."""
        multiple = self.multiple or 1
        return multiple * -(-(self.least_frames or 1) // multiple)

    def _most(self, frames: int) -> int:
        multiple = self.multiple or 1
        return frames // multiple * multiple

    def bounded(self, samples: int) -> int:
        """Return the number of frames for a number of samples, within the bounds but not yet rounded to a multiple."""
        samples = max(samples, self._least)
        return samples if self.max_frames is None else min(samples, self._most(self.max_frames))

    def rounded(self, frames: int) -> int:
        """Return a number of frames, rounded down to a multiple; at least one multiple."""
        return max(self._most(frames), self.multiple or 1)
