"""Small pictures of the media and clips that are examples of findings.

If a medium cannot be decoded, the report shows the reason instead.
"""

import functools
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.auditor.findings import Audit
from framedex.auditor.report.media_table import title_of
from framedex.auditor.tables.database import Database
from framedex.auditor.tables.subject import Kind
from framedex.errors import DecodeError, FramedexError
from framedex.execution.engine import Calls, run_local
from framedex.indexer.parts.index import Index
from framedex.loader.contact_sheets.sheet import Inspector, Thumbnails, jpeg
from framedex.records.medium import OK
from framedex.sharder.clips.clip import Clip, WantedClip
from framedex.sharder.planning.indexed_medium import IndexedMedium, PlanningOptions
from framedex.sharder.planning.steps import Spools
from framedex.sharder.reading import SourceFiles
from framedex.storage.places import Access, Place

FRAMES = 4  # number of pictures per medium or clip
EXAMPLES = 3  # number of examples per finding that are shown with pictures
MAX_MEDIA = 60  # maximum number of media or clips with pictures per report. The most severe findings have priority
THUMBNAILS = Thumbnails(longest_side=160)  # pixels
JPEG_QUALITY = 70
MAX_PIXELS = 4e9  # maximum number of pixels to decode per medium
MAX_COPIED = 64 << 20  # maximum size in bytes of a medium whose packets must all be demuxed
WORKERS, WORKER_MEMORY_BYTES = 4, 8 << 30
SECONDS_A_MEDIUM = 60.0
SCATTERED = "its packets are not byte ranges of the file, which is too large to copy them for a picture"
UNREADABLE = Exception  # the errors that are shown in the report. No medium may make the report fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture of one frame.

    Attributes:
        frame: The number of the frame.
        seconds: The time of the frame.
        jpeg: The picture as a JPEG file.
        width, height: The size of the picture in pixels.
    """

    frame: int
    seconds: float
    jpeg: bytes
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The pictures of a medium or clip.

    Attributes:
        name: The name of the medium or clip.
        pictures: The pictures.
        reason: The reason why pictures are missing. None if none are missing.
        damaged: Whether the reason is damage that the decoder met.
    """

    name: str
    pictures: list[Picture]
    reason: str | None = None
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureTask:
    """The task to decode pictures of a medium of an index or a clip of a dataset.

    Attributes:
        kind: `index` or `dataset`.
        place: The index or dataset.
        access: The rules for which sources may be read.
        identity: The media_id or clip_id.
        folder: A folder for temporary files.
    """

    kind: Kind
    place: Place
    access: Access
    identity: str
    folder: str


def pictured(found: Audit) -> dict[str, list[str]]:
    """Choose the first examples of each finding. Return their media_ids or clip_ids by the name of the check."""
    column = "media_id" if found.kind == "index" else "clip_id"
    wanted: dict[str, list[str]] = {}
    seen: set[str] = set()
    for finding in found.findings:
        named = dict.fromkeys(row[column] for row in finding.examples if row.get(column))
        for identity in list(named)[:EXAMPLES]:
            if identity in seen or len(seen) < MAX_MEDIA:
                seen.add(identity)
                wanted.setdefault(finding.check.name, []).append(identity)
    return wanted


def strips(db: Database, identities: list[str], access: Access) -> dict[str, Strip]:
    """Decode pictures of media of an index or of clips of a dataset. Return them by media_id or clip_id.

    Pictures are decoded in other processes. If a medium crashes a decoder, only its own pictures are missing.

    Args:
        db: The database of the index or dataset.
        identities: The media_ids or clip_ids.
        access: The rules for which sources may be read.

    Raises:
        StorageError: `access` does not allow reading the sources.
    """
    audited, found = db.audited, {}
    if audited.kind == "index":
        _index(audited.place, access).check_locations()
    else:
        _inspector(audited.place, access).dataset.manifest.check_locations()
    with tempfile.TemporaryDirectory(prefix="framedex-audit-") as folder:
        tasks = [
            PictureTask(kind=audited.kind, place=audited.place, access=access, identity=identity, folder=folder)
            for identity in identities
        ]
        workers = max(1, min(WORKERS, os.cpu_count() or 1, len(tasks)))
        drawing = functools.partial(draw, most_pixels=MAX_PIXELS)
        calls = Calls(function=drawing, items=tasks, timeout_seconds=SECONDS_A_MEDIUM)
        for outcome in run_local(calls, workers=workers, memory_bytes=WORKER_MEMORY_BYTES):
            task = outcome.item
            if outcome.result is None:
                name = task.identity
                if task.kind == "index":
                    name = _index(task.place, task.access).video(name)["uri"]
                found[task.identity] = Strip(name=name, pictures=[], reason=f"{outcome.kind}: {outcome.message}")
            elif outcome.result:
                (found[task.identity],) = outcome.result
    return found


def draw(task: PictureTask, most_pixels: float) -> list[Strip]:
    """Return a list with the strip of one medium or clip.

    The list is empty if a clip is not in the manifest, because the clip could not be made.

    Args:
        task: The medium or clip.
        most_pixels: The maximum number of pixels to decode for a medium. If evenly spread frames would need more,
            random access points are shown, which need only one decoded picture each.
    """
    try:
        return _of_medium(task, most_pixels) if task.kind == "index" else _of_clip(task)
    except UNREADABLE as error:
        return [_without(task.identity, error)]


def _without(name: str, error: BaseException) -> Strip:
    what = error.what if isinstance(error, FramedexError) else str(error) or type(error).__name__
    return Strip(name=name, pictures=[], reason=what, damaged=isinstance(error, DecodeError))


@functools.lru_cache(maxsize=1)
def _inspector(dataset: Place, access: Access) -> Inspector:
    return Inspector(dataset, THUMBNAILS, access=access)


def _of_clip(task: PictureTask) -> list[Strip]:
    inspector = _inspector(task.place, task.access)
    try:
        number = inspector.dataset.manifest.find(task.identity)
    except FramedexError:
        return []
    shown = inspector.show(number)
    name = f"{shown.uri} · clip {shown.clip_id}"
    if shown.error is not None:
        return [Strip(name=name, pictures=[], reason=shown.error, damaged=shown.damaged)]
    real = [frame for frame in shown.frames if frame.picture is not None]
    places = np.unique(np.linspace(0, len(real) - 1, min(FRAMES, len(real))).round().astype(np.int64))
    chosen = [real[place] for place in places.tolist()]
    pictures = [_picture(f.frame_index or 0, f.seconds or 0.0, f.picture) for f in chosen if f.picture is not None]
    return [Strip(name=name, pictures=pictures, reason=None if pictures else "every frame is padding")]


@functools.lru_cache(maxsize=1)
def _index(path: Place, access: Access) -> Index:
    return Index(path, access=access)


def _of_medium(task: PictureTask, most_pixels: float) -> list[Strip]:
    index = _index(task.place, task.access)
    video = index.video(task.identity)
    name = title_of(video["uri"], video["member"])
    if video["status"] != OK:
        return [Strip(name=name, pictures=[], reason=f"{video['status']}: {video['error_message']}")]
    try:
        medium = IndexedMedium(index, video, PlanningOptions(keep_damaged=True))
        if not medium.addressable and (video["member_bytes"] or video["size_bytes"] or 0) > MAX_COPIED:
            return [Strip(name=name, pictures=[], reason=SCATTERED)]
        with tempfile.TemporaryDirectory(dir=task.folder) as own:
            if not medium.addressable:
                Spools(Path(own), needed=True, settle=lambda: None).make_addressable(medium)
            return [_drawn(name, _plan(medium, video, most_pixels))]
    except UNREADABLE as error:
        return [_without(name, error)]


def _plan(medium: IndexedMedium, video: dict[str, Any], most_pixels: float) -> list[Clip]:
    """Return clips of one frame each, spread evenly over a medium.

    If decoding these frames would exceed `most_pixels`, the random access points before them are chosen instead.
    """
    count = len(medium.timeline.pts)
    frames = np.unique((np.arange(FRAMES) * 2 + 1) * count // (2 * FRAMES))
    cost = (video["seek_packets"] or video["mean_gop"] or 1) * video["width"] * video["height"] * len(frames)
    starts = medium.timeline.starts
    if cost > most_pixels and starts is not None and len(starts):
        frames = np.unique(starts[np.maximum(np.searchsorted(starts, frames, side="right") - 1, 0)])
    clips: list[Clip] = []
    first_error: Exception | None = None
    for frame in frames.tolist():
        wanted = WantedClip(clip_id=f"frame {frame}", frames=np.array([frame]), mask=np.ones(1, np.bool_), columns={})
        try:
            clips.append(medium.clip(wanted))
        except UNREADABLE as error:
            first_error = first_error or error
    if first_error is not None and not clips:
        raise first_error
    return clips


def _drawn(name: str, clips: list[Clip]) -> Strip:
    pictures, first_error, files = [], None, SourceFiles()
    for clip in clips:
        try:
            encoded = files.read(clip)
            [picture] = THUMBNAILS.pictures(clip, encoded, THUMBNAILS.size(clip.medium))
            pictures.append(_picture(int(clip.frames[0]), float(clip.seconds[0]), picture))
        except UNREADABLE as error:
            first_error = first_error or error
    if first_error is None:
        return Strip(name=name, pictures=pictures)
    missing = _without(name, first_error)
    return replace(missing, pictures=pictures, reason=(missing.reason or "").removeprefix("clip "))


def _picture(frame: int, seconds: float, pixels: NDArray[np.uint8]) -> Picture:
    height, width = pixels.shape[:2]
    return Picture(frame=frame, seconds=seconds, jpeg=jpeg(pixels, JPEG_QUALITY), width=width, height=height)
