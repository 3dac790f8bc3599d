"""Frames on a GPU stay as they are until the work that was queued on them is done, even if their batch is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framedex import ClipDataset, ClipLoader, Index
from tests.contract.test_decoders import DEVICES
from tests.support.datasets import shard_clips
from tests.support.media import read_barcode

GPU = [device for device in DEVICES if device != "cpu"]
CLIPS, BATCH, EPOCHS = 64, 4, 3
CYCLES = 40_000_000  # of the GPU's clock, about 20 ms for each batch, in which the loader makes several others


@pytest.fixture(scope="module")
def stored(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of a stream for NVDEC and of a stream for workers, of one size."""
    clips = [
        {"uri": name, "clip_id": f"{name}-{number}", "frames": [number % 20, number % 17 + 3, 5]}
        for number in range(CLIPS // 2)
        for name in ("h264_default.mp4", "h264_high10.mkv")
    ]
    return shard_clips(index.path, tmp_path_factory.mktemp("memory") / "D", clips)


@pytest.mark.parametrize("device", GPU)
@pytest.mark.parametrize("how", [{}, {"transform": lambda frames: frames}, {"collate": "list"}, {"layout": "FCHW"}])
def test_dropped_batches_are_not_overwritten_while_they_are_in_use(
    stored: Path, device: str, how: dict[str, Any]
) -> None:
    import torch

    loader = ClipLoader(ClipDataset(stored), batch_size=BATCH, device=device, num_workers=2, prefetch=4, **how)
    copies, wanted = [], []
    for _ in range(EPOCHS):
        for batch in loader:
            torch.cuda._sleep(CYCLES)  # what follows is queued behind it
            copies += [frames.clone() for frames in batch["frames"]]
            wanted += [list(map(int, numbers)) for numbers in batch["frame_index"]]
            del batch
    torch.cuda.synchronize()
    assert len(copies) == EPOCHS * CLIPS
    for frames, numbers in zip(copies, wanted, strict=True):
        pictures = frames.permute(0, 2, 3, 1) if how.get("layout") == "FCHW" else frames
        assert [read_barcode(np.asarray(picture.cpu())) for picture in pictures] == numbers
    loader.close()
