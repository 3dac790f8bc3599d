"""Parsers of H.264 parameter sets (ITU-T H.264 7.3.2).

They read the fields that slice headers depend on, and the fields that describe the pictures.
"""

from dataclasses import dataclass, field

from framedex.indexer.bitstream.base import NO_ASPECT, NO_COLOUR, BitReader, parse_usability
from framedex.indexer.bitstream.nal import unescape

SLICE, PARTITION_A, IDR, SEI, SPS, PPS = 1, 2, 5, 6, 7, 8  # values of nal_unit_type (table 7-1)
LOSSLESS_PROFILES = (44, 244)  # profile_idc of the 4:4:4 profiles that allow lossless coding (annex A)
MAX_COUNT_BITS = 16  # maximum of log2_max_frame_num and log2_max_pic_order_cnt_lsb (7.4.2.1.1)
MAX_SPS, MAX_PPS = 32, 256  # exclusive upper limits of the IDs of parameter sets (7.4.2.1.1, 7.4.2.2)
MAX_BUFFERS = 32  # maximum of cpb_cnt (E.2.2)
# profile_idc of the profiles whose SPS contains chroma_format_idc, bit depths and scaling lists (7.3.2.1.1).
HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sps:
    """The fields of a sequence parameter set (7.3.2.1.1) that slice headers depend on or that describe the pictures.

    Two sets compare equal if slice headers are parsed in the same way with both, and pictures have the same shape.

    Attributes:
        shape: the chroma format, the bit depths, the size in macroblocks, the cropping and the colour. The chroma
            format is the first number. The colour is the last four numbers.
        deltas_follow: whether slice headers contain delta_pic_order_cnt[0].
        width: the width of the coded picture in pixels.
        height: the height of the coded picture in pixels.
        window: the numbers of pixels that are cropped at the left, right, top and bottom.
        profile: the profile_idc.
        constraints: the bits constraint_set0_flag … constraint_set5_flag as a number. The first is the most significant
            bit.
        sample_aspect: the sample aspect ratio (width, height), or (0, 1) if the set does not state it.
        ticks: (num_units_in_tick, time_scale). A frame lasts two ticks. None if the set does not state them.
        reorder_depth: max_num_reorder_frames. None if the set does not state it.
    """

    separate_colour_planes: bool
    frame_num_bits: int
    order_count_type: int
    order_count_bits: int
    frames_only: bool
    gaps_allowed: bool
    may_be_lossless: bool
    # Excluded from comparison, because decoders read it anew at each random access point.
    max_ref_frames: int = field(compare=False)
    shape: tuple[int, ...]
    deltas_follow: bool
    non_ref_offset: int
    ref_frame_offsets: tuple[int, ...]
    width: int
    height: int
    window: tuple[int, int, int, int]
    profile: int = field(compare=False)
    constraints: int = field(compare=False)
    sample_aspect: tuple[int, int] = field(compare=False)
    ticks: tuple[int, int] | None = field(compare=False)
    reorder_depth: int | None = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pps:
    """The fields of a picture parameter set (7.3.2.2) that slice headers depend on.

    Attributes:
        plain: whether all fields were read. If false, the set has slice groups or is truncated.
        default_active: the default numbers of active entries of reference lists 0 and 1.
        weighted: whether P slices contain prediction weights.
        weighted_b: whether B slices contain prediction weights.
        outlived: whether the sequence parameter set that this set refers to was replaced after this set had been
            received.
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
    """Return (seq_parameter_set_id, fields) of an SPS NAL unit, given with its header byte. Raises ValueError."""
    bits = BitReader(unescape(nal[1:]))
    profile, constraints = bits.u(8), bits.u(8) >> 2
    bits.u(8)
    sps_id = bits.ue()
    if sps_id >= MAX_SPS:
        raise ValueError(f"seq_parameter_set_id is {sps_id}, the maximum is {MAX_SPS - 1}")
    chroma, separate_planes, depths = 1, False, [0, 0]
    if profile in HIGH_PROFILES:
        chroma = bits.ue()
        separate_planes = chroma == 3 and bits.flag()
        depths = [bits.ue(), bits.ue()]
        bits.flag()
        if bits.flag():
            _skip_scaling_lists(bits, 8 if chroma != 3 else 12)
    frame_num_bits = bits.ue() + 4
    count_type = bits.ue()
    count_bits = bits.ue() + 4 if count_type == 0 else 0
    deltas_follow, non_ref_offset, ref_frame_offsets = False, 0, list[int]()
    if count_type == 1:
        deltas_follow, non_ref_offset = not bits.flag(), bits.se()
        bits.se()
        ref_frame_offsets = [bits.se() for _ in range(bits.ue())]
    if frame_num_bits > MAX_COUNT_BITS or count_bits > MAX_COUNT_BITS or count_type > 2:
        raise ValueError("log2_max_frame_num, log2_max_pic_order_cnt_lsb or pic_order_cnt_type is too large")
    max_ref_frames, gaps_allowed = bits.ue(), bits.flag()
    size = [bits.ue(), bits.ue()]
    frames_only = bits.flag()
    if not frames_only:
        bits.flag()
    bits.flag()
    cut = [bits.ue() for _ in range(4)] if bits.flag() else []
    sample_aspect, colour, ticks, reorder_depth = NO_ASPECT, NO_COLOUR, None, None
    if bits.flag():
        sample_aspect, colour = parse_usability(bits)
        ticks, reorder_depth = _parse_timing(bits)
    fields = 1 if frames_only else 2
    across, down = 2 if chroma in (1, 2) else 1, (2 if chroma == 1 else 1) * fields
    left, right, top, bottom = cut or (0, 0, 0, 0)
    return sps_id, Sps(
        separate_colour_planes=separate_planes,
        frame_num_bits=frame_num_bits,
        order_count_type=count_type,
        order_count_bits=count_bits,
        frames_only=frames_only,
        gaps_allowed=gaps_allowed,
        may_be_lossless=profile in LOSSLESS_PROFILES,
        max_ref_frames=max_ref_frames,
        shape=(chroma, *depths, *size, *cut, *colour),
        deltas_follow=deltas_follow,
        non_ref_offset=non_ref_offset,
        ref_frame_offsets=tuple(ref_frame_offsets),
        width=16 * (size[0] + 1),
        height=16 * (size[1] + 1) * fields,
        window=(left * across, right * across, top * down, bottom * down),
        profile=profile,
        constraints=constraints,
        sample_aspect=sample_aspect,
        ticks=ticks,
        reorder_depth=reorder_depth,
    )


def _skip_scaling_lists(bits: BitReader, count: int) -> None:
    """Skip scaling lists (7.3.2.1.1.1)."""
    for index in range(count):
        if bits.flag():
            last = following = 8
            for _ in range(16 if index < 6 else 64):
                if following:
                    following = (last + bits.se()) % 256
                last = following or last


def _parse_timing(bits: BitReader) -> tuple[tuple[int, int] | None, int | None]:
    """Read the part of vui_parameters() after the colour description (E.1.1).

    Returns:
        `ticks` and `reorder_depth` of `Sps`.
    """
    ticks, has_buffering = None, False
    try:
        if bits.flag():
            bits.ue(), bits.ue()
        if bits.flag():
            ticks = bits.u(32), bits.u(32)
            bits.flag()
        for _ in range(2):  # hrd_parameters() (E.1.2) for all NAL units, then for VCL NAL units only
            if bits.flag():
                has_buffering = True
                count = bits.ue() + 1
                bits.u(8)
                for _ in range(min(count, MAX_BUFFERS)):
                    bits.ue(), bits.ue()
                    bits.flag()
                bits.u(20)
        bits.u(1 + has_buffering)
        if not bits.flag():
            return ticks, None
        bits.flag()
        return ticks, [bits.ue() for _ in range(5)][-1]
    except ValueError:  # the set is truncated after the fields that slice headers depend on
        return ticks, None


def parse_pps(nal: bytes) -> tuple[int, Pps]:
    """Return (pic_parameter_set_id, fields) of a PPS NAL unit (7.3.2.2), given with its header byte.

    Raises:
        ValueError: if an ID is missing or too large.
    """
    bits = BitReader(unescape(nal[1:]))
    pps_id, sps_id = bits.ue(), bits.ue()
    if pps_id >= MAX_PPS or sps_id >= MAX_SPS:
        raise ValueError(
            f"pic_parameter_set_id is {pps_id} (maximum {MAX_PPS - 1}), "
            f"seq_parameter_set_id {sps_id} (maximum {MAX_SPS - 1})"
        )
    try:
        bits.u(1)
        bottom_order = bits.flag()
        if bits.ue():  # num_slice_groups_minus1: the fields of slice groups are not parsed
            return pps_id, Pps(sps_id=sps_id)
        active = bits.ue() + 1, bits.ue() + 1
        weighted, bipred = bits.flag(), bits.u(2)
        bits.se(), bits.se(), bits.se()
        bits.u(2)
        redundant = bits.flag()
    except ValueError:  # the set is truncated after the IDs, which suffice to find random access points
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
    """Return (number of bytes of a length field, parameter sets) of an AVCDecoderConfigurationRecord.

    The record is defined in ISO/IEC 14496-15 5.3.3.1.

    Raises:
        ValueError: if the data is not such a record, or the record is truncated.
    """
    if len(record) < 7 or record[0] != 1:
        raise ValueError("the data is not an AVC decoder configuration record")
    nals, at = [], 5
    for mask in (0x1F, 0xFF):
        if at >= len(record):
            raise ValueError("the AVC decoder configuration record is truncated")
        count, at = record[at] & mask, at + 1
        for _ in range(count):
            end = at + 2 + int.from_bytes(record[at : at + 2], "big")
            if end > len(record):
                raise ValueError("the AVC decoder configuration record is truncated")
            nals.append(record[at + 2 : end])
            at = end
    return (record[4] & 3) + 1, [nal for nal in nals if nal]
