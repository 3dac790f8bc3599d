"""The base class of the H.264 and HEVC scanners. It splits packets into NAL units and follows the parameter sets."""

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.base import BitstreamError
from framedex.indexer.bitstream.nal import (
    START_CODE,
    InForce,
    Key,
    ParameterSets,
    SliceColumns,
    SliceRows,
    Span,
    Units,
    heads_of,
    join_annex_b,
    join_length_prefixed,
    split_annex_b,
    split_length_prefixed,
    split_nal_units,
)

Parser = Callable[[bytes], tuple[int, object]]  # NAL unit → (ID of the parameter set, its fields); raises ValueError

Sorted = tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]  # result of `NalScanner._classify_units`

MAX_STATES = 1000  # maximum number of decoder states, which the index stores; a stream that needs more is an attack


class NalScanner:
    """The base class of the H.264 and HEVC scanners.

    NAL units are length-prefixed if the stream has a configuration record. Otherwise they are in Annex B format.

    Attributes:
        length_size: the number of bytes of each NAL unit's length field, or 0 for Annex B.

    Raises:
        BitstreamError: if the configuration record is invalid.
    """

    # nal_unit_type → (name, parser) of each type of parameter set
    set_parsers: ClassVar[Mapping[int, tuple[str, Parser]]]
    header_bytes: ClassVar[int]  # number of bytes of a NAL unit's header
    type_bits: ClassVar[tuple[int, int]]  # position and mask of the nal_unit_type in the header's first byte

    def __init__(self, configuration: bytes) -> None:
        self._sets = ParameterSets()
        self.length_size, nals = self._open(configuration)
        for nal in nals:
            kind = self.unit_type(nal[0])
            if kind in self.set_parsers:
                name, parse = self.set_parsers[kind]
                try:
                    set_id, facts = parse(nal)
                except ValueError as error:
                    raise BitstreamError("parameter_sets", f"{name}: {error}", damaged=True) from error
                self._sets.configure((kind, set_id), nal, facts)
        self._packets = 0
        self._in_middle, self._consecutive = False, True
        self._inner_start_codes = False
        self._damaged: set[int] = set()
        self._slices = SliceRows()
        self._in_force: list[InForce] = []  # the parameter sets in force before each packet
        self._carried: dict[int, set[Key]] = {}  # packet → keys of the parameter sets that precede its slices
        self._changing: set[int] = set()  # packets whose parameter sets change those in force
        self._carried_over: set[int] = set()  # packets with information as in `Pictures.carries_over`
        self._replaced: dict[Key, list[int]] = {}  # key → packets that replace a parameter set in force by another one

    def _open(self, configuration: bytes) -> tuple[int, list[bytes]]:
        """Return (`length_size`, parameter sets) of a stream's extradata."""
        if not configuration or configuration.startswith((START_CODE, b"\0" + START_CODE)):
            return 0, [configuration[start:end] for start, end in split_annex_b(configuration)]
        try:
            return self.parse_configuration(configuration)
        except ValueError as error:
            raise BitstreamError("parameter_sets", str(error)) from error

    @staticmethod
    def parse_configuration(record: bytes) -> tuple[int, list[bytes]]:
        """Return (`length_size`, parameter sets) of a decoder configuration record. Raises ValueError."""
        raise NotImplementedError

    @classmethod
    def unit_type(cls, header: int) -> int:
        """Return the nal_unit_type in the first byte of a NAL unit header."""
        return header >> cls.type_bits[0] & cls.type_bits[1]

    def reconfigure(self, configuration: bytes) -> None:
        """Put a new configuration record in force from the next packet on.

        A stream can have several records in sample entries of MP4 files, or in sequence headers of FLV files.

        Raises:
            BitstreamError: if the record is invalid, or changes the number of bytes of length fields.
        """
        length_size, nals = self._open(configuration)
        if length_size != self.length_size:
            raise BitstreamError("parameter_sets", f"the size of NAL unit lengths changes at packet {self._packets}")
        for nal in nals:
            self._on_parameter_set(nal, None)

    def begin_with(self, state: bytes, *, in_middle: bool, consecutive: bool) -> None:
        """Put the decoder state of the first packet that is fed in force. This packet is numbered 0.

        Args:
            state: the NAL units of the state, in the format of the stream's packets (length-prefixed or Annex B).
            in_middle: whether the stream has packets before the first packet that is fed.
            consecutive: whether the packets that are fed are consecutive packets of the stream.

        Raises:
            ValueError: if the state is invalid.
        """
        self._in_middle, self._consecutive = in_middle, consecutive
        spans = split_length_prefixed(state, self.length_size)[0] if self.length_size else split_annex_b(state)
        for start, end in spans:
            self._take(state[start:end])

    def _take(self, nal: bytes) -> None:
        """Put one NAL unit of a decoder state in force."""
        self._on_parameter_set(nal, None)

    def feed(self, data: bytes) -> None:
        """Read the next packet in decode order. Raises BitstreamError."""
        raise NotImplementedError

    def feed_many(self, data: NDArray[np.uint8], offset: NDArray[np.int64], size: NDArray[np.int64]) -> None:
        """Read the next n packets. The result is the same as with one call of `feed` per packet.

        Args:
            data: uint8 [bytes], the bytes that contain the packets.
            offset: int64 [n], the position of each packet in `data`.
            size: int64 [n], the size of each packet in bytes.

        Raises:
            BitstreamError: as `feed` does.
        """
        # `split_nal_units` requires packets that do not overlap.
        if not self.length_size or (offset[1:] < offset[:-1] + size[:-1]).any():
            self._pass(data, offset, size, np.ones(len(offset), np.bool_))
            return
        first = self._packets
        units = split_nal_units(data, offset, size, self.length_size)
        is_slice, apart, damaged = self._classify_units(data, units)
        one_by_one = units.unread.copy()
        one_by_one[units.packet[apart]] = True
        epoch = self._pass(data, offset, size, one_by_one)
        self._damaged.update((first + np.flatnonzero((units.damaged | damaged) & ~one_by_one)).tolist())
        chosen = is_slice & ~one_by_one[units.packet]
        packet, start, end = units.packet[chosen], units.start[chosen], units.end[chosen]
        header = np.zeros(len(start), np.int64)
        for byte in range(self.header_bytes):
            header = header << 8 | data[start + byte]
        heads, length = heads_of(data, start + self.header_bytes, end, units.escapes)
        self._slices.extend(
            SliceColumns(packet=first + packet, header=header, epoch=epoch[packet], heads=heads, length=length)
        )

    def _classify_units(self, data: NDArray[np.uint8], units: Units) -> Sorted:
        """Find the slices to collect, and the packets that `feed` must read.

        Returns:
            Three masks. The first, bool [units], marks slices to collect. The second, bool [units], marks units whose
            packet must be read by `feed`. The third, bool [packets], marks packets whose units show damage.
        """
        raise NotImplementedError

    def _pass(
        self, data: NDArray[np.uint8], offset: NDArray[np.int64], size: NDArray[np.int64], one_by_one: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Read the packets in `one_by_one`, bool [n], by `feed`. Only count the other packets.

        Returns:
            int64 [n]: the index in `ParameterSets.epochs` of the parameter sets that are in force at each packet.
        """
        n, at = len(offset), 0
        epoch = np.zeros(n, np.int64)
        for number in [*np.flatnonzero(one_by_one).tolist(), n]:
            epoch[at:number] = len(self._sets.epochs) - 1
            self._in_force.extend([self._sets.in_force] * (number - at))
            self._packets += number - at
            at = number
            if number < n:
                self.feed(data[offset[number] : offset[number] + size[number]].tobytes())
                at = number + 1
        return epoch

    def _next_packet(self, data: bytes) -> tuple[int, list[Span]]:
        """Return the number of the next packet and the spans of its NAL units. A damaged packet has no spans."""
        number = self._packets
        self._packets += 1
        self._in_force.append(self._sets.in_force)
        if not self.length_size:
            return number, split_annex_b(data)
        try:
            spans, inner = split_length_prefixed(data, self.length_size)
        except ValueError:
            self._damaged.add(number)
            return number, []
        self._inner_start_codes |= inner
        return number, spans

    def _on_parameter_set(self, nal: bytes, packet: int | None, *, late: bool = False) -> None:
        """Put a NAL unit in force if it is a parameter set. Ignore other units.

        Args:
            nal: the NAL unit.
            packet: the number of the packet that carries the unit. None if a configuration record or a decoder state
                carries the unit.
            late: whether the unit follows slices of its packet. These slices do not use the unit.
        """
        kind = self.unit_type(nal[0])
        if kind not in self.set_parsers:
            return
        try:
            set_id, facts = self.set_parsers[kind][1](nal)
        except ValueError:
            if packet is not None:
                self._damaged.add(packet)
            return
        known = self._sets.knows((kind, set_id))
        changes = self._sets.meet((kind, set_id), nal, facts)
        if packet is not None:
            if not late:
                self._carried.setdefault(packet, set()).add((kind, set_id))
            if changes:
                self._changing.add(packet)
                if known:
                    self._replaced.setdefault((kind, set_id), []).append(packet)
        if changes:
            self._note_change(kind, set_id)

    def _note_change(self, kind: int, set_id: int) -> None:
        """Update other parameter sets as decoders of the codec do when the set of this type and ID changes."""

    def _states(self, starts: Iterable[int], *extra: bytes) -> tuple[tuple[bytes, ...], NDArray[np.int32]]:
        """Return `states` and `state` of `Pictures`.

        The state of a random access point consists of the in-band parameter sets in force, without those that the
        packet itself carries.

        Args:
            starts: the packet numbers of the random access points.
            extra: NAL units that are added to every state, except that of packet 0.
        """
        numbers: dict[bytes, int] = {b"": 0}
        if extra:  # random access points after the packets that were fed need this state
            numbers[self._joined(extra)] = 1
        state = np.zeros(self._packets, np.int32)
        for start in starts:
            carried = self._carried.get(start, set())
            nals = [nal for key, nal in self._in_force[start] if key not in carried]
            nals += extra if start else []
            state[start] = numbers.setdefault(self._joined(nals), len(numbers))
            if len(numbers) > MAX_STATES:
                raise BitstreamError(
                    "parameter_sets", f"random access points need more than {MAX_STATES} decoder states"
                )
        return tuple(numbers), state

    def _joined(self, nals: Iterable[bytes]) -> bytes:
        return join_length_prefixed(nals, self.length_size) if self.length_size else join_annex_b(nals)


def marked(numbers: Iterable[int], n: int) -> NDArray[np.bool_]:
    """Return bool [n]: True at the indices in `numbers`, False elsewhere."""
    found = np.zeros(n, np.bool_)
    found[np.fromiter(numbers, np.int64)] = True
    return found
