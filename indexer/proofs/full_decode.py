"""Full decodes of a medium in order at index time, with FFmpeg's own demuxer and decoder, as a player decodes it.

A full decode shows which packets do not decode as the index expects. For streams whose packets are not parsed, it also
shows the pictures, from which three things are guessed. A picture of type I may be a random access point. A picture of
type B may be needed by no other picture. A picture that is output before the random access point in front of it may
need the GOP before. Runs that rely on these guesses have to give the pictures of the full decode. If they do not, less
is left out, and decoding starts further back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import av
import numpy as np
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType
from av.video.stream import VideoStream
from numpy.typing import NDArray

from framedex.indexer import containers
from framedex.indexer.bitstream import base as picture_facts
from framedex.indexer.reach import Numbers, Reach
from framedex.indexer.timeline import DAMAGED, RESET, Flags, packet_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The result of a full, in-order decode of n packets.

    Attributes:
        order: packets in the order in which their pictures were output.
        prints: for each packet, the `picture_print` of its picture, None without a picture.
        md5: for each packet, the 16 bytes of `picture_md5`, None without a picture or if pictures were not hashed.
        kind: int8 [n], the type of each picture (`av.video.frame.PictureType`), 0 without a picture.
        key: bool [n], pictures that the decoder calls key frames.
        flagged: bool [n], packets that the container calls key frames.
        failed: bool [n], packets that the decoder rejects, or whose pictures it marks as corrupt.
        formats: the pixel formats and sizes of all pictures.
        colours: the numbers of their colour ranges and matrices.
        interlaced: whether some picture is interlaced.
        rotation: counterclockwise rotation, in degrees, of the first picture, or None without a picture.
        unnumbered: number of pictures that belong to no packet, or to a packet that had given a picture before.
    """

    order: list[int]
    prints: list[int | None]
    md5: list[bytes | None]
    kind: NDArray[np.int8]
    key: NDArray[np.bool_]
    flagged: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    formats: frozenset[tuple[str, int, int]]
    colours: frozenset[tuple[int, int]]
    interlaced: bool
    rotation: int | None
    unnumbered: int

    @property
    def place(self) -> NDArray[np.int64]:
        """int64 [n]: the place of each packet's picture in output order, -1 without a picture."""
        place = np.full(len(self.prints), -1, np.int64)
        place[self.order] = np.arange(len(self.order))
        return place

    @property
    def came(self) -> NDArray[np.bool_]:
        """bool [n]: packets whose picture was output."""
        came: NDArray[np.bool_] = self.place >= 0
        return came


class _Output(NamedTuple):
    """The picture of a packet. The fields are those of `Decoded`."""

    fingerprint: int | None = None
    md5: bytes | None = None
    kind: int = 0
    key: bool = False


class FullDecoder:
    """A decoder of a stream, packet by packet from its beginning, in one thread. It continues after errors.

    Args:
        context: the decoder that the demuxer set up.
        hashed: whether to compute the md5 of every picture.
    """

    def __init__(self, context: VideoCodecContext, *, hashed: bool = False) -> None:
        context.thread_count = 1
        self._context, self._hashed = context, hashed
        self._outputs: dict[int, _Output] = {}  # by packet, in output order
        self._flagged: list[bool] = []
        self._failed: list[bool] = []
        self._formats: set[tuple[str, int, int]] = set()
        self._colours: set[tuple[int, int]] = set()
        self._interlaced = False
        self._rotation: int | None = None
        self._unnumbered = 0

    def feed(self, packet: av.Packet[Any]) -> None:
        """Decode the next packet. Its timestamp is replaced."""
        number = len(self._failed)
        self._flagged.append(packet.is_keyframe)
        self._failed.append(False)
        if packet.is_discard and not packet.has_sidedata("new_extradata"):
            # An edit list hides the packet. A copy without the mark is decoded, so that the picture is output: other
            # pictures need it, and it may be corrupt.
            kept = containers.packet_with(bytes(packet))
            kept.dts, kept.time_base, kept.is_keyframe = packet.dts, packet.time_base, packet.is_keyframe
            packet = kept
        packet.pts = number  # pictures keep their packet's timestamp
        try:
            for picture in containers.decode_packet(self._context, packet):
                self._take(picture)
        except av.error.FFmpegError:
            self._failed[number] = True

    def lose(self, packets: int) -> None:
        """Record that so many packets are missing at the end."""
        self._flagged += [False] * packets
        self._failed += [True] * packets

    def fail(self) -> None:
        """Record that the container is damaged behind the last packet."""
        self._failed[-1:] = [True]

    def finish(self) -> Decoded:
        """Return the result, with the pictures that the decoder has held back."""
        try:
            for picture in containers.decode_packet(self._context, None):
                self._take(picture)
        except av.error.FFmpegError:
            self.fail()
        outputs = [self._outputs.get(number, _Output()) for number in range(len(self._failed))]
        return Decoded(
            order=list(self._outputs),
            prints=[output.fingerprint for output in outputs],
            md5=[output.md5 for output in outputs],
            kind=np.array([output.kind for output in outputs], np.int8),
            key=np.array([output.key for output in outputs], np.bool_),
            flagged=np.array(self._flagged, np.bool_),
            failed=np.array(self._failed, np.bool_),
            formats=frozenset(self._formats),
            colours=frozenset(self._colours),
            interlaced=self._interlaced,
            rotation=self._rotation,
            unnumbered=self._unnumbered,
        )

    def _take(self, picture: av.VideoFrame) -> None:
        number = picture.pts
        if number is None or not 0 <= number < len(self._failed) or number in self._outputs:
            self._unnumbered += 1
            return
        if self._rotation is None:
            self._rotation = picture.rotation
        self._interlaced |= bool(picture.interlaced_frame)
        self._outputs[number] = _Output(
            fingerprint=containers.picture_print(picture),
            md5=bytes.fromhex(containers.picture_md5(picture)) if self._hashed else None,
            kind=int(picture.pict_type),
            key=bool(picture.key_frame),
        )
        self._failed[number] |= picture.is_corrupt
        self._formats.add((picture.format.name, picture.width, picture.height))
        self._colours.add((int(picture.color_range), int(picture.colorspace)))


def decode_all(file: containers.ProbedFile, stream_index: int, packets: int, *, hashed: bool = False) -> Decoded:
    """Decode a stream from its beginning to its end.

    Args:
        file: the open file.
        stream_index: number of the stream.
        packets: number of its packets. Those that demuxing does not give count as failed.
        hashed: whether to compute the md5 of every picture.
    """
    with file.open() as container:
        stream = container.streams[stream_index]
        assert isinstance(stream, VideoStream)  # a video stream, as when it was demuxed
        decoder = FullDecoder(stream.codec_context, hashed=hashed)
        fed = 0
        try:
            for packet in containers.demux_packets(container, stream_index):
                if fed == packets:
                    break
                decoder.feed(packet)
                fed += 1
        except av.error.FFmpegError:  # the results for packets before are kept
            decoder.fail()
        decoder.lose(packets - fed)
        return decoder.finish()


def dropped_at_ends(decoded: Decoded, pictures: picture_facts.Pictures) -> NDArray[np.bool_]:
    """Return bool [packets]: pictures that the decoder drops because a sequence ends before it has output them.

    At each random access point in `pictures.forgets`, these are the last pictures of the sequence before it, in output
    order. Their number depends on how many pictures the decoder holds back, so only decoding shows it.
    """
    came, dropped = decoded.came, np.zeros(len(pictures.start), np.bool_)
    for begin in np.flatnonzero(pictures.forgets).tolist():
        before = np.flatnonzero((pictures.period[:begin] == pictures.period[begin - 1]) & ~pictures.skipped[:begin])
        last_first = before[np.argsort(-pictures.order[before], kind="stable")]
        dropped[last_first[: int(np.argmax(np.append(came[last_first], True)))]] = True
    return dropped


def compare(decoded: Decoded, expected: NDArray[np.int64], hidden: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool [packets]: packets that decoding shows to be damaged.

    A presented packet without a picture is damaged. So is a packet that unexpectedly gives a picture.

    Args:
        decoded: the result of `decode_all`.
        expected: int64 [frames], the packets of presented frames, in the order in which the index numbers them.
        hidden: bool [packets], decoded and cut away.

    Raises:
        BitstreamError: frames are output in another order.
    """
    damaged = decoded.failed.copy()
    shown = np.zeros(len(damaged), np.bool_)
    shown[expected] = True
    damaged |= shown != (decoded.came & ~hidden)
    order = [packet for packet in decoded.order if shown[packet]]
    rank = np.full(len(damaged), -1)
    rank[expected] = np.arange(len(expected))
    turned = np.flatnonzero(np.diff(rank[order]) < 0)
    if len(turned):
        raise picture_facts.BitstreamError(
            "output_order", f"decoding gives packet {order[turned[0] + 1]} later than the index expects"
        )
    return damaged


def behind_difference(decoded: Decoded, expected: NDArray[np.int64], hidden: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the packets of presented frames from the first place on where decoding gives another picture, or none.

    If the timestamps are not from the container, players give the frames behind that place other numbers and times.

    Args:
        decoded: the result of `decode_all`.
        expected: int64 [frames], the packets of presented frames, in the order in which the index numbers them.
        hidden: bool [packets], decoded and cut away.
    """
    given = np.array(decoded.order, np.int64)
    given = given[~hidden[given]][: len(expected)]
    same = given == expected[: len(given)]
    return expected[len(given) if same.all() else int(np.argmin(same)) :]


DROPPABLE = (int(PictureType.B), int(PictureType.BI))
# picture_structure in the picture coding extension of MPEG-2 (ISO/IEC 13818-2 6.2.3.1); 3 is a frame, others a field.
STRUCTURE = re.compile(rb"\x00\x00\x01\xb5[\x80-\x8f].(.)", re.DOTALL)
FRAME = 3
PICTURE = b"\0\0\1\0"
HEADER_BYTES = 8192  # the first picture's header and usual user data in front of it lie within so many bytes


# Headers that FFmpeg's decoders keep for later pictures. MPEG-1 and MPEG-2: sequence headers and their extensions,
# quantiser matrices, the mark of an old encoder. MPEG-4: objects, layers, groups, user data. If droppable pictures
# bring such headers, trials of a few plans do not show the pictures of other plans.
LASTING_HEADERS = {
    "mpeg1video": re.compile(rb"\x00\x00\x01(?:\xb3|\xb2\x00TMPGEXS)"),
    "mpeg2video": re.compile(rb"\x00\x00\x01(?:\xb3|\xb5[\x10-\x3f]|\xb2\x00TMPGEXS)"),
    "mpeg4": re.compile(rb"\x00\x00\x01[\x20-\x2f\xb0\xb2\xb3\xb5]"),
}


def has_lasting_header(codec: str, data: bytes) -> bool:
    """Return whether a packet brings a known header that decoders keep for later pictures."""
    return codec in LASTING_HEADERS and LASTING_HEADERS[codec].search(data) is not None


def fields_in(codec: str, data: bytes) -> int:
    """Return how many field pictures a packet holds, 0 if its first picture is a frame."""
    found = STRUCTURE.search(data[:HEADER_BYTES]) if codec == "mpeg2video" else None
    return data.count(PICTURE) if found is not None and found[1][0] & 3 != FRAME else 0


def shown_pictures(decoded: Decoded, fields: Sequence[int], headers: Sequence[bool] = ()) -> picture_facts.Pictures:
    """Return facts about pictures as a full decode shows them. Decoding may always start at packet 0.

    Args:
        decoded: the full decode of n packets.
        fields: [n], as `fields_in` returns it.
        headers: [n], as `has_lasting_header` returns it; or empty.

    Raises:
        BitstreamError: packets and pictures do not belong together one by one.
    """
    if decoded.unnumbered:
        raise picture_facts.BitstreamError(
            "several_pictures", f"{decoded.unnumbered} pictures have no packet of their own"
        )
    came, place = decoded.came, decoded.place
    # Some decoders state that all pictures are intra, some state no key frame, and some state neither.
    stated = decoded.key, decoded.kind == int(PictureType.I), decoded.flagged
    started = came & next((column for column in stated if column.any()), stated[0])
    started[0] = True
    start = np.where(started, picture_facts.CLOSED_START, picture_facts.NO_START).astype(np.uint8)
    before = picture_facts.segments(start)
    leading = came & (place < place[before])
    start[before[leading]] = picture_facts.OPEN_START
    alone = np.array(fields) == 1
    continues = alone & ~came & ~decoded.failed
    continues[1:] &= came[:-1] & alone[:-1]
    continues[0] = False
    droppable = np.isin(decoded.kind, DROPPABLE) & ~started
    if len(headers) and (droppable & np.array(headers)).any():
        droppable[:] = False
    for column in (droppable, leading):  # a second field has the facts of the first field
        column[1:] = np.where(continues[1:], column[:-1], column[1:])
    return picture_facts.pictures_of(
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


def from_packet_0(pictures: picture_facts.Pictures) -> picture_facts.Pictures:
    """Return pictures that are all decoded from packet 0, if there are B pictures. Otherwise return them unchanged.

    FFmpeg's decoder of interlaced MPEG-4 uses the distance of the first B picture that it decodes for all later ones.
    """
    if not pictures.non_reference.any():
        return pictures
    opened = np.flatnonzero(pictures.start != picture_facts.NO_START)[1:]
    return replace(_joined(pictures, opened), non_reference=np.zeros(len(pictures.start), np.bool_))


@dataclass(frozen=True, slots=True)
class Trials:
    """Tries runs of a stream of n packets.

    Attributes:
        hidden: bool [n], cut away by an edit list.
        resets: bool [n], random access points over which no decoder session may run.
        differing: (flags, random access points) → (bool [n], bool). Runs are planned by the flags, from these random
            access points, or from all if None. Returns the frames that differ from those of the full decode, and
            whether a frame behind the next random access point differs in a run that goes on over it.
    """

    hidden: NDArray[np.bool_]
    resets: NDArray[np.bool_]
    differing: Callable[[Flags, Numbers | None], tuple[NDArray[np.bool_], bool]]

    def flags(self, pictures: picture_facts.Pictures) -> Flags:
        """Return int32 [n]."""
        return packet_flags(pictures, self.hidden, self.resets)

    def begins(self, pictures: picture_facts.Pictures, frames: NDArray[np.bool_]) -> Numbers:
        """Return int64: the random access point that each of some frames, bool [n], is decoded from."""
        return Reach(self.flags(pictures), drop_leading=False).begins(np.flatnonzero(frames))

    def wrong(self, pictures: picture_facts.Pictures, starts: Numbers) -> NDArray[np.bool_]:
        """Return bool [n]: frames decoded from these random access points that differ."""
        return self.differing(self.flags(pictures), np.unique(starts))[0]


def proven_pictures(
    pictures: picture_facts.Pictures, trials: Trials
) -> tuple[picture_facts.Pictures, NDArray[np.bool_]]:
    """Return pictures whose random access points and droppable pictures pass all trials, and frames that no run gives.

    Args:
        pictures: as `shown_pictures` returns them.
        trials: the trials of their stream.
    """
    wrong, is_crossed_wrong = trials.differing(trials.flags(pictures), None)
    if wrong.any():
        if pictures.non_reference.any():
            # Leave out nothing in the whole stream: trials of its other GOPs may have passed by luck.
            pictures = replace(pictures, non_reference=np.zeros(len(wrong), np.bool_))
            wrong = trials.differing(trials.flags(pictures), None)[0]
        pictures, wrong = with_fewer_starts(pictures, wrong, trials)
        starts = np.flatnonzero(pictures.start != picture_facts.NO_START)
        is_crossed_wrong = trials.differing(trials.flags(pictures), starts)[1]
    return _without_crossings(pictures, wrong, trials) if is_crossed_wrong else (pictures, wrong)


def with_fewer_starts(
    pictures: picture_facts.Pictures, wrong: NDArray[np.bool_], trials: Trials
) -> tuple[picture_facts.Pictures, NDArray[np.bool_]]:
    """Give up random access points that give wrong frames, if decoding from the one before gives the right frames.

    Args:
        pictures: facts of n packets.
        wrong: bool [n], the frames.
        trials: the trials of their stream.

    Returns:
        The pictures, and the frames that stay wrong.
    """
    begins = np.unique(trials.begins(pictures, wrong))
    starts = np.flatnonzero(pictures.start != picture_facts.NO_START)
    begins = begins[(begins > starts[0]) & ((trials.flags(pictures)[begins] & RESET) == 0)]
    if not len(begins):
        return pictures, wrong
    fewer = _joined(pictures, begins)
    left = np.flatnonzero(fewer.start != picture_facts.NO_START)
    into = left[np.searchsorted(left, begins) - 1]
    is_sound = (trials.flags(fewer)[into] & DAMAGED) == 0
    still = trials.wrong(fewer, into)
    # Frames behind the first wrong frame of a run have not been proven.
    first = np.full(len(left), len(wrong))
    np.minimum.at(first, np.searchsorted(left, trials.begins(fewer, still)), np.flatnonzero(still))
    ends = np.append(starts, len(wrong))[np.searchsorted(starts, begins, side="right")]
    helped = begins[(ends <= first[np.searchsorted(left, into)]) & is_sound]
    for frames, is_helped in ((wrong, False), (still, True)):
        frames[np.flatnonzero(frames)] = np.isin(trials.begins(pictures, frames), helped) == is_helped
    return _joined(pictures, helped), wrong | still


def _without_crossings(
    pictures: picture_facts.Pictures, wrong: NDArray[np.bool_], trials: Trials
) -> tuple[picture_facts.Pictures, NDArray[np.bool_]]:
    """End every run before the next random access point.

    Leading pictures need longer runs, so their random access points are given up.

    For arguments and result, see `proven_pictures`.
    """
    opened = np.flatnonzero(pictures.start == picture_facts.OPEN_START)
    opened = opened[opened > 0]
    fewer = _joined(pictures, opened)
    forgets = fewer.start != picture_facts.NO_START
    forgets[0] = False
    fewer = replace(fewer, forgets=forgets)
    left = np.flatnonzero(fewer.start != picture_facts.NO_START)
    into = left[np.searchsorted(left, opened) - 1]
    again = trials.wrong(fewer, into)
    wrong[np.flatnonzero(wrong)] = ~np.isin(trials.begins(fewer, wrong), into)
    return fewer, wrong | again


def _joined(pictures: picture_facts.Pictures, begins: Numbers) -> picture_facts.Pictures:
    """Return pictures without some random access points, whose GOPs are then decoded from the one before."""
    start = pictures.start.copy()
    inside = np.isin(picture_facts.segments(start), begins)
    start[begins] = picture_facts.NO_START
    return replace(pictures, start=start, leading=pictures.leading & ~inside)
