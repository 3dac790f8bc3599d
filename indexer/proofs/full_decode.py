"""Full decodes of a medium at index time, by FFmpeg's demuxer and decoder, from beginning to end as in a player.

A full decode shows which packets do not decode as the index expects. For codecs whose packets framedex does not parse,
three properties are guessed from the decoded pictures. A picture of type I may be a random access point. A picture of
type B may be droppable, which means that other pictures do not need it. A picture that is output before the preceding
random access point may need the previous GOP. The guesses are then tested by decoding runs. A run is a random access
point and some of the packets after it, which one decoder decodes as it decodes those of a clip. If pictures of runs
differ from those of the full decode, the guesses are changed, so that clips leave out fewer packets or begin to decode
further back.
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
from framedex.indexer.timeline import DAMAGED, RESET, Flags, packet_flags, places


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The result of a full decode of the n packets of a stream.

    Attributes:
        order: the numbers of the packets, in the order in which their pictures were output.
        prints: the fingerprint (`containers.picture_print`) of each packet's picture. None for packets without a
            picture.
        md5: the MD5 (`containers.picture_md5`) of each packet's picture, 16 bytes. None for packets without a picture.
            If pictures were not hashed, all elements are None.
        kind: int8 [n], the type of the packet's picture (`av.video.frame.PictureType`), 0 for packets without a
            picture.
        key: bool [n], whether the decoder marks the packet's picture as a key frame.
        flagged: bool [n], whether the container marks the packet as a key frame.
        failed: bool [n], whether the decoder rejects the packet, or marks its picture as corrupt.
        formats: the different (pixel format, width, height) of pictures.
        colours: the different (colour range, matrix) of pictures, as FFmpeg's numbers.
        interlaced: whether some picture is interlaced.
        display: how the first picture is to be turned (`containers.display_of`). None if no picture was output.
        unnumbered: the number of pictures that cannot be assigned to a packet, because their timestamp is not a packet
            number, or because the packet already has a picture.
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
    display: tuple[int, bool] | None
    unnumbered: int

    @property
    def place(self) -> NDArray[np.int64]:
        """int64 [n]: the position of each packet's picture in output order, -1 for packets without a picture."""
        return places(self.order, len(self.prints))

    @property
    def came(self) -> NDArray[np.bool_]:
        """bool [n]: whether the packet's picture was output."""
        came: NDArray[np.bool_] = self.place >= 0
        return came


class _Output(NamedTuple):
    """The properties of one packet's picture. `Decoded` describes them; `fingerprint` is an element of `prints`."""

    fingerprint: int | None = None
    md5: bytes | None = None
    kind: int = 0
    key: bool = False


class FullDecoder:
    """A decoder that is fed all packets of a stream from the beginning. It uses one thread, and continues after errors.

    Args:
        context: the decoder context that the demuxer has set up.
        hashed: whether to compute the MD5 of every picture.
    """

    def __init__(self, context: VideoCodecContext, *, hashed: bool = False) -> None:
        context.thread_count = 1
        self._context, self._hashed = context, hashed
        self._outputs: dict[int, _Output] = {}  # packet number → picture, in output order
        self._flagged: list[bool] = []
        self._failed: list[bool] = []
        self._formats: set[tuple[str, int, int]] = set()
        self._colours: set[tuple[int, int]] = set()
        self._interlaced = False
        self._display: tuple[int, bool] | None = None
        self._unnumbered = 0

    def feed(self, packet: av.Packet[Any]) -> None:
        """Decode the next packet. Its PTS is replaced by the number of the packet."""
        number = len(self._failed)
        self._flagged.append(packet.is_keyframe)
        self._failed.append(False)
        if packet.is_discard and not packet.has_sidedata("new_extradata"):
            # An edit list hides the packet. A copy without the discard flag is decoded, so that the decoder outputs the
            # picture. This is needed because other pictures may refer to it, so a corrupt picture has to be noticed.
            kept = containers.packet_with(bytes(packet))
            kept.dts, kept.time_base, kept.is_keyframe = packet.dts, packet.time_base, packet.is_keyframe
            packet = kept
        packet.pts = number  # the decoder copies the PTS of a packet to its picture
        try:
            for picture in containers.decode_packet(self._context, packet):
                self._take(picture)
        except av.error.FFmpegError:
            self._failed[number] = True

    def lose(self, packets: int) -> None:
        """Record that packets are missing at the end of the stream.

        Args:
            packets: the number of missing packets.
        """
        self._flagged += [False] * packets
        self._failed += [True] * packets

    def fail(self) -> None:
        """Record that the container is damaged after the last packet that was fed."""
        self._failed[-1:] = [True]

    def finish(self) -> Decoded:
        """Flush the decoder, and return the result."""
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
            display=self._display,
            unnumbered=self._unnumbered,
        )

    def _take(self, picture: av.VideoFrame) -> None:
        number = picture.pts
        if number is None or not 0 <= number < len(self._failed) or number in self._outputs:
            self._unnumbered += 1
            return
        if self._display is None:
            self._display = containers.display_of(picture)
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
        file: the file that contains the stream.
        stream_index: the index of the stream in the file.
        packets: the number of packets of the stream. Packets that the demuxer does not return count as failed.
        hashed: whether to compute the MD5 of every picture.
    """
    with file.open() as container:
        stream = container.streams[stream_index]
        assert isinstance(stream, VideoStream)  # the stream was a video stream when the file was probed
        decoder = FullDecoder(stream.codec_context, hashed=hashed)
        fed = 0
        try:
            for packet in containers.demux_packets(container, stream_index):
                if fed == packets:
                    break
                decoder.feed(packet)
                fed += 1
        except av.error.FFmpegError:  # the results for earlier packets are kept
            decoder.fail()
        decoder.lose(packets - fed)
        return decoder.finish()


def dropped_at_ends(decoded: Decoded, pictures: picture_facts.Pictures) -> NDArray[np.bool_]:
    """Return bool [packets]: whether the packet's picture is dropped, because a sequence ended before it was output.

    At each random access point that `pictures.forgets` marks, the decoder drops pictures that it has not output yet.
    These are the last pictures of the preceding sequence in output order. Their number depends on the number of
    pictures that the decoder holds back, so only a decode shows it.
    """
    came, dropped = decoded.came, np.zeros(len(pictures.start), np.bool_)
    for begin in np.flatnonzero(pictures.forgets).tolist():
        before = np.flatnonzero((pictures.period[:begin] == pictures.period[begin - 1]) & ~pictures.skipped[:begin])
        last_first = before[np.argsort(-pictures.order[before], kind="stable")]
        dropped[last_first[: int(np.argmax(np.append(came[last_first], True)))]] = True
    return dropped


def compare(decoded: Decoded, expected: NDArray[np.int64], hidden: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool [packets]: whether the full decode shows that the packet is damaged.

    A packet is damaged if decoding fails, if it should be presented but has no picture, or if it has a picture that
    should not be presented.

    Args:
        decoded: the result of `decode_all`.
        expected: int64 [frames], the packets of presented frames, in the order in which the index numbers them.
        hidden: bool [packets], whether an edit list hides the packet's picture.

    Raises:
        BitstreamError: if the decoder outputs frames in another order than the index expects.
    """
    damaged = decoded.failed.copy()
    rank = places(expected, len(damaged))
    damaged |= (rank >= 0) != (decoded.came & ~hidden)
    order = [packet for packet in decoded.order if rank[packet] >= 0]
    turned = np.flatnonzero(np.diff(rank[order]) < 0)
    if len(turned):
        raise picture_facts.BitstreamError(
            "output_order", f"the decoder outputs packet {order[turned[0] + 1]} later than the index expects"
        )
    return damaged


def behind_difference(decoded: Decoded, expected: NDArray[np.int64], hidden: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the first presented frame whose picture is missing or out of order, and all frames after it.

    If the container has no timestamps, players assign other numbers and times to these frames than the index. The
    frames are given by their packets, in the order of `expected`.

    Args:
        decoded: the result of `decode_all`.
        expected: int64 [frames], the packets of presented frames, in the order in which the index numbers them.
        hidden: bool [packets], whether an edit list hides the packet's picture.
    """
    given = np.array(decoded.order, np.int64)
    given = given[~hidden[given]][: len(expected)]
    same = given == expected[: len(given)]
    return expected[len(given) if same.all() else int(np.argmin(same)) :]


DROPPABLE = (int(PictureType.B), int(PictureType.BI))  # types of pictures that other pictures may not need
# Finds the picture coding extension of MPEG-2 (ISO/IEC 13818-2 6.2.3.1). The group is the byte that contains
# picture_structure.
STRUCTURE = re.compile(rb"\x00\x00\x01\xb5[\x80-\x8f].(.)", re.DOTALL)
FRAME = 3  # value of picture_structure for a frame; the other values mean a field
PICTURE = b"\0\0\1\0"  # start code of a picture
HEADER_BYTES = 8192  # number of a packet's first bytes that are searched for a picture header; user data may precede it


# Headers that FFmpeg's decoders keep for later pictures. For MPEG-1 and MPEG-2, these are sequence headers and their
# extensions, quantiser matrices, and the user data of the encoder TMPGEnc. For MPEG-4, these are headers of objects,
# layers and groups, and user data. If droppable pictures contain such headers, later pictures may change when a clip
# leaves out droppable pictures. The change depends on the pictures that are left out, so trials cannot cover all cases.
LASTING_HEADERS = {
    "mpeg1video": re.compile(rb"\x00\x00\x01(?:\xb3|\xb2\x00TMPGEXS)"),
    "mpeg2video": re.compile(rb"\x00\x00\x01(?:\xb3|\xb5[\x10-\x3f]|\xb2\x00TMPGEXS)"),
    "mpeg4": re.compile(rb"\x00\x00\x01[\x20-\x2f\xb0\xb2\xb3\xb5]"),
}


def has_lasting_header(codec: str, data: bytes) -> bool:
    """Return whether a packet contains one of the `LASTING_HEADERS`, which decoders keep for later pictures."""
    return codec in LASTING_HEADERS and LASTING_HEADERS[codec].search(data) is not None


def fields_in(codec: str, data: bytes) -> int:
    """Return the number of field pictures in a packet, or 0 if the first picture is a frame."""
    found = STRUCTURE.search(data[:HEADER_BYTES]) if codec == "mpeg2video" else None
    return data.count(PICTURE) if found is not None and found[1][0] & 3 != FRAME else 0


def shown_pictures(decoded: Decoded, fields: Sequence[int], headers: Sequence[bool] = ()) -> picture_facts.Pictures:
    """Guess the properties of packets from the pictures of a full decode. Packet 0 counts as a random access point.

    Args:
        decoded: the result of a full decode of n packets.
        fields: the result of `fields_in` for each packet.
        headers: the result of `has_lasting_header` for each packet. Empty if the codec has no such headers.

    Raises:
        BitstreamError: if a packet has several pictures, or a picture belongs to no packet.
    """
    if decoded.unnumbered:
        raise picture_facts.BitstreamError(
            "several_pictures", f"{decoded.unnumbered} pictures cannot be assigned to a packet"
        )
    came, place = decoded.came, decoded.place
    # Decoders of some codecs mark no picture as a key frame, and some report no picture types. So the first of these
    # columns that is not False everywhere is used.
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
    for column in (droppable, leading):  # a second field has the properties of the first field
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
    """Make packet 0 the only random access point of a stream that has B pictures.

    This is needed for interlaced MPEG-4. FFmpeg's decoder computes a temporal distance at the first B picture that it
    decodes, and uses this distance for all later B pictures. So the decoded pictures depend on where decoding starts.
    If the stream has no B pictures, the properties are returned unchanged.
    """
    if not pictures.non_reference.any():
        return pictures
    opened = np.flatnonzero(pictures.start != picture_facts.NO_START)[1:]
    return replace(_joined(pictures, opened), non_reference=np.zeros(len(pictures.start), np.bool_))


@dataclass(frozen=True, slots=True)
class Trials:
    """Trial decodes of runs of a stream of n packets, which are compared with a full decode.

    Attributes:
        hidden: bool [n], whether an edit list hides the packet's picture.
        resets: bool [n], whether the packet is a random access point across which no decoder session may run.
        differing: a function that decodes runs. Its arguments are the flags of packets, which determine the packets
            that runs leave out, and the random access points at which the runs begin. If the second argument is None,
            runs begin at all random access points. The first result, bool [n], is whether the packet's frame differs
            from that of the full decode. Some runs continue across the next random access point. The second result is
            whether frames after that point differ in such runs.
    """

    hidden: NDArray[np.bool_]
    resets: NDArray[np.bool_]
    differing: Callable[[Flags, Numbers | None], tuple[NDArray[np.bool_], bool]]

    def flags(self, pictures: picture_facts.Pictures) -> Flags:
        """Return the flags of packets (`packet_flags`), int32 [n], for these properties of pictures."""
        return packet_flags(pictures, self.hidden, self.resets)

    def begins(self, pictures: picture_facts.Pictures, frames: NDArray[np.bool_]) -> Numbers:
        """Return the random access point from which each of some frames is decoded, int64 [frames].

        Args:
            pictures: the properties of the n packets.
            frames: bool [n], whether the packet holds one of these frames.
        """
        return Reach(self.flags(pictures), drop_leading=False).begins(np.flatnonzero(frames))

    def wrong(self, pictures: picture_facts.Pictures, starts: Numbers) -> NDArray[np.bool_]:
        """Return bool [n]: whether the packet's frame, decoded in a run from `starts`, differs from the full decode.

        Args:
            pictures: the properties of the n packets.
            starts: int64, the random access points at which runs begin.
        """
        return self.differing(self.flags(pictures), np.unique(starts))[0]


def proven_pictures(
    pictures: picture_facts.Pictures, trials: Trials
) -> tuple[picture_facts.Pictures, NDArray[np.bool_]]:
    """Correct guessed properties of pictures if runs do not decode to the pictures of the full decode.

    Args:
        pictures: the result of `shown_pictures`.
        trials: the trials of the stream.

    Returns:
        The corrected properties, and bool [n]: whether the packet's frame still differs from the full decode.
    """
    wrong, is_crossed_wrong = trials.differing(trials.flags(pictures), None)
    if wrong.any():
        if pictures.non_reference.any():
            # From now on, no packet counts as droppable. This also holds for GOPs without differences, because they may
            # have passed the trials by chance.
            pictures = replace(pictures, non_reference=np.zeros(len(wrong), np.bool_))
            wrong = trials.differing(trials.flags(pictures), None)[0]
        pictures, wrong = with_fewer_starts(pictures, wrong, trials)
        starts = np.flatnonzero(pictures.start != picture_facts.NO_START)
        is_crossed_wrong = trials.differing(trials.flags(pictures), starts)[1]
    return _without_crossings(pictures, wrong, trials) if is_crossed_wrong else (pictures, wrong)


def with_fewer_starts(
    pictures: picture_facts.Pictures, wrong: NDArray[np.bool_], trials: Trials
) -> tuple[picture_facts.Pictures, NDArray[np.bool_]]:
    """Remove random access points whose frames are right only if decoded from the preceding random access point.

    Args:
        pictures: the properties of n packets.
        wrong: bool [n], whether the packet's frame differs from the full decode.
        trials: the trials of the stream.

    Returns:
        The properties with fewer random access points, and bool [n]: whether the packet's frame still differs.
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
    # A trial proves only the frames before the first wrong frame of a run.
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
    """Make all runs end before the next random access point.

    The run of a leading picture crosses a random access point. So open random access points are removed, because only
    they are followed by leading pictures.

    Args:
        pictures: the properties of n packets.
        wrong: bool [n], whether the packet's frame differs from the full decode.
        trials: the trials of the stream.

    Returns:
        The changed properties, and bool [n]: whether the packet's frame then differs.
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
    """Return the properties of pictures without some random access points.

    Pictures after a removed random access point are decoded from the preceding one.
    """
    start = pictures.start.copy()
    inside = np.isin(picture_facts.segments(start), begins)
    start[begins] = picture_facts.NO_START
    return replace(pictures, start=start, leading=pictures.leading & ~inside)
