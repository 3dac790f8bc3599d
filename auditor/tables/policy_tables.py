"""The tables that checks need from a policy: the media in which it finds no clip, and the views of its scenes."""

from __future__ import annotations

from dataclasses import asdict

import pyarrow as pa

from framedex.auditor.tables.database import Database
from framedex.indexer.parts.index import Index
from framedex.sharder.planning.units import units_of
from framedex.sharder.planning.without_clips import media_without_clips, timelines
from framedex.sharder.policies.reading import PolicyLike, find_policy
from framedex.sharder.views.scene_facts import facts_of

MISSES = pa.schema([("media_id", pa.string()), ("uri", pa.string()), ("reason", pa.string())])
SCENE_VIEWS = pa.schema(
    [
        ("scene", pa.string()),
        ("view", pa.string()),
        ("media_id", pa.string()),
        ("uri", pa.string()),
        ("problem", pa.string()),
        ("frames", pa.int64()),
        ("begins_seconds", pa.float64()),
        ("ends_seconds", pa.float64()),
        ("rate", pa.float64()),
        ("frame_seconds", pa.float64()),
        ("longest_gap_seconds", pa.float64()),
        ("gap_at_seconds", pa.float64()),
    ]
)


def add_policy_misses(database: Database, policy: PolicyLike) -> None:
    """Add `policy_misses`: one row per usable medium that the policy takes but in which it finds no clip.

    Raises PolicyError.
    """
    found = media_without_clips(Index(database.audited.place), find_policy(policy))
    rows = [{"media_id": video["media_id"], "uri": video["uri"], "reason": reason} for video, reason in found]
    database.add("policy_misses", pa.Table.from_pylist(rows, schema=MISSES))


def add_scene_views(database: Database, policy: PolicyLike) -> None:
    """Add `scene_views`: one row per scene and view of a policy that has views. Else the table is empty.

    Raises PolicyError.
    """
    file, index = find_policy(policy), Index(database.audited.place)
    rows: list[dict[str, object]] = []
    if file.policy.views is not None:
        units, timeline_of = units_of(index, file, ("uri",), may_be_empty=True), timelines(index)
        for unit in units:
            if unit.scene is None:
                continue
            for facts in facts_of(file.policy, unit.views(timeline_of), unit.view_names):
                row, medium = unit.scene.rows.get(facts.view), {}
                if isinstance(row, int):
                    uri = units.table.facts["uri"][row].as_py()
                    medium = {"media_id": unit.mentions[row].media_id, "uri": uri}
                rows.append({"scene": unit.scene.name} | asdict(facts) | medium)
    database.add("scene_views", pa.Table.from_pylist(rows, schema=SCENE_VIEWS))
