"""The results of benchmarks/lerobot_cameras.py, for docs/performance.md."""

from __future__ import annotations

from typing import Any

from docs.results import made_by


def cameras_section(result: dict[str, Any]) -> str:
    """Return the section of docs/performance.md about LeRobot datasets."""
    peer, difference = result["peer_versions"], result["difference"]
    runs = len(next(iter(result["runs"].values()))["framedex"])
    lines = ["| DataLoader | framedex | lerobot with torchcodec | ratio |", "| --- | --- | --- | --- |"]
    for workers, rates in result["samples_per_second"].items():
        each = [f"{rates[name]:.0f} ({_range(result['runs'][workers][name])})" for name in ("framedex", "lerobot")]
        lines.append(f"| {workers} | {each[0]} | {each[1]} | {result['ratio'][workers]:.1f} × |")
    table = "\n".join(lines)
    return f"""
## Two cameras of a LeRobot dataset

Samples a second in shuffled order, in batches of {result["batch_size"]}: two frames of each of two cameras (640×480, \
AV1 as the lerobot package writes it) and 16 actions, by `MultiViewDataset` and by `LeRobotDataset` with \
`delta_timestamps`, in a torch DataLoader each. Median of {runs} passes over {result["samples"]} samples, which take \
turns; in brackets the slowest and the fastest. framedex delivers uint8 in the order of pixels, lerobot float32 in \
planes.

{table}

The pictures are the same: they differ from lerobot's by {difference["mean"]} of 255 steps on average, at most \
{difference["worst"]} in one sample, as both convert colours with other code; pictures one frame later differ by \
{difference["one_frame_later"]} at least. The suite compares every frame of a small dataset \
([LeRobot datasets](sources.md#lerobot-datasets)).

{made_by(result)} lerobot {peer["lerobot"]}, torchcodec {peer["torchcodec"]} and torch {peer["torch"]} in an \
environment of their own.
"""


def _range(rates: list[float]) -> str:
    return f"{min(rates):.0f} to {max(rates):.0f}"
