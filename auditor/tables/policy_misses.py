"""Media in which a policy finds no clip: the table `policy_misses` that a check asks."""

from __future__ import annotations

import pyarrow as pa

from framedex.auditor.tables.database import Database
from framedex.indexer.parts.index import Index
from framedex.sharder.planning.on_the_fly import media_without_clips
from framedex.sharder.policies.reading import PolicyLike, find_policy

MISSES = pa.schema([("media_id", pa.string()), ("uri", pa.string()), ("reason", pa.string())])


def add_policy_misses(database: Database, policy: PolicyLike) -> None:
    """Add `policy_misses`: a row a usable medium of an index that a policy takes and finds no clip in. Raises PolicyError."""
    found = media_without_clips(Index(database.audited.place), find_policy(policy))
    rows = [{"media_id": video["media_id"], "uri": video["uri"], "reason": reason} for video, reason in found]
    database.add("policy_misses", pa.Table.from_pylist(rows, schema=MISSES))
