"""Compare what clips of mutants return with a full decode: the fuzzer for wrong frames, beside the one for crashes.

Each mutant (fuzz/mutants.py) is indexed, clips over all frames that are not damaged are planned in shuffled order and
decoded, and each picture is compared with that of a decode from beginning to end, bit for bit, with its number or
timestamp (benchmarks/exactness.py). A mutant may be refused; a wrong frame is a defect. Exit code 1: there was one.

usage: python -m fuzz.difference [--mutants 200] [--first 0] [--kind KIND …] [--depth auto|packets] [--verify]
                                 [--prove 0] [--keep FOLDER] [--json OUT]
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.exactness import Tried, try_folder
from fuzz.kinds import KINDS
from fuzz.mutants import Factory

Mutant = tuple[str, int]  # kind and number

BATCH = 40  # mutants that are indexed and planned together
COMPARED, REFUSED, WRONG, UNWRITTEN = "compared", "refused", "wrong", "not written"


def try_batch(
    mutants: list[Mutant], asked: dict[str, Any], keep: Path | None, streams: Path | None = None
) -> dict[Mutant, dict[str, Any]]:
    """Return the outcome of each of some mutants.

    Args:
        mutants: kinds and numbers.
        asked: depth, verify and prove of the index.
        keep: where files of wrong mutants are copied to, if anywhere.
        streams: a folder for the streams that mutants are made of, which later batches of this process use again.
    """
    found: dict[Mutant, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        streams, folder = streams or Path(scratch) / "streams", Path(scratch) / "mutants"
        streams.mkdir(exist_ok=True)
        folder.mkdir()
        factory, made = Factory(streams), {}
        for mutant in mutants:
            written = factory.make(*mutant, folder)
            if written is None:
                found[mutant] = {"outcome": UNWRITTEN}
            else:
                made[written[0].name] = mutant, written[1]
        media = try_folder(folder, workers=1, **asked) if made else []
        tried = {medium.uri: medium for medium in media}
        for name, (mutant, changes) in made.items():
            found[mutant] = {"name": name, "changes": changes} | _outcome(tried.get(name))
            if found[mutant]["outcome"] == WRONG and keep is not None:
                shutil.copy(folder / name, keep / name)
    return found


def _outcome(medium: Tried | None) -> dict[str, Any]:
    if medium is None:
        return {"outcome": REFUSED, "reason": "no video"}
    if medium.wrong:
        return {"outcome": WRONG, "frames": len(medium.wrong), "first": medium.wrong[0]}
    if medium.exact:
        return {"outcome": COMPARED, "frames": medium.exact}
    return {"outcome": REFUSED, "reason": medium.reason or "no frame outside of damage, or none that can be planned"}


def wrong_of(outcomes: dict[Mutant, dict[str, Any]]) -> dict[Mutant, dict[str, Any]]:
    """Return the outcomes of mutants with a wrong frame."""
    return {mutant: outcome for mutant, outcome in outcomes.items() if outcome["outcome"] == WRONG}


def counts(outcomes: dict[Mutant, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how many mutants of each kind had each outcome, and how many frames were compared."""
    table: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in KINDS}
    for (name, _), outcome in outcomes.items():
        counter = table[name]
        counter[outcome["outcome"]] += 1
        counter["frames"] += outcome.get("frames", 0) if outcome["outcome"] == COMPARED else 0
    return {name: dict(counter) for name, counter in table.items() if counter}


def chosen(kinds: list[str], first: int, count: int) -> list[Mutant]:
    """Return `count` mutants from a number on, of each kind in turn."""
    return [(kinds[number % len(kinds)], number) for number in range(first, first + count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="may be repeated; all, if not given")
    parser.add_argument("--depth", default="auto", choices=["auto", "packets"])
    parser.add_argument("--verify", action="store_true", help="prove every frame when mutants are indexed")
    parser.add_argument("--prove", type=int, default=0, help="prove so many frames of each")
    parser.add_argument("--jobs", type=int, default=2, help="batches at a time")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy wrong mutants there")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    outcomes: dict[Mutant, dict[str, Any]] = {}
    mutants = chosen(options.kind or list(KINDS), options.first, options.mutants)
    asked = {"depth": options.depth, "verify": options.verify, "prove": options.prove}
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        parts = [
            pool.submit(try_batch, mutants[at : at + BATCH], asked, options.keep)
            for at in range(0, len(mutants), BATCH)
        ]
        for part in as_completed(parts):
            outcomes |= part.result()
            print(f"{len(outcomes)} mutants, {len(wrong_of(outcomes))} wrong", file=sys.stderr, flush=True)
    wrong = wrong_of(outcomes)
    table = counts(outcomes)
    for name, counted in table.items():
        print(f"{name:12}", "  ".join(f"{what} {count}" for what, count in sorted(counted.items())))
    for (_, number), outcome in sorted(wrong.items()):
        print(f"WRONG {number} {outcome['name']} {outcome['changes']}: {outcome['frames']} frames, {outcome['first']}")
    print(f"{len(outcomes)} mutants, {len(wrong)} wrong, {time.perf_counter() - began:.0f} s")
    if options.json is not None:
        facts = {"environment": environment(), "codecs": table, "wrong": list(wrong.values())}
        options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
