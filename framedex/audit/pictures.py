"""Small pictures of the media and clips that findings name, and the reason where there is none. Never raises for a medium."""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framedex.audit.database import Database
from framedex.audit.findings import Audit, Finding
from framedex.errors import FramedexError
from framedex.indexer.index import Index
from framedex.indexer.schema import OK
from framedex.loader.inspect import Inspector, thumbnail_size
from framedex.sharder.clip import Clip, WantedClip
from framedex.sharder.decoder import decode_rgb
from framedex.sharder.indexed import IndexedMedium
from framedex.sharder.media import Locations, Root
from framedex.sharder.sources import SourceFiles
from framedex.sharder.spool import Spools

FRAMES = 4  # of a medium
EXAMPLES = 3  # of a finding
MOST_MEDIA = 60  # of a report; those of the gravest findings come first
LONGEST_SIDE = 160
JPEG_QUALITY = 70
MOST_PIXELS = 4e9  # decoded for the pictures of one medium; beyond, start points are shown, which cost one picture each
MOST_COPIED = 64 << 20  # bytes of a medium whose packets have to be demuxed first
THREADS = 4
SCATTERED = "its packets are not byte ranges of the file, which is too large to copy them for a picture"
UNREADABLE = Exception  # a report of what is wrong with media does not fail because of one of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One frame. jpeg: base64. width, height: in pixels."""

    frame: int
    seconds: float
    jpeg: str
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The pictures of a medium or clip; where it has none, `reason` says why."""

    name: str
    pictures: list[Picture]
    reason: str | None = None


def pictured(found: Audit) -> dict[str, list[str]]:
    """Return the media or clips to show, by their identity, for each check that names any; the first ones of each."""
    column = "media_id" if found.kind == "index" else "clip_id"
    wanted: dict[str, list[str]] = {}
    seen: set[str] = set()
    for finding in found.findings:
        for identity in _named(finding, column):
            if identity in seen or len(seen) < MOST_MEDIA:
                seen.add(identity)
                wanted.setdefault(finding.check.name, []).append(identity)
    return wanted


def _named(finding: Finding, column: str) -> list[str]:
    return list(dict.fromkeys(row[column] for row in finding.examples if row.get(column)))[:EXAMPLES]


def strips(db: Database, identities: list[str], root: Root | None) -> dict[str, Strip]:
    """Return the pictures of media of an index or clips of a dataset. root: where the media lie now, if they moved."""
    if not identities:
        return {}
    try:
        if db.audited.kind == "index":
            return dict(_of_media(db, identities, root))
        return dict(_of_clips(db, identities, root))
    except UNREADABLE as error:
        return {identity: _without(identity, error) for identity in identities}


def _without(name: str, error: BaseException) -> Strip:
    what = error.what if isinstance(error, FramedexError) else str(error) or type(error).__name__
    return Strip(name=name, pictures=[], reason=what)


def _of_clips(db: Database, identities: list[str], root: Root | None) -> Iterator[tuple[str, Strip]]:
    inspector = Inspector(db.audited.place, longest_side=LONGEST_SIDE, root=root)
    for clip_id in identities:
        try:
            number = inspector.dataset.manifest.find(clip_id)
        except FramedexError:
            continue  # a clip that could not be had: its row says why
        try:
            yield clip_id, _of_clip(inspector, number)
        except UNREADABLE as error:
            yield clip_id, _without(clip_id, error)


def _of_clip(inspector: Inspector, number: int) -> Strip:
    shown = inspector.show(number)
    name = f"{shown.uri} · clip {shown.clip_id}"
    if shown.error is not None:
        return Strip(name=name, pictures=[], reason=shown.error)
    real = [frame for frame in shown.frames if frame.picture is not None]
    places = np.unique(np.linspace(0, len(real) - 1, min(FRAMES, len(real))).round().astype(np.int64))
    chosen = [real[place] for place in places.tolist()]
    pictures = [_picture(f.frame_index or 0, f.seconds or 0.0, f.picture) for f in chosen if f.picture is not None]
    return Strip(name=name, pictures=pictures, reason=None if pictures else "every frame is padding")


def _of_media(db: Database, identities: list[str], root: Root | None) -> Iterator[tuple[str, Strip]]:
    index, files = Index(db.audited.place), SourceFiles()
    locations = Locations(index.root, root)
    with tempfile.TemporaryDirectory(prefix="framedex-audit-") as folder, ThreadPoolExecutor(THREADS) as pool:
        spools = Spools(Path(folder), needed=True, settle=lambda: None)
        # Planning is for one thread, and quick; reading and decoding are neither.
        draws = [(identity, _planned(index, identity, locations, spools)) for identity in identities]
        yield from [
            (identity, task.result())
            for identity, task in [(identity, pool.submit(draw, files)) for identity, draw in draws]
        ]


Draw = Callable[[SourceFiles], Strip]


def _planned(index: Index, media_id: str, locations: Locations, spools: Spools) -> Draw:
    """Return what reads and decodes the frames of a medium."""
    name = media_id
    try:
        video = index.video(media_id)
        name = video["uri"]
        if video["status"] != OK:
            strip = Strip(name=name, pictures=[], reason=f"{video['status']}: {video['error_message']}")
            return lambda files: strip
        medium = IndexedMedium(index, video, keep_damaged=True, path=locations.path(video["uri"]))
        if not medium.addressable:
            if (video["size_bytes"] or 0) > MOST_COPIED:
                strip = Strip(name=name, pictures=[], reason=SCATTERED)
                return lambda files: strip
            spools.make_addressable(medium)
        clips = _plan(medium, video)
        return lambda files: _draw(name, clips, files)
    except UNREADABLE as error:
        failed = _without(name, error)
        return lambda files: failed


def _plan(medium: IndexedMedium, video: dict[str, Any]) -> list[Clip]:
    """Return a clip a frame: frames far apart, or start points near those where decoding would take long."""
    count = len(medium.track.pts)
    frames = np.unique((np.arange(FRAMES) * 2 + 1) * count // (2 * FRAMES))
    cost = (video["seek_packets"] or video["mean_gop"] or 1) * video["width"] * video["height"] * len(frames)
    starts = medium.track.starts
    if cost > MOST_PIXELS and starts is not None and len(starts):
        frames = np.unique(starts[np.maximum(np.searchsorted(starts, frames, side="right") - 1, 0)])
    clips, first_error = [], None
    for frame in frames.tolist():
        wanted = WantedClip(clip_id=f"frame {frame}", frames=np.array([frame]), mask=np.ones(1, np.bool_), columns={})
        try:
            clips.append(medium.clip(wanted))
        except UNREADABLE as error:
            first_error = first_error or error
    if first_error is not None and not clips:
        raise first_error
    return clips


def _draw(name: str, clips: list[Clip], files: SourceFiles) -> Strip:
    pictures, first_error = [], None
    for clip in clips:
        try:
            encoded = files.read(clip.source, clip.recipe, clip.medium.states)
            [picture] = decode_rgb(clip, encoded, size=thumbnail_size(clip.medium, LONGEST_SIDE))
            pictures.append(_picture(int(clip.frame_index[0]), float(clip.seconds[0]), picture))
        except UNREADABLE as error:
            first_error = first_error or error
    reason = None if first_error is None else (_without(name, first_error).reason or "").removeprefix("clip ")
    return Strip(name=name, pictures=pictures, reason=reason)


def _picture(frame: int, seconds: float, pixels: NDArray[np.uint8]) -> Picture:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "JPEG", quality=JPEG_QUALITY)
    height, width = pixels.shape[:2]
    jpeg = base64.b64encode(file.getvalue()).decode()
    return Picture(frame=frame, seconds=seconds, jpeg=jpeg, width=width, height=height)
