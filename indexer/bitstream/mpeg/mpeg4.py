"""MPEG-4 part 2 (ISO/IEC 14496-2): start points, B-VOPs and output order, also of packed bitstreams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from framedex.indexer.bitstream.base.anchors import last_where, output_order
from framedex.indexer.bitstream.base.pictures import (
    CLOSED_START,
    NO_START,
    OPEN_START,
    BitstreamError,
    Pictures,
    pictures_of,
)
from framedex.indexer.bitstream.base.states import StateTable
from framedex.indexer.bitstream.mpeg.mpeg4_headers import (
    ADVANCED_SIMPLE,
    SIMPLE,
    START_CODE,
    VOP,
    Layer,
    Mpeg4Headers,
)

VOP_CODE = b"\0\0\1\xb6"
I_VOP, P_VOP, B_VOP, S_VOP = 0, 1, 2, 3  # vop_coding_type, table 6-20
NOTHING = -1
_TOO_SHORT = 7  # bytes; a remainder of a packet that is not longer is dropped
_COLUMNS = ("kind", "start", "droppable", "skipped", "damaged", "low_delay", "state", "renew", "empty")
_SKIPPED = _COLUMNS.index("skipped")
_MOST_INCREMENT_BITS = 16
_PP_MODULUS = 1 << 16  # FFmpeg's decoder stores the distance of anchors in 16 bits


@dataclass(frozen=True, slots=True)
class _Vop:
    """The head of one VOP."""

    kind: int
    seconds: int
    increment: int
    coded: bool
    damaged: bool  # decoders give up, or guess the content of the header


def _is_damaged(kind: int, rest: int, bits: int, layer: Layer) -> bool:
    """Return whether the head of a coded VOP ends too early or holds values that no VOP may have.

    Args:
        kind: vop_coding_type.
        rest: the bits after vop_coded, as one number.
        bits: number of these bits.
        layer: the layer in force.
    """
    if layer.quantiser_bits is None or kind == S_VOP:
        return False
    bits -= (kind == P_VOP) + 3 + 2 * layer.interlaced
    fcodes = (kind != I_VOP) + (kind == B_VOP)  # forward and backward
    for count in (layer.quantiser_bits, *[3] * fcodes):
        bits -= count
        if bits < 0 or not rest >> bits & (1 << count) - 1:
            return True
    return False


def _guess_increment_bits(kind: int, value: int, bits: int) -> int:
    """Return the length of time increments that FFmpeg's decoder guesses, and keeps, if no marker bit follows one.

    Args:
        kind: vop_coding_type.
        value: the VOP as one number, which ends with the increment and what follows it.
        bits: number of bits from the increment on.

    Returns:
        Length in bits.
    """
    length, mask, wanted = (6, 0b110111, 0b110000) if kind in (P_VOP, S_VOP) else (5, 0b11111, 0b11000)
    for count in range(1, _MOST_INCREMENT_BITS):
        if bits >= count + length and value >> (bits - count - length) & mask == wanted:
            return count
    return _MOST_INCREMENT_BITS


class Mpeg4Scanner:
    """Scans packets of MPEG-4 part 2 video: one VOP each, or two in a packed bitstream. Raises BitstreamError."""

    def __init__(self, configuration: bytes) -> None:
        self._headers = Mpeg4Headers()
        try:
            self._read_headers(configuration, 0)
        except ValueError as error:
            raise BitstreamError("parameter_sets", f"the configuration: {error}") from error
        self._configured = self._headers.copy()
        self._states = StateTable(b"")
        self._rows: list[list[int]] = []  # one row per packet, with the columns in _COLUMNS
        self._timed_starts: list[int] = []
        self._low_delay: bool | None = None
        self._sizes: set[tuple[int, int]] = set()
        self._size: tuple[int, int] = (0, 0)
        self._interlaced = self._packed = self._timed = False
        self._anchors, self._newest = 0, -1
        # The length that FFmpeg's decoder guessed at a VOP header that did not fit; 0 if the layer's length applies.
        self._increment_bits = 0
        self._headless = False  # whether pictures came before the first anchor
        # In time increments or seconds, as FFmpeg's decoder keeps them.
        self._time_base = self._last_time_base = self._last_anchor_time = self._anchor_distance = 0
        self._pending: _Vop | None = None  # in a packed bitstream, the VOP kept until the next packet
        self._watched: tuple[int, int] | None = None  # (start whose leading pictures come now, its time increment)
        self._unsteady: set[int] = set()

    def feed(self, data: bytes) -> None:
        """Read the next packet in decode order. Raises BitstreamError for features that are not covered."""
        number = len(self._rows)
        if data[:2] == b"\0\0" and len(data) > 2 and data[2] & 0xFC == 0x80:
            raise BitstreamError("short_header", f"packet {number} has a short video header (H.263 in MPEG-4)")
        self._headers.time_base, self._headers.renewed = None, False
        if not data:
            self._note(None, data)
            return
        try:
            at = self._read_headers(data, 0)
        except ValueError as error:
            if isinstance(error, BitstreamError) and error.kind == "parameter_sets":
                raise  # more headers than are tracked here, so what comes after them is unknown, too
            self._note(None, data, damaged=True)
            if self._headers.layer is None:
                raise BitstreamError("damaged", f"packet {number}: {error}", damaged=True) from error
            return
        if self._headers.renewed:
            self._increment_bits = 0
        own = self._read_vop(data, at)
        following = data.find(VOP_CODE, at + 4) if own else -1
        self._packed |= self._headers.packed
        if not self._headers.packed:
            if following >= 0 and following + 4 < len(data):
                raise BitstreamError(
                    "packed", f"packet {number} holds several pictures in a stream not marked as packed"
                )
            self._pending = None
            self._note(own, data)
            return
        self._take_turn(own, data, following)

    def _take_turn(self, own: _Vop | None, data: bytes, following: int) -> None:
        """Simulate FFmpeg's decoder on a packed bitstream's packet: it first decodes the VOP left from the last one.

        Args:
            own: the first VOP of the packet.
            data: the packet.
            following: where its second VOP begins, -1 without one.
        """
        pending, self._pending = self._pending, None
        self._watch_start(own, pending, self._read_vop(data, following))
        first = data.find(START_CODE)
        if pending is not None and first >= 0 and data[first + 3 : first + 4] == b"\xb0":
            pending = None  # a new sequence discards it
        if pending is None:
            if self._note(own, data) and len(data) - following > _TOO_SHORT:
                self._pending = self._kept(self._read_vop(data, following))
        elif self._note(pending, b"") and len(data) > _TOO_SHORT:
            self._pending = self._kept(own)

    def _watch_start(self, own: _Vop | None, pending: _Vop | None, second: _Vop | None) -> None:
        """Find starts after which a decoder that starts there stays out of step with one that started earlier.

        The decoder that starts there skips leading B-VOPs, then keeps nothing for the next packet, and reads
        placeholders that the other decoder never sees. That does no harm if placeholders repeat the time of the start,
        as XviD's do.

        Args:
            own: the first VOP of the packet.
            pending: the VOP kept from the packet before.
            second: the second VOP of the packet.
        """
        if pending is None and own is not None and own.coded and own.kind != B_VOP:
            self._watched = (len(self._rows), own.increment) if own.kind == I_VOP else None
            fits = second is None or second.kind == B_VOP
        elif own is None:
            fits = False
        elif own.coded:
            fits = own.kind == B_VOP and second is None
        else:
            fits = self._watched is None or (
                own.kind != B_VOP and (own.seconds, own.increment) == (0, self._watched[1])
            )
        if self._watched is not None and not fits:
            self._unsteady.add(self._watched[0])

    @staticmethod
    def _kept(vop: _Vop | None) -> _Vop | None:
        return vop if vop is not None and vop.kind in (I_VOP, B_VOP) else None

    def _read_headers(self, data: bytes, at: int) -> int:
        """Read the units before the first VOP, and return where that VOP begins, or -1."""
        at = data.find(START_CODE, at)
        while 0 <= at < len(data) - 3 and data[at + 3] != VOP:
            following = data.find(START_CODE, at + 4)
            self._headers.read(data[at : following if following >= 0 else len(data)])
            at = following
        return at if 0 <= at < len(data) - 3 else -1

    def _read_vop(self, data: bytes, at: int) -> _Vop | None:
        """Return the head of the VOP that begins at byte `at` (6.2.5), or None if there is none."""
        if at < 0:
            return None
        layer = self._headers.layer
        if layer is None:
            raise BitstreamError("parameter_sets", f"no video object layer before packet {len(self._rows)}")
        head = data[at + 4 : at + 24]
        bits = 8 * len(head)
        value = int.from_bytes(head, "big")
        kind = value >> (bits - 2) & 3 if bits else 0
        position, seconds = bits - 3, 0
        while position > 0 and value >> position & 1:
            seconds, position = seconds + 1, position - 1
        count = self._increment_bits or layer.increment_bits
        begin = position - 1
        position = begin - count
        if position < 3:
            return None
        guessed = not value >> (position - 1) & 1  # the marker bit after the increment is missing
        if guessed:
            count = self._increment_bits = _guess_increment_bits(
                kind, value << _MOST_INCREMENT_BITS, begin + _MOST_INCREMENT_BITS
            )
            position = begin - count
            if position < 3:
                return None
        increment = value >> position & (1 << count) - 1
        coded = bool(value >> (position - 2) & 1)
        damaged = guessed or count != layer.increment_bits
        damaged |= coded and _is_damaged(kind, value & (1 << (position - 2)) - 1, position - 2, layer)
        return _Vop(kind, seconds, increment, coded, damaged)

    def _note(self, vop: _Vop | None, data: bytes, *, damaged: bool = False) -> bool:
        """Add a row for the packet, with the VOP that the decoder decodes for it. Return whether that gives a picture.

        Args:
            vop: None if the decoder finds no VOP.
            data: the packet, or b"" if the VOP was kept from the packet before.
            damaged: whether the packet is known to be damaged.
        """
        number = len(self._rows)
        renew = False
        shown = vop is not None and self._advance(vop, self._headers.layer)
        if vop is not None and shown:
            renew = self._renew()
            self._check_low_delay(vop)
            missing = (vop.kind == B_VOP and self._anchors < 2) or (vop.kind in (P_VOP, S_VOP) and not self._anchors)
            if vop.kind != B_VOP:
                self._anchors, self._newest = min(self._anchors + 1, 2), number
            self._headless |= missing and not self._anchors
            # Decoders drop B-VOPs after the first I-VOP, and nothing needs them.
            damaged |= missing and (vop.kind != B_VOP or self._headless)
            shown = not (missing and vop.kind == B_VOP)
        damaged |= vop is not None and vop.damaged
        start = bool(data) and shown and vop is not None and vop.kind == I_VOP
        self._timed |= self._headers.time_base is not None
        if start and self._headers.time_base is not None:
            self._timed_starts.append(number)
        droppable = vop is not None and vop.kind == B_VOP and vop.coded and data[:4] == VOP_CODE
        self._rows.append(
            [
                vop.kind if vop is not None and shown else NOTHING,
                start,
                droppable,
                not shown,
                damaged or (vop is None and bool(data)),
                bool(self._low_delay),
                self._state(data) if start else 0,
                renew,
                vop is not None and not vop.coded,
            ]
        )
        return shown

    def _advance(self, vop: _Vop, layer: Layer | None) -> bool:
        """Update the times as FFmpeg's decoder does, and return whether it decodes the VOP."""
        assert layer is not None  # _read_vop checks it
        if self._headers.time_base is not None:
            self._time_base = self._headers.time_base
        if vop.kind != B_VOP:
            self._last_time_base = self._time_base
            self._time_base += vop.seconds
            time = self._time_base * layer.resolution + vop.increment
            self._anchor_distance = (time - self._last_anchor_time) % _PP_MODULUS
            self._last_anchor_time = time
            return vop.coded
        time = (self._last_time_base + vop.seconds) * layer.resolution + vop.increment
        distance = (self._anchor_distance - (self._last_anchor_time - time)) % _PP_MODULUS
        return vop.coded and 0 < distance < self._anchor_distance

    def _renew(self) -> bool:
        """Record the picture's size, and return whether it changes. A decoder then loses the picture it holds back."""
        layer = self._headers.layer
        assert layer is not None
        self._sizes.add(layer.size)
        self._interlaced |= layer.interlaced
        before, self._size = self._size, layer.size
        if before in ((0, 0), layer.size):
            return False
        if self._newest >= 0 and not self._low_delay:
            self._rows[self._newest][_SKIPPED] = True
        self._anchors, self._newest = 0, -1
        return True

    def _check_low_delay(self, vop: _Vop) -> None:
        layer = self._headers.layer
        assert layer is not None
        low_delay = layer.low_delay
        if low_delay is None:
            if self._low_delay is None:
                self._low_delay = layer.object_type in (SIMPLE, ADVANCED_SIMPLE)
            if vop.kind == B_VOP and self._low_delay:
                raise BitstreamError(
                    "output_order", f"B-VOP at packet {len(self._rows)} of a stream without reordering"
                )
        elif self._low_delay not in (None, low_delay):
            raise BitstreamError("output_order", f"low_delay changes at packet {len(self._rows)}")
        else:
            self._low_delay = low_delay

    def _state(self, data: bytes) -> int:
        """Return the number of the state that a decoder which starts at this packet must be given first."""
        whole, self._headers = self._headers, self._configured.copy()
        fresh = self._headers
        self._read_headers(data, 0)
        self._headers = whole
        return 0 if fresh.state() == whole.state() else self._states.number(whole.state())

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        n = len(self._rows)
        table = np.array(self._rows, np.int64).reshape(n, len(_COLUMNS))
        column = dict(zip(_COLUMNS, table.T, strict=True))
        kind = column["kind"]
        started = column["start"] != 0
        anchor = np.isin(kind, (I_VOP, P_VOP, S_VOP))
        delayed = anchor & (column["low_delay"] == 0)
        skipped = column["skipped"] != 0
        if n and column["empty"][-1] and self._newest >= 0:
            # The last packet's output is the picture held back at the end or, without one, the last picture again.
            skipped[self._newest] |= delayed[self._newest]
            skipped[-1] = False
        droppable = (column["droppable"] != 0) & ~np.bool_(self._packed)
        if self._timed:  # not all groups have time codes: a decoder that starts elsewhere counts other times
            started &= np.isin(np.arange(n), self._timed_starts) | (np.arange(n) == 0)
        if self._interlaced and np.any(kind == B_VOP):  # FFmpeg's decoder keeps the first B-VOP's distance
            started &= np.arange(n) == 0
            droppable[:] = False
        started[sorted(self._unsteady - {0})] = False
        segment = last_where(started)
        leading = (kind == B_VOP) & (last_where(anchor) == segment) & (segment >= 0)
        start = np.where(started, CLOSED_START, NO_START).astype(np.uint8)
        start[segment[leading]] = OPEN_START
        return pictures_of(
            start,
            non_reference=droppable,
            leading=leading,
            skipped=skipped,
            damaged=(column["damaged"] != 0) | ((segment < 0) & ~skipped),
            order=output_order(delayed, np.zeros(n, np.bool_)),
            period=np.cumsum(column["renew"] != 0),
            states=self._states.states,
            state=column["state"].astype(np.int32),
            varying_shape=len(self._sizes) > 1,
            chroma_format=1,
        )
