"""The part of docs/performance.md about a GPU and its host's cores on what people train on."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.training import SAMPLINGS
from benchmarks.training_videos import DRAWN_SECONDS, FORMATS
from docs.plots import dot_plot
from docs.results import load, made_by

TRAINING_PLOT = "training.svg"
WAYS = {"auto": "both (auto)", "nvdec": "NVDEC alone", "cpu": "CPUs alone"}
Row = dict[str, Any]


def training_plot() -> str:
    """Return an SVG of the clips per second of each way of decoding."""
    labelled = []
    for row in _rows():
        rates = _rates(row)
        labelled.append(
            (f"{row['format']}, {row['sampling']}", {WAYS[way]: rates[way] for way in WAYS if way in rates})
        )
    return dot_plot("Clips of 16 frames a second, delivered at 224×224 on a GPU", "clips a second", labelled)


def training_section() -> str:
    """Return the section."""
    result, peers = load("training.json"), load("training_peers.json")
    setup, rows = result["setup"], _rows()
    compared = sum(row[way].get("frames_compared", 0) for row in rows for way in WAYS)
    wrong = sum(row[way].get("frames_wrong", 0) for row in rows for way in WAYS)
    rates = ", ".join(f"{name} {made.kilobits / 1000:g}" for name, made in FORMATS.items())
    return f"""## What people train on, one GPU and its host

Clips of {setup["frames_a_clip"]} frames from random places of a minute of video, in batches of \
{setup["batch_size"]}, delivered at 224×224 on the GPU: consecutive, every
fourth frame, and one a second. Seconds are medians of {setup["epochs"]} epochs of 128 clips (64 at one frame a \
second), after one to warm up.
NVDEC alone has {setup["ways"]["nvdec"][1]} processes that read, the others {setup["ways"]["cpu"][1]}. The pictures \
are a panning texture with noise; {DRAWN_SECONDS} s are
encoded at usual bit rates, and their packets repeated (Mbit/s: {rates}).

![Clips a second of NVDEC alone, CPUs alone, and both]({TRAINING_PLOT})

{_table(rows)}

`of better`: the speed of both, divided by that of the better one alone. `of sum`: divided by the sum of both. \
`first batch`: seconds until
`auto` delivers its first batch, with its processes, imports and decoders. {_missing(rows)} Of {compared} frames that \
were compared with a
full decode, {wrong} were others.

What was expected: at least 0.97 of the better in every cell, and 0.85 of the sum where both can decode. \
{_below(rows)}
The sum cannot be had on small pictures: there, both ways spend their time on the host. NVDEC alone takes \
{_least(rows):.1f} ms a clip of 340×256,
which is reading, laying out and handing over in the process that feeds the GPU, and it shares the \
{result["environment"]["cores"]} cores with the
{setup["ways"]["auto"][1]} processes that decode. On this GPU, no AV1 is given to NVDEC.

{made_by(result)} Videos by `python -m benchmarks.training_videos FOLDER`.

Other libraries on the same clips, batches and size, with {peers["setup"]["workers"]} processes or threads, the first \
{peers["setup"]["clips"]} clips once, after a few to warm up.
framedex is `auto` of the table above. All open the video again for each clip.

{_peer_table(peers["rows"], rows)}

`other frames`: of those compared with framedex's. What is not in the table was not measured in that run. `past` \
so many seconds: the loader had not delivered all clips by then.

{made_by(peers)}
"""


def _rows() -> list[Row]:
    order = list(itertools.product(FORMATS, SAMPLINGS))
    return sorted(load("training.json")["rows"], key=lambda row: order.index((row["format"], row["sampling"])))


def _rates(row: Row) -> dict[str, float]:
    """Return the clips per second of each way that has a figure."""
    return {way: row["clips"] / row[way]["median"] for way in WAYS if "median" in row[way]}


def _shares(row: Row) -> tuple[float, float | None]:
    """Return the speed of both as a share of the better one's, and of the sum if both can decode."""
    rates = _rates(row)
    alone = [rates[way] for way in ("nvdec", "cpu") if way in rates]
    return rates["auto"] / max(alone), rates["auto"] / sum(alone) if len(alone) == 2 else None


def _table(rows: list[Row]) -> str:
    lines = [
        "| video | clip | packets | NVDEC, s | CPUs, s | both, s | by NVDEC | of better | of sum | first batch |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        better, whole = _shares(row)
        seconds = [f"{row[way]['median']:.2f}" if "median" in row[way] else "–" for way in ("nvdec", "cpu", "auto")]
        decoded = row["auto"]["decoded"]
        share = decoded.get("nvdec", 0) / sum(decoded.values())
        cells = [row["format"], row["sampling"], f"{row['packets_a_clip']:.0f}", *seconds, f"{100 * share:.0f} %"]
        cells += [f"{better:.2f}", "–" if whole is None else f"{whole:.2f}", f"{row['auto']['first_batch']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _missing(rows: list[Row]) -> str:
    """Say which cells have no row."""
    had = {(row["format"], row["sampling"]) for row in rows}
    lacking = [cell for cell in itertools.product(FORMATS, SAMPLINGS) if cell not in had]
    if not lacking:
        return ""
    return "Not measured in that run: " + "; ".join(f"{name}, {sampling}" for name, sampling in lacking) + "."


def _least(rows: list[Row]) -> float:
    """Return the milliseconds that NVDEC alone takes for a clip of the smallest pictures."""
    return min(1000 / _rates(row)["nvdec"] for row in rows if row["format"] == "340x256 GOP 30")


def _below(rows: list[Row]) -> str:
    """Say which cells are below what was expected."""
    told = [(row, *_shares(row)) for row in rows]
    slow = [f"{row['format']}, {row['sampling']} ({better:.2f})" for row, better, _ in told if better < 0.97]
    large = [whole for row, _, whole in told if whole is not None and FORMATS[row["format"]].height >= 720]
    small = [whole for row, _, whole in told if whole is not None and FORMATS[row["format"]].height < 720]
    return (
        f"Below the first: {'; '.join(slow) or 'no cell'}. Of the sum, {min(large):.2f} to {max(large):.2f} was "
        f"reached from 720p on, and {min(small):.2f} to {max(small):.2f} below."
    )


def _peer_table(peers: list[Row], rows: list[Row]) -> str:
    lines = ["| video | clip | loader | clips a second | other frames |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        key = (row["format"], row["sampling"])
        others = [peer for peer in peers if (peer["format"], peer["sampling"]) == key]
        if others:
            lines.append(f"| {key[0]} | {key[1]} | framedex | {_rates(row)['auto']:.1f} | |")
        for peer in sorted(others, key=lambda peer: -(peer["clips_per_second"] or 0)):
            rate = f"{peer['clips_per_second']:.1f}" if peer["clips_per_second"] else peer["reason"]
            lines.append(
                f"| {key[0]} | {key[1]} | {peer['name']} {peer['version'] or ''} | {rate} | "
                f"{peer['different']} of {peer['compared']} |"
            )
    return "\n".join(lines)
