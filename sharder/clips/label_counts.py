"""Counts the clips of each label in each split."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from framedex.core.tallies import counted
from framedex.sharder.clips.labels import plain

LABEL, SPLIT = "label", "split"  # the usual names of the columns
ALL = "clips"  # in place of a split, if there are no splits
MOST_LABELS = 20  # that are printed one by one
MOST_LACKING = 10  # that are named

Counts = dict[str, dict[str, int]]  # split → label → clips; each split has all labels, in order


def label_counts(labels: pa.ChunkedArray, splits: pa.ChunkedArray | None) -> Counts:
    """Return how many clips each label has in each split. Clips without a label do not count.

    Args:
        labels: The label of each clip.
        splits: string, the split of each clip; None if there are no splits.
    """
    parts = pa.chunked_array([pa.repeat(ALL, len(labels))]) if splits is None else splits
    table = pa.table({LABEL: plain(labels), SPLIT: plain(parts)})
    # One thread, so that splits come in the order of the clips.
    groups = table.group_by([SPLIT, LABEL], use_threads=False).aggregate([([], "count_all")]).to_pylist()
    pairs = Counter[tuple[str, str | None]]()
    for group in groups:
        name = None if group[LABEL] is None else str(group[LABEL])
        pairs[str(group[SPLIT]), name] += group["count_all"]
    every = sorted({name for _, name in pairs if name is not None})
    return {part: {name: pairs[part, name] for name in every} for part, _ in pairs} if every else {}


def label_counts_of(table: pa.Table, column: str) -> Counts:
    """Return `label_counts` of a table of clips. `column`: the one with the labels. {}: there is no such column."""
    if column not in table.column_names:
        return {}
    return label_counts(table[column], table[SPLIT] if SPLIT in table.column_names else None)


def lacking(counts: Counts) -> list[str]:
    """Return a sentence for each split that lacks labels which another split has."""
    told = []
    for split, labels in counts.items():
        absent = [name for name, clips in labels.items() if not clips]
        if absent:
            more = f" and {len(absent) - MOST_LACKING:,} more" if len(absent) > MOST_LACKING else ""
            shown = ", ".join(absent[:MOST_LACKING])
            told.append(f"split {split} has no clip of {counted(len(absent), 'label')}: {shown}{more}")
    return told


def label_lines(counts: Counts) -> list[str]:
    """Return lines that show how many clips each label has in each split."""
    if not counts:
        return []
    labels = list(next(iter(counts.values())))
    if len(labels) > MOST_LABELS:
        return [f"{split}: {len(labels)} labels, {min(own.values()):,} to {max(own.values()):,} clips of each"
                for split, own in counts.items()]  # fmt: skip
    wide = max(len(LABEL), *(len(name) for name in labels))
    widths = {split: max(len(split), *(len(f"{clips:,}") for clips in own.values())) for split, own in counts.items()}
    heads = "  ".join(f"{split:>{widths[split]}}" for split in counts)
    rows = [
        "  ".join([f"{name:<{wide}}", *(f"{own[name]:>{widths[split]},}" for split, own in counts.items())])
        for name in labels
    ]
    return [f"{LABEL:<{wide}}  {heads}", *rows]
