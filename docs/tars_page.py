"""The results of benchmarks/tars.py and benchmarks/tar_requests.py, for docs/performance.md."""

from __future__ import annotations

from typing import Any

from docs.results import made_by


def tars_section(loading: dict[str, Any], requests: dict[str, Any]) -> str:
    """Return the section of docs/performance.md about videos in tars."""
    rates = {row["reader"]: row for row in loading["rows"]}
    lines = ["| reader | clips a second | each epoch |", "| --- | --- | --- |"]
    for name, row in rates.items():
        each = ", ".join(f"{rate:.1f}" for rate in row["each"])
        lines.append(f"| {name} | {row['clips_a_second']:.1f} | {each} |")
    alone, inside = (rates[f"framedex, {name}"]["clips_a_second"] for name in ("files", "tar"))
    table = "\n".join(lines)
    videos, indexing, planning = requests["videos"], requests["indexing"], requests["planning"]
    clip = requests["loading"]
    return f"""
## Tars

Clips out of one webdataset tar of {loading["tar_bytes"] / 1e9:.1f} GB, which holds {loading["videos"]} H.264 videos \
({loading["format"]}, a minute each): 16 frames, 2 apart, as 224×224, one clip of each video in random order, in \
{loading["workers"]} processes. webdataset reads the tar from its beginning to its end, and torchcodec decodes a clip \
from the bytes of each video.

{table}

Out of the tar, framedex has {inside / alone:.2f} of its speed out of unpacked files. What was expected: 1, because \
the same ranges are read; and webdataset behind it, because it reads and scans whole videos.

{made_by(loading)}

Indexing a tar of {requests["tar_bytes"] / 1e9:.1f} GB with {videos} videos in a bucket takes \
{indexing["requests"] / videos:.1f} requests and {indexing["bytes"] / videos / 1e6:.2f} MB for each video \
({requests["by_tables"]} of them by their sample tables), planning such a clip {planning["requests"] / videos:.1f} \
requests, and loading it {clip["requests"]:.1f} requests and {clip["bytes"] / 1e6:.2f} MB, of which its frames need \
{clip["wanted_bytes"] / 1e6:.2f} MB.

{made_by(requests)}
"""
