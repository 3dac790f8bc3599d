"""Which decoder a clip goes to, by the manifest's facts alone: a pure function, so that reruns route alike.

NVDEC through DALI returns wrong or stale pictures without an error for some streams, and breaks its pipeline on others.
So a clip goes there only when streams like it were shown to be right; everything else is decoded on the CPU.
"""

from __future__ import annotations

from framedex.indexer.schema import IMAGES
from framedex.loader.colour import has_correction
from framedex.sharder.clip import Clip

# What was right in 1 178 planned clips on one H200 (docs/exactness.md).
PROVEN_PROFILES = {
    "h264": ("Constrained Baseline", "Baseline", "Main", "High"),
    "hevc": ("Main", "Main 10"),
}
PROVEN_FORMATS = {
    "h264": ("yuv420p", "yuvj420p"),
    "hevc": ("yuv420p", "yuvj420p", "yuv420p10le"),
}
PROVEN_CONTAINERS = ("mp4", "matroska")  # where packets are length-prefixed
LEAST_SIZE = {"h264": 48, "hevc": 144}
GREATEST_SIZE = {"h264": 4096, "hevc": 8192}
CHROMA_420 = 1


def gpu_obstacle(clip: Clip) -> str | None:
    """Return why a clip must not go to NVDEC, or None when it may."""
    medium, recipe = clip.medium, clip.recipe
    if medium.kind == IMAGES:
        return "images"
    if medium.codec not in PROVEN_PROFILES:
        return f"codec {medium.codec}"
    if medium.container not in PROVEN_CONTAINERS:
        return f"container {medium.container}"
    if medium.profile not in PROVEN_PROFILES[medium.codec] or medium.pixel_format not in PROVEN_FORMATS[medium.codec]:
        return f"profile {medium.profile}, {medium.pixel_format}"
    if medium.chroma_format != CHROMA_420:
        return "monochrome or not 4:2:0"
    if not all(
        LEAST_SIZE[medium.codec] <= side <= GREATEST_SIZE[medium.codec] for side in (medium.width, medium.height)
    ):
        return f"size {medium.width}x{medium.height}"
    if not has_correction(medium.color_matrix):
        return f"colour matrix {medium.color_matrix}"
    if medium.max_ref_frames == 0:
        return "no reference frames"  # DALI 2.4 asks NVDEC for an empty picture buffer: CUDA_ERROR_INVALID_VALUE
    if medium.field_coded:
        return "field-coded pictures"
    if medium.inband_parameter_sets or medium.varying_shape or recipe.run_state.any():
        return "changing parameter sets"
    if recipe.damaged:
        return "a damaged GOP"
    if medium.inner_start_codes:
        return "start codes inside length-prefixed units"
    # In H.264, DALI counts IDR pictures alone as starts. In HEVC, a first run may begin at a CRA picture; one spliced to
    # the run before it goes on counting picture order from there, which turns back when more than half a cycle is cut
    # out. (100 clips with short cuts came out right; that is not all clips.)
    if recipe.run_open.any() and (medium.codec == "h264" or recipe.run_open[1:].any()):
        return "an open start point"
    return None
