"""Numbered decoder states of a stream: what a decoder must be given before it starts in the middle."""

from __future__ import annotations

from framedex.indexer.bitstream.base.pictures import BitstreamError

MOST_STATES, MOST_STATE_BYTES = 1000, 1 << 16
MOST_UNITS = 64  # header units of one kind in one state; real streams have one or two


class StateTable:
    """Numbers states by content. State 0 is empty: it stands for what the configuration already gives."""

    def __init__(self, configured: bytes) -> None:
        self._numbers: dict[bytes, int] = {configured: 0, b"": 0}
        self._states = [b""]

    def number(self, state: bytes) -> int:
        """Return the number of this state, a new number if the state is new.

        Raises:
            BitstreamError: if there are too many states, or this one is too long.
        """
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self._states)
            self._states.append(state)
            if found >= MOST_STATES or len(state) > MOST_STATE_BYTES:
                raise BitstreamError(
                    "parameter_sets",
                    f"start points need {found} decoder states, this one of {len(state)} bytes; "
                    f"{MOST_STATES} of {MOST_STATE_BYTES} are the most",
                )
        return found

    @property
    def states(self) -> tuple[bytes, ...]:
        """All states by number; states[0] is empty."""
        return tuple(self._states)


def with_unit(units: tuple[bytes, ...], unit: bytes) -> tuple[bytes, ...]:
    """Return the units with one more at the end, and without an earlier unit of the same content.

    Raises:
        BitstreamError: if there are too many units.
    """
    if units[-1:] == (unit,):
        return units
    if len(units) >= MOST_UNITS and unit not in units:
        raise BitstreamError("parameter_sets", f"more than {MOST_UNITS} header units of one kind are in force at once")
    return (*(other for other in units if other != unit), unit)
