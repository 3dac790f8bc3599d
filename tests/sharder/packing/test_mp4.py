"""Tiny MP4s: third-party demuxers and decoders read them as intended."""

from __future__ import annotations

import io
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from framedex import ClipDataset, Index
from framedex.sharder.packing.mp4 import movie_header
from tests.conftest import Truth
from tests.support.counted import some
from tests.support.datasets import shard_clips
from tests.support.media import picture
from tests.support.planes import picture_md5

# Streams whose runs can be joined into one stream, because every start point is closed.
CLOSED = [
    "h264_default.mp4",
    "h264_b_pyramid.mkv",
    "h264_vfr.mkv",
    "h264_fragmented.mp4",
    "hevc_closed.mp4",
    "hevc_main10.mov",
]


def encode(codec: str, pix_fmt: str, count: int, options: dict[str, str]) -> tuple[list[bytes], list[int]]:
    """Return (packets, presentation ranks) of a small stream without a container."""
    context = av.CodecContext.create(codec, "w")
    assert isinstance(context, av.VideoCodecContext)
    context.width, context.height, context.pix_fmt = 320, 256, pix_fmt
    context.time_base, context.framerate, context.options = Fraction(1, 25), Fraction(25), options
    packets = []
    for number in range(count):
        frame = av.VideoFrame.from_ndarray(picture(number, 320, 256), format="rgb24").reformat(format=pix_fmt)
        frame.pts = number
        packets += context.encode(frame)
    packets += context.encode(None)
    return [bytes(packet) for packet in packets], [int(packet.pts or 0) for packet in packets]


def movie(codec: str, packets: list[bytes], ranks: list[int], sync: list[int]) -> NDArray[np.uint8]:
    header = movie_header(
        codec=codec,
        width=320,
        height=256,
        configuration=b"",
        packet_size=np.array([len(packet) for packet in packets]),
        packet_rank=np.array(ranks),
        sync=np.array(sync),
    )
    return np.frombuffer(header + b"".join(packets), np.uint8)


@pytest.mark.parametrize("name", CLOSED)
def test_pyav_presents_the_wanted_frames_at_their_positions(
    name: str, index: Index, truth: Callable[[str], Truth], tmp_path: Path
) -> None:
    frames = [41 % len(truth(name).md5), 3, 3, 17, 0]
    dataset = shard_clips(index.path, tmp_path / "DATASET", [{"uri": name, "frames": frames}])
    item = ClipDataset(dataset, decode="movie")[0]
    with av.open(io.BytesIO(item["movie"].tobytes())) as container:
        assert container.format.name.startswith("mov,mp4")
        shown = list(container.decode(video=0))
    assert [frame.pts for frame in shown] == list(range(len(shown)))
    assert [picture_md5(shown[position]) for position in item["positions"]] == [truth(name).md5[n] for n in frames]


@pytest.mark.parametrize(
    ("codec", "encoder", "pix_fmt", "options"),
    [
        ("vp9", "libvpx-vp9", "yuv420p", {"lag-in-frames": "0", "auto-alt-ref": "0", "cpu-used": "8"}),
        ("mjpeg", "mjpeg", "yuvj420p", {}),
    ],
)
def test_dali_on_the_cpu_decodes_the_frames_by_number(
    codec: str, encoder: str, pix_fmt: str, options: dict[str, str]
) -> None:
    from nvidia.dali import fn, pipeline_def, types

    packets, ranks = encode(encoder, pix_fmt, 12, options)
    content = movie(codec, packets, ranks, [0] if codec == "vp9" else list(range(12)))

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline() -> object:
        encoded = fn.external_source(name="movie", dtype=types.UINT8, ndim=1)
        return fn.decoders.video(encoded, device="cpu", frames=[2, 7, 11])

    built = pipeline()
    built.build()
    built.feed_input("movie", [content])
    (output,) = built.run()
    found = np.asarray(output[0]).astype(np.int16)
    for frame, number in some(zip(found, [2, 7, 11], strict=True)):
        away = [np.abs(frame - picture(other, 320, 256)).mean() for other in range(12)]
        assert int(np.argmin(away)) == number


def test_a_codec_without_a_sample_entry_is_an_error() -> None:
    with pytest.raises(ValueError, match="prores"):
        movie("prores", [b"x"], [0], [0])


def test_a_movie_past_four_gigabytes_is_an_error() -> None:
    with pytest.raises(ValueError, match="4 GiB"):
        movie_header(
            codec="h264", width=16, height=16, configuration=b"",
            packet_size=np.array([1 << 31, 1 << 31]), packet_rank=np.array([0, 1]), sync=np.array([0]),
        )  # fmt: skip
