"""MPEG-2 field pictures of 32 × 32 pixels, written bit by bit because FFmpeg has no encoder for them."""

from __future__ import annotations

I_FIELD, P_FIELD, B_FIELD = 1, 2, 3
TOP, BOTTOM = 1, 2
_DC_SIZES = ["100", "00", "01", "101", "110", "1110", "11110", "111110"]  # table B.12
_MACROBLOCKS, _LUMA = 2, 4


def _bits(*fields: tuple[int, int]) -> str:
    return "".join(f"{value:0{count}b}" for value, count in fields)


def _unit(code: int, bits: str) -> bytes:
    bits += "0" * (-len(bits) % 8)
    return b"\0\0\1" + bytes([code]) + int(bits, 2).to_bytes(len(bits) // 8, "big")


def sequence() -> bytes:
    """Return the sequence header and its extension of an interlaced 4:2:0 stream."""
    header = _bits((32, 12), (32, 12), (1, 4), (3, 4), (1000, 18), (1, 1), (20, 10), (0, 3))
    extension = _bits((1, 4), (0x48, 8), (0, 1), (1, 2), (0, 4), (0, 12), (1, 1), (0, 8), (0, 1), (0, 7))
    return _unit(0xB3, header) + _unit(0xB5, extension)


def group(*, closed: bool = False) -> bytes:
    """Return a group of pictures header."""
    return _unit(0xB8, _bits((1 << 12, 25), (closed, 1), (0, 1)))


def field(kind: int, parity: int, place: int, level: int = 0, select: int = 0) -> bytes:
    """Return one field picture.

    Args:
        level: the brightness of an I field, from −60 to 60.
        select: the parity of the field that a P field copies: 0 top, 1 bottom. B fields average the fields of their
            own parity.
    """
    header = _bits((place, 10), (kind, 3), (0xFFFF, 16)) + "0111" * (kind - 1) + "0"
    codes = {I_FIELD: 0xFFFF, P_FIELD: 0x11FF, B_FIELD: 0x1111}[kind]
    coding = _bits((8, 4), (codes, 16), (0, 2), (parity, 2), (0, 10))
    slice_bits = _bits((2, 5), (0, 1))
    for number in range(_MACROBLOCKS):
        slice_bits += (
            "1"
            + {I_FIELD: _intra(level if number == 0 else 0), P_FIELD: _copy(select), B_FIELD: _average(parity - 1)}[
                kind
            ]
        )
    return _unit(0, header) + _unit(0xB5, coding) + _unit(1, slice_bits)


def _intra(level: int) -> str:
    size = abs(level).bit_length()
    coded = level if level > 0 else level + (1 << size) - 1
    first = _DC_SIZES[size] + (f"{coded:0{size}b}" if size else "") + "10"
    return "1" + first + "10010" * (_LUMA - 1) + "0010" * 2


def _copy(select: int) -> str:
    return "001" + "01" + f"{select}11"


def _average(parity: int) -> str:
    return "10" + "01" + f"{parity}11" * 2
