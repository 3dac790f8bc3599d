"""Decide which media a rerun skips: those whose rows in the index still answer all that the run asks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace

from framedex.core.pyav import ffmpeg_version
from framedex.core.version import __version__
from framedex.errors import INTERNAL_ERROR, MediaError
from framedex.indexer.images.probe_images import ImageTask
from framedex.indexer.media_rows import Row
from framedex.indexer.probing.probe import ProbeTask
from framedex.indexer.runs.media_there import media_there
from framedex.indexer.schema import NO_VIDEO, UNPROVEN
from framedex.indexer.sources.image_times import at_rate
from framedex.indexer.sources.named_medium import is_image_name
from framedex.records.medium import FAILED, IMAGES, OK, REFUSED, VIDEO

KNOWN_COLUMNS = (
    "media_id",
    "kind",
    "stream_index",
    "uri",
    "member",
    "member_bytes",
    "sidecars",
    "status",
    "error_kind",
    "error_message",
    "probed_by",
    "tried",
    "size_bytes",
    "mtime_ns",
    "fingerprint",
    "video_streams",
    "hashed",
    "proof",
    "depth",
    "time_base_num",
    "time_base_den",
)


def rows_of(known: list[Row], task: ProbeTask, member: str | None) -> list[Row]:
    """Return the rows of one uri that describe a medium as it was probed last.

    For a tar or a Parquet file, these are the rows of all its media.

    Args:
        known: the rows of the uri in the order in which they were written.
        task: how the medium is probed.
        member: which of several media of the uri.
    """
    if task.holds is None:
        return [row for row in known if row["member"] == member]
    return [row for row in known if row["fingerprint"] == known[-1]["fingerprint"]]


def is_done(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether known rows still describe a medium and answer all that the task asks.

    Another version of framedex probes refused media again, because it may support them. For failed media, see
    `is_same_failure`.
    """
    if not known or any(row["status"] == FAILED for row in known):
        return False
    if any(row["status"] == REFUSED and row["probed_by"] != __version__ for row in known):
        return False
    if any(row["error_kind"] == UNPROVEN for row in known):
        return False
    return _has_answers(task, known) and media_there(task).is_same(known[0])


def _has_answers(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether known rows answer all that the task asks of usable media, and of those that are skipped."""
    if not _skips_same(task, known):
        return False
    if task.verify and any(row["status"] == OK and not row["hashed"] for row in known):
        return False
    videos = [row for row in known if row["status"] == OK and row["kind"] == VIDEO]
    if task.prove and any(row["proof"] is None for row in videos):
        return False
    if task.images is not None and not _is_timed(task.images, known):
        return False
    if not all(set(task.sidecars) <= set(json.loads(row["sidecars"] or "{}")) for row in known if _is_member(row)):
        return False
    return _asks_no_more(task, known)


def _is_member(row: Row) -> bool:
    """Return whether a row describes a video inside a file."""
    return row["member_bytes"] is not None


def _skips_same(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether what was skipped for having no video is what this run would skip."""
    for row in known:
        if row["error_kind"] == NO_VIDEO and not _is_member(row):
            if (row["status"] == REFUSED) != task.searched:
                return False
            if task.images is not None and not task.images.ignored:
                return False
    return True


def attempt(task: ProbeTask, *, timeout_seconds: float | None, memory_bytes: int | None) -> str:
    """Return which FFmpeg and which options probe a medium: the column `tried` of a medium that failed."""
    asked: dict[str, object] = {
        "depth": task.depth,
        "streams": task.streams,
        "verify": task.verify,
        "prove": task.prove,
    }
    if task.images is not None:
        of_images = (task.images.single, task.images.fps, task.images.default_fps, task.images.seconds)
        asked["images"] = hashlib.blake2b(repr(of_images).encode(), digest_size=8).hexdigest()
    asked |= {"timeout": timeout_seconds, "memory": memory_bytes}
    return f"FFmpeg {ffmpeg_version()}, " + ", ".join(f"{name} {value}" for name, value in asked.items())


def is_same_failure(
    task: ProbeTask, known: list[Row], *, timeout_seconds: float | None, memory_bytes: int | None
) -> bool:
    """Return whether probing a medium would fail as before: the same file, options, framedex and FFmpeg.

    A bug of framedex and an unanswered request to a store do not count, because they say nothing about the medium.

    Args:
        task: how the medium is probed.
        known: its rows.
        timeout_seconds: of this run.
        memory_bytes: of this run.
    """
    tried = attempt(task, timeout_seconds=timeout_seconds, memory_bytes=memory_bytes)
    tried_inside = attempt(replace(task, images=None), timeout_seconds=timeout_seconds, memory_bytes=memory_bytes)
    if any(row["probed_by"] != __version__ or row["error_kind"] == INTERNAL_ERROR for row in known):
        return False
    failed = [row for row in known if row["status"] == FAILED]
    if any(row["tried"] != (tried_inside if _is_member(row) else tried) for row in failed):
        return False
    return _has_answers(task, known) and is_same_medium(task, known)


def is_same_medium(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether the medium is still what known rows describe.

    If it could not be read, return whether it still cannot be read.
    """
    row = known[0]
    there = media_there(task)
    return not there.is_readable() if row["fingerprint"] is None else there.is_same(row)


def _asks_no_more(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether the rows of videos have the streams and the depth that the task asks for."""
    videos = [row for row in known if row["kind"] == VIDEO]
    if task.streams == "all":
        streams = Counter(row["member"] for row in videos)
        if any(streams[row["member"]] < (row["video_streams"] or 1) for row in videos):
            return False
    return task.depth != "packets" or all(row["depth"] != "tables" for row in videos)


def _is_timed(task: ImageTask, known: list[Row]) -> bool:
    """Return whether the rows of a single image or of a tar have the rate and the sequences that the task asks for.

    Rows of videos in a tar do not count.

    The fingerprint of a folder also covers its timing, so folders need no check.
    """
    if task.form == "folder":
        return True
    tick = at_rate(1, task.rate).tick
    usable = [row for row in known if row["status"] == OK and row["kind"] == IMAGES]
    if any((row["time_base_num"], row["time_base_den"]) != (tick.numerator, tick.denominator) for row in usable):
        return False
    return task.form != "tar" or all(is_image_name(row["member"]) == task.single for row in usable)


def is_still_unopened(error: MediaError, known: list[Row]) -> bool:
    """Return whether a known row, by this version of framedex, has the same reason not to open a medium."""
    status = REFUSED if error.refused else FAILED
    said = ("status", status), ("error_kind", error.kind), ("error_message", error.what), ("probed_by", __version__)
    return len(known) == 1 and all(known[0][name] == value for name, value in said)
