"""The hazards of the corpus, remade at a size that NVDEC decodes (320×256 or more), with numbers in the pictures."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.codec.context import CodecContext
from av.container import OutputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.reformatter import ColorRange, Colorspace
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image

from framedex.core.pyav import open_encoder
from tests.support.media import picture, read_barcode, soft_picture

WIDTH, HEIGHT, RATE = 320, 256, 25
FIRST_BARCODE = 1  # of the first frame, so that a black picture is never a valid barcode
GAP = 8  # frames that are left out between two parts
Options = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One encoder's settings for some consecutive frames.

    Attributes:
        scale: the size as a multiple of WIDTH × HEIGHT.
    """

    options: Options = field(default_factory=dict)
    frames: int = 60
    scale: int = 1


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """One medium.

    Attributes:
        name: what is special about it.
        ending: the file name's ending, which determines the container.
        parts: parts that are written one after the other.
        size: (width, height) at a scale of 1.
        in_band: whether packets contain parameter sets, too.
        full_range: whether the colours have full range.
        bt709: whether the colours use the matrix BT.709.
        by_command: PyAV cannot encode it; the ffmpeg command does, where it is installed.
        passes: the number of passes of the ffmpeg command.
    """

    codec: str
    name: str
    ending: str
    encoder: str
    parts: tuple[Part, ...]
    pix_fmt: str = "yuv420p"
    size: tuple[int, int] = (WIDTH, HEIGHT)
    in_band: bool = False
    full_range: bool = False
    bt709: bool = False
    by_command: bool = False
    passes: int = 1

    @property
    def file_name(self) -> str:
        """The name of the file, or of the folder of images."""
        return f"{self.codec}_{'_'.join(re.findall('[A-Za-z0-9.]+', self.name))}{self.ending}"

    @property
    def frame_count(self) -> int:
        """The number of frames."""
        return sum(part.frames for part in self.parts)


def _joined(values: dict[str, object]) -> str:
    return ":".join(f"{key.replace('_', '-')}={value}" for key, value in values.items())


def _h264(name: str, *parts: dict[str, object], frames: int = 60, ending: str = ".mp4", **facts: Any) -> Hazard:
    made = tuple(Part(options={"preset": "veryfast", "x264-params": _joined(part)}, frames=frames) for part in parts)
    return Hazard(codec="h264", name=name, ending=ending, encoder="libx264", parts=made, **facts)


def _hevc(name: str, *parts: dict[str, object], frames: int = 60, ending: str = ".mp4", **facts: Any) -> Hazard:
    made = tuple(
        Part(
            options={"preset": "ultrafast", "x265-params": _joined({"log_level": "none", "pools": 1} | part)},
            frames=frames,
        )
        for part in parts
    )
    return Hazard(codec="hevc", name=name, ending=ending, encoder="libx265", parts=made, **facts)


def _vp9(name: str, *scales: int, ending: str = ".webm", pix_fmt: str = "yuv420p", **options: object) -> Hazard:
    said = {"deadline": "realtime", "cpu-used": "8", "g": "20", "b": "600k"}
    said |= {key.replace("_", "-"): str(value) for key, value in options.items()}
    parts = tuple(Part(options=said, frames=60 // len(scales or (1,)), scale=scale) for scale in scales or (1,))
    return Hazard(codec="vp9", name=name, ending=ending, encoder="libvpx-vp9", parts=parts, pix_fmt=pix_fmt)


def _other(codec: str, name: str, ending: str, encoder: str, options: Options, **facts: Any) -> Hazard:
    parts = (Part(options=options, frames=facts.pop("frames", 40)),)
    return Hazard(codec=codec, name=name, ending=ending, encoder=encoder, parts=parts, **facts)


_B_FRAMES: dict[str, object] = {"bframes": 3, "b_adapt": 0, "scenecut": 0}
_BT709: dict[str, object] = {"colormatrix": "bt709", "colorprim": "bt709", "transfer": "bt709"}

HAZARDS = (
    _h264("default", {"keyint": 20}),
    _h264("default, Matroska", {"keyint": 20}, ending=".mkv"),
    _h264("baseline", {"keyint": 15, "bframes": 0, "cabac": 0, "8x8dct": 0, "weightp": 0}),
    _h264("B-pyramid", {"keyint": 24, "bframes": 5, "b_pyramid": "normal", "b_adapt": 0}),
    _h264("many references, weighted", {"keyint": 30, "ref": 16, "weightp": 2, "bframes": 3}),
    _h264("slices", {"keyint": 16, "slices": 4}),
    _h264("MBAFF", {"keyint": 20, "tff": 1}),
    _h264("cropping", {"keyint": 20}, size=(330, 250)),
    _h264("open GOP", {"keyint": 12, "min_keyint": 12, "open_gop": 1} | _B_FRAMES),
    _h264("open GOP, B-pyramid",
          {"keyint": 10, "min_keyint": 10, "open_gop": 1, "b_pyramid": "normal"} | _B_FRAMES | {"bframes": 5}),
    _h264("intra refresh", {"keyint": 20, "intra_refresh": 1, "bframes": 0}),
    _h264("all intra", {"keyint": 1}),
    _h264("long GOP", {"keyint": "infinite", "scenecut": 0}, frames=300),
    _h264("repeated in-band sets", {"keyint": 15}, in_band=True),
    _h264("changing sets", {"keyint": 15, "ref": 1, "cabac": 0}, {"keyint": 15, "ref": 4, "bframes": 3},
          frames=40, ending=".mkv", in_band=True),
    _h264("changing sets, transport stream", {"keyint": 15, "ref": 1, "cabac": 0},
          {"keyint": 15, "ref": 4, "bframes": 3}, frames=40, ending=".ts", in_band=True),
    _h264("transport stream", {"keyint": 20}, ending=".ts", in_band=True),
    _h264("10 bit", {"keyint": 20}, pix_fmt="yuv420p10le"),
    _h264("4:2:2", {"keyint": 20}, pix_fmt="yuv422p"),
    _h264("4:4:4", {"keyint": 20}, pix_fmt="yuv444p"),
    _h264("monochrome", {"keyint": 20}, pix_fmt="gray"),
    _h264("full range", {"keyint": 20, "fullrange": "on"}, full_range=True),
    _h264("BT.709", {"keyint": 20} | _BT709, bt709=True),
    _hevc("closed GOP", {"keyint": 20, "open_gop": 0}),
    _hevc("open GOP (CRA, RASL)", {"keyint": 12, "min_keyint": 12, "open_gop": 1} | _B_FRAMES | {"bframes": 4}),
    _hevc("open GOP (CRA, RASL), Matroska",
          {"keyint": 10, "min_keyint": 10, "open_gop": 1, "b_pyramid": 1} | _B_FRAMES, ending=".mkv"),
    _hevc("RADL", {"keyint": 16, "open_gop": 0, "radl": 2, "bframes": 4, "scenecut": 0}),
    _hevc("temporal layers", {"keyint": 20, "open_gop": 0, "temporal_layers": 1, "bframes": 3}),
    _hevc("all intra", {"keyint": 1}),
    _hevc("intra refresh", {"keyint": 20, "open_gop": 0, "intra_refresh": 1}),
    _hevc("10 bit", {"keyint": 20, "open_gop": 0}, pix_fmt="yuv420p10le"),
    _hevc("4:4:4", {"keyint": 20, "open_gop": 0}, pix_fmt="yuv444p"),
    _hevc("repeated in-band sets", {"keyint": 15, "open_gop": 0}, in_band=True),
    _hevc("changing sets", {"keyint": 15, "open_gop": 0, "ref": 1},
          {"keyint": 15, "open_gop": 0, "ref": 4, "bframes": 4}, frames=40, ending=".mkv", in_band=True),
    _hevc("full range", {"keyint": 20, "open_gop": 0, "range": "full"}, full_range=True),
    _hevc("BT.709", {"keyint": 20, "open_gop": 0} | _BT709, bt709=True),
    _vp9("no hidden frames", auto_alt_ref=0, lag_in_frames=0),
    _vp9("no hidden frames, MP4", ending=".mp4", auto_alt_ref=0, lag_in_frames=0),
    replace(_vp9("hidden alt-ref frames", deadline="good", cpu_used=4, auto_alt_ref=1, lag_in_frames=25, g=60),
            by_command=True, passes=2),
    replace(_vp9("10 bit", pix_fmt="yuv420p10le", profile=2, auto_alt_ref=0, lag_in_frames=0), by_command=True),
    _vp9("error resilient", auto_alt_ref=0, lag_in_frames=0, error_resilient="default"),
    _vp9("size change", 1, 2, auto_alt_ref=0, lag_in_frames=0),
    _vp9("4:4:4", pix_fmt="yuv444p", profile=1, auto_alt_ref=0, lag_in_frames=0),
    _other("av1", "SVT", ".mp4", "libsvtav1", {"preset": "10", "g": "20", "svtav1-params": "lp=1"}),
    _other("av1", "SVT, 10 bit", ".mkv", "libsvtav1", {"preset": "10", "g": "20", "svtav1-params": "lp=1"},
           pix_fmt="yuv420p10le"),
    _other("av1", "libaom", ".mp4", "libaom-av1", {"cpu-used": "8", "g": "20", "usage": "realtime"}, by_command=True),
    _other("vp8", "default", ".webm", "libvpx", {"deadline": "realtime", "cpu-used": "8", "g": "20"}),
    _other("mpeg4", "B-VOPs", ".mp4", "mpeg4", {"g": "12", "bf": "2", "b": "2000k"}),
    _other("mpeg2video", "B pictures", ".ts", "mpeg2video", {"g": "12", "bf": "2", "b": "3000k"}),
    _other("mjpeg", "in a movie", ".mov", "mjpeg", {"q:v": "3"}, pix_fmt="yuvj420p"),
    _other("prores", "4:2:2, 10 bit", ".mov", "prores_ks", {}, pix_fmt="yuv422p10le", frames=20),
    _other("ffv1", "GOP of 8", ".mkv", "ffv1", {"g": "8", "level": "3"}, frames=30),
    _other("jpeg", "sequence of images", "", "JPEG", {}, pix_fmt="rgb"),
    _other("png", "sequence of images", "", "PNG", {}, pix_fmt="rgb"),
)  # fmt: skip


def make(hazard: Hazard, folder: Path) -> Path:
    """Return the hazard's file in `folder`, or its folder of images; make it if it is missing.

    Only one process may make a hazard. Errors of PyAV are raised unchanged.

    Raises:
        OSError: the ffmpeg command is needed and is not installed.
        CalledProcessError: the ffmpeg command failed.
    """
    path = folder / hazard.file_name
    if path.exists():
        return path
    if hazard.pix_fmt == "rgb":
        path.mkdir()
        for number, rgb in enumerate(_pictures(hazard)):
            Image.fromarray(rgb).save(path / f"{number:04d}.{hazard.encoder.lower()}", hazard.encoder)
        return path
    aside = folder / f"{os.getpid()}-{hazard.file_name}"
    try:
        (_encode_by_command if hazard.by_command else _encode)(hazard, aside)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def _pictures(hazard: Hazard) -> Iterator[NDArray[np.uint8]]:
    """Yield uint8 [H, W, 3] of every frame at its own scale."""
    number = 0
    for part in hazard.parts:
        for _ in range(part.frames):
            rgb = (soft_picture if hazard.bt709 else picture)(number + FIRST_BARCODE, *hazard.size)
            yield np.repeat(np.repeat(rgb, part.scale, axis=0), part.scale, axis=1)
            number += 1


def frame_shown(rgb: NDArray[np.uint8]) -> int:
    """Return the frame number that a decoded picture, uint8 [H, W, 3], shows.

    A picture without a valid barcode gives a number below 0 or one that is too large.
    """
    return read_barcode(rgb) - FIRST_BARCODE


def _encode(hazard: Hazard, path: Path) -> None:
    """Encode each part separately and write the packets one after the other."""
    pictures = _pictures(hazard)
    with av.open(str(path), "w") as out:
        stream: VideoStream | None = None
        number = 0
        for place, part in enumerate(hazard.parts):
            if hazard.in_band or place > 0:
                context = _configured(CodecContext.create(hazard.encoder, "w"), hazard, part)
                context.options = part.options
            else:
                stream = out.add_stream(hazard.encoder, rate=RATE, options=part.options)
                context = _configured(stream.codec_context, hazard, part)
            open_encoder(context)
            packets = []
            for _ in range(part.frames):
                # Parts are some ticks apart, so that decoding times never decrease.
                packets += context.encode(_frame(hazard, next(pictures), number + GAP * place))
                number += 1
            packets += context.encode(None)
            if stream is None:
                stream = _stream_like(out, hazard, b"".join(bytes(packet) for packet in packets))
            for packet in packets:
                packet.stream = stream
                out.mux(packet)


def _encode_by_command(hazard: Hazard, path: Path) -> None:
    (part,) = hazard.parts
    width, height = hazard.size
    options = [word for name, value in part.options.items() for word in (f"-{name}", value)]
    command = ["ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    command += ["-r", str(RATE), "-i", "-", "-c:v", hazard.encoder, "-pix_fmt", hazard.pix_fmt, *options]
    pictures = b"".join(rgb.tobytes() for rgb in _pictures(hazard))
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(1, hazard.passes + 1):
            if hazard.passes > 1:
                command = [*command, "-pass", str(number), "-passlogfile", f"{scratch}/log"]
            subprocess.run([*command, str(path)], input=pictures, check=True)


def _configured(context: Any, hazard: Hazard, part: Part) -> VideoCodecContext:
    assert isinstance(context, VideoCodecContext)
    width, height = hazard.size
    context.width, context.height, context.pix_fmt = width * part.scale, height * part.scale, hazard.pix_fmt
    context.time_base, context.framerate = Fraction(1, RATE), Fraction(RATE)
    context.thread_count = 1
    if hazard.full_range:
        context.color_range = ColorRange.JPEG.value
    return context


def _frame(hazard: Hazard, rgb: NDArray[np.uint8], pts: int) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(
        format=hazard.pix_fmt,
        dst_colorspace=Colorspace.ITU709 if hazard.bt709 else None,
        dst_color_range=ColorRange.JPEG if hazard.full_range else None,
    )
    frame.pts, frame.time_base = pts, Fraction(1, RATE)
    return frame


def _stream_like(out: OutputContainer, hazard: Hazard, elementary: bytes) -> VideoStream:
    """Return a stream with the header that a demuxer finds in an elementary stream. Its packets keep their sets."""
    with av.open(io.BytesIO(elementary), format=hazard.codec) as raw:
        stream = out.add_stream_from_template(raw.streams.video[0])
    stream.time_base = Fraction(1, RATE)
    return stream
