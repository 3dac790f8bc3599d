"""The scanner of HEVC (ITU-T H.265).

It finds random access points, leading pictures, references and the output order. Numbers of sections and tables refer
to ITU-T H.265.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream import base, nal
from framedex.indexer.bitstream.hevc_sets import (
    PPS,
    SKIPPED,
    SPS,
    VPS,
    Pps,
    References,
    ReferencesReader,
    ReferringPicture,
    Sps,
    buffered_references,
    parse_configuration,
    parse_pps,
    parse_sps,
    parse_vps,
)
from framedex.indexer.bitstream.scanner import NalScanner, Sorted, marked

RADL_N, RASL_N, RASL_R, IDR_W_RADL, IDR_N_LP, CRA = 6, 8, 9, 19, 20, 21  # values of nal_unit_type (table 7-1)
SEQUENCE_ENDS = (36, 37)  # nal_unit_type of end of sequence and end of bitstream
PREFIX_SEI = 39
FIRST_IRAP, LAST_IRAP, LAST_SUBLAYER_NON_REFERENCE, LAST_VCL = 16, 23, 14, 31  # limits of ranges of nal_unit_type

PPS_ID_BITS = 32  # number of bits for a PPS ID; all values that `BitColumns.ue` returns fit

NO_PICTURE = LAST_VCL + 1  # placeholder for the nal_unit_type of a packet without slices
NO_REFERENCES = References(short_term=(), long_term=())  # the references of a picture that empties the buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceHeaders:
    """The slice header fields of n pictures.

    Attributes:
        sequence: int64 [n], the index in `HevcScanner._sequences` of the picture's SPS, -1 if parameter sets are
            missing.
        sps_id: int64 [n], the ID of the picture's SPS.
        order_lsb: int64 [n], the low bits of the picture order count.
        hidden: bool [n], whether the header states that the picture is not output.
        may_hide: whether some PPS allows headers to state that a picture is not output.
        position: int64 [n], the position in the header at which the reference picture sets begin, in bits.
    """

    sequence: NDArray[np.int64]
    sps_id: NDArray[np.int64]
    order_lsb: NDArray[np.int64]
    hidden: NDArray[np.bool_]
    may_hide: bool
    position: NDArray[np.int64]


class HevcScanner(NalScanner):
    """A scanner of HEVC packets, as `base.Scanner` describes. It collects slice headers and parameter sets."""

    set_parsers: ClassVar = {VPS: ("VPS", parse_vps), SPS: ("SPS", parse_sps), PPS: ("PPS", parse_pps)}
    header_bytes: ClassVar = 2
    type_bits: ClassVar = (1, 63)
    parse_configuration = staticmethod(parse_configuration)

    def __init__(self, configuration: bytes) -> None:
        super().__init__(configuration)
        self._begin_anew: set[int] = set()  # packets before which a coded video sequence ends
        self._lone_ends: set[int] = set()  # packets that contain the end of a sequence, but not a slice
        self._late_sets: set[int] = set()  # packets in which parameter sets follow the first slice
        # The numbers of slices that pictures have. If they vary, slices may be missing, and FFmpeg's decoder does not
        # report that.
        self._slice_counts: set[int] = set()

    def feed(self, data: bytes) -> None:
        number, spans = self._next_packet(data)
        pictures = kinds = slices = 0
        # `at_front` is true while all units so far are of SEQUENCE_ENDS. `ended` is true after a unit of SEQUENCE_ENDS
        # that follows units of other types.
        at_front, ended = True, False
        for start, end in spans:
            kind = data[start] >> 1 & 63
            if kind in SEQUENCE_ENDS:
                self._begin_anew.add(number if at_front else number + 1)
                ended |= not at_front
                continue
            at_front = False
            if end - start < 3:
                continue
            if (data[start] & 1) << 5 | data[start + 1] >> 3:  # nuh_layer_id of another layer, such as a view
                # Decoders of the base layer skip slices of other layers. However, FFmpeg's decoder replaces parameter
                # sets of layer 0 by those of other layers.
                if kind in self.set_parsers:
                    self._carried_over.add(number)
                continue
            if kind <= LAST_VCL:
                if ended and not FIRST_IRAP <= kind <= IDR_N_LP:  # BLA and IDR pictures begin a sequence anywhere
                    raise base.BitstreamError("end_of_sequence", f"packet {number} continues a sequence that has ended")
                if not data[start + 1] & 7:  # nuh_temporal_id_plus1 must not be 0; decoders skip such a unit
                    self._damaged.add(number)
                    continue
                slices += 1
                ended = False
                self._begin_anew.discard(number + 1)
                kinds |= 1 << kind
                if data[start + 2] & 0x80:  # first_slice_segment_in_pic_flag
                    pictures += 1
                    header = data[start] << 8 | data[start + 1]
                    head = nal.unescape(data[start + 2 : min(end, start + 2 + base.HEADER_BYTES)])
                    self._slices.append(number, header, len(self._sets.epochs) - 1, head)
            elif kind in self.set_parsers:
                self._on_parameter_set(data[start:end], number, late=bool(kinds))
                if kinds:
                    self._late_sets.add(number)
            elif kind == PREFIX_SEI and nal.FILM_GRAIN in dict(nal.sei_payloads(data[start + 2 : end])):
                self._carried_over.add(number)
        if slices:
            self._slice_counts.add(slices)
        if not kinds and (ended or number in self._begin_anew):
            self._lone_ends.add(number)
        if pictures > 1:
            raise base.BitstreamError("packing", f"packet {number} holds more than one picture")
        if kinds and (not pictures or kinds & (kinds - 1)):
            self._damaged.add(number)  # the first slice is missing, or slices have different picture types

    def _classify_units(self, data: NDArray[np.uint8], units: nal.Units) -> Sorted:
        n, last = len(units.damaged), len(data) - 1
        header = data[units.start].astype(np.int64) << 8 | data[np.minimum(units.start + 1, last)]
        whole = units.end - units.start >= 3
        base = whole & (header >> 3 & 63 == 0)
        kind = header >> 9 & 63
        coded = base & is_slice(header)
        invalid = base & (kind <= LAST_VCL) & ~coded
        first = coded & (data[np.minimum(units.start + 2, last)] & 0x80 != 0)
        pictures = np.bincount(units.packet[first], minlength=n)
        apart = (marked(self.set_parsers, 64)[kind] & whole) | marked(SEQUENCE_ENDS, 64)[kind]
        sei = np.flatnonzero((kind == PREFIX_SEI) & base)
        begin = units.start[sei] + 2
        apart[sei] = ~nal.is_other_message(nal.heads_at(data, begin, 2), units.end[sei] - begin, (nal.FILM_GRAIN,))
        apart |= pictures[units.packet] > 1
        packet = units.packet[coded]
        last_of_kind = np.full(n, -1)
        last_of_kind[packet] = kind[coded]
        mixed = np.bincount(packet[kind[coded] != last_of_kind[packet]], minlength=n) > 0
        counts = np.bincount(packet, minlength=n)[~units.unread]
        self._slice_counts.update(np.unique(counts[counts > 0]).tolist())
        damaged = mixed | (np.bincount(units.packet[invalid], minlength=n) > 0)
        return first, apart, damaged | ((last_of_kind >= 0) & (pictures == 0))

    def finish(self) -> base.Pictures:
        n = self._packets
        if not len(self._slices):
            raise base.BitstreamError("parameter_sets", "the packets contain no slices that can be read", damaged=True)
        slices = self._slices.columns()
        packet = slices.packet  # int64 [pictures], because only the first slice of each picture is collected
        kind, layer, order = np.full(n, NO_PICTURE), np.zeros(n, np.int64), np.zeros(n, np.int64)
        kind[packet], layer[packet] = slices.header >> 9 & 63, (slices.header & 7) - 1
        irap = (kind >= FIRST_IRAP) & (kind <= LAST_IRAP)
        headers = self._parse_slices(slices, kind[packet])
        activates = np.zeros(n, np.bool_)
        activates[packet] = self._activations(headers, packet)
        forgets = (self._begins_anew(kind) | activates) & (kind == CRA)
        start = np.where(irap, base.CLOSED_START, base.NO_START).astype(np.uint8)
        start[(kind == CRA) & ~forgets] = base.OPEN_START
        rasl = (kind == RASL_N) | (kind == RASL_R)
        segment = base.segments(start)
        behind = np.maximum(segment, 0)
        first = int(np.argmax(irap)) if irap.any() else n
        # Decoders drop RASL pictures after the first CRA picture of a sequence, and after a BLA or IDR picture (8.1.3).
        dropped = rasl & ((segment == first) | ((kind[behind] >= FIRST_IRAP) & (kind[behind] < CRA)) | forgets[behind])

        resets = irap & ((kind != CRA) | forgets)
        # Anchors are pictures that may be the prevTid0Pic of later pictures (8.3.1).
        anchors = ((layer == 0) & ~((kind >= RADL_N) & (kind <= RASL_R)) & ~_is_sublayer_non_reference(kind))[packet]
        counts = np.zeros(len(packet), np.int64)
        count_bits = np.array([*(sequence.order_count_bits for sequence in self._sequences), 4])[headers.sequence]
        # The number of bits changes only at pictures where picture order counts restart.
        for bits in nal.distinct(count_bits)[0].tolist():
            part = count_bits == bits
            counts[part] = base.unwrap_order_counts(headers.order_lsb[part], bits, resets[packet][part], anchors[part])
        order[packet] = counts
        missing, of_pictures = self._references(
            slices, headers, resets[packet], order[packet], dropped[packet], anchors, irap[packet], rasl[packet]
        )
        damaged = marked(self._damaged, n) | (segment < 0)
        damaged[packet[missing]] = True
        # If two pictures of a sequence have the same picture order count (8.3.1), decoders reject the second picture
        # while they hold the first one.
        period = np.cumsum(resets)
        repeated = np.ones(len(packet), np.bool_)
        repeated[np.unique(np.stack([period, order])[:, packet], axis=1, return_index=True)[1]] = False
        damaged[packet] |= repeated & (self._consecutive | ~irap[packet])
        amid = activates & ~irap
        damaged |= amid
        hidden = np.zeros(n, np.bool_)
        hidden[packet] = headers.hidden
        states, state = self._states(np.flatnonzero(irap).tolist())
        used = [self._sequences[number] for number in nal.distinct(headers.sequence[headers.sequence >= 0])[0].tolist()]
        # `highest` is the highest temporal layer that the SPS allows, because packets that are not fed may be in higher
        # layers than those that are fed.
        highest = np.full(n, -1)
        highest[packet] = np.array([*(each.highest_layer for each in self._sequences), -1])[headers.sequence]
        changes_sets = marked(self._changing | self._carried_over, n)
        slots = np.full(n, base.SLOTS_KNOWN, np.int32)  # the value for packets without a picture, which use no slots
        slots[packet] = of_pictures
        # After a damaged packet, slots are unknown up to the next random access point.
        total_damaged = np.cumsum(damaged)
        before = np.where(resets | (start != base.NO_START), total_damaged - damaged, 0)
        slots[total_damaged > np.maximum.accumulate(before)] = 0
        return base.pictures_of(
            start,
            non_reference=_is_sublayer_non_reference(kind) & (layer == highest) & ~changes_sets,
            leading=rasl,
            skipped=dropped | hidden | (segment < 0) | (kind == NO_PICTURE),
            damaged=damaged,
            changes_sets=changes_sets,
            forgets=forgets,
            period=period,
            order=order,
            states=states,
            state=state,
            inband_sets=self._sets.differs,
            inner_start_codes=self._inner_start_codes,
            carries_over=bool(self._carried_over),
            doubtful=len(self._slice_counts) > 1,
            may_hide=headers.may_hide,
            begins_amid=bool(amid.any()),
            drops_leading=bool(((kind >= FIRST_IRAP) & (kind < IDR_W_RADL)).any()),
            slots=slots,
            **base.shape_facts({sequence.shape for sequence in used}),
        )

    def _begins_anew(self, kind: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool [packets]: whether the packet begins a coded video sequence after an end of sequence (7.4.2.4.4).

        Args:
            kind: int64 [packets], the nal_unit_type of slices, or NO_PICTURE.

        Raises:
            BitstreamError: if the next picture after an end of sequence cannot begin a sequence.
        """
        last = int(np.flatnonzero(kind != NO_PICTURE)[-1])
        anew = marked((number for number in self._begin_anew if number <= last), len(kind))
        lone = marked(self._lone_ends, len(kind))
        wrong = np.flatnonzero(
            (anew & ((kind < FIRST_IRAP) | (kind > LAST_IRAP))) | (lone & (np.arange(len(kind)) < last))
        )
        if len(wrong):
            raise base.BitstreamError(
                "end_of_sequence", f"a sequence ends before packet {wrong[0]}, which does not begin another sequence"
            )
        return anew

    def _parse_slices(self, slices: nal.SliceColumns, kind: NDArray[np.int64]) -> SliceHeaders:
        """Return slice header fields (7.3.6.1) up to slice_pic_order_cnt_lsb. IDR pictures lack this field, and get 0.

        Args:
            slices: the first slice of each picture.
            kind: int64 [pictures], nal_unit_type.
        """
        bits = base.BitColumns(slices.heads)
        irap = (kind >= FIRST_IRAP) & (kind <= LAST_IRAP)
        bits.u(1)
        no_output_of_prior = bits.u(1, where=irap)
        sequence, sps_id, may_hide, extra_bits = self._sets_of(slices, bits.ue())

        def of_sequence(value: Callable[[Sps], int]) -> NDArray[np.int64]:
            return np.array([*map(value, self._sequences), 0], np.int64)[sequence]

        bits.u(extra_bits)
        bits.ue()
        hidden = may_hide & (bits.u(1, where=may_hide) == 0)
        bits.u(2 * of_sequence(lambda sps: sps.separate_colour_planes))
        idr = (kind == IDR_W_RADL) | (kind == IDR_N_LP)
        order_lsb = bits.u(of_sequence(lambda sps: sps.order_count_bits), where=~idr)
        dropping = (no_output_of_prior > 0) & (np.arange(len(kind)) > 0) & (kind != CRA)
        if dropping.any():
            number = slices.packet[int(np.argmax(dropping))]
            raise base.BitstreamError("output_order", f"packet {number} drops pictures that have not been output")
        return SliceHeaders(
            sequence=sequence,
            sps_id=sps_id,
            order_lsb=order_lsb,
            hidden=hidden,
            may_hide=bool(may_hide.any()),
            position=bits.position,
        )

    def _sets_of(
        self, slices: nal.SliceColumns, pps_id: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """Return the fields of parameter sets that slice headers depend on.

        Pictures whose parameter sets are missing count as damaged, because decoders cannot read them. For such a
        picture, the index of the SPS is -1 and the other fields are 0.

        Args:
            slices: the first slice of each picture.
            pps_id: int64 [pictures], the ID of the PPS.

        Returns:
            Four columns with one row per picture: the index of the SPS in `_sequences`, the ID of the SPS, whether
            headers contain pic_output_flag, and the number of extra bits in headers.
        """
        self._sequences: list[Sps] = []
        rows: list[tuple[int, int, bool, int]] = []
        known: dict[Sps, int] = {}
        keys, which = nal.distinct(slices.epoch << PPS_ID_BITS | pps_id)
        for key in keys.tolist():
            facts = self._sets.epochs[key >> PPS_ID_BITS]
            pps = facts.get((PPS, key & (1 << PPS_ID_BITS) - 1))
            sps = facts.get((SPS, pps.sps_id)) if isinstance(pps, Pps) else None
            if not isinstance(pps, Pps) or not isinstance(sps, Sps):
                rows.append((-1, 0, False, 0))
                continue
            rows.append((known.setdefault(sps, len(known)), pps.sps_id, pps.output_flag_present, pps.extra_bits))
        self._sequences += known
        if not self._sequences:
            raise base.BitstreamError("parameter_sets", "slices refer to parameter sets that are missing", damaged=True)
        sequence, sps_id, output_flag, extra_bits = np.array(rows, np.int64)[which].T
        self._damaged.update(slices.packet[sequence < 0].tolist())
        return sequence, sps_id, output_flag != 0, extra_bits

    def _activations(self, headers: SliceHeaders, packet: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool [pictures]: whether another SPS is activated at the picture. It is false for the first picture.

        The standard allows activation only where a coded video sequence begins (7.4.2.4.2). FFmpeg's decoder begins a
        new sequence at every picture at which an SPS is activated. It then drops all reference pictures. If the picture
        is a CRA picture, it also drops the RASL pictures after it. If the content of a VPS changes, FFmpeg's decoder
        drops the SPSs that refer to the VPS.

        Args:
            headers: the slice header fields of the pictures.
            packet: int64 [pictures], the packet of the picture.
        """
        activates = np.zeros(len(packet), np.bool_)
        activates[1:] = np.diff(headers.sps_id) != 0
        for (kind, set_id), brought in self._replaced.items():
            if kind != PPS:
                late = [number + 1 for number in brought if number in self._late_sets]
                row = np.searchsorted(packet, [*brought, *late])
                row = row[row < len(packet)]
                activates[row[(headers.sps_id[row] == set_id) | (kind == VPS)]] = True
        activates[:1] = False
        return activates

    def _references(
        self,
        slices: nal.SliceColumns,
        headers: SliceHeaders,
        resets: NDArray[np.bool_],
        order: NDArray[np.int64],
        dropped: NDArray[np.bool_],
        *kinds: NDArray[np.bool_],
    ) -> tuple[list[int], list[int]]:
        """Return the row numbers of pictures that refer to missing pictures, and the slots of each picture.

        Decoders generate substitutes for missing pictures, so pictures that refer to them count as damaged.

        Args:
            slices: the first slice of each picture.
            headers: the slice header fields of the pictures.
            resets: bool [pictures], whether the picture empties the buffer of references.
            order: int64 [pictures], the picture order counts.
            dropped: bool [pictures], whether decoders skip the picture.
            kinds: the fields `is_anchor`, `is_start` and `is_leading` of `ReferringPicture`, each bool [pictures].
        """
        readers = [ReferencesReader(sequence.references) for sequence in self._sequences]
        heads, begins = slices.heads.tobytes(), np.arange(len(resets)) * base.HEADER_BYTES
        skipped = dropped | (headers.sequence < 0)
        ends, of_kinds = begins + slices.length, np.stack(kinds, axis=1)
        columns = (resets, order, skipped, headers.position, headers.sequence, begins, ends, of_kinds)

        def pictures() -> Iterator[ReferringPicture]:
            rows = zip(*(column.tolist() for column in columns), strict=True)
            for anew, count, is_skipped, position, sequence, begin, end, kind in rows:
                references = SKIPPED if is_skipped else NO_REFERENCES
                if not is_skipped and not anew:
                    references = readers[sequence].read(heads[begin:end], position, count)
                yield ReferringPicture(count, anew, references, 1 << self._sequences[sequence].order_count_bits, *kind)

        return buffered_references(pictures())


def _is_sublayer_non_reference(kind: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool [n]: whether the picture is a sub-layer non-reference picture (table 7-1).

    Such a picture is not a reference for other pictures of its temporal layer.

    Args:
        kind: int64 [n], nal_unit_type.
    """
    found: NDArray[np.bool_] = (kind <= LAST_SUBLAYER_NON_REFERENCE) & (kind % 2 == 0)
    return found


def is_slice(header: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool [n]: whether a NAL unit contains a slice of the base layer (7.3.1.2).

    Args:
        header: int64 [n], the first two bytes of the NAL unit.
    """
    kind, layer = header >> 9 & 63, header >> 3 & 63
    slices: NDArray[np.bool_] = (kind <= LAST_VCL) & (layer == 0) & (header & 7 != 0)
    return slices
