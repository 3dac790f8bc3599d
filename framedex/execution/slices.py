"""A share of a run: one of several commands that do not know of each other, such as the tasks of a Slurm array."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One of `count` slices of a run, by its number from 0."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Return the slice that `i/n` names. Raises ValueError."""
        number, _, count = text.partition("/")
        parsed = cls(number=int(number), count=int(count))
        if not 0 <= parsed.number < parsed.count:
            raise ValueError(f"{text}: slices are 0/{parsed.count} to {parsed.count - 1}/{parsed.count}")
        return parsed
