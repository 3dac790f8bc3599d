"""ClipLoader on a GPU that is played by PyAV: batches decoded in parts by two decoders and by workers, in threads."""

from __future__ import annotations

import collections
import io
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from framedex import ClipDataset, ClipLoader, ClipSampler, Index
from framedex.errors import StaleError
from framedex.loader.batches.frames import AtOnce, Finish, Frames
from framedex.loader.routing.movie import joined_movie
from tests.support.datasets import shard_clips
from tests.support.gpu import driver
from tests.support.local_batches import make_batches_here
from tests.support.media import read_barcode

CLIPS, FOR_GPU = 48, ("h264_default.mp4", "hevc_closed.mp4")
SUPPORT = driver(*((codec, 1, bits) for codec in ("h264", "hevc") for bits in (8, 10)), least_width=16, engines=7)


class PlayedGpu(Frames):
    """Two decoders that decode tiny movies as a player does.

    Args:
        seconds: how long a decoder takes for each clip besides.
        fails_on: names of clips that no decoder decodes.
    """

    at_once = AtOnce(fewest=8, most=16, most_bytes=1 << 30)

    def __init__(self, *, seconds: float = 0.0, fails_on: Sequence[str] = ()) -> None:
        finish = Finish(transform=None, audio_transform=None, normalize=None, layout="FHWC", collate="error")
        super().__init__(finish)
        self._seconds, self._fails_on = seconds, fails_on
        self.parts: list[int] = []  # the number of clips of each call
        self.movies: list[int] = []  # the number of movies of each call
        self.decoders = [self._decode, self._decode]

    def _decode(self, clips: Sequence[Any], report: Any, keep: Any) -> list[Any]:
        self.parts.append(len(clips))
        self.movies.append(len({id(clip.movie) for clip in clips}))
        time.sleep(self._seconds * len(clips))
        if any(clip.item["clip_id"] in self._fails_on for clip in clips):
            raise RuntimeError("nvdec: a movie that no decoder plays")
        return [played(clip.movie, clip.order) for clip in clips]


def played(movie: Any, order: NDArray[np.int64] | None) -> NDArray[np.uint8]:
    """Return the frames of a movie at their places."""
    assert movie is not None
    assert order is not None
    with av.open(io.BytesIO(joined_movie([movie.packets]).tobytes())) as container:
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack([pictures[movie.wanted[place]] for place in order])


@pytest.fixture(scope="module")
def dataset(index: Index, tmp_path_factory: pytest.TempPathFactory) -> ClipDataset:
    """Clips of two media for the GPU, and of one medium for the CPU alone; all of one size."""
    clips = [
        {"uri": name, "clip_id": f"{name}-{number}", "frames": [number, number + 9, number + 4]}
        for number in range(CLIPS // 3)
        for name in (*FOR_GPU, "h264_high10.mkv")
    ]
    return ClipDataset(shard_clips(index.path, tmp_path_factory.mktemp("balanced") / "D", clips))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[PlayedGpu], None]:
    """Make ClipLoader use a played GPU, which is in this process."""
    monkeypatch.setattr("framedex.loader.clip_loader.driver_support", lambda device_id: SUPPORT)
    make_batches_here(monkeypatch)

    def use(gpu: PlayedGpu) -> None:
        monkeypatch.setattr("framedex.loader.batches.batch_queue.BatchSetup.frames", lambda setup: gpu)

    return use


def loaded(dataset: ClipDataset, **options: Any) -> tuple[list[str], ClipLoader]:
    """Return the names of all clips as they were delivered, after a check of every frame, and the loader, closed."""
    loader = ClipLoader(dataset, batch_size=8, device="gpu", **options)
    names = []
    for batch in loader:
        for frames, numbers in zip(batch["frames"], batch["frame_index"], strict=True):
            assert [read_barcode(np.asarray(frame)) for frame in frames] == numbers.tolist()
        names += batch["clip_id"]
    loader.close()
    return names, loader


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_every_clip_comes_once_and_in_order_whoever_decodes_it(
    dataset: ClipDataset, on: Callable[[PlayedGpu], None], seconds: float
) -> None:
    gpu = PlayedGpu(seconds=seconds)
    on(gpu)
    sampler = ClipSampler(dataset, shuffle=True, seed=4)
    expected = [dataset.clip(number).clip_id for number in sampler]
    names, loader = loaded(dataset, sampler=ClipSampler(dataset, shuffle=True, seed=4), num_workers=2)
    assert names == expected
    decoded = loader.report.decoded
    assert sum(decoded.values()) == CLIPS
    assert sum(gpu.parts) == decoded["nvdec"] > 0
    if seconds:  # far more than a worker needs
        assert decoded["cpu"] > CLIPS // 3


def test_without_workers_the_gpu_decodes_all_that_it_can(dataset: ClipDataset, on: Callable[[PlayedGpu], None]) -> None:
    on(PlayedGpu())
    names, loader = loaded(dataset)
    assert len(names) == CLIPS
    assert loader.report.decoded == {"nvdec": 2 * CLIPS // 3, "cpu": CLIPS // 3}


@pytest.mark.parametrize(("how", "on_gpu"), [({"decode": "gpu"}, 32), ({"cpu_share": 0.5}, 16), ({"cpu_share": 1}, 0)])
def test_fixed_shares_do_not_depend_on_time(
    dataset: ClipDataset, on: Callable[[PlayedGpu], None], how: dict[str, Any], on_gpu: int
) -> None:
    for seconds in (0.0, 0.02):
        gpu = PlayedGpu(seconds=seconds)
        on(gpu)
        names, loader = loaded(dataset, num_workers=2, **how)
        assert names == [dataset.clip(number).clip_id for number in range(CLIPS)]
        assert loader.report.decoded["nvdec"] == sum(gpu.parts) == on_gpu


def test_a_clip_on_which_the_gpu_fails_is_decoded_by_a_worker(
    dataset: ClipDataset, on: Callable[[PlayedGpu], None]
) -> None:
    on(PlayedGpu(fails_on=["hevc_closed.mp4-3"]))
    names, loader = loaded(dataset, num_workers=2, decode="gpu")
    assert len(set(names)) == CLIPS
    assert loader.report.retried == collections.Counter(batch=1, clip=1)
    assert loader.report.decoded["nvdec"] == 2 * CLIPS // 3 - 1


def test_an_interrupted_epoch_leaves_nothing_that_is_waited_for(
    dataset: ClipDataset, on: Callable[[PlayedGpu], None]
) -> None:
    on(PlayedGpu(seconds=0.02))
    loader = ClipLoader(dataset, batch_size=8, device="gpu", num_workers=2)
    names = [name for _ in range(3) for name in next(iter(loader))["clip_id"]]
    names += [name for batch in loader for name in batch["clip_id"]]
    assert names == [dataset.clip(number).clip_id for number in range(CLIPS)]
    loader.close()


def test_a_clip_that_is_not_available_is_raised_or_skipped(
    index: Index, medium: Callable[[str], Path], tmp_path: Path, on: Callable[[PlayedGpu], None]
) -> None:
    on(PlayedGpu())
    clips = [{"uri": name, "clip_id": f"{name}-{n}", "frames": [n]} for n in range(8) for name in FOR_GPU]
    stored = shard_clips(index.path, tmp_path / "D", clips)
    moved = tmp_path / "media"
    moved.mkdir()
    (moved / FOR_GPU[0]).symlink_to(medium(FOR_GPU[0]))
    dataset = ClipDataset(stored, root=moved)
    names, loader = loaded(dataset, num_workers=2, on_error="skip")
    assert {name.split("-")[0] for name in names} == {FOR_GPU[0]}
    assert loader.report.skipped == len(names) == 8
    with pytest.raises(StaleError, match=r"clip \d+: .*not the file that was indexed"):
        loaded(dataset, num_workers=2)


@pytest.mark.parametrize("most_bytes", [1 << 30, 1])
def test_a_call_decodes_several_groups_as_far_as_their_pictures_fit(
    dataset: ClipDataset, on: Callable[[PlayedGpu], None], most_bytes: int
) -> None:
    gpu = PlayedGpu(seconds=0.02)
    gpu.at_once = gpu.at_once._replace(most_bytes=most_bytes)
    on(gpu)
    sampler = ClipSampler(dataset, shuffle=True, seed=4, share=4)
    expected = [dataset.clip(number).clip_id for number in ClipSampler(dataset, shuffle=True, seed=4, share=4)]
    names, _ = loaded(dataset, sampler=sampler, num_workers=2, decode="gpu")
    assert names == expected
    assert max(gpu.parts) > max(gpu.movies)
    assert max(gpu.movies) > 1 if most_bytes > 1 else set(gpu.movies) == {1}


@pytest.mark.parametrize("share", [None, 4])
def test_the_error_that_ends_a_decoding_thread_ends_the_epoch(
    dataset: ClipDataset, on: Callable[[PlayedGpu], None], share: int | None
) -> None:
    class Lost(PlayedGpu):
        def working(self) -> Any:
            if threading.current_thread().name == "framedex-gpu":
                raise RuntimeError("CUDA error: the GPU is lost")
            return super().working()

    on(Lost())
    sampler = ClipSampler(dataset, shuffle=True, seed=4, share=share)
    loader = ClipLoader(dataset, batch_size=8, device="gpu", decode="gpu", sampler=sampler, num_workers=2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the GPU is lost"):
            next(iter(loader))
    loader.close()
