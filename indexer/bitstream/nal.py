"""NAL units: splitting packets and configuration records, emulation prevention, parameter sets in force."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Span = tuple[int, int]

START_CODE = b"\0\0\1"


def split_length_prefixed(data: bytes, length_size: int) -> tuple[list[Span], bool]:
    """Return the (start, end) of each NAL unit in a length-prefixed packet (ISO/IEC 14496-15 5.3.3).

    Units that hold Annex-B start codes inside (some cameras wrap a whole access unit in one prefix) are split
    there, as FFmpeg's decoders do; the second value says whether that was needed. Raises ValueError where the
    lengths do not tile the packet.
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

    What stands before the first start code counts as a unit of its own when it is not empty.
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


Key = tuple[int, int]  # (nal_unit_type, id)


@dataclass(slots=True)
class ParameterSets:
    """Parameter sets by (NAL type, id): what the configuration record holds, what packets carry, whether they agree.

    A decoder that starts in the middle must be in the state that the parameter sets before it made. It is when a set
    keeps its content, or when every start point carries it anew. Sets that only some packets carry go into the
    preamble. `facts` are what slice headers and picture sizes depend on; those must never change.
    """

    configured: dict[Key, bytes] = field(default_factory=dict)
    inband: dict[Key, bytes] = field(default_factory=dict)
    facts: dict[Key, object] = field(default_factory=dict)
    carriers: dict[Key, list[int]] = field(default_factory=dict)
    rewritten: dict[Key, int] = field(default_factory=dict)
    resized: dict[Key, int] = field(default_factory=dict)

    def configure(self, key: Key, nal: bytes, facts: object) -> None:
        """Note a set of the configuration record."""
        self.configured.setdefault(key, nal.rstrip(b"\0"))
        self.facts.setdefault(key, facts)

    def meet(self, key: Key, nal: bytes, facts: object, packet: int) -> None:
        """Note a set that a packet carries."""
        nal = nal.rstrip(b"\0")
        first = key not in self.inband
        if self.inband.setdefault(key, nal) != nal:
            self.rewritten.setdefault(key, packet)
        if first:
            self.facts[key] = facts  # packets are decoded with in-band sets, which replace those of the record
        elif self.facts[key] != facts:
            self.resized.setdefault(key, packet)
        self.carriers.setdefault(key, []).append(packet)

    def changed(self, starts: Iterable[int]) -> tuple[Key, int] | None:
        """Return the first (key, packet) at which a set changes in a way that some start would not see, or None."""
        every = set(starts)
        for key, packet in sorted(self.resized.items(), key=lambda item: item[1]):
            return key, packet
        for key in self.differing():
            if not every <= set(self.carriers[key]):
                return key, self.rewritten.get(key, self.carriers[key][0])
        return None

    def differing(self) -> list[Key]:
        """Return the in-band sets whose content changes or differs from the record's."""
        return [
            key for key, nal in self.inband.items() if key in self.rewritten or self.configured.get(key, nal) != nal
        ]

    def missing_at(self, starts: Iterable[int]) -> list[bytes]:
        """Return the in-band sets that a decoder starting late would lack: not configured, not at every start."""
        every = set(starts)
        return [
            nal
            for key, nal in sorted(self.inband.items())
            if key not in self.configured and not every <= set(self.carriers[key])
        ]
