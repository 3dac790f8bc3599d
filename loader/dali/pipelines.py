"""DALI pipelines that decode tiny movies on NVDEC, decode images on nvJPEG, and call the user's transform.

A pipeline takes one batch per run and returns one tensor per sample. A pipeline for DALI Proxy combines decoding,
scaling and the transform. After an error, DALI does not allow further runs of a pipeline. The pipeline is then built
again for the next batch.

The video decoder of DALI 2.4 frees its buffers before the queued copies from these buffers are complete, and freed
memory can be allocated again at once (docs/decisions/0028-dali-memory.md). Two measures prevent damage. Freed memory
stays mapped (`DALI_USE_VMM`). And only one run is in progress on a GPU at a time, so that new contents are written
after the copies, on the same CUDA stream.
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

# The maximum number of movies and of images per run. 16 movies keep all NVDEC engines of an idle GPU busy. Beside a
# training step, each movie waits for its turn on the GPU for each frame, and 32 movies gave 210 clips/s instead of 152
# (340x256, one H200). nvJPEG is fastest with many images.
MOVIES_AT_ONCE, IMAGES_AT_ONCE = 32, 1024
FRAMES, AUDIO = "FHWC", "Ct"  # DALI's layout strings for the input of a transform
_one_run: defaultdict[int | None, threading.Lock] = defaultdict(threading.Lock)  # locks by GPU. None stands for the CPU


@pipeline_def(prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
def _movies(scaled: bool) -> DataNode:
    frames = _decoded(*_movie_inputs())
    return _scaled(frames, _size_input()) if scaled else frames


@pipeline_def(prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
def _images(scaled: bool) -> DataNode:
    images = fn.external_source(name="image", dtype=types.UINT8, ndim=1)
    start, shape = _area_inputs()
    pictures = fn.decoders.image(
        images, device="mixed", output_type=types.RGB, adjust_orientation=False, jpeg_fancy_upsampling=True
    )
    pictures = fn.slice(pictures, start=start, shape=shape, axes=[0, 1])
    return _scaled(pictures, _size_input()) if scaled else pictures


def _area_inputs() -> tuple[DataNode, DataNode]:
    """Return two pipeline inputs: the top left corner (y, x) and the (height, width) of a part of pictures."""
    return (
        fn.external_source(name="start", dtype=types.INT32, ndim=1),
        fn.external_source(name="shape", dtype=types.INT32, ndim=1),
    )


def _movie_inputs() -> tuple[DataNode, ...]:
    """Return a pipeline input for each key of a `MovieFeed`."""
    return (
        fn.external_source(name="movie", dtype=types.UINT8, ndim=1),
        fn.external_source(name="wanted", dtype=types.INT32, ndim=1),
        fn.external_source(name="matrix", dtype=types.FLOAT, ndim=2),
        fn.external_source(name="offset", dtype=types.FLOAT, ndim=1),
        *_area_inputs(),
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
    sound = fn.external_source(name="given", dtype=types.FLOAT, ndim=2, layout=layout)  # decoded by workers, on the CPU
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

    The pipeline processes one batch at a time. If several batches were in progress, DALI could overwrite frames
    (docs/decisions/0028-dali-memory.md).

    Args:
        batch_size: The number of clips per batch.
        size: (height, width) to which frames are scaled. It must equal the `size` of the dataset. If None, frames are
            not scaled.
        transform: A function that applies DALI operations to the frames and returns the result. The frames are uint8,
            in the layout FHWC, on the GPU.
        device_id: The number of the GPU.
        threads: The number of CPU threads of the pipeline.
    """
    cache_nvdec()
    options = {"batch_size": batch_size, "num_threads": threads, "device_id": device_id}
    return _proxied(size, transform, prefetch_queue_depth=1, **options)


class _Pipeline:
    """A DALI pipeline that is built on the first run, and again on the first run after an error. Thread-safe."""

    def __init__(self, make: Callable[..., Any], *arguments: Any, batch_size: int, threads: int, device_id: int | None):
        self._make, self._arguments = make, arguments
        self._options = {"batch_size": batch_size, "num_threads": threads, "device_id": device_id}
        self._built: Any = None

    def run(self, feeds: Mapping[str, Any]) -> Any:
        """Run the pipeline once, and return its only output, a tensor list.

        DALI copies the inputs. When this returns, the output is complete. Later runs do not overwrite the output, since
        outputs of DALI's dynamic executor are valid as long as they are referenced.

        Args:
            feeds: The samples of each input, by the input's name.

        Raises:
            RuntimeError: DALI fails.
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
    """A decoder of movies or images. It uses the pipeline that `make` returns, with at most `batch_size` per run."""

    def __init__(self, make: Callable[..., Any], *, scaled: bool, batch_size: int, threads: int, device_id: int):
        self._scaled, self._most = scaled, batch_size
        self._pipeline = _Pipeline(make, scaled, batch_size=batch_size, threads=threads, device_id=device_id)

    def run(self, inputs: Sequence[MovieFeed], sizes: Sequence[Size | None]) -> list[Any]:
        """Decode movies or images.

        Args:
            inputs: The pipeline's inputs by name, for each movie or image.
            sizes: The (height, width) to which each movie or image is scaled. Not used if the pipeline does not scale.

        Returns:
            One tensor list on the GPU per run, with uint8 [unique, H, W, 3] per movie or uint8 [H, W, 3] per image.

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
    """A decoder of tiny movies on NVDEC, with at most `MOVIES_AT_ONCE` per run.

    The pipeline has one thread per movie of a run. Most of the time, these threads wait for the GPU.

    Args:
        scaled: Whether each movie is scaled to a size.
        batch_size: The number of clips per batch. A run has at most twice as many movies, which limits its memory.
        device_id: The number of the GPU.

    Attributes:
        most_packets: The maximum number of packets in a movie of several clips. 0 if `nvdec_cache` works. Starting a
            movie then takes hardly any time, so clips are not joined.
    """

    def __init__(self, *, scaled: bool, batch_size: int, device_id: int) -> None:
        self.most_packets = 0 if cache_nvdec() else MAX_PACKETS
        most = min(2 * batch_size, MOVIES_AT_ONCE)
        super().__init__(_movies, scaled=scaled, batch_size=most, threads=most, device_id=device_id)


class ImageDecoder(_Decoder):
    """A decoder of JPEG files on the GPU, with at most `IMAGES_AT_ONCE` per run.

    The pipeline has the inputs `image`, uint8 [bytes], and `start` and `shape`, int32 [2] each: the top left corner
    (y, x) and the (height, width) of the part of the image that is delivered.

    Args:
        scaled: Whether each image is scaled to a size.
        threads: The number of CPU threads of the pipeline.
        device_id: The number of the GPU.
    """

    def __init__(self, *, scaled: bool, threads: int, device_id: int) -> None:
        super().__init__(_images, scaled=scaled, batch_size=IMAGES_AT_ONCE, threads=threads, device_id=device_id)


def even_parts(count: int, most: int) -> list[slice]:
    """Return slices that divide a sequence of `count` elements into parts of at most `most` elements.

    The lengths of the parts differ by at most one, so that all runs take about the same time.
    """
    parts = -(-count // most)
    return [slice(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


class Transformer:
    """A pipeline that applies the user's function, which consists of DALI operations, to clips.

    Args:
        transform: The user's function.
        layout: FRAMES or AUDIO, the layout of the function's input.
        batch_size: The number of clips per batch.
        threads: The number of CPU threads of the pipeline.
        device_id: The number of the GPU. If None, the function runs on the CPU.
    """

    def __init__(self, transform: Transform, *, layout: str, batch_size: int, threads: int, device_id: int | None):
        device = "cpu" if device_id is None else "gpu"
        self._pipeline = _Pipeline(
            _transformed, transform, device, layout, batch_size=batch_size, threads=threads, device_id=device_id
        )

    def run(self, clips: Sequence[Any]) -> Any:
        """Return the function's results for the clips, as a tensor list on the device. Raises RuntimeError."""
        return self._pipeline.run({"given": list(clips)})


def transformers(
    transform: Transform | None, audio_transform: Transform | None, **options: Any
) -> tuple[Transformer | None, Transformer | None]:
    """Return the transformer of frames and the transformer of audio.

    Args:
        transform: The function for frames. If None, the transformer of frames is None.
        audio_transform: The function for audio. If None, the transformer of audio is None.
        options: The other arguments of Transformer.
    """
    return (
        None if transform is None else Transformer(transform, layout=FRAMES, **options),
        None if audio_transform is None else Transformer(audio_transform, layout=AUDIO, **options),
    )
