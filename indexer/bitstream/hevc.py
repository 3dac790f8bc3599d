"""HEVC (ITU-T H.265, ISO/IEC 23008-2): start points, leading pictures, references and output order from NAL units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.bits import HEADER_BYTES, BitColumns, BitReader
from framedex.indexer.bitstream.nal import ParameterSets, join_length_prefixed, split_length_prefixed, unescape
from framedex.indexer.bitstream.pictures import (
    CLOSED_START,
    NO_START,
    OPEN_START,
    BitstreamError,
    Pictures,
    segments,
    unwrap_order_counts,
)

RADL_N, RASL_N, RASL_R, IDR_W_RADL, IDR_N_LP, CRA = 6, 8, 9, 19, 20, 21  # nal_unit_type, table 7-1
VPS, SPS, PPS, END_OF_SEQUENCE, END_OF_BITSTREAM = 32, 33, 34, 36, 37
FIRST_IRAP, LAST_IRAP, LAST_SUBLAYER_NON_REFERENCE, LAST_VCL = 16, 23, 14, 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Sps:
    """The fields of a sequence parameter set (7.3.2.2) that slice headers and the shape of pictures depend on.

    shape: chroma format, size, conformance window, bit depths; compared, never interpreted.
    """

    separate_colour_planes: bool
    order_count_bits: int
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
    return sps_id, Sps(separate_colour_planes=separate_planes, order_count_bits=bits.ue() + 4, shape=tuple(shape))


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


_PARSERS = {VPS: parse_vps, SPS: parse_sps, PPS: parse_pps}


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


class HevcScanner:
    """Collect slice headers and parameter sets of length-prefixed HEVC packets. See `pictures.Scanner`."""

    def __init__(self, configuration: bytes) -> None:
        try:
            self._length_size, nals = parse_configuration(configuration)
        except ValueError as error:
            raise BitstreamError("parameter_sets", str(error)) from error
        self._sets = ParameterSets()
        for nal in nals:
            self._meet(nal, None)
        self._packets = 0
        self._inner_start_codes = False
        self._kinds: list[set[int]] = []
        self._layer: list[int] = []
        self._heads: list[bytes] = []

    def feed(self, data: bytes) -> None:
        number = self._packets
        self._packets += 1
        try:
            spans, inner = split_length_prefixed(data, self._length_size)
        except ValueError as error:
            raise BitstreamError("damaged", f"packet {number}: {error}", damaged=True) from error
        self._inner_start_codes |= inner
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
            elif kind in _PARSERS:
                self._meet(data[start:end], number)
            elif kind in (END_OF_SEQUENCE, END_OF_BITSTREAM):
                raise BitstreamError("end_of_sequence", f"packet {number} ends a coded video sequence")
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

    def _meet(self, nal: bytes, packet: int | None) -> None:
        kind = nal[0] >> 1 & 63
        if kind not in _PARSERS:
            return
        try:
            number, facts = _PARSERS[kind](nal)
        except ValueError as error:
            raise BitstreamError("damaged", f"parameter set: {error}", damaged=True) from error
        key = (kind, number)
        if packet is None:
            self._sets.configure(key, nal, facts)
        else:
            self._sets.meet(key, nal, facts, packet)

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

        bits, order_lsb = self._parse_slices(kind, irap)
        sublayer_non_reference = (kind <= LAST_SUBLAYER_NON_REFERENCE) & (kind % 2 == 0)
        leads = (kind >= RADL_N) & (kind <= RASL_R)
        resets = irap & (kind != CRA)
        order = unwrap_order_counts(order_lsb, bits, resets, (layer == 0) & ~leads & ~sublayer_non_reference)
        starts = np.flatnonzero(irap)
        if (changed := self._sets.changed(starts.tolist())) is not None:
            (set_kind, set_id), where = changed
            name = {VPS: "VPS", SPS: "SPS", PPS: "PPS"}[set_kind]
            raise BitstreamError("parameter_sets", f"{name} {set_id} changes its content at packet {where}")
        return Pictures(
            start=start,
            non_reference=sublayer_non_reference & (layer == layer.max(initial=0)),
            leading=leading | skipped,
            skipped=skipped,
            field_coded=np.zeros(n, np.bool_),
            period=np.cumsum(resets),
            order=order,
            preamble=join_length_prefixed(self._sets.missing_at(starts.tolist()), self._length_size),
            inband_sets=bool(self._sets.differing()),
            inner_start_codes=self._inner_start_codes,
            chroma_format=self._sequence().shape[0],
            max_ref_frames=None,
        )

    def _parse_slices(self, kind: NDArray[np.int64], irap: NDArray[np.bool_]) -> tuple[int, NDArray[np.int64]]:
        """Return (picture order count bits, their values int64 [n]); IDR pictures have 0."""
        columns = BitColumns(self._heads)
        columns.u(1)
        no_output_of_prior = columns.u(1, where=irap)
        pps_id = columns.ue()
        names = ("extra_bits", "output_flag_present", "separate_colour_planes", "order_count_bits")
        lookup = {name: np.zeros(len(kind), np.int64) for name in names}
        for number in np.unique(pps_id).tolist():
            pps, sps = self._sets_of(number)
            for name, column in lookup.items():
                column[pps_id == number] = getattr(pps if hasattr(pps, name) else sps, name)
        columns.u(lookup["extra_bits"])
        columns.ue()
        shown = columns.u(1, where=lookup["output_flag_present"] > 0)
        columns.u(np.where(lookup["separate_colour_planes"] > 0, 2, 0))
        idr = (kind == IDR_W_RADL) | (kind == IDR_N_LP)
        order_lsb = columns.u(np.where(idr, 0, lookup["order_count_bits"]))
        if (hidden := (lookup["output_flag_present"] > 0) & (shown == 0)).any():
            raise BitstreamError("output_order", f"packet {int(np.argmax(hidden))} is marked as not to be output")
        dropping = (no_output_of_prior > 0) & (np.arange(len(kind)) > 0) & (kind != CRA)
        if dropping.any():
            raise BitstreamError("output_order", f"packet {int(np.argmax(dropping))} drops pictures not yet output")
        bits = set(np.unique(lookup["order_count_bits"]).tolist())
        if len(bits) > 1:
            raise BitstreamError("output_order", "sequences with different picture order count lengths")
        return (bits.pop() if bits else 4), order_lsb

    def _sets_of(self, pps_id: int) -> tuple[Pps, Sps]:
        pps = self._sets.facts.get((PPS, pps_id))
        sps = self._sets.facts.get((SPS, pps.sps_id)) if isinstance(pps, Pps) else None
        if not isinstance(pps, Pps) or not isinstance(sps, Sps):
            raise BitstreamError("parameter_sets", f"slices refer to PPS {pps_id}, which (or whose SPS) is missing")
        return pps, sps

    def _sequence(self) -> Sps:
        """Return a sequence parameter set in force; all of them describe pictures of one shape."""
        return next(facts for facts in self._sets.facts.values() if isinstance(facts, Sps))
