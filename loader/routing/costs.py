"""Estimates how long a CPU core and a GPU take for a clip, from what the manifest says: pure functions of the clip.

The constants are rates of one H200 and of one core of its host. A loader corrects them by what it measures
(`balance`), so that only their proportions between clips matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRate:
    """What a core needs to decode a codec.

    Attributes:
        pixel: nanoseconds per pixel of a decoded picture.
        byte: nanoseconds per byte.
    """

    pixel: float
    byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCost:
    """Estimated seconds for one clip.

    Attributes:
        codec: the codec, because a CPU's correction differs between codecs.
        cpu: seconds of one core.
        gpu: seconds of the GPU's decoders, if it has nothing else to decode.
    """

    codec: str
    cpu: float
    gpu: float


CPU_RATES = {
    "h264": CpuRate(pixel=1.7, byte=140.0),
    "hevc": CpuRate(pixel=1.6, byte=240.0),
    "vp9": CpuRate(pixel=2.5, byte=50.0),
    "av1": CpuRate(pixel=0.9, byte=300.0),
    "mjpeg": CpuRate(pixel=3.0, byte=20.0),
}
OTHER_RATE = CpuRate(pixel=2.0, byte=100.0)
CPU_CLIP = 1e-3  # seconds, besides pixels and bytes
CPU_CONVERTED = 1.3e-9  # seconds per pixel of a wanted picture, converted to RGB and scaled
GPU_CLIP, GPU_PACKET, GPU_PIXEL = 1.2e-3, 10e-6, 60e-12  # seconds on NVDEC (benchmarks/results/nvdec.json)
NVJPEG_IMAGE, NVJPEG_PIXEL = 50e-6, 200e-12  # seconds


def clip_cost(clip: Clip) -> ClipCost:
    """Return the estimated cost of a clip."""
    medium, recipe = clip.medium, clip.recipe
    pixels, packets = medium.width * medium.height, len(recipe.packet_size)
    wanted = len(np.unique(recipe.position[recipe.position >= 0]))
    rate = CPU_RATES.get(medium.codec, OTHER_RATE)
    cpu = (
        CPU_CLIP
        + 1e-9 * rate.pixel * packets * pixels
        + 1e-9 * rate.byte * float(recipe.packet_size.sum())
        + CPU_CONVERTED * wanted * pixels
    )
    if medium.kind == IMAGES:
        gpu = packets * (NVJPEG_IMAGE + NVJPEG_PIXEL * pixels)
    else:
        gpu = GPU_CLIP + packets * (GPU_PACKET + GPU_PIXEL * pixels)
    return ClipCost(codec=medium.codec, cpu=cpu, gpu=gpu)
