"""How batches are finished on a GPU, with the same tensors in main memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from framedex.loader.batches.frames import Finish, Frames
from framedex.loader.dali import gpu
from tests.support.fetched import fetched_clip


def finished(finish: Finish, clips: list[Any]) -> tuple[Any, Any]:
    """Return a batch as GpuFrames and as Frames finish it, in main memory."""
    frames = gpu.GpuFrames.__new__(gpu.GpuFrames)
    Frames.__init__(frames, finish)
    frames._device, frames._finisher = torch.device("cpu"), gpu.FrameFinisher(finish)
    fetched = [fetched_clip(frames=clip.copy()) for clip in clips]
    ours = frames.finish([frames.given(clip) for clip in fetched])
    return ours, Frames(finish).finish(clips)


@pytest.mark.parametrize("layout", ["FHWC", "FCHW", "CFHW"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("normalize", [None, ((0.4,) * 3, (0.2,) * 3)])
@pytest.mark.parametrize("collate", ["error", "pad", "list"])
@pytest.mark.parametrize("crops", [(), (2,)])
def test_both_devices_finish_alike(
    layout: Any, dtype: Any, normalize: Any, collate: Any, crops: tuple[int, ...]
) -> None:
    random = np.random.default_rng(1)
    widths = (6, 6) if collate == "error" else (6, 9)
    most = 1 << (8 if dtype == "uint8" else 16)
    clips = [random.integers(0, most, (*crops, 4, 5, width, 3)).astype(dtype) for width in widths]
    finish = Finish(
        transform=None, audio_transform=None, normalize=normalize, layout=layout, collate=collate, dtype=dtype
    )
    ours, theirs = finished(finish, clips)
    pairs = list(zip(ours, theirs, strict=True))
    assert len(pairs) == 2
    for one, other in pairs:
        assert one.numpy().dtype == other.dtype == (dtype if normalize is None else np.float32)
        assert one.numpy().shape == other.shape
        assert np.abs(one.numpy().astype(np.float64) - other).max() < 1e-5


def test_samples_as_stored_of_several_types_become_the_widest() -> None:
    clips = [np.full((2, 3, 4, 1), 200, np.uint8), np.full((2, 3, 4, 1), 65535, np.uint16)]
    for collate, shape in (("error", 4), ("pad", 5)):
        clips[0] = np.full((2, 3, shape, 1), 200, np.uint8)
        finish = Finish(
            transform=None,
            audio_transform=None,
            normalize=None,
            layout="FHWC",
            collate=collate,
            dtype="raw",  # type: ignore[arg-type]
        )
        ours, theirs = finished(finish, clips)
        assert ours.dtype == torch.uint16
        assert np.array_equal(ours.numpy(), theirs)
