"""Time an audit of a million videos and the cookbook's questions over 36 million frames, and compare with long tables.

The same SQL also runs on two long tables, written by DuckDB's own writer with zstd:

- `plain`: one row per packet in decode order, as a demuxer gives them. The views `frames` and `gops` are window
  functions over this table.
- `prepared`: one row per frame with every column that the view `frames` computes.

Each query runs once unmeasured and then --runs times. The result is the median.

usage: python -m benchmarks.audit [--videos 20000] [--many 1000000] [--folder FOLDER] [--runs 3]   prints JSON
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
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
from framedex.auditor.findings import Question, questions
from framedex.auditor.tables.database import Database, database
from framedex.auditor.tables.subject import opened

VIEWS = re.compile(r"(?:FROM|JOIN) (frames|packets|gops)\b")
ONE_VIDEO = Question(
    name="one_video",
    title="All frames of one video",
    sql="SELECT * FROM frames WHERE media_id = (SELECT max(media_id) FROM videos WHERE status = 'ok') ORDER BY frame",
    needs=(),
)
FRAMES_COLUMNS = (
    "media_id, uri, frame, packet, pts, seconds, gap_seconds, size_bytes, is_start, is_reference, is_damaged"
)
TICK = "time_base_num / time_base_den"
PLAIN_VIEWS = {
    "frames": f"""SELECT media_id, uri, row_number() OVER shown - 1 AS frame, packet, pts, pts * {TICK} AS seconds,
        (pts - lag(pts) OVER shown) * {TICK} AS gap_seconds, packets.size_bytes, (flags & 3) <> 0 AS is_start,
        (flags & 4) = 0 AS is_reference, (flags & 256) <> 0 AS is_damaged
    FROM packets JOIN videos USING (media_id) WHERE (flags & 176) = 0 \
WINDOW shown AS (PARTITION BY media_id ORDER BY pts)""",
    "gops": f"""SELECT media_id, uri, gop, min(packet) AS first_packet, count(*) AS packets, sum(bytes) AS size_bytes,
        arg_min(pts, packet) * any_value({TICK}) AS seconds
    FROM (SELECT media_id, packet, pts, size_bytes AS bytes, \
sum(((flags & 3) <> 0)::INT) OVER (PARTITION BY media_id ORDER BY packet) - 1 AS gop FROM packets)
    JOIN videos USING (media_id) GROUP BY ALL""",
}


def timed(ask: Any, runs: int) -> float:
    """Return the median seconds of a call, after one unmeasured call."""
    ask()
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def command_seconds(runs: int, *arguments: str) -> float:
    """Return the median seconds of `framedex audit ARGUMENTS`, each time in a new process."""
    command = [sys.executable, "-c", "from framedex.cli import main; main()", "audit", *arguments]
    return timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), runs)


def write_long(db: Database, sql: str, path: Path) -> None:
    """Write the result of a query as one table."""
    answer = db.arrow(sql)
    with contextlib.closing(duckdb.connect()) as connection:
        connection.register("answer", answer)
        connection.execute(f"COPY answer TO '{path}' (FORMAT parquet, COMPRESSION zstd)")


@contextlib.contextmanager
def long_database(index: Path, views: dict[str, str]) -> Iterator[Any]:
    """Open long tables under the views' names, together with the same `videos`."""
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute("SET parquet_metadata_cache = true")
        connection.execute(f"""CREATE VIEW videos AS SELECT *, duration_pts * {TICK} AS duration_seconds, \
start_pts * {TICK} AS start_seconds
            FROM read_parquet('{index}/videos/*.parquet')""")
        for name, sql in views.items():
            connection.execute(f"CREATE VIEW {name} AS {sql}")
        yield connection


def frame_questions(index: Path, plain: Path, prepared: Path, runs: int) -> list[dict[str, Any]]:
    """Return how long each question of the cookbook takes with framedex's views and with long tables."""
    rows = []
    with (
        opened(index) as audited,
        database(audited) as db,
        long_database(index, {"packets": f"FROM '{plain}'"} | PLAIN_VIEWS) as by_packets,
        long_database(index, {"frames": f"FROM '{prepared}'"}) as by_frames,
    ):
        for question in [*questions("questions", "index"), ONE_VIDEO]:
            sql, views = question.sql, sorted(set(VIEWS.findall(question.sql)))
            row: dict[str, Any] = {"name": question.name, "title": question.title, "over": views}
            row["seconds"] = timed(lambda sql=sql: db.ask(sql), runs)
            others = {"plain_seconds": by_packets} if views else {}
            others |= {"prepared_seconds": by_frames} if views == ["frames"] else {}
            for name, other in others.items():
                row[name] = timed(lambda sql=sql, other=other: other.execute(sql).fetchall(), runs)
                assert alike(db.ask(sql).rows, other.execute(sql).fetchall()), question.name
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)
    return rows


def alike(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> bool:
    """Return whether two results are equal, apart from differences in how numbers are summed."""
    return len(one) == len(other) and all(
        mine == theirs or (isinstance(mine, float) and math.isclose(mine, theirs, rel_tol=1e-6, abs_tol=0.011))
        for row, its in zip(one, other, strict=True)
        for mine, theirs in zip(row, its, strict=True)
    )


def size_of(path: Path) -> int:
    """Return the size in bytes of a file, or of all files in a folder."""
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.rglob("*.parquet"))


def main() -> None:
    """Create the indexes that are missing, run the queries and print JSON."""
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
        index, many = folder / f"INDEX{options.videos}", folder / f"MANY{options.many}"
        plain, prepared = folder / f"plain{options.videos}.parquet", folder / f"prepared{options.videos}.parquet"
        if not index.exists():
            write_index(index, options.videos, seconds=options.seconds)
        if not many.exists():
            write_many_videos(many, options.many)
        with opened(index) as audited, database(audited) as db:
            if not plain.exists():
                write_long(db, "SELECT media_id, packet, pts, size_bytes, flags, byte_offset FROM packets", plain)
            if not prepared.exists():
                write_long(db, f"SELECT {FRAMES_COLUMNS} FROM frames", prepared)
            ((frames,),) = db.ask("SELECT count(*) FROM frames").rows
        result = {
            "environment": environment("duckdb", "fsspec"),
            "runs": options.runs,
            "videos": options.videos,
            "frames": frames,
            "many_videos": options.many,
            "bytes": {"index": size_of(index / "frames"), "plain": size_of(plain), "prepared": size_of(prepared)},
            "command_seconds": {
                "audit": command_seconds(options.runs, str(index)),
                "audit_many": command_seconds(options.runs, str(many)),
                "help": command_seconds(options.runs, "--help"),
            },
            "questions": frame_questions(index, plain, prepared, options.runs),
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
