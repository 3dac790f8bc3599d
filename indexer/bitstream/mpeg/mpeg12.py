"""MPEG-1 video (ISO/IEC 11172-2) and MPEG-2 video (ISO/IEC 13818-2, ITU-T H.262): pictures and sequence headers."""

from __future__ import annotations

from collections.abc import Iterator
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
from framedex.indexer.bitstream.base.states import StateTable, with_unit
from framedex.indexer.bitstream.mpeg.mpeg12_slices import (
    HIGHEST_OF_ONE_BYTE,
    LAST_SLICE,
    PICTURE,
    macroblock_rows,
    slices_fit,
    start_codes,
)

START_CODE = b"\0\0\1"
USER_DATA, SEQUENCE, EXTENSION, SEQUENCE_END, GOP = 0xB2, 0xB3, 0xB5, 0xB7, 0xB8
SEQUENCE_EXT, DISPLAY_EXT, MATRIX_EXT, PICTURE_EXT = 1, 2, 3, 8  # extension_start_code_identifier, table 6-2
I_PICTURE, P_PICTURE, B_PICTURE, D_PICTURE = 1, 2, 3, 4  # picture_coding_type, table 6-12
FRAME = 3  # picture_structure, table 6-14
_COLUMNS = (
    "kind", "start", "droppable", "skipped", "field", "continues", "damaged", "low_delay", "state", "renew"
)  # fmt: skip
_KIND, _START, _DROPPABLE, _SKIPPED, _FIELD, _CONTINUES, _DAMAGED, _LOW_DELAY, _STATE, _RENEW = range(len(_COLUMNS))
OLD_TMPGENC = b"\0TMPGEXS\0"  # user data by which FFmpeg's decoder knows an encoder's wrong MPEG-1 intra DC
OLD_MARK = b"\0\0\1\xb2" + OLD_TMPGENC
_FEW_BYTES = 8192  # of more, numpy takes half of the time that bytes.find does to find start codes
_MARK_BYTES, _MARK_PLACES = 30, 20  # the decoder looks at so many places, if so many bytes follow in the packet


@dataclass(slots=True)
class _Sequence:
    """The sequence header in force, its extensions, and what they state about pictures."""

    parts: tuple[bytes, ...] = ()  # header and sequence extensions, as coded
    matrices: tuple[bytes, ...] = ()  # quant_matrix_extensions since
    mark: bytes = b""  # user data that changes how FFmpeg's decoder decodes
    header: bytes = b""  # size and aspect ratio
    extension: bytes = b""

    def shape(self) -> tuple[int, int, int]:
        """Return (width, height, chroma_format)."""
        packed = int.from_bytes(self.header[:3], "big")
        width, height, chroma = packed >> 12, packed & 0xFFF, 1
        if self.extension:
            width |= (self.extension[1] & 1) << 13 | (self.extension[2] & 0x80) << 5
            height |= (self.extension[2] & 0x60) << 7
            chroma = self.extension[1] >> 1 & 3
        return width, height, chroma

    def layout(self) -> tuple[int, ...]:
        """Return the properties whose change makes FFmpeg's decoder restart and lose the picture that it holds back."""
        _, height, _ = shape = self.shape()
        # Interlaced sequences are padded to 32 lines, which matters where 16 would give another height.
        progressive = self.extension[1] >> 3 & 1 if self.extension and -height % 32 >= 16 else 1
        return (*shape, progressive)

    def fits(self, data: bytes, *, field: bool) -> bool:
        """Return whether the slices of a packet lie where its pictures have rows."""
        height = self.shape()[1]
        if not self.header or height > HIGHEST_OF_ONE_BYTE:
            return True
        progressive = not self.extension or bool(self.extension[1] >> 3 & 1)
        rows = macroblock_rows(height, progressive=progressive, field=field)
        return slices_fit(start_codes(data), rows, every_row=bool(self.extension))

    def colour(self) -> bytes:
        """Return the colour description of the sequence display extension (6.2.2.4), empty where there is none."""
        for unit in reversed(self.parts):
            if unit[3] == EXTENSION and unit[4] >> 4 == DISPLAY_EXT and unit[4] & 1:
                return unit[5:8]
        return b""

    def low_delay(self) -> bool:
        """Return whether pictures are output without delay (6.3.5)."""
        return bool(self.extension and self.extension[5] >> 7)

    def state(self, *, whole: bool) -> bytes:
        """Return the headers that a decoder needs before a picture, or only the mark if not `whole`."""
        return b"".join((self.mark, *self.parts, *self.matrices) if whole else (self.mark,))


@dataclass(slots=True)
class _Packet:
    """What the headers of one packet state."""

    coding_type: int = 0  # of its first picture; 0 for none
    second_type: int = 0  # of its second picture
    structure: int = FRAME
    pictures: int = 0  # 2 for two fields
    sequence: bool = False
    gop: bool = False
    closed_gop: bool = False
    changes: bool = False  # it brings what decoders keep for later pictures: matrices, the first mark of an encoder
    slices: bool = False  # of its last picture
    before: bytes | None = None  # the state before its first slice, if it begins with an I picture


def _is_mark(data: bytes, at: int) -> bool:
    """Return whether FFmpeg's decoder finds the mark of an old TMPGEnc in the user data that begins at byte `at`."""
    return len(data) - at >= _MARK_BYTES and data.find(OLD_TMPGENC, at, at + _MARK_PLACES + len(OLD_TMPGENC) - 1) >= 0


def _headers_behind(data: bytes, at: int) -> Iterator[int]:
    """Yield the positions of units that are not slices, from byte `at` on."""
    if len(data) - at > _FEW_BYTES:
        rest = np.frombuffer(data, np.uint8)[at:]
        places = np.flatnonzero((rest[:-3] | rest[1:-2]) == 0)
        places = places[rest[places + 2] == 1]
        codes = rest[places + 3]
        yield from (places[(codes == PICTURE) | (codes > LAST_SLICE)] + at).tolist()
        return
    at = data.find(START_CODE, at)
    while 0 <= at < len(data) - 3:
        if not PICTURE < data[at + 3] <= LAST_SLICE:
            yield at
        at = data.find(START_CODE, at + 3)


class Mpeg12Scanner:
    """Scans packets of MPEG-1 or MPEG-2 video, one frame or one field each. Raises BitstreamError."""

    def __init__(self, configuration: bytes) -> None:
        self._sequence = _Sequence()
        self._layout: tuple[int, ...] = ()
        self._shapes: set[tuple[int, int, int]] = set()
        self._colours: set[bytes] = set()
        if configuration:
            self._read(configuration, _Packet())
        self._states = StateTable(self._sequence.state(whole=True))
        self._rows: list[list[int]] = []  # a packet each, in _COLUMNS
        # As FFmpeg's decoder keeps them: anchors it holds, the newest one's packet, the field it waits for.
        self._anchors, self._newest, self._first_field, self._closed_gop, self._sync = 0, -1, False, False, False
        self._low_delay = False
        self._blank = False  # the older anchor is a blank one, made up for the P field of a first I picture

    def feed(self, data: bytes) -> None:
        """Read the next packet in decode order. Raises BitstreamError for D pictures."""
        packet = _Packet()
        self._read(data, packet)
        whole = packet.slices and self._sequence.fits(data, field=packet.structure != FRAME)
        number = len(self._rows)
        if packet.coding_type == D_PICTURE:
            raise BitstreamError("d_picture", f"packet {number} is an MPEG-1 D picture")
        self._sync |= packet.sequence or packet.gop
        if packet.gop:
            self._closed_gop, self._first_field = packet.closed_gop, False
        ended = data == b"\0\0\1\xb7"
        renewed = ended or (bool(packet.coding_type) and self._renew())
        if renewed:
            self._forget(lost=not ended)
        continues = self._complete_field(packet)
        if continues:
            self._follow_first_field(packet, whole)
        else:
            self._note_picture(packet, whole)
        self._rows[-1][_RENEW] = renewed

    def _read(self, data: bytes, packet: _Packet) -> None:
        """Read all headers of a packet, including those after its slices, because decoders apply them too."""
        behind: Iterator[int] | None = None  # the headers behind the first slice
        at = data.find(START_CODE)
        while 0 <= at < len(data) - 4:
            code = data[at + 3]
            if packet.pictures and PICTURE < code <= LAST_SLICE:
                packet.slices = True
                if packet.coding_type == I_PICTURE:
                    packet.before = self._sequence.state(whole=not packet.sequence)
                behind = _headers_behind(data, at + 4)
                at = next(behind, -1)
                continue
            following = data.find(START_CODE, at + 4)
            if code == PICTURE:
                kind = data[at + 5] >> 3 & 7 if at + 5 < len(data) else 0
                packet.coding_type, packet.second_type = packet.coding_type or kind, kind if packet.coding_type else 0
                packet.pictures += 1
                packet.slices = False
            elif code >= USER_DATA:
                self._read_header(code, data[at : following if following >= 0 else len(data)], packet)
                if code == USER_DATA and not self._sequence.mark and _is_mark(data, at + 4):
                    self._sequence.mark, packet.changes = OLD_MARK, True
            if behind is None:
                at = following
            else:
                packet.slices |= 0 <= following < len(data) - 4 and PICTURE < data[following + 3] <= LAST_SLICE
                at = next(behind, -1)

    def _read_header(self, code: int, unit: bytes, packet: _Packet) -> None:
        sequence, body = self._sequence, unit[4:]
        if code == GOP and len(body) >= 4 and not packet.pictures:
            packet.gop, packet.closed_gop = True, bool(body[3] & 0x40)
        elif code == SEQUENCE and len(body) >= 8 and not packet.pictures:
            packet.sequence = True
            sequence.parts, sequence.matrices, sequence.header, sequence.extension = (unit,), (), body, b""
        elif code == EXTENSION and body:
            kind = body[0] >> 4
            if kind == PICTURE_EXT and len(body) >= 5 and packet.pictures and not packet.slices:
                packet.structure = body[2] & 3 or FRAME
            elif kind == MATRIX_EXT:
                packet.changes = True
                sequence.matrices = with_unit(sequence.matrices, unit)
            elif kind == DISPLAY_EXT:
                sequence.parts = with_unit(sequence.parts, unit)
                if packet.pictures:
                    self._colours.add(sequence.colour())
            elif kind == SEQUENCE_EXT and not packet.pictures:
                sequence.parts = with_unit(sequence.parts, unit)
                if len(body) >= 6:
                    sequence.extension = body

    def _renew(self) -> bool:
        """Record the shape of the next picture, and return whether it makes a decoder restart."""
        if not self._sequence.header:
            raise BitstreamError("parameter_sets", f"no sequence header before the picture of packet {len(self._rows)}")
        layout = self._sequence.layout()
        self._shapes.add(self._sequence.shape())
        self._colours.add(self._sequence.colour())
        if len(self._colours) > 1:  # FFmpeg's decoder keeps a colour that was stated once
            raise BitstreamError("colour_change", "the colour that the stream states changes")
        low_delay = self._sequence.low_delay()
        if self._rows and self._layout and low_delay != self._low_delay:
            raise BitstreamError("output_order", f"low_delay changes at packet {len(self._rows)}")
        self._low_delay = low_delay
        before, self._layout = self._layout, layout
        return before not in ((), layout)

    def _forget(self, *, lost: bool) -> None:
        """Drop the anchors as a decoder that restarts does; if `lost`, the anchor that it holds back is not output."""
        if lost and self._newest >= 0 and not self._rows[self._newest][_LOW_DELAY]:
            self._rows[self._newest][_SKIPPED] = True
        self._anchors, self._newest, self._blank = 0, -1, False

    def _complete_field(self, packet: _Packet) -> bool:
        """Return whether the packet is the second field of the picture before it."""
        if not packet.coding_type:
            return False
        if packet.structure == FRAME or packet.pictures > 1:
            self._first_field = False
            return False
        continues, self._first_field = self._first_field, not self._first_field
        return continues

    def _follow_first_field(self, packet: _Packet, whole: bool) -> None:
        first = self._rows[-1]
        kind = first[_KIND]
        if not whole or (packet.coding_type == B_PICTURE) != (kind == B_PICTURE):
            first[_DAMAGED] = True
        if packet.changes or packet.sequence:
            first[_DROPPABLE] = False
        self._blank |= kind == I_PICTURE and packet.coding_type == P_PICTURE and self._anchors == 1
        row = first.copy()
        row[_START], row[_CONTINUES], row[_STATE] = False, True, 0
        self._rows.append(row)

    def _note_picture(self, packet: _Packet, whole: bool) -> None:
        number, kind = len(self._rows), packet.coding_type
        decodable = kind == I_PICTURE or (kind == P_PICTURE and (self._anchors > 0 or self._sync))
        decodable |= kind == B_PICTURE and (self._anchors > 1 or self._closed_gop or self._blank)
        missing = (kind == P_PICTURE and not self._anchors) or (
            kind == B_PICTURE and self._anchors < 2 and not self._closed_gop
        )
        extra = packet.pictures > (1 if packet.structure == FRAME else 2)
        if decodable and kind != B_PICTURE:
            self._anchors, self._newest = min(self._anchors + 1, 2), number
            self._blank = kind == I_PICTURE and packet.second_type == P_PICTURE and self._anchors == 1
        if kind == I_PICTURE:
            self._sync = True
        self._rows.append(
            [
                kind,
                kind == I_PICTURE,
                kind == B_PICTURE and not (packet.sequence or packet.changes),
                not decodable,
                packet.structure != FRAME,
                False,
                # A B picture without its anchors is dropped by decoders, and nothing needs it.
                bool(kind)
                and (not whole or extra or (missing and (decodable or kind != B_PICTURE)) or kind > B_PICTURE),
                self._sequence.low_delay(),
                self._state(packet) if kind == I_PICTURE else 0,
                False,
            ]
        )

    def _state(self, packet: _Packet) -> int:
        """Return the number of the state that a decoder which starts at the next packet must be given first."""
        before = self._sequence.state(whole=not packet.sequence) if packet.before is None else packet.before
        return self._states.number(before) if self._rows else 0

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        n = len(self._rows)
        table = np.array(self._rows, np.int64).reshape(n, len(_COLUMNS))
        column = dict(zip(_COLUMNS, table.T, strict=True))
        kind = column["kind"]
        continues = column["continues"] != 0
        anchor = ((kind == I_PICTURE) | (kind == P_PICTURE)) & ~continues
        segment_start = last_where(column["start"] != 0)
        # Leading: B pictures between a start and the next anchor. A set closed_gop flag is not believed.
        leading = (kind == B_PICTURE) & (last_where(anchor) == segment_start) & (segment_start >= 0)
        start = np.where(column["start"] != 0, CLOSED_START, NO_START).astype(np.uint8)
        start[segment_start[leading]] = OPEN_START
        return pictures_of(
            start,
            non_reference=column["droppable"] != 0,
            leading=leading,
            skipped=column["skipped"] != 0,
            field_coded=column["field"] != 0,
            continues=continues,
            damaged=(column["damaged"] != 0) | ((segment_start < 0) & (column["skipped"] == 0)),
            order=output_order(anchor & (column["low_delay"] == 0), continues),
            period=np.cumsum(column["renew"] != 0),
            states=self._states.states,
            state=column["state"].astype(np.int32),
            varying_shape=len(self._shapes) > 1,
            chroma_format=next(iter(self._shapes))[2] if len(self._shapes) == 1 else None,
        )
