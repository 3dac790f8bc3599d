"""The results of benchmarks/columns.py, for docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from docs.results import made_by

WAYS = {
    "dataset": "a dataset",
    "from_index": "`from_index`",
    "without_files": "a dataset without files of columns (before schema 3.5)",
}


def columns_section(result: dict[str, Any]) -> str:
    """Return the section of docs/performance.md about columns."""
    datasets, numbers = result["datasets"], result["numbers_of_labels_ms"]
    rows = [_row("opening it", [datasets[way]["open_ms"] for way in WAYS])]
    for name in datasets["dataset"]["columns"]:
        times = [datasets[way]["columns"].get(name, {}) for way in WAYS]
        rows += [
            _row(f"`{name}`, as {kind}", [each.get(f"{kind}_ms") for each in times]) for kind in ("numpy", "arrow")
        ]
    rows.append(_row("`label`, as numbers", [numbers[way] for way in WAYS]))
    table = "\n".join([f"| milliseconds for | {' | '.join(WAYS.values())} |", "| --- | --- | --- | --- |", *rows])
    return f"""
## Columns

`ClipDataset.column` of {result["clips"]:,} clips of {result["media"]:,} synthetic videos in {result["classes"]} \
classes, on one core, from the page cache; medians. `begin_seconds` is known only once clips are planned. For numbers \
of labels, the dataset was opened with `labels="label"`, which reads the column as well:

{table}

`pyarrow.parquet.read_table` reads the same labels from a file of their own in {result["pyarrow_ms"]:.1f} ms. What was \
expected: some tens of milliseconds from files of columns and from an index, and some seconds without them.

{made_by(result)}
"""


def _row(name: str, milliseconds: Sequence[float | None]) -> str:
    shown = ["–" if each is None else f"{each:.1f}" for each in milliseconds]
    return f"| {name} | {' | '.join(shown)} |"
