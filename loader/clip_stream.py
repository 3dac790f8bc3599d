"""ClipStream: an iterable dataset that reads the tars of a packed dataset sequentially."""

import logging
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack, get_args

import numpy as np
from webdataset.pytorch import (
    IterableDataset as IterableDataset,
)  # torch's class, or an empty class if torch is not installed
from webdataset.utils import pytorch_worker_info

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.core.words import check_choices, counted
from framedex.errors import FramedexError
from framedex.loader.batches.chosen_clips import ChosenClips, ColumnsOfClips, ItemArguments, ItemOptions
from framedex.loader.batches.faults import ON_ERROR, OnError, fault_of, read_or_replaced
from framedex.loader.clip_dataset import checked_epoch
from framedex.loader.dataset.manifest import Manifest
from framedex.loader.order.order import PICTURES, Uneven
from framedex.loader.pixels.options import without_pictures
from framedex.loader.streams import progress
from framedex.loader.streams.lanes import Order, Workers, lane_of, rank_lengths
from framedex.loader.streams.reading import LaneReader, ReadClip, UnreadClip, extent
from framedex.loader.streams.state import Resumption, as_state, progress_of
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.clip_source import Where
from framedex.sharder.clips.labels import LabelsArgument
from framedex.storage.places import Access, Root, Stored
from framedex.storage.reader import DiskCache


def place_among_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks.

    Args:
        rank: The user's argument. If None, webdataset determines the rank and the number of ranks, from the environment
            variables RANK and WORLD_SIZE, or from torch.distributed.
        world_size: The user's argument, which must be given together with `rank`.

    Raises:
        FramedexError: Only one of the arguments was given, or the rank is out of range.
    """
    if (rank is None) != (world_size is None):
        raise FramedexError("give rank and world_size together, or neither", found=f"{rank!r} and {world_size!r}")
    if rank is None or world_size is None:
        rank, world_size, _, _ = pytorch_worker_info()
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        raise FramedexError("rank is out of range", found=repr(rank), allowed=f"0 to {world_size} - 1")
    return rank, world_size


def is_worker() -> bool:
    """Return whether this process is a worker of a torch DataLoader."""
    try:
        from torch.utils.data import get_worker_info
    except ModuleNotFoundError:
        return False
    return get_worker_info() is not None


LOG = logging.getLogger("framedex.loader")


class ClipStream(ColumnsOfClips, IterableDataset):  # type: ignore[misc]
    """A stream of the clips of a packed dataset, as an IterableDataset for torch's DataLoader.

    The tars are read sequentially and ahead of time, in requests of several MiB. The items are the same dicts as those
    of `ClipDataset`.

    Each worker of each rank reads a contiguous part of the tars, and delivers it through a shuffle buffer. The library
    webdataset determines the current rank and worker, and its shuffle buffer determines the order of delivery. An
    iteration delivers the epoch that was set by `set_epoch`.

    Args:
        path: a dataset that `framedex shard --pack clips` or `--pack images` wrote: a folder, or a URI of object
            storage.
        shuffle: the number of clips in the shuffle buffer of each worker. The clips in the buffer are still encoded.
            The order of the tars is shuffled, too. If 0, clips are delivered in the order of the tars, without
            shuffling.
        seed: the seed of the shuffle, of random crops and of the transform.
        rank: the number of this process in distributed training. If None, webdataset determines it when the stream is
            made, from the environment variables RANK and WORLD_SIZE, or from torch.distributed.
        world_size: the number of processes in distributed training. It must be given together with `rank`.
        uneven: what to do if clips cannot be divided evenly among ranks. "pad" repeats the epoch's first clips and
            "drop" leaves out its last ones, so that all ranks have the same number of clips and batches. "allow"
            delivers every clip exactly once, so that the first ranks have one clip more.
        on_error: the reaction to a clip that is not available. "raise" raises the error. "skip" leaves the clip out
            (see `skipped`). "replace" delivers another clip and logs a warning. The other clip is drawn at random, with
            the number of the unavailable clip as the seed.
        where: a filter for clips, as for ClipDataset.
        labels: the numbers assigned to the labels in a column, as for ClipDataset.
        root: where the sources are now, if they moved. Only `frame_columns` reads them.
        allow_remote: whether the tables of `frame_columns` may lie in another store than the dataset.
        cache: a cache for object storage. If None, every read goes to the store.
        items: `decode`, `size`, `framing`, `rotation`, `layout`, `dtype`, `transform`, `threads`, `frame_columns` and
            `clip_bytes`, as for ClipDataset.

    Raises:
        FramedexError: An argument is wrong, or a clip of the dataset is not in a tar.
        FormatError: There is no dataset at `path`, or this version of framedex cannot read it.
    """

    def __init__(
        self,
        path: str | Path | Stored,
        *,
        shuffle: int = 0,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
        on_error: OnError = "raise",
        where: Where | None = None,
        labels: LabelsArgument | None = None,
        root: Root | None = None,
        allow_remote: bool = False,
        cache: DiskCache | None = None,
        **items: Unpack[ItemArguments],
    ) -> None:
        super().__init__()
        check_choices(uneven=(uneven, get_args(Uneven)), on_error=(on_error, ON_ERROR))
        if type(shuffle) is not int or shuffle < 0:
            raise FramedexError(
                "shuffle must be the number of clips in the shuffle buffer", found=repr(shuffle), allowed="0 or more"
            )
        self.rank, self.world_size = place_among_ranks(rank, world_size)
        options = ItemOptions.of("ClipStream", on_error, seed, items)
        self._manifest = Manifest(path, access=Access(root=root, allow_remote=allow_remote), cache=cache)
        tars = self._manifest.packed_rows()
        self._clips = ChosenClips(self._manifest, options, where=where, labels=labels, cache=cache)
        numbers = self._clips.taken(np.arange(len(tars)))
        self._order = Order(
            tar_of=tars[numbers],
            buffer=shuffle,
            seed=seed,
            uneven=uneven,
            clips_crc32=zlib.crc32(numbers.astype(np.int64).tobytes(), self._manifest.checksum()),
        )
        self._history = progress.History()
        self._resumption = Resumption(self._history)
        self._iteration: progress.Iteration | None = None  # the current iteration in this process

    def __repr__(self) -> str:
        """Return a description with the path and the number of clips and tars."""
        tars = counted(len(np.unique(self._order.tar_of)), "tar")
        return f"<ClipStream {self._manifest.path}: {counted(len(self._clips), 'clip')} in {tars}>"

    @property
    def clip_count(self) -> int:
        """The number of clips that this rank delivers in a whole epoch.

        A stream has no `len`, because torch would rely on this number even if clips are skipped.
        """
        return int(rank_lengths(len(self._clips), self.world_size, self._order.uneven)[self.rank])

    def batch_count(self, loader: progress.Loader) -> int:
        """Return the number of batches that a DataLoader delivers from this stream in the next iteration.

        Each worker makes batches of its own clips, so each worker can have a last batch that is not full.

        Args:
            loader: A torch DataLoader of this stream.

        Raises:
            FramedexError: The loader's dataset is not this stream.
        """
        batching = self._batching(loader)
        start = self._resumption.start(batching.workers, iterating=True)
        left = progress.lengths_left(self._order, start, Workers(world_size=self.world_size, per_rank=batching.workers))
        return int(batching.counts(left[self.rank]).sum())

    @property
    def epoch(self) -> int:
        """The epoch that the next or current iteration delivers."""
        return self._resumption.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, in this process and in all workers on this machine.

        Workers that are already running see the new epoch, too.

        Call this method before each iteration. Otherwise, the iteration repeats the last epoch. If a state of the same
        epoch was loaded, the next iteration still delivers only the rest of the epoch.

        Args:
            epoch: A whole number of 0 or more.

        Raises:
            FramedexError: `epoch` is negative or not a whole number.
        """
        if self._resumption.set_epoch(checked_epoch(epoch)):
            self._iteration = None

    def skipped(self) -> list[progress.Skip]:
        """Return the clips that on_error="skip" has left out so far, in all workers, with the reasons."""
        return self._history.skips()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the clips that this worker delivers in an epoch. After `load_state_dict`, yield the rest of the epoch.

        Yields:
            Dicts like those that `ClipDataset.__getitem__` returns.

        Raises:
            FramedexError: A state was loaded after the workers had started, or the state belongs to another worker.
            StaleError: A tar is missing, or has changed since it was packed.
            DecodeError: A clip does not decode.
        """
        self._iteration = None
        return self._deliver()

    def _deliver(self) -> Iterator[dict[str, Any]]:
        # This runs at the first `next` and not in `iter`, because loaders make iterators that they never use, and an
        # error in `iter` ends a worker.
        _, _, worker, per_rank = pytorch_worker_info()  # worker 0 of 1 if there are no workers
        start, version = self._resumption.start(per_rank, iterating=True), self._resumption.running
        workers, one = Workers(world_size=self.world_size, per_rank=per_rank), start.lane
        if one is not None and (one.workers, one.rank, one.worker) != (workers, self.rank, worker):
            raise FramedexError(
                "the loaded state belongs to another worker",
                found=f"worker {one.worker} of {one.workers.per_rank} of rank {one.rank} of {one.workers.world_size}",
                allowed=f"worker {worker} of {per_rank} of rank {self.rank} of {self.world_size}",
                remedy="resume with these numbers of ranks and workers, or save states by "
                "state_dict(loader, batches=…)",
            )
        passed = None if one is None else one.passed
        lane = lane_of(self._order, start.epoch, start.stages, workers, rank=self.rank, worker=worker, passed=passed)
        counts = progress.OneLane(workers=workers, rank=self.rank, worker=worker, passed=lane.passed)
        self._iteration = now = progress.Iteration(begun_from=start, lane=counts)
        self._history.begin(version, worker)
        places = np.sort(lane.deliver).tolist()
        with LaneReader(lambda place: self._readable_clip(int(lane.clips[place])), places, self._clips.files) as reader:
            for place in lane.deliver.tolist():
                item = self._item(reader.take(place), int(lane.clips[place]), now)
                counts.passed += 1
                if item is not None:
                    now.delivered += 1
                    yield item
        self._history.end(version, worker)

    def _readable_clip(self, number: int) -> Clip:
        """Return the record of a clip. Raises DecodeError if the clip would need too much memory."""
        clip = self._clips.clip(number)
        first, last = extent(clip)
        # The bytes of a clip are in memory twice, because the reader copies each clip from its request.
        self._clips.options.pixels.check_memory(clip, None, read_bytes=2 * (last - first))
        return clip

    def _item(self, read: ReadClip | UnreadClip, number: int, now: progress.Iteration) -> dict[str, Any] | None:
        """Return the item of a clip or of its replacement, or None if the clip is skipped."""
        epoch, on_error, in_source = now.begun_from.epoch, self._clips.options.on_error, self._clips.number(number)
        if on_error != "skip":
            return read_or_replaced(
                lambda other: self._clips.item(self._clips.clip(other), epoch),
                number,
                count=len(self._clips),
                on_error=on_error,
                first=lambda: self._read_item(read, epoch),
                number=in_source,
            )
        try:
            return self._read_item(read, epoch)
        except MEDIUM_ERRORS as error:
            fault = fault_of(in_source, error)
            if fault.ends_the_run:
                raise
        skip = progress.Skip(
            epoch=epoch,
            rank=self.rank,
            worker=now.lane.worker,
            workers=now.lane.workers.per_rank,
            place=now.lane.passed,
            clip=fault.number,
            where=str(self._manifest.path) if read.clip is None else read.clip.source.path,
            kind=fault.kind,
            message=fault.message,
        )
        self._history.skip(skip)
        LOG.warning("clip %d is skipped (%s): %s", skip.clip, skip.kind, skip.message)
        return None

    def _read_item(self, read: ReadClip | UnreadClip, epoch: int) -> dict[str, Any]:
        if isinstance(read, UnreadClip):
            raise read.error
        return self._clips.item(read.clip, epoch, read.held)

    def state_dict(self, loader: progress.Loader | None = None, *, batches: int | None = None) -> dict[str, Any]:
        """Return a state of plain values, with which a later run can continue after the delivered clips.

        The state contains the progress of every worker of every rank, provided that all ranks have delivered the same
        number of batches. A run can continue from it with any number of ranks and workers. With on_error="skip", save
        the state of each rank, because each rank knows only its own skipped clips.

        Args:
            loader: The torch DataLoader that delivers this stream. It is needed because its workers read ahead. Leave
                it out if this process iterates over the stream without a DataLoader, or if the loader is a
                StatefulDataLoader, which counts batches itself.
            batches: The number of batches that this rank has delivered since the loader's iteration began. It must be
                given together with `loader`.

        Raises:
            FramedexError: `loader` was not given although workers deliver this stream, the loader's dataset is not this
                stream, or the loader has fewer than `batches` batches.
        """
        if (loader is None) != (batches is None):
            raise FramedexError("state_dict must get both loader and batches, or neither of them")
        if loader is None or batches is None:
            return self._as_state(self._progress_here())
        batching = self._batching(loader)
        reached = progress.after_batches(
            self._order,
            self._resumption.start(batching.workers, iterating=False),
            Workers(world_size=self.world_size, per_rank=batching.workers),
            self.rank,
            batches=batches,
            batching=batching,
            skips=self._history.skips_now(),
        )
        return self._as_state(reached)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` returned. The next iteration delivers the rest of the state's epoch.

        Call this method before the workers of a DataLoader start.

        Raises:
            FramedexError: `state` is not a state of a stream, or belongs to another order of clips, or to another
                rotation, aspect or sizes of pictures. A state of an earlier version, which did not record these
                options, is treated as a state of pictures as they are stored.
        """
        loaded = progress_of(self._order, without_pictures(state, self._pictures, "ClipStream"))
        self._iteration = None
        self._resumption.load(loaded, own=is_worker())  # a StatefulDataLoader loads a separate state in each worker

    @property
    def _pictures(self) -> list[dict[str, Any]]:
        return [self._clips.options.pixels.picture_facts]

    def _as_state(self, reached: progress.Progress) -> dict[str, Any]:
        return as_state(self._order, reached) | {PICTURES: self._pictures}

    def _progress_here(self) -> progress.Progress:
        """Return the progress of the iteration in this process, or the start of the next iteration if there is none."""
        now = self._iteration
        if is_worker():
            per_rank = pytorch_worker_info()[3]
            return self._resumption.start(per_rank, iterating=True) if now is None else now.of_worker()
        if now is not None:
            return now.of_all(self._order)
        if self._history.has_begun(self._resumption.version):
            raise FramedexError(
                "the workers of a DataLoader deliver this stream, so only the loader can count the delivered batches",
                remedy="call state_dict(loader, batches=…) with the number of batches since the iteration began",
            )
        return self._resumption.start(1, iterating=True)

    def _batching(self, loader: progress.Loader) -> progress.Batching:
        if getattr(loader, "dataset", None) is not self:
            raise FramedexError("the dataset of the loader is not this stream", where="loader", found=repr(loader)[:80])
        if not getattr(loader, "in_order", True):  # the speed of the workers determines which batch is next
            raise FramedexError(
                "cannot resume a DataLoader with in_order=False: its delivery order is unknown",
                where="loader",
                found="in_order=False",
                allowed="in_order=True",
            )
        workers = max(1, loader.num_workers)
        return progress.Batching(size=loader.batch_size or 1, workers=workers, drop_last=bool(loader.drop_last))
