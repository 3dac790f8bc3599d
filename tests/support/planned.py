"""Helpers for scanner tests: demuxed streams, full in-order decodes, and single frames decoded by a scanner's plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.logging
import numpy as np
from av.codec.context import CodecContext
from av.video.codeccontext import VideoCodecContext

from framedex.core.pyav import open_encoder
from framedex.indexer.bitstream.base import BitstreamError, Pictures, pictures_of
from framedex.indexer.probing.every_packet import SCANNERS
from tests.support.media import picture
from tests.support.planes import picture_md5

__all__ = ["BitstreamError", "Pictures", "pictures_of"]  # tests take them from here

NO_START, CLOSED_START, OPEN_START = 0, 1, 2  # values of `Pictures.start`


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The packets of one video stream in decode order, and the parameters that its decoder gets before the first."""

    decoder: str
    codec: str
    packets: tuple[bytes, ...]
    codec_tag: str = ""
    extradata: bytes = b""
    reorder_depth: int = 0
    size: tuple[int, int] = (0, 0)
    coded_bits: int = 0
    hidden: frozenset[int] = frozenset()  # packets that are decoded but not presented
    # Packets without the container's key flag: FFmpeg's PNG decoder adds such a picture to the one before.
    not_key: frozenset[int] = frozenset()

    def open_decoder(self) -> VideoCodecContext:
        """Return a new decoder with one thread."""
        context = CodecContext.create(self.decoder, "r")
        assert isinstance(context, VideoCodecContext)
        context.extradata = self.extradata or None
        if self.codec_tag:
            context.codec_tag = self.codec_tag
        context.width, context.height = self.size
        context.bits_per_coded_sample = self.coded_bits
        context.reorder_depth = self.reorder_depth
        context.thread_count = 1
        return context

    def decode(self, numbers: Sequence[int], state: bytes = b"") -> list[tuple[int | None, str]]:
        """Decode packets with a new decoder; return (packet number, MD5) of every picture in output order.

        Args:
            numbers: the numbers of the packets.
            state: data to put in front of the first packet.
        """
        context = self.open_decoder()
        pictures = []
        for number in numbers:
            data = state + self.packets[number]
            state = b""
            packet = packet_of(data)
            packet.pts = number
            packet.is_keyframe = number not in self.not_key
            pictures += [(frame.pts, picture_md5(frame)) for frame in context.decode(packet)]
        pictures += [(frame.pts, picture_md5(frame)) for frame in context.decode(None)]
        return pictures


def packet_of(data: bytes) -> av.Packet[Any]:
    """Return a packet for a decoder, with padding, which a packet made around its bytes would lack."""
    packet: av.Packet[Any] = av.Packet(len(data))
    if data:
        packet.update(data)
    return packet


def demux(path: Path) -> Stream:
    """Return the first video stream of a file."""
    av.logging.set_level(None)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        packets = [packet for packet in container.demux(stream) if packet.size or packet.dts is not None]
        return Stream(
            decoder=context.name,
            codec=context.codec.canonical_name,
            codec_tag=context.codec_tag,
            extradata=context.extradata or b"",
            reorder_depth=context.reorder_depth,
            size=(context.width, context.height),
            coded_bits=context.bits_per_coded_sample,
            packets=tuple(bytes(packet) for packet in packets),
            hidden=frozenset(number for number, packet in enumerate(packets) if packet.is_discard),
            not_key=frozenset(number for number, packet in enumerate(packets) if not packet.is_keyframe),
        )


def scan(stream: Stream) -> Pictures:
    """Return the result of the codec's scanner for the stream.

    Raises:
        BitstreamError: the scanner refuses the stream.
    """
    scanner = SCANNERS[stream.codec](stream.extradata)
    for data in stream.packets:
        scanner.feed(data)
    return scanner.finish()


def scan_packets(codec: str, *packets: bytes, configuration: bytes = b"") -> Pictures:
    """Return the result of a codec's scanner for packets that need no container. Raises BitstreamError."""
    return scan(Stream(decoder="", codec=codec, packets=packets, extradata=configuration))


def presented(pictures: Pictures, hidden: frozenset[int] = frozenset()) -> list[int]:
    """Return the packet numbers of the frames that are output, in output order."""
    silent = pictures.skipped | pictures.continues
    shown = np.setdiff1d(np.flatnonzero(~silent), sorted(hidden))
    return [int(n) for n in shown[np.lexsort((pictures.order[shown], pictures.period[shown]))]]


def plan(pictures: Pictures, target: int) -> tuple[list[int], bytes]:
    """Return the packets to decode for one frame, and the state that the decoder must be given before them."""
    starts = np.flatnonzero(pictures.start != NO_START)
    number = int(np.searchsorted(starts, target, side="right")) - 1 - int(pictures.leading[target])
    begin = int(starts[max(number, 0)])
    end = target
    while end + 1 < len(pictures.start) and pictures.continues[end + 1]:
        end += 1
    kept = [n for n in range(begin, end + 1) if n >= target or not pictures.non_reference[n]]
    return kept, pictures.states[pictures.state[begin]]


def wrong_frames(stream: Stream, pictures: Pictures, truth: dict[int, str], seed: int, most: int = 10**9) -> list[int]:
    """Decode single frames in shuffled order; return the packet numbers of those that are wrong or missing.

    Args:
        truth: the MD5 of each frame by packet number.
        most: the highest number of frames to decode.
    """
    targets = np.random.default_rng(seed).permutation(presented(pictures, stream.hidden))[:most]
    wrong = []
    for target in targets.tolist():
        found = [md5 for number, md5 in stream.decode(*plan(pictures, target)) if number == target]
        if found != [truth[target]]:
            wrong.append(target)
    return wrong


def encode(
    path: Path,
    codec: str,
    options: dict[str, str],
    *,
    pix_fmt: str,
    size: tuple[int, int],
    frames: int,
    late: range = range(0),
) -> Path:
    """Encode numbered pictures at 25 fps into a file, unless the file exists; return its path.

    Pictures whose numbers are in `late` come two ticks after the one before instead of one.
    """
    if path.exists():
        return path
    aside = path.with_name(f"{os.getpid()}-{path.name}")
    with av.open(str(aside), "w") as out:
        stream = out.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.codec_context.thread_count = 1
        open_encoder(stream.codec_context)
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(number, *size), format="rgb24").reformat(format=pix_fmt)
            frame.pts, frame.time_base = number + sum(other <= number for other in late), Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    aside.rename(path)
    return path
