"""Clips for DALI Proxy. Workers of a torch DataLoader fetch clips, and a pipeline in the main process decodes them."""

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
    """A picklable torch dataset whose frames are decoded by a DALI pipeline (`clip_pipeline`) in the main process.

    An error in the pipeline loses a whole batch. So a worker reads each clip, and raises the error of an unreadable
    clip, before the clip is sent to the pipeline. Workers also decode the clips that NVDEC must not decode
    (`routes.gpu_obstacle`), and send their frames to the pipeline.

    Args:
        dataset: The clips.
        proxy: The attribute `proxy` of a DALIServer that runs `clip_pipeline`.
        pixels: The options for frames. The only allowed change of frames is stretching to a size.
        device_id: The number of the GPU that decodes.

    Raises:
        FramedexError: The options require another change of frames, such as a crop, a transform or another layout.
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
                remedy="crop, mirror and change the layout in the pipeline, with clip_pipeline(transform=…)",
            )
        # The pipeline is for movies, and neither turns nor cuts their frames.
        self._fetch = Fetcher(
            dataset, FetchOptions(pixels=[pixels], caps=driver_support(device_id), nvjpeg=False, windows=False)
        )

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return an item with the same keys as an item of ClipDataset, or raise the same errors.

        The value of `frames` is a reference that DALI Proxy replaces by a tensor when the DataLoader makes a batch.
        """
        fetched = self._fetch(ClipRequest(number=number, on_gpu=True))
        if isinstance(fetched, Fault):
            raise fetched.error()
        return {"frames": self._proxy(**proxy_inputs(fetched))} | fetched.item


def proxy_inputs(clip: Fetched) -> dict[str, NDArray[Any]]:
    """Return the inputs of `clip_pipeline` by name.

    The pipeline either decodes a movie or takes decoded frames. The inputs of the other alternative are placeholders.
    """
    if clip.movie is None or clip.order is None:
        movie, order, mask, frames = NO_MOVIE, NO_ORDER, NO_FRAMES, clip.frames
    else:
        movie = movie_feed([clip.movie.packets], [clip.movie.wanted])
        order = np.maximum(clip.order, 0).astype(np.int32)
        mask, frames = (clip.order != PAD).astype(np.uint8)[:, None, None, None], NO_FRAMES
    return {"on_gpu": np.array(clip.movie is not None), "order": order, "mask": mask, "frames": frames} | movie
