"""Decode a whole medium in order at index time, with FFmpeg's own demuxer and decoder, as a player does.

This shows which packets do not decode as the index expects, and what its frames look like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import av
import av.error
import numpy as np
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream
from numpy.typing import NDArray

from framedex.indexer.bitstream.base.pictures import BitstreamError, Pictures
from framedex.indexer.containers.medium_file import ProbedFile
from framedex.indexer.containers.opening import decode_packet, demux_packets, packet_with
from framedex.indexer.containers.planes import picture_md5, picture_print


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The result of a full, in-order decode of n packets.

    Attributes:
        order: packets in the order in which their pictures were output.
        prints: for each packet, the `picture_print` of its picture; None if it gave none.
        md5: for each packet, the 16 bytes of `picture_md5`; None without a picture, or if hashes were not asked for.
        kind: int8 [n], the type of each picture (`av.video.frame.PictureType`), 0 where none was output.
        key: bool [n], pictures that the decoder calls key frames.
        flagged: bool [n], packets that the container calls key frames.
        failed: bool [n], packets that the decoder rejects, or whose pictures it marks as corrupt.
        formats: the pixel formats and sizes of all pictures.
        colours: the numbers of their colour ranges and matrices.
        interlaced: whether some picture is interlaced.
        rotation: counterclockwise rotation, in degrees, of the first picture, or None without a picture.
        unnumbered: how many pictures came out that belong to no packet, or to one that had given a picture before.
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
        """int64 [n]: the place of each packet's picture in output order, -1 where none was output."""
        place = np.full(len(self.prints), -1, np.int64)
        place[self.order] = np.arange(len(self.order))
        return place

    @property
    def came(self) -> NDArray[np.bool_]:
        """bool [n]: packets whose picture was output."""
        came: NDArray[np.bool_] = self.place >= 0
        return came


class FullDecoder:
    """Decodes a stream packet by packet from its beginning, in one thread. Continues after errors.

    Args:
        context: the decoder that the demuxer set up.
        hashed: whether to compute the md5 of every picture.
    """

    def __init__(self, context: VideoCodecContext, *, hashed: bool = False) -> None:
        context.thread_count = 1
        self._context, self._hashed = context, hashed
        self._order: list[int] = []
        self._prints: list[int | None] = []
        self._md5: list[bytes | None] = []
        self._kind: list[int] = []
        self._key: list[bool] = []
        self._flagged: list[bool] = []
        self._failed: list[bool] = []
        self._formats: set[tuple[str, int, int]] = set()
        self._colours: set[tuple[int, int]] = set()
        self._interlaced = False
        self._rotation: int | None = None
        self._unnumbered = 0

    def feed(self, packet: av.Packet[Any]) -> None:
        """Decode the next packet. Its timestamp is replaced."""
        number = len(self._prints)
        self._add(1, flagged=packet.is_keyframe)
        if packet.is_discard:
            packet = _kept(packet)
        packet.pts = number  # pictures keep their packet's timestamp
        try:
            for picture in decode_packet(self._context, packet):
                self._take(picture)
        except av.error.FFmpegError:
            self._failed[number] = True

    def lose(self, packets: int) -> None:
        """Note that so many packets do not come."""
        self._add(packets, failed=True)

    def _add(self, packets: int, *, flagged: bool = False, failed: bool = False) -> None:
        self._prints += [None] * packets
        self._md5 += [None] * packets
        self._kind += [0] * packets
        self._key += [False] * packets
        self._flagged += [flagged] * packets
        self._failed += [failed] * packets

    def fail(self) -> None:
        """Note that the container is damaged behind the last packet."""
        self._failed[-1:] = [True]

    def finish(self) -> Decoded:
        """Return the result, with the pictures that the decoder has held back."""
        try:
            for picture in decode_packet(self._context, None):
                self._take(picture)
        except av.error.FFmpegError:
            self.fail()
        return Decoded(
            order=self._order,
            prints=self._prints,
            md5=self._md5,
            kind=np.array(self._kind, np.int8),
            key=np.array(self._key, np.bool_),
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
        if number is None or not 0 <= number < len(self._prints) or self._prints[number] is not None:
            self._unnumbered += 1
            return
        if self._rotation is None:
            self._rotation = picture.rotation
        self._interlaced |= bool(picture.interlaced_frame)
        self._order.append(number)
        self._prints[number] = picture_print(picture)
        if self._hashed:
            self._md5[number] = bytes.fromhex(picture_md5(picture))
        self._kind[number] = int(picture.pict_type)
        self._key[number] = bool(picture.key_frame)
        self._failed[number] |= picture.is_corrupt
        self._formats.add((picture.format.name, picture.width, picture.height))
        self._colours.add((int(picture.color_range), int(picture.colorspace)))


def decode_all(file: ProbedFile, stream_index: int, packets: int, *, hashed: bool = False) -> Decoded:
    """Decode a stream from its beginning to its end.

    Args:
        file: the open file.
        stream_index: of the stream.
        packets: how many it has. Where demuxing ends before, the others have failed.
        hashed: whether to compute the md5 of every picture.
    """
    with file.open() as container:
        stream = container.streams[stream_index]
        assert isinstance(stream, VideoStream)  # a video stream, as when it was demuxed
        decoder = FullDecoder(stream.codec_context, hashed=hashed)
        fed = 0
        try:
            for packet in demux_packets(container, stream_index):
                if fed == packets:
                    break
                decoder.feed(packet)
                fed += 1
        except av.error.FFmpegError:  # the results for packets before are kept
            decoder.fail()
        decoder.lose(packets - fed)
        return decoder.finish()


def _kept(packet: av.Packet[Any]) -> av.Packet[Any]:
    """Return a copy of a packet that an edit list hides, so that the decoder outputs its picture.

    The picture may be corrupt, and others need it.
    """
    if packet.has_sidedata("new_extradata"):
        return packet
    kept = packet_with(bytes(packet))
    kept.dts, kept.time_base, kept.is_keyframe = packet.dts, packet.time_base, packet.is_keyframe
    return kept


def dropped_at_ends(decoded: Decoded, pictures: Pictures) -> NDArray[np.bool_]:
    """Return bool [packets]: pictures that the decoder drops because a sequence ends before it has output them.

    At each start point in `pictures.forgets`, these are the last pictures of the sequence before it, in output order.
    Their number depends on how many pictures the decoder holds back, so only decoding shows it.
    """
    came, dropped = decoded.came, np.zeros(len(pictures.start), np.bool_)
    for begin in np.flatnonzero(pictures.forgets).tolist():
        before = np.flatnonzero((pictures.period[:begin] == pictures.period[begin - 1]) & ~pictures.skipped[:begin])
        last_first = before[np.argsort(-pictures.order[before], kind="stable")]
        dropped[last_first[: int(np.argmax(np.append(came[last_first], True)))]] = True
    return dropped


def compare(decoded: Decoded, expected: NDArray[np.int64], hidden: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool [packets]: packets that decoding shows to be damaged.

    A presented packet without a picture is damaged. So is a packet with a picture that the index does not expect.

    Args:
        decoded: what `decode_all` returned.
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
        raise BitstreamError(
            "output_order", f"decoding gives packet {order[turned[0] + 1]} later than the index expects"
        )
    return damaged


def behind_difference(decoded: Decoded, expected: NDArray[np.int64], hidden: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the packets of presented frames from the first place on where decoding gives another picture, or none.

    Where timestamps are not the container's, frames behind it have numbers and times that a player does not give them.

    Args:
        decoded: what `decode_all` returned.
        expected: int64 [frames], the packets of presented frames, in the order in which the index numbers them.
        hidden: bool [packets], decoded and cut away.
    """
    given = np.array(decoded.order, np.int64)
    given = given[~hidden[given]][: len(expected)]
    same = given == expected[: len(given)]
    return expected[len(given) if same.all() else int(np.argmin(same)) :]
