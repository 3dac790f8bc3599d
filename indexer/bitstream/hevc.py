"""HEVC (ITU-T H.265, ISO/IEC 23008-2): start points, leading pictures, references and output order from NAL units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.bits import HEADER_BYTES, BitColumns, BitReader
from framedex.indexer.bitstream.colour import NO_COLOUR, parse_colour
from framedex.indexer.bitstream.hevc_references import (
    References,
    ReferenceSets,
    first_missing_reference,
    parse_reference_sets,
    parse_slice_references,
)
from framedex.indexer.bitstream.nal import unescape
from framedex.indexer.bitstream.pictures import (
    CLOSED_START,
    NO_START,
    OPEN_START,
    BitstreamError,
    Pictures,
    segments,
    unwrap_order_counts,
)
from framedex.indexer.bitstream.scanner import NalScanner

RADL_N, RASL_N, RASL_R, IDR_W_RADL, IDR_N_LP, CRA = 6, 8, 9, 19, 20, 21  # nal_unit_type, table 7-1
VPS, SPS, PPS, END_OF_SEQUENCE, END_OF_BITSTREAM = 32, 33, 34, 36, 37
FIRST_IRAP, LAST_IRAP, LAST_SUBLAYER_NON_REFERENCE, LAST_VCL = 16, 23, 14, 31

NO_REFERENCES = References(short_term=(), long_term=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sps:
    """The fields of a sequence parameter set (7.3.2.2) that slice headers and the shape of pictures depend on.

    shape: chroma format, size, conformance window, bit depths, colour; compared, never interpreted.
    """

    separate_colour_planes: bool
    order_count_bits: int
    references: ReferenceSets
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pps:
    """The fields of a picture parameter set (7.3.2.3) that slice headers depend on."""

    sps_id: int
    output_flag_present: bool
    extra_bits: int


def parse_sps(nal: bytes) -> tuple[int, Sps]:
    """Return (seq_parameter_set_id, fields) of an SPS NAL unit, header bytes included. Raises ValueError."""
    bits = BitReader(unescape(nal[2:]))
    bits.u(4)
    sub_layers = bits.u(3)
    bits.u(1)
    _skip_profile_tier_level(bits, sub_layers)
    sps_id, chroma = bits.ue(), bits.ue()
    separate_planes = chroma == 3 and bits.flag()
    shape = [chroma, bits.ue(), bits.ue()]
    if bits.flag():
        shape += [bits.ue() for _ in range(4)]
    shape += [bits.ue(), bits.ue()]
    order_count_bits = bits.ue() + 4
    _skip_coding_tools(bits, sub_layers)
    references = parse_reference_sets(bits, order_count_bits)
    bits.u(2)
    shape += parse_colour(bits) if bits.flag() else NO_COLOUR
    return sps_id, Sps(
        separate_colour_planes=separate_planes,
        order_count_bits=order_count_bits,
        references=references,
        shape=tuple(shape),
    )


def _skip_coding_tools(bits: BitReader, sub_layers: int) -> None:
    """Skip an SPS' fields between the picture order count and the reference picture sets."""
    for _ in range(sub_layers + 1 if bits.flag() else 1):
        bits.ue(), bits.ue(), bits.ue()
    for _ in range(6):
        bits.ue()
    if bits.flag() and bits.flag():
        _skip_scaling_lists(bits)
    bits.u(2)
    if bits.flag():
        bits.u(8)
        bits.ue(), bits.ue()
        bits.u(1)


def _skip_scaling_lists(bits: BitReader) -> None:
    """Skip scaling_list_data() (7.3.4)."""
    for size in range(4):
        for _ in range(0, 6, 3 if size == 3 else 1):
            if not bits.flag():
                bits.ue()
                continue
            for _ in range(min(64, 1 << (4 + 2 * size)) + (size > 1)):
                bits.se()


def _skip_profile_tier_level(bits: BitReader, sub_layers: int) -> None:
    """Skip profile_tier_level(1, sub_layers) (7.3.3)."""
    bits.u(96)
    present = [(bits.flag(), bits.flag()) for _ in range(sub_layers)]
    if sub_layers:
        bits.u(2 * (8 - sub_layers))
    for profile, level in present:
        bits.u(88 * profile + 8 * level)


def parse_pps(nal: bytes) -> tuple[int, Pps]:
    """Return (pic_parameter_set_id, fields) of a PPS NAL unit, header bytes included. Raises ValueError."""
    bits = BitReader(unescape(nal[2:]))
    pps_id, sps_id = bits.ue(), bits.ue()
    bits.flag()
    return pps_id, Pps(sps_id=sps_id, output_flag_present=bits.flag(), extra_bits=bits.u(3))


def parse_vps(nal: bytes) -> tuple[int, None]:
    """Return (id, None) of a VPS NAL unit (7.3.2.1)."""
    return BitReader(unescape(nal[2:])).u(4), None


def parse_configuration(record: bytes) -> tuple[int, list[bytes]]:
    """Return (NAL length size, parameter sets) of an HEVCDecoderConfigurationRecord (ISO/IEC 14496-15 8.3.3.1).

    Raises ValueError for anything else, Annex B among it.
    """
    if len(record) < 23 or record[:3] in (b"\0\0\1", b"\0\0\0"):
        raise ValueError("not an HEVC decoder configuration record")
    nals, at = [], 23
    for _ in range(record[22]):
        count = int.from_bytes(record[at + 1 : at + 3], "big")
        at += 3
        for _ in range(count):
            end = at + 2 + int.from_bytes(record[at : at + 2], "big")
            if end > len(record):
                raise ValueError("the HEVC decoder configuration record ends too early")
            nals.append(record[at + 2 : end])
            at = end
    return (record[21] & 3) + 1, [nal for nal in nals if len(nal) > 2]


class HevcScanner(NalScanner):
    """Collect slice headers and parameter sets of length-prefixed HEVC packets. See `pictures.Scanner`."""

    set_parsers: ClassVar = {VPS: ("VPS", parse_vps), SPS: ("SPS", parse_sps), PPS: ("PPS", parse_pps)}
    parse_configuration = staticmethod(parse_configuration)

    def __init__(self, configuration: bytes) -> None:
        super().__init__(configuration)
        self._kinds: list[set[int]] = []
        self._layer: list[int] = []
        self._heads: list[bytes] = []

    @staticmethod
    def unit_type(header: int) -> int:
        return header >> 1 & 63

    def feed(self, data: bytes) -> None:
        number, spans = self._next_packet(data)
        kinds: set[int] = set()
        firsts = 0
        for start, end in spans:
            if end - start < 3 or (data[start] & 1) << 5 | data[start + 1] >> 3:
                continue  # nuh_layer_id above 0: other views and alpha, which base-layer decoders skip
            kind = data[start] >> 1 & 63
            if kind <= LAST_VCL:
                kinds.add(kind)
                if data[start + 2] & 0x80:  # first_slice_segment_in_pic_flag
                    firsts += 1
                    head = data[start + 2 : min(end, start + 2 + HEADER_BYTES)]
                    self._heads.append(unescape(head))
                    self._layer.append((data[start + 1] & 7) - 1)
            elif kind in (END_OF_SEQUENCE, END_OF_BITSTREAM):
                raise BitstreamError("end_of_sequence", f"packet {number} ends a coded video sequence")
            else:
                self._meet_set(data[start:end], number)
        if len(kinds) != 1 or firsts != 1:
            self._refuse_packet(number, len(kinds), firsts)
        self._kinds.append(kinds)

    @staticmethod
    def _refuse_packet(number: int, kinds: int, firsts: int) -> None:
        if firsts > 1:
            raise BitstreamError("packing", f"packet {number} holds more than one picture")
        if kinds > 1:
            raise BitstreamError("packing", f"packet {number} mixes picture types")
        raise BitstreamError("damaged", f"packet {number} holds no complete picture", damaged=True)

    def finish(self) -> Pictures:
        kind = np.array([next(iter(kinds)) for kinds in self._kinds], np.int64)
        layer = np.array(self._layer, np.int64)
        n = len(kind)
        irap = (kind >= FIRST_IRAP) & (kind <= LAST_IRAP)
        start = np.where(kind == CRA, OPEN_START, np.where(irap, CLOSED_START, NO_START)).astype(np.uint8)
        rasl = (kind == RASL_N) | (kind == RASL_R)
        segment = segments(start)
        behind = np.maximum(segment, 0)
        # 8.1.3: a CRA picture that is first in the bitstream, and every BLA picture, drops its RASL pictures.
        skipped = rasl & ((segment == 0) | ((kind[behind] >= FIRST_IRAP) & (kind[behind] < IDR_W_RADL)))
        leading = rasl & ~skipped

        sequence, order_lsb, bits = self._parse_slices(kind, irap)
        sublayer_non_reference = (kind <= LAST_SUBLAYER_NON_REFERENCE) & (kind % 2 == 0)
        leads = (kind >= RADL_N) & (kind <= RASL_R)
        resets = irap & (kind != CRA)
        order = unwrap_order_counts(
            order_lsb, sequence.order_count_bits, resets, (layer == 0) & ~leads & ~sublayer_non_reference
        )
        self._check_references(sequence, bits, kind, order, skipped)
        starts = np.flatnonzero(irap).tolist()
        self._check_sets(starts)
        return Pictures(
            start=start,
            non_reference=sublayer_non_reference & (layer == layer.max(initial=0)),
            leading=leading | skipped,
            skipped=skipped,
            field_coded=np.zeros(n, np.bool_),
            period=np.cumsum(resets),
            order=order,
            preamble=self._preamble(starts),
            inband_sets=bool(self._sets.differing()),
            inner_start_codes=self._inner_start_codes,
            chroma_format=sequence.shape[0],
            max_ref_frames=None,
        )

    def _check_references(
        self,
        sequence: Sps,
        bits: BitColumns,
        kind: NDArray[np.int64],
        order: NDArray[np.int64],
        skipped: NDArray[np.bool_],
    ) -> None:
        """Refuse streams with missing pictures: decoders drop every picture that refers to one."""
        rows = zip(kind.tolist(), order.tolist(), skipped.tolist(), bits.position.tolist(), self._heads, strict=True)

        def pictures() -> Iterator[tuple[int, bool, References | None]]:
            for number, (unit, count, skip, position, head) in enumerate(rows):
                anew = FIRST_IRAP <= unit <= IDR_N_LP
                if skip or anew:
                    yield count, anew, None if skip else NO_REFERENCES
                    continue
                reader = BitReader(head)
                try:
                    reader.u(position)
                    yield count, anew, parse_slice_references(reader, sequence.references, count)
                except ValueError as error:
                    raise BitstreamError("damaged", f"packet {number}: {error}", damaged=True) from error

        missing = first_missing_reference(pictures(), sequence.order_count_bits)
        if missing is not None:
            raise BitstreamError(
                "damaged",
                f"pictures are missing before packet {missing[0]}: it refers to one that is not there",
                damaged=True,
            )

    def _parse_slices(
        self, kind: NDArray[np.int64], irap: NDArray[np.bool_]
    ) -> tuple[Sps, NDArray[np.int64], BitColumns]:
        """Return (the sequence's fields, low bits of the picture order count int64 [n], what follows in the headers).

        IDR pictures have 0.
        """
        bits = BitColumns(self._heads)
        bits.u(1)
        no_output_of_prior = bits.u(1, where=irap)
        pps_id = bits.ue()
        sequence, pictures = self._sets_of(np.unique(pps_id).tolist())
        extra_bits = np.array([pictures[number].extra_bits for number in pps_id.tolist()], np.int64)
        may_hide = np.array([pictures[number].output_flag_present for number in pps_id.tolist()], np.bool_)
        bits.u(extra_bits)
        bits.ue()
        hidden = may_hide & (bits.u(1, where=may_hide) == 0)
        if sequence.separate_colour_planes:
            bits.u(2)
        idr = (kind == IDR_W_RADL) | (kind == IDR_N_LP)
        order_lsb = bits.u(sequence.order_count_bits, where=~idr)
        if hidden.any():
            raise BitstreamError("output_order", f"packet {int(np.argmax(hidden))} is marked as not to be output")
        dropping = (no_output_of_prior > 0) & (np.arange(len(kind)) > 0) & (kind != CRA)
        if dropping.any():
            raise BitstreamError("output_order", f"packet {int(np.argmax(dropping))} drops pictures not yet output")
        return sequence, order_lsb, bits

    def _sets_of(self, pps_ids: list[int]) -> tuple[Sps, dict[int, Pps]]:
        """Return the one kind of sequence that slices with these slice_pic_parameter_set_ids belong to, and their PPSs."""
        pictures: dict[int, Pps] = {}
        kinds: set[Sps] = set()
        for number in pps_ids:
            pps = self._sets.facts.get((PPS, number))
            sps = self._sets.facts.get((SPS, pps.sps_id)) if isinstance(pps, Pps) else None
            if not isinstance(pps, Pps) or not isinstance(sps, Sps):
                raise BitstreamError("parameter_sets", f"slices refer to PPS {number}, which (or whose SPS) is missing")
            pictures[number] = pps
            kinds.add(sps)
        if len(kinds) > 1:
            raise BitstreamError("parameter_sets", "slices belong to sequences of different shapes")
        return kinds.pop(), pictures
