"""Edits of H.264 and HEVC packets: inserted, moved or relabelled units, changed parameter sets or reference marking."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from framedex.indexer.bitstream.h264_sets import Sps, parse_sps
from tests.support.bitstream_edits import Coded, Edit, without

LENGTH = 4  # bytes of a NAL unit's length, as written by libavformat's muxers
END_OF_SEQUENCE, END_OF_BITSTREAM = bytes([36 << 1, 1]), bytes([37 << 1, 1])  # HEVC, units with only a header
RECOVERY_POINT = bytes([6, 6, 1, 0xC4, 0x80])  # H.264 SEI: recovery_frame_cnt 0, exact match (D.1.8)


def units(data: bytes) -> list[bytes]:
    """Return the NAL units of a length-prefixed packet."""
    found, at = [], 0
    while at < len(data):
        end = at + LENGTH + int.from_bytes(data[at : at + LENGTH], "big")
        found.append(data[at + LENGTH : end])
        at = end
    return found


def joined(nals: list[bytes]) -> bytes:
    """Return NAL units as a length-prefixed packet."""
    return b"".join(len(nal).to_bytes(LENGTH, "big") + nal for nal in nals)


def put_in_front(packet: Coded, nal: bytes) -> Coded:
    """Return the packet with a unit inserted before all others."""
    return replace(packet, data=joined([nal]) + packet.data)


def put_behind(packet: Coded, nal: bytes) -> Coded:
    """Return the packet with a unit appended after all others."""
    return replace(packet, data=packet.data + joined([nal]))


class Bits:
    """The bits of a unit's payload as text, with a read position."""

    def __init__(self, payload: bytes) -> None:
        self.text = "".join(f"{byte:08b}" for byte in payload.replace(b"\0\0\3", b"\0\0"))
        self.at = 0

    def u(self, count: int) -> int:
        """Read an unsigned number of `count` bits."""
        self.at += count
        return int(self.text[self.at - count : self.at] or "0", 2)

    def ue(self) -> int:
        """Read an Exp-Golomb code."""
        zeros = self.text.index("1", self.at) - self.at
        self.at += zeros
        return self.u(zeros + 1) - 1

    def payload(self) -> bytes:
        """Return the bits as bytes, with trailing bits and emulation prevention."""
        text = self.text.rstrip("0")
        text = text + "0" * (-len(text) % 8)
        raw = bytes(int(text[at : at + 8], 2) for at in range(0, len(text), 8))
        return re.sub(rb"\0\0(?=[\0-\3])", b"\0\0\3", raw)


def se(value: int) -> str:
    """Return a signed Exp-Golomb code."""
    code = 2 * value if value > 0 else 1 - 2 * value
    return "0" * (code.bit_length() - 1) + f"{code:b}"


def h264_sets(configuration: bytes) -> tuple[bytes, bytes]:
    """Return the first SPS and PPS of an AVCDecoderConfigurationRecord."""
    size = int.from_bytes(configuration[6:8], "big")
    at = 8 + size + 1
    return configuration[8 : 8 + size], configuration[
        at + 2 : at + 2 + int.from_bytes(configuration[at : at + 2], "big")
    ]


def h264_pps(configuration: bytes, chroma_qp_offset: int) -> bytes:
    """Return the stream's PPS with another chroma_qp_index_offset (7.3.2.2): the colours of later pictures change."""
    pps = h264_sets(configuration)[1]
    bits = Bits(pps[1:])
    bits.ue(), bits.ue()
    bits.u(2)
    bits.ue(), bits.ue(), bits.ue()
    bits.u(3)
    bits.ue(), bits.ue()
    begin = bits.at
    bits.ue()
    text = bits.text[:begin] + se(chroma_qp_offset) + bits.text[bits.at :]
    # second_chroma_qp_index_offset, which ends a PPS with transform_8x8_mode_flag, stays as it is
    bits.text = text
    return pps[:1] + bits.payload()


HEVC_VPS, HEVC_SPS, HEVC_PPS = 32, 33, 34  # nal_unit_type


def _hevc_sets(configuration: bytes) -> dict[int, bytes]:
    """Return the parameter sets of an HEVCDecoderConfigurationRecord by nal_unit_type, one of each."""
    found: dict[int, bytes] = {}
    at = 23
    for _ in range(configuration[22]):
        kind, count = configuration[at] & 63, int.from_bytes(configuration[at + 1 : at + 3], "big")
        at += 3
        for _ in range(count):
            size = int.from_bytes(configuration[at : at + 2], "big")
            found[kind] = configuration[at + 2 : at + 2 + size]
            at += 2 + size
    return found


def hevc_other_level(configuration: bytes, kind: int) -> bytes:
    """Return the VPS, SPS and PPS of a stream with another general_level_idc (7.3.3) in the VPS or the SPS."""
    sets = _hevc_sets(configuration)
    bits = Bits(sets[kind][2:])
    bits.u((32 if kind == HEVC_VPS else 8) + 88)
    begin = bits.at
    level = bits.u(8) + 3
    bits.text = bits.text[:begin] + f"{level:08b}" + bits.text[bits.at :]
    sets[kind] = sets[kind][:2] + bits.payload()
    return joined([sets[HEVC_VPS], sets[HEVC_SPS], sets[HEVC_PPS]])


def hevc_sequence(kind: int, *, after: int, at_start: bool = False) -> Edit:
    """Return an edit that changes the VPS or the SPS in one picture.

    Args:
        kind: HEVC_VPS or HEVC_SPS.
        after: the picture is the first one after this packet number.
        at_start: consider only pictures where decoding may start (CRA).
    """

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        place = next(n for n, p in enumerate(packets) if n > after and (_hevc_kind(p) == 21 or not at_start))
        sets = hevc_other_level(configuration, kind)
        changed = replace(packets[place], data=sets + packets[place].data)
        return [*packets[:place], changed, *packets[place + 1 :]]

    return edit


def hevc_pps(configuration: bytes, cb_qp_offset: int) -> bytes:
    """Return the stream's PPS with another pps_cb_qp_offset (7.3.2.3.1)."""
    pps = _hevc_sets(configuration)[HEVC_PPS]
    bits = Bits(pps[2:])
    bits.ue(), bits.ue()
    bits.u(7)
    bits.ue(), bits.ue(), bits.ue()
    bits.u(2)
    if bits.u(1):
        bits.ue()
    begin = bits.at
    bits.ue()
    bits.text = bits.text[:begin] + se(cb_qp_offset) + bits.text[bits.at :]
    return pps[:2] + bits.payload()


def _slices(packet: Coded) -> list[bytes]:
    """Return the coded slices of an H.264 packet."""
    return [nal for nal in units(packet.data) if nal[0] & 31 in (1, 5)]


def _hevc_kind(packet: Coded) -> int:
    """Return the NAL unit type of an HEVC packet's slices."""
    return next(nal[0] >> 1 & 63 for nal in units(packet.data) if nal[0] >> 1 & 63 < 32)


def end_of_sequence(nal: bytes = END_OF_SEQUENCE, *, in_front: bool = False) -> Edit:
    """End the coded video sequence before every HEVC picture where decoding may start, except the first."""

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        edited = list(packets)
        for number in range(1, len(packets)):
            if _hevc_kind(packets[number]) in (19, 20, 21):
                place = number if in_front else number - 1
                edited[place] = put_in_front(edited[place], nal) if in_front else put_behind(edited[place], nal)
        return edited

    return edit


def _with_set(make: Callable[[bytes, int], bytes], wanted: Callable[[Coded], bool], behind: int) -> Edit:
    """Put a changed PPS into the first packet after a number for which `wanted` is true."""

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        number = next(n for n, packet in enumerate(packets) if n > behind and wanted(packet))
        return [*packets[:number], put_in_front(packets[number], make(configuration, 8)), *packets[number + 1 :]]

    return edit


def h264_set(*, referenced: bool, behind: int = 30) -> Edit:
    """Change the PPS in the middle of a GOP, in a picture that others refer to or in one that none refers to."""
    return _with_set(h264_pps, lambda packet: any(nal[0] >> 5 & 3 for nal in _slices(packet)) == referenced, behind)


def hevc_set(*kinds: int, behind: int = 28) -> Edit:
    """Change the PPS in the middle of a GOP, in a picture with one of these NAL unit types."""
    return _with_set(hevc_pps, lambda packet: _hevc_kind(packet) in kinds, behind)


def other_layer(number: int) -> Edit:
    """Put a PPS of layer 1 with other colours into a packet."""

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        nal = hevc_pps(configuration, 9)
        other = bytes([nal[0], 1 << 3 | 1]) + nal[2:]  # nuh_layer_id 1
        return [*packets[:number], put_in_front(packets[number], other), *packets[number + 1 :]]

    return edit


def film_grain(header: bytes, lasting: str, *numbers: int) -> Edit:
    """Describe film grain in the packets with these numbers (H.264 D.1.20, HEVC D.2.20).

    Args:
        header: the header of an SEI unit.
        lasting: the bits that state how long it counts: the repetition period of H.264, HEVC's persistence flag.
        numbers: the numbers of the packets.
    """
    bits = "0000000110100000000000000000000011111111" + se(60) + lasting + "1"
    bits += "0" * (-len(bits) % 8)
    payload = int(bits, 2).to_bytes(len(bits) // 8, "big")
    message = re.sub(rb"\0\0(?=[\0-\3])", b"\0\0\3", bytes([19, len(payload)]) + payload + b"\x80")
    return lambda configuration, packets: [
        put_in_front(packet, header + message) if number in numbers else packet for number, packet in enumerate(packets)
    ]


def sets_behind(number: int) -> Edit:
    """Put a changed H.264 PPS behind the slices of a packet, and another one behind those of the next start point."""

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        start = next(n for n, packet in enumerate(packets) if n > number and packet.key)
        edited = list(packets)
        for place, offset in ((number, 8), (start, -9)):
            edited[place] = put_behind(edited[place], h264_pps(configuration, offset))
        return edited

    return edit


def old_x264(configuration: bytes, packets: list[Coded]) -> list[Coded]:
    """State that the stream was written by an old x264 with wrong direct prediction."""
    return [replace(packet, data=re.sub(rb"x264 - core \d{3}", b"x264 - core 033", packet.data)) for packet in packets]


def lying_recovery(configuration: bytes, packets: list[Coded]) -> list[Coded]:
    """State for I pictures in the middle of a GOP that decoding may start there, whatever later pictures refer to."""

    def is_intra(packet: Coded) -> bool:
        bits = Bits(_slices(packet)[0][1:9])
        bits.ue()
        return _slices(packet)[0][0] & 31 == 1 and bits.ue() % 5 == 2

    return [
        replace(put_in_front(packet, RECOVERY_POINT), key=True) if is_intra(packet) else packet for packet in packets
    ]


def with_marking(of_packet: Callable[[int], tuple[bool, str] | None]) -> Edit:
    """Write other reference picture marking (H.264 7.3.3.3) into slices of a stream of CAVLC frames without weights.

    Args:
        of_packet: a function from a packet's number to two values: whether an IDR picture is a long-term reference, and
            the bits of dec_ref_pic_marking() of other pictures. None: the packet stays unchanged.
    """

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        sps = parse_sps(h264_sets(configuration)[0])[1]
        edited = []
        for number, packet in enumerate(packets):
            wanted = of_packet(number)
            nals = [
                _with_marking(nal, sps, *wanted)
                if wanted is not None and nal[0] >> 5 & 3 and nal[0] & 31 in (1, 5)
                else nal
                for nal in units(packet.data)
            ]
            edited.append(replace(packet, data=joined(nals)))
        return edited

    return edit


def _with_marking(nal: bytes, sps: Sps, long_idr: bool, marking: str) -> bytes:
    """Return a slice of a reference picture with other marking (7.3.3)."""
    bits, idr = Bits(nal[1:]), nal[0] & 31 == 5
    bits.ue()
    kind = bits.ue() % 5
    bits.ue()
    bits.u(sps.frame_num_bits)
    if idr:
        bits.ue()
    bits.u(sps.order_count_bits)
    if kind == 1:
        bits.u(1)
    if kind < 2 and bits.u(1):
        for _ in range(1 + kind):
            bits.ue()
    for _ in range(1 + kind if kind < 2 else 0):
        if bits.u(1):
            while bits.ue() != 3:
                bits.ue()
    begin = bits.at
    if idr:
        bits.u(2)
        marking = bits.text[begin] + f"{long_idr:b}"
    elif bits.u(1):
        while operation := bits.ue():
            for _ in range({5: 0, 3: 2}.get(operation, 1)):
                bits.ue()
    bits.text = bits.text[:begin] + marking + bits.text[bits.at :]
    return nal[:1] + bits.payload()


SLIDING = "0"  # no adaptive marking
KEPT_FOR_LONG = with_marking(lambda number: (True, SLIDING))


def reset_at(at: int) -> Edit:
    """Return an edit by which picture `at` removes all references and restarts counting; nothing else is adapted.

    This is memory_management_control_operation 5.
    """
    return with_marking(lambda number: (False, "1" + "00110" + "1") if number == at else None)


def short_sequence(configuration: bytes, packets: list[Coded]) -> list[Coded]:
    """End the HEVC sequence before each CRA, and reduce the second sequence to that picture."""
    starts = [number for number, packet in enumerate(packets) if _hevc_kind(packet) == 21]
    ended = end_of_sequence(in_front=True)(configuration, packets)
    return without(*range(starts[0] + 1, starts[1]))(configuration, ended)
