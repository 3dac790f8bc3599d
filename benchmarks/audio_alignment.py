"""How audio decoded from a planned packet on compares with a full decode, sample by sample, at random places.

Media are those of tests/audio_media.py, encoded on the spot: sweeps, noise, clicks and silence. A clip is exact where all
its samples and its mask are those of the full decode. Prints JSON.

usage: python -m benchmarks.audio_alignment [--clips 500] [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np

from benchmarks.environment import environment
from framedex.sharder.audio import plan_audio
from framedex.sharder.audio_decoder import decode_audio
from tests.audio_media import RECIPES, Truth, encode, truth

LONGEST_SECONDS = 0.5


def compare(known: Truth, clips: int, seed: int) -> dict[str, float | int | None]:
    """Return how many of so many random clips are exact, and how far the others are off."""
    facts, rng = known.facts, np.random.default_rng(seed)
    exact = packets = 0
    error = signal = worst = 0.0
    for _ in range(clips):
        begin = int(rng.integers(facts.first_sample - facts.rate // 10, facts.end_sample))
        count = int(rng.integers(1, LONGEST_SECONDS * facts.rate))
        recipe = plan_audio(known.packets, facts, Fraction(begin, facts.rate), Fraction(begin + count, facts.rate))
        samples, mask = decode_audio(facts, recipe, known.payload_of(recipe))
        expected, presented = known.cut(begin, begin + count)
        difference = np.abs(samples.astype(np.float64) - expected)
        exact += not difference.any() and np.array_equal(mask, presented)
        worst = max(worst, float(difference.max()))
        error += float((difference**2).sum())
        signal += float((expected.astype(np.float64) ** 2).sum())
        packets += len(recipe.packet_size)
    return {
        "clips": clips,
        "exact": exact,
        "worst_difference": worst,
        "signal_to_difference_db": round(10 * math.log10(signal / error), 1) if error else None,
        "packets_a_clip": round(packets / clips, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(RECIPES))
    parser.add_argument("--clips", type=int, default=500)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(options.names):
            known = truth(encode(RECIPES[name], Path(scratch) / name))
            results.append({"medium": name, "codec": known.facts.codec} | compare(known, options.clips, number))
    print(json.dumps({"environment": environment(), "results": results}, indent=2))


if __name__ == "__main__":
    main()
