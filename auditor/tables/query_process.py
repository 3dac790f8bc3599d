"""A separate process for users' queries. It is killed when a query exceeds its limit of memory or time.

Limits inside the process would not suffice. DuckDB does not count all memory of a query. While DuckDB computes a single
long text, it neither checks the time nor reacts to an interrupt. And a limit of address space (RLIMIT_AS) would also
count memory that is only reserved.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pyarrow as pa

from framedex.auditor.tables.database import TYPES, Database, QueryLimits, Result, check_reads, database
from framedex.auditor.tables.subject import Audited
from framedex.core.words import size_text
from framedex.errors import FramedexError, internal_error, printable
from framedex.execution.spawning import end_with_parent, leave_out_pandas, spawning

LOOK_SECONDS = 0.02  # time between two checks of the limits; in this time, a query may exceed its memory limit
MORE = "raise the limits --timeout, --memory and --spill, or reduce the result with LIMIT or WHERE"
OPENED = "opened"  # first message of the process for each query. The tables are open, and the time limit starts


class QueryProcess:
    """A context manager with a process that runs users' queries on an index or a dataset, one after the other.

    The first query starts the process. If a query exceeds a limit, is stopped, or is not read to its last row, the
    process is killed. The next query then starts a new process.

    Args:
        audited: The index or dataset.
        limits: The limits of each query.
        remedy: The remedy in the error message about a query that exceeds a limit.
    """

    def __init__(self, audited: Audited, limits: QueryLimits, *, remedy: str = MORE) -> None:
        self.audited, self._limits, self._remedy = audited, limits, remedy
        self._folder = tempfile.TemporaryDirectory(prefix="framedex-audit-")
        self._running: tuple[SpawnProcess, Connection] | None = None
        self._ended_by: BaseException | None = None  # the error that is raised because the process was killed
        self._complete: threading.Event | None = None  # set when all rows of the last query have been received
        self._lock = threading.Lock()  # held while a process is started or killed

    def __enter__(self) -> QueryProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._folder.cleanup()

    def types(self, view: str) -> dict[str, str]:
        """Return the DuckDB type of each column of a view. Return an empty dict if there is no such view."""
        return dict(self.rows(TYPES.format(view=view.replace("'", "''"))).rows)

    def reader(self, sql: str, *, plain: bool = False, most: int | None = None) -> pa.RecordBatchReader:
        """Return the rows of a query as a stream of batches. Only one stream may be open at a time.

        Args:
            sql: A single statement that only reads.
            plain: Whether values that Python or JSON cannot represent are cast to text. If False, values keep their
                Arrow types.
            most: The maximum number of rows. If None, all rows are returned.

        Raises:
            FramedexError: The query fails or exceeds a limit. This may also be raised while the stream is read.
            KeyboardInterrupt: `stop` was called.
        """
        check_reads(sql)  # so that no process is started for an invalid query
        answers = self._answers((sql, plain, most))
        schema: pa.Schema = next(answers)
        return pa.RecordBatchReader.from_batches(schema, answers)

    def table(self, sql: str) -> pa.Table:
        """Return all rows of a query as a table.

        Raises:
            FramedexError: The query fails or exceeds a limit, or the table is larger than the memory limit.
            KeyboardInterrupt: `stop` was called.
        """
        batches: list[pa.RecordBatch] = []
        left = self._limits.memory_bytes
        with self.reader(sql) as answer:
            for batch in answer:
                batches.append(batch)
                left -= batch.nbytes
                if left < 0:
                    raise self._too_much("its result")
            return pa.Table.from_batches(batches, answer.schema)

    def rows(self, sql: str, most: int | None = None, *, most_bytes: int | None = None) -> Result:
        """Return the rows of a query as Python values.

        Args:
            sql: A single statement that only reads.
            most: The maximum number of rows. If None, all rows are returned.
            most_bytes: The maximum size of all returned rows. Defaults to the memory limit of a query. Rows that exceed
                it are left out, and the result is marked as cut.

        Raises:
            FramedexError: The query fails or exceeds a limit, or the first row alone is larger than `most_bytes`.
            KeyboardInterrupt: `stop` was called.
        """
        left = self._limits.memory_bytes if most_bytes is None else most_bytes
        rows: list[tuple[Any, ...]] = []
        with self.reader(sql, plain=True, most=most) as answer:
            names = list(answer.schema.names)
            for batch in answer:
                # Find the number of leading rows that fit by bisection, since the size grows with each row.
                counts = range(1, batch.num_rows + 1)
                fitting = bisect.bisect_right(counts, left, key=lambda count: batch.slice(0, count).nbytes)
                kept = batch.slice(0, fitting)
                rows += zip(*(column.to_pylist() for column in kept.columns), strict=True)
                left -= kept.nbytes
                if fitting < batch.num_rows:
                    self.stop()
                    if not rows:
                        raise _too_large(batch, left)
                    return Result(names=names, rows=rows, cut=True)
            return Result(names=names, rows=rows)

    def stop(self) -> None:
        """Stop the running query. KeyboardInterrupt is raised in the thread that waits for the query."""
        if self._running is not None:
            self._end(self._running[0], KeyboardInterrupt())

    def _answers(self, request: tuple[str, bool, int | None]) -> Iterator[Any]:
        """Run a query. Yield the schema of the result, and then the batches."""
        if self._complete is not None and not self._complete.is_set():
            self.stop()
        process, connection = self._start()
        opened = threading.Event()
        complete = self._complete = threading.Event()
        watching = threading.Thread(target=self._watch, args=(process, opened, complete), daemon=True)
        watching.start()
        try:
            connection.send(request)
            while (answer := connection.recv()) is not None:
                if isinstance(answer, FramedexError):
                    complete.set()
                    raise answer
                if isinstance(answer, str):  # OPENED
                    opened.set()
                else:
                    yield answer
            complete.set()
        except (EOFError, OSError) as error:
            process.join()
            raise self._ended_by or FramedexError(
                "the process that ran the query ended unexpectedly",
                found=f"exit code {process.exitcode}",
                remedy=self._remedy,
            ) from error
        finally:
            if not complete.is_set():  # the caller has not read all rows
                complete.set()
                self._end(process, KeyboardInterrupt())
            watching.join()

    def _start(self) -> tuple[SpawnProcess, Connection]:
        """Start the process if it is not running. Return the process and the connection to it."""
        with self._lock:
            if self._running is not None and self._running[0].is_alive():
                return self._running
            context = spawning(None)
            ours, theirs = context.Pipe()
            arguments = (theirs, self.audited, self._limits, Path(self._folder.name))
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._running, self._ended_by = (process, ours), None
            return self._running

    def _end(self, process: SpawnProcess, why: BaseException) -> None:
        """Kill a process if it is still running. The thread that waits for it then raises the exception `why`."""
        with self._lock:
            if self._running is None or self._running[0] is not process:  # another thread has already ended it
                return
            if process.is_alive():
                self._ended_by = why
                process.kill()
                process.join()
            self._running = None

    def _watch(self, process: SpawnProcess, opened: threading.Event, complete: threading.Event) -> None:
        """Kill the process if its query exceeds a limit of time or memory. Return when the query is complete."""
        deadline = math.inf
        while not complete.wait(LOOK_SECONDS):
            if deadline == math.inf and opened.is_set():
                deadline = time.monotonic() + self._limits.seconds
            if time.monotonic() > deadline:
                taken = f"more than {self._limits.seconds:g} s"
                why = FramedexError("the query exceeds its time limit", found=taken, remedy=self._remedy)
            elif _used_bytes(process) > self._limits.memory_bytes:
                why = self._too_much("it")
            else:
                continue
            self._end(process, why)
            return

    def _too_much(self, what: str) -> FramedexError:
        return FramedexError(
            "the query exceeds its memory limit",
            found=f"{what} takes more than {size_text(self._limits.memory_bytes)}",
            remedy=self._remedy,
        )


def _used_bytes(process: SpawnProcess) -> int:
    """Return the anonymous memory of a process, without mapped files (RssAnon, proc(5)), or 0 if it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace") as file:
        facts = dict(line.split(":", 1) for line in file)
        return int(facts.get("RssAnon", facts.get("VmRSS", "0 kB")).split()[0]) << 10
    return 0


def _too_large(batch: pa.RecordBatch, most_bytes: int) -> FramedexError:
    """Return the error for a batch whose first row is larger than the limit."""
    sizes = {name: batch.column(place).slice(0, 1).nbytes for place, name in enumerate(batch.schema.names)}
    largest = max(sizes, key=lambda name: sizes[name])
    return FramedexError(
        "a row of the result is too large to show",
        found=f"{size_text(sum(sizes.values()))}, most of it in the column {printable(largest)}",
        allowed=f"up to {size_text(most_bytes)}",
        remedy="select fewer columns, or parts of texts and lists with left(text, 1000) and list[:100]",
    )


def _serve(connection: Connection, audited: Audited, limits: QueryLimits, spill: Path) -> None:
    """Run queries until the connection is closed. This is the function of the process.

    The messages for each query are OPENED, the schema, the batches and None. If the query fails, the last message is an
    error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches this process, but the parent ends it
    end_with_parent()
    leave_out_pandas()
    with contextlib.suppress(EOFError, BrokenPipeError), contextlib.ExitStack() as stack:
        db: Database | None = None
        while True:
            sql, plain, most = connection.recv()
            try:
                db = db or stack.enter_context(database(audited, limits=limits, spill=spill))
                connection.send(OPENED)
                with db.user(sql, plain=plain, most=most) as answer:
                    connection.send(answer.schema)
                    for batch in answer:
                        connection.send(batch)
                connection.send(None)
            except FramedexError as error:
                connection.send(error)
            except (EOFError, BrokenPipeError):
                raise
            except Exception as error:
                connection.send(internal_error(error))
