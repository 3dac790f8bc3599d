"""The results of benchmarks/streams.py, for docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs.results import made_by
from framedex.core.words import counted

PACKS = {"clips": "tiny videos", "images": "images"}
DECODING = {"cpu": "decoded", "movie": "only read"}
READERS = ("ClipDataset", "ClipStream")


def streams_section(result: dict[str, Any]) -> str:
    """Return the section of docs/performance.md about streams."""
    setup, tars = result["setup"], result["tars"]
    rates = {(row["pack"], row["from"], row["decode"], row["reader"]): row for row in result["rows"]}
    cases = list(dict.fromkeys(key[:3] for key in rates))
    lines = [
        "| clips as | from | | ClipDataset, shuffled | ClipStream | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_line(case, *(rates[(*case, reader)] for reader in READERS)) for case in cases),
    ]
    table = "\n".join(lines)
    return f"""
## Streams

Clips a second of `ClipStream` with a buffer of {setup["buffer"]} clips, beside `ClipDataset` in the shuffled order \
of `ClipSampler`, in torch's DataLoader with {setup["workers"]} workers and batches of {setup["batch_size"]}: the \
first {setup["delivered"]} clips of an epoch of {setup["clips"]}, from the first batch on. A clip has \
{setup["frames_a_clip"]} frames, {setup["stride"]} apart, of a minute of video ({setup["format"]}), as 224×224. \
They lie in {_tars(tars["clips"])} of tiny videos, or in \
{_tars(tars["images"])} of images of 256 pixels. The bucket is that of a real S3 server (Ceph's gateway) behind a \
proxy that adds {1000 * setup["delay_seconds"]:.0f} ms to every answer; server, proxy, loader and decoders share two \
cores. "Cold": the tars were dropped from the page cache. In brackets: the slowest and the fastest of \
{len(result["rows"][0]["each"])} turns.

{table}

What was expected: the same speed from a warm disk, where decoding bounds both; 1.0 to 1.2 times as fast from a \
cold disk; and 3 times as fast or more from the bucket, where `ClipDataset` waits for some requests of each clip, and \
the stream for almost none. Other work ran on the two cores at the same time, so decoding took longer than it does \
alone, and hid most of the waiting: from the bucket, decoded clips came {_ratio(rates, "clips", "cpu"):.2f} (tiny \
videos) and {_ratio(rates, "images", "cpu"):.2f} (images) times as fast. Reading alone shows the waiting: \
{_ratio(rates, "clips", "movie"):.1f} times. (Up to 32 clips are ready when the first batch is delivered.) Reading \
alone from a disk takes too short a time here to be compared.

{made_by(result)}
"""


def _ratio(rates: Mapping[tuple[str, ...], dict[str, Any]], pack: str, decode: str) -> float:
    """Return how many times as fast the stream was from the bucket."""
    dataset, stream = (rates[(pack, "bucket", decode, reader)]["clips_a_second"] for reader in READERS)
    return float(stream / dataset)


def _tars(found: dict[str, int]) -> str:
    return f"{counted(found['tars'], 'tar')} ({found['bytes'] / 1e6:.0f} MB)"


def _line(case: tuple[str, str, str], dataset: dict[str, Any], stream: dict[str, Any]) -> str:
    pack, place, decode = case
    ratio = stream["clips_a_second"] / dataset["clips_a_second"]
    return f"| {PACKS[pack]} | {place} | {DECODING[decode]} | {_rate(dataset)} | {_rate(stream)} | {ratio:.2f} × |"


def _rate(row: dict[str, Any]) -> str:
    return f"{row['clips_a_second']:.1f} ({min(row['each']):.1f} to {max(row['each']):.1f})"
