"""Parsers of AV1 sequence headers and frame headers. Frame headers are parsed up to the reference slots.

Section numbers refer to the AV1 bitstream specification, version 1.0.0 with errata 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.base import UNSPECIFIED, BitColumns, BitReader

KEY_FRAME, INTER_FRAME, INTRA_ONLY_FRAME, SWITCH_FRAME = 0, 1, 2, 3  # values of frame_type (6.8.2)
INTRA_FRAMES = (KEY_FRAME, INTRA_ONLY_FRAME)
REFERENCES = 7  # REFS_PER_FRAME (section 3)
SELECT = 2  # SELECT_SCREEN_CONTENT_TOOLS and SELECT_INTEGER_MV (section 3)
ALL_FRAMES = 0xFF  # refresh_frame_flags of a frame that refreshes every reference slot
BT709, SRGB, IDENTITY = 1, 13, 0  # color_primaries, transfer_characteristics and matrix_coefficients of RGB (6.4.2)

IntOrColumn = TypeVar("IntOrColumn", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceHeader:
    """The fields of a sequence header OBU (5.5.1) that frame headers and the shape of pictures depend on.

    Attributes:
        operating_point: the operating_point_idc of operating point 0, which decoders choose by default.
        removal_points: the operating_point_idc of each operating point for which frame headers contain a
            buffer_removal_time.
        removal_time_bits: the number of bits of buffer_removal_time, or 0 if frame headers do not contain the field.
        presentation_time_bits: the number of bits of frame_presentation_time, or 0 if frame headers do not contain the
            field.
        frame_id_bits: the number of bits of current_frame_id, or 0 if frame headers do not contain the field.
        shape: the maximum size, bit depth, subsampling and colour. Shapes are only compared with each other.
    """

    reduced: bool
    operating_point: int = 0
    removal_points: tuple[int, ...] = ()
    removal_time_bits: int = 0
    presentation_time_bits: int = 0
    frame_id_bits: int
    screen_content_tools: int
    integer_mv: int
    order_hint_bits: int
    chroma_format: int | None
    shape: tuple[int, ...]


def parse_sequence_header(payload: bytes) -> SequenceHeader:
    """Parse the payload of a sequence header OBU (5.5.1). Raises ValueError."""
    bits = BitReader(payload)
    profile = bits.u(3)
    bits.flag()
    reduced = bits.flag()
    if reduced:
        bits.u(5)
    operation = {} if reduced else _parse_operation(bits)
    width_bits, height_bits = bits.u(4) + 1, bits.u(4) + 1
    size = (bits.u(width_bits), bits.u(height_bits))
    frame_id_bits = bits.u(4) + bits.u(3) + 3 if not reduced and bits.flag() else 0
    bits.u(3)
    screen_content_tools = integer_mv = SELECT
    order_hint_bits = 0
    if not reduced:
        bits.u(4)
        order_hints = bits.flag()
        if order_hints:
            bits.u(2)
        if not bits.flag():
            screen_content_tools = bits.u(1)
        if screen_content_tools and not bits.flag():
            integer_mv = bits.u(1)
        order_hint_bits = bits.u(3) + 1 if order_hints else 0
    bits.u(3)
    chroma_format, colour = _color_config(bits, profile)
    bits.flag()
    return SequenceHeader(
        reduced=reduced,
        **operation,
        frame_id_bits=frame_id_bits,
        screen_content_tools=screen_content_tools,
        integer_mv=integer_mv,
        order_hint_bits=order_hint_bits,
        chroma_format=chroma_format,
        shape=(*size, *colour),
    )


def _parse_operation(bits: BitReader) -> dict[str, Any]:
    """Parse the fields from timing_info_present_flag to the last operating point (5.5.1 to 5.5.5).

    Returns:
        Values for fields of `SequenceHeader`, by name.
    """
    delay_bits = removal_bits = presentation_bits = 0
    equal_interval = model = False
    if bits.flag():
        bits.u(64)
        equal_interval = bits.flag()
        if equal_interval:
            bits.ue()
        model = bits.flag()
        if model:
            delay_bits = bits.u(5) + 1
            bits.u(32)
            removal_bits, presentation_bits = bits.u(5) + 1, bits.u(5) + 1
    initial_delays = bits.flag()
    points, removal_points = [], []
    for _ in range(bits.u(5) + 1):
        points.append(bits.u(12))
        if bits.u(5) > 7:
            bits.flag()
        if model and bits.flag():
            removal_points.append(points[-1])
            bits.u(2 * delay_bits + 1)
        if initial_delays and bits.flag():
            bits.u(4)
    return {
        "operating_point": points[0],
        "removal_points": tuple(removal_points),
        "removal_time_bits": removal_bits,
        "presentation_time_bits": 0 if equal_interval else presentation_bits,
    }


def _color_config(bits: BitReader, profile: int) -> tuple[int | None, tuple[int, ...]]:
    """Parse color_config() (5.5.2).

    Returns:
        The chroma_format_idc (None for 4:4:0), and the bit depth, subsampling and colour as part of the shape.
    """
    depth = 8
    if bits.flag():
        depth = 12 if profile == 2 and bits.flag() else 10
    monochrome = profile != 1 and bits.flag()
    described = bits.flag()
    colour = tuple(bits.u(8) if described else UNSPECIFIED for _ in range(3))  # primaries, transfer, matrix
    if monochrome:
        return 0, (depth, 1, 1, 1, *colour, bits.u(1))
    if colour == (BT709, SRGB, IDENTITY):
        full_range, across, down = 1, 0, 0
    else:
        full_range = bits.u(1)
        if profile < 2:
            across = down = 1 - profile
        elif depth == 12:
            across = bits.u(1)
            down = bits.u(1) if across else 0
        else:
            across, down = 1, 0
        if across and down:
            colour = (*colour, bits.u(2))
    bits.flag()
    return 3 - across - down, (depth, 0, across, down, *colour, full_range)


def is_within(point: int, extension: IntOrColumn) -> IntOrColumn:
    """Return 1 if the layers in an OBU extension header (5.3.3) belong to an operating point, 0 otherwise.

    Args:
        point: the operating_point_idc of the operating point.
        extension: the OBU extension header.
    """
    return (point >> (extension >> 5)) & (point >> ((extension >> 3 & 3) + 8)) & 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeaders:
    """The fields of n frame headers (5.9.2).

    Attributes:
        frame_type: int64 [n], frame_type. It is undefined if `existing` is true.
        shown: bool [n], whether the frame is output.
        existing: bool [n], show_existing_frame.
        refresh: int64 [n], refresh_frame_flags. If `existing` is true, the value is ALL_FRAMES, although the slots that
            are refreshed depend on the frame that is shown.
        uses: int64 [n], with a bit set for each reference slot that the frame refers to or shows.
        listed: bool [n], whether `uses` is known. It is unknown if the header does not list all slots explicitly.
        hint: int64 [n], order_hint. It is undefined if `existing` is true.
        hint_bits: int64 [n], the number of bits of order_hint, or 0 if headers do not contain the field.
        resized: bool [n], whether the frame size may differ from that of the sequence header.
        length: int64 [n], the number of bits that were read.
    """

    frame_type: NDArray[np.int64]
    shown: NDArray[np.bool_]
    existing: NDArray[np.bool_]
    refresh: NDArray[np.int64]
    uses: NDArray[np.int64]
    listed: NDArray[np.bool_]
    hint: NDArray[np.int64]
    hint_bits: NDArray[np.int64]
    resized: NDArray[np.bool_]
    length: NDArray[np.int64]

    @classmethod
    def joined(cls, parts: list[FrameHeaders], rows: list[NDArray[np.int64]]) -> FrameHeaders:
        """Merge several `FrameHeaders` into one.

        Args:
            parts: `FrameHeaders` with the headers of some of the frames.
            rows: for each part, the row numbers of its frames in the result.
        """
        order = np.argsort(np.concatenate([np.zeros(0, np.int64), *rows]))
        flags = ("shown", "existing", "listed", "resized")
        columns: dict[str, NDArray[Any]] = {}
        for name in cls.__slots__:
            empty: NDArray[Any] = np.zeros(0, np.bool_ if name in flags else np.int64)  # a stream may have no frames
            columns[name] = np.concatenate([empty, *(getattr(part, name) for part in parts)])[order]
        return cls(**columns)


def parse_frame_headers(heads: list[bytes], extension: NDArray[np.int64], sequence: SequenceHeader) -> FrameHeaders:
    """Parse uncompressed_header() (5.9.2) of n frames that have the same sequence header.

    Args:
        heads: the first bytes of the payload of each frame header OBU or frame OBU.
        extension: int64 [n], the extension header (5.3.3) of each OBU, or -1 if there is none.
        sequence: the sequence header of the frames.
    """
    n = len(heads)
    bits = BitColumns(heads)
    # The header of a reduced still picture lacks these fields. Such a picture is a key frame that is output.
    existing = bits.u(1, where=np.full(n, not sequence.reduced)) != 0
    coded = ~existing & (not sequence.reduced)
    uses = np.where(existing, 1 << bits.u(3, where=existing), 0)
    frame_type = bits.u(2, where=coded)
    shown = existing | sequence.reduced | (bits.u(1, where=coded) != 0)
    bits.u(sequence.presentation_time_bits, where=coded & shown)
    bits.u(1, where=coded & ~shown)
    key, switch = coded & (frame_type == KEY_FRAME), coded & (frame_type == SWITCH_FRAME)
    all_refreshed = switch | (key & shown)
    resilient = all_refreshed | (bits.u(1, where=coded & ~all_refreshed) != 0)
    intra = key | (coded & (frame_type == INTRA_ONLY_FRAME))
    bits.u(1, where=coded)
    tools = np.full(n, sequence.screen_content_tools != 0)
    if sequence.screen_content_tools == SELECT:
        tools = bits.u(1, where=coded) != 0
    if sequence.integer_mv == SELECT:
        bits.u(1, where=coded & tools)
    bits.u(sequence.frame_id_bits, where=coded)
    resized = switch | (bits.u(1, where=coded & ~switch) != 0)
    hint = bits.u(sequence.order_hint_bits, where=coded)
    bits.u(3, where=coded & ~intra & ~resilient)
    if sequence.removal_time_bits:
        # The buffer_removal_time of each operating point that the frames belong to is skipped.
        has_times = coded & (bits.u(1, where=coded) != 0)
        layer = np.maximum(extension, 0)
        for point in sequence.removal_points:
            bits.u(sequence.removal_time_bits, where=has_times & (is_within(point, layer) != 0) if point else has_times)
    refresh = np.where(all_refreshed | ~coded, ALL_FRAMES, bits.u(8, where=coded & ~all_refreshed))
    length = bits.position
    inter = coded & ~intra
    # If a header contains order hints or frame IDs of reference slots, decoders compare them with the content of all
    # slots. So decoding depends on all slots, and `uses` is unknown.
    states_slots = resilient & (inter | (refresh != ALL_FRAMES)) & (sequence.order_hint_bits > 0)
    listed = ~states_slots & (~inter | (~switch & (sequence.frame_id_bits == 0)))
    # The fields from frame_refs_short_signaling to ref_frame_idx of inter frames
    if sequence.order_hint_bits:
        listed = listed & ~(inter & (bits.u(1, where=inter & listed) != 0))
    for _ in range(REFERENCES):
        uses |= np.where(inter & listed, 1 << bits.u(3, where=inter & listed), 0)
    return FrameHeaders(
        frame_type=frame_type,
        shown=shown,
        existing=existing,
        refresh=refresh,
        uses=uses,
        listed=listed,
        hint=hint,
        hint_bits=np.full(n, sequence.order_hint_bits),
        resized=resized,
        length=np.where(listed, bits.position, length),
    )
