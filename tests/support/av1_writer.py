"""AV1 written field by field: sequence headers, frame headers and OBUs."""

from __future__ import annotations

from dataclasses import dataclass, field

KEY_FRAME, INTER_FRAME, INTRA_ONLY_FRAME, SWITCH_FRAME = range(4)  # frame_type, 6.8.2
ALL_FRAMES = 0xFF  # refresh_frame_flags of a frame that takes every reference slot


class BitWriter:
    """Writes bit fields one after the other."""

    def __init__(self) -> None:
        self._text = ""

    def u(self, bits: int, value: int) -> None:
        if bits:
            self._text += f"{value & ((1 << bits) - 1):0{bits}b}"

    def bytes(self) -> bytes:
        padded = self._text + "1" + "0" * (-(len(self._text) + 1) % 8)
        return int(padded, 2).to_bytes(len(padded) // 8, "big")

    def __len__(self) -> int:
        return len(self._text)


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """Fields of a sequence header.

    Attributes:
        points: one tuple per operating point: operating_point_idc, and whether it has a decoder model.
    """

    profile: int = 0
    reduced: bool = False
    timing: bool = False
    equal_interval: bool = False
    model: bool = False
    delay_bits: int = 7
    removal_bits: int = 11
    presentation_bits: int = 13
    initial_delay: bool = False
    points: tuple[tuple[int, bool], ...] = ((0, True),)
    size: tuple[int, int] = (176, 144)
    frame_ids: bool = False
    order_hint_bits: int = 7
    screen_tools: int = 2
    integer_mv: int = 2
    high_depth: bool = False
    twelve_bits: bool = False
    monochrome: bool = False
    colour: tuple[int, int, int] | None = None
    full_range: bool = False
    subsampling: tuple[int, int] = (1, 1)

    def write(self) -> bytes:
        """Return the payload, as in section 5.5.1 of the AV1 specification."""
        out = BitWriter()
        out.u(3, self.profile)
        out.u(1, self.reduced)
        out.u(1, self.reduced)
        if self.reduced:
            out.u(5, 4)
        else:
            self._write_operation(out)
        out.u(8, 0x99)
        out.u(10, self.size[0] - 1)
        out.u(10, self.size[1] - 1)
        if not self.reduced:
            out.u(1, self.frame_ids)
            if self.frame_ids:
                out.u(4, 5)
                out.u(3, 6)
        out.u(3, 5)
        if not self.reduced:
            self._write_tools(out)
        out.u(3, 6)
        self._write_colour(out)
        out.u(1, 0)
        return out.bytes()

    @property
    def has_model(self) -> bool:
        return self.timing and self.model and not self.reduced

    def _write_operation(self, out: BitWriter) -> None:
        out.u(1, self.timing)
        if self.timing:
            out.u(32, 1)
            out.u(32, 25)
            out.u(1, self.equal_interval)
            if self.equal_interval:
                out.u(3, 0b010)
            out.u(1, self.model)
            if self.model:
                out.u(5, self.delay_bits - 1)
                out.u(32, 90_000)
                out.u(5, self.removal_bits - 1)
                out.u(5, self.presentation_bits - 1)
        out.u(1, self.initial_delay)
        out.u(5, len(self.points) - 1)
        for number, (point, modelled) in enumerate(self.points):
            out.u(12, point)
            out.u(5, 6 + 3 * (number % 2))
            if number % 2:
                out.u(1, 1)
            if self.timing and self.model:
                out.u(1, modelled)
                if modelled:
                    out.u(2 * self.delay_bits + 1, 3)
            if self.initial_delay:
                out.u(1, number % 2)
                if number % 2:
                    out.u(4, 9)

    def _write_tools(self, out: BitWriter) -> None:
        out.u(4, 10)
        out.u(1, self.order_hint_bits > 0)
        if self.order_hint_bits:
            out.u(2, 1)
        out.u(1, self.screen_tools == 2)
        if self.screen_tools != 2:
            out.u(1, self.screen_tools)
        if self.screen_tools:
            out.u(1, self.integer_mv == 2)
            if self.integer_mv != 2:
                out.u(1, self.integer_mv)
        if self.order_hint_bits:
            out.u(3, self.order_hint_bits - 1)

    def _write_colour(self, out: BitWriter) -> None:
        out.u(1, self.high_depth)
        if self.profile == 2 and self.high_depth:
            out.u(1, self.twelve_bits)
        if self.profile != 1:
            out.u(1, self.monochrome)
        out.u(1, self.colour is not None)
        for code in self.colour or ():
            out.u(8, code)
        if self.monochrome and self.profile != 1:
            out.u(1, self.full_range)
            return
        if self.colour != (1, 13, 0):
            out.u(1, self.full_range)
            across, down = self.subsampling
            if self.profile == 2 and self.high_depth and self.twelve_bits:
                out.u(1, across)
                if across:
                    out.u(1, down)
            if self.chroma == 1:
                out.u(2, 0)
        out.u(1, 0)

    @property
    def chroma(self) -> int:
        """The chroma format, numbered like chroma_format_idc."""
        if self.monochrome and self.profile != 1:
            return 0
        if self.profile == 1 or self.colour == (1, 13, 0):
            return 3
        if self.profile == 0:
            return 1
        if self.high_depth and self.twelve_bits:
            return 3 - self.subsampling[0] * (1 + self.subsampling[1])
        return 2


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Fields of a frame header."""

    existing: bool = False
    kind: int = INTER_FRAME
    shown: bool = True
    resilient: bool = False
    screen: bool = False
    resized: bool = False
    removal: bool = False
    refresh: int = 0
    extension: int = -1
    shows: int = 0
    hint: int | None = None
    short: bool = False
    references: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    filler: int = field(default=0x5A5A5A5A5A5A5A5A)

    def write(self, sequence: Sequence) -> tuple[bytes, int]:
        """Return the payload, and the number of bits up to the end of refresh_frame_flags, or of references if listed.

        The layout is that of section 5.9.2 of the AV1 specification.
        """
        out = BitWriter()
        if sequence.reduced:
            out.u(32, self.filler)
            return out.bytes(), 0
        out.u(1, self.existing)
        if self.existing:
            out.u(3, self.shows)
            return out.bytes() + b"\0", 4
        out.u(2, self.kind)
        out.u(1, self.shown)
        if self.shown and sequence.has_model and not sequence.equal_interval:
            out.u(sequence.presentation_bits, self.filler)
        if not self.shown:
            out.u(1, 1)
        if not self.takes_all:
            out.u(1, self.resilient)
        out.u(1, 0)
        if sequence.screen_tools == 2:
            out.u(1, self.screen)
        if (self.screen if sequence.screen_tools == 2 else sequence.screen_tools) and sequence.integer_mv == 2:
            out.u(1, 1)
        out.u(14 if sequence.frame_ids else 0, self.filler)
        if self.kind != SWITCH_FRAME:
            out.u(1, self.resized)
        out.u(sequence.order_hint_bits, self.filler if self.hint is None else self.hint)
        if not (self.kind in (KEY_FRAME, INTRA_ONLY_FRAME) or self.resilient or self.takes_all):
            out.u(3, 5)
        if sequence.has_model:
            self._write_removal_times(out, sequence)
        if not self.takes_all:
            out.u(8, self.refresh)
        length = len(out)
        if self._states_slots(sequence):
            out.u(8 * sequence.order_hint_bits, self.filler)
        if not self.is_intra:
            out.u(1 if sequence.order_hint_bits else 0, self.short)
            if self.lists(sequence):
                for reference in self.references:
                    out.u(3, reference)
                length = len(out)
        out.u(64, self.filler)
        return out.bytes(), length

    @property
    def is_intra(self) -> bool:
        return self.kind in (KEY_FRAME, INTRA_ONLY_FRAME)

    def _states_slots(self, sequence: Sequence) -> bool:
        """Whether the header states order hints of all slots."""
        takes_some = not self.is_intra or not (self.takes_all or self.refresh == ALL_FRAMES)
        return bool(sequence.order_hint_bits) and (self.resilient or self.takes_all) and takes_some

    def lists(self, sequence: Sequence) -> bool:
        """Whether the slots that the frame uses are known from its header alone."""
        if sequence.reduced or self.existing:
            return True
        if self._states_slots(sequence):
            return False
        short = self.short and bool(sequence.order_hint_bits)
        return self.is_intra or not (short or sequence.frame_ids or self.kind == SWITCH_FRAME)

    def uses(self, sequence: Sequence) -> int:
        """Return a bit for each slot that the frame uses, if it lists them."""
        if sequence.reduced or (self.is_intra and not self.existing):
            return 0
        slots = {self.shows} if self.existing else set(self.references)
        return sum(1 << slot for slot in slots)

    @property
    def takes_all(self) -> bool:
        return self.kind == SWITCH_FRAME or (self.kind == KEY_FRAME and self.shown)

    def _write_removal_times(self, out: BitWriter, sequence: Sequence) -> None:
        out.u(1, self.removal)
        layer = max(self.extension, 0)
        for point, modelled in sequence.points if self.removal else ():
            within = point >> (layer >> 5) & 1 and point >> ((layer >> 3 & 3) + 8) & 1
            if modelled and (point == 0 or within):
                out.u(sequence.removal_bits, self.filler)


def obu(kind: int, payload: bytes, extension: int = -1) -> bytes:
    """Return an OBU with a size field of two bytes."""
    size = bytes([len(payload) & 127 | 128, len(payload) >> 7])
    if extension < 0:
        return bytes([kind << 3 | 2]) + size + payload
    return bytes([kind << 3 | 6, extension]) + size + payload
