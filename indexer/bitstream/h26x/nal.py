"""NAL units: splitting packets and configuration records, emulation prevention, parameter sets in force."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from framedex.indexer.bitstream.base.pictures import BitstreamError

Span = tuple[int, int]

START_CODE = b"\0\0\1"


def split_length_prefixed(data: bytes, length_size: int) -> tuple[list[Span], bool]:
    """Return the (start, end) of each NAL unit in a length-prefixed packet (ISO/IEC 14496-15 5.3.3).

    Units that hold Annex-B start codes inside (some cameras wrap a whole access unit in one prefix) are split there,
    as FFmpeg's decoders do.

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

MOST_EPOCHS = 10_000  # a stream that changes what slice headers mean more often is an attack
MOST_LISTED = 1_000_000  # entries of all the lists of sets in force, which are kept


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
        self._listed = 0  # sets in all that were ever in force together
        self.differs = False  # some in-band set changes, or differs from the record's

    def configure(self, key: Key, nal: bytes, facts: object) -> None:
        """Note a set of the configuration record."""
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
        """Note a set that a packet carries; return whether it changes the sets in force.

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
        if self._listed > MOST_LISTED:
            raise BitstreamError("parameter_sets", "too many parameter sets change too often")
        return before != nal

    def renew(self, facts: Mapping[Key, object]) -> None:
        """Update the facts that are in force from here on. Raises BitstreamError if they change too often."""
        if any(self.epochs[-1].get(key) != value for key, value in facts.items()):
            if len(self.epochs) >= MOST_EPOCHS:
                raise BitstreamError("parameter_sets", f"parameter sets change more than {MOST_EPOCHS} times")
            self.epochs.append({**self.epochs[-1], **facts})
