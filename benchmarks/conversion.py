"""Measure how much of a worker's time is conversion to RGB: what workers would save by sending planes to the GPU.

For clips of each format and sampling of benchmarks/training.py, on one core, the median milliseconds a clip of decoding
alone, of decoding with RGB at 224×224, and of decoding with RGB at the video's own size; and the kilobytes that a
worker would hand over as RGB at 224×224, as planes of 4:2:0, and as RGB at the video's own size.

usage: python -m benchmarks.conversion FOLDER --out RESULTS [--only FORMAT] [--sampling NAME] [--clips 12]
       (FOLDER holds the videos of `python -m benchmarks.training_videos FOLDER`; datasets are made in it)
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from benchmarks.environment import environment
from benchmarks.row_file import Row, RowFile
from benchmarks.training import FRAMES, SAMPLINGS, SIZE, dataset_path, grid_parser, prepare_all
from benchmarks.training_videos import FORMATS
from framedex import ClipDataset
from framedex.sharder.decoding import rgb
from framedex.sharder.decoding.cutout import whole
from framedex.sharder.decoding.video import decode_frames, decode_pictures


def measure(folder: Path, name: str, sampling: str, clips: int) -> Row:
    """Return the milliseconds a clip of each way, and the kilobytes of its results."""
    dataset = ClipDataset(dataset_path(folder, name, sampling))
    taken: dict[str, list[float]] = {"decoding": [], "rgb_scaled": [], "rgb_own_size": []}
    for number in range(clips):
        clip = dataset.clip(number)
        encoded = dataset.sources.read(clip)
        ways: dict[str, Callable[[], object]] = {
            "decoding": lambda clip=clip, encoded=encoded: deque(decode_pictures(clip, encoded), maxlen=0),
            "rgb_scaled": lambda clip=clip, encoded=encoded: decode_frames(clip, encoded, whole(SIZE)),
            "rgb_own_size": lambda clip=clip, encoded=encoded: decode_frames(clip, encoded),
        }
        for way, run in ways.items():
            begun = time.perf_counter()
            run()
            taken[way].append(1e3 * (time.perf_counter() - begun))
    made = FORMATS[name]
    pixels = FRAMES * made.width * made.height
    # The first clip compiles code and fills caches.
    milliseconds = {way: round(statistics.median(times[1:]), 1) for way, times in taken.items()}
    kilobytes = {
        "rgb_scaled": FRAMES * SIZE[0] * SIZE[1] * 3 // 1000,
        "planes": pixels * 3 // 2000,
        "rgb_own_size": pixels * 3 // 1000,
    }
    return {"milliseconds": milliseconds, "kilobytes": kilobytes}


def main() -> None:
    parser = grid_parser(__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=12)
    options = parser.parse_args()
    rgb.COMPILED_FROM = 0  # as in a long run
    folder = options.folder.absolute()
    rows = RowFile(options.out, environment("numba"), {"clips": options.clips, "size": SIZE})
    names = options.only or list(FORMATS)
    prepare_all(folder, names)
    for name, sampling in itertools.product(names, options.sampling or list(SAMPLINGS)):
        key = {"format": name, "sampling": sampling}
        if not rows.has(**key):
            rows.add(key | measure(folder, name, sampling, options.clips))


if __name__ == "__main__":
    main()
