"""The distinct decoder states of a stream, numbered: what a decoder must be given before it starts in the middle."""

from __future__ import annotations


class StateTable:
    """Numbers states by content; number 0 is the empty one, which stands for what the configuration already gives."""

    def __init__(self, configured: bytes) -> None:
        self._numbers: dict[bytes, int] = {configured: 0, b"": 0}
        self._states = [b""]

    def number(self, state: bytes) -> int:
        """Return the number of this state, a new one if it was not met before."""
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self._states)
            self._states.append(state)
        return found

    @property
    def states(self) -> tuple[bytes, ...]:
        """All states by number; states[0] is empty."""
        return tuple(self._states)
