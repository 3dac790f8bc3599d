"""The files of a dataset that are written after all of its clips: failures, tars, the policy and the header."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from framedex.files.atomic import write_aside, write_json_aside
from framedex.files.locks import LOCK_NAME
from framedex.files.parquet_parts import library_versions, table_of, write_part
from framedex.indexer.parts.index import Index
from framedex.sharder.schema import (
    FAILURES,
    FAILURES_NAME,
    FORMAT,
    HEADER,
    POLICY_NAME,
    SCHEMA_VERSION,
    SHARDS,
    SHARDS_NAME,
)
from framedex.sharder.writing.checkpoints import JOB_NAME, PROGRESS_NAME, Checkpoint
from framedex.sharder.writing.columns import write_columns
from framedex.sharder.writing.tables import write_empty

Row = dict[str, Any]


def write_whole(
    folder: Path, done: list[Checkpoint], schema: pa.Schema, *, index: Index, resolved: Row, facts: Row, job: Row
) -> None:
    """Write the files that turn the parts of some checkpoints into a dataset, and remove those of the run.

    Args:
        folder: Folder of the unfinished dataset.
        done: Its checkpoints, in order.
        schema: Schema of the table of clips.
        index: The index that clips were planned from.
        resolved: The policy, with all defaults filled in.
        facts: What tars hold and other keys of the header.
        job: What makes two runs the same.
    """
    shards = [row for checkpoint in done for row in checkpoint.shards]
    write_part(folder / FAILURES_NAME, table_of(failures_of(done), FAILURES), version=SCHEMA_VERSION)
    if shards:
        write_part(folder / SHARDS_NAME, table_of(shards, SHARDS), version=SCHEMA_VERSION)
    write_aside(folder / POLICY_NAME, yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True).encode())
    clips = [count for checkpoint in done for count in checkpoint.parts]
    media = [checkpoint.media for checkpoint in done if checkpoint.media]
    if not clips:
        write_empty(folder, schema)
        clips, media = [0], [0]
    columns = write_columns(folder, schema, clips_parts=len(clips), media_parts=len(media))
    digests = "".join(checkpoint.digest for checkpoint in done)
    header = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "root": index.root,
        "index_generation": index.generation,
        "index_ffmpeg": index.ffmpeg,
        **facts,
        "job": job_digest(job, index),
        "clips_per_part": clips,
        "media_per_part": media,
        "columns": columns,
        "build": hashlib.blake2b(digests.encode(), digest_size=16).hexdigest(),
        "libraries": library_versions(),
    }
    write_json_aside(folder / HEADER, header)
    for name in (JOB_NAME, PROGRESS_NAME, LOCK_NAME):
        (folder / name).unlink(missing_ok=True)


def job_digest(job: Row, index: Index) -> str:
    """Return 32 hex digits that change with anything that makes two datasets different.

    Unlike a job itself, they do not depend on where the index lies and when it was written.
    """
    own = job | {"index": index.content(), "root": index.root}
    return hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=16).hexdigest()


def failures_of(done: list[Checkpoint]) -> list[Row]:
    """Return the rows of all clips that are not available."""
    return [row for checkpoint in done for row in checkpoint.failures]
