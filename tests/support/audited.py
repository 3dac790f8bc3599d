"""Indexes of given rows, for cases that no test medium covers; and the findings of an audit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.audit_data import LABELS, synthetic_media
from framedex.auditor.tables.database import Database, database
from framedex.auditor.tables.subject import opened
from framedex.files import outputs, parquet_parts
from framedex.indexer import schema
from framedex.indexer.parts import part_pairs
from framedex.indexer.schema import FORMAT, LISTING, SCHEMA_VERSION
from tests.support.datasets import run


def sound_row(number: int) -> part_pairs.Row:
    """Return the `videos` row of a video in which no check finds anything. Different numbers give different names."""
    seed = number
    while True:
        draw = np.random.default_rng(seed)
        video, _, _ = synthetic_media(number, draw, 20.0)
        plain = video["status"] == "ok" and not video["is_vfr"] and video["color_matrix"] == 1
        sound = not video["open_gop_count"] and not video["rotation_degrees"] and video["color_transfer"] == 1
        simple = video["codec"] == "h264" and video["max_gap_seconds"] < 1 and not video.get("audio_start_seconds")
        stated = video["stated_duration_seconds"] == video["duration_pts"] / video["time_base_den"]
        if (
            plain
            and sound
            and simple
            and stated
            and video["seek_packets"] < 120
            and video["fingerprint"] == f"{number:032x}"
        ):
            return video | {"audio_codec": None, "field_order": "progressive", "first_packets": f"{number:016x}"}
        seed += 1000


def write_rows(
    out: Path,
    *parts: list[dict[str, Any]],
    labels: dict[str, str] | None = None,
    packets: dict[str, dict[str, Any]] | None = None,
) -> Path:
    """Write an index of these rows of `videos`.

    Args:
        parts: the rows of each part.
        labels: the labels of media by uri.
        packets: the columns pts, size and flags of media by id. Other media have no packets.
    """
    out.mkdir(parents=True)
    header = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "root": "/videos", "generation": 1}
    outputs.write_json_aside(out / schema.HEADER, header)
    for rows in parts:
        pairs = part_pairs.PartPairs(out)
        for row in rows:
            columns = (packets or {}).get(row["media_id"], {"pts": [], "size": [], "flags": []})
            pairs.add([(row, {"media_id": row["media_id"]} | columns)])
        pairs.flush()
    if labels is not None:
        listed = [row for rows in parts for row in rows]
        table = parquet_parts.table_of(
            [{"media_id": row["media_id"], "listing_row": 0, "listed_uri": row["uri"]} for row in listed], LISTING
        )
        own = [labels.get(row["uri"], LABELS[0]) for row in listed]
        parquet_parts.write_part(out / schema.LISTING_NAME, table.append_column("label", [own]), version=SCHEMA_VERSION)
    return out


def found(*arguments: object, code: int = 0) -> dict[str, dict[str, Any]]:
    """Run `framedex audit ARGUMENTS --json`; return its findings by check."""
    answer = json.loads(run("audit", *arguments, "--json", code=code).stdout)
    return {finding["check"]: finding for finding in answer["findings"]}


@contextlib.contextmanager
def audited_database(folder: str | Path) -> Iterator[Database]:
    """Give the database that an audit of an index or a dataset asks."""
    with opened(folder) as audited, database(audited) as db:
        yield db


def cookbook(place: Path) -> list[str]:
    """Return the names of the questions that `framedex audit PLACE --ask list` lists."""
    return [line.split()[0] for line in run("audit", place, "--ask", "list").output.splitlines()]
