"""The media that a policy's filter leaves out, and errors for a filter or a policy that leaves nothing to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from framedex.core.words import SHOWN, counted, tally, values_text
from framedex.errors import INTERNAL_ERROR, PLEASE_REPORT, NoClipsError, PolicyError
from framedex.indexer.parts.index import Index
from framedex.records.clip import Failure
from framedex.records.medium import OK
from framedex.sharder.configuration.filters import columns_in
from framedex.sharder.policies.reading import PolicyFile
from framedex.sharder.selection.mentions import MentionTable, joined_mentions

MOST_REASONS = 3  # kinds of failures in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The usable media for which a filter accepts no row. `examples`: the uris of the first ones."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


def left_out(index: Index, file: PolicyFile, table: MentionTable) -> LeftOut:
    """Return which media a policy's filter leaves out. Raises PolicyError if it leaves out all media.

    Args:
        table: The rows that the filter accepts.
    """
    if file.filter is None:
        return LeftOut()
    usable = len(index) - index.unusable
    chosen = np.unique(table.media_row)
    if usable and not len(chosen):
        raise _matches_nothing(index, file, usable)
    media = index.columns(["uri", "status"])
    others = np.setdiff1d(np.arange(usable), chosen)[:SHOWN]
    examples = media.filter(pc.equal(media["status"], OK))["uri"].take(pa.array(others)).to_pylist()
    return LeftOut(count=usable - len(chosen), examples=examples)


def _matches_nothing(index: Index, file: PolicyFile, usable: int) -> PolicyError:
    text = str(file.resolved["filter"])
    values: dict[str, Counter[str]] = {name: Counter() for name in columns_in(text)}
    for _, _, _, joined in joined_mentions(index):
        for name, counts in values.items():
            counts.update(tally(joined[name].chunks))
    return PolicyError(
        f"the filter leaves out {'the only usable medium' if usable == 1 else f'all {usable:,} usable media'}",
        where=f"filter, asked of {index.path}",
        found=text,
        allowed=values_text(values),
        remedy="ask for values that there are",
    )


def no_clips(index: Index, failures: Iterable[Failure]) -> NoClipsError:
    """Return the error for a dataset without clips, with the most frequent reasons.

    Args:
        index: The index that clips were planned from.
        failures: Why clips could not be made.
    """
    kinds, first = Counter[str](), dict[str, Failure]()
    rows = []
    for failure in failures:
        rows.append(asdict(failure))
        kinds[failure.kind] += 1
        first.setdefault(failure.kind, failure)
    if len(index) == index.unusable:
        found, remedy = _unusable(index), "framedex audit shows the media of the index and what is wrong with them"
    else:
        told = [(kind, count, first[kind]) for kind, count in kinds.most_common(MOST_REASONS)]
        reasons = [f"{count:,} × {kind}, such as {failure.uri}: {failure.message}" for kind, count, failure in told]
        usable = counted(len(index) - index.unusable, "usable medium", "usable media")
        found = "\n".join(reasons) or f"{usable}, of which the policy asks for no clip"
        remedy = "change the policy or the list of clips"
    if INTERNAL_ERROR in first:
        remedy = PLEASE_REPORT
    error = NoClipsError("there would be no clips", where=str(index.path), found=found, remedy=remedy, failures=rows)
    if INTERNAL_ERROR in first:
        error.add_note(first[INTERNAL_ERROR].traceback or "")
    return error


def _unusable(index: Index) -> str:
    """Return how many media an index has, and why they are not usable."""
    rows = index.columns(["status", "error_kind", "error_message", "uri"]).to_pylist()
    kinds = Counter((row["status"], row["error_kind"]) for row in rows if row["status"] != OK)
    told = ", ".join(f"{count:,} {status} ({kind})" for (status, kind), count in kinds.most_common(MOST_REASONS))
    example = f"; {rows[0]['uri']}: {rows[0]['error_message']}" if rows else ""
    return f"{counted(len(rows), 'medium', 'media')}, none of which is usable{': ' if told else ''}{told}{example}"
