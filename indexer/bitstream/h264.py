"""H.264 (ITU-T H.264, ISO/IEC 14496-10): start points, references, fields and output order from NAL units."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.bits import HEADER_BYTES, BitColumns, BitReader
from framedex.indexer.bitstream.colour import NO_COLOUR, parse_colour
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

SLICE, PARTITION_A, IDR, SEI, SPS, PPS = 1, 2, 5, 6, 7, 8  # nal_unit_type, table 7-1
RECOVERY_POINT, USER_DATA_UNREGISTERED = 6, 5  # payloadType, annex D
LOSSLESS_PROFILES = (44, 244)  # those of 4:4:4 with lossless coding, annex A
INTRA_SLICE_TYPES = (2, 4, 7, 9)  # I and SI, table 7-6
HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)  # 7.3.2.1.1
ENCODER_VERSION = re.compile(rb"x264 - core (\d+)")


Columns = dict[str, NDArray[np.int64]]  # a slice header field each, a row a slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Sps:
    """The fields of a sequence parameter set (7.3.2.1.1) that slice headers and the shape of pictures depend on.

    shape: chroma format, bit depths, size in macroblocks, cropping, colour; compared, never interpreted.
    """

    separate_colour_planes: bool
    frame_num_bits: int
    order_count_type: int
    order_count_bits: int
    frames_only: bool
    gaps_allowed: bool
    may_be_lossless: bool
    max_ref_frames: int = field(compare=False)  # may change between sequences: the decoder learns it at each start
    shape: tuple[int, ...]


def parse_sps(nal: bytes) -> tuple[int, Sps]:
    """Return (seq_parameter_set_id, fields) of an SPS NAL unit, header byte included. Raises ValueError."""
    bits = BitReader(unescape(nal[1:]))
    profile = bits.u(8)
    bits.u(16)
    sps_id, separate_planes = bits.ue(), False
    shape = [1, 0, 0]
    if profile in HIGH_PROFILES:
        chroma = bits.ue()
        separate_planes = chroma == 3 and bits.flag()
        shape = [chroma, bits.ue(), bits.ue()]
        bits.flag()
        if bits.flag():
            for index in range(8 if chroma != 3 else 12):
                if bits.flag():
                    _skip_scaling_list(bits, 16 if index < 6 else 64)
    frame_num_bits = bits.ue() + 4
    count_type, count_bits = bits.ue(), 0
    if count_type == 0:
        count_bits = bits.ue() + 4
    elif count_type == 1:
        bits.flag()
        bits.se()
        bits.se()
        for _ in range(bits.ue()):
            bits.se()
    max_ref_frames, gaps_allowed = bits.ue(), bits.flag()
    shape += [bits.ue(), bits.ue()]
    frames_only = bits.flag()
    if not frames_only:
        bits.flag()
    bits.flag()
    if bits.flag():
        shape += [bits.ue() for _ in range(4)]
    shape += parse_colour(bits) if bits.flag() else NO_COLOUR
    return sps_id, Sps(
        separate_colour_planes=separate_planes,
        frame_num_bits=frame_num_bits,
        order_count_type=count_type,
        order_count_bits=count_bits,
        frames_only=frames_only,
        gaps_allowed=gaps_allowed,
        may_be_lossless=profile in LOSSLESS_PROFILES,
        max_ref_frames=max_ref_frames,
        shape=tuple(shape),
    )


def _skip_scaling_list(bits: BitReader, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last


def parse_pps(nal: bytes) -> tuple[int, int]:
    """Return (pic_parameter_set_id, seq_parameter_set_id) of a PPS NAL unit (7.3.2.2). Raises ValueError."""
    bits = BitReader(unescape(nal[1:]))
    return bits.ue(), bits.ue()


def parse_configuration(record: bytes) -> tuple[int, list[bytes]]:
    """Return (NAL length size, parameter sets) of an AVCDecoderConfigurationRecord (ISO/IEC 14496-15 5.3.3.1).

    Raises ValueError for anything else, Annex B among it.
    """
    if len(record) < 7 or record[0] != 1:
        raise ValueError("not an AVC decoder configuration record")
    nals, at = [], 5
    for mask in (0x1F, 0xFF):
        if at >= len(record):
            raise ValueError("the AVC decoder configuration record ends too early")
        count, at = record[at] & mask, at + 1
        for _ in range(count):
            end = at + 2 + int.from_bytes(record[at : at + 2], "big")
            if end > len(record):
                raise ValueError("the AVC decoder configuration record ends too early")
            nals.append(record[at + 2 : end])
            at = end
    return (record[4] & 3) + 1, [nal for nal in nals if nal]


def sei_payloads(nal: bytes) -> list[tuple[int, bytes]]:
    """Return the (payloadType, payload) pairs of an SEI NAL unit, header byte included (7.3.2.3.1)."""
    rbsp, at = unescape(nal[1:]), 0
    found: list[tuple[int, bytes]] = []
    while at + 2 <= len(rbsp) and rbsp[at:] != b"\x80":
        numbers = []
        for _ in range(2):
            value = 0
            while at < len(rbsp) and rbsp[at] == 255:
                value, at = value + 255, at + 1
            if at >= len(rbsp):
                return found
            numbers.append(value + rbsp[at])
            at += 1
        kind, size = numbers
        found.append((kind, rbsp[at : at + size]))
        at += size
    return found


class H264Scanner(NalScanner):
    """Collect slice headers, parameter sets and SEI of length-prefixed H.264 packets. See `pictures.Scanner`."""

    set_parsers: ClassVar = {SPS: ("SPS", parse_sps), PPS: ("PPS", parse_pps)}
    parse_configuration = staticmethod(parse_configuration)

    def __init__(self, configuration: bytes) -> None:
        super().__init__(configuration)
        self._slice_packet: list[int] = []
        self._slice_header: list[int] = []
        self._slice_head: list[bytes] = []
        self._recovery: set[int] = set()
        self._encoder_sei: list[bytes] = []
        self._encoder_build: bytes | None = None

    @staticmethod
    def unit_type(header: int) -> int:
        return header & 31

    def feed(self, data: bytes) -> None:
        number, spans = self._next_packet(data)
        for start, end in spans:
            header = data[start]
            kind = header & 31
            if kind in (SLICE, IDR):
                head = data[start + 1 : min(end, start + 1 + HEADER_BYTES)]
                self._slice_packet.append(number)
                self._slice_header.append(header)
                self._slice_head.append(unescape(head) if b"\0\0\3" in head else head)
            elif kind == SEI:
                self._meet_sei(data[start:end], number)
            elif kind == PARTITION_A:
                raise BitstreamError("data_partitioning", f"packet {number} uses data partitioning")
            else:
                self._meet_set(data[start:end], number)

    def _meet_sei(self, nal: bytes, packet: int) -> None:
        for kind, payload in sei_payloads(nal):
            if kind == RECOVERY_POINT and payload and payload[0] & 0x80:  # recovery_frame_cnt, ue(v): 0 is one set bit
                self._recovery.add(packet)
                if packet and payload[0] & 0x20:  # broken_link_flag (D.2.8): what leads it refers to what was cut out
                    raise BitstreamError(
                        "missing_reference", f"packet {packet} says that pictures before it were cut out"
                    )
            elif kind == USER_DATA_UNREGISTERED and (found := ENCODER_VERSION.search(payload)):
                self._meet_encoder(found[1], nal, packet)

    def _meet_encoder(self, build: bytes, nal: bytes, packet: int) -> None:
        """Note x264's version, on which FFmpeg's prediction of lossless 8x8 blocks depends."""
        if packet == 0:
            self._encoder_build, self._encoder_sei = build, [nal]
        elif build != self._encoder_build and self._may_be_lossless():
            raise BitstreamError("encoder_change", f"packet {packet} comes from another x264 than packet 0")

    def _may_be_lossless(self) -> bool:
        return any(isinstance(facts, Sps) and facts.may_be_lossless for facts in self._sets.facts.values())

    def finish(self) -> Pictures:
        n = self._packets
        packet = np.array(self._slice_packet, np.int64)
        header = np.array(self._slice_header, np.int64)
        slices = np.bincount(packet, minlength=n)
        if n and not slices.all():
            raise BitstreamError("damaged", f"packet {int(np.argmin(slices > 0))} holds no picture", damaged=True)
        sequence, fields = self._parse_slices(header)
        self._check_one_picture_a_packet(packet, fields)

        idr = np.bincount(packet[header & 31 == IDR], minlength=n) > 0
        referenced = np.bincount(packet[header >> 5 & 3 != 0], minlength=n) > 0
        inter = np.bincount(packet[~np.isin(fields["slice_type"], INTRA_SLICE_TYPES)], minlength=n) > 0
        recovery = np.isin(np.arange(n), list(self._recovery)) & ~inter
        start = np.where(idr, CLOSED_START, np.where(recovery, OPEN_START, NO_START)).astype(np.uint8)

        first = np.searchsorted(packet, np.arange(n))
        self._check_frame_nums(sequence, fields["frame_num"][first], idr, referenced)
        order = self._order_counts(sequence, fields["order_lsb"][first], idr, referenced)
        segment = segments(start)
        behind = np.maximum(segment, 0)
        leading = (start[behind] == OPEN_START) & (segment >= 0) & (order < order[behind])
        starts = np.flatnonzero(start != NO_START).tolist()
        self._check_sets(starts)
        return Pictures(
            start=start,
            non_reference=~referenced,
            leading=leading,
            skipped=leading & (segment == 0),
            field_coded=np.bincount(packet[fields["field"] != 0], minlength=n) > 0,
            period=np.cumsum(idr),
            order=order,
            preamble=self._preamble(starts, *self._encoder_sei),
            inband_sets=bool(self._sets.differing()),
            inner_start_codes=self._inner_start_codes,
            chroma_format=sequence.shape[0],
            max_ref_frames=sequence.max_ref_frames,
        )

    def _parse_slices(self, header: NDArray[np.int64]) -> tuple[Sps, Columns]:
        """Return (the sequence's fields, slice header fields (7.3.3) up to the picture order count)."""
        bits = BitColumns(self._slice_head)
        first_mb, slice_type, pps_id = bits.ue(), bits.ue(), bits.ue()
        sequence = self._sequence_of(np.unique(pps_id).tolist())
        if sequence.separate_colour_planes:
            bits.u(2)
        frame_num = bits.u(sequence.frame_num_bits)
        field_pic = np.zeros_like(first_mb) if sequence.frames_only else bits.u(1)
        bits.u(1, where=field_pic != 0)
        bits.ue(where=header & 31 == IDR)
        order_lsb = bits.u(sequence.order_count_bits)
        return sequence, {
            "first_mb": first_mb,
            "slice_type": slice_type,
            "frame_num": frame_num,
            "field": field_pic,
            "order_lsb": order_lsb,
        }

    def _sequence_of(self, pps_ids: list[int]) -> Sps:
        """Return the one kind of sequence that slices with these pic_parameter_set_ids belong to."""
        kinds: list[Sps] = []
        for pps in pps_ids:
            sps_id = self._sets.facts.get((PPS, pps))
            sps = self._sets.facts.get((SPS, sps_id)) if isinstance(sps_id, int) else None
            if not isinstance(sps, Sps):
                raise BitstreamError("parameter_sets", f"slices refer to PPS {pps}, which (or whose SPS) is missing")
            kinds.append(sps)
        if any(kind != kinds[0] for kind in kinds):
            raise BitstreamError("parameter_sets", "slices belong to sequences of different shapes")
        return kinds[0]

    @staticmethod
    def _check_one_picture_a_packet(packet: NDArray[np.int64], fields: Columns) -> None:
        """Refuse packets that hold half a picture (one field) or two."""
        first = fields["first_mb"] == 0
        halves = np.where(fields["field"][first] != 0, 1, 2)
        count = np.bincount(packet[first], weights=halves, minlength=int(packet.max(initial=-1)) + 1)
        wrong = np.flatnonzero(count != 2)
        if len(wrong):
            number = int(wrong[0])
            if count[number] == 1:
                raise BitstreamError("field_coding", f"packet {number} holds a single field, not a whole picture")
            if count[number] == 0:
                raise BitstreamError("damaged", f"packet {number} lacks its first slice", damaged=True)
            raise BitstreamError("packing", f"packet {number} holds more than one picture")

    @staticmethod
    def _check_frame_nums(
        sequence: Sps, frame_num: NDArray[np.int64], idr: NDArray[np.bool_], referenced: NDArray[np.bool_]
    ) -> None:
        """Refuse streams with missing pictures: decoders conceal them from whatever they happen to have.

        frame_num is that of the reference picture before, or one more (7.4.3), unless the stream may leave gaps.
        """
        if sequence.gaps_allowed or len(frame_num) < 2:
            return
        at = np.where(referenced, np.arange(len(frame_num)), 0)
        before = np.maximum.accumulate(at)[:-1]
        step = (frame_num[1:] - frame_num[before]) % (1 << sequence.frame_num_bits)
        gaps = np.flatnonzero((step > 1) & ~idr[1:])
        if len(gaps):
            number = int(gaps[0]) + 1
            raise BitstreamError(
                "damaged", f"pictures are missing before packet {number} (frame_num jumps)", damaged=True
            )

    @staticmethod
    def _order_counts(
        sequence: Sps, lsb: NDArray[np.int64], idr: NDArray[np.bool_], referenced: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return int64 [n]: output order within a period (8.2.1), from each picture's first slice."""
        if sequence.order_count_type == 2:  # 8.2.1.3: output order is decode order
            return np.arange(len(idr), dtype=np.int64)
        if sequence.order_count_type == 0:
            return unwrap_order_counts(lsb, sequence.order_count_bits, idr, referenced)
        raise BitstreamError("output_order", f"picture order count type {sequence.order_count_type} is not read yet")
