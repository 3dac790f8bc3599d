"""Plant mutations in the product, one at a time, and run the tests that reach the changed line until one fails.

    python -m tests.planted cover          # run the suite under coverage; which test executes which line
    python -m tests.planted draw --seed 41 # draw mutations of lines that tests execute, for each area
    python -m tests.planted run --out benchmarks/results/planted.json

`draw` keeps the mutations and the names of their tests in files, so that another version of the suite can be tried with
the same ones: a mutation is found again by its function and by the text of its line.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import importlib.util
import itertools
import json
import os
import queue
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import coverage

from benchmarks.environment import environment
from tests.support.mutations import ROOT, Mutation, mutations_of
from tests.support.reached import FIXTURES_FILE, SECONDS_FILE

FOLDER = ROOT / "build" / "planted"
DRAWN = ROOT / "tests" / "data" / "planted.json"
FIXTURES, SECONDS, TESTS = FOLDER / "fixtures.json", FOLDER / "seconds.jsonl", FOLDER / "tests.json"
AREAS = {
    "planning": ("sharder/planning", "sharder/policies", "sharder/sampling", "sharder/selection", "sharder/views",
                 "indexer/plans"),
    "bitstreams": ("indexer/bitstream", "indexer/mp4"),
    "decoding": ("sharder/decoding", "indexer/containers", "loader/pixels"),
    "routing": ("loader/routing",),
    "order": ("loader/order", "loader/streams"),
    "writing": ("sharder/writing", "sharder/packing", "indexer/parts", "framedex/files"),
}  # fmt: skip
COUNT = 40
MAX_SECONDS = 600
MAX_BYTES = 12 << 30  # a mutant that allocates without end must not take the machine with it


# Which tests reach a line


def cover(arguments: list[str]) -> None:
    """Run the suite under coverage, with the processes that it starts. A test that fails then does not end the run."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in (*FOLDER.glob("coverage*"), SECONDS):
        old.unlink(missing_ok=True)
    settings = FOLDER / "coveragerc"
    modules = "".join(f"\n    {ROOT / folder}/*" for folders in AREAS.values() for folder in folders)
    settings.write_text(
        f"[run]\ninclude ={modules}\ndata_file = {FOLDER / 'coverage'}\nparallel = true\nrelative_files = false\n"
        "patch = subprocess\nconcurrency = multiprocessing, thread\ncontext = ${PYTEST_CURRENT_TEST-}\n"
        "disable_warnings = no-data-collected, module-not-imported, module-not-measured, dynamic-conflict\n",
        encoding="utf-8",
    )
    variables = {"PYTHONPATH": str(ROOT), "COVERAGE_PROCESS_START": str(settings)}
    variables |= {FIXTURES_FILE: str(FIXTURES), SECONDS_FILE: str(SECONDS)}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.reached", *(arguments or ["-n", "auto"])]
    result = subprocess.run(words, cwd=ROOT, env=os.environ | variables, check=False)
    print(f"pytest ended with exit code {result.returncode}; joining what was measured", flush=True)
    subprocess.run([sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={settings}"], cwd=ROOT, check=True)


class Reached:
    """The tests that execute each line, from what `cover` measured."""

    def __init__(self) -> None:
        self._data = coverage.CoverageData(str(FOLDER / "coverage"))
        self._data.read()
        fixtures: dict[str, list[str]] = json.loads(FIXTURES.read_text(encoding="utf-8"))
        self._tests = set(fixtures)
        self._users: dict[str, list[str]] = {}
        for test, names in fixtures.items():
            for name in names:
                self._users.setdefault(name, []).append(test)
        self._seconds = dict(map(json.loads, SECONDS.read_text(encoding="utf-8").splitlines()))
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests(self, path: str, line: int) -> list[str]:
        """Return the tests that execute a line or use a fixture that does: nearest rooms first, in them the fastest."""
        if path not in self._lines:
            self._lines[path] = self._data.contexts_by_lineno(str(ROOT / path))
        found: set[str] = set()
        for context in self._lines[path].get(line, []):
            for part in context.split("|"):
                name = re.sub(r" \((setup|call|teardown)\)$", "", part)
                found.update(self._users.get(name, [name] if name in self._tests else []))
        return sorted(found, key=lambda test: (-_nearness(test, path), self._seconds[test], test))


def _nearness(test: str, path: str) -> int:
    """Return how many folders a test and a module share, at the beginning of their paths."""
    folders = zip(Path(test.split("::")[0]).parts[1:-1], Path(path).parts[:-1], strict=False)
    count = 0
    for one, other in folders:
        if one != other:
            break
        count += 1
    return count


def draw(seed: int, count: int) -> list[tuple[Mutation, list[str]]]:
    """Return `count` mutations with the tests that execute their lines, about equally many in each area."""
    reached, chance = Reached(), random.Random(seed)
    drawn: list[tuple[Mutation, list[str]]] = []
    for number, (area, folders) in enumerate(AREAS.items()):
        paths = sorted(str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py"))
        candidates = [mutation for path in paths for mutation in mutations_of(path, area)]
        wanted = (count * (number + 1)) // len(AREAS) - (count * number) // len(AREAS)
        chance.shuffle(candidates)
        executed = ((mutation, reached.tests(mutation.path, line)) for line, mutation in candidates)
        drawn += itertools.islice(((mutation, tests) for mutation, tests in executed if tests), wanted)
    return drawn


# Trying mutations


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the tests said.

    Attributes:
        tests: how many tests reach the line.
        outcome: caught, missed, or out of time.
        caught_by: the test that fails with the mutation and passes without it, or the end of pytest's output if it
            did not come so far.
        failing: tests that fail without the mutation, too.
    """

    mutation: Mutation
    tests: int
    outcome: str
    caught_by: str | None
    failing: list[str]
    seconds: float


def checkout(folder: Path) -> Path:
    """Clone HEAD into a folder, with the corpus of hazards beside it where this checkout has it; return its path."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    clone = folder / "main"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)], check=True)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
    return clone


def attempt(mutation: Mutation, tests: list[str], clone: Path) -> Verdict:
    """Apply a mutation to a clone, and run tests until one fails that passes without the mutation."""
    begun, left, failing = time.monotonic(), list(tests), list[str]()
    while True:
        restore(mutation, clone)
        mutation.apply(clone)
        outcome, failed = pytest_of(left, clone, MAX_SECONDS - (time.monotonic() - begun))
        restore(mutation, clone)
        if outcome != "caught" or failed not in left or pytest_of([failed], clone, MAX_SECONDS)[0] == "missed":
            break
        failing.append(failed)
        left = left[left.index(failed) + 1 :]
    return Verdict(
        mutation=mutation,
        tests=len(tests),
        outcome=outcome,
        caught_by=failed if outcome == "caught" else None,
        failing=failing,
        seconds=round(time.monotonic() - begun, 1),
    )


def restore(mutation: Mutation, clone: Path) -> None:
    """Restore a clone. Compiled files tell two versions of a source apart by second and size alone, so they go."""
    subprocess.run(["git", "checkout", "--quiet", "--", "."], cwd=clone, check=True)
    Path(importlib.util.cache_from_source(str(clone / mutation.path))).unlink(missing_ok=True)


def pytest_of(tests: list[str], clone: Path, seconds: float) -> tuple[str, str]:
    """Run tests in a clone until one fails.

    Returns:
        caught, missed, or out of time; and the test that failed, or the end of pytest's output.
    """
    if not tests:
        return "missed", ""
    names = clone.parent / "tests.txt"
    names.write_text("\n".join(tests), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", f"@{names}"]
    words += ["--basetemp", str(clone.parent / "temporary")]
    # If this variable is set, each process that a test starts compiles framedex again.
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    outcome = "out of time"
    with open(clone.parent / "output.txt", "w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            words,
            cwd=clone,
            env=surroundings | {"PYTHONPATH": str(clone), "FRAMEDEX_TEST_CACHE": str(FOLDER / "cache")},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES)),
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(seconds, 0))
            outcome = "missed" if process.returncode == 0 else "caught"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        said = output.read()
    if outcome == "caught" and process.returncode not in (1, 2, 3) and process.returncode > 0:
        sys.exit(f"pytest ended with exit code {process.returncode}:\n{said[-2000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    return outcome, failed[1] if failed else said[-200:]


def run(out: Path, jobs: int, only: list[int]) -> None:
    """Try the drawn mutations, several at a time, each in a clone of its own; write the verdicts after each."""
    mutations = [Mutation(**row) for row in json.loads(DRAWN.read_text(encoding="utf-8"))["mutations"]]
    tests: list[list[str]] = json.loads(TESTS.read_text(encoding="utf-8"))
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    verdicts: dict[int, Verdict] = {}
    clones: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for number in range(jobs):
        clones.put(checkout(FOLDER / f"clone{number}"))

    def one(number: int) -> None:
        clone = clones.get()
        try:
            verdicts[number] = attempt(mutations[number], tests[number], clone)
        finally:
            clones.put(clone)
        found = verdicts[number]
        print(f"{number}: {found.outcome} in {found.seconds} s of {found.tests} tests, {found.caught_by}", flush=True)
        rows = [{"number": each, **asdict(verdicts[each])} for each in sorted(verdicts)]
        counts = {each: sum(row["outcome"] == each for row in rows) for each in ("caught", "missed", "out of time")}
        made = environment("coverage", "pytest") | {"commit": commit}
        document = {"environment": made, "counts": counts, "verdicts": rows}
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, only or range(len(mutations))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    covering = commands.add_parser("cover", help="run the suite under coverage")
    covering.add_argument("arguments", nargs="*", help="arguments for pytest, after --; default: -n auto")
    drawing = commands.add_parser("draw", help=f"draw mutations into {DRAWN.relative_to(ROOT)}")
    drawing.add_argument("--seed", type=int, default=41)
    drawing.add_argument("--count", type=int, default=COUNT)
    running = commands.add_parser("run", help="try the drawn mutations")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--only", type=int, nargs="*", default=[], help="numbers of mutations; default: all")
    options = parser.parse_args()
    if options.command == "cover":
        cover(options.arguments)
    elif options.command == "draw":
        drawn = draw(options.seed, options.count)
        document = {"seed": options.seed, "mutations": [asdict(mutation) for mutation, _ in drawn]}
        DRAWN.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        TESTS.write_text(json.dumps([tests for _, tests in drawn], indent=1) + "\n", encoding="utf-8")
        print(f"{len(drawn)} mutations in {DRAWN}, their tests in {TESTS}")
    else:
        run(options.out.absolute(), options.jobs, options.only)


if __name__ == "__main__":
    main()
