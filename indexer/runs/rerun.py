"""What a rerun leaves alone: media whose rows in the index still say all that is asked of them."""

from __future__ import annotations

import hashlib

from framedex.core.pyav import ffmpeg_version
from framedex.core.version import __version__
from framedex.errors import INTERNAL_ERROR, MediaError
from framedex.indexer.images.probe_images import ImageTask
from framedex.indexer.media_rows import Row
from framedex.indexer.probing.probe import ProbeTask
from framedex.indexer.runs.media_there import media_there
from framedex.indexer.schema import FAILED, NO_VIDEO, OK, REFUSED
from framedex.indexer.sources.image_times import at_rate
from framedex.indexer.sources.named_medium import is_image_name

KNOWN_COLUMNS = (
    "media_id",
    "kind",
    "stream_index",
    "uri",
    "member",
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
    "depth",
    "time_base_num",
    "time_base_den",
)


def rows_of(known: list[Row], task: ProbeTask, member: str | None) -> list[Row]:
    """Return the rows of one uri that tell about a medium as it was probed last, all sequences of a tar.

    known: the rows of the uri, the one written last at the end. What an earlier state of a tar held and a later one does
    not keeps its row in the index.
    """
    is_tar = task.images is not None and task.images.form == "tar"
    rows = known if is_tar else [row for row in known if row["member"] == member]
    return [row for row in rows if row["fingerprint"] == rows[-1]["fingerprint"]] if is_tar else rows


def is_done(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether known rows still describe a medium, and all that is asked of it.

    Refused media are probed again by another version of framedex, which may cover them; of failed ones, see `is_same_failure`.
    """
    if not known or any(row["error_kind"] == NO_VIDEO and (row["status"] == REFUSED) != task.searched for row in known):
        return False
    if any(row["status"] == FAILED for row in known):
        return False
    if any(row["status"] == REFUSED and row["probed_by"] != __version__ for row in known):
        return False
    if task.verify and any(row["status"] == OK and not row["hashed"] for row in known):
        return False
    if task.images is not None and not _is_timed(task.images, known):
        return False
    return _asks_no_more(task, known) and media_there(task).is_same(known[0])


def attempt(task: ProbeTask, *, timeout_seconds: float | None, memory_bytes: int | None) -> str:
    """Return by which FFmpeg and with which options a medium is probed: what `tried` says of one that failed."""
    asked: dict[str, object] = {"depth": task.depth, "streams": task.streams, "verify": task.verify}
    if task.images is not None:
        of_images = (task.images.single, task.images.fps, task.images.default_fps, task.images.seconds)
        asked["images"] = hashlib.blake2b(repr(of_images).encode(), digest_size=8).hexdigest()
    asked |= {"timeout": timeout_seconds, "memory": memory_bytes}
    return f"FFmpeg {ffmpeg_version()}, " + ", ".join(f"{name} {value}" for name, value in asked.items())


def is_same_failure(task: ProbeTask, known: list[Row], tried: str) -> bool:
    """Return whether probing a medium would fail as it failed before: the same file, options, framedex and FFmpeg.

    A bug of framedex, and what a store did not answer, say nothing of the medium. tried: what `attempt` says of this run.
    """
    if any(
        row["probed_by"] != __version__
        or (row["status"] == FAILED and (row["tried"] != tried or row["error_kind"] == INTERNAL_ERROR))
        or (row["error_kind"] == NO_VIDEO and (row["status"] == REFUSED) != task.searched)
        for row in known
    ):
        return False
    return is_same_medium(task, known)


def is_same_medium(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether what lies there is what known rows are about; of what could not be read, whether it still cannot be."""
    row = known[0]
    there = media_there(task)
    return not there.is_readable() if row["fingerprint"] is None else there.is_same(row)


def _asks_no_more(task: ProbeTask, known: list[Row]) -> bool:
    """Return whether a video's rows have the streams, and the depth, that are asked for."""
    if task.images is not None:
        return True
    if task.streams == "all" and len(known) < (known[0]["video_streams"] or 1):
        return False
    return task.depth != "packets" or all(row["depth"] != "tables" for row in known)


def _is_timed(task: ImageTask, known: list[Row]) -> bool:
    """Return whether the rows of a single image or of a tar have the rate, and the sequences, that are asked for.

    The fingerprint of a folder is over its timing, too.
    """
    if task.form == "folder":
        return True
    tick = at_rate(1, task.rate).tick
    usable = [row for row in known if row["status"] == OK]
    if any((row["time_base_num"], row["time_base_den"]) != (tick.numerator, tick.denominator) for row in usable):
        return False
    return task.form != "tar" or all(is_image_name(row["member"]) == task.single for row in usable)


def is_still_unopened(error: MediaError, known: list[Row]) -> bool:
    """Return whether a known row already says that a medium is not opened for this, by this version of framedex."""
    status = REFUSED if error.refused else FAILED
    said = ("status", status), ("error_kind", error.kind), ("error_message", error.what), ("probed_by", __version__)
    return len(known) == 1 and all(known[0][name] == value for name, value in said)
