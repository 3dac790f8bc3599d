"""Streams whose packets are not parsed: a full decode shows their pictures, and runs from start points are tried.

A picture of type I may be where decoders can start, one of type B may be needed by no other, and one that comes out
before the start point in front of it may need the GOP before. Each of these is a guess until runs that rely on it give
the pictures of the full decode. Where they do not, less is left out, and decoding starts further back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from av.video.frame import PictureType
from numpy.typing import NDArray

from framedex.indexer.bitstream.base.pictures import (
    CLOSED_START,
    NO_START,
    OPEN_START,
    BitstreamError,
    Pictures,
    pictures_of,
    segments,
)
from framedex.indexer.plans.reach import Numbers, Reach
from framedex.indexer.proofs.full_decode import Decoded
from framedex.indexer.timeline import DAMAGED, RESET, Flags, packet_flags, reorder_depth_needed

DROPPABLE = (int(PictureType.B), int(PictureType.BI))
# picture_structure in the picture coding extension of MPEG-2 (ISO/IEC 13818-2 6.2.3.1); 3 is a frame, others a field.
STRUCTURE = re.compile(rb"\x00\x00\x01\xb5[\x80-\x8f].(.)", re.DOTALL)
FRAME = 3
PICTURE = b"\0\0\1\0"
HEADER_BYTES = 8192  # The first picture's header lies within so many bytes, behind user data of any usual length.


# Headers that FFmpeg's decoders keep for later pictures. MPEG-1 and MPEG-2: sequence headers and their extensions,
# quantiser matrices, the mark of an old encoder. MPEG-4: objects, layers, groups, user data. If droppable pictures
# bring some, trials of a few plans do not show what other plans give.
LASTING_HEADERS = {
    "mpeg1video": re.compile(rb"\x00\x00\x01(?:\xb3|\xb2\x00TMPGEXS)"),
    "mpeg2video": re.compile(rb"\x00\x00\x01(?:\xb3|\xb5[\x10-\x3f]|\xb2\x00TMPGEXS)"),
    "mpeg4": re.compile(rb"\x00\x00\x01[\x20-\x2f\xb0\xb2\xb3\xb5]"),
}


def has_lasting_header(codec: str, data: bytes) -> bool:
    """Return whether a packet brings a header that decoders keep for later pictures, as far as it is known here."""
    pattern = LASTING_HEADERS.get(codec)
    return pattern is not None and pattern.search(data) is not None


def fields_in(codec: str, data: bytes) -> int:
    """Return how many field pictures a packet holds, 0 if its first picture is a frame."""
    found = STRUCTURE.search(data[:HEADER_BYTES]) if codec == "mpeg2video" else None
    return data.count(PICTURE) if found is not None and found[1][0] & 3 != FRAME else 0


def shown_pictures(decoded: Decoded, fields: Sequence[int], headers: Sequence[bool] = ()) -> Pictures:
    """Return facts about pictures as a full decode shows them. Decoding may always start at packet 0.

    Args:
        decoded: the full decode of n packets.
        fields: [n], as `fields_in` returns it.
        headers: [n], as `has_lasting_header` returns it; or empty.

    Raises:
        BitstreamError: packets and pictures do not belong together one by one.
    """
    if decoded.unnumbered:
        raise BitstreamError("several_pictures", f"{decoded.unnumbered} pictures have no packet of their own")
    came, place = decoded.came, decoded.place
    # Some decoders call all pictures intra, some call none of them a key frame, and some state nothing.
    stated = decoded.key, decoded.kind == int(PictureType.I), decoded.flagged
    started = came & next((column for column in stated if column.any()), stated[0])
    started[0] = True
    start = np.where(started, CLOSED_START, NO_START).astype(np.uint8)
    before = segments(start)
    leading = came & (place < place[before])
    start[before[leading]] = OPEN_START
    alone = np.array(fields) == 1
    continues = alone & ~came & ~decoded.failed
    continues[1:] &= came[:-1] & alone[:-1]
    continues[0] = False
    droppable = np.isin(decoded.kind, DROPPABLE) & ~started
    if len(headers) and (droppable & np.array(headers)).any():
        droppable[:] = False
    for column in (droppable, leading):  # a second field is what the first one is
        column[1:] = np.where(continues[1:], column[:-1], column[1:])
    return pictures_of(
        start,
        non_reference=droppable,
        leading=leading,
        skipped=~came & ~continues,
        field_coded=np.array(fields) > 0,
        continues=continues,
        damaged=decoded.failed,
        order=np.where(came, place, 0),
        varying_shape=len(decoded.formats) > 1,
    )


def from_packet_0(pictures: Pictures) -> Pictures:
    """Return pictures that are decoded from packet 0, without leaving any out, if B pictures are among them.

    FFmpeg's decoder of interlaced MPEG-4 keeps the distance of the first B picture that it decodes for all later ones.
    """
    if not pictures.non_reference.any():
        return pictures
    opened = np.flatnonzero(pictures.start != NO_START)[1:]
    return replace(_joined(pictures, opened), non_reference=np.zeros(len(pictures.start), np.bool_))


@dataclass(frozen=True, slots=True)
class Trials:
    """Tries runs of a stream of n packets.

    Attributes:
        hidden: bool [n], cut away by an edit list.
        resets: bool [n], start points over which no decoder session may run.
        differing: (flags, start points) → (bool [n], bool): the frames decoded from these start points, None for all,
            that runs planned by the flags do not give as the full decode does; and whether a run that goes on over the
            next start point gives a frame behind it that differs.
    """

    hidden: NDArray[np.bool_]
    resets: NDArray[np.bool_]
    differing: Callable[[Flags, Numbers | None], tuple[NDArray[np.bool_], bool]]

    def flags(self, pictures: Pictures) -> Flags:
        """Return int32 [n]."""
        return packet_flags(pictures, self.hidden, self.resets)

    def begins(self, pictures: Pictures, frames: NDArray[np.bool_]) -> Numbers:
        """Return int64: the start point that each of some frames, bool [n], is decoded from."""
        return Reach(self.flags(pictures), drop_leading=False).begins(np.flatnonzero(frames))

    def wrong(self, pictures: Pictures, starts: Numbers) -> NDArray[np.bool_]:
        """Return bool [n]: frames decoded from these start points that differ."""
        return self.differing(self.flags(pictures), np.unique(starts))[0]


def reorder_depth_of(decoded: Decoded) -> int:
    """Return how many pictures are decoded before some picture and output after it, at most."""
    return reorder_depth_needed(decoded.place[decoded.came])


def proven_pictures(pictures: Pictures, trials: Trials) -> tuple[Pictures, NDArray[np.bool_]]:
    """Return (pictures whose start points and droppable pictures hold in all trials, frames that no run gives).

    Args:
        pictures: as `shown_pictures` returns them.
        trials: the trials of their stream.
    """
    wrong, is_crossed_wrong = trials.differing(trials.flags(pictures), None)
    if wrong.any():
        pictures, wrong = _with_all_needed(pictures, wrong, trials)
        pictures, wrong = with_fewer_starts(pictures, wrong, trials)
        starts = np.flatnonzero(pictures.start != NO_START)
        is_crossed_wrong = trials.differing(trials.flags(pictures), starts)[1]
    return _without_crossings(pictures, wrong, trials) if is_crossed_wrong else (pictures, wrong)


def _with_all_needed(
    pictures: Pictures, wrong: NDArray[np.bool_], trials: Trials
) -> tuple[Pictures, NDArray[np.bool_]]:
    """Leave nothing out in the whole stream: which pictures the trials of its other GOPs left out is a matter of luck.

    For arguments and result, see `proven_pictures`.
    """
    if not pictures.non_reference.any():
        return pictures, wrong
    needed = replace(pictures, non_reference=np.zeros(len(wrong), np.bool_))
    return needed, trials.differing(trials.flags(needed), None)[0]


def with_fewer_starts(
    pictures: Pictures, wrong: NDArray[np.bool_], trials: Trials
) -> tuple[Pictures, NDArray[np.bool_]]:
    """Decode from the start point before where decoding from their own gives wrong frames, if that helps.

    Args:
        pictures: facts of n packets.
        wrong: bool [n], the frames.
        trials: the trials of their stream.

    Returns:
        The pictures, and those of the frames that this does not help.
    """
    begins = np.unique(trials.begins(pictures, wrong))
    starts = np.flatnonzero(pictures.start != NO_START)
    begins = begins[(begins > starts[0]) & ((trials.flags(pictures)[begins] & RESET) == 0)]
    if not len(begins):
        return pictures, wrong
    fewer = _joined(pictures, begins)
    left = np.flatnonzero(fewer.start != NO_START)
    into = left[np.searchsorted(left, begins) - 1]
    is_sound = (trials.flags(fewer)[into] & DAMAGED) == 0
    still = trials.wrong(fewer, into)
    # What follows the first wrong frame of a run has not been shown to be right.
    first = np.full(len(left), len(wrong))
    np.minimum.at(first, np.searchsorted(left, trials.begins(fewer, still)), np.flatnonzero(still))
    ends = np.append(starts, len(wrong))[np.searchsorted(starts, begins, side="right")]
    helped = begins[(ends <= first[np.searchsorted(left, into)]) & is_sound]
    for frames, is_helped in ((wrong, False), (still, True)):
        frames[np.flatnonzero(frames)] = np.isin(trials.begins(pictures, frames), helped) == is_helped
    return _joined(pictures, helped), wrong | still


def _without_crossings(
    pictures: Pictures, wrong: NDArray[np.bool_], trials: Trials
) -> tuple[Pictures, NDArray[np.bool_]]:
    """Let no run go on over a start point. Leading pictures need that, so their start points are given up.

    For arguments and result, see `proven_pictures`.
    """
    opened = np.flatnonzero(pictures.start == OPEN_START)
    opened = opened[opened > 0]
    fewer = _joined(pictures, opened)
    forgets = fewer.start != NO_START
    forgets[0] = False
    fewer = replace(fewer, forgets=forgets)
    left = np.flatnonzero(fewer.start != NO_START)
    into = left[np.searchsorted(left, opened) - 1]
    again = trials.wrong(fewer, into)
    wrong[np.flatnonzero(wrong)] = ~np.isin(trials.begins(fewer, wrong), into)
    return fewer, wrong | again


def _joined(pictures: Pictures, begins: Numbers) -> Pictures:
    """Return pictures that are decoded from the start point before, where decoding started at some start points."""
    start = pictures.start.copy()
    inside = np.isin(segments(start), begins)
    start[begins] = NO_START
    return replace(pictures, start=start, leading=pictures.leading & ~inside)
