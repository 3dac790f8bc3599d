"""The results of benchmarks/framing.py, for docs/performance.md."""

from __future__ import annotations

from typing import Any

from docs.results import made_by


def framing_section(gpu: dict[str, Any], cpu: dict[str, Any]) -> str:
    """Return the section of docs/performance.md about framing.

    Args:
        gpu: the result with a GPU and workers beside it.
        cpu: the result with workers alone.
    """
    rows = []
    for name, row in gpu["ways"].items():
        shape, on_cpu = "×".join(map(str, row["shape"])), cpu["ways"][name]["ms_a_clip"]
        rows.append(f"| {name} | {shape} | {row['ms_a_clip']:.1f} | {on_cpu:.1f} |")
    table = "\n".join(["| frames | shape | GPU | CPU |", "| --- | --- | --- | --- |", *rows])
    return f"""
## Framing

Milliseconds for a clip of 16 frames, each 4 frames apart, of `benchmarks/make_video.py v.mp4 --seconds 20` (720p60 \
H.264), out of ClipLoader in batches of 8: on a GPU with workers beside it, and with workers alone, on two machines. \
Medians of epochs of {gpu["clips"]} clips:

{table}

What was expected: decoding takes most of the time, so framing costs less than a tenth more than stretching to the \
same size. Whole frames of the stored size take longer on a GPU: fewer batches are in progress at once, for their \
memory, which leaves the workers less to do.

{made_by(gpu)} {made_by(cpu)}
"""
