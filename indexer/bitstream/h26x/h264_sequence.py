"""H.264 sequence parameter sets (ITU-T H.264 7.3.2.1.1, E.1.1) for display: profile, size, colour, reordering."""

from __future__ import annotations

from dataclasses import dataclass

from framedex.indexer.bitstream.base.bits import BitReader
from framedex.indexer.bitstream.h26x.h264_sets import HIGH_PROFILES, skip_scaling_list
from framedex.indexer.bitstream.h26x.nal import unescape

UNSPECIFIED = 2
EXTENDED_SAR = 255
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
    sample_aspect: tuple[int, int]
    full_range: bool | None
    primaries: int
    transfer: int
    matrix: int
    reorder_depth: int | None
    ticks: tuple[int, int] | None


@dataclass(slots=True)
class _Usability:
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
        chroma = bits.ue()
        if chroma == 3:
            bits.flag()
        depth = 8 + bits.ue()
        bits.ue()
        bits.flag()
        if bits.flag():
            for index in range(8 if chroma != 3 else 12):
                if bits.flag():
                    skip_scaling_list(bits, 16 if index < 6 else 64)
    bits.ue()
    _skip_order_counts(bits)
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
    usability = _parse_usability(bits) if bits.flag() else _Usability()
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
        sample_aspect=usability.sample_aspect,
        full_range=usability.full_range,
        primaries=usability.primaries,
        transfer=usability.transfer,
        matrix=usability.matrix,
        reorder_depth=usability.reorder_depth,
        ticks=usability.ticks,
    )


def _skip_order_counts(bits: BitReader) -> None:
    count_type = bits.ue()
    if count_type == 0:
        bits.ue()
    elif count_type == 1:
        bits.flag()
        bits.se()
        bits.se()
        for _ in range(bits.ue()):
            bits.se()


def _parse_usability(bits: BitReader) -> _Usability:
    """Return vui_parameters() (E.1.1)."""
    found = _Usability()
    if bits.flag():
        idc = bits.u(8)
        if idc == EXTENDED_SAR:
            found.sample_aspect = (bits.u(16), bits.u(16))
        elif idc < len(SAMPLE_ASPECTS):
            found.sample_aspect = SAMPLE_ASPECTS[idc]
    if bits.flag():
        bits.flag()
    if bits.flag():
        bits.u(3)
        found.full_range = bits.flag()
        if bits.flag():
            found.primaries, found.transfer, found.matrix = bits.u(8), bits.u(8), bits.u(8)
    if bits.flag():
        bits.ue(), bits.ue()
    if bits.flag():
        found.ticks = (bits.u(32), bits.u(32))
        bits.flag()
    timed = [_skip_buffering(bits) for _ in range(2) if bits.flag()]
    if timed:
        bits.flag()
    bits.flag()
    if bits.flag():
        bits.flag()
        for _ in range(4):
            bits.ue()
        found.reorder_depth = bits.ue()
    return found


def _skip_buffering(bits: BitReader) -> bool:
    """Skip hrd_parameters() (E.1.2)."""
    count = bits.ue() + 1
    bits.u(8)
    for _ in range(min(count, 32)):
        bits.ue(), bits.ue()
        bits.flag()
    bits.u(20)
    return True
