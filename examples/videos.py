"""Draws the videos that the README uses: three codecs and frame rates, with the number of each frame in its picture.

usage: python examples/videos.py FOLDER     (20 s on one core)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.stream import VideoStream
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, SECONDS = 320, 240, 24
Colour = tuple[int, int, int]
X265 = "log-level=0:open-gop=1:keyint=30:min-keyint=30:bframes=4:b-adapt=0:scenecut=0"


def pictures(count: int, colour: Colour, width: int, height: int) -> Iterator[Image.Image]:
    """Yield pictures of a ball that moves in front of a gradient, with their numbers."""
    font = ImageFont.load_default(48)
    rows, columns = np.mgrid[0:height, 0:width]
    background = np.stack([rows // 2 + value // 2 + columns // 8 for value in colour], axis=-1).clip(0, 255)
    for number in range(count):
        picture = Image.fromarray(background.astype(np.uint8))
        draw = ImageDraw.Draw(picture)
        x = width // 2 + int(3 * width // 8 * np.sin(number / 20))
        y = height // 2 + int(height // 3 * np.cos(number / 31))
        draw.ellipse((x - 24, y - 24, x + 24, y + 24), fill=colour)
        draw.text((12, 8), str(number), font=font, fill=(255, 255, 255))
        yield picture


def write(
    path: Path,
    codec: str,
    options: dict[str, str],
    colour: Colour,
    rate: int,
    times: list[Fraction],
    *,
    width: int = WIDTH,
    height: int = HEIGHT,
    turned: bool = False,
) -> None:
    """Write a video whose frames are shown at these seconds, which are multiples of 1 / rate.

    With `turned`, pictures lie on their side, as a phone that is held upright records them.
    """
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=rate, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = (height, width) if turned else (width, height)
        stream.pix_fmt = "yuv420p"
        for time, picture in zip(times, pictures(len(times), colour, width, height), strict=True):
            frame = av.VideoFrame.from_image(picture.transpose(Image.Transpose.ROTATE_90) if turned else picture)
            frame.pts, frame.time_base = int(time * rate), Fraction(1, rate)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def steady(rate: int) -> list[Fraction]:
    """Return the times of frames at a fixed rate."""
    return [Fraction(number, rate) for number in range(SECONDS * rate)]


def varying() -> list[Fraction]:
    """Return the times of a phone's frames: 30 a second in the light, 15 in the dark."""
    times = [Fraction(0)]
    while times[-1] < SECONDS:
        is_dark = times[-1] % 12 >= 6
        times.append(times[-1] + Fraction(1, 15 if is_dark else 30))
    return times[:-1]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    x264 = {"preset": "veryfast", "threads": "1", "g": "50"}
    write(folder / "walk.mp4", "libx264", x264, (200, 90, 60), 25, steady(25))
    write(folder / "phone.mkv", "libx264", x264, (60, 160, 90), 30, varying())
    write(folder / "camera.mp4", "libx265", {"preset": "veryfast", "x265-params": X265}, (70, 90, 200), 50, steady(50))
    (folder / "broken.mp4").write_text("This is no video.\n")


if __name__ == "__main__":
    main()
