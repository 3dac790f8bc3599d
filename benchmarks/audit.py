"""Asking an index: the audit of a million videos, and the cookbook's questions over 36 million frames, beside a long table.

The long table is what one writes first: a row a frame, with the columns of the view `frames`, zstd, DuckDB's own writer. The
same SQL is asked of it; questions over packets and GOPs have no such table and are asked of framedex's views alone. Queries
run once unmeasured, and then --runs times; the median counts.

usage: python -m benchmarks.audit [--videos 20000] [--many 1000000] [--folder FOLDER] [--runs 3]   prints JSON
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.audit_data import write_index, write_many_videos
from benchmarks.environment import environment
from framedex.audit.asked import questions
from framedex.audit.audited import opened
from framedex.audit.database import Database, database

FRAME_VIEWS = re.compile(r"\b(frames|packets|gops)\b")
LONG = "frames"
FRAMES_COLUMNS = (
    "media_id, uri, frame, packet, pts, seconds, gap_seconds, size_bytes, is_start, is_reference, is_damaged"
)


def timed(ask: Any, runs: int) -> float:
    """Return the median seconds of a call, after one that does not count."""
    ask()
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def command_seconds(runs: int, *arguments: str) -> float:
    """Return the median seconds of `framedex audit ARGUMENTS`, a process each time."""
    command = [sys.executable, "-c", "from framedex.cli import main; main()", "audit", *arguments]
    return timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), runs)


def write_long(db: Database, path: Path) -> None:
    """Write the view `frames` as one table of a row a frame."""
    answer = db.arrow(f"SELECT {FRAMES_COLUMNS} FROM frames")
    with contextlib.closing(duckdb.connect()) as connection:
        connection.register("answer", answer)
        connection.execute(f"COPY answer TO '{path}' (FORMAT parquet, COMPRESSION zstd)")


@contextlib.contextmanager
def long_database(index: Path, long: Path) -> Iterator[Any]:
    """Open the long table under the views' names, with the same `videos`."""
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute("SET parquet_metadata_cache = true")
        connection.execute(f"CREATE VIEW frames AS FROM read_parquet('{long}')")
        connection.execute(f"""CREATE VIEW videos AS SELECT *, duration_pts * time_base_num / time_base_den AS duration_seconds
            FROM read_parquet('{index}/videos/*.parquet')""")
        yield connection


def frame_questions(index: Path, long: Path, runs: int) -> list[dict[str, Any]]:
    """Return how long each question of the cookbook takes, by framedex's views and by the long table."""
    rows = []
    with opened(index) as audited, database(audited) as db, long_database(index, long) as other:
        for question in questions("questions", "index"):
            sql = question.sql
            views = set(FRAME_VIEWS.findall(sql))
            row: dict[str, Any] = {"name": question.name, "title": question.title, "over": sorted(views)}
            row["seconds"] = timed(lambda sql=sql: db.ask(sql), runs)
            if views == {LONG}:
                row["long_seconds"] = timed(lambda sql=sql: other.execute(sql).fetchall(), runs)
                assert len(db.ask(sql).rows) == len(other.execute(sql).fetchall())
            rows.append(row)
    return rows


def one_video(index: Path, long: Path, runs: int) -> dict[str, float]:
    """Return the seconds of fetching all frames of one video."""
    with opened(index) as audited, database(audited) as db, long_database(index, long) as other:
        ((media_id,),) = db.ask("SELECT media_id FROM videos WHERE status = 'ok' ORDER BY uri LIMIT 1 OFFSET 1000").rows
        sql = f"SELECT * FROM frames WHERE media_id = '{media_id}' ORDER BY frame"
        assert [row[2] for row in db.ask(sql).rows] == [row[2] for row in other.execute(sql).fetchall()]
        return {
            "seconds": timed(lambda: db.ask(sql), runs),
            "long_seconds": timed(lambda: other.execute(sql).fetchall(), runs),
        }


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.rglob("*.parquet"))


def main() -> None:
    """Make the indexes where they are not there yet, ask, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--videos", type=int, default=20_000)
    parser.add_argument("--many", type=int, default=1_000_000)
    parser.add_argument(
        "--seconds", type=float, default=49.5, help="mean length: 20 000 of these have 36 million frames"
    )
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        index, many, long = (
            folder / f"INDEX{options.videos}",
            folder / f"MANY{options.many}",
            folder / f"long{options.videos}.parquet",
        )
        if not index.exists():
            write_index(index, options.videos, seconds=options.seconds)
        if not many.exists():
            write_many_videos(many, options.many)
        with opened(index) as audited, database(audited) as db:
            if not long.exists():
                write_long(db, long)
            ((frames,),) = db.ask("SELECT count(*) FROM frames").rows
        result = {
            "environment": environment("duckdb", "fsspec"),
            "runs": options.runs,
            "videos": options.videos,
            "frames": frames,
            "many_videos": options.many,
            "bytes": {
                "index_frames": size_of(index / "frames"),
                "index_videos": size_of(index / "videos"),
                "long": size_of(long),
            },
            "command_seconds": {
                "audit": command_seconds(options.runs, str(index)),
                "audit_many": command_seconds(options.runs, str(many)),
                "help": command_seconds(options.runs, "--help"),
            },
            "one_video": one_video(index, long, options.runs),
            "questions": frame_questions(index, long, options.runs),
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
