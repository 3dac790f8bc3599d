"""Make a benchmark video: 720p60 x264 with default settings (GOP 250), of any length.

At most one minute is encoded. Longer videos repeat its packets, so that making them takes seconds, not hours.

usage: python benchmarks/make_video.py OUT.mp4 [--seconds 60] [--width 1280] [--height 720] [--fps 60]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

PERIOD_SECONDS = 60


def pictures(width: int, height: int, count: int, seed: int = 0) -> Iterator[NDArray[np.uint8]]:
    """Yield pictures, uint8 [H, W, 3]: a panning textured background, blobs that cross it, and slight sensor noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(40, 215, (height // 16 + 8, width // 8 + 64, 3))
    texture = np.repeat(np.repeat(coarse, 16, axis=0), 16, axis=1)
    for axis in (0, 1):  # blurred, because blocks of a single colour would be too easy to encode
        texture = sum(np.roll(texture, shift, axis) for shift in range(-8, 8)) / 16
    texture = texture.astype(np.uint8)
    noise = rng.integers(-3, 4, (8, height, width, 1), dtype=np.int16)
    for number in range(count):
        left, top = int(number * 1.5) % (texture.shape[1] - width), int(20 + 20 * np.sin(number / 40))
        picture = texture[top : top + height, left : left + width].copy()
        for blob in range(6):
            x = int((number * (2 + blob) + blob * 211) % (width - 120))
            y = int((height - 120) * (0.5 + 0.5 * np.sin(number / (30 + 7 * blob) + blob)))
            picture[y : y + 120, x : x + 120] = texture[y : y + 120, x : x + 120][::-1]
        yield np.clip(picture + noise[number % 8], 0, 255).astype(np.uint8)


def encode(path: Path, *, width: int, height: int, fps: int, count: int) -> None:
    """Encode `count` pictures with x264's default settings."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in pictures(width, height, count):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))


def repeat(source: Path, path: Path, times: int) -> None:
    """Write the packets of `source` several times in a row, with increasing timestamps."""
    with av.open(str(source)) as container, av.open(str(path), "w") as out:
        stream = container.streams.video[0]
        copy = out.add_stream_from_template(stream, opaque=True)  # there is no encoder called libdav1d
        assert stream.time_base is not None
        length = stream.duration or round((container.duration or 0) / av.time_base / stream.time_base)
        for turn in range(times):
            container.seek(0)
            for packet in container.demux(stream):
                if packet.dts is None or packet.pts is None:
                    continue
                packet.pts, packet.dts = packet.pts + turn * length, packet.dts + turn * length
                packet.stream = copy
                out.mux(packet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--fps", type=int, default=60)
    options = parser.parse_args()
    size = {"width": options.width, "height": options.height, "fps": options.fps}
    if options.seconds <= PERIOD_SECONDS:
        encode(options.out, count=options.seconds * options.fps, **size)
        return
    with tempfile.TemporaryDirectory() as scratch:
        minute = Path(scratch) / "minute.mp4"
        encode(minute, count=PERIOD_SECONDS * options.fps, **size)
        repeat(minute, options.out, options.seconds // PERIOD_SECONDS)


if __name__ == "__main__":
    main()
