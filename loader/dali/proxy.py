"""Clips for DALI Proxy: workers of a torch DataLoader fetch them, one pipeline in the main process decodes on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.loader.batches.faults import Fault
from framedex.loader.batches.fetch import Fetcher, FetchOptions
from framedex.loader.batches.fetched import ClipRequest, Fetched
from framedex.loader.batches.items import ClipSource
from framedex.loader.routing.driver import driver_support
from framedex.loader.routing.joining import MovieFeed, movie_feed
from framedex.sharder.decoding.video import Size
from framedex.sharder.schema import PAD

NO_ORDER = np.zeros(1, np.int32)
NO_FRAMES = np.zeros((1, 1, 1, 3), np.uint8)
NO_MOVIE = MovieFeed(
    content=np.zeros(1, np.uint8),
    wanted=NO_ORDER,
    correction=np.eye(3, 4, dtype=np.float32),
    start=np.zeros(2, np.int32),
    shape=np.ones(2, np.int32),
)


class ProxiedDataset:
    """The clips of a dataset with `frames` that a DALI pipeline (`clip_pipeline`) makes of them in the main process.

    A clip that cannot be had, or that the gate keeps from NVDEC, is found out here, in the worker: a pipeline that fails
    fails its whole batch. What must not go to NVDEC is decoded here and passes the pipeline as raw frames. Picklable.
    """

    def __init__(
        self, dataset: ClipSource, proxy: Callable[..., Any], *, size: Size | None, threads: int, device_id: int
    ) -> None:
        self._dataset, self._proxy = dataset, proxy
        caps = driver_support(device_id)
        options = FetchOptions(size=size, threads=threads, caps=caps, nvjpeg=False)  # one pipeline, of movies
        self._fetch = Fetcher(dataset, options)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return an item as ClipDataset does, its `frames` a reference that the DataLoader's batch turns into a tensor.

        Raises as ClipDataset does.
        """
        fetched = self._fetch(ClipRequest(number=number, on_gpu=True))
        if isinstance(fetched, Fault):
            raise fetched.error()
        return {"frames": self._proxy(**proxy_inputs(fetched))} | fetched.item


def proxy_inputs(clip: Fetched) -> dict[str, NDArray[Any]]:
    """Return the inputs of `clip_pipeline` by name; those of the branch not taken hold a placeholder."""
    if clip.movie is None or clip.order is None:
        assert clip.frames is not None  # what is no movie was decoded
        movie, order, mask, frames = NO_MOVIE, NO_ORDER, NO_FRAMES, clip.frames
    else:
        movie = movie_feed([clip.movie.packets], [clip.movie.wanted])
        order = np.maximum(clip.order, 0).astype(np.int32)
        mask, frames = (clip.order != PAD).astype(np.uint8)[:, None, None, None], NO_FRAMES
    return {"on_gpu": np.array(clip.movie is not None), "order": order, "mask": mask, "frames": frames} | movie.inputs()
