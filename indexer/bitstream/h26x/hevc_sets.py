"""Parameter sets of HEVC (ITU-T H.265 7.3.2) that slices and start points depend on."""

from __future__ import annotations

from dataclasses import dataclass

from framedex.indexer.bitstream.base.bits import BitReader
from framedex.indexer.bitstream.h26x.colour import NO_COLOUR, parse_colour
from framedex.indexer.bitstream.h26x.hevc_references import ReferenceSets, parse_reference_sets
from framedex.indexer.bitstream.h26x.nal import unescape

VPS, SPS, PPS = 32, 33, 34  # nal_unit_type, table 7-1
MOST_SPS, MOST_PPS = 16, 64  # 7.4.3.2.1, 7.4.3.3.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sps:
    """The fields of a sequence parameter set (7.3.2.2) that slice headers and the shape of pictures depend on.

    Attributes:
        shape: chroma format, size, conformance window, bit depths, colour. The chroma format is the first number, the
            colour the last four.
        width: width of the coded picture.
        height: height of the coded picture.
        window: pixels that are cropped at the left, right, top and bottom.
        highest_layer: the highest TemporalId that pictures may have (sps_max_sub_layers_minus1).
    """

    separate_colour_planes: bool
    order_count_bits: int
    references: ReferenceSets
    shape: tuple[int, ...]
    width: int
    height: int
    window: tuple[int, int, int, int]
    highest_layer: int


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
    if sps_id >= MOST_SPS:
        raise ValueError(f"sps_seq_parameter_set_id {sps_id}")
    separate_planes = chroma == 3 and bits.flag()
    width, height = bits.ue(), bits.ue()
    cut = [bits.ue() for _ in range(4)] if bits.flag() else []
    shape = [chroma, width, height, *cut, bits.ue(), bits.ue()]
    across, down = 2 if chroma in (1, 2) else 1, 2 if chroma == 1 else 1  # SubWidthC, SubHeightC (table 6-1)
    left, right, top, bottom = cut or (0, 0, 0, 0)
    order_count_bits = bits.ue() + 4
    if order_count_bits > 16:
        raise ValueError("an absurd picture order count")
    _skip_coding_tools(bits, sub_layers)
    references = parse_reference_sets(bits, order_count_bits)
    bits.u(2)
    shape += parse_colour(bits) if bits.flag() else NO_COLOUR
    return sps_id, Sps(
        separate_colour_planes=separate_planes,
        order_count_bits=order_count_bits,
        references=references,
        shape=tuple(shape),
        width=width,
        height=height,
        window=(left * across, right * across, top * down, bottom * down),
        highest_layer=sub_layers,
    )


def _skip_coding_tools(bits: BitReader, sub_layers: int) -> None:
    """Skip the fields of an SPS between the picture order count and the reference picture sets."""
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
    if pps_id >= MOST_PPS or sps_id >= MOST_SPS:
        raise ValueError(f"pps_pic_parameter_set_id {pps_id}, pps_seq_parameter_set_id {sps_id}")
    bits.flag()
    return pps_id, Pps(sps_id=sps_id, output_flag_present=bits.flag(), extra_bits=bits.u(3))


def parse_vps(nal: bytes) -> tuple[int, None]:
    """Return (id, None) of a VPS NAL unit (7.3.2.1)."""
    return BitReader(unescape(nal[2:])).u(4), None


def parse_configuration(record: bytes) -> tuple[int, list[bytes]]:
    """Return (NAL length size, parameter sets) of an HEVCDecoderConfigurationRecord (ISO/IEC 14496-15 8.3.3.1).

    Raises:
        ValueError: for anything else, including Annex B.
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
