"""Intra codecs that are not proven: FFmpeg decodes each packet from nothing but its own bytes, even if it is damaged.

One decoder gets packets of several encodes, of other sizes, depths and colours, whole and damaged, in random order.
Each must give what a new decoder gives for it alone.
"""

from __future__ import annotations

import random
from fractions import Fraction

import av
import av.error
import pytest
from av.codec.context import CodecContext
from av.video.codeccontext import VideoCodecContext

from framedex.indexer.schema import INTRA
from tests.support.depth import EXAMPLES
from tests.support.media import picture
from tests.support.planes import picture_md5
from tests.support.planned import packet_of

Options = dict[str, str]
SMALL, OTHER = (128, 64), (160, 96)
# codec → the pixel format, size and options of each encode. The first one sets up the decoder.
ENCODES: dict[str, list[tuple[str, tuple[int, int], Options]]] = {
    "asv1": [("yuv420p", SMALL, {}), ("yuv420p", SMALL, {"global_quality": "2000"})],
    "asv2": [("yuv420p", SMALL, {}), ("yuv420p", SMALL, {"global_quality": "2000"})],
    "dpx": [("rgb24", SMALL, {}), ("rgb48le", SMALL, {}), ("gbrp10le", OTHER, {}), ("gbrp12le", SMALL, {})],
    "dvvideo": [("yuv420p", (720, 576), {}), ("yuv411p", (720, 480), {}), ("yuv422p", (720, 576), {})],
    "r210": [("gbrp10le", SMALL, {})],
    "sgi": [("rgb24", SMALL, {}), ("rgba", SMALL, {}), ("gray", OTHER, {}), ("rgb48be", SMALL, {"rle": "0"})],
    "utvideo": [("yuv420p", SMALL, {}), ("yuv420p", SMALL, {"pred": "median"}), ("yuv420p", SMALL, {"pred": "none"})],
    "v210": [("yuv422p10le", SMALL, {})],
    "y41p": [("yuv411p", SMALL, {})],
    "yuv4": [("yuv420p", SMALL, {})],
    "zlib": [("bgr24", SMALL, {}), ("bgr24", SMALL, {"compression_level": "0"})],
}
BITS = {"zlib": 24}  # bits of a sample, as a container states them
TAGS = {"utvideo": "ULY0"}  # by which its decoder knows the format
PICTURES = 4  # of each encode
Shown = tuple[object, ...] | None  # one entry a picture; None where the decoder reports an error


def test_every_intra_codec_is_tried() -> None:
    assert ENCODES.keys() == INTRA


def encoded(codec: str, pix_fmt: str, size: tuple[int, int], options: Options, seed: int) -> tuple[bytes, list[bytes]]:
    """Return the extradata and the packets of an encode."""
    context = CodecContext.create(codec, "w")
    assert isinstance(context, VideoCodecContext)
    context.width, context.height, context.pix_fmt = *size, pix_fmt
    context.time_base, context.framerate, context.options = Fraction(1, 25), Fraction(25), options
    context.thread_count = 1
    packets: list[bytes] = []
    for number in range(PICTURES):
        shown = picture(10 * seed + number, *size)
        frame = av.VideoFrame.from_ndarray(shown, format="rgb24").reformat(format=pix_fmt)
        frame.pts = number
        packets += [bytes(packet) for packet in context.encode(frame)]
    return context.extradata or b"", packets + [bytes(packet) for packet in context.encode(None)]


def damaged(packet: bytes, draw: random.Random) -> bytes:
    """Return a packet that is cut off or has other bytes."""
    content = bytearray(packet[: draw.randrange(1, len(packet) + 1)])
    for _ in range(draw.randrange(5)):
        content[draw.randrange(min(len(content), draw.choice((32, 200, 10**9))))] = draw.randrange(256)
    return bytes(content)


def shown(context: VideoCodecContext, packet: bytes) -> Shown:
    """Return what a decoder gives for a packet: each picture's pixels, format, size and colours."""
    try:
        pictures = context.decode(packet_of(packet))
    except (av.error.FFmpegError, ValueError):
        return None
    return tuple(
        (picture_md5(one), one.format.name, one.width, one.height, int(one.color_range), int(one.colorspace))
        for one in pictures
    )


@pytest.mark.parametrize("codec", sorted(INTRA))
def test_packets_are_decoded_from_nothing_but_their_own_bytes(codec: str) -> None:
    made = [encoded(codec, *encode, seed=seed) for seed, encode in enumerate(ENCODES[codec])]
    pix_fmt, size, _ = ENCODES[codec][0]

    def opened() -> VideoCodecContext:
        context = CodecContext.create(codec, "r")
        assert isinstance(context, VideoCodecContext)
        context.extradata, context.thread_count = made[0][0] or None, 1
        context.width, context.height, context.pix_fmt = *size, pix_fmt
        context.bits_per_coded_sample = BITS.get(codec, 0)
        if codec in TAGS:
            context.codec_tag = TAGS[codec]
        return context

    draw = random.Random(43)
    whole = [packet for _, packets in made for packet in packets]
    packets = 2 * (whole + [damaged(packet, draw) for packet in whole for _ in range(max(2, EXAMPLES // 20))])
    draw.shuffle(packets)
    one = opened()
    alone = [shown(opened(), packet) for packet in packets]
    together = [shown(one, packet) for packet in packets]
    assert sum(found is not None for found in alone) > len(whole)
    assert [number for number, found in enumerate(together) if found != alone[number]] == []
