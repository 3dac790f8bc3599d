"""The scanner of AV1. It finds random access points, reference slots, and frames that no other frame needs.

Section numbers refer to the AV1 bitstream specification, version 1.0.0 with errata 1.
"""

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream import base
from framedex.indexer.bitstream.av1_headers import (
    ALL_FRAMES,
    INTRA_FRAMES,
    KEY_FRAME,
    FrameHeaders,
    SequenceHeader,
    is_within,
    parse_frame_headers,
    parse_sequence_header,
)

# Values of obu_type (6.2.2).
SEQUENCE_HEADER, FRAME_HEADER, TILE_GROUP, FRAME, REDUNDANT_FRAME_HEADER, TILE_LIST = 1, 3, 4, 6, 7, 8
RESERVED = frozenset({0, *range(9, 15)})  # reserved values of obu_type, which decoders ignore
# The first byte of an av1C box, and the number of bytes before its configOBUs (AV1-ISOBMFF 2.3.3).
CONFIGURATION_MARKER, CONFIGURATION_BYTES = b"\x81", 4
MAX_SIZE_BYTES = 8  # maximum number of bytes of a leb128() (4.10.5)
FORBIDDEN, EXTENDED, SIZED = 0x80, 0x04, 0x02  # bits of the first byte of an OBU header (5.3.2)

MAX_SEQUENCES = 1000  # maximum number of different sequence headers of a stream

Obu = tuple[int, int, int, int]


def split_obus(data: bytes) -> list[Obu]:
    """Return the OBUs in data of the low-overhead bitstream format (5.3).

    Returns:
        (obu_type, OBU extension header or -1, start of the payload, end of the payload) for each OBU. An OBU without a
        size field extends to the end of the data.

    Raises:
        ValueError: if the OBUs do not fill the data exactly.
    """
    found: list[Obu] = []
    at, size = 0, len(data)
    try:
        while at < size:
            header, extension, start = data[at], -1, at + 1
            if header & EXTENDED:
                extension, start = data[start], start + 1
            end = size
            if header & SIZED:
                length = data[start]
                start += 1
                if length > 127:
                    length, start = _leb128(data, start - 1)
                end = start + length
            if end > size or header & FORBIDDEN:
                raise ValueError(f"the OBU at byte {at} claims {end - start} bytes, but {size - start} are left")
            found.append((header >> 3 & 15, extension, start, end))
            at = end
    except IndexError:
        raise ValueError(f"the OBU at byte {at} ends within its header") from None
    return found


def _leb128(data: bytes, at: int) -> tuple[int, int]:
    """Return the leb128() number at position `at` and the position after it (4.10.5).

    Raises:
        ValueError: if the number has more than MAX_SIZE_BYTES bytes.
    """
    value = 0
    for number in range(MAX_SIZE_BYTES):
        value |= (data[at + number] & 127) << 7 * number
        if data[at + number] < 128:
            return value, at + number + 1
    raise ValueError(f"the size of an OBU at byte {at} has more than {MAX_SIZE_BYTES} bytes")


def sequence_header_obu(payload: bytes) -> bytes:
    """Return a sequence header OBU with a size field, given its payload."""
    size, field = len(payload), bytearray()
    while size > 127:
        field.append(size & 127 | 128)
        size >>= 7
    return bytes([SEQUENCE_HEADER << 3 | SIZED, *field, size]) + payload


def packet_slots(
    packet: NDArray[np.int64], headers: FrameHeaders, start: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], bool]:
    """Return the reference slots that packets use and refresh, and whether a frame seems to be missing.

    The slots are int32 [packets], as bits (see `base.SLOTS_KNOWN`). A frame seems to be missing if two frames are
    output one after the other, but their order hints are not consecutive. Either a packet was lost, or the encoder left
    out a frame.

    A frame header that shows an existing key frame refreshes all slots. A frame header that shows any other existing
    frame refreshes no slot (7.21). The slots of a packet count as known only if order hints show that no frame is
    missing since the random access point. Even then, some frame may not be decodable.

    Args:
        packet: int64 [frames], the number of the packet that contains the frame, ascending.
        headers: the headers of the frames.
        start: bool [packets], whether the packet is a random access point.
    """
    packets = len(start)
    # For each slot, whether it holds a key frame (None if unknown), and the order hint of its frame.
    slots: list[tuple[bool | None, int]] = [(None, 0)] * base.REFERENCE_SLOTS
    used, refreshed, known = [0] * packets, [0] * packets, [True] * packets
    is_start, shown_hint, complete, entered, gap = start.tolist(), 0, False, -1, False
    names = ("uses", "refresh", "frame_type", "existing", "listed", "shown", "hint", "hint_bits")
    columns = [packet.tolist(), *(getattr(headers, name).tolist() for name in names)]
    for at, uses, refresh, kind, existing, listed, shown, hint, bits in zip(*columns, strict=True):
        frame: tuple[bool | None, int] = kind == KEY_FRAME, hint
        if existing:
            frame = slots[uses.bit_length() - 1]
            refresh = ALL_FRAMES if frame[0] else 0
        if is_start[at] and entered != at:
            complete, entered, shown_hint = bits > 0, at, frame[1]
        elif shown:
            follows = frame[1] == (shown_hint + 1) % (1 << bits)
            complete &= bits > 0 and follows
            gap |= bits > 0 and not follows
            shown_hint = frame[1]
        known[at] &= complete and listed and frame[0] is not None
        used[at] |= uses & ~refreshed[at]
        refreshed[at] |= refresh
        slots = [frame if refresh >> slot & 1 else before for slot, before in enumerate(slots)]
    found = np.array(used, np.int32) | np.array(refreshed, np.int32) << base.REFERENCE_SLOTS
    return np.where(known, found | base.SLOTS_KNOWN, 0).astype(np.int32), gap


class Av1Scanner:
    """A scanner of AV1 packets, as `base.Scanner` describes. Each packet is a temporal unit.

    It collects sequence headers and the first bytes of frame headers.

    Args:
        configuration: the content of an av1C box, a sequence of OBUs, or b"". Its sequence headers are only compared
            with those of packets. libavcodec's dav1d wrapper does not pass the configuration to the decoder, so packets
            have to carry sequence headers.

    Raises:
        BitstreamError: if the configuration cannot be parsed.
    """

    def __init__(self, configuration: bytes) -> None:
        self._packets = 0
        self._damaged: set[int] = set()
        self._reserved = False  # whether some packet has an OBU of a reserved type, or bytes that look like such an OBU
        self._redundant: set[int] = set()  # packets with redundant frame headers, which decoders may read as new frames
        self._payloads: dict[bytes, int] = {}
        self._sequences: list[SequenceHeader] = []
        self._current = -1
        self._operating_point = 0
        self._carriers: list[int] = []  # packets with a sequence header before their first frame
        # (packet with a sequence header that differs from the current one, whether it precedes the packet's frames)
        self._changes: list[tuple[int, bool]] = []
        self._frames: list[tuple[int, int, int]] = []  # (packet, number of the sequence header, OBU extension header)
        self._frame_head: list[bytes] = []
        self._frame_tiled: list[bool] = []
        if configuration[:1] == CONFIGURATION_MARKER:
            configuration = configuration[CONFIGURATION_BYTES:]
        try:
            for kind, _, start, end in split_obus(configuration):
                if kind == SEQUENCE_HEADER:
                    self._sequence_number(configuration[start:end])
        except ValueError as error:
            raise base.BitstreamError("parameter_sets", f"configuration record: {error}") from error
        self._configured = len(self._sequences)

    def _sequence_number(self, payload: bytes) -> int:
        """Return the number assigned to a sequence header. Parse the header if it is new. Raises ValueError."""
        number = self._payloads.get(payload)
        if number is None:
            if len(self._sequences) >= MAX_SEQUENCES:
                raise base.BitstreamError("parameter_sets", f"there are more than {MAX_SEQUENCES} sequence headers")
            sequence = parse_sequence_header(payload)
            number = self._payloads[payload] = len(self._sequences)
            self._sequences.append(sequence)
        return number

    def feed(self, data: bytes) -> None:
        number = self._packets
        self._packets += 1
        if not data:
            raise base.BitstreamError("zero_size", f"packet {number} is empty")
        try:
            units = split_obus(data)
        except ValueError:
            self._damaged.add(number)
            return
        frames = len(self._frames)
        for kind, extension, start, end in units:
            if kind in (FRAME, FRAME_HEADER):
                if self._is_dropped(extension):
                    continue
                if self._current < 0:
                    raise base.BitstreamError("parameter_sets", f"packet {number} precedes all sequence headers")
                self._frames.append((number, self._current, extension))
                self._frame_head.append(data[start : min(end, start + base.HEADER_BYTES)])
                self._frame_tiled.append(kind == FRAME)
            elif kind == TILE_GROUP and not self._is_dropped(extension):
                if len(self._frames) == frames:
                    raise base.BitstreamError("packing", f"packet {number} holds tiles of a frame of an earlier packet")
                self._frame_tiled[-1] = True
            elif kind == SEQUENCE_HEADER:
                self._on_sequence_header(data[start:end], number, len(self._frames) == frames)
            elif kind == REDUNDANT_FRAME_HEADER:
                self._redundant.add(number)
            elif kind in RESERVED:
                self._reserved = True
            elif kind == TILE_LIST:
                raise base.BitstreamError("packing", f"packet {number} holds a tile list (large scale tile coding)")

    def _is_dropped(self, extension: int) -> bool:
        """Return whether decoders drop an OBU because its layers do not belong to operating point 0 (5.3.1)."""
        return extension >= 0 and self._operating_point != 0 and not is_within(self._operating_point, extension)

    def _on_sequence_header(self, payload: bytes, packet: int, before_frames: bool) -> None:
        try:
            number = self._sequence_number(payload)
        except base.BitstreamError:
            raise
        except ValueError:
            self._damaged.add(packet)
            return
        if before_frames:
            self._carriers.append(packet)
        if self._current not in (-1, number):
            self._changes.append((packet, before_frames))
        self._current, self._operating_point = number, self._sequences[number].operating_point

    def finish(self) -> base.Pictures:
        n = self._packets
        packet, sequence, extension = np.array(self._frames, np.int64).reshape(-1, 3).T
        used = [self._sequences[number] for number in np.unique(sequence).tolist()]
        if any(header.operating_point >> 8 > 1 for header in used):  # operating point 0 has several layers (6.4.1)
            raise base.BitstreamError("packing", "temporal units hold several spatial layers")
        headers = self._frame_headers(sequence, extension)
        damaged = np.isin(np.arange(n), list(self._damaged))
        # A frame is broken if it has no tiles, or if its header has more bytes than were kept or than the packet has.
        kept_bytes = np.array([len(head) for head in self._frame_head], np.int64)
        broken = (headers.length > 8 * kept_bytes) | ~(headers.existing | np.array(self._frame_tiled, np.bool_))
        damaged |= np.bincount(packet[broken], minlength=n) > 0
        shown = np.bincount(packet[headers.shown], minlength=n)
        base.check_shown(shown, damaged)
        first = np.diff(packet, prepend=-1) != 0
        fresh = first & headers.shown & ~headers.existing & (headers.frame_type == KEY_FRAME)
        start = (np.bincount(packet[fresh], minlength=n) > 0) & ~damaged
        # The sequence header may change only before the first frame of a random access point (7.5).
        for number, before_frames in self._changes:
            if not (before_frames and start[number]) and not damaged[number]:
                raise base.BitstreamError(
                    "parameter_sets", f"the sequence header changes within a coded video sequence, at packet {number}"
                )
        carries = np.isin(np.arange(n), self._carriers)
        kept = np.bincount(packet[headers.refresh != 0], minlength=n) > 0
        orphan = ~np.logical_or.accumulate(start)
        intra = np.bincount(packet[np.isin(headers.frame_type, INTRA_FRAMES) & ~headers.existing], minlength=n) > 0
        waiting = ~np.logical_or.accumulate(intra)  # decoders output nothing before the first intra frame
        unclear = damaged | np.isin(np.arange(n), list(self._redundant))
        # The random access points without a sequence header get the header of their first frame as their state.
        wanted = first & (start & ~carries)[packet]
        numbers, place = np.unique(sequence[wanted], return_inverse=True)
        state = np.zeros(n, np.int32)
        state[packet[wanted]] = place + 1
        payloads = list(self._payloads)
        states = (b"", *(sequence_header_obu(payloads[number]) for number in numbers.tolist()))
        slots, gap = packet_slots(packet, headers, start)
        return base.pictures_of(
            np.where(start, base.CLOSED_START, base.NO_START).astype(np.uint8),
            non_reference=(shown == 1) & ~kept & ~carries & ~damaged,
            skipped=((shown == 0) & ~damaged) | waiting,
            damaged=damaged | orphan,
            states=states,
            state=state,
            inband_sets=len(self._sequences) > self._configured,
            varying_shape=len({header.shape for header in used}) > 1 or bool(headers.resized.any()),
            chroma_format=used[0].chroma_format if used else None,
            slots=np.where(unclear, 0, slots).astype(np.int32),
            doubtful=gap or self._reserved,
        )

    def _frame_headers(self, sequence: NDArray[np.int64], extension: NDArray[np.int64]) -> FrameHeaders:
        """Return the fields of all frame headers.

        Args:
            sequence: int64 [frames], the number of the frame's sequence header.
            extension: int64 [frames], the OBU extension header, or -1 if there is none.
        """
        numbers = np.unique(sequence).tolist()
        rows = [np.flatnonzero(sequence == number) for number in numbers]
        parts = [
            parse_frame_headers(
                [self._frame_head[row] for row in some.tolist()], extension[some], self._sequences[number]
            )
            for number, some in zip(numbers, rows, strict=True)
        ]
        return FrameHeaders.joined(parts, rows)
