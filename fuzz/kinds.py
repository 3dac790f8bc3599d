"""The streams that mutants are made of: codecs with a scanner, and the containers that they are written to."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.media import Recipe

FRAMES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of streams, from which mutants are made.

    Attributes:
        recipes: streams that are changed; they give parameter sets and packets to each other.
        suffixes: containers that mutants are written to.
        units: how packets are divided: "nal", "start codes", "obu", or "" where whole packets are changed alone.
    """

    recipes: tuple[Recipe, ...]
    suffixes: tuple[str, ...]
    units: str = ""


def _x264(text: str) -> dict[str, str]:
    return {"preset": "veryfast", "x264-params": f"threads=1:{text}"}


def _x265(text: str) -> dict[str, str]:
    return {"preset": "ultrafast", "x265-params": f"log-level=none:pools=1:frame-threads=1:{text}"}


def _recipes(
    name: str, codec: str, *options: dict[str, str], suffix: str = "mkv", **facts: object
) -> tuple[Recipe, ...]:
    return tuple(
        Recipe(name=f"{name}_{number}.{suffix}", codec=codec, options=given, frames=FRAMES, **facts)  # type: ignore[arg-type]
        for number, given in enumerate(options)
    )


MPEG = ("mkv", "ts", "mpg")
GOP_8, GOP_10_B = {"g": "8"}, {"g": "10", "bf": "2"}
VP8 = {"g": "12", "cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "12"}
VP9 = {"g": "12", "cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "16"}
RESILIENT_VP9 = {"g": "10", "cpu-used": "8", "error-resilient": "1"}
H264 = (
    _x264("keyint=12:bframes=3:b-pyramid=normal:b-adapt=0"),
    _x264("keyint=10:bframes=0:ref=3"),
    _x264("keyint=10:min-keyint=10:open-gop=1:bframes=2:b-adapt=0:scenecut=0"),
    _x264("keyint=40:intra-refresh=1"),
)
HEVC = (
    _x265("keyint=12:min-keyint=12:bframes=3:b-adapt=0:open-gop=0"),
    _x265("keyint=12:min-keyint=12:bframes=4:b-adapt=0:open-gop=1"),
    _x265("keyint=10:temporal-layers=3:open-gop=0"),
)
MORE_H264 = (
    _x264("keyint=12:bframes=2:b-adapt=0:slices=3:aud=1:nal-hrd=vbr:vbv-maxrate=400:vbv-bufsize=400"),
    _x264("keyint=12:bframes=2:b-adapt=0:interlaced=1:tff=1"),
    _x264("keyint=14:min-keyint=14:open-gop=1:bframes=3:b-adapt=0:b-pyramid=strict:ref=5:weightp=2:scenecut=0"),
)
MORE_HEVC = (
    _x265("keyint=12:min-keyint=12:bframes=3:b-adapt=0:open-gop=0:repeat-headers=1:aud=1:radl=2"),
    _x265("keyint=10:bframes=0:slices=2:repeat-headers=1"),
    _x265("keyint=40:bframes=0:intra-refresh=1"),
)
LOW_DELAY = {"svtav1-params": "pred-struct=1"}
INTERLACED = {"g": "10", "bf": "2", "flags": "+ildct+ilme"}
RESILIENT_VP8 = {"g": "10", "cpu-used": "-4", "error-resilient": "1"}
MORE_VP9 = (
    {"g": "14", "cpu-used": "8", "auto-alt-ref": "6", "lag-in-frames": "20", "frame-parallel": "1"},
    {"g": "40", "cpu-used": "8", "tile-columns": "1", "aq-mode": "3", "lag-in-frames": "0"},
)
KINDS = {
    "h264": Kind(recipes=_recipes("h264", "libx264", *H264), suffixes=("mp4", "mkv", "mov", "ts", "flv"), units="nal"),
    "hevc": Kind(recipes=_recipes("hevc", "libx265", *HEVC), suffixes=("mp4", "mkv", "ts"), units="nal"),
    "av1": Kind(recipes=_recipes("av1", "libsvtav1", {"preset": "10", "g": "16"}), suffixes=("mp4", "mkv", "ivf")),
    "vp9": Kind(recipes=_recipes("vp9", "libvpx-vp9", VP9, RESILIENT_VP9), suffixes=("mkv", "webm", "mp4", "ivf")),
    "vp8": Kind(recipes=_recipes("vp8", "libvpx", VP8), suffixes=("mkv", "webm", "ivf")),
    "mpeg1": Kind(recipes=_recipes("mpeg1", "mpeg1video", GOP_10_B, GOP_8), suffixes=MPEG, units="start codes"),
    "mpeg2": Kind(recipes=_recipes("mpeg2", "mpeg2video", GOP_10_B, GOP_8), suffixes=MPEG, units="start codes"),
    "mpeg4": Kind(
        recipes=_recipes("mpeg4", "mpeg4", GOP_10_B, GOP_8), suffixes=("mp4", "mkv", "avi"), units="start codes"
    ),
    "h263": Kind(recipes=_recipes("h263", "h263", GOP_8, suffix="mov"), suffixes=("mov", "avi", "3gp")),
    "flv1": Kind(recipes=_recipes("flv1", "flv", GOP_8, suffix="flv"), suffixes=("flv", "avi")),
    "msmpeg4v3": Kind(recipes=_recipes("msmpeg4v3", "msmpeg4", GOP_8), suffixes=("avi", "mkv")),
    "wmv2": Kind(recipes=_recipes("wmv2", "wmv2", GOP_8, suffix="avi"), suffixes=("asf", "avi")),
    "ffv1": Kind(
        recipes=_recipes("ffv1", "ffv1", {"g": "6", "level": "3"}, {"g": "1"}), suffixes=("mkv", "avi", "asf")
    ),
    "mjpeg": Kind(recipes=_recipes("mjpeg", "mjpeg", {}, pix_fmt="yuvj420p"), suffixes=("mkv", "avi", "mov")),
    "prores": Kind(recipes=_recipes("prores", "prores_ks", {}, pix_fmt="yuv422p10le"), suffixes=("mov", "mkv")),
    "h264_more": Kind(
        recipes=_recipes("h264_more", "libx264", *MORE_H264), suffixes=("mp4", "mkv", "ts", "mov"), units="nal"
    ),
    "hevc_more": Kind(
        recipes=_recipes("hevc_more", "libx265", *MORE_HEVC), suffixes=("mp4", "mkv", "ts", "mov"), units="nal"
    ),
    "av1_obus": Kind(
        recipes=_recipes(
            "av1_obus", "libsvtav1", {"preset": "10", "g": "16"}, {"preset": "10", "g": "12", **LOW_DELAY}
        ),
        suffixes=("mp4", "mkv", "webm"),
        units="obu",
    ),
    "mpeg2_more": Kind(
        recipes=_recipes("mpeg2_more", "mpeg2video", INTERLACED, {**INTERLACED, "bf": "0", "intra_vlc": "1"}),
        suffixes=MPEG,
        units="start codes",
    ),
    "mpeg4_more": Kind(
        recipes=_recipes("mpeg4_more", "mpeg4", INTERLACED, {"g": "12", "bf": "1", "flags": "+qpel+mv4"}),
        suffixes=("mp4", "mkv", "avi", "mov"),
        units="start codes",
    ),
    "vp8_more": Kind(recipes=_recipes("vp8_more", "libvpx", RESILIENT_VP8), suffixes=("mkv", "webm", "ivf")),
    "vp9_more": Kind(recipes=_recipes("vp9_more", "libvpx-vp9", *MORE_VP9), suffixes=("mkv", "webm", "mp4")),
    "h263p": Kind(recipes=_recipes("h263p", "h263p", GOP_8, suffix="avi"), suffixes=("avi", "mov")),
    "msmpeg4v2": Kind(recipes=_recipes("msmpeg4v2", "msmpeg4v2", GOP_8, suffix="avi"), suffixes=("avi",)),
    "wmv1": Kind(recipes=_recipes("wmv1", "wmv1", GOP_8, suffix="avi"), suffixes=("asf", "avi")),
    "png": Kind(recipes=_recipes("png", "png", {}, pix_fmt="rgb24", suffix="mov"), suffixes=("mov", "avi")),
    "jpegls": Kind(recipes=_recipes("jpegls", "jpegls", {}, pix_fmt="bgr24", suffix="avi"), suffixes=("avi",)),
    "huffyuv": Kind(recipes=_recipes("huffyuv", "huffyuv", {}, pix_fmt="yuv422p", suffix="avi"), suffixes=("avi",)),
    "dnxhd": Kind(
        recipes=_recipes("dnxhd", "dnxhd", {"profile": "dnxhr_lb"}, pix_fmt="yuv422p", size=(256, 120), suffix="mov"),
        suffixes=("mov",),
    ),
    "svq1": Kind(recipes=_recipes("svq1", "svq1", GOP_8, pix_fmt="yuv410p", suffix="mov"), suffixes=("mov", "avi")),
    "cinepak": Kind(
        recipes=_recipes("cinepak", "cinepak", GOP_8, pix_fmt="rgb24", suffix="avi"), suffixes=("avi", "mov")
    ),
}
