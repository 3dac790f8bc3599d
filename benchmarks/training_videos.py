"""The videos of benchmarks/training.py: seven formats that people train on, with usual bit rates.

The pictures are those of benchmarks/make_video.py: a panning texture, blobs and sensor noise. Ten seconds of each are
encoded, and their packets repeated to a minute.

usage: python -m benchmarks.training_videos FOLDER
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import av

from benchmarks.make_video import pictures, repeat
from framedex.core.pyav import open_encoder

DRAWN_SECONDS, SECONDS = 10, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a video is encoded.

    Attributes:
        encoder: the name of FFmpeg's encoder.
        gop: the distance between keyframes, in frames.
        kilobits: the bit rate in kbit/s.
        options: options of the encoder.
    """

    encoder: str
    width: int
    height: int
    fps: int
    gop: int
    kilobits: int
    options: dict[str, str] = field(default_factory=dict)


X265 = "log-level=0:open-gop=0:keyint={gop}:min-keyint={gop}"
FORMATS = {
    "1080p60 GOP 60": Format(encoder="libx264", width=1920, height=1080, fps=60, gop=60, kilobits=8000),
    "720p60 GOP 250": Format(encoder="libx264", width=1280, height=720, fps=60, gop=250, kilobits=4000),
    "640x360 GOP 30": Format(encoder="libx264", width=640, height=360, fps=30, gop=30, kilobits=800),
    "340x256 GOP 30": Format(encoder="libx264", width=340, height=256, fps=30, gop=30, kilobits=400),
    "HEVC 1080p30": Format(encoder="libx265", width=1920, height=1080, fps=30, gop=60, kilobits=4000),
    "VP9 720p30": Format(
        encoder="libvpx-vp9", width=1280, height=720, fps=30, gop=128, kilobits=2000,
        options={"deadline": "good", "cpu-used": "4", "row-mt": "1", "auto-alt-ref": "1", "lag-in-frames": "25"},
    ),
    "SVT-AV1 720p30": Format(
        encoder="libsvtav1", width=1280, height=720, fps=30, gop=160, kilobits=1500, options={"preset": "8"}
    ),
}  # fmt: skip


def video_path(folder: Path, name: str) -> Path:
    """Return where the video of a format lies."""
    suffix = "webm" if name.startswith("VP9") else "mp4"
    return folder / f"{name.replace(' ', '_')}.{suffix}"


def draw(path: Path, made: Format) -> None:
    """Encode `DRAWN_SECONDS` of pictures."""
    options = made.options | {"g": str(made.gop)}
    if made.encoder == "libx265":
        options["x265-params"] = X265.format(gop=made.gop)
    with av.open(str(path), "w") as out:
        stream = out.add_stream(made.encoder, rate=made.fps, options=options)
        stream.width, stream.height, stream.pix_fmt = made.width, made.height, "yuv420p"  # type: ignore[union-attr]
        stream.bit_rate = made.kilobits * 1000
        open_encoder(stream.codec_context)
        for picture in pictures(made.width, made.height, made.fps * DRAWN_SECONDS):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))  # type: ignore[union-attr]
        out.mux(stream.encode(None))  # type: ignore[union-attr]


def make_minute(drawn: Path, path: Path) -> None:
    """Repeat the packets of a drawn video to `SECONDS`, unless that was done before."""
    if not path.exists():
        aside = path.with_suffix(f".aside{path.suffix}")
        repeat(drawn, aside, SECONDS // DRAWN_SECONDS)
        aside.rename(path)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in FORMATS.items():
        path = video_path(folder, name)
        if not path.exists():
            aside = path.with_suffix(f".aside{path.suffix}")
            draw(aside, made)
            aside.rename(path)
            print(name, path.stat().st_size * 8 // DRAWN_SECONDS // 1000, "kbit/s", flush=True)


if __name__ == "__main__":
    main()
