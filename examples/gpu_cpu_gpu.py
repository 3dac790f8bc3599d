"""Move frames from the GPU to the CPU and back on their way into a batch: decode on NVDEC, change with numpy, train.

ClipLoader's `transform` is a function of DALI operations. DALI's dynamic executor copies between the devices where the
function requests it: `frames.cpu()` copies a batch to the host, later operations run there, and `.gpu()` copies it
back. The step in the middle here is random erasing, which blanks one rectangle in all frames of a clip:
`fn.random.uniform` draws it, and `erase` blanks it with DALI operations on the CPU. A step without a DALI operation is
one numpy function, passed to `fn.python_function` (`--numpy`). It holds the interpreter's lock while it runs.

By hand: python examples/gpu_cpu_gpu.py DATASET --device gpu [--numpy] [--size 224 224] It prints the shape, device and
share of erased pixels of each batch. With --device cpu, the same pipeline makes no copies.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn

from framedex import ClipDataset, ClipLoader, ClipSampler

LEAST, MOST = 0.2, 0.5  # the sides of the rectangle, as shares of the frame's sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--numpy", action="store_true", help="the step on the CPU is a numpy function")
    parser.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), default=(224, 224))
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    dataset = ClipDataset(options.dataset)
    loader = ClipLoader(
        dataset,
        batch_size=options.batch_size,
        sampler=ClipSampler(dataset, shuffle=True),
        device=options.device,
        size=tuple(options.size),
        transform=transform_for(options.device, by_numpy=options.numpy),
        num_workers=options.workers,
    )
    for number, batch in enumerate(loader):
        frames = batch["frames"]
        black = (frames == 0).all(-1).float().mean().item()
        print(f"batch {number}: {tuple(frames.shape)} on {frames.device}, {black:.0%} of the pixels erased")
        if number + 1 == options.batches:
            break
    loader.close()


def transform_for(device: str, *, by_numpy: bool) -> Callable[[Any], Any]:
    """Return a transform that flips on the device, erases on the CPU, and copies the result back to the device."""

    def transform(frames: Any) -> Any:
        frames = fn.flip(frames, horizontal=fn.random.coin_flip())
        on_cpu = frames.cpu() if device == "gpu" else frames
        erased = fn.python_function(on_cpu, function=erase_at_random, num_outputs=1) if by_numpy else erase(on_cpu)
        erased = fn.reshape(erased, layout="FHWC")
        return erased.gpu() if device == "gpu" else erased

    return transform


def erase(frames: Any) -> Any:
    """Blank a rectangle of each clip with DALI operations."""
    shape = fn.random.uniform(range=(LEAST, MOST), shape=2)
    anchor = fn.random.uniform(range=(0.0, 1.0 - MOST), shape=2)
    return fn.erase(
        frames,
        anchor=anchor,
        shape=shape,
        normalized_anchor=True,
        normalized_shape=True,
        axis_names="HW",
        fill_value=0,
    )


def erase_at_random(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a clip, uint8 [F, H, W, 3], with a blank rectangle. Any function of numpy arrays can take its place."""
    _, height, width, _ = frames.shape
    rng = np.random.default_rng()
    sides = [int(side * rng.uniform(LEAST, MOST)) for side in (height, width)]
    top, left = (int(rng.integers(0, whole - side)) for whole, side in zip((height, width), sides, strict=True))
    erased = frames.copy()
    erased[:, top : top + sides[0], left : left + sides[1]] = 0
    return erased


if __name__ == "__main__":
    main()
