"""Compare every frame of every stream in a folder of media, in shuffled order, with an independent full decode.

Without a folder, the media are all recipes of the test suite. `python -m benchmarks.exactness FOLDER` indexes the
folder and plans clips over all frames (media that cannot be addressed by bytes are packed). It decodes the clips and
compares the native planes of every picture, bit for bit, with those of an in-order decode of the file by PyAV alone, or
with an oracle: `manifest.json` in the folder, as in the corpus of hazards.
"""

from __future__ import annotations

import collections
import json
import random
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import av
import av.error
import click

from benchmarks.environment import environment
from framedex.core.pyav import LENIENT_METADATA
from framedex.errors import NoClipsError
from framedex.indexer.containers import picture_md5
from framedex.indexer.parts.index import Index
from framedex.indexer.probing.probe import Depth
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.work import IndexOptions
from framedex.indexer.schema import NO_VIDEO
from framedex.indexer.timeline import DAMAGED, presentation_order
from framedex.loader.verification.verify import verify
from framedex.records.medium import FAILED
from framedex.sharder.build import ShardOptions, build_from_requests
from framedex.sharder.selection.explicit_clips import ExplicitClip, ExplicitClips
from tests.support.hazards import HAZARDS
from tests.support.media import RECIPES, make

FRAMES_A_CLIP = 8
Oracle = dict[tuple[str, int], list[tuple[int | None, str]]]  # (uri, stream) → (pts, md5) of each frame in order


@dataclass(kw_only=True)
class Tried:
    """The outcome of one medium.

    Attributes:
        frames: frames that an in-order decode presents.
        held: frames outside of damaged GOPs.
        exact: those of `held` that clips returned bit for bit.
        refused: frames that cannot be planned.
        undecodable: places of clips that the loader refused to decode.
        wrong: pictures that differ from the requested ones. There must never be any.
    """

    uri: str
    stream: int
    status: str
    codec: str
    depth: str
    reason: str
    frames: int = 0
    held: int = 0
    exact: int = 0
    refused: int = 0
    undecodable: int = 0
    wrong: list[str] = field(default_factory=list)


def full_decode(path: Path, stream: int) -> list[tuple[int | None, str]]:
    """Return (pts, md5) of every frame that a player would show. Decoding continues after errors."""
    found: list[tuple[int | None, str]] = []
    with av.open(str(path), **LENIENT_METADATA) as container:
        video = container.streams[stream]
        video.codec_context.thread_count = 1  # some decoders give different pictures with more threads
        packets = container.demux(video)
        while True:
            try:
                found += [(frame.pts, picture_md5(frame)) for frame in next(packets).decode()]  # type: ignore[arg-type]
            except StopIteration:
                return found
            except av.error.FFmpegError:
                continue
            except IndexError:  # PyAV: damage that looks like a new stream
                video = container.streams[stream]
        packets = container.demux(video)


def read_oracle(folder: Path) -> Oracle:
    """Return the frames that `manifest.json` in the folder states, if the file exists."""
    path = folder / "manifest.json"
    files = json.loads(path.read_text(encoding="utf-8"))["files"] if path.exists() else {}
    return {
        (uri, int(number)): [(frame[0], frame[4]) for frame in stream["frames"]]
        for uri, facts in files.items()
        for number, stream in facts.get("streams", {}).items()
    }


def try_folder(
    folder: Path,
    *,
    depth: Depth = "auto",
    verify: bool = False,
    prove: int = 0,
    workers: int = 2,
    seed: int = 0,
    oracle: Oracle | None = None,
) -> list[Tried]:
    """Return the outcome of every medium in a folder.

    Args:
        folder: the media.
        depth: see `ProbeTask`; likewise verify and prove.
        workers: processes that index and decode. 0: this process.
        seed: of the order of frames.
        oracle: full decodes that were made before. Defaults to the content of `manifest.json` in the folder.
    """
    with tempfile.TemporaryDirectory() as scratch:
        options = IndexOptions(
            sources=[str(folder)],
            root=str(folder),
            out=Path(scratch) / "INDEX",
            depth=depth,
            verify=verify,
            prove=prove,
            streams="all",
            images="ignore",
            workers=workers,
        )
        build_index(options)
        index = Index(options.out)
        rows = {(row["uri"], row["stream_index"]): row for row in index.videos.to_pylist()}
        oracle = read_oracle(folder) if oracle is None else oracle
        truth = {
            key: oracle[key] if key in oracle else full_decode(folder / key[0], key[1])
            for key, row in rows.items()
            if row["status"] == "ok"
        }
        tried = {key: _tried(index, row, truth.get(key, [])) for key, row in sorted(rows.items())}
        requests = _requests(index, rows, random.Random(seed))
        media = {request.clip_id: (request.uri, request.stream or 0) for request in requests}
        done: dict[tuple[str, int], set[int]] = collections.defaultdict(set)
        failed = _run(index, Path(scratch) / "TOGETHER", requests, workers, rows, truth, tried, done, media)
        # A clip is refused because of a single frame; its other frames are tried alone.
        alone = [
            replace(request, clip_id=f"{request.clip_id}-{frame}", frames=[frame])
            for request in requests
            if request.clip_id in failed
            for frame in sorted(set(request.frames or []))
        ]
        media |= {request.clip_id: (request.uri, request.stream or 0) for request in alone}
        refused = _run(index, Path(scratch) / "ALONE", alone, workers, rows, truth, tried, done, media)
        for request in alone:
            if request.clip_id in refused:
                tried[request.uri, request.stream or 0].refused += 1
        for key, frames in done.items():
            tried[key].exact = len(frames)
        return list(tried.values())


def _run(
    index: Index,
    out: Path,
    requests: list[ExplicitClip],
    workers: int,
    rows: dict[tuple[str, int], dict[str, Any]],
    truth: Oracle,
    tried: dict[tuple[str, int], Tried],
    done: dict[tuple[str, int], set[int]],
    media: dict[str, tuple[str, int]],
) -> set[str]:
    """Write a dataset of some clips, decode and compare them all; return the names of those that are not available."""
    asked = written(requests, out.with_suffix(".jsonl"))
    options = ShardOptions(pack="needed", workers=workers)
    try:
        report = build_from_requests(index, out, asked, choose="nearest", options=options)
    except NoClipsError as error:
        return {failure["clip_id"] for failure in error.failures}
    for checked in verify(out, workers=workers):
        key = media[checked.clip_id]
        if not checked.frames:  # a defect: framedex wrote this row
            tried[key].wrong.append(f"the row of clip {checked.clip_id} cannot be read: {checked.reason}")
        lossy = rows[key]["damaged_gop_count"] or len(truth[key]) != rows[key]["frame_count"]
        by_pts = bool(lossy) and rows[key]["pts_source"] == "container"
        expected: dict[Any, set[str]] = {}
        for number, (pts, md5) in enumerate(truth[key]):
            expected.setdefault(pts if by_pts else number, set()).add(md5)
        for frame, pts, md5 in zip(checked.frames, checked.pts, checked.md5, strict=True):
            if md5 is not None and md5 in expected.get(pts if by_pts else frame, ()):
                done[key].add(frame)
            elif checked.verdict == "undecodable":
                tried[key].undecodable += 1
            else:
                tried[key].wrong.append(f"frame {frame} ({checked.verdict}: {checked.reason})")
    return {failure["clip_id"] for failure in report.failures}


def written(requests: list[ExplicitClip], path: Path) -> ExplicitClips:
    """Write explicit clips into a file, as a user would, and open it."""
    rows = [
        {"uri": request.uri, "clip_id": request.clip_id, "frames": request.frames}
        | ({} if request.stream is None else {"stream": request.stream})
        for request in requests
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return ExplicitClips(path)


def _tried(index: Index, row: dict[str, Any], truth: list[tuple[int | None, str]]) -> Tried:
    held = 0
    if row["status"] == "ok":
        packets = index.packets(row["media_id"])
        order = presentation_order(packets.pts, packets.flags)
        held = int(((packets.flags[order] & DAMAGED) == 0).sum())
    return Tried(
        uri=row["uri"],
        stream=row["stream_index"],
        status=FAILED if row["error_kind"] == NO_VIDEO else row["status"],  # as if each file were named
        codec=row["codec"] or "",
        depth=row["depth"] or "",
        reason=row["error_message"] or "",
        frames=len(truth),
        held=held,
    )


def _requests(index: Index, rows: dict[tuple[str, int], dict[str, Any]], shuffler: random.Random) -> list[ExplicitClip]:
    """Return shuffled clips that request every frame outside of damaged GOPs once, and one frame of each clip twice."""
    requests = []
    for (uri, stream), row in rows.items():
        if row["status"] != "ok":
            continue
        packets = index.packets(row["media_id"])
        order = presentation_order(packets.pts, packets.flags)
        frames = [n for n, flag in enumerate(packets.flags[order].tolist()) if not flag & DAMAGED]
        shuffler.shuffle(frames)
        for at in range(0, len(frames), FRAMES_A_CLIP):
            wanted = frames[at : at + FRAMES_A_CLIP]
            clip_id = f"{uri}#{stream}-{at}"
            requests.append(
                ExplicitClip(line=len(requests), clip_id=clip_id, uri=uri, stream=stream, frames=[*wanted, wanted[0]])
            )
    return requests


def markdown(tried: list[Tried]) -> str:
    """Return the outcome as a table with one line per medium."""
    lines = ["| file | codec | frames, exact | remark |", "|---|---|---|---|"]
    streams = collections.Counter(medium.uri for medium in tried)
    for medium in tried:
        name = medium.uri.replace("|", "\\|") + (f" (stream {medium.stream})" if streams[medium.uri] > 1 else "")
        exact = f"{medium.frames}, {medium.exact}" if medium.status == "ok" else medium.status
        refused = f"{medium.refused} frames are refused when they are planned" if medium.refused else ""
        refused = "clips over damage are refused when they are decoded" if medium.undecodable else refused
        remark = "; ".join(part for part in (medium.reason, refused, *medium.wrong[:1]) if part).replace("|", "\\|")
        lines.append(f"| {name} | {medium.codec} | {exact} | {remark} |")
    return "\n".join(lines) + "\n"


def summary(tried: list[Tried]) -> dict[str, int]:
    """Return the numbers of media tried and indexed, and of frames presented, exact, refused with a reason, wrong."""
    ok = [medium for medium in tried if medium.status == "ok"]
    frames, exact = sum(medium.frames for medium in ok), sum(medium.exact for medium in ok)
    wrong = sum(len(medium.wrong) for medium in ok)
    return {
        "media": len(tried),
        "indexed": len(ok),
        "frames": frames,
        "exact": exact,
        "refused": frames - exact - wrong,
        "wrong": wrong,
    }


def try_recipes(*, workers: int, seed: int) -> dict[str, Any]:
    """Return the outcome of every recipe of the suite's media, at both depths."""
    found: dict[str, Any] = {}
    groups = {"ordinary": RECIPES, "hazards": HAZARDS}
    with tempfile.TemporaryDirectory() as scratch:
        for name, recipes in groups.items():
            folder = Path(scratch) / name
            folder.mkdir()
            for recipe in recipes.values():
                make(recipe, folder)
            for depth in get_args(Depth)[:2]:
                found[f"{name}, {depth}"] = summary(try_folder(folder, depth=depth, workers=workers, seed=seed))
    return found


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Without FOLDER: write the outcome there.")
@click.option("--depth", type=click.Choice(["auto", "packets", "tables"]), default="auto", show_default=True)
@click.option("--workers", type=int, default=2, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def main(folder: Path | None, out: Path | None, depth: Depth, workers: int, seed: int) -> None:
    """Print a table of every medium in FOLDER; exit with 1 if any frame was wrong.

    Without FOLDER: try all recipes of the suite's media, at both depths.
    """
    if folder is None:
        outcome = {"environment": environment(), "runs": try_recipes(workers=workers, seed=seed)}
        text = json.dumps(outcome, indent=2)
        click.echo(text)
        if out is not None:
            out.write_text(text + "\n", encoding="utf-8")
        raise SystemExit(1 if any(run["wrong"] for run in outcome["runs"].values()) else 0)
    tried = try_folder(folder.resolve(), depth=depth, workers=workers, seed=seed)
    click.echo(markdown(tried))
    ok = [medium for medium in tried if medium.status == "ok"]
    exact, wrong = sum(medium.exact for medium in ok), sum(len(medium.wrong) for medium in ok)
    click.echo(f"{len(tried)} media, {len(ok)} indexed: {exact} frames exact, {wrong} wrong")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
