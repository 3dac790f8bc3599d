"""The results of the benchmarks of object storage, for docs/performance.md and docs/scale.md.

They are made by benchmarks/object_storage.py and benchmarks/object_requests.py.
"""

from __future__ import annotations

import statistics
from typing import Any

KINDS = {"consecutive": "16 consecutive frames", "a second apart": "16 frames a second apart"}
GET_DOLLARS = 0.0004 / 1000  # Amazon S3's list price of a GET, Standard, us-east-1
STORED_DOLLARS = 0.023  # of a GB and month
VIDEO_GB = 0.03  # of a video of a minute at 4 Mbit/s


def storage_section(loading: dict[str, Any], requests: dict[str, Any], made_by: tuple[str, str]) -> str:
    """Return the section of docs/performance.md about object storage."""
    setup, peer, indexing = loading["setup"], loading["peer"], requests["indexing"]
    lines = [f"| {setup['clips']} clips | workers | seconds, each turn | cores busy |", "| --- | --- | --- | --- |"]
    for row in loading["ways"]:
        seconds = ", ".join(f"{one:.1f}" for one in row["seconds"])
        lines.append(f"| {row['way']} | {row['workers']} | {seconds} | {100 * row['median_busy']:.0f} % |")
    asked = ["| a clip of | planning | loading | of which frames need |", "| --- | --- | --- | --- |"]
    for kind, name in KINDS.items():
        plan, load = requests[kind]["planning"], requests[kind]["loading"]
        asked.append(
            f"| {name} | {plan['requests']:.1f} requests, {plan['bytes'] / 1e6:.1f} MB | "
            f"{load['requests']:.1f} requests, {load['bytes'] / 1e6:.1f} MB | {load['wanted_bytes'] / 1e6:.1f} MB |"
        )
    return f"""
## Object storage

Clips of {setup["frames_a_clip"]} consecutive frames of a 720p30 H.264 video of five minutes, scaled to 224×224, by \
reference, from a real S3 server
(Ceph's gateway) behind a proxy that adds {1000 * setup["delay_seconds"]:.0f} ms to every answer; server, proxy, \
loader and decoders share two cores:

{chr(10).join(lines)}

PyAV seeking in the object through obstore's buffered reader, one clip after the other, takes \
{peer["seconds"] / peer["clips"]:.2f} s a clip.

What was expected: a clip is one or a few requests that run at once, so with \
{max(row["workers"] for row in loading["ways"])} clips in flight the wait
disappears behind decoding.

{made_by[0]}

Indexing that video of {indexing["size_bytes"] / 1e6:.0f} MB by its sample tables takes {indexing["requests"]} \
requests and {indexing["bytes"] / 1e6:.2f} MB. Of an index that was made
so, planning looks at packet headers of the GOPs that clips need:

{chr(10).join(asked)}

{made_by[1]}
"""


def cost_section(requests: dict[str, Any]) -> str:
    """Return the section of docs/scale.md about the requests and the cost of a million videos and a billion clips."""
    index, load = requests["indexing"], requests["consecutive"]["loading"]
    apart = requests["a second apart"]["loading"]
    indexing = 1_000_000 * index["requests"]
    clips = statistics.fmean([load["requests"]]) * 1e9
    more = apart["requests"] * 1e9
    return f"""
## Requests and their cost

Reckoned from the requests that were counted (docs/performance.md), at {1e6 * GET_DOLLARS:.2f} dollars a million \
reads and {STORED_DOLLARS} dollars a GB and month, which are
Amazon S3's list prices; reading within a region costs nothing besides:

| what | requests | dollars |
| --- | --- | --- |
| index a million MP4s of a minute, by sample tables | {indexing / 1e6:.1f} million, \
{1e6 * index["bytes"] / 1e12:.2f} TB | {indexing * GET_DOLLARS:,.2f} |
| list them, each run | {1_000_000 / 1000:,.0f} | {1000 * 0.005 / 1000:.2f} |
| load a billion clips of 16 consecutive frames | {clips / 1e9:.2f} billion | {clips * GET_DOLLARS:,.0f} |
| load a billion clips of 16 frames a second apart | {more / 1e9:.2f} billion | {more * GET_DOLLARS:,.0f} |
| keep the million videos, at 4 Mbit/s, a month | | {1_000_000 * VIDEO_GB * STORED_DOLLARS:,.0f} |

Clips were in a dataset of few row groups, which were read once. A clip drawn at random out of many takes up to three \
more requests, for its rows
of the manifest (32 clips a row group), unless a `DiskCache` has them.

What breaks first is bandwidth: at 10 Gbit/s a node reads {10e9 / 8 / load["bytes"]:,.0f} such clips a second, or \
{10e9 / 8 / apart["bytes"]:,.0f} of those a second apart; packed into
tars (`--pack clips`) a clip is one request for what its frames need and no more.
"""
