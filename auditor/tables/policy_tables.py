"""The tables that checks need from a policy: the media in which it finds no clip, and the views of its scenes."""

from __future__ import annotations

from dataclasses import asdict

import pyarrow as pa

from framedex.auditor.tables.database import Database
from framedex.indexer.parts.index import Index
from framedex.sharder.planning.units import SceneUnits
from framedex.sharder.planning.without_clips import media_without_clips, timelines
from framedex.sharder.policies.reading import PolicyLike, find_policy
from framedex.sharder.selection.scenes import Scene, listed_scenes

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
        listed = listed_scenes(index, file, file.policy.views, ("uri",))
        uris = listed.table.facts["uri"]

        def medium(scene: Scene, view: str) -> dict[str, object]:
            mention = scene.rows.get(view)
            if not isinstance(mention, int):
                return {}
            return {"media_id": listed.table.identity(mention), "uri": uris[mention].as_py()}

        for scene, facts in SceneUnits(file.policy, listed).facts(timelines(index)):
            rows += [{"scene": scene.name} | asdict(view) | medium(scene, view.view) for view in facts]
    database.add("scene_views", pa.Table.from_pylist(rows, schema=SCENE_VIEWS))
