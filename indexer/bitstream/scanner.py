"""What the scanners of H.264 and HEVC share: packets split into NAL units, and the parameter sets in force."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.nal import (
    START_CODE,
    InForce,
    Key,
    ParameterSets,
    Span,
    join_annex_b,
    join_length_prefixed,
    split_annex_b,
    split_length_prefixed,
)
from framedex.indexer.bitstream.pictures import BitstreamError

Parser = Callable[[bytes], tuple[int, object]]  # NAL unit → (id, facts); raises ValueError

MOST_STATES = 1000  # decoder states that one stream may need at its start points


class NalScanner:
    """Base of the scanners of NAL unit streams, length-prefixed where they have a configuration record, else Annex B.

    Raises BitstreamError for a configuration record that is none.
    """

    # NAL unit type → name and parser of a parameter set.
    set_parsers: ClassVar[Mapping[int, tuple[str, Parser]]]

    def __init__(self, configuration: bytes) -> None:
        self._sets = ParameterSets()
        self._length_size, nals = self._open(configuration)
        for nal in nals:
            kind = self.unit_type(nal[0])
            if kind in self.set_parsers:
                set_id, facts = self._parse_set(kind, nal)
                self._sets.configure((kind, set_id), nal, facts)
        self._packets = 0
        self._inner_start_codes = False
        self._damaged: set[int] = set()
        self._in_force: list[InForce] = []  # before each packet
        self._carried: dict[int, set[Key]] = {}  # by packet

    def _open(self, configuration: bytes) -> tuple[int, list[bytes]]:
        """Return (NAL length size, 0 for Annex B; parameter sets) of a stream's extradata."""
        if not configuration or configuration.startswith((START_CODE, b"\0" + START_CODE)):
            return 0, [configuration[start:end] for start, end in split_annex_b(configuration)]
        try:
            return self.parse_configuration(configuration)
        except ValueError as error:
            raise BitstreamError("parameter_sets", str(error)) from error

    @property
    def length_size(self) -> int:
        """Bytes of each NAL unit's length, 0 in Annex B."""
        return self._length_size

    @staticmethod
    def parse_configuration(record: bytes) -> tuple[int, list[bytes]]:
        """Return (NAL length size, parameter sets) of a decoder configuration record. Raises ValueError."""
        raise NotImplementedError

    @staticmethod
    def unit_type(header: int) -> int:
        """Return the nal_unit_type that the first byte of a NAL unit states."""
        raise NotImplementedError

    def reconfigure(self, configuration: bytes) -> None:
        """Take a new configuration record into force, as the next packet's own (a second sample entry, FLV headers).

        Raises BitstreamError where that changes more than parameter sets.
        """
        length_size, nals = self._open(configuration)
        if length_size != self._length_size:
            raise BitstreamError("parameter_sets", f"the NAL unit lengths change their size at packet {self._packets}")
        for nal in nals:
            self._meet_set(nal, None)

    def _next_packet(self, data: bytes) -> tuple[int, list[Span]]:
        """Return the next packet's number and its NAL units; none where it is damaged."""
        number = self._packets
        self._packets += 1
        self._in_force.append(self._sets.in_force)
        if not self._length_size:
            return number, split_annex_b(data)
        try:
            spans, inner = split_length_prefixed(data, self._length_size)
        except ValueError:
            self._damaged.add(number)
            return number, []
        self._inner_start_codes |= inner
        return number, spans

    def _parse_set(self, kind: int, nal: bytes) -> tuple[int, object]:
        try:
            return self.set_parsers[kind][1](nal)
        except ValueError as error:
            raise BitstreamError("parameter_sets", f"{self.set_parsers[kind][0]}: {error}", damaged=True) from error

    def _meet_set(self, nal: bytes, packet: int | None) -> None:
        """Note a parameter set that a packet carries; other units pass."""
        kind = self.unit_type(nal[0])
        if kind not in self.set_parsers:
            return
        try:
            set_id, facts = self.set_parsers[kind][1](nal)
        except ValueError:
            if packet is not None:
                self._damaged.add(packet)
            return
        self._sets.meet((kind, set_id), nal, facts)
        if packet is not None:
            self._carried.setdefault(packet, set()).add((kind, set_id))

    def _states(self, starts: Iterable[int], *extra: bytes) -> tuple[tuple[bytes, ...], NDArray[np.int32]]:
        """Return the decoder states of start points, and int32 [packets], which one each start point needs.

        A state is every set in force that the start's own packet does not carry. extra: units that go with each of
        them, except at packet 0.
        """
        numbers: dict[bytes, int] = {b"": 0}
        state = np.zeros(self._packets, np.int32)
        for start in starts:
            carried = self._carried.get(start, set())
            nals = [nal for key, nal in self._in_force[start] if key not in carried]
            nals += extra if start else []
            joined = join_length_prefixed(nals, self._length_size) if self._length_size else join_annex_b(nals)
            state[start] = numbers.setdefault(joined, len(numbers))
            if len(numbers) > MOST_STATES:
                raise BitstreamError("parameter_sets", f"start points need more than {MOST_STATES} decoder states")
        return tuple(numbers), state

    def _damage(self) -> NDArray[np.bool_]:
        """Return bool [packets]: those that cannot be taken apart."""
        return np.isin(np.arange(self._packets), list(self._damaged))
