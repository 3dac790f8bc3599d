"""Parameter sets and other headers of H.264 (ITU-T H.264 7.3.2) that slices and start points depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

from framedex.indexer.bitstream.base.bits import BitReader
from framedex.indexer.bitstream.h26x.colour import NO_COLOUR, parse_colour
from framedex.indexer.bitstream.h26x.nal import unescape

SLICE, PARTITION_A, IDR, SEI, SPS, PPS = 1, 2, 5, 6, 7, 8  # nal_unit_type, table 7-1
LOSSLESS_PROFILES = (44, 244)  # those of 4:4:4 with lossless coding, annex A
MOST_COUNT_BITS = 16  # log2_max_frame_num and log2_max_pic_order_cnt_lsb, 7.4.2.1.1
MOST_SPS, MOST_PPS = 32, 256  # numbers of ids, 7.4.2.1.1 and 7.4.2.2
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
    if sps_id >= MOST_SPS:
        raise ValueError(f"seq_parameter_set_id {sps_id}")
    shape = [1, 0, 0]
    if profile in HIGH_PROFILES:
        chroma = bits.ue()
        separate_planes = chroma == 3 and bits.flag()
        shape = [chroma, bits.ue(), bits.ue()]
        bits.flag()
        if bits.flag():
            for index in range(8 if chroma != 3 else 12):
                if bits.flag():
                    skip_scaling_list(bits, 16 if index < 6 else 64)
    frame_num_bits = bits.ue() + 4
    count_type, count_bits = bits.ue(), 0
    deltas_follow, non_ref_offset, ref_frame_offsets = False, 0, []
    if count_type == 0:
        count_bits = bits.ue() + 4
    elif count_type == 1:
        deltas_follow = not bits.flag()
        non_ref_offset = bits.se()
        bits.se()
        ref_frame_offsets = [bits.se() for _ in range(bits.ue())]
    if frame_num_bits > MOST_COUNT_BITS or count_bits > MOST_COUNT_BITS or count_type > 2:
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
        ref_frame_offsets=tuple(ref_frame_offsets),
    )


def skip_scaling_list(bits: BitReader, size: int) -> None:
    """Skip scaling_list() (7.3.2.1.1.1) of `size` coefficients."""
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last


def parse_pps(nal: bytes) -> tuple[int, Pps]:
    """Return (pic_parameter_set_id, fields) of a PPS NAL unit (7.3.2.2), header byte included. Raises ValueError."""
    bits = BitReader(unescape(nal[1:]))
    pps_id, sps_id = bits.ue(), bits.ue()
    if pps_id >= MOST_PPS or sps_id >= MOST_SPS:
        raise ValueError(f"pic_parameter_set_id {pps_id}, seq_parameter_set_id {sps_id}")
    try:
        return pps_id, parse_pps_fields(bits, sps_id)
    except ValueError:  # cut off behind what start points depend on
        return pps_id, Pps(sps_id=sps_id)


def parse_pps_fields(bits: BitReader, sps_id: int) -> Pps:
    """Return the fields of a PPS after its two ids. Raises ValueError."""
    bits.u(1)
    bottom_order = bits.flag()
    if bits.ue():
        return Pps(sps_id=sps_id)
    active = bits.ue() + 1, bits.ue() + 1
    weighted, bipred = bits.flag(), bits.u(2)
    bits.se(), bits.se(), bits.se()
    bits.u(2)
    return Pps(
        sps_id=sps_id,
        plain=True,
        bottom_order=bottom_order,
        default_active=active,
        weighted=weighted,
        weighted_b=bipred == 1,
        redundant=bits.flag(),
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
