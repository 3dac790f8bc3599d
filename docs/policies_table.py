"""The generated part of docs/policies.md: the clips that every file of configs/ gives on one example video."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np

from framedex.sharder.policies.reading import read_policy
from framedex.sharder.policies.sampling import Sampled, Sampling, Timeline

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
MODELINE = "# yaml-language-server: $schema=policy.schema.json\n"  # the first line of each, for editors
ROW = {"start": 2.5, "end": 6.0, "cuts": [0, 4, 7, 10.4]}
RATES = ((24, 96), (60, 180), (30, 102))  # (frames per second, number of frames)
TICKS = 600  # per second


def example_timeline() -> Timeline:
    """Return a video of 10.4 s, with a start point about every 2 s: 4 s at 24 frames/s, 3 s at 60, 3.4 s at 30."""
    gaps = np.concatenate([np.full(count, TICKS // rate) for rate, count in RATES])
    pts = np.cumsum(gaps) - gaps
    starts = np.searchsorted(pts, np.arange(0, int(gaps.sum()), 2 * TICKS))
    return Timeline(
        pts=pts, duration_pts=int(gaps.sum()), time_base=Fraction(1, TICKS), starts=starts, name="0123456789abcdef"
    )


def example_text() -> str:
    """Return a description of the example video."""
    timeline = example_timeline()
    rates = ", then ".join(f"{count / rate:g} s at {rate} frames a second" for rate, count in RATES)
    starts = ", ".join(map(str, timeline.starts.tolist()))
    return (
        f"The example video has a variable frame rate: {rates}; "
        f"{float(timeline.seconds):g} s and {len(timeline.pts)} frames in all, with "
        f"start points at frames {starts}. Its row of the listing says `start: {ROW['start']}`, `end: {ROW['end']}`, "
        f"`cuts: {ROW['cuts']}`. Padded frames stand in parentheses, `–` where nothing is shown."
    )


def clip_text(clip: Sampled) -> str:
    """Return the frames of a clip, with padded ones in parentheses."""
    frames = zip(clip.frames.tolist(), clip.mask.tolist(), strict=True)
    return " ".join(str(frame) if real else f"({frame if frame >= 0 else '–'})" for frame, real in frames)


def span_text(timeline: Timeline, clip: Sampled) -> str:
    """Return the times of the earliest and latest frame of a clip, without padding."""
    seconds = timeline.pts[clip.frames[clip.mask]] * float(timeline.time_base)
    return f"{seconds.min():.2f}–{seconds.max():.2f} s"


def sampling_table(timeline: Timeline, sampling: Sampling, most: int = 4) -> str:
    """Return the clips of a policy as a Markdown table.

    If there are too many, the first ones and the last one are shown.
    """
    lines = ["| clip | from–to | frames |", "| --- | --- | --- |"]
    shown = sampling.clips if len(sampling.clips) <= most else [*sampling.clips[: most - 1], sampling.clips[-1]]
    for place, clip in enumerate(shown):
        if place == most - 1 and len(sampling.clips) > most:
            lines.append("| … | | |")
        lines.append(f"| {clip.number} | {span_text(timeline, clip)} | {clip_text(clip)} |")
    lines += [f"| {missed.number} | | {missed.kind}: {missed.message} |" for missed in sampling.missed]
    return "\n".join(lines)


def policies_table() -> str:
    """Return every YAML file with its clips, in Markdown."""
    timeline = example_timeline()
    parts = [example_text()]
    for path in sorted(CONFIGS.glob("*.yaml")):
        made = read_policy(path)
        table = sampling_table(timeline, made.policy.sample(timeline, ROW))
        text = path.read_text(encoding="utf-8").removeprefix(MODELINE).strip()
        parts.append(f"### configs/{path.name}\n\n```yaml\n{text}\n```\n\n{table}")
    return "\n\n".join(parts) + "\n"
