"""The columns of the small tables of a dataset: its failures, and its tars."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from framedex.core.column_rules import FAR, ColumnRule
from framedex.records.clip import INT32
from framedex.records.columns import column


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A clip that could not be made.

    Attributes:
        clip_id: The clip that was asked for, where it had a name.
        uri: The medium it was asked of.
        kind: Short stable word for why there is no clip.
        message: The reason in words.
        counts: Whether it counts as a failure of the run; what a policy leaves out by its own rules does not.
        traceback: Where framedex itself failed (`kind` is `internal_error`); else null.
    """

    clip_id: str | None = column(pa.string())
    uri: str | None = column(pa.string())
    kind: str = column(pa.string(), nullable=False)
    message: str = column(pa.string(), nullable=False)
    counts: bool = column(pa.bool_(), nullable=False, default=True)
    traceback: str | None = column(pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A tar of a dataset.

    Attributes:
        name: File in the dataset: a tar.
        size_bytes: Its size.
        fingerprint: Its fingerprint, made as `videos.fingerprint` of an index.
        clips: How many clips it holds.
    """

    name: str = column(pa.string(), nullable=False)
    size_bytes: int = column(pa.int64(), unit="bytes", nullable=False, rule=ColumnRule(least=0, most=FAR, needed=True))
    fingerprint: str = column(pa.string(), nullable=False)
    clips: int = column(pa.int64(), nullable=False, rule=ColumnRule(least=0, most=INT32, needed=True))
