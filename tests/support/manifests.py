"""Datasets whose tables were changed by hand, and datasets as earlier versions wrote them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from framedex.files.row_blocks import write_row_blocks

BLOCK = 2  # rows of a block, so that few clips have several blocks


def write_rows(path: Path, table: pa.Table) -> None:
    """Write a file of rows."""
    write_row_blocks(path, table, BLOCK)


def rewrite_part(path: Path, table: pa.Table, **how: Any) -> None:
    """Write a part of `clips`, `recipes` or `media` of a dataset, and the file from which its single rows are read."""
    pq.write_table(table, path, **how)
    dataset, folder = path.parent.parent, path.parent.name
    if folder not in ("clips", "recipes", "media") or not (dataset / "rows").is_dir():
        return
    number = path.stem.rpartition("-")[2]
    if folder == "media":
        write_row_blocks(dataset / f"rows/media-{number}.rows", table, BLOCK)
        return
    clips, recipes = (pq.read_table(dataset / f"{name}/part-{number}.parquet") for name in ("clips", "recipes"))
    names = [name for name in recipes.column_names if name != "clip_id"]
    structs = [part.combine_chunks().to_struct_array().combine_chunks() for part in (clips, recipes.select(names))]
    write_row_blocks(dataset / f"rows/clips-{number}.rows", pa.table(structs, ["clip", "recipe"]), BLOCK)


def make_earlier(dataset: Path, *, version: str = "3.9", clips: int = 32, recipes: int = 32, media: int = 256) -> None:
    """Give a dataset the files of an earlier version, which has row groups of some rows in each table."""
    shutil.rmtree(dataset / "rows")
    for name, rows in (("clips", clips), ("recipes", recipes), ("media", media)):
        for path in sorted((dataset / name).iterdir()):
            pq.write_table(pq.read_table(path), path, rows)
    header = dataset / "dataset.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"schema_version": version}))
