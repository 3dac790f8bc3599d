"""NAL units of H.264 and HEVC: splitting of packets, emulation prevention, SEI messages and parameter sets in force.

Packets are split one by one, or many at once into columns of units and of slice heads.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.base import HEADER_BYTES, BitstreamError

Span = tuple[int, int]

START_CODE = b"\0\0\1"


def split_length_prefixed(data: bytes, length_size: int) -> tuple[list[Span], bool]:
    """Return the (start, end) of each NAL unit in a length-prefixed packet (ISO/IEC 14496-15 5.3.3).

    Units with Annex B start codes inside are split there, as FFmpeg's decoders split them. Some cameras write a whole
    access unit behind one length.

    Returns:
        The (start, end) pairs, and whether some unit was split at start codes.

    Raises:
        ValueError: if the lengths do not tile the packet.
    """
    spans: list[Span] = []
    inner = False
    at, size = 0, len(data)
    while at < size:
        start = at + length_size
        end = start + int.from_bytes(data[at:start], "big")
        if start > size or end > size:
            raise ValueError(f"a NAL unit at byte {at} claims {end - start} bytes, {max(size - start, 0)} are left")
        if data.find(START_CODE, start, end) < 0:
            if end > start:
                spans.append((start, end))
        else:
            spans.extend(split_annex_b(data, start, end))
            inner = True
        at = end
    return spans, inner


def split_annex_b(data: bytes, start: int = 0, end: int | None = None) -> list[Span]:
    """Return the (start, end) of each NAL unit between start codes (H.264 Annex B), trailing zeros stripped.

    Bytes before the first start code are a unit too, if there are any.
    """
    end = len(data) if end is None else end
    spans: list[Span] = []
    while start < end:
        code = data.find(START_CODE, start, end)
        stop = end if code < 0 else code
        last = stop
        while last > start and data[last - 1] == 0:
            last -= 1
        if last > start:
            spans.append((start, last))
        if code < 0:
            break
        start = code + 3
    return spans


def unescape(nal: bytes) -> bytes:
    """Remove emulation prevention bytes (H.264 7.3.1): 00 00 03 becomes 00 00."""
    return nal.replace(b"\0\0\3", b"\0\0")


def join_length_prefixed(nals: Iterable[bytes], length_size: int) -> bytes:
    """Return the units as one length-prefixed byte string."""
    return b"".join(len(nal).to_bytes(length_size, "big") + nal for nal in nals)


def join_annex_b(nals: Iterable[bytes]) -> bytes:
    """Return the units as one byte string with four-byte start codes (H.264 B.1)."""
    return b"".join(b"\0" + START_CODE + nal for nal in nals)


Key = tuple[int, int]  # (nal_unit_type, id)
InForce = tuple[tuple[Key, bytes], ...]  # parameter sets by key, in an order in which a decoder accepts them

MAX_EPOCHS = 10_000  # a stream that changes the meaning of slice headers more often is an attack
MAX_LISTED = 1_000_000  # entries of all lists of sets in force; all lists are kept, so this limits the memory


class ParameterSets:
    """The parameter sets in force at each point of a stream: those of the configuration record, and those of packets.

    A decoder that starts in the middle must be in the state that the parameter sets before it made.

    Attributes:
        epochs: the facts that slice headers and picture sizes depend on, by key; one entry for each change.
    """

    def __init__(self) -> None:
        self._configured: dict[Key, bytes] = {}
        self._inband: dict[Key, bytes] = {}
        self.epochs: list[dict[Key, object]] = [{}]
        self.in_force: InForce = ()  # see `_beyond_the_record`
        self._listed = 0  # total length of all lists of sets in force
        self.differs = False  # some in-band set changes, or differs from the record's

    def configure(self, key: Key, nal: bytes, facts: object) -> None:
        """Put a set of the configuration record in force."""
        if key not in self._configured:
            self._configured[key] = nal.rstrip(b"\0")
            self.epochs[0][key] = facts

    def _beyond_the_record(self) -> InForce:
        """Return the in-band sets that differ from the configuration record's, and those that refer to such a set.

        Decoders drop picture parameter sets when a new sequence parameter set replaces theirs (FFmpeg's HEVC decoder
        does).
        """
        changed = [key for key, nal in self._inband.items() if self._configured.get(key) != nal]
        least = min((kind for kind, _ in changed), default=None)
        return tuple(
            item
            for item in sorted(self._inband.items())
            if least is not None and (item[0] in changed or item[0][0] > least)
        )

    def knows(self, key: Key) -> bool:
        """Return whether a set of this kind and id is in force."""
        return key in self._inband or key in self._configured

    def meet(self, key: Key, nal: bytes, facts: object) -> bool:
        """Put a set that a packet carries in force, and return whether it changes the sets in force.

        Raises:
            BitstreamError: if the sets change too often.
        """
        nal = nal.rstrip(b"\0")
        before = self._inband.get(key, self._configured.get(key))
        self.differs |= before not in (None, nal)
        self.renew({key: facts})
        if self._inband.get(key) == nal:
            return False
        self._inband[key] = nal
        self.in_force = self._beyond_the_record()
        self._listed += len(self.in_force)
        if self._listed > MAX_LISTED:
            raise BitstreamError("parameter_sets", "too many parameter sets change too often")
        return before != nal

    def renew(self, facts: Mapping[Key, object]) -> None:
        """Update the facts that are in force from here on. Raises BitstreamError if they change too often."""
        if any(self.epochs[-1].get(key) != value for key, value in facts.items()):
            if len(self.epochs) >= MAX_EPOCHS:
                raise BitstreamError("parameter_sets", f"parameter sets change more than {MAX_EPOCHS} times")
            self.epochs.append({**self.epochs[-1], **facts})


FILM_GRAIN = 19  # payloadType (H.264 D.1.1, HEVC D.2.1); some of FFmpeg's decoders keep drawing the grain


def sei_payloads(body: bytes) -> list[tuple[int, bytes]]:
    """Return the (payloadType, payload) pairs of an SEI NAL unit without its header (H.264 7.3.2.3.1, HEVC 7.3.5)."""
    rbsp, at = unescape(body), 0
    found: list[tuple[int, bytes]] = []
    while at + 2 <= len(rbsp):
        numbers = []
        for _ in range(2):
            value = 0
            while at < len(rbsp) and rbsp[at] == 255:
                value, at = value + 255, at + 1
            if at >= len(rbsp):
                return found
            numbers.append(value + rbsp[at])
            at += 1
        kind, size = numbers
        found.append((kind, rbsp[at : at + size]))
        at += size
    return found


def is_other_message(head: NDArray[np.uint8], size: NDArray[np.int64], kinds: Collection[int]) -> NDArray[np.bool_]:
    """Return bool [units]: SEI units that consist of a single message whose type is not among `kinds`.

    Args:
        head: uint8 [units, 2], the type and the size of the first message: the bytes behind the unit's header.
        size: int64 [units], number of bytes behind the unit's header.
        kinds: payload types that are read.
    """
    kind, message = head[:, 0].astype(np.int64), head[:, 1].astype(np.int64)
    other: NDArray[np.bool_] = ~np.isin(kind, list(kinds)) & (kind < 255) & (message < 255)
    # A second message takes two bytes or more. Emulation prevention only shortens the space that is left for it.
    return other & (size < 2 + message + 2)


def heads_at(data: NDArray[np.uint8], at: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    """Return uint8 [places, count]: the bytes of `data` from each place on. Past the end, the last byte repeats."""
    heads: NDArray[np.uint8] = data[np.minimum(at[:, None] + np.arange(count), len(data) - 1)]
    return heads


MAX_ROUNDS = 64  # packets with more units are rare, and are read one by one
MIN_IN_STEP = 8  # for fewer packets, columns cost more than they save
BLOCK_BYTES = 1 << 16  # a block fits into the processor's cache during all passes
_KEPT = np.tri(HEADER_BYTES + 1, HEADER_BYTES, -1, dtype=np.uint8) * np.uint8(255)  # row k keeps the first k bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The NAL units of n packets, one row per unit in the order of the bytes, and the packets that could not be split.

    Attributes:
        packet: int64 [units]; a damaged packet has no units.
        start: int64 [units], where the unit begins.
        end: int64 [units], where it ends.
        damaged: bool [n], packets whose lengths do not tile the packet.
        unread: bool [n], packets with many units or with start codes inside units, which must be read one by one.
        escapes: int64 [found], where emulation prevention (00 00 03) stands in the bytes, ascending.
    """

    packet: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    damaged: NDArray[np.bool_]
    unread: NDArray[np.bool_]
    escapes: NDArray[np.int64]


def split_nal_units(
    data: NDArray[np.uint8], offset: NDArray[np.int64], size: NDArray[np.int64], length_size: int
) -> Units:
    """Return the NAL units of packets (ISO/IEC 14496-15 5.3.3), as `split_length_prefixed` does for one packet.

    Args:
        data: uint8 [bytes], which holds the packets.
        offset: int64 [n], where each packet begins in `data`, ascending and without overlap.
        size: int64 [n], size of each packet in bytes.
        length_size: number of bytes of each NAL unit's length field.
    """
    n = len(offset)
    damaged, unread = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    packet, at, end = np.arange(n), offset, offset + size
    found: list[tuple[NDArray[np.int64], ...]] = []
    for _ in range(MAX_ROUNDS):  # in each round, the next unit of every packet
        going = at < end
        if not going.all():
            packet, at, end = packet[going], at[going], end[going]
        if len(packet) < MIN_IN_STEP:
            break
        start = at + length_size
        stop = start + _lengths(data, at, length_size)
        fits = (start <= end) & (stop <= end)
        if not fits.all():
            damaged[packet[~fits]] = True
            packet, start, stop, end = packet[fits], start[fits], stop[fits], end[fits]
        found.append((packet, start, stop))
        at = stop
    unread[packet[at < end]] = True
    packet, start, stop = _in_order(found, damaged)
    codes = find_codes(data[offset[0] : offset[-1] + size[-1]]) + offset[0] if n else np.zeros(0, np.int64)
    is_escape = data[codes + 2] == 3
    inside = _inside(codes[~is_escape], start, stop)
    unread[packet[inside]] = True
    return Units(
        packet=packet, start=start, end=stop, damaged=damaged, unread=unread & ~damaged, escapes=codes[is_escape]
    )


def _in_order(rounds: list[tuple[NDArray[np.int64], ...]], damaged: NDArray[np.bool_]) -> tuple[NDArray[np.int64], ...]:
    """Return the (packet, start, end) of units in the order of the bytes, without empty units and damaged packets."""
    if not rounds:
        return (np.zeros(0, np.int64),) * 3
    packet, start, end = columns = [np.concatenate(parts) for parts in zip(*rounds, strict=True)]
    keep = (end > start) & ~damaged[packet]
    order = np.argsort(start, kind="stable")
    order = order[keep[order]]
    return tuple(column[order] for column in columns)


def _lengths(data: NDArray[np.uint8], at: NDArray[np.int64], length_size: int) -> NDArray[np.int64]:
    """Return int64 [n]: the big-endian numbers of `length_size` bytes at `at`. Past the end, values are arbitrary."""
    if len(data) < length_size:
        return np.zeros(len(at), np.int64)
    padded = np.zeros((len(at), 8), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(data, length_size)
    padded[:, 8 - length_size :] = windows[np.minimum(at, len(windows) - 1)]
    return padded.view(">i8")[:, 0].astype(np.int64)


def _inside(codes: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of the units, int64 [found], that hold a whole code of three bytes."""
    unit = np.searchsorted(start, codes, side="right") - 1
    whole = unit >= 0
    whole[whole] = codes[whole] + 3 <= end[unit[whole]]
    return unit[whole]


def find_codes(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return int64 [found], ascending: where 00 00 01 and 00 00 03 stand in uint8 [bytes].

    The first two bytes of a code, 00 00, or its last two, 00 01 or 00 03, stand at an even place. Searching pairs takes
    0.6 of the time that searching every byte takes (1.2 MB of random bytes).
    """
    pairs = np.ascontiguousarray(data[: len(data) & ~1]).view("<u2")
    blocks = range(0, len(pairs), BLOCK_BYTES // 2)
    rare = [np.flatnonzero((pairs[first : first + BLOCK_BYTES // 2] & 0xFCFF) == 0) + first for first in blocks]
    at = 2 * np.concatenate([np.zeros(0, np.int64), *rare])
    second = data[at + 1]
    begins = at[(second == 0) & (at + 2 < len(data))]
    begins = begins[data[begins + 2] & 0xFD == 1]
    ends = at[(second & 0xFD == 1) & (at > 0)] - 1
    return np.sort(np.concatenate([begins, ends[data[ends] == 0]]))


def heads_of(
    data: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64], escapes: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the first `HEADER_BYTES` bytes of each span without emulation prevention, and their number.

    Args:
        data: uint8 [bytes].
        start: int64 [n], where spans begin in `data`, ascending.
        end: int64 [n], where they end, within `data`.
        escapes: as in `Units`.

    Returns:
        uint8 [n, HEADER_BYTES], zero-padded; int64 [n], the number of bytes.
    """
    length = np.clip(end - start, 0, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        data = np.concatenate([data, np.zeros(HEADER_BYTES, np.uint8)])
    last = len(data) - HEADER_BYTES
    heads = np.lib.stride_tricks.sliding_window_view(data, HEADER_BYTES)[np.minimum(start, last)]
    for row in np.flatnonzero(start > last).tolist():
        heads[row, : length[row]] = data[start[row] : start[row] + length[row]]
    heads &= _KEPT[length]
    for row in np.unique(_inside(escapes, start, start + length)).tolist():
        head = unescape(heads[row, : length[row]].tobytes())
        heads[row] = np.frombuffer(head.ljust(HEADER_BYTES, b"\0"), np.uint8)
        length[row] = len(head)
    return heads, length


def distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values of keys, and the index of each key's value. Fast for keys that seldom change.

    Args:
        keys: int64 [n].

    Returns:
        The values; int64 [n], which of them each key is.
    """
    begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    values, which = np.unique(keys[begins], return_inverse=True)
    return values, np.repeat(which, np.diff(begins, append=len(keys)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceColumns:
    """Slices in decode order.

    Attributes:
        packet: int64 [slices].
        header: int64 [slices], header of the NAL unit.
        epoch: int64 [slices], epoch of parameter sets.
        heads: uint8 [slices, HEADER_BYTES], the bytes after the NAL unit's header, zero-padded.
        length: int64 [slices], length of the head.
    """

    packet: NDArray[np.int64]
    header: NDArray[np.int64]
    epoch: NDArray[np.int64]
    heads: NDArray[np.uint8]
    length: NDArray[np.int64]

    def head(self, row: int) -> bytes:
        """Return the bytes of one slice's head, without padding."""
        return self.heads[row, : self.length[row]].tobytes()


@dataclass(slots=True)
class SliceRows:
    """A collector of slices, one by one or many at once. All slices of a packet come in the same way."""

    _rows: list[tuple[int, int, int]] = field(default_factory=list)  # packet, header, epoch
    _heads: list[bytes] = field(default_factory=list)
    _parts: list[SliceColumns] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._rows) + sum(len(part.packet) for part in self._parts)

    def append(self, packet: int, header: int, epoch: int, head: bytes) -> None:
        """Add a slice. head: at most `HEADER_BYTES` bytes."""
        self._rows.append((packet, header, epoch))
        self._heads.append(head)

    def extend(self, part: SliceColumns) -> None:
        """Add slices."""
        self._parts.append(part)

    def columns(self) -> SliceColumns:
        """Return all slices in the order of their packets."""
        rows = np.array(self._rows, np.int64).reshape(-1, 3)  # without rows, too
        padded = b"".join(head.ljust(HEADER_BYTES, b"\0") for head in self._heads)
        single = SliceColumns(
            packet=rows[:, 0],
            header=rows[:, 1],
            epoch=rows[:, 2],
            heads=np.frombuffer(padded, np.uint8).reshape(-1, HEADER_BYTES),
            length=np.array([len(head) for head in self._heads], np.int64),
        )
        if not self._parts:
            return single
        parts = [single, *self._parts]
        order = np.argsort(np.concatenate([part.packet for part in parts]), kind="stable")
        names = SliceColumns.__slots__
        return SliceColumns(**{name: np.concatenate([getattr(part, name) for part in parts])[order] for name in names})
