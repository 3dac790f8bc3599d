"""Comparing clips, decoded from their byte ranges, with a full in-order decode of their sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import av
import av.error
import numpy as np

from framedex.errors import DecodeError, StaleError
from framedex.indexer.engines import run_local
from framedex.loader.cpu import decode_pictures
from framedex.loader.manifest import Clip, Manifest, Medium
from framedex.loader.pictures import picture_md5
from framedex.loader.sources import SourceFiles, open_checked
from framedex.sharder.schema import PAD

Verdict = Literal["exact", "differs", "undecodable", "stale"]
Truth = dict[int, tuple[int | None, str]]  # presentation number → (pts, md5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The verdict on one clip. pts and md5 hold None where padded, and md5 where nothing was decoded."""

    clip_id: str
    uri: str
    frames: list[int]
    pts: list[int | None]
    md5: list[str | None]
    verdict: Verdict
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """The chosen clips of one medium."""

    dataset: Path
    root: str | None
    clips: list[int]


def verify(
    dataset: Path,
    *,
    root: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    workers: int = os.cpu_count() or 1,
    timeout_seconds: float | None = 3600.0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Checked]:
    """Yield the verdict on every clip, or on `sample` clips chosen by `seed`, medium by medium.

    A source is decoded once from its beginning, up to the last frame that its clips want. timeout_seconds: for each
    source; the clips of one that takes longer are undecodable.
    """
    manifest = Manifest(dataset, root=root)
    chosen = np.arange(len(manifest))
    if sample is not None and sample < len(manifest):
        chosen = np.sort(np.random.default_rng(seed).choice(len(manifest), sample, replace=False))
    media = manifest.media_rows()[chosen]
    order = np.argsort(media, kind="stable")
    groups = np.split(chosen[order], np.flatnonzero(np.diff(media[order])) + 1) if len(chosen) else []
    tasks = [_Task(dataset=dataset, root=root, clips=group.tolist()) for group in groups]
    done = 0
    outcomes = run_local(
        verify_medium, tasks, workers=max(1, min(workers, len(tasks))), timeout_seconds=timeout_seconds
    )
    for outcome in outcomes:
        done += len(outcome.item.clips)
        if outcome.result is None:
            clips = [manifest.clip(number) for number in outcome.item.clips]
            yield from [_verdict(clip, None, "undecodable", f"{outcome.kind}: {outcome.message}") for clip in clips]
        else:
            yield from outcome.result
        on_progress(done, len(chosen))


def verify_medium(task: _Task) -> list[Checked]:
    """Return the verdicts on some clips of one medium."""
    manifest = Manifest(task.dataset, root=task.root)
    clips = [manifest.clip(number) for number in task.clips]
    try:
        os.close(open_checked(clips[0].medium))
    except StaleError as error:
        return [_verdict(clip, None, "stale", error.text()) for clip in clips]
    wanted = {int(frame) for clip in clips for frame in clip.frame_index if frame != PAD}
    try:
        truth = decode_in_order(clips[0].medium, wanted)
    except (av.error.FFmpegError, IndexError) as error:
        return [_verdict(clip, None, "undecodable", f"the source's full decode stops: {error}") for clip in clips]
    sources = SourceFiles()
    return [_check(clip, sources, truth) for clip in clips]


def decode_in_order(medium: Medium, wanted: set[int]) -> Truth:
    """Return pts and md5 of the wanted frames by decoding the source from its beginning, as a player would.

    Frames are counted as the decoder gives them; nothing of the index is used.
    """
    truth: Truth = {}
    last = max(wanted, default=-1)
    with av.open(f"file:{medium.path}", metadata_errors="replace", options={"protocol_whitelist": "file"}) as container:
        for number, frame in enumerate(container.decode(container.streams[medium.stream_index])):
            assert isinstance(frame, av.VideoFrame)  # the stream is a video stream
            if number in wanted:
                truth[number] = (frame.pts, picture_md5(frame))
            if number >= last:
                break
    return truth


def _check(clip: Clip, sources: SourceFiles, truth: Truth) -> Checked:
    try:
        encoded = sources.read(clip.medium, clip.recipe)
        by_rank = {rank: picture_md5(picture) for rank, picture in decode_pictures(clip, encoded)}
    except StaleError as error:
        return _verdict(clip, None, "stale", error.text())
    except DecodeError as error:
        return _verdict(clip, None, "undecodable", error.text())
    for place, (frame, rank) in enumerate(zip(clip.frame_index.tolist(), clip.recipe.position.tolist(), strict=True)):
        if frame == PAD:
            continue
        expected = truth.get(frame)
        if expected is None:
            return _verdict(clip, by_rank, "differs", f"the full decode has no frame {frame}")
        if expected[1] != by_rank[rank]:
            return _verdict(clip, by_rank, "differs", f"frame {frame} (place {place}) has other pixels: {expected[1]}")
        if expected[0] != int(clip.pts[place]):
            return _verdict(clip, by_rank, "differs", f"frame {frame} has pts {expected[0]}, not {clip.pts[place]}")
    return _verdict(clip, by_rank, "exact", None)


def _verdict(clip: Clip, by_rank: dict[int, str] | None, verdict: Verdict, reason: str | None) -> Checked:
    frames = clip.frame_index.tolist()
    return Checked(
        clip_id=clip.clip_id,
        uri=clip.medium.uri,
        frames=frames,
        pts=[None if frame == PAD else pts for frame, pts in zip(frames, clip.pts.tolist(), strict=True)],
        md5=[None if rank == PAD or by_rank is None else by_rank[rank] for rank in clip.recipe.position.tolist()],
        verdict=verdict,
        reason=reason,
    )
