"""Views of one clip on both decoders: some views on NVDEC, others on the CPU, in one batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import framedex
from framedex import ClipDataset, ClipLoader, ClipSampler, MultiViewDataset
from tests.contract.test_decoders import DEVICES
from tests.support.counted import some
from tests.support.datasets import run
from tests.support.media import read_barcode
from tests.support.scenes import Camera, regular, write_scenes

CAMERAS = [
    Camera(scene="a", view="front", times=regular(25, 60)),
    Camera(scene="a", view="left", times=regular(30, 72), pix_fmt="yuv420p10le"),  # the CPU decodes it
    Camera(scene="a", view="wrist", times=regular(50, 120), size=(208, 160), codec="libx265"),
    Camera(scene="b", view="front", times=regular(25, 60)),
    Camera(scene="b", view="left", times=regular(30, 72), pix_fmt="yuv420p10le"),
]
POLICY = {
    "policy": "fps",
    "fps": 5,
    "frames": 3,
    "views": {"group": "episode", "view": "camera", "clock": "front", "missing": "mask"},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of three views, and of two."""
    folder = tmp_path_factory.mktemp("views")
    run("index", write_scenes(folder / "MEDIA", CAMERAS), "--out", folder / "INDEX")
    framedex.shard(folder / "INDEX", folder / "DATASET", policy=POLICY, workers=0, progress=False)
    return folder / "DATASET"


@pytest.mark.parametrize("device", DEVICES)
def test_each_view_shows_its_own_frames(dataset: Path, device: str) -> None:
    views = MultiViewDataset(ClipDataset(dataset))
    loader = ClipLoader(
        views, batch_size=3, sampler=ClipSampler(views, shuffle=True, seed=2), device=device, cpu_share=0, num_workers=1
    )
    seen = 0
    for batch in some(loader):
        for place, name in enumerate(batch["multiview_id"]):
            for view in views.views:
                frames = batch["frames"][view][place].cpu().numpy()
                numbers = batch["frame_index"][view][place].tolist()
                assert [read_barcode(frame) for frame in frames] == [max(number, 0) for number in numbers], (name, view)
                assert not frames[~batch["mask"][view][place].numpy()].any()
            seen += 1
    loader.close()
    assert seen == len(views) == 8
    if device == "gpu":
        assert loader.report.decoded["nvdec"] >= 8  # all in front
        assert loader.report.decoded["cpu"] >= 8  # all of 10 bits, and open starts of HEVC
        assert loader.report.decoded.total() == 20  # what is blank is not decoded


@pytest.mark.parametrize("device", DEVICES)
def test_views_are_stacked_where_they_were_decoded(dataset: Path, device: str) -> None:
    views = MultiViewDataset(ClipDataset(dataset, size=(96, 128)), stack=True)
    loader = ClipLoader(views, batch_size=4, device=device, layout="FCHW", normalize=((0.5,) * 3, (0.5,) * 3))
    shapes = [tuple(batch["frames"].shape) for batch in some(loader)]
    assert shapes == [(4, 3, 3, 3, 96, 128)] * 2
    batch = next(iter(loader))
    assert batch["frames"].is_cuda == (device == "gpu")
    item = MultiViewDataset(ClipDataset(dataset, size=(96, 128)), stack=True)[0]
    ours = np.moveaxis(item["frames"], -1, -3).astype(np.float32) / 127.5 - 1
    assert np.abs(batch["frames"][0].cpu().numpy() - ours).mean() < 0.05
