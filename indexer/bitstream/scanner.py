"""What the scanners of H.264 and HEVC share: packets split into NAL units, and the parameter sets in force."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from framedex.indexer.bitstream.nal import ParameterSets, Span, join_length_prefixed, split_length_prefixed
from framedex.indexer.bitstream.pictures import BitstreamError

Parser = Callable[[bytes], tuple[int, object]]  # NAL unit → (id, facts); raises ValueError


class NalScanner:
    """Base of the scanners of length-prefixed streams. Raises BitstreamError for a configuration record that is none."""

    # NAL unit type → name and parser of a parameter set.
    set_parsers: ClassVar[Mapping[int, tuple[str, Parser]]]

    def __init__(self, configuration: bytes) -> None:
        try:
            self._length_size, nals = self.parse_configuration(configuration)
        except ValueError as error:
            raise BitstreamError("parameter_sets", str(error)) from error
        self._sets = ParameterSets()
        for nal in nals:
            self._meet_set(nal, None)
        self._packets = 0
        self._inner_start_codes = False

    @staticmethod
    def parse_configuration(record: bytes) -> tuple[int, list[bytes]]:
        """Return (NAL length size, parameter sets) of a decoder configuration record. Raises ValueError."""
        raise NotImplementedError

    @staticmethod
    def unit_type(header: int) -> int:
        """Return the nal_unit_type that the first byte of a NAL unit states."""
        raise NotImplementedError

    def _next_packet(self, data: bytes) -> tuple[int, list[Span]]:
        """Return the next packet's number and its NAL units. Raises BitstreamError where it is damaged."""
        number = self._packets
        self._packets += 1
        try:
            spans, inner = split_length_prefixed(data, self._length_size)
        except ValueError as error:
            raise BitstreamError("damaged", f"packet {number}: {error}", damaged=True) from error
        self._inner_start_codes |= inner
        return number, spans

    def _meet_set(self, nal: bytes, packet: int | None) -> None:
        """Note a parameter set of a packet, or of the configuration record; other units pass."""
        kind = self.unit_type(nal[0])
        if kind not in self.set_parsers:
            return
        try:
            set_id, facts = self.set_parsers[kind][1](nal)
        except ValueError as error:
            raise BitstreamError("damaged", f"parameter set: {error}", damaged=True) from error
        if packet is None:
            self._sets.configure((kind, set_id), nal, facts)
        else:
            self._sets.meet((kind, set_id), nal, facts, packet)

    def _check_sets(self, starts: list[int]) -> None:
        """Raise BitstreamError where a parameter set changes in a way that a later start would not see."""
        changed = self._sets.changed(starts)
        if changed is not None:
            (kind, set_id), packet = changed
            name = self.set_parsers[kind][0]
            raise BitstreamError("parameter_sets", f"{name} {set_id} changes its content at packet {packet}")

    def _preamble(self, starts: list[int], *extra: bytes) -> bytes:
        """Return what a decoder must see before it starts anywhere but at packet 0."""
        return join_length_prefixed([*self._sets.missing_at(starts), *extra], self._length_size)
