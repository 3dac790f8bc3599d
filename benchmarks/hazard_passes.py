"""One pass of benchmarks/gpu_hazards.py over clips, in its own process because it may hang or be killed by a driver.

Each clip is written to OUT as a JSON line as soon as it is done: the frames that it shows, where it should show the
requested ones, and how far its pictures are from the CPU's.

usage: python -m benchmarks.hazard_passes DATASET OUT --way loader|cpu|forced [--truth FOLDER] [--clips 3,7]
                                          [--workers 8]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.hazard_media import frame_shown
from framedex import ClipDataset, ClipLoader
from framedex.errors import FramedexError
from framedex.loader.batches import fetch
from framedex.loader.batches.faults import ClipRequest, Fault
from framedex.loader.batches.frames import Finish
from framedex.loader.routing.driver import DriverSupport, driver_support
from framedex.loader.routing.movie import GpuMovie, gpu_movie, plain_movie
from framedex.loader.routing.routes import gpu_obstacle, nvjpeg_obstacle
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip
from framedex.sharder.reading import EncodedClip

BATCH = 16
SHOWN_OF_MESSAGES = 300  # characters
Row = dict[str, Any]
Shown = Callable[[Clip, NDArray[np.uint8], NDArray[np.int64]], list[int]]


def by_barcode(clip: Clip, frames: NDArray[np.uint8], wanted: NDArray[np.int64]) -> list[int]:
    """Return the frame that each picture, uint8 [F, H, W, 3], shows by its barcode."""
    return [frame_shown(frame) for frame in frames]


def by_nearest(truths: Path) -> Shown:
    """Return a function that identifies frames by the nearest picture of a full decode.

    If the requested frame's picture is equal to the nearest one, the frame is taken to be the requested one.

    Args:
        truths: the folder of the full decodes, grey uint8 [frames, H, W] in NAME.npy.
    """

    def shown(clip: Clip, frames: NDArray[np.uint8], wanted: NDArray[np.int64]) -> list[int]:
        truth = np.load(truths / f"{clip.medium.media_id}.npy")
        if truth.shape[1:] != frames.shape[1:3]:
            return [-2] * len(frames)
        found = []
        for grey, number in zip(grey_of(frames), wanted.tolist(), strict=True):
            away = np.abs(truth.astype(np.int16) - grey).mean(axis=(1, 2))
            nearest = int(away.argmin())
            found.append(number if number >= 0 and away[number] == away[nearest] else nearest)
        return found

    return shown


def grey_of(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return uint8 [..., H, W]: the mean of red, green and blue."""
    return rgb.mean(axis=-1).astype(np.uint8)


def obstacle(dataset: ClipDataset, clip: Clip, caps: DriverSupport | None) -> str:
    """Return "nvdec" or "nvjpeg" for a clip that may be decoded there, otherwise the reason why it must not."""
    if clip.medium.kind == IMAGES:
        return nvjpeg_obstacle(clip) or "nvjpeg"
    try:
        packets = dataset.sources.read(clip)
    except FramedexError as error:
        return f"cannot be read: {error}"
    return gpu_obstacle(clip, packets, caps) or "nvdec"


def judged(dataset: ClipDataset, number: int, frames: NDArray[np.uint8], shown: Shown) -> Row:
    """Return what a clip shows: `shown`, -1 where it is padded and black; `away`, the mean difference in levels."""
    clip = dataset.clip(number)
    row: Row = {"number": number, "wanted": clip.frames.tolist()}
    truth = dataset[number]["frames"]
    if frames.shape != truth.shape:
        return row | {"shown": [-2] * len(truth), "error": f"shape {frames.shape}, not {truth.shape}"}
    found = np.array(shown(clip, frames, clip.frames))
    black = ~frames.reshape(len(frames), -1).any(axis=1)
    found[clip.frames < 0] = np.where(black[clip.frames < 0], -1, -2)
    away = np.abs(frames.astype(np.int16) - truth).mean(axis=(1, 2, 3))
    return row | {"shown": found.tolist(), "away": [round(float(value), 2) for value in away]}


def loaded(dataset: ClipDataset, device: str, workers: int, shown: Shown) -> Iterator[Row]:
    """Yield every clip through one ClipLoader, shuffled, with mixed media in batches; the loader's report is last."""
    numbers = {dataset.clip(number).clip_id: number for number in range(len(dataset))}
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    caps = driver_support(0) if device == "gpu" else None
    options: dict[str, Any] = {"device": "gpu", "decode": "gpu"} if device == "gpu" else {"output": "numpy"}
    loader = ClipLoader(
        dataset,
        batch_size=BATCH,
        sampler=order,
        collate="list",
        on_error="skip",
        num_workers=workers,
        **options,
    )
    for batch in loader:
        for clip_id, frames in zip(batch["clip_id"], batch["frames"], strict=True):
            pixels = frames if isinstance(frames, np.ndarray) else frames.cpu().numpy()
            number = numbers[clip_id]
            gate = obstacle(dataset, dataset.clip(number), caps)
            yield judged(dataset, number, pixels, shown) | {"gate": gate}
    for fault in loader.report.faults:
        gate = obstacle(dataset, dataset.clip(fault.number), caps)
        yield {"number": fault.number, "refused": _short(fault.message), "gate": gate}
    report = loader.report
    counts = {"decoded": report.decoded, "retried": report.retried, "failures": report.failures}
    loader.close()
    yield {"report": {name: dict(counter) for name, counter in counts.items()}}


def forced(dataset: ClipDataset, clips: list[int], shown: Shown) -> Iterator[Row]:
    """Yield clips as NVDEC or nvJPEG returns them, ignoring the gate, through one pipeline, one at a time."""
    from framedex.loader.dali.gpu import GpuFrames

    fetch.gpu_obstacle = lambda *arguments, **options: None
    fetch.nvjpeg_obstacle = lambda clip: None
    fetch.gpu_movie = _movie_whatever
    fetcher = fetch.Fetcher(dataset, fetch.FetchOptions(pixels=[dataset.pixels]))
    finish = Finish(transform=None, audio_transform=None, normalize=None, layout="FHWC", collate="list")
    decoder = GpuFrames(finish, device_id=0, batch_size=1, in_progress=1, threads=2, scaled=False)
    for number in clips:
        try:
            fetched = fetcher(ClipRequest(number=number, on_gpu=True))
            if isinstance(fetched, Fault):
                raise fetched.error()
            pixels = decoder.decode_alone(fetched).cpu().numpy()
        except Exception as error:
            yield {"number": number, "refused": _short(f"{type(error).__name__}: {error}")}
            continue
        try:
            yield judged(dataset, number, pixels, shown)
        except FramedexError as error:
            yield {"number": number, "refused": _short(f"the CPU refuses it: {error}")}


def _movie_whatever(clip: Clip, encoded: EncodedClip) -> GpuMovie:
    """Return the movie that a gated clip would get. Colours that cannot be corrected stay as they are."""
    try:
        movie = gpu_movie(clip, encoded)
    except (KeyError, ValueError, IndexError, FramedexError):
        movie = None
    return movie or plain_movie(clip, encoded)


def _short(message: str) -> str:
    return " ".join(message.split())[:SHOWN_OF_MESSAGES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--way", choices=["loader", "cpu", "forced"], required=True)
    parser.add_argument("--truth", type=Path, help="folder of full decodes; without it, barcodes are read")
    parser.add_argument("--clips", default="", help="numbers, for --way forced")
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    dataset = ClipDataset(options.dataset, rotation="stored")
    shown = by_barcode if options.truth is None else by_nearest(options.truth)
    if options.way == "forced":
        rows = forced(dataset, [int(number) for number in options.clips.split(",")], shown)
    else:
        rows = loaded(dataset, "gpu" if options.way == "loader" else "cpu", options.workers, shown)
    with options.out.open("w", encoding="utf-8") as out:
        for row in rows:
            print(json.dumps(row), file=out, flush=True)
    os._exit(0)  # the shutdown of libraries is not measured


if __name__ == "__main__":
    main()
