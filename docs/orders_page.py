"""The results of benchmarks/orders.py, for docs/performance.md."""

from __future__ import annotations

from typing import Any

from docs.results import made_by


def orders_section(result: dict[str, Any]) -> str:
    """Return the section of docs/performance.md about samplers."""
    lines = [
        "| seconds for | making it | the first entry of an epoch | all others |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {row['making_seconds']:.2f} | {row['first_seconds']:.2f} | {row['rest_seconds']:.2f} |"
            for name, row in result["samplers"].items()
        ),
    ]
    table = "\n".join(lines)
    return f"""
## Samplers

Samplers over a dataset of {result["clips"]:,} clips of synthetic videos (the mixture has it twice), on one core. \
The first entry of an epoch needs the order of the whole epoch. `ClipDataset.shapes` took \
{1000 * result["shapes_seconds"]:.0f} ms:

{table}

The tokens of the last row are log-normal, with a long tail. Its {result["buckets"]} buckets fill batches to \
{100 * result["share_of_max_tokens"]:.0f} % of `max_tokens` on average. What was expected: a second or two to make a \
sampler, and less than a second to begin an epoch.

{made_by(result)}
"""
