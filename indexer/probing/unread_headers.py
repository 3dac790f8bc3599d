"""Reads the packet headers that depth `tables` skips, as far as a plan needs them.

Headers are read from start points to last targets, and further until these are certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.parts.packets import Packets
from framedex.indexer.probing.packet_headers import check_promises, ends_sequence, judge, scan
from framedex.indexer.timeline import LEADING, START, UNSHOWN
from framedex.storage.reader import ObjectReader, Read

MOST_BYTES = 16 << 20  # of GOPs that are read together


class Headed(Protocol):
    """What reading headers of a medium needs to know of it: columns of `videos`, and where it lies."""

    @property
    def path(self) -> str: ...
    @property
    def codec(self) -> str: ...
    @property
    def extradata(self) -> bytes | None: ...
    @property
    def states(self) -> Sequence[bytes]: ...
    @property
    def inband_parameter_sets(self) -> bool: ...
    @property
    def reorder_depth(self) -> int: ...


def settled(pts: NDArray[np.int64], targets: NDArray[np.int64], reorder_depth: int) -> NDArray[np.int64]:
    """Return where reading may stop for each target, so that its place in output order is certain.

    The timestamp of a picture that is decoded after a target and output before it may be wrong. Of the pictures decoded
    before such a picture, at most reorder_depth are output after it (H.264 E.2.1, HEVC 7.4.3.2.1 num_reorder), and the
    target is one of them. So such a picture cannot come after reorder_depth others that are presented after the target.

    Args:
        pts: int64 [packets].

    Returns:
        int64 [targets], the packet after the last one to read.
    """
    ends = np.full(len(targets), len(pts), np.int64)
    left, width = np.arange(len(targets)), reorder_depth + 16
    while len(left):
        wanted = targets[left]
        after = wanted[:, None] + np.arange(width + 1)
        later = (after >= len(pts)) | (pts[np.minimum(after, len(pts) - 1)] > pts[wanted][:, None])
        enough = np.cumsum(later, axis=1) >= reorder_depth
        ends[left] = np.minimum(wanted + np.argmax(enough, axis=1) + 1, len(pts))
        left, width = left[~enough[:, -1]], width * 4
    return ends


class UnreadHeaders:
    """The packets of one medium, whose flags are read when they are needed.

    Args:
        packets: As indexed.
        medium: What the index says of it.
        read: (offset, length) → bytes of the source.
    """

    def __init__(self, packets: Packets, medium: Headed, read: Read) -> None:
        self._medium = medium
        self.packets = packets
        self._starts = np.flatnonzero(packets.flags & START)
        self._read = read

    def read(self, targets: NDArray[np.int64]) -> bool:
        """Read everything that planning needs to know about some packets; return whether anything was new.

        A leading picture needs the start point before its own. That it is a leading picture is known only after it was
        read.
        """
        new = self._fill(targets, starts_back=1)
        leading = targets[(self.packets.flags[targets] & LEADING) != 0]
        return self._fill(leading, starts_back=2) or new

    def read_between(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
        """Read all packets of some stretches that begin at start points; return whether anything was new."""
        starts = self._starts
        new = False
        for first, last in zip(begin.tolist(), end.tolist(), strict=True):
            inside = starts[(starts > first) & (starts <= last)]
            new |= self._fill(np.append(inside - 1, last), starts_back=1)
        return new

    def _fill(self, targets: NDArray[np.int64], *, starts_back: int) -> bool:
        """Read packets up to where each target is certain; return whether anything was new.

        Args:
            starts_back: How many start points before the target reading begins.
        """
        packets = self.packets
        starts = self._starts
        number = np.maximum(np.searchsorted(starts, targets, side="right") - starts_back, 0)
        last = np.full(len(starts), -1)
        np.maximum.at(last, number, settled(packets.pts, targets, self._medium.reorder_depth) - 1)
        unread = [
            (gop, int(starts[gop]), int(last[gop]) + 1)
            for gop in np.unique(number).tolist()
            if not packets.read[starts[gop] : last[gop] + 1].all()
        ]
        if not unread:
            return False
        self.packets = replace(packets, flags=packets.flags.copy(), read=packets.read.copy())
        for first, end in self._joined(unread):
            self._look(first, end, at_first_start=first == starts[0])
        self._starts = np.flatnonzero(self.packets.flags & START)
        if isinstance(self._read, ObjectReader):
            self._read.forget()  # the flags hold what was read
        return True

    def _joined(self, unread: list[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
        """Yield (first, end) packets of (GOP, first, end), joined where GOPs follow each other, up to MOST_BYTES.

        The rest of a GOP between two stretches is read as well, which costs less than two reads.
        """
        offset = self.packets.offset
        assert offset is not None  # sample tables always say where samples lie
        before, begin, until = unread[0]
        for gop, first, end in unread[1:]:
            if gop > before + 1 or offset[end - 1] - offset[begin] > MOST_BYTES:
                yield begin, until
                begin = first
            before, until = gop, max(until, end)
        yield begin, until

    def _check_ends(self, first: int) -> None:
        """Raise ValueError if a sequence ends before a start point that was not read for the index."""
        packets = self.packets
        assert packets.offset is not None  # sample tables always say where samples lie
        end = int(packets.offset[first - 1] + packets.size[first - 1])
        if first and ends_sequence(self._read, self._medium.codec, self._medium.extradata or b"", end):
            raise ValueError(f"a sequence ends before packet {first}")

    def _look(self, first: int, end: int, *, at_first_start: bool) -> None:
        packets, part = self.packets, slice(first, end)
        assert packets.offset is not None  # sample tables always say where samples lie
        try:
            extradata = self._medium.extradata or b""
            state = self._medium.states[packets.state[first]]
            pictures = scan(
                self._read,
                self._medium.codec,
                extradata,
                packets.offset[part],
                packets.size[part],
                state=state,
                in_middle=not at_first_start,
            )
            if not packets.read[part][(packets.flags[part] & START) != 0].all():
                check_promises(pictures, inband_sets=self._medium.inband_parameter_sets)
                self._check_ends(first)
            found = judge(pictures, packets.flags[part], packets.pts[part], at_first_start=at_first_start)
            # Frames were numbered by what the tables show.
            if ((found ^ packets.flags[part]) & UNSHOWN).any():
                raise ValueError("some samples present no picture of their own")
        except ValueError as error:
            raise PolicyError(
                f"the pictures contradict the sample tables: {error}",
                where=self._medium.path,
                found=f"packets {first} to {end - 1}",
                remedy="index it again with --depth packets",
            ) from error
        packets.flags[part], packets.read[part] = found, True  # of this object's own copy
