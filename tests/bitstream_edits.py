"""Changes of coded packets for media that no encoder here writes: units put in, moved, relabelled or taken out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Coded:
    """One packet. pts, dts: in the stream's time base."""

    data: bytes
    pts: int | None
    dts: int | None
    key: bool


Edit = Callable[[bytes, list[Coded]], list[Coded]]  # (configuration, packets) → packets

LENGTH = 4  # bytes of a NAL unit's length in what libavformat's muxers write
END_OF_SEQUENCE, END_OF_BITSTREAM = bytes([36 << 1, 1]), bytes([37 << 1, 1])  # HEVC, units of a header alone
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


def in_front(packet: Coded, nal: bytes) -> Coded:
    """Return the packet with a unit put before all others."""
    return replace(packet, data=joined([nal]) + packet.data)


def behind(packet: Coded, nal: bytes) -> Coded:
    """Return the packet with a unit put behind all others."""
    return replace(packet, data=packet.data + joined([nal]))


class Bits:
    """The bits of a unit's payload as text, with a place from which to read."""

    def __init__(self, payload: bytes) -> None:
        self.text = "".join(f"{byte:08b}" for byte in payload.replace(b"\0\0\3", b"\0\0"))
        self.at = 0

    def u(self, count: int) -> int:
        """Read an unsigned number of so many bits."""
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
    """Return the stream's PPS with another chroma_qp_index_offset (7.3.2.2): later pictures change their colours."""
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


def hevc_pps(configuration: bytes, cb_qp_offset: int) -> bytes:
    """Return the stream's PPS with another pps_cb_qp_offset (7.3.2.3.1)."""
    at = 23
    for _ in range(configuration[22]):
        kind, count = configuration[at] & 63, int.from_bytes(configuration[at + 1 : at + 3], "big")
        at += 3
        for _ in range(count):
            size = int.from_bytes(configuration[at : at + 2], "big")
            if kind == 34:
                pps = configuration[at + 2 : at + 2 + size]
            at += 2 + size
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
