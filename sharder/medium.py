"""One medium of an index, ready to plan clips of: its packets, read further or cut where plans need that."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.index import Index
from framedex.sharder.cut import cut_packets, describe_cut
from framedex.sharder.headers import Headers
from framedex.sharder.plan import Planner
from framedex.sharder.policies import Track
from framedex.sharder.schema import CUTS_FOLDER, PAD

Row = dict[str, Any]


class Medium:
    """A usable row of `videos` with its packets, ready to plan clips of."""

    def __init__(self, index: Index, video: Row, *, keep_damaged: bool) -> None:
        self.video = video
        self._root = index.root
        self._packets = index.packets(video["media_id"])
        self._headers: Headers | None = None
        self.planner = Planner(self._packets, drop_leading=video["codec"] == "hevc", keep_damaged=keep_damaged)
        self.track = Track(
            pts=self.planner.pts,
            duration_pts=video["duration_pts"],
            time_base=Fraction(video["time_base_num"], video["time_base_den"]),
            starts=self.planner.start_frames(),
            name=video["media_id"],
        )

    def read_headers(self, frames: NDArray[np.int64]) -> None:
        """Look into the packets between the starts and the last targets of some frames, where the index did not.

        Raises PolicyError for frames that are not there, and where the pictures contradict the sample tables.
        """
        if self._packets.read.all():
            return
        if self._headers is None:
            self._headers = Headers(self.video, self._path(), self._packets)
        if self._headers.read(self.planner.packet_of(frames[frames != PAD])):
            self._packets = self._headers.packets
            self.planner.renew(self._packets)

    def _path(self) -> str:
        return os.path.normpath(os.path.join(self._root, self.video["uri"]))

    def cut(self, clips: list[NDArray[np.int64]], dataset: Path) -> None:
        """Copy what some clips need of a medium that is not addressable by bytes into a file of the dataset, once."""
        if self._packets.offset is not None:
            return
        needed = np.zeros(len(self._packets.size), np.bool_)
        for frames in clips:
            with contextlib.suppress(PolicyError):
                needed[self.planner.needed(frames)] = True
        name = f"{CUTS_FOLDER}/{self.video['media_id']}.bin"
        offset = cut_packets(self.video, self._path(), needed, self._packets.size, dataset / name)
        size, digest = describe_cut(dataset / name)
        self.video = self.video | {"cut": name, "cut_size_bytes": size, "cut_fingerprint": digest}
        self._packets = replace(self._packets, offset=offset)
        self.planner.renew(self._packets)

    def md5(self, frames: NDArray[np.int64]) -> list[bytes | None] | None:
        """Return the hashes of wanted frames, None for padding; None where the index has none."""
        hashes = self._packets.md5
        if hashes is None:
            return None
        real = frames != PAD
        found: list[bytes | None] = [None] * len(frames)
        for place, packet in zip(np.flatnonzero(real), self.planner.packet_of(frames[real]).tolist(), strict=True):
            found[place] = hashes[packet]
        return found
