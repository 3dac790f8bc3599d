"""Clips for DALI Proxy: a torch DataLoader's workers fetch them, and a pipeline in the main process decodes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.loader.batches.faults import ClipRequest, Fault, Fetched
from framedex.loader.batches.fetch import Fetcher, FetchOptions, ReadableClips
from framedex.loader.pixels.options import PixelOptions
from framedex.loader.routing.driver import driver_support
from framedex.loader.routing.movie import MovieFeed, movie_feed
from framedex.records.clip import PAD

NO_ORDER = np.zeros(1, np.int32)
NO_FRAMES = np.zeros((1, 1, 1, 3), np.uint8)
NO_MOVIE: MovieFeed = {
    "movie": np.zeros(1, np.uint8),
    "wanted": NO_ORDER,
    "matrix": np.eye(3, dtype=np.float32),
    "offset": np.zeros(3, np.float32),
    "start": np.zeros(2, np.int32),
    "shape": np.ones(2, np.int32),
}


class ProxiedDataset:
    """The clips of a dataset, with `frames` from a DALI pipeline (`clip_pipeline`) in the main process. Picklable.

    An error in the pipeline loses a whole batch. So the worker checks which clips are available, and which clips the
    rules for NVDEC exclude. It decodes the excluded clips itself, and they pass through the pipeline as raw frames.

    Args:
        dataset: The clips.
        proxy: The `proxy` of a DALIServer that runs `clip_pipeline`.
        pixels: The options for frames. The pipeline can only stretch them to a size.
        device_id: The number of the GPU that decodes.

    Raises:
        FramedexError: The options crop, transform or lay out frames, which the pipeline does not do.
    """

    def __init__(
        self, dataset: ReadableClips, proxy: Callable[..., Any], *, pixels: PixelOptions, device_id: int
    ) -> None:
        self._dataset, self._proxy = dataset, proxy
        if not pixels.is_plain:
            raise FramedexError(
                "a pipeline for DALI Proxy can only stretch frames to a size",
                found="a dataset with framing, layout, dtype or transform",
                allowed="size=(height, width)",
                remedy="crop, mirror and lay out in the pipeline: clip_pipeline(transform=…)",
            )
        # The pipeline is for movies, and neither turns nor cuts their frames.
        options = FetchOptions(pixels=pixels, caps=driver_support(device_id), nvjpeg=False, windows=False)
        self._fetch = Fetcher(dataset, options)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return an item with the keys and errors of ClipDataset.

        Its `frames` are a reference, which becomes a tensor in the DataLoader's batch.
        """
        fetched = self._fetch(ClipRequest(number=number, on_gpu=True))
        if isinstance(fetched, Fault):
            raise fetched.error()
        return {"frames": self._proxy(**proxy_inputs(fetched))} | fetched.item


def proxy_inputs(clip: Fetched) -> dict[str, NDArray[Any]]:
    """Return the inputs of `clip_pipeline` by name. The inputs of the branch that is not taken are placeholders."""
    if clip.movie is None or clip.order is None:
        movie, order, mask, frames = NO_MOVIE, NO_ORDER, NO_FRAMES, clip.frames
    else:
        movie = movie_feed([clip.movie.packets], [clip.movie.wanted])
        order = np.maximum(clip.order, 0).astype(np.int32)
        mask, frames = (clip.order != PAD).astype(np.uint8)[:, None, None, None], NO_FRAMES
    return {"on_gpu": np.array(clip.movie is not None), "order": order, "mask": mask, "frames": frames} | movie
