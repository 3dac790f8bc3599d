"""ClipLoader's options, each compared with plain numpy on the items of the dataset."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from framedex import ClipDataset, ClipLoader, ClipSampler, Index
from framedex.errors import FramedexError
from tests.support.datasets import run, shard_clips, write_clips
from tests.support.images import encoded
from tests.support.local_batches import make_batches_here
from tests.support.media import picture, read_barcode
from tests.support.turned import turned_video

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def stored(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten clips of two media of one size; the first clip of each medium is padded."""
    clips = [
        {"uri": name, "clip_id": f"{name}-{number}", "frames": [number, 3 * number, 2 if number else -1]}
        for number in range(5)
        for name in ("h264_default.mp4", "hevc_closed.mp4")
    ]
    return shard_clips(index.path, tmp_path_factory.mktemp("options") / "D", clips)


def items_of(dataset: ClipDataset) -> list[dict[str, Any]]:
    return [dataset[number] for number in range(len(dataset))]


@pytest.mark.parametrize("layout", ["FHWC", "FCHW"])
def test_frames_are_normalised_and_laid_out_as_numpy_does_it(stored: Path, layout: Any) -> None:
    dataset = ClipDataset(stored, size=(24, 40))
    plain = np.stack([item["frames"] for item in items_of(dataset)])
    expected = ((plain / 255.0 - np.array(MEAN)) / np.array(STD)).astype(np.float32)
    if layout == "FCHW":
        expected = expected.transpose(0, 1, 4, 2, 3)
    loader = ClipLoader(dataset, batch_size=4, normalize=(MEAN, STD), layout=layout, output="numpy")
    got = np.concatenate([batch["frames"] for batch in loader])
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    assert np.abs(got - expected).max() < 1e-5


def test_without_normalising_bytes_are_only_laid_out(stored: Path) -> None:
    dataset = ClipDataset(stored, size=(24, 40))
    (batch,) = ClipLoader(dataset, batch_size=10, layout="FCHW", output="numpy")
    expected = np.stack([item["frames"] for item in items_of(dataset)]).transpose(0, 1, 4, 2, 3)
    assert batch["frames"].dtype == np.uint8
    assert np.array_equal(batch["frames"], expected)


@pytest.fixture
def mixed(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """Alternating clips of a video and of an image folder of another size, with different lengths."""
    folder = tmp_path / "media"
    (folder / "shots").mkdir(parents=True)
    shutil.copy(medium("h264_default.mp4"), folder / "video.mp4")
    for number in range(8):
        Image.fromarray(picture(number, 192, 96)).save(folder / "shots" / f"{number}.png")
    run("index", folder, "--out", tmp_path / "INDEX", "--image-fps", 5)
    clips = [
        {"uri": uri, "clip_id": f"{uri}-{number}", "frames": list(range(number, number + 2 + number % 2))}
        for number in range(4)
        for uri in ("video.mp4", "shots")
    ]
    return shard_clips(tmp_path / "INDEX", tmp_path / "D", clips)


@pytest.mark.parametrize("workers", [0, 1])
def test_images_and_videos_share_a_batch(mixed: Path, workers: int) -> None:
    dataset = ClipDataset(mixed)
    loader = ClipLoader(dataset, batch_size=3, num_workers=workers, collate="list", output="numpy")
    names = []
    for batch in loader:
        names += batch["clip_id"]
        for frames, wanted in zip(batch["frames"], batch["frame_index"], strict=True):
            assert [read_barcode(frame) for frame in frames] == wanted.tolist()
    assert names == [item["clip_id"] for item in items_of(dataset)]
    loader.close()


def test_clips_that_differ_in_shape_are_an_error_or_padded_at_the_ends(mixed: Path) -> None:
    dataset = ClipDataset(mixed)
    with pytest.raises(FramedexError, match="differ in the shape"):
        list(ClipLoader(dataset, batch_size=8, output="numpy"))
    (batch,) = ClipLoader(dataset, batch_size=8, collate="pad", output="numpy")
    items = items_of(dataset)
    assert batch["frames"].shape == (8, 3, 144, 192, 3)
    for number, item in enumerate(items):
        count, height, width, _ = item["frames"].shape
        assert np.array_equal(batch["frames"][number, :count, :height, :width], item["frames"])
        assert not batch["frames"][number, count:].any()
        assert not batch["frames"][number, :, height:].any()
        assert not batch["mask"][number, count:].any()
        assert (batch["frame_index"][number, count:] == -1).all()


@pytest.mark.parametrize("turn", ["quarter", "half", "three quarters"])
def test_rotation_is_applied_and_the_size_is_of_what_comes_out(
    turn: str, medium: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "media").mkdir()
    turned_video(medium("h264_default.mp4"), tmp_path / "media/turned.mp4", turn)
    run("index", tmp_path / "media", "--out", tmp_path / "INDEX")
    clips = [{"uri": "turned.mp4", "clip_id": "c", "frames": [5, 0, 9]}]
    dataset = ClipDataset(shard_clips(tmp_path / "INDEX", tmp_path / "D", clips), rotation="stored")
    turns = round(dataset.clip(0).medium.rotation_degrees / 90) % 4
    assert turns in (1, 2, 3)
    stored = dataset[0]["frames"]
    (batch,) = ClipLoader(dataset, rotation="apply", output="numpy")
    assert np.array_equal(batch["frames"][0], np.rot90(stored, turns, axes=(1, 2)))
    back = np.rot90(batch["frames"][0], -turns, axes=(1, 2))
    assert [read_barcode(frame) for frame in back] == [5, 0, 9]
    (small,) = ClipLoader(dataset, rotation="apply", size=(60, 100), output="numpy")
    assert small["frames"].shape == (1, 3, 60, 100, 3)
    decoded_to = (60, 100) if turns == 2 else (100, 60)
    lying = ClipDataset(tmp_path / "D", size=decoded_to, rotation="stored")[0]["frames"]
    assert np.array_equal(small["frames"][0], np.rot90(lying, turns, axes=(1, 2)))
    (as_stored,) = ClipLoader(dataset, output="numpy")
    assert np.array_equal(as_stored["frames"][0], stored)
    upright = ClipDataset(tmp_path / "D", rotation="apply")
    assert np.array_equal(upright[0]["frames"], batch["frames"][0])
    (unasked,) = ClipLoader(upright, output="numpy")
    assert np.array_equal(unasked["frames"][0], batch["frames"][0])


def test_sound_is_transformed_by_dali(index: Index, tmp_path: Path) -> None:
    from nvidia.dali import fn

    clips = [{"uri": "h264_audio.mp4", "clip_id": f"c{n}", "seconds": [0.2 + 0.2 * n, 0.6 + 0.2 * n]} for n in range(4)]
    run("shard", index.path, "--clips", write_clips(tmp_path / "c.jsonl", clips), "--out", tmp_path / "D",
        "--audio", "--audio-rate", 16_000)  # fmt: skip
    dataset = ClipDataset(tmp_path / "D", size=(16, 16))
    loader = ClipLoader(
        dataset,
        batch_size=2,
        audio_transform=lambda sound: fn.stack(fn.spectrogram(sound[0], nfft=256, window_length=256, window_step=128)),
        collate="pad",
        output="numpy",
    )
    spectrograms = [one for batch in loader for one in batch["audio"]]
    assert len(spectrograms) == 4
    for number, spectrogram in enumerate(spectrograms):
        samples = dataset[number]["audio"]
        assert spectrogram.shape[:2] == (1, 129)
        # The tone of the medium has 48 000 / (2 pi 20) Hz, so the bin of 62.5 Hz at that frequency is the strongest.
        strongest = int(spectrogram[0, :, 2 : samples.shape[1] // 128 - 2].mean(axis=1).argmax())
        assert abs(strongest * 62.5 - 48_000 / (40 * np.pi)) < 63


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), "half"])
def test_a_share_that_is_none_is_refused(stored: Path, share: Any) -> None:
    with pytest.raises(FramedexError, match="cpu_share"):
        ClipLoader(ClipDataset(stored), cpu_share=share)


def test_nothing_is_made_ahead_without_prefetch(stored: Path) -> None:
    asked: list[int] = []

    class Counting:
        def __iter__(self) -> Any:
            for number in range(10):
                asked.append(number)
                yield number

    loader = ClipLoader(ClipDataset(stored, size=(8, 8)), batch_size=2, sampler=Counting(), prefetch=0)
    for done, batch in enumerate(loader, 1):
        assert len(asked) == 2 * done
        assert len(batch["frames"]) == 2
    assert len(asked) == 10


def test_iterations_that_are_broken_off_leave_no_task_running(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_batches_here(monkeypatch)  # to see the queue of tasks
    dataset = ClipDataset(stored, size=(8, 8))
    loader = ClipLoader(dataset, batch_size=1, num_workers=1, prefetch=6, sampler=list(range(10)))
    for _ in range(3):
        next(iter(loader))
    gc.collect()
    pool = loader._batches.supply.pool  # type: ignore[attr-defined]
    assert pool._threads is not None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and pool._threads._work_queue.qsize():
        time.sleep(0.02)
    assert pool._threads._work_queue.qsize() == 0
    assert [batch["frame_index"].shape[0] for batch in loader] == [1] * 10
    processes = [Path(f"/proc/{process_id}") for process_id in pool.process_ids]
    assert processes
    loader.close()
    while time.monotonic() < deadline and any(process.exists() for process in processes):
        time.sleep(0.02)
    assert not any(process.exists() for process in processes)


def test_threads_change_nothing_but_speed(stored: Path) -> None:
    dataset = ClipDataset(stored)
    one, other = (
        np.concatenate([batch["frames"] for batch in ClipLoader(dataset, threads=threads, output="numpy")])
        for threads in (1, 3)
    )
    assert np.array_equal(one, other)


def test_clips_on_the_fly_are_drawn_anew_each_epoch_and_the_same_after_resuming(index: Index) -> None:
    policy = {
        "policy": "windows",
        "frames": 4,
        "step": 8,
        "jitter_frames": 3,
        "filter": "codec == 'h264' and width == 176",
    }

    def loader_of(workers: int) -> ClipLoader:
        dataset = ClipDataset.from_index(index.path, policy, size=(8, 8))
        sampler = ClipSampler(dataset, shuffle=True, seed=5)
        return ClipLoader(dataset, batch_size=8, sampler=sampler, num_workers=workers, output="numpy")

    def seen(batch: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, tuple(row)) for name, row in zip(batch["clip_id"], batch["frame_index"].tolist(), strict=True)]

    whole = loader_of(0)
    epochs = [[seen(batch) for batch in whole] for _ in range(2)]
    assert sorted(name for batch in epochs[0] for name, _ in batch) == sorted(
        name for batch in epochs[1] for name, _ in batch
    )
    first, second = (dict(clip for batch in epoch for clip in batch) for epoch in epochs)
    assert first != second
    stopped = loader_of(2)
    list(stopped)
    iterator = iter(stopped)
    got = [seen(next(iterator)) for _ in range(2)]
    state = stopped.state_dict()
    del iterator
    stopped.close()
    resumed = loader_of(1)
    resumed.load_state_dict(state)
    got += [seen(batch) for batch in resumed]
    resumed.close()
    assert got == epochs[1]


def test_a_lossless_image_comes_as_written(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f/0.png").write_bytes(encoded(3))
    run("index", tmp_path / "f", "--out", tmp_path / "INDEX")
    dataset = ClipDataset(
        shard_clips(tmp_path / "INDEX", tmp_path / "D", [{"uri": ".", "clip_id": "i", "frames": [0]}])
    )
    (batch,) = ClipLoader(dataset, output="numpy")
    assert np.array_equal(batch["frames"][0], dataset[0]["frames"])


@pytest.mark.parametrize(
    "normalize",
    [
        ((0, 0, 0), (1, 0, 1)),
        ((0, 0, 0), (1, -1, 1)),
        ((0, 0, 0), (1, float("nan"), 1)),
        ((0, 0), (1, 1)),
        "zz",
        (1, 2),
    ],
)
def test_normalize_is_refused_where_nothing_can_be_normalised(normalize: Any, stored: Path) -> None:
    with pytest.raises(FramedexError, match="normalize must be"):
        ClipLoader(ClipDataset(stored), normalize=normalize, output="numpy")
