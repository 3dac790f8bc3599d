"""The media of an index for the browser: frames spread over a medium, or consecutive frames from one on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.auditor.browser.shown import Shown, facts_of, fitting_size
from framedex.core.quantities import duration_text, size_text
from framedex.core.tallies import counted
from framedex.errors import FramedexError, printable
from framedex.indexer.parts.index import Index
from framedex.loader.contact_sheets.sheet import shown_frames
from framedex.records.medium import OK
from framedex.sharder.clips.clip import WantedClip
from framedex.sharder.decoding.video import decode_rgb
from framedex.sharder.planning.indexed_medium import IndexedMedium, PlanningOptions
from framedex.sharder.planning.spools import Spools
from framedex.sharder.reading.sources import SourceFiles
from framedex.storage.locations import Access
from framedex.storage.places import Place

SPREAD = 16  # frames of a medium as a whole
CONSECUTIVE = 64  # frames from a chosen one on
MOST_COPIED_BYTES = 1 << 30  # the size of a medium whose packets must be demuxed first


class Media:
    """The media of an index. A medium's key is its media_id. Threads may share it.

    Args:
        place: The index.
        access: Which sources may be read.
        longest_side: Limit of a picture's longer side, in pixels. None: pictures have their stored size.
        folder: A folder for packets of media whose packets are not byte ranges.
    """

    spans = True  # whether a part can be chosen

    def __init__(self, place: Place, *, access: Access, longest_side: int | None, folder: str) -> None:
        self._index = Index(place, access=access)
        self._index.check_locations()
        self._longest_side = longest_side
        self._sources, self._lock = SourceFiles(), threading.Lock()
        self._spools = Spools(Path(folder), needed=True, settle=lambda: None)

    def first_column(self) -> str:
        """Return the column that a filter begins with."""
        return "uri"

    def card(self, key: Any) -> dict[str, Any]:
        """Return what the list of media says about one. Raises FramedexError for a damaged row."""
        video = self._video(key)
        error = None if video["status"] == OK else f"{video['status']}: {video['error_message']}"
        seconds = _duration(video)
        parts = [
            video["codec"],
            f"{video['width']} × {video['height']}" if video["width"] else None,
            counted(video["frame_count"], "frame") if video["frame_count"] else None,
            duration_text(seconds) if seconds else None,
            size_text(video["size_bytes"]) if video["size_bytes"] else None,
        ]
        return {
            "key": video["media_id"],
            "name": printable(video["uri"] if video["member"] is None else f"{video['uri']} · {video['member']}"),
            "source": video["media_id"],
            "text": " · ".join(part for part in parts if part),
            "columns": [],
            "error": None if error is None else printable(error, lines=True),
        }

    def describe(self, key: Any) -> dict[str, Any]:
        """Return everything about a medium but its pictures. Raises FramedexError."""
        video = self._video(key)
        told = ("container", "pixel_format", "color_space", "color_range", "field_order", "pts_source")
        facts = [(name.replace("_", " "), str(video[name])) for name in told if video.get(name) is not None]
        card = self.card(key)
        return card | {"facts": facts_of([("medium", card["text"]), *facts]), "count": video["frame_count"] or 0}

    def show(self, key: Any, first: int | None) -> Shown:
        """Return frames of a medium: spread evenly over it, or consecutive ones from `first` on.

        Raises:
            FramedexError: the medium is unusable, has no such frame, or cannot be read.
        """
        video = self._video(key)
        if video["status"] != OK:
            raise FramedexError(f"the medium is {video['status']}", found=video["error_message"])
        with self._lock:  # an index and its spools are for one thread at a time
            medium = IndexedMedium(self._index, video, PlanningOptions(keep_damaged=True))
            if not medium.addressable:
                size_bytes = video["member_bytes"] or video["size_bytes"] or 0
                if size_bytes > MOST_COPIED_BYTES:
                    raise FramedexError(
                        "the packets are not byte ranges of the file, which is too large to copy them",
                        where=medium.medium.path,
                        found=size_text(size_bytes),
                        allowed=f"up to {size_text(MOST_COPIED_BYTES)}",
                        remedy="pack its clips into a dataset (framedex shard --pack), and browse that",
                    )
                self._spools.make_addressable(medium)
            frames = _frames(len(medium.timeline.pts), first)
            name = "frames of the whole" if first is None else f"frames from {first} on"
            mask = np.ones(len(frames), np.bool_)
            clip = medium.clip(WantedClip(clip_id=name, frames=frames, mask=mask, columns={}))
            encoded = self._sources.read(clip)
        size = fitting_size(clip.medium, len(frames), self._longest_side)
        pictures = decode_rgb(clip, encoded, size=size)
        return Shown(clip=clip, pictures=pictures, frames=shown_frames(clip, pictures), sound=None)

    def _video(self, key: Any) -> dict[str, Any]:
        try:
            with self._lock:
                return self._index.video(str(key))
        except KeyError:
            raise FramedexError("the index has no such medium", found=str(key)[:80]) from None


def _duration(video: dict[str, Any]) -> float | None:
    if not video["duration_pts"] or not video["time_base_den"]:
        return None
    return float(video["duration_pts"] * video["time_base_num"] / video["time_base_den"])


def _frames(count: int, first: int | None) -> NDArray[np.int64]:
    """Return the numbers of the frames to show. Raises FramedexError if there is no frame `first`."""
    if first is None:
        return np.unique((np.arange(SPREAD) * 2 + 1) * count // (2 * SPREAD))
    if not 0 <= first < count:
        raise FramedexError("the medium has no such frame", found=first, allowed=f"0 to {count - 1}")
    return np.arange(first, min(count, first + CONSECUTIVE))
