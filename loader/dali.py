"""DALI pipelines: NVDEC decoding of tiny MP4s, and the user's transform on either device.

One pipeline sample is one whole clip. A batch may mix clips that NVDEC decodes with clips that the CPU decoded; DALI's
conditionals keep them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from framedex.errors import MissingExtraError
from framedex.sharder.decoder import Size

try:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.pipeline import DataNode
except ModuleNotFoundError as error:
    raise MissingExtraError("nvidia-dali", "dali", "transform and device='gpu'") from error

Transform = Callable[[Any], Any]

NO_MOVIE = np.zeros(1, np.uint8)
NO_FRAMES = np.zeros((1, 1, 1, 3), np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInput:
    """One clip on its way into a pipeline: either a movie for NVDEC, or frames that the CPU decoded.

    movie: uint8 [bytes]. wanted: int32 [unique], ascending frame numbers in it. order: int32 [F], which of the unique
    frames stands at each place (0 where padded). mask: uint8 [F, 1, 1, 1], 0 where padded. color: float32 [3, 3].
    frames: uint8 [F, H, W, 3].
    """

    movie: NDArray[np.uint8] | None = None
    wanted: NDArray[np.int32] | None = None
    order: NDArray[np.int32] | None = None
    mask: NDArray[np.uint8] | None = None
    color: NDArray[np.float32] | None = None
    frames: NDArray[np.uint8] | None = None

    def feed(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of every named input; those of the branch not taken hold a placeholder."""
        zero = np.zeros(1, np.int32)
        return {
            "on_gpu": np.array(self.movie is not None),
            "movie": NO_MOVIE if self.movie is None else self.movie,
            "wanted": zero if self.wanted is None else self.wanted,
            "order": zero if self.order is None else self.order,
            "mask": NO_FRAMES if self.mask is None else self.mask,
            "color": np.eye(3, dtype=np.float32) if self.color is None else self.color,
            "frames": NO_FRAMES if self.frames is None else self.frames,
        }


@pipeline_def(enable_conditionals=True, exec_dynamic=True)  # type: ignore[untyped-decorator]
def _gpu_pipeline(size: Size | None, transform: Transform | None) -> DataNode:
    on_gpu = fn.external_source(name="on_gpu", dtype=types.BOOL, ndim=0)
    movie = fn.external_source(name="movie", dtype=types.UINT8, ndim=1)
    wanted = fn.external_source(name="wanted", dtype=types.INT32, ndim=1)
    order = fn.external_source(name="order", dtype=types.INT32, ndim=1)
    mask = fn.external_source(name="mask", dtype=types.UINT8, ndim=4)
    color = fn.external_source(name="color", dtype=types.FLOAT, ndim=2)
    decoded = fn.external_source(name="frames", dtype=types.UINT8, ndim=4, layout="FHWC")
    if on_gpu:
        frames = fn.decoders.video(movie, device="mixed", frames=wanted)
        frames = fn.coord_transform(frames, M=color, dtype=types.UINT8)
        if size is not None:
            frames = fn.resize(frames, size=list(size), interp_type=types.INTERP_LINEAR, antialias=True)
        frames = fn.sequence_rearrange(frames, new_order=order)
        frames = frames * mask.gpu()
    else:
        frames = decoded.gpu()
    return transform(frames) if transform else frames


@pipeline_def(exec_dynamic=True)  # type: ignore[untyped-decorator]
def _cpu_pipeline(transform: Transform) -> DataNode:
    return transform(fn.external_source(name="frames", dtype=types.UINT8, ndim=4, layout="FHWC"))


class ClipPipeline:
    """A DALI pipeline that is fed clips and gives one tensor a clip, built on first use and again after an error."""

    def __init__(
        self,
        *,
        device: str,
        device_id: int,
        batch_size: int,
        threads: int,
        size: Size | None,
        transform: Transform | None,
    ) -> None:
        self._gpu = device == "gpu"
        self._arguments: dict[str, Any] = {
            "batch_size": batch_size,
            "num_threads": threads,
            "device_id": device_id if self._gpu else None,
            "prefetch_queue_depth": 1,
        }
        self._size, self._transform = size, transform
        self._pipeline: Any = None

    def run(self, clips: Sequence[PipelineInput]) -> list[Tensor]:
        """Return a tensor a clip. Raises RuntimeError as DALI does; the pipeline is built anew after that."""
        try:
            if self._pipeline is None:
                self._pipeline = self._build()
            names = list(clips[0].feed()) if self._gpu else ["frames"]
            feeds = [clip.feed() for clip in clips]
            for name in names:
                self._pipeline.feed_input(name, [feed[name] for feed in feeds])
            (output,) = self._pipeline.run()
            # Copied: DALI writes the next batch where this one lies.
            return [from_dlpack(output[number]).clone() for number in range(len(clips))]
        except Exception:
            self._pipeline = None
            raise

    def _build(self) -> Any:
        if self._gpu:
            pipeline = _gpu_pipeline(self._size, self._transform, **self._arguments)
        else:
            pipeline = _cpu_pipeline(self._transform, **self._arguments)
        pipeline.build()
        return pipeline
