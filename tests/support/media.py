"""Recipes of all test media, which are encoded on the spot, named by hazard, and show frame numbers in the pixels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray

import framedex
from framedex.core.pyav import open_encoder
from framedex.errors import DecodeError
from tests.support.bitstream_edits import Coded, Edit

Medium = Callable[[str], Path]  # the fixture `medium`: returns the file of a recipe by name
BARCODE_BITS, CELL = 10, 16
TICKS = 90_000  # timestamps of recipes count in this time base
FRAME_RATE = 25


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One medium.

    Attributes:
        times: presentation times in TICKS; None: `frames` times at 25 fps.
        edit: applied to the packets after encoding.
        scenes: three scenes, the second with inverted colours.
    """

    name: str
    codec: str = "libx264"
    options: dict[str, str] = field(default_factory=dict)
    muxer: dict[str, str] = field(default_factory=dict)
    pix_fmt: str = "yuv420p"
    frames: int = 50
    size: tuple[int, int] = (176, 144)
    times: tuple[int, ...] | None = None
    audio: bool = False
    bt709: bool = False  # converted with that matrix, with soft colours that no converter clips
    edit: Edit | None = None
    scenes: bool = False

    def pts(self) -> list[int]:
        """Return the presentation times in TICKS."""
        return list(self.times) if self.times else [number * TICKS // FRAME_RATE for number in range(self.frames)]


def x264(**options: object) -> dict[str, str]:
    text = ":".join(f"{key.replace('_', '-')}={value}" for key, value in options.items())
    return {"preset": "veryfast", "x264-params": text}


def x265(**options: object) -> dict[str, str]:
    text = ":".join(f"{key.replace('_', '-')}={value}" for key, value in options.items())
    return {"preset": "ultrafast", "x265-params": f"log-level=none:pools=1:{text}"}


def _irregular_times(count: int, seed: int) -> tuple[int, ...]:
    gaps = np.random.default_rng(seed).integers(1_500, 9_000, count - 1)
    return (0, *np.cumsum(gaps).tolist())


def _times_24_to_60(count: int) -> tuple[int, ...]:
    gaps = [TICKS // 24] * (count // 2) + [TICKS // 60] * (count - count // 2 - 1)
    return (0, *np.cumsum(gaps).tolist())


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="h264_default.mp4", options=x264(keyint=20)),
        Recipe(name="h264_baseline.mp4", options={"preset": "veryfast", "profile": "baseline", "g": "15"}),
        Recipe(name="h264_b_pyramid.mkv", options=x264(keyint=24, bframes=5, b_pyramid="normal", b_adapt=0)),
        Recipe(name="h264_open_gop.mp4",
               options=x264(keyint=12, min_keyint=12, open_gop=1, bframes=3, b_adapt=0, scenecut=0)),
        Recipe(name="h264_open_gop.mkv", options=x264(
            keyint=10, min_keyint=10, open_gop=1, bframes=5, b_pyramid="normal", b_adapt=0, scenecut=0)),
        Recipe(name="h264_intra_refresh.mp4", options=x264(keyint=20, intra_refresh=1, bframes=0)),
        Recipe(name="h264_slices.mov", options=x264(keyint=16, slices=4)),
        Recipe(name="h264_one_gop.mp4", options=x264(keyint="infinite", scenecut=0), frames=90),
        Recipe(name="h264_all_intra.mp4", options=x264(keyint=1), frames=20),
        Recipe(name="h264_high10.mkv", options=x264(keyint=20), pix_fmt="yuv420p10le", frames=30),
        Recipe(name="h264_yuv444.mp4", options=x264(keyint=20), pix_fmt="yuv444p", frames=30),
        Recipe(name="h264_lossless.mp4", options=x264(keyint=12, qp=0), pix_fmt="yuv444p", frames=30),
        Recipe(name="h264_mbaff.mp4", options=x264(keyint=20, tff=1), size=(176, 160)),
        Recipe(name="h264_refs_weighted.mp4", options=x264(keyint=30, ref=8, weightp=2, bframes=3)),
        Recipe(name="h264_cropped.mp4", options=x264(keyint=20), size=(194, 130)),
        Recipe(name="h264_vfr.mp4", options=x264(keyint=20), times=_irregular_times(50, 1)),
        Recipe(name="h264_vfr.mkv", options=x264(keyint=20), times=_irregular_times(50, 2)),
        Recipe(name="h264_24_to_60.mp4", options=x264(keyint=20), times=_times_24_to_60(50)),
        Recipe(name="h264_late_start.mkv", options=x264(keyint=20),
               times=tuple(10 * TICKS + n * TICKS // 25 for n in range(50))),
        Recipe(name="h264_no_edit_list.mp4", options=x264(keyint=20), muxer={"use_editlist": "0"}),
        Recipe(name="h264_fragmented.mp4", options=x264(keyint=20), muxer={"movflags": "frag_keyframe+empty_moov"}),
        Recipe(name="h264_faststart.mp4", options=x264(keyint=20), muxer={"movflags": "faststart"}),
        Recipe(name="h264_single.mp4", frames=1),
        Recipe(name="h264_audio.mp4", options=x264(keyint=20), audio=True),
        Recipe(name="h264_audio.mkv", options=x264(keyint=20), audio=True),
        Recipe(name="h264_bt709.mp4",
               options=x264(keyint=20, colormatrix="bt709", colorprim="bt709", transfer="bt709"), bt709=True),
        Recipe(name="hevc_closed.mp4", codec="libx265", options=x265(keyint=20, open_gop=0)),
        Recipe(name="hevc_open_gop.mp4", codec="libx265",
               options=x265(keyint=12, min_keyint=12, open_gop=1, bframes=4, scenecut=0)),
        Recipe(name="hevc_open_gop.mkv", codec="libx265",
               options=x265(keyint=10, min_keyint=10, open_gop=1, bframes=3, b_pyramid=1, scenecut=0)),
        Recipe(name="hevc_radl.mp4", codec="libx265",
               options=x265(keyint=16, open_gop=0, radl=2, bframes=4, scenecut=0)),
        Recipe(name="hevc_main10.mov", codec="libx265", options=x265(keyint=20), pix_fmt="yuv420p10le", frames=30),
        Recipe(name="hevc_temporal_layers.mp4", codec="libx265",
               options=x265(keyint=20, temporal_layers=1, bframes=3)),
        Recipe(name="hevc_intra_refresh.mkv", codec="libx265", options=x265(keyint=20, intra_refresh=1), frames=40),
    )
}  # fmt: skip


def picture(number: int, width: int, height: int) -> NDArray[np.uint8]:
    """Return uint8 [H, W, 3]: a moving texture with the frame number as a barcode along the top."""
    rows, columns = np.mgrid[0:height, 0:width]
    texture = np.stack(
        [
            (rows * 3 + number * 5) % 256,
            (columns * 2 + rows + number * 3) % 256,
            ((rows // 8 + columns // 8 + number) % 2) * 90 + 80,
        ],
        axis=-1,
    ).astype(np.uint8)
    for bit in range(BARCODE_BITS):
        texture[:CELL, bit * CELL : (bit + 1) * CELL] = 235 if number >> bit & 1 else 16
    return texture


def soft_picture(number: int, width: int, height: int) -> NDArray[np.uint8]:
    """Return uint8 [H, W, 3]: the barcode over smooth gradients of muted reds, greens and blues."""
    rows, columns = np.mgrid[0:height, 0:width]
    gradients = np.stack(
        [70 + columns * 100 / width, 70 + rows * 100 / height, 170 - columns * 100 / width + 0 * rows], axis=-1
    )
    soft = gradients.astype(np.uint8)
    soft[:CELL] = picture(number, width, height)[:CELL]
    return soft


def read_barcode(rgb: NDArray[np.uint8]) -> int:
    """Return the frame number of a decoded picture, uint8 [H, W, 3] at its original size."""
    cells = [rgb[4 : CELL - 4, bit * CELL + 4 : (bit + 1) * CELL - 4].mean() > 128 for bit in range(BARCODE_BITS)]
    return sum(1 << bit for bit, on in enumerate(cells) if on)


def make(recipe: Recipe, folder: Path) -> Path:
    """Return the recipe's file in `folder`; encode it if it is missing. Other processes may do the same at once."""
    path = folder / recipe.name
    if not path.exists():
        aside = folder / f"{os.getpid()}-{recipe.name}"
        if recipe.edit is None:
            encode(recipe, aside)
        else:
            whole = (
                folder / f"{os.getpid()}-whole-{recipe.name.replace('.ts', '.mp4')}"
            )  # edits work on length-prefixed units
            encode(recipe, whole)
            rewrite(whole, aside, recipe.edit)
            whole.unlink()
        aside.rename(path)
    return path


def encode(recipe: Recipe, path: Path) -> None:
    """Encode a recipe into a file."""
    width, height = recipe.size
    ticks = FRAME_RATE if recipe.codec.startswith("mpeg") else TICKS  # MPEG states a frame rate from a table
    with av.open(str(path), "w", options=recipe.muxer) as out:
        stream = out.add_stream(recipe.codec, rate=FRAME_RATE, options=recipe.options)
        stream.width, stream.height, stream.pix_fmt = width, height, recipe.pix_fmt
        stream.codec_context.time_base = stream.time_base = Fraction(1, ticks)
        stream.codec_context.thread_count = 1
        open_encoder(stream.codec_context)
        tone = out.add_stream("aac", rate=48_000) if recipe.audio else None
        for number, pts in enumerate(recipe.pts()):
            rgb = soft_picture(number, width, height) if recipe.bt709 else picture(number, width, height)
            if recipe.scenes and number * 3 // recipe.frames == 1:
                rgb = 255 - rgb
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            frame = frame.reformat(format=recipe.pix_fmt, dst_colorspace=Colorspace.ITU709 if recipe.bt709 else None)
            frame.pts, frame.time_base = pts * ticks // TICKS, Fraction(1, ticks)
            out.mux(stream.encode(frame))
            if tone is not None:
                out.mux(tone.encode(_tone(number)))
        out.mux(stream.encode(None))
        if tone is not None:
            out.mux(tone.encode(None))


def read_packets(path: Path) -> tuple[bytes, list[Coded]]:
    """Return the configuration and the packets of a file's first video stream."""
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        packets = [
            Coded(data=bytes(packet), pts=packet.pts, dts=packet.dts, key=packet.is_keyframe)
            for packet in container.demux(video)
            if packet.size
        ]
        return video.codec_context.extradata or b"", packets


def rewrite(source: Path, path: Path, edit: Edit) -> None:
    """Copy a video's packets into another file, edited."""
    with av.open(str(source)) as given, av.open(str(path), "w") as out:
        video = given.streams.video[0]
        stream = out.add_stream_from_template(video)
        for coded in edit(*read_packets(source)):
            packet = av.Packet(coded.data)
            packet.pts, packet.dts, packet.is_keyframe = coded.pts, coded.dts, coded.key
            packet.time_base, packet.stream = video.time_base, stream
            out.mux(packet)


def _tone(number: int) -> av.AudioFrame:
    """Return 40 ms of a tone."""
    samples = np.sin(np.arange(1920) / 20 + number).astype(np.float32) * 0.1
    frame = av.AudioFrame.from_ndarray(np.stack([samples, samples]), format="fltp", layout="stereo")
    frame.sample_rate, frame.pts = 48_000, number * 1920
    return frame


def full_decode(path: Path, stream: int = 0) -> Iterator[av.VideoFrame]:
    """Yield every picture of a file in order, as a player would. This is the reference of every exactness test."""
    with av.open(str(path)) as container:
        container.streams[stream].codec_context.thread_count = 1  # some decoders give other pictures with more
        for frame in container.decode(container.streams[stream]):
            assert isinstance(frame, av.VideoFrame)
            yield frame


def damage(source: Path, target: Path, change: Callable[[bytearray], bytearray]) -> Path:
    """Write a changed copy of a file."""
    target.write_bytes(change(bytearray(source.read_bytes())))
    return target


def garble_packet(source: Path, target: Path, number: int, index: Path) -> Path:
    """Write a copy of a video in which the second half of a packet is garbage.

    Args:
        number: the number of the packet in decode order.
        index: the folder of an index of the video, which is made.
    """
    framedex.index(source, index, depth="packets", workers=0, progress=False)
    made = framedex.Index(index)
    packets = made.packets(made.videos["media_id"][0].as_py())
    assert packets.offset is not None
    at, size = int(packets.offset[number]), int(packets.size[number])

    def garble(content: bytearray) -> bytearray:
        content[at + size // 2 : at + size] = b"\xa5" * (size - size // 2)
        return content

    return damage(source, target, garble)


def index_with_broken_gop(folder: Path) -> Path:
    """Return an index of a video of three GOPs of ten frames, of which the second one begins with broken bytes."""
    video = folder / "broken.mp4"
    encode(Recipe(name=video.name, options={"preset": "veryfast", "g": "10"}, frames=30), video)
    garble_packet(video, video, 10, folder / "WHOLE")
    framedex.index(video, folder / "INDEX", depth="packets", workers=0, progress=False)
    return folder / "INDEX"


def decodes(dataset: framedex.ClipDataset, number: int) -> bool:
    """Return whether a clip decodes."""
    try:
        return bool(dataset[number])
    except DecodeError:
        return False


def make_long(folder: Path) -> Path:
    """Return an MP4 of about 30 MB with noise and a tone; `front.mp4` beside it has its moov box in front."""
    end, front = folder / "end.mp4", folder / "front.mp4"
    if not front.exists():
        noise = [np.random.default_rng(seed).integers(0, 256, (240, 320, 3), np.uint8) for seed in range(8)]
        aside = folder / f"{os.getpid()}-end.mp4"
        with av.open(str(aside), "w") as out:
            options = {"preset": "ultrafast", "qp": "18", "keyint": "50", "x264-params": "keyint=50"}
            stream = out.add_stream("libx264", rate=25, options=options)
            stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
            tone = out.add_stream("aac", rate=48_000)
            for number in range(500):
                out.mux(stream.encode(av.VideoFrame.from_ndarray(noise[number % 8], format="rgb24")))
                out.mux(tone.encode(_tone(number)))
            out.mux(stream.encode(None))
            out.mux(tone.encode(None))
        remux(aside, folder / f"{os.getpid()}-front.mp4", movflags="+faststart")
        aside.rename(end)
        (folder / f"{os.getpid()}-front.mp4").rename(front)
    return end


def remux(source: Path, path: Path, **options: str) -> None:
    """Copy all packets into another file."""
    with av.open(str(source)) as given, av.open(str(path), "w", options=options) as out:
        streams = {stream.index: out.add_stream_from_template(stream) for stream in given.streams}
        for packet in given.demux():
            if packet.dts is not None:
                packet.stream = streams[packet.stream.index]
                out.mux(packet)


if __name__ == "__main__":  # python -m tests.support.media FOLDER NAME...: make these recipes by hand
    import sys

    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    for wanted in sys.argv[2:] or RECIPES:
        print(make(RECIPES[wanted], Path(sys.argv[1])))
