"""Parameter sets of H.264 (ITU-T H.264 7.3.2): the fields that slices depend on, and those that describe the pictures.

`parse_sps` and `parse_pps` read what scanners need. `parse_sequence` reads profile, size, colour and reordering.
"""

from dataclasses import dataclass, field
from typing import Any

from framedex.indexer.bitstream.base import EXTENDED_SAR, NO_COLOUR, UNSPECIFIED, BitReader, parse_colour
from framedex.indexer.bitstream.nal import unescape

SLICE, PARTITION_A, IDR, SEI, SPS, PPS = 1, 2, 5, 6, 7, 8  # nal_unit_type, table 7-1
LOSSLESS_PROFILES = (44, 244)  # those of 4:4:4 with lossless coding, annex A
MAX_COUNT_BITS = 16  # log2_max_frame_num and log2_max_pic_order_cnt_lsb, 7.4.2.1.1
MAX_SPS, MAX_PPS = 32, 256  # numbers of ids, 7.4.2.1.1 and 7.4.2.2
HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)  # 7.3.2.1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sps:
    """The fields of a sequence parameter set (7.3.2.1.1) that slice headers and the shape of pictures depend on.

    Attributes:
        shape: chroma format, bit depths, size in macroblocks, cropping, colour. The chroma format is the first number,
            the colour the last four.
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
    deltas_follow: bool = False  # delta_pic_order_cnt[0] stands in slice headers
    non_ref_offset: int = 0
    ref_frame_offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pps:
    """The fields of a picture parameter set (7.3.2.2) that slice headers depend on.

    Attributes:
        plain: whether there are no slice groups, so that all of it was read.
        default_active: entries of list 0 and 1.
        weighted: whether P slices bring weights.
        weighted_b: whether B slices bring weights.
        outlived: whether its sequence parameter set changed since it came.
    """

    sps_id: int
    plain: bool = False
    bottom_order: bool = False
    default_active: tuple[int, int] = (0, 0)
    weighted: bool = False
    weighted_b: bool = False
    redundant: bool = False
    outlived: bool = False


def parse_sps(nal: bytes) -> tuple[int, Sps]:
    """Return (seq_parameter_set_id, fields) of an SPS NAL unit, header byte included. Raises ValueError."""
    bits = BitReader(unescape(nal[1:]))
    profile = bits.u(8)
    bits.u(16)
    sps_id, separate_planes = bits.ue(), False
    if sps_id >= MAX_SPS:
        raise ValueError(f"seq_parameter_set_id {sps_id}")
    shape = [1, 0, 0]
    if profile in HIGH_PROFILES:
        chroma, separate_planes, *depths = _parse_format(bits)
        shape = [chroma, *depths]
    frame_num_bits = bits.ue() + 4
    count_type, count_bits, deltas_follow, non_ref_offset, ref_frame_offsets = _parse_order_counts(bits)
    if frame_num_bits > MAX_COUNT_BITS or count_bits > MAX_COUNT_BITS or count_type > 2:
        raise ValueError("an absurd picture order count")
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
        deltas_follow=deltas_follow,
        non_ref_offset=non_ref_offset,
        ref_frame_offsets=ref_frame_offsets,
    )


def _parse_format(bits: BitReader) -> tuple[int, bool, int, int]:
    """Read the fields of high profiles, from chroma_format_idc to the scaling lists.

    Returns:
        The chroma format, whether colour planes are separate, and the bits above 8 of luma and chroma samples.
    """
    chroma = bits.ue()
    separate_planes = chroma == 3 and bits.flag()
    depths = bits.ue(), bits.ue()
    bits.flag()
    if bits.flag():
        for index in range(8 if chroma != 3 else 12):
            if bits.flag():  # scaling_list(), 7.3.2.1.1.1
                last = following = 8
                for _ in range(16 if index < 6 else 64):
                    if following:
                        following = (last + bits.se()) % 256
                    last = following or last
    return chroma, separate_planes, *depths


def _parse_order_counts(bits: BitReader) -> tuple[int, int, bool, int, tuple[int, ...]]:
    """Read from pic_order_cnt_type on.

    Returns:
        The type, the bits of the picture order count (type 0), whether slice headers carry differences,
        offset_for_non_ref_pic and offset_for_ref_frame (type 1).
    """
    count_type = bits.ue()
    if count_type == 0:
        return count_type, bits.ue() + 4, False, 0, ()
    if count_type != 1:
        return count_type, 0, False, 0, ()
    deltas_follow, non_ref_offset = not bits.flag(), bits.se()
    bits.se()
    return count_type, 0, deltas_follow, non_ref_offset, tuple(bits.se() for _ in range(bits.ue()))


def parse_pps(nal: bytes) -> tuple[int, Pps]:
    """Return (pic_parameter_set_id, fields) of a PPS NAL unit (7.3.2.2), header byte included. Raises ValueError."""
    bits = BitReader(unescape(nal[1:]))
    pps_id, sps_id = bits.ue(), bits.ue()
    if pps_id >= MAX_PPS or sps_id >= MAX_SPS:
        raise ValueError(f"pic_parameter_set_id {pps_id}, seq_parameter_set_id {sps_id}")
    try:
        bits.u(1)
        bottom_order = bits.flag()
        if bits.ue():  # slice groups
            return pps_id, Pps(sps_id=sps_id)
        active = bits.ue() + 1, bits.ue() + 1
        weighted, bipred = bits.flag(), bits.u(2)
        bits.se(), bits.se(), bits.se()
        bits.u(2)
        redundant = bits.flag()
    except ValueError:  # cut off behind the ids, which are all that a random access point depends on
        return pps_id, Pps(sps_id=sps_id)
    return pps_id, Pps(
        sps_id=sps_id,
        plain=True,
        bottom_order=bottom_order,
        default_active=active,
        weighted=weighted,
        weighted_b=bipred == 1,
        redundant=redundant,
    )


def parse_configuration(record: bytes) -> tuple[int, list[bytes]]:
    """Return (NAL length size, parameter sets) of an AVCDecoderConfigurationRecord (ISO/IEC 14496-15 5.3.3.1).

    Raises:
        ValueError: for anything else, including Annex B.
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


# Table E-1: sample aspect ratios by aspect_ratio_idc.
SAMPLE_ASPECTS = (
    (0, 1), (1, 1), (12, 11), (10, 11), (16, 11), (40, 33), (24, 11), (20, 11), (32, 11),
    (80, 33), (18, 11), (15, 11), (64, 33), (160, 99), (4, 3), (3, 2), (2, 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A sequence as its parameter set describes it. Sizes are in pixels.

    Attributes:
        constraints: the bits of constraint_set0_flag … constraint_set5_flag, the first one highest.
        width: width of the visible area.
        height: height of the visible area.
        coded_width: width of the coded picture.
        coded_height: height of the coded picture.
        left: where the visible area begins in the coded picture, horizontally.
        top: where the visible area begins in the coded picture, vertically.
        sample_aspect: (width, height), (0, 1) where not stated.
        full_range: None where not stated.
        primaries: UNSPECIFIED where not stated, as are transfer and matrix.
        reorder_depth: max_num_reorder_frames, None where not stated.
        ticks: (num_units_in_tick, time_scale), two ticks per frame; None where not stated.
    """

    profile_idc: int
    constraints: int
    chroma_format: int
    bit_depth: int
    width: int
    height: int
    coded_width: int
    coded_height: int
    left: int
    top: int
    frames_only: bool
    sample_aspect: tuple[int, int] = (0, 1)
    full_range: bool | None = None
    primaries: int = UNSPECIFIED
    transfer: int = UNSPECIFIED
    matrix: int = UNSPECIFIED
    reorder_depth: int | None = None
    ticks: tuple[int, int] | None = None


def parse_sequence(nal: bytes) -> Sequence:
    """Return the properties that an SPS NAL unit states, header byte included. Raises ValueError."""
    bits = BitReader(unescape(nal[1:]))
    profile, constraints = bits.u(8), bits.u(8) >> 2
    bits.u(8)
    bits.ue()
    chroma, depth = 1, 8
    if profile in HIGH_PROFILES:
        chroma, _, luma_bits, _ = _parse_format(bits)
        depth += luma_bits
    bits.ue()
    _parse_order_counts(bits)
    bits.ue()
    bits.flag()
    width, height = 16 * (bits.ue() + 1), 16 * (bits.ue() + 1)
    frames_only = bits.flag()
    if not frames_only:
        height *= 2
        bits.flag()
    bits.flag()
    left = right = top = bottom = 0
    if bits.flag():
        left, right, top, bottom = bits.ue(), bits.ue(), bits.ue(), bits.ue()
    across, down = 2 if chroma in (1, 2) else 1, (2 if chroma == 1 else 1) * (1 if frames_only else 2)
    return Sequence(
        profile_idc=profile,
        constraints=constraints,
        chroma_format=chroma,
        bit_depth=depth,
        width=width - (left + right) * across,
        height=height - (top + bottom) * down,
        coded_width=width,
        coded_height=height,
        left=left * across,
        top=top * down,
        frames_only=frames_only,
        **(_parse_usability(bits) if bits.flag() else {}),
    )


def _parse_usability(bits: BitReader) -> dict[str, Any]:
    """Return the fields of `Sequence` that vui_parameters() states (E.1.1)."""
    found: dict[str, Any] = {}
    if bits.flag():
        idc = bits.u(8)
        if idc == EXTENDED_SAR:
            found["sample_aspect"] = (bits.u(16), bits.u(16))
        elif idc < len(SAMPLE_ASPECTS):
            found["sample_aspect"] = SAMPLE_ASPECTS[idc]
    if bits.flag():
        bits.flag()
    if bits.flag():
        bits.u(3)
        found["full_range"] = bits.flag()
        if bits.flag():
            found |= {name: bits.u(8) for name in ("primaries", "transfer", "matrix")}
    if bits.flag():
        bits.ue(), bits.ue()
    if bits.flag():
        found["ticks"] = (bits.u(32), bits.u(32))
        bits.flag()
    has_buffering = False
    for _ in range(2):  # of NAL units, then of the video coding layer
        if bits.flag():
            has_buffering = True
            _skip_buffering(bits)
    if has_buffering:
        bits.flag()
    bits.flag()
    if bits.flag():
        bits.flag()
        for _ in range(4):
            bits.ue()
        found["reorder_depth"] = bits.ue()
    return found


def _skip_buffering(bits: BitReader) -> None:
    """Skip hrd_parameters() (E.1.2)."""
    count = bits.ue() + 1
    bits.u(8)
    for _ in range(min(count, 32)):  # 32 is the largest count that the standard allows
        bits.ue(), bits.ue()
        bits.flag()
    bits.u(20)
