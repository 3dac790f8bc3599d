"""docs/audit.md: the checks, the views, and the questions of the cookbook with their answers for an example."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from benchmarks.audit_data import write_index
from framedex.auditor.findings import SHOWN, checks_of, print_table, questions
from framedex.auditor.tables.database import QueryLimits, database
from framedex.auditor.tables.query_process import QueryProcess
from framedex.auditor.tables.subject import Kind, described, opened
from framedex.cli import main

EXAMPLE_VIDEOS = 400
POLICY = """\
policy: windows
frames: 16
fps: 4
step_seconds: 3
short: pad
split:
  shares: {train: 8, val: 2}
  by: media_id
"""
WHAT: dict[Kind, str] = {"index": "INDEX", "dataset": "DATASET"}


def audit_page(result: dict[str, Any], note: str, made_by: str) -> str:
    """Return the content of docs/audit.md.

    Args:
        result: The result of benchmarks/audit.py.
        note: The first line of the page.
        made_by: The sentence about the run.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_index(Path("INDEX"), EXAMPLE_VIDEOS)
        Path("policy.yaml").write_text(POLICY, encoding="utf-8")
        run("shard", "INDEX", "--policy", "policy.yaml", "--out", "DATASET")
        leaked = run("audit", "DATASET", "--check", "leaked_videos")
        asked = run(
            "audit",
            "INDEX",
            "--sql",
            "SELECT codec, count(*) AS videos FROM videos WHERE is_vfr GROUP BY codec ORDER BY codec",
        )
        cookbook = "\n".join(_cookbook(kind) for kind in WHAT)
        views = "\n".join(_views(kind) for kind in WHAT)
    return f"""{note}
# Audit

Ask an index or a dataset anything before training on it.

```sh
pip install '.[audit]'
framedex audit INDEX                        # what is in it, and what is wrong with it
framedex audit DATASET --fail-on warning    # exit code 3 where something is: for CI
framedex audit INDEX --report report.html   # one page with charts, a timeline, a table and pictures
framedex audit INDEX --sql "SELECT …"       # any question; --format table, csv, json or parquet
framedex audit INDEX --ask gaps             # a question of the cookbook below
framedex audit INDEX --duckdb views.duckdb  # views to ask with DuckDB itself, or whatever speaks to it
```

It prints counts, hours, codecs, sizes, rates, GOPs, bit rates, audio and failures, and then findings, the gravest \
first. Each has
a count, examples, what it means, what to do about it, and a name: `--check NAME` asks one alone, `--check list` \
lists them, and
`--json` has all of it with the SQL behind each. As here, of the made-up dataset that the cookbook asks below:

```console
$ framedex audit DATASET --check leaked_videos
{leaked}```

An index or a dataset in [object storage](storage.md) is copied here first, an index's frames only where a question \
is about them.

## Checks

`error`: frames are missing or would be wrong. `warning`: likely not what you want. `note`: good to know. A medium's \
rows are
read, its file is not, but for `changed` and `vanished`, which `--files` asks (`--root` says where the media lie \
now): by size, and by content where the
time is another one; loose images of an index by their checksums. Of a dataset, media are looked at of which some \
clip is not in a tar. Tars are held
against the manifest by their sizes, with `--files` by their content, too. `too_short` is asked with `--policy FILE`.

{_checks("index")}

Of a dataset:

{_checks("dataset")}

Thresholds stand in the SQL. To ask with another one, print the query (`--json`), change it, and give it to `--sql`.

Some of what headers state, the cost of random access and the marks of same streams are recorded since version 3.1 of \
the index's
format; of media that an older framedex indexed they are not known, and `not_recorded` says so.

## SQL

The engine is [DuckDB](https://duckdb.org); its SQL is at your disposal. One statement that reads is run; it sees \
these views and
nothing else: no other file, no network, and it cannot write ([decision 19](decisions/0019-audit.md)).

A query of `--sql` and `--ask` may take 600 s (`--timeout`), 4 GiB of memory (`--memory`), and 16 GiB of the \
temporary folder where memory
is too little (`--spill`). On a terminal, control characters in CSV are shown as escapes; in a pipe or a file they \
are what they are.
In tables, CSV and JSON, times, intervals and other values that Python may not hold are DuckDB's text: \
`2026-11-26 12:00:00`, `infinity`.
Parquet keeps their types, and refuses those that Arrow lacks (UHUGEINT).

{views}
Columns of `videos` are described in [format.md](format.md). Columns of your listing and of the policy are there, \
too: here `label` in `listing`,
`label` and `split` in `clips` (one that is called like a column of framedex is `NAME_1`). Checks and questions about \
labels and splits need them by
these names, `label` and `split`. Without `frames`, `packets` and `gops`, questions take
milliseconds: what audits need of frames is summarised in `videos`.

`--duckdb FILE` writes a database of the same views, which see what is indexed later, too; after `framedex shard \
--overwrite`, write it again. Open it read-only, and from as many
programs as you like.

Polars, pandas and pyarrow read the same Parquet files:

```python
import pandas as pd
import polars as pl
import pyarrow.dataset as ds

videos = pl.scan_parquet("INDEX/videos/*.parquet").group_by("codec").agg(pl.len()).collect()
frames = ds.dataset("INDEX/videos").to_table(columns=["uri", "frame_count"]).to_pandas()
clips = pd.read_parquet("DATASET/clips", columns=["clip_id", "frames", "seconds"])
```

pandas has nothing for lists of MD5s: name the columns that you want. These readers see rows of media that were \
indexed again, and of those that are gone, once for each run; the views see the last one.

## Report

`--report report.html` writes one page that needs no other file and no network, and `report.json` beside it: what \
`--json` prints, and the numbers of
the charts. The same input gives the same bytes.

- **Findings** with their SQL and pictures of three examples each, of 60 media at most, the gravest first; four \
frames a medium, or start points where
  decoding four frames would take long. Media whose packets are not byte ranges are copied for that up to 64 MiB. \
Where there is no picture, the
  reason stands in its place. `--no-pictures` leaves them out.
- **Histograms**, logarithmic where the numbers span more than two decades; **a timeline** of the frames (2 000 at \
most) and start points of the video that
  most of these examples are of, or of a dataset's clips in one video.
- **A table** of up to 10 000 media or clips, those with findings first, to sort and to filter: words, and conditions \
such as `fps>30` or `status=failed`. The
  page has less than 1 MB besides pictures; where that takes leaving rows out, it says so. `--sql` gives all.

Dark and light follow the browser. Without JavaScript, and on paper, the table shows its first 50 rows.

![Charts and the timeline in the report of an index of hazards](report.png)

## Speed

{_speed(result)}

{made_by}

## Cookbook

The answers are those of {EXAMPLE_VIDEOS} made-up videos (`benchmarks/audit_data.py`), and of clips of 16 frames at 4 \
a second, every three seconds.
`framedex audit INDEX --ask NAME` asks them of yours. Where a query ends with a `LIMIT`, `--sql` takes it with \
another one.

```console
$ framedex audit INDEX --sql "SELECT codec, count(*) AS videos FROM videos WHERE is_vfr GROUP BY codec ORDER BY codec"
{asked}```

{cookbook}"""


def run(*arguments: str) -> str:
    """Return the output of `framedex ARGUMENTS`."""
    result = CliRunner().invoke(main, [*arguments])
    if result.exit_code:
        raise RuntimeError(result.output)
    return result.stdout


def _checks(kind: Kind) -> str:
    lines = ["| check | severity | finds | which means |", "| --- | --- | --- | --- |"]
    lines += [f"| `{one.name}` | {one.severity} | {one.title} | {one.means} |" for one in checks_of(kind)]
    return "\n".join(lines)


def _views(kind: Kind) -> str:
    lines = [
        f"Of {'an index' if kind == 'index' else 'a dataset'}:\n",
        "| view | a row | columns |",
        "| --- | --- | --- |",
    ]
    with opened(Path(WHAT[kind])) as audited, database(audited) as db:
        for name, text in described(kind).items():
            columns = db.columns(name)
            said = ", ".join(f"`{column}`" for column in columns) if name != "videos" else "see below"
            lines.append(f"| `{name}` | {text} | {said} |")
    return "\n".join(lines) + "\n"


def _cookbook(kind: Kind) -> str:
    parts = [f"### Of {'an index' if kind == 'index' else 'a dataset'}\n"]
    with opened(Path(WHAT[kind])) as audited, QueryProcess(audited, QueryLimits()) as queries:
        for question in questions("questions", kind):
            with contextlib.redirect_stdout(io.StringIO()) as answer:  # as --ask prints it
                print_table(queries.rows(question.sql, SHOWN + 1))
            text = f"```sql\n{question.sql}\n```\n\n```text\n{answer.getvalue()}```\n"
            parts.append(f"**{question.title}** `{question.name}`\n\n{text}")
    return "\n".join(parts)


def _speed(result: dict[str, Any]) -> str:
    commands, sizes = result["command_seconds"], result["bytes"]
    others = [row["seconds"] for row in result["questions"] if not row["over"]]
    lines = [
        f"| question | framedex, {sizes['index'] / 1e6:.0f} MB | a row a packet, {sizes['plain'] / 1e6:.0f} MB "
        f"| a row a frame, {sizes['prepared'] / 1e6:.0f} MB |",
        "| --- | --- | --- | --- |",
    ]
    for row in result["questions"]:
        if row["over"]:
            seconds = [
                f"{row[name]:.2f}" if name in row else "–" for name in ("seconds", "plain_seconds", "prepared_seconds")
            ]
            lines.append(f"| {row['title']} | {' | '.join(seconds)} |")
    table = "\n".join(lines)
    return f"""`framedex audit` takes {commands["audit_many"]:.1f} s for {result["many_videos"]:,} videos (a \
compacted index) and {commands["audit"]:.1f} s for {result["videos"]:,}; starting the program is \
{commands["help"]:.1f} s
of that. Of an index of {result["videos"]:,} videos and {result["frames"]:,} frames, questions over `videos` alone \
take at most {1000 * max(others):.0f} ms. Those over frames, in
seconds, beside the same SQL over what one would write instead: a table of a row a packet, as a demuxer gives them, \
with views of window functions; and one of a
row a frame in which all that the view computes is stored (no packets, no GOPs):

{table}

What was expected: less than two seconds for a million videos, and less than five for any question over frames. A \
copy in which
everything is computed beforehand is faster, {sizes["prepared"] / sizes["index"]:.0f} times the size, and has to be \
kept in step with the index; `--sql "FROM frames" --format parquet --out FILE` makes it."""
