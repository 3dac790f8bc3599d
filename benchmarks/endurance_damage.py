"""Clips that a worker returns damaged.

This is a separate module because every worker imports it, and importing torch as well would be slow.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.loader.batches.faults import ClipRequest, Fetched
from framedex.loader.batches.fetch import Fetcher, FetchOptions
from framedex.loader.clip_dataset import ClipDataset
from framedex.sharder.clips.clip import Clip
from framedex.sharder.reading import EncodedClip, SourceFiles

EVERY = 7  # one clip in this many is damaged
DAMAGES = ("scattered", "zeros", "cut", "header", "nothing left")
SAMPLES_AT = 1500  # behind the boxes of a tiny movie's header


def is_damaged(number: int) -> bool:
    """Return whether a clip is one of those that are damaged."""
    return number % EVERY == EVERY - 1


def damaged(content: NDArray[np.uint8], damage: str, seed: int) -> NDArray[np.uint8]:
    """Return a damaged copy of a tiny movie or of packets."""
    copy, rng = content.copy(), np.random.default_rng(seed)
    behind = min(SAMPLES_AT, len(copy) // 2)
    if damage == "scattered":
        places = rng.integers(behind, len(copy), max(8, len(copy) // 200))
        copy[places] = rng.integers(0, 256, len(places))
    elif damage == "zeros":
        copy[behind:] = 0
    elif damage == "cut":
        copy = copy[: len(copy) // 2].copy()
    elif damage == "header":
        copy[: behind // 2] = rng.integers(0, 256, behind // 2)
    else:
        copy = np.zeros(16, np.uint8)
    return copy


class DamagedSources(SourceFiles):
    """Reads packets. While `damage` is set, packets come back damaged, as many as were requested."""

    damage: str | None = None

    def __reduce__(self) -> tuple[type[DamagedSources], tuple[()]]:
        return DamagedSources, ()

    def read(self, clip: Clip) -> EncodedClip:
        encoded = super().read(clip)
        if self.damage is None:
            return encoded
        payload = damaged(encoded.payload, self.damage, seed=len(encoded.payload))
        whole = np.zeros_like(encoded.payload)
        whole[: len(payload)] = payload[: len(whole)]
        return replace(encoded, payload=whole)


class DamagingFetcher(Fetcher):
    """Fetches clips and damages some, as `FRAMEDEX_DAMAGE` says: `movie` or `source`, a colon, and the damage."""

    def __init__(self, dataset: ClipDataset, options: FetchOptions) -> None:
        super().__init__(dataset, options)
        self._where, _, self._damage = os.environ["FRAMEDEX_DAMAGE"].partition(":")
        self._sources = DamagedSources()
        dataset.sources = self._sources

    def __call__(self, wanted: ClipRequest) -> Any:
        hit = is_damaged(wanted.number)
        self._dataset.sources = self._sources
        self._sources.damage = self._damage if hit and self._where == "source" else None
        fetched = super().__call__(wanted)
        if hit and self._where == "movie" and isinstance(fetched, Fetched):
            if fetched.movie is not None:
                packets = fetched.movie.packets
                payload = damaged(packets.payload, self._damage, seed=wanted.number)
                fetched.movie = replace(fetched.movie, packets=replace(packets, payload=payload))
            if fetched.images is not None:
                first, *rest = fetched.images.content
                content = damaged(first, self._damage, seed=wanted.number)
                fetched.images = replace(fetched.images, content=[content, *rest])
        return fetched
