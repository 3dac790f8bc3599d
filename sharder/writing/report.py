"""Make the report of a run of `framedex shard`: counts and failures."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.compute as pc

from framedex.core.column_rules import reading
from framedex.errors import INTERNAL_ERROR, FormatError
from framedex.indexer.parts.index import Index
from framedex.sharder.clips.labels import LABEL, SPLIT, Counts, WantedLabels, label_counts_of
from framedex.sharder.layout import dataset_header
from framedex.sharder.schema import COLUMNS_NAME, FAILURES_NAME, FIELDS_NAME, HEADER, SHARDS_NAME
from framedex.sharder.selection.mentions import LeftOut
from framedex.sharder.writing.whole import job_digest
from framedex.storage.places import Place, parquet_file

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """The contents of a dataset, counted over this run and the earlier runs that it continued.

    Attributes:
        out: The folder or uri of the dataset.
        clips: The number of clips.
        media: The number of media from which the clips were made.
        frames: The total number of frames of the clips, repeats and padding included.
        shards: The number of tars.
        resumed: The number of items (clips and failures) that earlier runs processed.
        failures: One row per missing clip, with its kind and message, as in failures.parquet. This includes clips that
            are left out without counting as failures (see `left_out`).
        filtered: The media that the policy's filter leaves out.
        finished: Whether an earlier run had already finished the dataset, so that this run wrote nothing.
        labels: {split: {label: number of clips}}. Without splits, the only key of the outer dict is "clips".
    """

    out: Place
    clips: int
    media: int
    frames: int
    shards: int
    resumed: int
    failures: list[Row]
    filtered: LeftOut = field(default_factory=LeftOut)
    finished: bool = False
    labels: Counts = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """The number of failures, without internal errors and without clips that are left out (see `left_out`)."""
        return sum(bool(failure["counts"]) for failure in self.failures) - self.internal

    @property
    def internal(self) -> int:
        """The number of clips that are missing because of an internal error of framedex."""
        return sum(failure["kind"] == INTERNAL_ERROR for failure in self.failures)

    @property
    def left_out(self) -> dict[str, int]:
        """The number of missing clips that do not count as failures, by reason, such as {"short": 3, "damaged": 1}."""
        return dict(sorted(Counter(failure["kind"] for failure in self.failures if not failure["counts"]).items()))


def with_labels(report: ShardReport, labels: WantedLabels | None) -> ShardReport:
    """Add the number of clips per label to the report of a dataset, if the clips have labels.

    Args:
        report: The report.
        labels: The labels that the dataset records. If None, the values of the column "label", if any, are counted.
    """
    path = report.out / COLUMNS_NAME
    if not path.exists():
        return report
    column = LABEL if labels is None else labels.column
    file = parquet_file(path)
    names = [name for name in (column, SPLIT) if name in file.schema_arrow.names]
    return replace(report, labels=label_counts_of(file.read(names), column))


def finished_report(out: Place, job: Row, index: Index) -> ShardReport | None:
    """Return the report of the dataset if an earlier run of the same job has finished it. Return None otherwise.

    Args:
        out: The folder or uri of the dataset.
        job: The values that identify the job. A run with equal values writes the same dataset.
        index: The index of the clips.

    Raises:
        FormatError: The dataset is damaged.
    """
    if not (out / HEADER).exists():
        return None
    try:
        header = dataset_header(out)
    except FormatError:
        return None  # `check_output` raises the error for this folder later
    if header.get("job") != job_digest(job, index):
        return None
    with reading(str(out), "shard again, with --overwrite"):
        failures = parquet_file(out / FAILURES_NAME).read().to_pylist()
        frames = parquet_file(out / FIELDS_NAME).read(["wanted_frames"])["wanted_frames"]
        shards = parquet_file(out / SHARDS_NAME).metadata.num_rows if (out / SHARDS_NAME).exists() else 0
    return ShardReport(
        out=out,
        clips=sum(header["clips_per_part"]),
        media=sum(header["media_per_part"]),
        frames=pc.sum(frames).as_py() or 0,
        shards=shards,
        resumed=0,
        failures=failures,
        finished=True,
    )
