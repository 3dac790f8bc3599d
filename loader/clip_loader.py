"""ClipLoader: the ready-made whole. A DataLoader fetches and decodes on the CPU; DALI decodes on the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from framedex.errors import DecodeError, FramedexError, MissingExtraError
from framedex.loader.colour import correction
from framedex.loader.dataset import ClipDataset, describe
from framedex.loader.movie import clip_movie
from framedex.loader.routes import gpu_obstacle
from framedex.sharder.decoder import Size, decode_rgb
from framedex.sharder.schema import PAD

try:
    import torch
    from torch.utils.data import DataLoader, Sampler
except ModuleNotFoundError as error:
    raise MissingExtraError("torch", "torch", "ClipLoader") from error

from framedex.loader.collate import COLLATES, Collate, collate_clips
from framedex.loader.sampler import ClipSampler

Device = Literal["cpu", "gpu"]
Layout = Literal["FHWC", "FCHW"]
Normalize = tuple[tuple[float, float, float], tuple[float, float, float]]
INPUT = "_pipeline_input"


class ClipLoader:
    """Iterates batches of decoded clips: dicts of tensors, the keys of `ClipDataset.__getitem__`, batched.

    device: where decoding ends and frames are; "gpu" decodes on NVDEC what is proven exact there and the rest on the
    CPU, in the same batch (see `routes`). size: (height, width) to scale to, as is. transform: a function of DALI
    operations, frames → frames, defined in a pipeline; its input is uint8 FHWC on the device. normalize: (mean, std)
    for RGB in 0…1, which makes float32. layout: of `frames` as delivered, "FHWC" or "FCHW". collate: what to do where
    clips of a batch differ in shape, "error", "pad" or "list". num_workers: processes that read, and decode on the CPU;
    0 does it in this one. threads: decoder threads a clip.

    Raises FramedexError for a wrong argument, MissingExtraError where DALI is needed and not installed.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        *,
        batch_size: int = 1,
        sampler: Sampler[int] | None = None,
        device: Device = "cpu",
        device_id: int = 0,
        size: Size | None = None,
        transform: Callable[[Any], Any] | None = None,
        normalize: Normalize | None = None,
        layout: Layout = "FHWC",
        collate: Collate = "error",
        drop_last: bool = False,
        num_workers: int = 0,
        threads: int = 1,
    ) -> None:
        _check_choice("device", device, ("cpu", "gpu"))
        _check_choice("layout", layout, ("FHWC", "FCHW"))
        _check_choice("collate", collate, COLLATES)
        self.dataset = dataset
        size = size or dataset.size
        self.sampler: Sampler[int] = ClipSampler(dataset) if sampler is None else sampler
        self._collate, self._layout, self._normalize = collate, layout, normalize
        self._pipeline: Any = None
        if device == "gpu" or transform is not None:
            from framedex.loader.dali import ClipPipeline  # the one heavy import, only where it is asked for

            self._pipeline = ClipPipeline(
                device=device,
                device_id=device_id,
                batch_size=batch_size,
                threads=max(1, min(8, os.cpu_count() or 1)),
                size=size,
                transform=transform,
            )
        self._loader: DataLoader[Any] = DataLoader(
            _Fetch(dataset, gpu=device == "gpu", size=size, threads=threads),  # type: ignore[arg-type]
            batch_size=batch_size,
            sampler=self.sampler,
            num_workers=num_workers,
            collate_fn=_as_they_are,
            drop_last=drop_last,
            multiprocessing_context="spawn" if num_workers else None,
            persistent_workers=num_workers > 0,
        )
        self._epoch, self._delivered, self._asked = 0, 0, -1

    def __len__(self) -> int:
        """Return how many batches a whole epoch has."""
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of an epoch; after an iteration that was broken off, the rest of that epoch."""
        if isinstance(self.sampler, ClipSampler):
            if self.sampler.asked == self._asked:  # workers asked for clips ahead of those that were delivered
                self.sampler.epoch, self.sampler.position = self._epoch, self._delivered
            self._epoch, self._delivered = self.sampler.epoch, self.sampler.position
            self._asked = self.sampler.asked
        for items in self._loader:
            batch = collate_clips([self._finish(item) for item in self._decode(items)], self._collate)
            self._delivered += len(items)
            yield batch
        self._epoch, self._delivered = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a ClipSampler continues after the last batch delivered."""
        return self._clip_sampler().state_dict(epoch=self._epoch, position=self._delivered)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken; the next iteration yields the rest of that epoch."""
        sampler = self._clip_sampler()
        sampler.load_state_dict(state)
        self._epoch, self._delivered, self._asked = sampler.epoch, sampler.position, sampler.asked

    def _clip_sampler(self) -> ClipSampler:
        if not isinstance(self.sampler, ClipSampler):
            raise FramedexError(
                "resuming needs a ClipSampler", found=type(self.sampler).__name__, remedy="sampler=ClipSampler(dataset)"
            )
        return self.sampler

    def _decode(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run the DALI pipeline over a batch, where there is one; otherwise frames are there already."""
        if self._pipeline is None:
            return items
        from framedex.loader.dali import PipelineInput

        inputs = [
            PipelineInput(
                **{name: value.numpy() for name, value in item.pop(INPUT, {"frames": item.get("frames")}).items()}
            )
            for item in items
        ]
        try:
            frames = self._pipeline.run(inputs)
        except RuntimeError as error:
            clips = ", ".join(item["clip_id"] for item in items)
            raise DecodeError(
                f"DALI failed on a batch of clips {clips}",
                found=error,
                remedy="look at the transform, and at framedex verify",
            ) from error
        return [
            {"frames": decoded} | {k: v for k, v in item.items() if k != "frames"}
            for item, decoded in zip(items, frames, strict=True)
        ]

    def _finish(self, item: dict[str, Any]) -> dict[str, Any]:
        frames = item["frames"]
        if self._normalize is not None:
            mean, std = (torch.tensor(values, device=frames.device) for values in self._normalize)
            frames = (frames.float() / 255 - mean) / std
        if self._layout == "FCHW":
            frames = frames.permute(0, 3, 1, 2).contiguous()
        return item | {"frames": frames}


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise FramedexError(f"unknown {name}", found=repr(value), allowed=", ".join(map(repr, allowed)))


def _as_they_are(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a batch's items with their arrays as tensors, which travel between processes through shared memory."""
    return [{name: _tensors(value) for name, value in item.items()} for item in items]


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, dict):
        return {name: _tensors(entry) for name, entry in value.items()}
    return value


class _Fetch:
    """What runs in the DataLoader's workers: read a clip, and decode it unless NVDEC will."""

    def __init__(self, dataset: ClipDataset, *, gpu: bool, size: Size | None, threads: int) -> None:
        self._dataset, self._gpu, self._size, self._threads = dataset, gpu, size, threads

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> dict[str, Any]:
        clip = self._dataset.clip(number)
        encoded = self._dataset.sources.read(clip.source, clip.recipe, clip.medium.states)
        if not self._gpu or gpu_obstacle(clip) is not None:
            frames = decode_rgb(clip, encoded, size=self._size, threads=self._threads)
            return {"frames": frames} | self._dataset.sound(clip) | describe(clip)
        position = clip.recipe.position
        wanted = np.unique(position[position != PAD])
        order = np.where(position == PAD, 0, np.searchsorted(wanted, position))
        feed = {
            "movie": clip_movie(clip, encoded),
            "wanted": wanted.astype(np.int32),
            "order": order.astype(np.int32),
            "mask": (position != PAD).astype(np.uint8)[:, None, None, None],
            "color": correction(clip.medium.color_matrix),
        }
        return {INPUT: feed} | self._dataset.sound(clip) | describe(clip)
