"""Edits of MPEG-1 and MPEG-2 packets that insert units before or after pictures."""

from __future__ import annotations

from dataclasses import replace

from tests.support.bitstream_edits import Coded, Edit

MPEG_I, MPEG_P, MPEG_B = 1, 2, 3  # picture_coding_type of MPEG-1 and MPEG-2, table 6-12
TMPGENC = b"\0\0\1\xb2\0TMPGEXS\0"  # user data of an MPEG-1 encoder that writes a wrong intra DC
STEEP_MATRIX = b"\0\0\1\xb5" + (0b00111 << 515 | int.from_bytes(bytes([8] + [60] * 63), "big") << 3).to_bytes(
    65, "big"
)  # for intra blocks


def _mpeg_kind(packet: Coded) -> int:
    """Return the picture_coding_type of the first picture in an MPEG-1 or MPEG-2 packet."""
    return packet.data[packet.data.index(b"\0\0\1\0") + 5] >> 3 & 7


def mpeg_unit(unit: bytes, kind: int, *, after: int, behind: bool = False) -> Edit:
    """Insert a unit before one picture, or after its slices.

    Only packet 0 keeps its sequence header: any other sequence header would make decoders forget quantiser matrices.

    Args:
        kind: the type of the picture, as a picture_coding_type.
        after: the picture is the first one of this type in the packets after this number.
        behind: insert the unit after the picture's slices instead of before the picture.
    """

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        place = next(n for n, packet in enumerate(packets) if n > after and _mpeg_kind(packet) == kind)
        edited = list(packets)
        for number, packet in enumerate(packets):
            begin = min(at for at in map(packet.data.find, (b"\0\0\1\xb8", b"\0\0\1\0")) if at >= 0)
            data = packet.data[begin:] if number else packet.data
            if number == place:
                data = data + unit if behind else unit + data
            edited[number] = replace(packet, data=data)
        return edited

    return edit
