"""Compare audio decoded from planned packets with a full decode, sample by sample, at random places.

The media are those of tests/support/audio_media.py, encoded on the spot: sweeps, noise, clicks and silence. A clip is
exact if all its samples and its mask equal those of the full decode. The same comparison with less pre-roll shows what
each codec needs. If the ffmpeg command is installed, a libvorbis file is also decoded by PyAV and by libvorbis.
Prints JSON.

usage: python -m benchmarks.audio_alignment [--clips 500] [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from benchmarks.environment import environment
from framedex.sharder.clips.clip import PRE_ROLL, PreRoll, plan_audio
from framedex.sharder.decoding.audio import decode_audio
from tests.support.audio_media import RECIPES, Truth, encode, truth
from tests.support.ffmpeg import ffmpeg

LONGEST_SECONDS = 0.5
RESERVOIR = {"reservoir_bytes": 511, "overhead_bytes": 38}
LESS = {
    "aac_without_noise.mp4": [PreRoll(), PreRoll(packets=1)],
    "mp3.mp3": [PreRoll(), PreRoll(packets=2), PreRoll(**RESERVOIR), PreRoll(packets=1, **RESERVOIR)],
    "vorbis.ogg": [PreRoll()],
    "ac3.mp4": [PreRoll()],
    "eac3.mkv": [PreRoll(), PreRoll(packets=1)],
    "opus.ogg": [PreRoll(seconds=Fraction(count, 100)) for count in (8, 30)],
    "opus_voice.mkv": [PreRoll(seconds=Fraction(count, 100)) for count in (8, 30)],
}


def compare(known: Truth, clips: int, seed: int) -> dict[str, float | int | None]:
    """Return how many of `clips` random clips are exact, and how far the others are off."""
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


def with_less(known: Truth, pre_roll: PreRoll, clips: int) -> dict[str, object]:
    """Return the comparison with a pre-roll other than the table's."""
    codec = known.facts.codec
    kept, PRE_ROLL[codec] = PRE_ROLL[codec], pre_roll
    try:
        return {"pre_roll": asdict(pre_roll) | {"seconds": float(pre_roll.seconds)}} | compare(known, clips, 0)
    finally:
        PRE_ROLL[codec] = kept


def vorbis_beside_libvorbis(scratch: Path) -> dict[str, float]:
    """Return how far PyAV's decode of a libvorbis file differs from libvorbis' own decode."""
    path = encode(RECIPES["libvorbis.ogg"], scratch / "libvorbis.ogg")
    decoder = [ffmpeg(), "-v", "error", "-c:a", "libvorbis", "-i", str(path), "-f", "f32le", "-"]
    out = subprocess.run(decoder, check=True, capture_output=True).stdout
    difference = np.abs(truth(path).samples - np.frombuffer(out, "<f4").reshape(-1, 2).T)
    return {
        "largest_difference": float(difference.max()),
        "share_of_samples_off_by_1e_4": round(float((difference > 1e-4).mean()), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(RECIPES))
    parser.add_argument("--clips", type=int, default=500)
    options = parser.parse_args()
    results, less = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(options.names):
            known = truth(encode(RECIPES[name], Path(scratch) / name))
            results.append({"medium": name, "codec": known.facts.codec} | compare(known, options.clips, number))
            less += [{"medium": name} | with_less(known, each, options.clips) for each in LESS.get(name, [])]
        vorbis = vorbis_beside_libvorbis(Path(scratch))
    ran = environment() | {"libavcodec": ".".join(map(str, av.library_versions["libavcodec"]))}
    out = {"environment": ran, "results": results, "less_pre_roll": less, "vorbis_beside_libvorbis": vorbis}
    print(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
