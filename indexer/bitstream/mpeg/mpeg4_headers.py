"""MPEG-4 part 2 (ISO/IEC 14496-2): start codes, and the headers above pictures."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from framedex.indexer.bitstream.base.bits import BitReader
from framedex.indexer.bitstream.base.pictures import BitstreamError
from framedex.indexer.bitstream.base.states import with_unit

START_CODE = b"\0\0\1"
LAST_VOL, VOS, USER_DATA, GOV, VISUAL_OBJECT, VOP = 0x2F, 0xB0, 0xB2, 0xB3, 0xB5, 0xB6  # table 6-3
FIRST_VOL = 0x20
SIMPLE, ADVANCED_SIMPLE = 1, 17  # video_object_type_indication, table 6-10
STUDIO_PROFILES = range(0xE1, 0xE9)
RECTANGULAR, STATIC_SPRITE = 0, 1
_ENCODERS = (b"DivX", b"FFmpe", b"ffmpeg", b"Lavc", b"XviD")
_DIVX = re.compile(rb"DivX(\d+)(?:Build|b)(\d+)(.?)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The fields of a video object layer header (6.2.3) that reading pictures and their output order depend on."""

    object_type: int
    low_delay: bool | None  # None where vol_control_parameters do not say
    resolution: int  # time increments a second
    increment_bits: int
    size: tuple[int, int]
    interlaced: bool
    quantiser_bits: int | None  # None where VOP headers hold more before the quantiser than is followed here


def parse_layer(unit: bytes) -> Layer:
    """Return the fields of a VOL unit, start code included. Raises ValueError, or BitstreamError where not covered."""
    bits = BitReader(unit[4:])
    bits.u(1)
    object_type = bits.u(8)
    version = 1
    if bits.flag():
        version = bits.u(4)
        bits.u(3)
    if bits.u(4) == 15:
        bits.u(16)
    low_delay = None
    if bits.flag():
        bits.u(2)
        low_delay = bits.flag()
        if bits.flag():
            bits.u(79)
    shape = bits.u(2)
    if shape != RECTANGULAR:
        raise BitstreamError("shape", f"the video object layer is not rectangular (shape {shape})")
    bits.u(1)
    resolution = bits.u(16)
    if not resolution:
        raise ValueError("vop_time_increment_resolution is 0")
    increment_bits = max((resolution - 1).bit_length(), 1)
    bits.u(1)
    if bits.flag():
        bits.u(increment_bits)
    bits.u(1)
    width = bits.u(13)
    bits.u(1)
    height = bits.u(13)
    bits.u(1)
    interlaced = bits.flag()
    bits.u(1)
    sprite = bits.u(1 if version == 1 else 2)
    if sprite == STATIC_SPRITE:
        raise BitstreamError("sprite", "the video object layer uses a static sprite")
    try:
        quantiser_bits = _read_quantiser_bits(bits, version) if not sprite else None
    except ValueError:  # the layer ends here, and decoders read zeros
        quantiser_bits = None
    return Layer(
        object_type=object_type,
        low_delay=low_delay,
        resolution=resolution,
        increment_bits=increment_bits,
        size=(width, height),
        interlaced=interlaced,
        quantiser_bits=quantiser_bits,
    )


def _read_quantiser_bits(bits: BitReader, version: int) -> int | None:
    """Return quant_precision from the fields after sprite_enable.

    Returns:
        None if complexity estimation or NEWPRED adds fields to VOP headers.
    """
    quantiser_bits = 5
    if bits.flag():
        quantiser_bits = bits.u(4)
        bits.u(4)
    if bits.flag():
        for _ in range(2):
            if bits.flag():
                _skip_matrix(bits)
    if version != 1:
        bits.u(1)
    if not bits.flag():
        return None
    bits.u(1)
    if bits.flag():
        bits.u(1)
    return None if version != 1 and bits.flag() else quantiser_bits


def _skip_matrix(bits: BitReader) -> None:
    """Skip a quantiser matrix: 64 values, or fewer and a zero."""
    for _ in range(64):
        if not bits.u(8):
            break


@dataclass(slots=True)
class Mpeg4Headers:
    """The headers in force, as coded and as parsed.

    User data that names an encoder is part of them: FFmpeg's decoder uses that name to choose its inverse transform,
    and the encoder bugs that it works around. Other user data changes nothing, and may differ from picture to picture.
    """

    units: dict[int, bytes] = field(default_factory=dict)
    user_data: tuple[bytes, ...] = ()
    layer: Layer | None = None
    packed: bool = False
    renewed: bool = False  # a video object layer was among the units read last
    time_base: int | None = None  # seconds, of a group of VOPs header in the units read last

    def copy(self) -> Mpeg4Headers:
        """Return an independent copy of the headers."""
        return replace(self, units=dict(self.units))

    def read(self, unit: bytes) -> None:
        """Record one unit of headers, start code included. Raises ValueError, BitstreamError."""
        code = unit[3]
        if code <= LAST_VOL or code in (VOS, VISUAL_OBJECT):
            if code == VOS and unit[4:5] and unit[4] in STUDIO_PROFILES:
                raise BitstreamError("studio", "the Simple Studio profile is not covered")
            if FIRST_VOL <= code <= LAST_VOL:
                self.layer = parse_layer(unit)
                self.renewed = True
                code = FIRST_VOL
            self.units[code] = unit
        elif code == USER_DATA and unit.startswith(_ENCODERS, 4):
            self.user_data = with_unit(self.user_data, unit)
            divx = _DIVX.match(unit, 4)
            if divx:
                self.packed = divx[3] == b"p"
        elif code == GOV:
            bits = BitReader(unit[4:])
            hours, minutes, _, seconds = bits.u(5), bits.u(6), bits.u(1), bits.u(6)
            self.time_base = seconds + 60 * (minutes + 60 * hours)

    def state(self) -> bytes:
        """Return the headers as one byte string, in the order of the syntax (6.2.2)."""
        order = (VOS, VISUAL_OBJECT, *range(FIRST_VOL), FIRST_VOL)
        return b"".join((*(self.units[code] for code in order if code in self.units), *self.user_data))
