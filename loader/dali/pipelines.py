"""DALI pipelines: NVDEC for tiny movies, nvJPEG for images, and the user's transform on either device.

Each pipeline takes one batch and returns one tensor per sample. A pipeline for DALI Proxy does all of this in one. DALI
declares a pipeline invalid after any error in it. It is then built again for the next batch.

DALI 2.4's video decoder frees its buffers while its own copies out of them are pending on its stream, and freed memory
can be used again at once (docs/decisions/0028-dali-memory.md). Two rules keep this harmless. Free memory stays mapped
(`DALI_USE_VMM`). And only one run is in progress on a GPU at a time, so that the memory is used again only after the
copies, on the same stream.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from framedex.errors import MissingExtraError
from framedex.loader.dali.nvdec_cache import cache_nvdec
from framedex.loader.routing.movie import MAX_PACKETS, MovieFeed
from framedex.sharder.decoding.video import Size

os.environ["DALI_USE_VMM"] = "0"  # read when DALI allocates for the first time

try:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.pipeline import DataNode
except ModuleNotFoundError as error:
    raise MissingExtraError("nvidia-dali", "dali", "transform and device='gpu'") from error

Transform = Callable[[Any], Any]

# Per run of a pipeline. 16 movies keep all decoders of a GPU busy, and nvJPEG is fastest with many images.
MOVIES_AT_ONCE, IMAGES_AT_ONCE = 16, 1024
FRAMES, AUDIO = "FHWC", "Ct"  # layouts of a transform's input
_one_run: defaultdict[int | None, threading.Lock] = defaultdict(threading.Lock)  # per GPU


@pipeline_def(prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
def _movies(scaled: bool) -> DataNode:
    frames = _decoded(*_movie_inputs())
    return _scaled(frames, _size_input()) if scaled else frames


@pipeline_def(prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
def _images(scaled: bool) -> DataNode:
    images = fn.external_source(name="image", dtype=types.UINT8, ndim=1)
    pictures = fn.decoders.image(
        images, device="mixed", output_type=types.RGB, adjust_orientation=False, jpeg_fancy_upsampling=True
    )
    return _scaled(pictures, _size_input()) if scaled else pictures


def _movie_inputs() -> tuple[DataNode, ...]:
    """Return the inputs that `movie_feed` names."""
    return (
        fn.external_source(name="movie", dtype=types.UINT8, ndim=1),
        fn.external_source(name="wanted", dtype=types.INT32, ndim=1),
        fn.external_source(name="matrix", dtype=types.FLOAT, ndim=2),
        fn.external_source(name="offset", dtype=types.FLOAT, ndim=1),
        fn.external_source(name="start", dtype=types.INT32, ndim=1),
        fn.external_source(name="shape", dtype=types.INT32, ndim=1),
    )


def _decoded(
    movie: DataNode, wanted: DataNode, matrix: DataNode, offset: DataNode, start: DataNode, shape: DataNode
) -> DataNode:
    frames = fn.decoders.video(movie, device="mixed", frames=wanted)
    frames = fn.slice(frames, start=start, shape=shape, axes=[1, 2])
    return fn.coord_transform(frames, M=matrix, T=offset, dtype=types.UINT8)


def _size_input() -> DataNode:
    return fn.external_source(name="size", dtype=types.FLOAT, ndim=1)


def _scaled(frames: DataNode, size: DataNode | list[int]) -> DataNode:
    return fn.resize(frames, size=size, interp_type=types.INTERP_LINEAR, antialias=True)


@pipeline_def(prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
def _transformed(transform: Transform, device: str, layout: str) -> DataNode:
    if layout == FRAMES:
        return transform(fn.external_source(name="given", device=device, dtype=types.UINT8, ndim=4, layout=layout))
    sound = fn.external_source(name="given", dtype=types.FLOAT, ndim=2, layout=layout)  # workers decode it
    return transform(sound.gpu() if device == "gpu" else sound)


@pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
def _proxied(size: Size | None, transform: Transform | None) -> DataNode:
    on_gpu = fn.external_source(name="on_gpu", dtype=types.BOOL, ndim=0)
    movie = _movie_inputs()
    order = fn.external_source(name="order", dtype=types.INT32, ndim=1)
    mask = fn.external_source(name="mask", dtype=types.UINT8, ndim=4)
    decoded = fn.external_source(name="frames", dtype=types.UINT8, ndim=4, layout=FRAMES)
    if on_gpu:
        frames = _decoded(*movie)
        if size is not None:
            frames = _scaled(frames, list(size))
        frames = fn.sequence_rearrange(frames, new_order=order)
        frames = frames * mask.gpu()
    else:
        frames = decoded.gpu()
    return transform(frames) if transform else frames


def clip_pipeline(
    *,
    batch_size: int,
    size: Size | None = None,
    transform: Transform | None = None,
    device_id: int = 0,
    threads: int = 4,
) -> Any:
    """Return a DALI pipeline for a DALIServer that receives the clips of `ClipDataset.with_proxy`.

    It has one batch in progress. With more, DALI could overwrite frames (docs/decisions/0028-dali-memory.md).

    Args:
        batch_size: Clips per batch.
        size: (height, width) to which frames are scaled, which must equal the dataset's size. If None, frames keep
            their size.
        transform: A function of DALI operations from frames to frames. Its input is uint8 FHWC on the GPU.
        device_id: The number of the GPU.
        threads: Threads of the pipeline.
    """
    cache_nvdec()
    options = {"batch_size": batch_size, "num_threads": threads, "device_id": device_id}
    return _proxied(size, transform, prefetch_queue_depth=1, **options)


class _Pipeline:
    """A pipeline that is built on first use, and again after an error."""

    def __init__(self, make: Callable[..., Any], *arguments: Any, batch_size: int, threads: int, device_id: int | None):
        self._make, self._arguments = make, arguments
        self._options = {"batch_size": batch_size, "num_threads": threads, "device_id": device_id}
        self._built: Any = None

    def run(self, feeds: Mapping[str, Any]) -> Any:
        """Return the tensor list of the only output. Raises RuntimeError if DALI fails.

        Threads may call it. DALI copies its input. The output is complete, and later runs do not overwrite it: outputs
        of DALI's dynamic executor live as long as they are referenced.
        """
        with _one_run[self._options["device_id"]]:
            try:
                if self._built is None:
                    self._built = self._make(*self._arguments, **self._options)
                    self._built.build()
                for name, values in feeds.items():
                    self._built.feed_input(name, values)
                (output,) = self._built.run()
                return output
            except Exception:
                self._built = None
                raise


class _Decoder:
    """Decodes movies or images in runs of at most `batch_size`, with a pipeline that `make` builds."""

    def __init__(self, make: Callable[..., Any], *, scaled: bool, batch_size: int, threads: int, device_id: int):
        self._scaled, self._most = scaled, batch_size
        self._pipeline = _Pipeline(make, scaled, batch_size=batch_size, threads=threads, device_id=device_id)

    def run(self, inputs: Sequence[MovieFeed], sizes: Sequence[Size | None]) -> list[Any]:
        """Decode movies or images.

        Args:
            inputs: The inputs of the pipeline for each movie or image, by name.
            sizes: (height, width) to which each one is scaled, if the pipeline scales.

        Returns:
            A tensor list on the GPU per run, with uint8 [unique, H, W, 3] per movie or uint8 [H, W, 3] per image.

        Raises:
            RuntimeError: DALI fails.
        """
        outputs = []
        for part in even_parts(len(inputs), self._most):  # the clips of several batches may need more than one run
            feeds: dict[str, list[Any]] = {name: [one[name] for one in inputs[part]] for name in inputs[0]}
            if self._scaled:
                feeds["size"] = [np.array(size, np.float32) for size in sizes[part]]
            outputs.append(self._pipeline.run(feeds))
        return outputs


class MovieDecoder(_Decoder):
    """Decodes tiny movies on NVDEC, `MOVIES_AT_ONCE` per run. Each movie has a thread of its own if cores suffice.

    Args:
        scaled: Whether each movie is scaled to a size.
        batch_size: Clips per batch.
        device_id: The number of the GPU.

    Attributes:
        most_packets: The maximum number of packets in a movie of several clips. It is 0 if the driver's answers are
            cached: then movies take no time of their own, and clips are not joined.
    """

    def __init__(self, *, scaled: bool, batch_size: int, device_id: int) -> None:
        self.most_packets = 0 if cache_nvdec() else MAX_PACKETS
        most = min(batch_size, MOVIES_AT_ONCE)
        threads = min(most, os.cpu_count() or 1)
        super().__init__(_movies, scaled=scaled, batch_size=most, threads=threads, device_id=device_id)


class ImageDecoder(_Decoder):
    """Decodes JPEGs on the GPU, `IMAGES_AT_ONCE` per run. The input of an image is `image`, uint8 [bytes].

    Args:
        scaled: Whether each image is scaled to a size.
        threads: Threads of the pipeline.
        device_id: The number of the GPU.
    """

    def __init__(self, *, scaled: bool, threads: int, device_id: int) -> None:
        super().__init__(_images, scaled=scaled, batch_size=IMAGES_AT_ONCE, threads=threads, device_id=device_id)


def even_parts(count: int, most: int) -> list[slice]:
    """Return slices that divide a sequence of `count` elements into parts of at most `most`.

    The lengths of parts differ by at most one, so that the runs take about the same time.
    """
    parts = -(-count // most)
    return [slice(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


class Transformer:
    """Runs a function of DALI operations over clips.

    Args:
        transform: The function.
        layout: FRAMES or AUDIO.
        batch_size: Clips per batch.
        threads: Threads of the pipeline.
        device_id: The number of the GPU. If None, the function runs on the CPU.
    """

    def __init__(self, transform: Transform, *, layout: str, batch_size: int, threads: int, device_id: int | None):
        device = "cpu" if device_id is None else "gpu"
        self._pipeline = _Pipeline(
            _transformed, transform, device, layout, batch_size=batch_size, threads=threads, device_id=device_id
        )

    def run(self, clips: Sequence[Any]) -> Any:
        """Return a tensor list with the function's result for each clip, on the device. Raises RuntimeError."""
        return self._pipeline.run({"given": list(clips)})


def transformers(
    transform: Transform | None, audio_transform: Transform | None, **options: Any
) -> tuple[Transformer | None, Transformer | None]:
    """Return the transformers of frames and of sound, which are None without a function.

    Args:
        transform: The function for frames.
        audio_transform: The function for sound.
        options: The other arguments of Transformer.
    """
    return (
        None if transform is None else Transformer(transform, layout=FRAMES, **options),
        None if audio_transform is None else Transformer(audio_transform, layout=AUDIO, **options),
    )
