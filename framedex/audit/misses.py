"""Media in which a policy finds no clip: the table `policy_misses` that a check asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from framedex.audit.database import Database
from framedex.indexer.index import Index
from framedex.sharder.indexed import IndexedMedium
from framedex.sharder.mentions import usable_media
from framedex.sharder.policies import PolicyFile, read_policy

MISSES = pa.schema([("media_id", pa.string()), ("uri", pa.string()), ("reason", pa.string())])


def add_policy_misses(database: Database, policy: Path) -> None:
    """Add `policy_misses`: a row a usable medium of an index that a policy takes and finds no clip in. Raises PolicyError."""
    rows = list(_misses(Index(database.audited.place), read_policy(policy)))
    database.add("policy_misses", pa.Table.from_pylist(rows, schema=MISSES))


def _misses(index: Index, file: PolicyFile) -> Iterator[dict[str, str]]:
    for mentioned in usable_media(index, file.filter, file.split):
        track = IndexedMedium(index, mentioned.video, keep_damaged=False).track
        samplings = [file.policy.sample(track, mention.columns) for mention in mentioned.mentions]
        if any(sampling.clips for sampling in samplings):
            continue
        reasons = [missed.message for sampling in samplings for missed in sampling.missed]
        video = mentioned.video
        yield {
            "media_id": video["media_id"],
            "uri": video["uri"],
            "reason": reasons[0] if reasons else "the policy asks for no clip of it",
        }
