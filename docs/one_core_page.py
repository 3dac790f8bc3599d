"""The part of docs/performance.md about one core on what people train on."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.training import SAMPLINGS
from benchmarks.training_videos import FORMATS
from docs.plots import dot_plot
from docs.results import load, made_by

PLOT = "one_core.svg"
Rows = list[dict[str, Any]]


def measured() -> Rows:
    """Return the rows at the videos' own size, by format and sampling."""
    rows: Rows = load("one_core.json")["rows"]
    order = list(itertools.product(FORMATS, SAMPLINGS))
    own = [row for row in rows if row["size"] is None]
    return sorted(own, key=lambda row: order.index((row["format"], row["sampling"])))


def one_core_plot() -> str:
    """Return an SVG of the milliseconds of all contenders at the videos' own size."""
    rows = measured()
    labelled = [(f"{row['format']}, {row['sampling']}", row["milliseconds_a_clip"]) for row in rows]
    return dot_plot("Milliseconds for a clip of 16 frames on one core, full size", "milliseconds a clip", labelled)


def one_core_section() -> str:
    """Return the section."""
    result = load("one_core.json")
    rows: Rows = result["rows"]
    return f"""## What people train on, one core

Clips of 16 frames from random places of a minute of video in seven formats: consecutive, every fourth frame, and one \
a second.
Every contender opens the video again for each clip; framedex has indexed and sharded before. Milliseconds are medians \
of {result["setup"]["clips"]} clips. Framedex
has the extra `fast`.

![Milliseconds a clip of all contenders at full size]({PLOT})

{_table(rows)}

`×`: how many times as fast as the best other framedex is. `packets`: those that framedex decodes for a clip, on \
average. What was expected:
at least 1.2 where planning leaves packets out, 1.0 elsewhere, and 2.5 for SVT-AV1 at one frame a second. {_below(rows)}
What has no row or no figure was not measured in that run. Nearly all bytes of the SVT-AV1 video lie in pictures that \
others refer to, so
leaving out the others gains less than their number suggests; of VP9, every packet before a wanted frame is decoded.

{_others(rows)}

{made_by(result)} Videos by `python -m benchmarks.training_videos FOLDER`.
"""


def _table(rows: Rows) -> str:
    lines = [
        "| video | clip | packets | own size, ms | best other | × | 224×224, ms | best other | × |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    scaled = {(row["format"], row["sampling"]): row for row in rows if row["size"]}
    for own in measured():
        small = scaled.get((own["format"], own["sampling"]))
        cells = [own["format"], own["sampling"], f"{own['packets_a_clip']:.0f}", *_cells(own), *_cells(small)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(row: dict[str, Any] | None) -> list[str]:
    if row is None:
        return ["–"] * 3
    times = dict(row["milliseconds_a_clip"])
    ours = times.pop("framedex")
    other, best = min(times.items(), key=lambda entry: entry[1])
    return [f"{ours:.0f}", f"{best:.0f} ({other})", f"{row['times_as_fast_as_the_best_other']:.2f}"]


def _below(rows: Rows) -> str:
    """Say which cells are below 1.0."""
    slow = [row for row in rows if row["times_as_fast_as_the_best_other"] < 1]
    if not slow:
        return "No cell is below 1.0."
    named = "; ".join(
        f"{row['format']}, {row['sampling']}, {'own size' if row['size'] is None else '224×224'} "
        f"({row['times_as_fast_as_the_best_other']:.2f})"
        for row in slow
    )
    return f"Below 1.0: {named}."


def _others(rows: Rows) -> str:
    """Say how many frames of the other libraries were the wanted ones, and which libraries have no figure where."""
    slow = [share for row in rows if row["sampling"] == "1 fps" for share in row["same_frames_share"].values()]
    rest = [share for row in rows if row["sampling"] != "1 fps" for share in row["same_frames_share"].values()]
    assert min(rest) == 1
    told = (
        "All frames of the others were nearest to those of the same numbers that framedex returned, where a clip shows "
    )
    told += "no picture twice. "
    if min(slow) < 1:
        told += "At 1 fps, the ten drawn seconds come again in a clip; of equal pictures, this run counted only the "
        told += f"first ({100 * min(slow):.0f} %)."
    lacking: dict[str, dict[str, None]] = {}
    for row in rows:
        for who, reason in row["failed"].items():
            why = "not installed" if reason == "not installed" else f"fails on {row['format']}"
            lacking.setdefault(who, {})[why] = None
    return " ".join([told.strip(), *(f"No figure of {who}: {', '.join(why)}." for who, why in lacking.items())])
