"""Clips of one indexed medium, planned, read and decoded without a dataset on disk."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex import ClipDataset, Index
from framedex.sharder.clips.clip import Clip, WantedClip
from framedex.sharder.decoding.video import decode_frames, decode_pictures
from framedex.sharder.planning.indexed_medium import IndexedMedium, PlanningOptions
from framedex.sharder.reading import EncodedClip, SourceFiles
from tests.support.planes import picture_md5


def wanted_clip(frames: NDArray[np.int64], name: str = "test") -> WantedClip:
    """Return the request for a clip of these frames; -1 is padding."""
    return WantedClip(clip_id=name, frames=frames, mask=frames >= 0, columns={})


def indexed_medium(index: Index, uri: str, *, keep_damaged: bool = False, **how: Any) -> IndexedMedium:
    """Return the medium of an index with this uri, ready for planning clips."""
    (row,) = [row for row in index.videos.to_pylist() if row["uri"] == uri]
    return IndexedMedium(index, row, PlanningOptions(keep_damaged=keep_damaged, **how))


def encoded_clip(dataset: ClipDataset, clip: Clip) -> EncodedClip:
    """Return the packets of a dataset's clip."""
    return dataset.sources.read(clip)


def encoded_of(packets: list[bytes]) -> EncodedClip:
    """Return packets as those of a clip."""
    first = np.cumsum([0, *map(len, packets)])
    return EncodedClip(payload=np.frombuffer(b"".join(packets), np.uint8), packet_first=first)


def pictures_of(clip: Clip, encoded: EncodedClip) -> list[str]:
    """Return the MD5 of each of a clip's pictures, in the order of its frames."""
    found = {rank: picture_md5(picture) for rank, picture in decode_pictures(clip, encoded)}
    return [found[rank] for rank in clip.recipe.position.tolist()]


class Reader:
    """A planner and reader for clips of one indexed medium."""

    def __init__(self, index: Index, uri: str) -> None:
        self.indexed = indexed_medium(index, uri)
        self.sources = SourceFiles()

    def clip(self, frames: list[int]) -> Clip:
        """Plan a clip."""
        return self.indexed.clip(wanted_clip(np.array(frames, np.int64)))

    def read(self, frames: list[int]) -> list[tuple[int, str]]:
        """Return (pts, md5) of each requested frame."""
        clip = self.clip(frames)
        encoded = self.sources.read(clip)
        return list(zip(clip.pts.tolist(), pictures_of(clip, encoded), strict=True))

    def rgb(self, frames: list[int]) -> NDArray[np.uint8]:
        """Return uint8 [frames, H, W, 3]."""
        clip = self.clip(frames)
        return decode_frames(clip, self.sources.read(clip))
