"""Check that a long run of ClipLoader stays small and correct: memory, DALI's random decoder errors, injected faults.

Each part runs in its own process with a time limit. When a part ends, its row is added to a JSON file; parts that the
file already contains are not run again. Media are made on the spot, and every frame has its number in its pixels.

usage: python -m benchmarks.endurance --home FOLDER --out RESULTS.json [--device cpu|gpu] [--only flat,faults] [--small]
                                      [--batches 2000] [--workers 4] [--limit SECONDS] [--list]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.endurance_damage import DAMAGES
from benchmarks.endurance_decoders import (
    fed_from_buffers,
    low_memory,
    many_shapes,
    parallel_decoders,
    remade_decoders,
    remade_loaders,
)
from benchmarks.endurance_faults import run_damaged, run_killed, run_vanished
from benchmarks.endurance_memory import run_flat
from benchmarks.environment import environment

Part = Callable[[], dict[str, Any]]


def parts_of(options: argparse.Namespace) -> dict[str, Part]:
    """Return all parts by name. The first word of a name is its kind: flat, decoders, faults."""
    gpu, workers, small = options.device == "gpu", options.workers, options.small
    home: Path = options.home
    batches = options.batches
    flat = {"batches": batches, "gpu": gpu, "clips": 48 if small else 240, "every": max(1, batches // 50)}
    parts: dict[str, Part] = {
        "flat": lambda: run_flat(home / "flat", workers=workers, **flat),
        "flat scaled": lambda: run_flat(home / "flat", workers=workers, scaled=True, **flat),
        "flat broken off": lambda: run_flat(home / "flat", workers=workers, break_off=3, **flat),
    }
    if not gpu:
        parts["flat in one process"] = lambda: run_flat(home / "flat", workers=0, **flat)
    parts |= decoder_parts(home, gpu=gpu, small=small)
    return parts | fault_parts(options)


def decoder_parts(home: Path, *, gpu: bool, small: bool) -> dict[str, Part]:
    """Return the parts about decoders that cannot be created; on the CPU, only the one about fed buffers."""
    home = home / "decoders"
    less = 10 if small else 1
    parts: dict[str, Part] = {"decoders buffers": lambda: fed_from_buffers(home, 200 // less, gpu=gpu)}
    if not gpu:
        return parts
    return parts | {
        "decoders remade loaders": lambda: remade_loaders(home, 60 // less),
        "decoders remade pipelines": lambda: remade_decoders(home, 200 // less),
        "decoders many shapes": lambda: many_shapes(home, 400 // less),
        "decoders parallel 4": lambda: parallel_decoders(home, 4, 40 // less),
        "decoders parallel 16": lambda: parallel_decoders(home, 16, 20 // less),
        "decoders low memory": lambda: low_memory(home, (4096, 1024, 256, 64)),
    }


def fault_parts(options: argparse.Namespace) -> dict[str, Part]:
    """Return the parts about faults. Parts that damage a movie for NVDEC exist only on a GPU."""
    gpu, small, home = options.device == "gpu", options.small, options.home / "faults"
    clips = 32 if small else 160
    common: dict[str, Any] = {"gpu": gpu, "workers": options.workers, "clips": clips}
    parts: dict[str, Part] = {}
    for on_error in ("skip", "replace"):
        for where, damages in (("movie", DAMAGES if gpu else ()), ("source", ("scattered", "zeros"))):
            for damage in damages:
                parts[f"faults {where}, {damage}, {on_error}"] = lambda o=on_error, w=where, d=damage: run_damaged(  # type: ignore[misc]
                    home, where=w, damage=d, on_error=o, **common
                )
        killed = {"batches": 12, "every": 4} if small else {"batches": 300, "every": 50}
        parts[f"faults killed, {on_error}"] = lambda o=on_error, k=killed: run_killed(  # type: ignore[misc]
            home, on_error=o, **k, **common
        )
        parts[f"faults vanished, {on_error}"] = lambda o=on_error: run_vanished(  # type: ignore[misc]
            home, on_error=o, **common
        )
    return parts


def run_part(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a part in its own process; return its row, or a row with the reason why it has no result."""
    answer = options.home / "answer.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.endurance", "--part", name, "--home", str(options.home)]
    command += ["--device", options.device, "--batches", str(options.batches), "--workers", str(options.workers)]
    command += ["--small"] if options.small else []
    errors = options.home / "errors.txt"
    began = time.perf_counter()
    with errors.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        try:
            code: int | None = process.wait(options.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            code = None
    row = {"part": name, "wall_seconds": round(time.perf_counter() - began, 1)}
    if answer.exists():
        return row | dict(json.loads(answer.read_text(encoding="utf-8")))
    last = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
    reason = f"past {options.limit:g} s" if code is None else f"its process ended with {code}"
    return row | {"reason": reason, "last_words": last}


def serve(options: argparse.Namespace) -> None:
    """Run one part in this process and write its result."""
    try:
        found = parts_of(options)[options.part]()
    except Exception as error:  # the row says so
        found = {"reason": f"{type(error).__name__}: {error}"[:800], "trace": traceback.format_exc().splitlines()[-6:]}
    aside = options.home / "answer.tmp"
    aside.write_text(json.dumps(found), encoding="utf-8")
    aside.rename(options.home / "answer.json")
    sys.stdout.flush()
    os._exit(0)  # the shutdown of a GPU's libraries is not part of the test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, required=True, help="media and datasets are made here")
    parser.add_argument("--out", type=Path, default=Path("endurance.json"))
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--only", type=lambda text: text.split(","), help="parts whose names begin so")
    parser.add_argument("--exactly", action="append", help="one part by its whole name, several times if need be")
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds a part")
    parser.add_argument("--small", action="store_true", help="fewer clips and turns")
    parser.add_argument("--list", action="store_true", help="name the parts")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.home = options.home.resolve()
    options.home.mkdir(parents=True, exist_ok=True)
    if options.part:
        serve(options)
    names = list(parts_of(options))
    if options.exactly:
        names = [name for name in names if name in options.exactly]
    if options.only:
        names = [name for name in names if any(name.startswith(kind) for kind in options.only)]
    if options.list:
        print("\n".join(names))
        return
    facts: dict[str, Any] = {"environment": environment("nvidia-dali-cuda120", "torch"), "parts": []}
    if options.out.exists():
        facts = json.loads(options.out.read_text(encoding="utf-8"))
    done = {row["part"] for row in facts["parts"] if "reason" not in row}
    for name in names:
        if name in done:
            continue
        row = run_part(name, options)
        facts["parts"] = [*(old for old in facts["parts"] if old["part"] != name), row]
        options.out.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        shown = {key: row[key] for key in row if key not in ("samples", "by_part")}
        print(json.dumps(shown)[:1500], flush=True)


if __name__ == "__main__":
    main()
