"""Show which decoder gets each hazard and what it returns: through the loader, forced to NVDEC, and on the CPU.

The hazards of the corpus are remade at 320×256 with the frame number drawn into every picture
(`benchmarks/hazard_media.py`). Clips have random frames with repeats, consecutive frames, frames far apart, or padding;
many have several runs. They go, shuffled and mixed, through one `ClipLoader(device="gpu", decode="gpu")` and through
one on the CPU. Clips that the gate keeps from the GPU are then sent to it nevertheless, with one process per medium and
a time limit, to show what it would return. A frame is right if its barcode is right and it is within `LIMIT` levels of
the CPU's frame on average. `--corpus FOLDER` does the same with media as they are; there, the nearest picture of a full
decode identifies the frame.

Writes JSON to --out after each medium. Exit code 1: a frame from the loader or from the CPU was wrong.

usage: python -m benchmarks.gpu_hazards [--corpus FOLDER [--only-corpus]] [--media FOLDER] [--out FILE] [--jobs 8]
                                        [--no-gpu]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np

from benchmarks.environment import environment
from benchmarks.exactness import written
from benchmarks.hazard_media import HAZARDS, Hazard, make
from benchmarks.hazard_passes import grey_of
from framedex import ClipDataset
from framedex.core.pyav import LENIENT_METADATA
from framedex.indexer.parts.index import Index
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.work import IndexOptions
from framedex.indexer.timeline import DAMAGED, presentation_order
from framedex.sharder.build import ShardOptions, build_from_requests
from framedex.sharder.decoding.rgb import RgbConverter
from framedex.sharder.selection.explicit_clips import ExplicitClip

RESULT = Path(__file__).parent / "results" / "gpu_hazards.json"
LIMIT = (
    25.0  # levels; saturated test patterns differ by up to 17 in how chroma is upsampled, other frames by 40 or more
)
FRAMES_A_CLIP = 8
RANDOM_CLIPS, CONSECUTIVE_CLIPS, SPREAD_CLIPS = 6, 3, 2
PASS_SECONDS, FORCED_SECONDS = 400, 120
Row = dict[str, Any]


@dataclass(kw_only=True)
class MediaSet:
    """Media that are measured together.

    Attributes:
        rows: one row of the result per media_id.
        clips: the media_id of every clip.
    """

    name: str
    scratch: Path
    rows: dict[str, Row] = field(default_factory=dict)
    clips: list[str] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)

    @property
    def dataset(self) -> Path:
        return self.scratch / "DATASET"

    @property
    def truth(self) -> Path | None:
        """The folder of full decodes, for media without barcodes; None for media with barcodes."""
        return None if self.name == "made" else self.scratch / "truth"


def made_set(scratch: Path, folder: Path, workers: int) -> tuple[MediaSet, list[Row]]:
    """Make the hazards, index them and plan clips; return them, and rows of media that could not be made or indexed."""
    folder.mkdir(parents=True, exist_ok=True)
    missing: list[Row] = []
    with ProcessPoolExecutor(workers) as pool:
        futures = {pool.submit(make, hazard, folder): hazard for hazard in HAZARDS}
        for future in as_completed(futures):
            hazard = futures[future]
            if (error := future.exception()) is not None:
                facts = {"set": "made", "codec": hazard.codec, "hazard": hazard.name}
                missing.append(facts | {"missing": f"cannot be made here: {error}"})
    by_name = {hazard.file_name: hazard for hazard in HAZARDS}
    return planned("made", scratch, folder, by_name, workers, missing)


def planned(
    name: str, scratch: Path, folder: Path, hazards: dict[str, Hazard], workers: int, missing: list[Row]
) -> tuple[MediaSet, list[Row]]:
    """Index a folder and plan clips of each medium.

    Args:
        hazards: hazards by file name. For other media, the file name is the name of the hazard.
    """
    scratch.mkdir()
    media = MediaSet(name=name, scratch=scratch)
    images = "sequences" if hazards else "ignore"
    build_index(
        IndexOptions(
            sources=[str(folder)], root=str(folder), out=scratch / "INDEX", images=images, workers=workers
        )
    )  # fmt: skip
    index = Index(scratch / "INDEX")
    requests: list[ExplicitClip] = []
    rng = np.random.default_rng(7)
    for row in sorted(index.videos.to_pylist(), key=lambda row: str(row["uri"])):
        hazard = hazards.get(row["uri"].split("/")[0])
        facts = {
            "set": name,
            "codec": hazard.codec if hazard else row["codec"],
            "hazard": hazard.name if hazard else row["uri"],
            "size": [row["width"], row["height"]],
        }
        packets = index.packets(row["media_id"]) if row["status"] == "ok" else None
        frames: list[int] = []
        if packets is not None:
            flags = packets.flags[presentation_order(packets.pts, packets.flags)]
            frames = np.flatnonzero((flags & DAMAGED) == 0).tolist()
        if hazard is not None and row["frame_count"] != hazard.frame_count:
            facts["missing"] = f"{row['error_message'] or ''} {row['frame_count']} frames, not {hazard.frame_count}"
        elif packets is None or not frames:
            facts["missing"] = str(row["error_message"] or "no undamaged frames")
        elif media.truth is not None and not _write_truth(media.truth, folder / row["uri"], row):
            facts["missing"] = "a full decode presents another number of frames"
        if "missing" in facts:
            missing.append(facts)
            continue
        media.rows[row["media_id"]] = facts
        for wanted in clip_frames(frames, rng):
            clip_id = f"{row['uri']}-{len(requests)}"
            requests.append(ExplicitClip(line=len(requests), clip_id=clip_id, uri=row["uri"], frames=wanted))
    build_from_requests(
        index,
        media.dataset,
        written(requests, scratch / "clips.jsonl"),
        choose="nearest",
        options=ShardOptions(pack="needed", workers=workers),
    )
    dataset = ClipDataset(media.dataset, rotation="stored")
    for number in range(len(dataset)):
        clip = dataset.clip(number)
        media.clips.append(clip.medium.media_id)
        media.runs.append(len(clip.recipe.run_first))
    for media_id, row in media.rows.items():
        mine = [number for number, its in enumerate(media.clips) if its == media_id]
        row["clips"] = len(mine)
        row["clips_of_several_runs"] = sum(media.runs[number] > 1 for number in mine)
        row["frames"] = sum(int((dataset.clip(number).frames >= 0).sum()) for number in mine)
    return media, missing


def clip_frames(frames: list[int], rng: np.random.Generator) -> list[list[int]]:
    """Return clips of a medium's frames: random with a repeat, consecutive, and from both ends; some are padded."""
    clips = []
    for number in range(RANDOM_CLIPS):
        wanted = rng.choice(frames, FRAMES_A_CLIP).tolist()
        wanted[3] = wanted[1]
        if number == 0:
            wanted[0] = wanted[-1] = -1
        clips.append(wanted)
    for _ in range(CONSECUTIVE_CLIPS):
        first = int(rng.integers(0, max(1, len(frames) - FRAMES_A_CLIP)))
        clips.append(frames[first : first + FRAMES_A_CLIP])
    for number in range(SPREAD_CLIPS):
        places = np.linspace(number, len(frames) - 1 - number, FRAMES_A_CLIP).astype(int)
        clips.append([frames[place] for place in np.clip(places, 0, len(frames) - 1)])
    return clips


def _write_truth(folder: Path, path: Path, row: Row) -> bool:
    """Write the grey pictures of a full decode; return whether their number matches the index and all have one size."""
    folder.mkdir(exist_ok=True)
    found = []
    try:
        with av.open(str(path), **LENIENT_METADATA) as container:
            stream = container.streams[row["stream_index"]]
            height, width = row["height"], row["width"]
            converter = RgbConverter()
            for frame in container.decode(stream):
                rows = converter.rows(frame, height, width)
                found.append(grey_of(np.asarray(rows).reshape(height, width, 3)))
    except (av.error.FFmpegError, OSError, IndexError, ValueError):
        return False
    if len(found) != row["frame_count"]:
        return False
    np.save(folder / f"{row['media_id']}.npy", np.stack(found))
    return True


def run_pass(media: MediaSet, way: str, *, clips: Iterable[int] = (), workers: int = 0, seconds: float) -> list[Row]:
    """Run one pass in its own process; return its lines, and if it did not end well, a line that says how it ended."""
    numbers = ",".join(map(str, clips))
    out = media.scratch / f"{way}-{numbers[:20]}.jsonl"
    command = [sys.executable, "-m", "benchmarks.hazard_passes", str(media.dataset), str(out), "--way", way]
    command += ["--workers", str(workers)] + (["--clips", numbers] if numbers else [])
    command += [] if media.truth is None else ["--truth", str(media.truth)]
    log = out.with_suffix(".log")
    with log.open("wb") as file:
        try:
            code = subprocess.run(command, stdout=file, stderr=file, timeout=seconds, check=False).returncode
            ended = None if code == 0 else f"its process ended with {code}"
        except subprocess.TimeoutExpired:
            ended = f"nothing after {seconds:g} s"
    lines = [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")] if out.exists() else []
    if ended is None:
        return lines
    tail = " ".join(log.read_text(errors="replace")[-600:].split())
    return [*lines, {"ended": f"{ended}: {tail}"}]


def tally(lines: list[Row]) -> Row:
    """Return counts of right, wrong and refused frames, the largest difference of right ones, and the first message."""
    counts: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}
    most = 0.0
    for line in lines:
        if "refused" in line:
            counts["refused"] += FRAMES_A_CLIP
            first.setdefault("refused", line["refused"])
            continue
        away = line.get("away", [0.0] * len(line["shown"]))
        for wanted, shown, apart in zip(line["wanted"], line["shown"], away, strict=True):
            is_right = shown == wanted and apart < LIMIT
            counts["right" if is_right else "wrong"] += 1
            most = max(most, apart) if is_right else most
            if not is_right:
                what = f"frame {shown}" if shown != wanted else f"pictures {apart} levels from the CPU's"
                first.setdefault("wrong", line.get("error") or f"{what} instead of frame {wanted}")
    row: Row = {name: counts[name] for name in ("right", "wrong", "refused")} | {"most_levels_away": most}
    return row | ({"message": first.get("wrong") or first["refused"]} if first else {})


def fill(media: MediaSet, lines: list[Row], column: str) -> Row:
    """Write the results of a pass into the rows; return the report of the pass."""
    by_medium = collections.defaultdict(list)
    for line in lines:
        if "number" in line:
            by_medium[media.clips[line["number"]]].append(line)
    for media_id, row in media.rows.items():
        mine = by_medium[media_id]
        row[column] = tally(mine)
        seen = {line["number"] for line in mine}
        row[column]["clips_not_seen"] = row["clips"] - len(seen)
        if column == "loader" or "gate" not in row:
            row["gate"] = dict(collections.Counter({line["number"]: line["gate"] for line in mine}.values()))
    ends = [line for line in lines if "number" not in line]
    return {name: value for line in ends for name, value in line.items()}


def kept_from_gpu(media: MediaSet, lines: list[Row]) -> dict[str, list[int]]:
    """Return by medium the clips that the gate keeps from the GPU."""
    found: dict[str, set[int]] = collections.defaultdict(set)
    for line in lines:
        if "number" in line and line["gate"] not in ("nvdec", "nvjpeg"):
            found[media.clips[line["number"]]].add(line["number"])
    return {media_id: sorted(numbers) for media_id, numbers in found.items()}


def verdict(lines: list[Row], clips: int) -> Row:
    """Return the result of forcing a medium's clips. `outcome` is right, wrong or refused, or how the process ended."""
    found = tally([line for line in lines if "number" in line])
    ended = [line["ended"] for line in lines if "ended" in line]
    if ended:
        outcome = "hangs" if ended[0].startswith("nothing") else "crashes"
        return found | {"clips": clips, "outcome": outcome, "message": ended[0]}
    outcome = "wrong" if found["wrong"] else "refused" if found["refused"] else "right"
    return found | {"clips": clips, "outcome": outcome}


class Result:
    """The result file, which is written after each step."""

    def __init__(self, path: Path, facts: Row) -> None:
        self.path, self.facts, self.rows = path, facts, list[Row]()

    def save(self) -> None:
        """Write to a temporary file, then rename it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_suffix(".part")
        aside.write_text(json.dumps(self.facts | {"rows": self.rows}, indent=1) + "\n", encoding="utf-8")
        aside.rename(self.path)

    def is_wrong(self) -> bool:
        """Return whether any frame from a loader was wrong, or any clip was not seen."""
        return any(
            row[way]["wrong"] or row[way]["clips_not_seen"]
            for row in self.rows
            for way in ("loader", "cpu")
            if way in row
        )


def measure(media: MediaSet, result: Result, *, workers: int, jobs: int, gpu: bool) -> None:
    """Run all passes over a set of media."""
    result.rows += media.rows.values()
    reports = result.facts.setdefault("reports", {}).setdefault(media.name, {})
    reports["cpu"] = fill(media, run_pass(media, "cpu", workers=workers, seconds=PASS_SECONDS), "cpu")
    say(f"{media.name}, CPU: {reports['cpu']}")
    result.save()
    if not gpu:
        return
    lines = run_pass(media, "loader", workers=workers, seconds=PASS_SECONDS)
    reports["loader"] = fill(media, lines, "loader")
    say(f"{media.name}, loader: {reports['loader']}")
    result.save()
    with ThreadPoolExecutor(jobs) as pool:
        kept = kept_from_gpu(media, lines)
        futures = {
            pool.submit(run_pass, media, "forced", clips=clips, seconds=FORCED_SECONDS): media_id
            for media_id, clips in kept.items()
        }
        for future in as_completed(futures):
            media_id = futures[future]
            row = media.rows[media_id]
            row["forced"] = verdict(future.result(), len(kept[media_id]))
            say(f"forced: {row['codec']}, {row['hazard']}: {row['forced']['outcome']}")
            result.save()


def say(text: str) -> None:
    """Print progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def device() -> Row:
    """Return the GPU and its driver as nvidia-smi names them."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, _, driver = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition("\n")[0].partition(", ")
    )
    return {"gpu": name, "driver": driver}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, help="a folder of media to take as they are, besides")
    parser.add_argument("--only-corpus", action="store_true", help="without what is made")
    parser.add_argument("--media", type=Path, help="where the hazards lie or are made; a temporary folder otherwise")
    parser.add_argument("--out", type=Path, default=RESULT)
    cores = os.cpu_count() or 1
    parser.add_argument("--workers", type=int, default=cores)
    parser.add_argument("--jobs", type=int, default=max(1, min(8, cores // 2)), help="forced media at a time")
    parser.add_argument("--no-gpu", action="store_true", help="the CPU alone")
    options = parser.parse_args()
    facts = {"environment": environment("nvidia-dali-cuda120", "torch") | ({} if options.no_gpu else device())}
    result = Result(options.out, facts | {"limit_levels": LIMIT})
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        how = {"workers": min(8, options.workers), "jobs": options.jobs, "gpu": not options.no_gpu}
        missing: list[Row] = []
        if not options.only_corpus:
            media, missing = made_set(scratch / "made", options.media or scratch / "media", options.workers)
            say(f"{len(media.rows)} media, {len(media.clips)} clips; missing: {missing}")
            result.facts["missing"] = missing
            measure(media, result, **how)
        if options.corpus:
            media, missing = planned(
                "corpus", scratch / "corpus", options.corpus.resolve(), {}, options.workers, missing
            )  # fmt: skip
            result.facts["missing"] = missing
            measure(media, result, **how)
    result.save()
    wrong = result.is_wrong()
    say(f"{len(result.rows)} media; {'FRAMES ARE WRONG' if wrong else 'every frame through the loaders is right'}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
