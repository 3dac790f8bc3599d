"""The table `policy_misses` for a check: media in which a policy finds no clip."""

from __future__ import annotations

import pyarrow as pa

from framedex.auditor.tables.database import Database
from framedex.indexer.parts.index import Index
from framedex.sharder.planning.on_the_fly import media_without_clips
from framedex.sharder.policies.reading import PolicyLike, find_policy

MISSES = pa.schema([("media_id", pa.string()), ("uri", pa.string()), ("reason", pa.string())])


def add_policy_misses(database: Database, policy: PolicyLike) -> None:
    """Add `policy_misses`: one row per usable medium that the policy takes but in which it finds no clip.

    Raises PolicyError.
    """
    found = media_without_clips(Index(database.audited.place), find_policy(policy))
    rows = [{"media_id": video["media_id"], "uri": video["uri"], "reason": reason} for video, reason in found]
    database.add("policy_misses", pa.Table.from_pylist(rows, schema=MISSES))
