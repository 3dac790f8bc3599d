"""How fast a training step runs on the clips that a loader delivers, beside its speed on clips that are already there.

A ViT-B trains on batches of 16 clips of 16 × 224 × 224 from 340×256 H.264 (16 consecutive frames): "masked" drops
90 % of the tokens, as a masked autoencoder's encoder does, and "fine" keeps all. Each way of loading is measured alone,
with batches that the step takes ("fed"), and in another process that drops its batches, beside a step on batches that
are already there. With `--share`, clips are windows of several videos (benchmarks/shared_loading.py) in an order of
`ClipSampler(share=…)`, or in a shuffled order for `--share 1`. The speed of a machine changes within seconds, so the
step's own speed is measured in turns with the others. (A DataLoader would work on in the step's own turns, so own
speed is measured before it is made.) Batches that wait at the begin of a turn are not counted. With `--share`, a fed
turn has whole windows of the order, because most of a window is decoded at its begin. An epoch has 100,000 clips, so
that neither its begin nor its end is measured.

The fields of a row, which are medians over the turns:
- `own`: clips/s of the step on batches that are already there, while the loader has nothing to do.
- `alone`: clips/s of the loader without a step.
- `fed`, `share`: clips/s of the step on loaded batches, also as a share of `own` in the same turn.
- `waiting`, `thread_ms`: the share of this time that the step waits for batches, and the milliseconds of its thread in
  the loader's code, for each batch.
- `beside`, `share_beside`, `loader_beside`: clips/s of the step, its share of `own` in the same turn, and clips/s of
  the loader, in two processes.
- `first_batch`: seconds from the begin of the loader's construction to its first batch.
- `gpu_mib`, `host_mib`: memory of the GPU that is taken, and of this process and its children, while the step is fed.
- `mps`: whether NVIDIA's Multi-Process Service shares the GPU between the processes (`nvidia-cuda-mps-control -d`
  before this command; without it, they take turns on the GPU).

usage: python -m benchmarks.stall FOLDER --out RESULTS [--model masked] [--way auto] [--seconds 1.5] [--turns 5]
       (FOLDER holds the videos of `python -m benchmarks.training_videos FOLDER`; datasets are made in it)
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.row_file import Row, RowFile
from benchmarks.shared_loading import SAMPLINGS as WINDOWS
from benchmarks.shared_loading import VIDEOS, batches_of_window, endless, sampler_of
from benchmarks.shared_loading import dataset_path as windows_path
from benchmarks.training import BATCH, FRAMES, SIZE, dataset_path, environment_of, prepare_all
from benchmarks.training_videos import FORMATS
from framedex import ClipDataset, ClipLoader, ClipSampler

FORMAT, SAMPLING = "340x256 GOP 30", "16 consecutive"
KEPT = {"masked": 0.1, "fine": 1.0}  # the share of the tokens that a model sees
LOADERS = {"cpu": 12, "gpu": 8, "auto": 12}  # num_workers of ClipLoader, by decode=
OTHERS = ("dataloader", "torchcodec")
OTHER_WORKERS = 14
TOKENS, WIDTH, HEADS, CLASSES = 1568, 768, 12, 400
MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED of cuda.h
WARM_UP = 40  # batches before the first turn
UNCOUNTED = 10  # batches at the begin of a turn, more than wait then in a ClipLoader
PREFETCH = 2  # batches of each worker of a DataLoader
EPOCH = 100_000  # clips
MIB = 1 << 20
Loader = tuple[Iterator[Any], Callable[[], None]]  # frames of batches, and a function that ends the loader


class Vit(nn.Module):
    """A ViT-B with patches of 2 × 16 × 16, which may see a random share of the tokens.

    Args:
        kept: The share of the tokens.
        layers: The number of layers, 12 in a ViT-B.
    """

    def __init__(self, kept: float, layers: int) -> None:
        super().__init__()
        self._kept = round(TOKENS * kept)
        self.patches = nn.Conv3d(3, WIDTH, (2, 16, 16), (2, 16, 16))
        self.places = nn.Parameter(torch.zeros(1, TOKENS, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(frames).flatten(2).transpose(1, 2) + self.places
        if self._kept < TOKENS:
            tokens = tokens[:, torch.randperm(TOKENS, device=tokens.device)[: self._kept]]
        found: torch.Tensor = self.head(self.body(tokens).mean(1))
        return found


class Trainer:
    """A model with its optimizer, whose step is timed."""

    def __init__(self, kept: float, layers: int) -> None:
        torch.manual_seed(0)
        self._model = Vit(kept, layers).cuda()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), 1e-4, fused=True)

    def step(self, frames: torch.Tensor) -> None:
        """Train on frames, uint8 [clips, F, H, W, 3]."""
        inputs = frames.permute(0, 4, 1, 2, 3).to(torch.bfloat16).div_(127.5).sub_(1)
        with torch.autocast("cuda", torch.bfloat16):
            loss = self._model(inputs.contiguous()).float().square().mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def rate(self, batches: Iterator[Any], seconds: float, *, uncounted: int = UNCOUNTED, multiple: int = 1) -> Row:
        """Return clips/s of the step, the share of the time that it waits, and the time of this thread a batch.

        Args:
            batches: The frames of batches, on the GPU or the CPU.
            seconds: The minimum of the time to measure.
            uncounted: The number of batches at the begin that are not measured.
            multiple: The number of batches that are measured is a multiple of this.
        """
        for frames in itertools.islice(batches, uncounted):
            self.step(frames.cuda(non_blocking=True))
        torch.cuda.synchronize()
        first, count, waited, busy = time.perf_counter(), 0, 0.0, 0.0
        while count % multiple or time.perf_counter() - first < seconds:
            before, own = time.perf_counter(), time.thread_time()
            frames = next(batches).cuda(non_blocking=True)
            waited, busy = waited + time.perf_counter() - before, busy + time.thread_time() - own
            self.step(frames)
            count += 1
        torch.cuda.synchronize()
        taken = time.perf_counter() - first
        return {"clips": count * BATCH / taken, "waiting": waited / taken, "thread_ms": 1000 * busy / count}


def there() -> Iterator[torch.Tensor]:
    """Yield frames that are already on the GPU."""
    return itertools.repeat(torch.randint(0, 255, (BATCH, FRAMES, *SIZE, 3), dtype=torch.uint8, device="cuda"))


class Source(NamedTuple):
    """The clips to load.

    Attributes:
        path: The dataset.
        share: The number of clips that are decoded together. 0 for clips that are drawn in a very long epoch.
    """

    path: Path
    share: int

    def sampler(self, dataset: ClipDataset) -> ClipSampler:
        """Return the order of the clips."""
        if not self.share:
            return ClipSampler(dataset, weights=np.ones(len(dataset)), length=EPOCH, seed=1)
        found: ClipSampler = sampler_of(dataset, self.share)
        return found


def loaded(source: Source, way: str) -> Loader:
    """Begin a way of loading clips of a dataset."""
    dataset = ClipDataset(source.path, size=SIZE)
    sampler = source.sampler(dataset)
    if way in LOADERS:
        loader = ClipLoader(
            dataset,
            batch_size=BATCH,
            device="cuda",
            decode=way,
            num_workers=LOADERS[way],
            sampler=sampler,  # type: ignore[arg-type]
        )
        return (batch["frames"] for batch in endless(loader)), loader.close
    clips = torch.utils.data.DataLoader(
        Torchcodec(dataset) if way == "torchcodec" else Frames(dataset),
        batch_size=BATCH,
        sampler=sampler,
        num_workers=OTHER_WORKERS,
        pin_memory=True,
        prefetch_factor=PREFETCH,
        multiprocessing_context="forkserver",
    )
    return iter(clips), lambda: None


class Frames(torch.utils.data.Dataset[Any]):
    """The frames of a ClipDataset, for a DataLoader."""

    def __init__(self, clips: ClipDataset) -> None:
        self._clips = clips

    def __len__(self) -> int:
        return len(self._clips)

    def __getitem__(self, number: int) -> Any:
        return torch.from_numpy(self._clips[number]["frames"])


class Torchcodec(torch.utils.data.Dataset[Any]):
    """The same frames by torchcodec, which opens the video for each clip."""

    def __init__(self, clips: ClipDataset) -> None:
        first = clips.clip(0)
        self._video = str(Path(clips.manifest.header.root) / first.medium.path)
        self._frames = [clips.clip(number).frames.tolist() for number in range(len(clips))]

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, number: int) -> Any:
        from torchcodec.decoders import VideoDecoder

        torch.set_num_threads(1)
        decoder = VideoDecoder(self._video, seek_mode="approximate", num_ffmpeg_threads=1)
        frames = decoder.get_frames_at(self._frames[number]).data.float()
        return nn.functional.interpolate(frames, SIZE, mode="bilinear", antialias=True).byte().permute(0, 2, 3, 1)


def _discard(source: Source, way: str, pipe: Any) -> None:
    """Load batches and drop them between messages "go" and "stop", and then send clips/s. First, send "ready"."""
    frames, close = loaded(source, way)
    for batch in itertools.islice(frames, WARM_UP):
        batch.cuda(non_blocking=True)
    pipe.send("ready")
    while pipe.recv() == "go":
        for batch in itertools.islice(frames, UNCOUNTED):
            batch.cuda(non_blocking=True)
        count, first = 0, time.perf_counter()
        while not pipe.poll():
            next(frames).cuda(non_blocking=True)
            count += 1
        torch.cuda.synchronize()
        pipe.recv()
        pipe.send(count * BATCH / (time.perf_counter() - first))
    close()


@contextlib.contextmanager
def elsewhere(source: Source, way: str) -> Iterator[Any]:
    """Run a loader in another process that drops its batches. Yield the pipe of `_discard`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_discard, args=(source, way, theirs))
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield ours
        ours.send("end")
    finally:
        ours.close()
        process.join(20)
        process.kill()


def measure(trainer: Trainer, source: Source, way: str, seconds: float, turns: int) -> Row:
    """Return a row of one way."""
    before = [trainer.rate(there(), seconds)["clips"] for _ in range(turns)] if way in OTHERS else None
    begun = time.perf_counter()
    frames, close = loaded(source, way)
    first = next(frames)
    row: Row = {"first_batch": round(time.perf_counter() - begun, 2)}
    for batch in itertools.chain([first], itertools.islice(frames, WARM_UP)):
        trainer.step(batch.cuda(non_blocking=True))
    of_turn: defaultdict[str, list[float]] = defaultdict(list)
    multiple = batches_of_window(source.share)
    for _ in range(turns):
        if before is None:
            own, fed = (
                trainer.rate(there(), seconds)["clips"],
                trainer.rate(frames, seconds, multiple=multiple),
            )
        else:
            own, fed = before.pop(), trainer.rate(frames, seconds, uncounted=PREFETCH * OTHER_WORKERS + 1)
        of_turn["own"].append(own)
        of_turn["fed"].append(fed.pop("clips"))
        of_turn["share"].append(of_turn["fed"][-1] / own)
        for name, value in fed.items():
            of_turn[name].append(value)
    row |= memory_in_use()
    close()
    with elsewhere(source, way) as pipe:
        for _ in range(turns):
            own = trainer.rate(there(), seconds)["clips"]
            pipe.send("go")
            of_turn["beside"].append(trainer.rate(there(), seconds)["clips"])
            pipe.send("stop")
            of_turn["loader_beside"].append(pipe.recv())
            of_turn["share_beside"].append(of_turn["beside"][-1] / own)
        pipe.send("go")
        time.sleep(2 * seconds)
        pipe.send("stop")
        row["alone"] = round(pipe.recv(), 1)
    return row | {name: round(float(np.median(values)), 3) for name, values in of_turn.items()}


def has_multi_process_service() -> bool:
    """Return whether processes share the GPU through NVIDIA's Multi-Process Service, as the driver says."""
    driver, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    if failure := driver.cuDeviceGetAttribute(ctypes.byref(found), MPS_ENABLED, torch.cuda.current_device()):
        raise RuntimeError(f"cuDeviceGetAttribute failed with {failure}")
    return bool(found.value)


def memory_in_use() -> Row:
    """Return the memory in use of the GPU, and of this process and its descendants, each in MiB."""
    free, total = torch.cuda.mem_get_info()
    children = list(map(int, _descendants(multiprocessing.current_process().pid or 0)))
    return {"gpu_mib": (total - free) // MIB, "host_mib": round(sum(map(_own_share, children)))}


def _descendants(process: int) -> Iterable[int]:
    yield process
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _descendants(int(child))


def _own_share(process: int) -> float:
    """Return the resident memory of a process in MiB, in which shared pages are divided among their users."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", action="append", default=[], choices=list(KEPT))
    parser.add_argument("--way", action="append", default=[], choices=[*LOADERS, *OTHERS])
    parser.add_argument("--share", type=int, default=0)
    parser.add_argument("--format", default=FORMAT, choices=list(FORMATS))
    parser.add_argument("--windows", default=SAMPLING, choices=list(WINDOWS), help="with --share")
    parser.add_argument("--layers", type=int, default=12, help="of the masked model; the other has 12")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement in a turn")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    if options.share and not set(options.way) <= set(LOADERS):
        parser.error(f"--share is for the ways {', '.join(LOADERS)}")
    if not options.share and (options.format, options.windows) != (FORMAT, SAMPLING):
        parser.error("--format and --windows need --share")
    folder = options.folder.absolute()
    setup = {
        "frames_a_clip": FRAMES,
        "batch_size": BATCH,
        "size": SIZE,
        "workers": LOADERS,
        "layers": options.layers,
        "turns": options.turns,
        "seconds": options.seconds,
    }
    rows = RowFile(options.out, environment_of("cuda", "nvidia-dali-cuda120", "torch", "torchcodec"), setup)
    if options.share:
        source = Source(windows_path(folder, options.format, options.windows, VIDEOS), options.share)
        more = {"format": options.format, "sampling": options.windows, "share_clips": options.share}
    else:
        prepare_all(folder, [FORMAT])
        source, more = Source(dataset_path(folder, FORMAT, SAMPLING), 0), {}
    for model in options.model or list(KEPT):
        trainer = Trainer(KEPT[model], options.layers if model == "masked" else 12)
        more |= {"mps": has_multi_process_service()}
        for way in options.way or [*LOADERS, *([] if options.share else OTHERS)]:
            key = {"model": model, "way": way} | more
            if not rows.has(**key):
                rows.add(key | measure(trainer, source, way, options.seconds, options.turns))


if __name__ == "__main__":
    main()
