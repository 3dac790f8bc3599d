"""Decode a whole medium in order at index time.

This gives one hash per frame, and shows which packets do not decode as the index expects.
"""

from __future__ import annotations

from typing import Any

import av
import av.error
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from framedex.indexer.bitstream.base.pictures import BitstreamError, Pictures
from framedex.indexer.containers.medium_file import ProbedFile
from framedex.indexer.containers.opening import decode_packet, demux_packets, packet_with
from framedex.indexer.containers.planes import picture_md5
from framedex.indexer.proofs.side_by_side import Proof


class Decoded:
    """The result of a full, in-order decode of n packets.

    Attributes:
        md5: for each packet, 16 bytes if its picture was output, else None.
        order: packets in the order in which their pictures were output.
        failed: bool [n], packets that the decoder rejects, or whose pictures it marks as corrupt.
    """

    def __init__(self, packets: int) -> None:
        self.md5: list[bytes | None] = [None] * packets
        self.order: list[int] = []
        self.failed = np.zeros(packets, np.bool_)

    @property
    def came(self) -> NDArray[np.bool_]:
        """bool [n]: packets whose picture was output."""
        came = np.zeros(len(self.md5), np.bool_)
        came[self.order] = True
        return came

    def take(self, frame: av.VideoFrame, proof: Proof | None) -> None:
        """Record a picture, and show it to a proof. Its timestamp is the number of its packet."""
        if frame.pts is None or not 0 <= frame.pts < len(self.md5):
            return
        self.order.append(frame.pts)
        self.md5[frame.pts] = bytes.fromhex(picture_md5(frame))
        self.failed[frame.pts] |= frame.is_corrupt
        if proof is not None:
            proof.expect(frame)


def decode_all(file: ProbedFile, stream_index: int, packets: int, proof: Proof | None = None) -> Decoded:
    """Decode a stream of `packets` packets from its beginning to its end, in one thread. Continue after errors.

    Args:
        file: the open file.
        stream_index: of the stream.
        packets: how many it has.
        proof: compares runs with this decode, if given.
    """
    decoded = Decoded(packets)
    number = -1
    with file.open() as container:
        stream = container.streams[stream_index]
        assert isinstance(stream, VideoStream)  # a video stream, as when it was demuxed
        context = stream.codec_context
        context.thread_count = 1
        try:
            for packet in demux_packets(container, stream_index):
                number += 1
                if number >= packets:
                    break
                if packet.is_discard:
                    packet = _kept(packet)
                packet.pts = number  # pictures keep their packet's timestamp
                data = None if proof is None else bytes(packet)
                try:
                    for frame in decode_packet(context, packet):
                        decoded.take(frame, proof)
                except av.error.FFmpegError:
                    decoded.failed[number] = True
                if proof is not None and data is not None:
                    proof.feed(number, data)
            for frame in decode_packet(context, None):
                decoded.take(frame, proof)
        except av.error.FFmpegError:  # demuxing ends here; the results for packets before are kept
            decoded.failed[max(number, 0) :] = True
    if proof is not None:
        proof.finish()
    return decoded


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
