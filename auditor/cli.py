"""The command `framedex audit`."""

import re
import sys
from pathlib import Path
from typing import get_args

import click
import orjson

from framedex import options
from framedex.auditor import findings
from framedex.auditor.audit import LIMITS, run, uses_frames
from framedex.auditor.findings import SEVERITIES, Severity, checks_of, missing, questions
from framedex.auditor.tables.database import QueryLimits, write_database
from framedex.auditor.tables.query_process import QueryProcess
from framedex.auditor.tables.subject import Kind, opened
from framedex.core.limits import GIBIBYTE
from framedex.core.printing import echo, escaped_json
from framedex.core.words import counted
from framedex.errors import FramedexError, OutputError, printable
from framedex.files.outputs import check_free
from framedex.sharder.cli_options import POLICY
from framedex.storage.places import Access, Place

FAILED = 3  # the exit code if a finding is at least as severe as --fail-on

EXAMPLE = """\b
Example:
  framedex audit INDEX
  framedex audit DATASET --files --fail-on warning
  framedex audit INDEX --sql "SELECT codec, count(*) FROM videos GROUP BY codec"
  framedex audit INDEX --report report.html
"""


def _asks_checks(values: options.Values) -> bool:
    return values["sql"] is None and values["ask"] is None and values["duckdb_file"] is None


def _some_check_needs(values: options.Values, *tables: str) -> bool:
    """Return whether any of the checks that will run needs any of these tables."""
    names = values["names"]
    checks = (check for kind in get_args(Kind) for check in checks_of(kind))
    return not names or any(check.name in names and set(tables) & set(check.needs) for check in checks)


def _reads_media(values: options.Values) -> bool:
    """Return whether the command reads media files, and not only the tables of the index or dataset."""
    reads_files = (values["look"] or bool(values["names"])) and _some_check_needs(values, "files")
    return _asks_checks(values) and (reads_files or (values["report"] is not None and values["pictures"]))


RULES = (
    options.OptionRule(
        all_but=["names"],
        when=lambda values: "list" not in values["names"] or not _asks_checks(values),
        beside="--check list",
    ),
    options.OptionRule(
        options=["names", "fail_on", "look", "policy"],
        when=_asks_checks,
        beside="--sql, --ask and --duckdb",
        why="no checks are run",
    ),
    options.OptionRule(
        options=["look"],
        when=lambda values: _some_check_needs(values, "files", "tars"),
        beside="a --check that does not look at files",
    ),
    options.OptionRule(
        options=["policy"],
        when=lambda values: _some_check_needs(values, "policy_misses", "scene_views"),
        beside="a --check other than too_short, views_absent, views_drift and views_gaps",
    ),
    options.OptionRule(options=["root", "allow_remote"], when=_reads_media, needs="--files or --report with pictures"),
    options.OptionRule(
        options=["form", "out", "timeout", "memory", "spill"],
        when=lambda values: values["sql"] is not None or values["ask"] is not None,
        needs="--sql or --ask",
    ),
    options.OptionRule(
        options=["form", "as_json", "out", "timeout", "memory", "spill"],
        when=lambda values: values["ask"] != "list",
        beside="--ask list",
    ),
    options.OptionRule(options=["as_json"], when=lambda values: values["duckdb_file"] is None, beside="--duckdb"),
    options.OptionRule(options=["as_json"], when=lambda values: values["form"] is None, beside="--format"),
    options.OptionRule(options=["pictures"], when=lambda values: values["report"] is not None, needs="--report"),
    options.OptionRule(
        options=["overwrite"],
        when=lambda values: any(values[name] is not None for name in ("out", "duckdb_file", "report")),
        needs="--out, --duckdb or --report",
    ),
)


@click.command("audit", epilog=EXAMPLE, cls=options.RuledCommand, rules=RULES)
@click.argument("what", metavar="INDEX|DATASET", type=options.PLACE_THAT_IS_THERE)
@click.option(
    "--check",
    "names",
    multiple=True,
    metavar="NAME",
    help="Run only this check. May be repeated. `list` lists the checks.",
)
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit with code 3 if any finding has this severity or a worse one.",
)
@options.json_option("Print one JSON object. With --sql or --ask, print a list of rows, like --format json.")
@click.option("--files", "look", is_flag=True, help="Also check whether the media still exist and are unchanged.")
@click.option(
    "--policy",
    type=POLICY,
    metavar="POLICY",
    help=(
        "Also report the media of an index that are too short for this policy. If the policy has views, also report "
        "problems of the views. POLICY is a YAML file, the name of a built-in policy such as fps, or YAML text."
    ),
)
@options.access_options(beside="--files or --report")
@click.option(
    "--sql",
    metavar="QUERY",
    help="Run this SELECT statement instead of the checks. With `-`, read it from stdin.",
)
@click.option(
    "--ask",
    metavar="NAME",
    help="Run this query of the cookbook (docs/audit.md) instead of the checks. `list` lists the queries.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(findings.FORMATS),
    help="Output format of --sql and --ask.  [default: the format named by the ending of --out, or table]",
)
@click.option("--out", type=options.FILE_TO_WRITE, help="Write the result of --sql or --ask to a new file.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help=f"Time limit of --sql and --ask in seconds.  [default: {LIMITS.seconds:g}]",
)
@click.option(
    "--memory",
    type=click.FloatRange(0.1),
    help=f"Memory limit of --sql and --ask in GiB.  [default: {LIMITS.memory_bytes // GIBIBYTE}]",
)
@click.option(
    "--spill",
    type=click.FloatRange(0),
    help=(
        "Size limit in GiB of the temporary files that --sql and --ask write if memory is too small."
        f"  [default: {LIMITS.spill_bytes // GIBIBYTE}]"
    ),
)
@click.option(
    "--duckdb",
    "duckdb_file",
    type=options.FILE_TO_WRITE,
    help="Instead of running checks, write a DuckDB database whose views read the tables. It works without framedex.",
)
@click.option(
    "--report",
    type=options.FILE_TO_WRITE,
    help="Write a self-contained HTML page, and a .json file with the same name beside it.",
)
@click.option(
    "--pictures/--no-pictures", default=True, show_default=True, help="Show frames of examples in the report."
)
@options.overwrite_option("files that are")
def audit(
    what: Place,
    names: tuple[str, ...],
    fail_on: Severity | None,
    as_json: bool,
    look: bool,
    policy: str | Path | None,
    access: Access,
    sql: str | None,
    ask: str | None,
    form: findings.Format | None,
    out: Path | None,
    timeout: float | None,
    memory: float | None,
    spill: float | None,
    duckdb_file: Path | None,
    report: Path | None,
    pictures: bool,
    overwrite: bool,
) -> None:
    """Summarize the contents of an index or a dataset, and report its problems before anything is trained on it.

    A finding is an error (frames are missing or would be wrong), a warning (probably not intended) or a note (useful to
    know). --json and --report show the SQL query of each finding, which can be changed and run with --sql.

    Exit codes: 0 done, 1 failed, 2 usage error, 3 done, with a finding at least as severe as --fail-on.
    """
    if sum(option is not None for option in (sql, ask, duckdb_file, report)) > 1:
        raise click.UsageError("give only one of --sql, --ask, --duckdb and --report")
    if report is not None and report.suffix != ".html":
        raise click.UsageError("the file name of --report must end in .html")
    beside = None if report is None else report.with_suffix(".json")  # this file is written in addition to the page
    if "list" in names and len(names) > 1:
        raise click.UsageError("--check list cannot be combined with other checks")
    for path in (out, duckdb_file, report, beside):
        check_free(path, overwrite)
    if sql == "-":
        sql = sys.stdin.read()
    if duckdb_file is not None:
        _write_database(what, duckdb_file)
    elif sql is not None or ask is not None:
        limits = QueryLimits(
            seconds=timeout or LIMITS.seconds,
            memory_bytes=LIMITS.memory_bytes if memory is None else int(memory * GIBIBYTE),
            spill_bytes=LIMITS.spill_bytes if spill is None else int(spill * GIBIBYTE),
        )
        ending = "" if out is None else out.suffix.lower().removeprefix(".")
        by_ending: findings.Format = next((known for known in findings.FORMATS if known == ending), "table")
        _answer(what, sql, ask, "json" if as_json else form or by_ending, out, limits)
    elif "list" in names:
        with opened(what, frames=False) as audited:
            for check in checks_of(audited.kind):
                echo(f"{check.name:<18} {check.severity:<8} {check.title}")
    else:
        found = run(what, names, look=look, policy=policy, access=access, report=report, pictures=pictures)
        if as_json:
            echo(escaped_json(orjson.dumps(found.as_json(), option=orjson.OPT_INDENT_2, default=str).decode()))
        else:
            for line in findings.lines(found):
                echo(line)
            if report is not None:
                echo(f"→ {printable(str(report))}, {printable(str(beside))}")
        failing = () if fail_on is None else SEVERITIES[: SEVERITIES.index(fail_on) + 1]
        if any(finding.check.severity in failing for finding in found.findings):
            sys.exit(FAILED)


def _answer(
    what: Place, sql: str | None, ask: str | None, form: findings.Format, out: Path | None, limits: QueryLimits
) -> None:
    """Run a query, and print or write its result. The query is `sql`, or the query of the cookbook named `ask`."""
    with opened(what, frames=sql is None or uses_frames(sql)) as audited:
        known = {question.name: question for question in questions("questions", audited.kind)}
        if ask == "list":
            for question in known.values():
                echo(f"{question.name:<24} {question.title}")
            return
        if ask is not None and ask not in known:
            raise FramedexError("the cookbook has no such query", found=ask, allowed=", ".join(known))
        with QueryProcess(audited, limits) as queries:
            if ask is not None:
                sql = known[ask].sql
                lack = missing(queries.types, known[ask])
                if lack is not None:
                    raise FramedexError("the query of the cookbook cannot be run", found=ask, remedy=f"it needs {lack}")
                if limit := re.search(r"LIMIT (\d+)$", sql):
                    most = counted(int(limit[1]), "row")
                    echo(f"at most {most}; for more, run the query in docs/audit.md with another LIMIT", err=True)
            assert sql is not None  # either `sql` or `ask` was given
            if out is not None:
                rows = findings.write_answer(queries.reader(sql, plain=form != "parquet"), form, out)
                echo(f"{counted(rows, 'row')} → {printable(str(out))}")
            elif form == "table":
                # Read one row more than is shown, to know whether there are more rows.
                findings.print_table(queries.rows(sql, findings.SHOWN + 1, most_bytes=findings.MAX_SHOWN_BYTES))
            else:
                findings.print_answer(queries.reader(sql, plain=form != "parquet"), form)


def _write_database(what: Place, path: Path) -> None:
    """Write a DuckDB database with the views. The views contain paths of Parquet files, which must be local files."""
    with opened(what) as audited:
        if audited.folder != audited.place.absolute():
            raise OutputError(
                "a DuckDB database of views cannot refer to object storage",
                where=str(what),
                remedy="copy the index or dataset to this machine; its Parquet files are small",
            )
        views = write_database(audited, path)
    echo(f"views {', '.join(views)} of {printable(str(what))} → {printable(str(path))}")
