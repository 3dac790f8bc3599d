"""Pictures for colour tests: natural, saturated test patterns, flat patches; their planes for any matrix and range."""

from __future__ import annotations

import av
import av.filter
import numpy as np
from numpy.typing import NDArray

from framedex.sharder.decoding.rgb import RgbConverter

WIDTH, HEIGHT, PATCH = 320, 256, 64
Planes = tuple[NDArray[np.uint16], ...]
LUMA_WEIGHTS = {  # of red and blue, by ITU-T H.273, table 4
    1: (0.2126, 0.0722), 2: (0.299, 0.114), 4: (0.30, 0.11), 5: (0.299, 0.114), 6: (0.299, 0.114), 7: (0.212, 0.087),
    9: (0.2627, 0.0593),
}  # fmt: skip
FORMATS = {8: "yuv420p", 10: "yuv420p10le"}


def natural() -> NDArray[np.float64]:
    """Return float64 [H, W, 3] in 0…1: clouds of luma and muted chroma with the spectral decay of photographs."""
    rng = np.random.default_rng(5)
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    frequency[0, 0] = 1

    def clouds(fall: float) -> NDArray[np.float64]:
        spectrum = rng.normal(size=(2, *frequency.shape)) / frequency**fall
        noise = np.fft.irfft2(spectrum[0] + 1j * spectrum[1], (HEIGHT, WIDTH))
        return (noise - noise.mean()) / noise.std()

    light, red, blue = clouds(1.2), clouds(1.6), clouds(1.6)
    rgb = [0.5 + 0.17 * light + 0.06 * red, 0.5 + 0.17 * light - 0.03 * (red + blue), 0.45 + 0.16 * light + 0.07 * blue]
    return np.clip(np.stack(rgb, axis=-1), 0, 1)


def pattern(name: str) -> NDArray[np.float64]:
    """Return float64 [H, W, 3] in 0…1: the first picture of an FFmpeg source filter, testsrc2 or smptebars."""
    graph = av.filter.Graph()
    source = graph.add(name, f"size={WIDTH}x{HEIGHT}:rate=1")
    sink = graph.add("buffersink")
    source.link_to(sink)
    graph.configure()
    frame = graph.pull()
    assert isinstance(frame, av.VideoFrame)
    return rgb_of(frame) / 255


def rgb_of(picture: av.VideoFrame, *colours: int) -> NDArray[np.uint8]:
    """Return uint8 [H, W, 3]: a picture as framedex converts it.

    Args:
        colours: the matrix and the range. None: those that the picture states.
    """
    return RgbConverter(*colours).picture(picture)


def flat(seed: int) -> NDArray[np.float64]:
    """Return float64 [H, W, 3] in 0…1: 4 × 5 patches of PATCH × PATCH pixels with almost grey colours."""
    rng = np.random.default_rng(seed)
    colours = np.clip(rng.uniform(0.1, 0.9, (20, 1)) + rng.uniform(-0.1, 0.1, (20, 3)), 0.05, 0.95)
    return np.kron(colours.reshape(4, 5, 3), np.ones((PATCH, PATCH, 1)))


def patch_middles(rgb: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return int64 [20, 3]: the centre of each patch of a picture made by `flat`."""
    return rgb[PATCH // 2 :: PATCH, PATCH // 2 :: PATCH].reshape(-1, 3).astype(np.int64)


def ycc_from_rgb(red: float, blue: float) -> NDArray[np.float64]:
    """Return float64 [3, 3]: luma and chroma from colours, by the weights of red and blue (ITU-T H.273, 8.3)."""
    luma = np.array([red, 1 - red - blue, blue])
    return np.stack([luma, (np.eye(3)[2] - luma) / 2 / (1 - blue), (np.eye(3)[0] - luma) / 2 / (1 - red)])


def planes_of(rgb: NDArray[np.float64], matrix: int, *, full_range: bool, bits: int) -> Planes:
    """Return 4:2:0 planes Y, Cb, Cr, uint16, for a matrix and range (ITU-T H.273 8.3); chroma: mean of 2 × 2 pixels."""
    ycc = rgb @ ycc_from_rgb(*LUMA_WEIGHTS[matrix]).T
    height, width = rgb.shape[:2]
    chroma = ycc[..., 1:].reshape(height // 2, 2, width // 2, 2, 2).mean((1, 3))
    step, most = 1 << (bits - 8), (1 << bits) - 1
    black, luma, colour = (0, most, most) if full_range else (16 * step, 219 * step, 224 * step)
    samples = black + luma * ycc[..., 0], 128 * step + colour * chroma[..., 0], 128 * step + colour * chroma[..., 1]
    return tuple(np.clip(np.rint(plane), 0, most).astype(np.uint16) for plane in samples)


def frame_of(planes: Planes, matrix: int, *, full_range: bool, bits: int) -> av.VideoFrame:
    """Return planes as a frame that states its matrix and range."""
    height, width = planes[0].shape
    frame = av.VideoFrame(width, height, FORMATS[bits])
    for target, plane in zip(frame.planes, planes, strict=True):
        sample = np.uint8 if bits == 8 else np.uint16
        rows = np.zeros((target.height, target.line_size // np.dtype(sample).itemsize), sample)
        rows[:, : plane.shape[1]] = plane
        target.update(rows.tobytes())
    frame.colorspace, frame.color_range = matrix, 2 if full_range else 1
    return frame


def upsampled(plane: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a chroma plane at twice its size: linear between the centres of 2 × 2 pixels, edges repeated."""
    padded = np.pad(plane, 1, mode="edge")
    for _ in range(2):
        near, before, after = padded[1:-1], padded[:-2], padded[2:]
        padded = np.stack([0.75 * near + 0.25 * before, 0.75 * near + 0.25 * after], axis=1)
        padded = padded.reshape(-1, padded.shape[2]).T
    return padded


def psnr(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Return the peak signal-to-noise ratio in dB; 99 for equal pictures."""
    error = np.square(one.astype(np.float64) - other).mean()
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))
