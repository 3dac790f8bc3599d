"""Measure what cutting before conversion to RGB saves: clips of a dataset whole, cut before, and cut after conversion.

Prints JSON: the median milliseconds a clip on one core, of reading, decoding and converting, and of decoding alone.

usage: python -m benchmarks.crops DATASET [--crop 224x224] [--clips 12]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable

from benchmarks.environment import environment
from framedex import ClipDataset, Framing
from framedex.sharder.decoding import cutout, rgb
from framedex.sharder.decoding.video import decode_pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--crop", default="224x224", metavar="HxW")
    parser.add_argument("--clips", type=int, default=12)
    options = parser.parse_args()
    rgb.COMPILED_FROM = 0  # as in a long run
    height, width = map(int, options.crop.split("x"))
    whole = ClipDataset(options.dataset)
    part = ClipDataset(options.dataset, framing=Framing(crop=(height, width), position="random"))

    def decode(number: int) -> None:
        clip = whole.clip(number)
        encoded = whole.sources.read(clip)
        deque(decode_pictures(clip, encoded), maxlen=0)

    ways: dict[str, tuple[Callable[[int], object], float]] = {
        "decoding": (decode, cutout.WORTHWHILE),
        "whole": (whole.__getitem__, cutout.WORTHWHILE),
        "cut before conversion": (part.__getitem__, cutout.WORTHWHILE),
        "cut after conversion": (part.__getitem__, 0.0),  # no part is small enough
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(min(options.clips, len(whole))):
        for name, (run, worthwhile) in ways.items():
            cutout.WORTHWHILE = worthwhile
            begun = time.perf_counter()
            run(number)
            taken[name].append(1e3 * (time.perf_counter() - begun))
    milliseconds = {name: round(statistics.median(times[1:]), 1) for name, times in taken.items()}
    print(json.dumps({"milliseconds": milliseconds, "crop": options.crop, "environment": environment()}, indent=1))


if __name__ == "__main__":
    main()
