"""docs/scale.md: the results of benchmarks/scale.py, and what follows from them for larger sizes."""

from __future__ import annotations

from typing import Any

GB = 1e9
BILLION = 1_000_000_000


def scale_page(result: dict[str, Any], note: str, made_by: str) -> str:
    """Return the content of docs/scale.md.

    Args:
        result: The result of benchmarks/scale.py.
        note: The first line of the page.
        made_by: The sentence about the run.
    """
    stages = result["stages"]
    write, compacted, opened = stages["write"], stages["compact"], stages["open"]
    look_up, plan, sample = stages["look up"], stages["plan"], stages["sample"]
    media, frames, clips = write["media"], write["frames"], plan["clips"]
    index_bytes, clip_bytes = compacted["bytes"] / frames, plan["bytes"] / clips
    rate = clips / plan["seconds"]
    opening = 1e6 * (opened["peak_mb"] - opened["at_rest_mb"]) / media
    drawing = 1e6 * (sample["peak_mb"] - sample["at_rest_mb"]) / clips
    return f"""{note}
# Size

An index of {media:,} synthetic videos with {frames:,} frames, and a dataset of a clip of each, on one core. Every \
stage runs in a
process of its own; {write["at_rest_mb"]} MB of its memory are Python and its libraries.

| stage | seconds | most memory | what there is then |
| --- | --- | --- | --- |
| write the index | {write["seconds"]:.0f} | {write["peak_mb"]} MB | {write["files"]:,} files, \
{write["bytes"] / 1e6:,.0f} MB |
| open it as it was written | {stages["open, many parts"]["seconds"]:.1f} | {stages["open, many parts"]["peak_mb"]} \
MB | |
| compact it | {compacted["seconds"]:.0f} | {compacted["peak_mb"]} MB | {compacted["files"]:,} files, \
{compacted["bytes"] / 1e6:,.0f} MB |
| open it | {opened["seconds"]:.1f} | {opened["peak_mb"]} MB | |
| look up {look_up["lookups"]:,} videos | {look_up["seconds"]:.1f} | {look_up["peak_mb"]} MB | packets of one: \
{look_up["packets_median_ms"]:.1f} ms, 99th percentile {look_up["packets_p99_ms"]:.1f} ms; its row: \
{look_up["row_median_ms"]:.1f} ms |
| plan a clip of each video, and write the dataset | {plan["seconds"]:.0f} | {plan["peak_mb"]} MB | {plan["files"]:,} \
files, {plan["bytes"] / 1e6:,.0f} MB |
| open it and draw an epoch, as one of {sample["ranks"]:,} ranks | {sample["seconds"]:.1f} | {sample["peak_mb"]} MB | \
{sample["clips_of_a_rank"]:,} clips a rank |

What was expected: nothing takes memory in proportion to frames. What takes some for each medium is opening an index
({opening:.0f} bytes a video: its name, and where its rows are), and for each clip a sampler ({drawing:.0f} bytes: \
the order of an epoch).

{made_by} Clips were planned while other work ran on both cores.

## A billion clips

What follows from these figures, not measured:

| what | of a billion |
| --- | --- |
| frames of an index | {index_bytes * BILLION / GB:,.1f} GB for a billion frames |
| clips in a dataset's manifest | {clip_bytes * BILLION / GB:,.0f} GB |
| planning them, a video a clip | {BILLION / rate / 3600:,.0f} hours of one core; by filters of an index, as many \
machines as there are datasets |
| a sampler's order | {drawing * BILLION / GB:,.0f} GB in each rank |

The sampler breaks first: above about {4 * GB / drawing / 1e6:,.0f} million clips its order takes more than 4 GB in \
every process that has one.
Datasets of that size are split, by a filter or by a split of their policy, and a training takes one after the other. \
Then the opening of an index: above about {4 * GB / opening / 1e6:,.0f} million videos it takes more than 4 GB, in each
process that plans.
"""
