"""A measurement of a loader on this machine: its speed, its costs, and its time by stage."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.bench.compare import CHECKED_CLIPS, PeerResult, Thumbnails, enlarged, run_peer, thumbnails
from framedex.bench.machine_load import Load, LoadSampler
from framedex.bench.peer import PeerClip, PeerOptions
from framedex.errors import FramedexError
from framedex.loader.arguments import Decode, Device
from framedex.loader.clip_dataset import ClipDataset
from framedex.loader.clip_loader import ClipLoader
from framedex.loader.order.order import epoch_order, sample_of
from framedex.records.clip import PAD
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip
from framedex.sharder.decoding.video import decode_frames
from framedex.storage.places import OWN_STORE, Access, Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of a benchmark.

    Attributes:
        batch_size: clips per batch.
        clips: how many clips, chosen by `seed`. Defaults to all.
        device: where frames are delivered.
        decode: the decoders on a GPU, as for ClipLoader.
        size: (height, width) to which frames are scaled. If None, frames keep their stored size.
        workers: processes of the loader.
        seed: the seed of the choice of clips and of their order.
        epochs: how many epochs are measured.
        warm_up: how many epochs run before these.
        gpu: number of the GPU, if `device` is "gpu".
    """

    batch_size: int = 8
    clips: int | None = None
    device: Device = "cpu"
    decode: Decode = "auto"
    size: tuple[int, int] | None = None
    workers: int = 0
    seed: int = 0
    epochs: int = 1
    warm_up: int = 1
    gpu: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The work of an epoch, according to its recipes.

    Attributes:
        clips: clips of the epoch.
        frames: frames delivered, without padding.
        wanted_frames: distinct frames of each clip.
        decoded_frames: packets given to decoders.
        bytes: bytes read, without sound.
    """

    clips: int
    frames: int
    wanted_frames: int
    decoded_frames: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The result of a benchmark.

    Attributes:
        cost: the work of each epoch.
        seconds: time of each measured epoch.
        first_seconds: time of the first warm-up epoch, including startup. It is None without a warm-up.
        batches: batches per epoch.
        load: the machine's load during the measured epochs.
        decoded: clips by decoder, over the measured epochs.
        stages: seconds by stage, of all processes together, over the measured epochs.
        failures: clips by kind of failure, over the measured epochs.
    """

    cost: Cost
    seconds: list[float]
    first_seconds: float | None
    batches: int
    load: Load
    decoded: dict[str, int] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def median_seconds(self) -> float:
        """Median time of the measured epochs."""
        return float(np.median(self.seconds))

    @property
    def clips_a_second(self) -> float:
        """Clips per second in the median epoch."""
        return self.cost.clips / self.median_seconds

    @property
    def frames_a_second(self) -> float:
        """Frames per second in the median epoch."""
        return self.cost.frames / self.median_seconds


@dataclass(slots=True)
class EpochOrder:
    """A sampler that visits some clips in a new order on each iteration."""

    numbers: NDArray[np.int64]
    seed: int
    epoch: int = 0

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        order = epoch_order(len(self.numbers), shuffle=True, seed=self.seed, epoch=self.epoch)
        self.epoch += 1
        yield from self.numbers[order].tolist()


def recipe_cost(clips: Iterable[Clip]) -> Cost:
    """Add up the costs of clips by their recipes, without reading the clips."""
    recipes = [clip.recipe for clip in clips]
    shown = [recipe.position[recipe.position != PAD] for recipe in recipes]
    return Cost(
        clips=len(recipes),
        frames=sum(map(len, shown)),
        wanted_frames=sum(len(np.unique(positions)) for positions in shown),
        decoded_frames=sum(len(recipe.packet_size) for recipe in recipes),
        bytes=sum(int(recipe.range_length.sum()) for recipe in recipes),
    )


def open_loader(dataset: ClipDataset, options: BenchOptions, order: Any, **how: Any) -> Any:
    """Return a ClipLoader for these options.

    Args:
        dataset: the clips.
        options: the measurement.
        order: the sampler.
        how: more arguments of ClipLoader.
    """

    return ClipLoader(
        dataset,
        batch_size=options.batch_size,
        sampler=order,
        device=options.device,
        device_id=options.gpu,
        decode=options.decode if options.device == "gpu" else "cpu",
        size=options.size,
        num_workers=options.workers,
        **({"collate": "list", "on_error": "skip"} | how),
    )


def run_epoch(loader: Any, see: Callable[[dict[str, Any]], None] | None = None) -> tuple[float, int]:
    """Return the seconds and the number of batches of one epoch. All work on the GPU is then done.

    Args:
        loader: a ClipLoader.
        see: called with every batch.
    """
    started, batches, frames = time.perf_counter(), 0, None
    for batch in loader:
        batches, frames = batches + 1, batch["frames"]
        if see is not None:
            see(batch)
    wait_for(frames)
    return time.perf_counter() - started, batches


def wait_for(frames: Any) -> None:
    """Wait until the device that holds the frames has finished its work."""
    first = frames[0] if isinstance(frames, list) and frames else frames
    if getattr(getattr(first, "device", None), "type", "cpu") == "cuda":
        import torch

        torch.cuda.synchronize(first.device)


def measure_loader(
    loader: Any, options: BenchOptions, cost: Cost, see: Callable[[dict[str, Any]], None] | None = None
) -> BenchResult:
    """Run a loader's epochs and time the ones after the warm-up.

    Args:
        loader: a ClipLoader.
        options: the measurement.
        cost: the work of an epoch.
        see: called with every batch of the first warm-up epoch.
    """
    warm_up = [run_epoch(loader, None if number else see)[0] for number in range(options.warm_up)]
    before = copy.deepcopy(loader.report)  # its counts include the warm-up
    with LoadSampler(options.gpu if options.device == "gpu" else None) as sampler:
        epochs = [run_epoch(loader) for _ in range(options.epochs)]

    def grown(name: str) -> dict[str, Any]:
        earlier = getattr(before, name)
        return {key: value - earlier.get(key, 0) for key, value in getattr(loader.report, name).items()}

    return BenchResult(
        cost=cost,
        seconds=[seconds for seconds, _ in epochs],
        first_seconds=warm_up[0] if warm_up else None,
        batches=epochs[-1][1] if epochs else 0,
        load=sampler.load,
        decoded=grown("decoded"),
        stages=grown("seconds"),
        failures={kind: count for kind, count in grown("failures").items() if count},
    )


def bench(
    path: str | Path | Stored,
    options: BenchOptions,
    *,
    access: Access = OWN_STORE,
    peers: Iterable[str] = (),
    limit_seconds: float = 300.0,
    on_peer: Callable[[PeerResult], None] | None = None,
) -> tuple[BenchResult, list[PeerResult]]:
    """Measure how fast a dataset loads, and how fast the named peers load the same clips.

    A peer that fails gives a result with a reason.

    Args:
        path: the dataset.
        options: the measurement.
        access: which sources may be read.
        peers: names in PEERS.
        limit_seconds: time limit per peer.
        on_peer: called with each peer's result when that peer is done.

    Raises:
        FramedexError: the dataset does not exist, or it has no clips.
    """
    dataset = ClipDataset(path, root=access.root, allow_remote=access.allow_remote)
    numbers = sample_of(len(dataset), size=options.clips, seed=options.seed)
    if not len(numbers):
        raise FramedexError("the dataset has no clips", where=str(dataset.manifest.path))
    clips = {number: dataset.clip(number) for number in numbers.tolist()}
    loader = open_loader(dataset, options, EpochOrder(numbers, options.seed))
    result = measure_loader(loader, options, recipe_cost(clips.values()))
    del loader  # its workers end before peers are measured
    names = list(peers)
    asked = peer_clips(clips)
    order = epoch_order(len(asked), shuffle=True, seed=options.seed, epoch=options.warm_up)
    asked = [asked[place] for place in order.tolist()]
    ours = checked_thumbnails(dataset, asked) if names else {}
    # Peers get the same batches, size and number of workers.
    gpu = options.gpu if options.device == "gpu" else None
    how = PeerOptions(batch_size=options.batch_size, workers=options.workers, size=options.size, gpu=gpu)
    found = []
    for name in names:
        if asked:
            found.append(run_peer(name, asked, how, limit_seconds=limit_seconds, ours=ours))
        else:
            found.append(PeerResult(name=name, reason="no clip is unpadded video by reference of a whole file"))
        if on_peer is not None:
            on_peer(found[-1])
    return result, found


def checked_thumbnails(dataset: ClipDataset, asked: list[PeerClip]) -> Thumbnails:
    """Return thumbnails of the clips whose frames are compared: unscaled, as the CPU decodes them."""

    def decode(clip: PeerClip) -> NDArray[np.uint8]:
        wanted = dataset.clip(clip.number)
        return thumbnails(enlarged(decode_frames(wanted, dataset.sources.read(wanted))))

    checked = asked[:CHECKED_CLIPS]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return {clip.number: pictures for clip, pictures in zip(checked, pool.map(decode, checked), strict=True)}


def peer_clips(clips: dict[int, Clip]) -> list[PeerClip]:
    """Return the clips that other loaders can load: unpadded clips of video whose packets are in the source itself."""
    return [
        PeerClip(
            number=number,
            path=clip.medium.path,
            frames=tuple(clip.frames.tolist()),
            seconds=tuple(clip.seconds.tolist()),
        )
        for number, clip in clips.items()
        if clip.medium.kind != IMAGES and clip.source == clip.medium.source and bool((clip.frames >= 0).all())
    ]


def keep_thumbnails(into: Thumbnails, numbers: dict[str, int]) -> Callable[[dict[str, Any]], None]:
    """Return a function that keeps thumbnails of the clips in each batch that it is called with.

    Args:
        into: receives the thumbnails.
        numbers: the number of each clip_id.
    """

    def see(batch: dict[str, Any]) -> None:
        for clip_id, frames in zip(batch["clip_id"], batch["frames"], strict=True):
            into[numbers[clip_id]] = thumbnails(enlarged(as_pictures(frames)))

    return see


def as_pictures(frames: Any) -> NDArray[np.uint8]:
    """Return uint8 [F, H, W, 3] of a clip's frames as a loader delivers them: on any device, also as floats in 0…1."""
    values: NDArray[Any] = frames if isinstance(frames, np.ndarray) else frames.cpu().numpy()
    if values.shape[1] == 3 and values.shape[-1] != 3:  # FCHW
        values = values.transpose(0, 2, 3, 1)
    if values.dtype != np.uint8:
        values = np.round(np.clip(values, 0, 1) * 255)
    return np.ascontiguousarray(values.astype(np.uint8))
