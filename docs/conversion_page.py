"""The part of docs/performance.md about how much of a worker's time is conversion to RGB."""

from __future__ import annotations

from docs.results import load, made_by

CONVERTED = ("rgb_scaled", "rgb_own_size")


def conversion_section() -> str:
    """Return the section."""
    result = load("conversion.json")
    height, width = result["setup"]["size"]
    lines = [
        f"| video | clip | decoding, ms | and RGB at {height}×{width} | and RGB at its own size | "
        f"RGB at {height}×{width}, MB | planes, MB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        taken, size = row["milliseconds"], row["kilobytes"]
        cells = [f"{taken[way]:.1f} ({100 * (taken[way] / taken['decoding'] - 1):+.0f} %)" for way in CONVERTED]
        cells += [f"{size['rgb_scaled'] / 1000:.1f}", f"{size['planes'] / 1000:.1f}"]
        lines.append(f"| {row['format']} | {row['sampling']} | {taken['decoding']:.1f} | " + " | ".join(cells) + " |")
    table = "\n".join(lines)
    return f"""### What conversion to RGB costs a worker

Milliseconds for a clip of 16 frames on one core: decoding alone, with RGB at the size of training, and with RGB at the
video's own size (extra `fast`). This is all that a worker would save if it sent planes to the GPU, beside the bytes
that it would then hand over ([why it does not](decisions/0031-planes-stay-on-the-cpu.md)).

{table}

What was expected: a fifth of the time or more, as before RGB was compiled.

{made_by(result)}
"""
