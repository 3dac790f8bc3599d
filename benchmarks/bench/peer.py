"""The interface of other loaders for `framedex bench --compare`: their clips, options and pictures."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]
Size = tuple[int, int]  # height, width


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerClip:
    """A clip that a peer is asked to decode.

    Attributes:
        number: its number in the dataset.
        path: the video file.
        frames: frame numbers in presentation order, without padding.
        seconds: the time of each frame, from the index.
    """

    number: int
    path: str
    frames: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """How a peer is run.

    Attributes:
        batch_size: clips per batch.
        workers: processes or threads that decode.
        size: (height, width) of the measured pictures. If None, pictures keep their stored size.
        gpu: number of the GPU on which batches are delivered. If None, they are delivered in main memory.
        floats: deliver float32 [B, F, 3, H, W] in 0…1, not uint8 [B, F, H, W, 3].
    """

    batch_size: int
    workers: int
    size: Size | None = None
    gpu: int | None = None
    floats: bool = False


# A function of places in the list of clips and of a size. It prepares its work before the first batch is requested. It
# yields batches of places, with a torch tensor uint8 [F, H, W, 3] for each place.
Batches = Callable[[Sequence[int], Size | None], Iterator[tuple[list[int], list[Any]]]]


class Peer:
    """Another loader.

    Attributes:
        name: its common name.
        distribution: the package that is installed.
        module: the module that is imported.
        needs_gpu: whether it decodes on a GPU.
    """

    name: ClassVar[str]
    distribution: ClassVar[str]
    module: ClassVar[str]
    needs_gpu: ClassVar[bool] = False

    def version(self) -> str:
        """Return the installed version. Raises ImportError if it is not installed or does not load."""
        module = importlib.import_module(self.module)
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return str(getattr(module, "__version__", "unknown"))

    def open(self, clips: Sequence[PeerClip], options: PeerOptions) -> Batches:
        """Return a function that decodes some of these clips. Workers that it starts live as long as it does."""
        raise NotImplementedError
