"""ClipLoader: an iterable over batches of decoded clips.

Worker processes read clips, and decode them on the CPU. If there is a GPU, it decodes the clips for which its decoder
is known to give the exact frames.
"""

import collections
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import Any

from framedex.errors import FramedexError
from framedex.loader.arguments import Decode, Last, Output, byte_count, check_batch_sampler, check_unit, placed
from framedex.loader.batches.batch_queue import Batches, BatchQueue, BatchSetup
from framedex.loader.batches.faults import OnError
from framedex.loader.batches.fed_batches import FedBatches, UnsendableError
from framedex.loader.batches.fetch import FetchOptions
from framedex.loader.batches.frames import Collate, Finish, LoaderOptions, Normalize, check_pixels
from framedex.loader.batches.shared import later_clips
from framedex.loader.clip_dataset import ClipDataset
from framedex.loader.concat_clips import ConcatClips, is_joined
from framedex.loader.multi_view_dataset import MultiViewDataset, ViewJoiner
from framedex.loader.order.bucket_sampler import BucketSampler
from framedex.loader.order.order import PICTURES, UNKNOWN_SIZE, given_groups, groups_of_size, largest_batch
from framedex.loader.order.sampler import ClipSampler, ElasticSampler
from framedex.loader.pixels.framing import Framing, Rotation
from framedex.loader.pixels.options import Layout, without_pictures
from framedex.loader.routing.driver import driver_support
from framedex.loader.routing.movie import Colour
from framedex.loader.routing.routes import Share, fixed_share
from framedex.sharder.decoding.video import Size

LOG = logging.getLogger("framedex.loader")


class ClipLoader:
    """An iterable over batches of decoded clips. A batch is a dict with the keys of `ClipDataset.__getitem__`.

    Args:
        dataset: the clips. With a MultiViewDataset, each clip of a batch has all of its views. To load several
            ClipDatasets, join them with ConcatClips. A torch ConcatDataset is converted to a ConcatClips.
        batch_size: clips per batch.
        sampler: an iterable of clip numbers. Defaults to a ClipSampler without shuffling.
        batch_sampler: an iterable of lists, each of which has the clip numbers of one batch, such as a BucketSampler.
            It replaces `batch_size`, `sampler` and `last`.
        device: where frames are delivered: "cpu", "cuda", "cuda:1", a torch.device, or "gpu" with `device_id`.
        device_id: number of the GPU, if `device` does not name it.
        decode: the decoder. With "cpu", workers decode all clips. With "gpu", NVDEC and nvJPEG decode the clips for
            which they are proven to be exact (`routes`), and workers decode the other clips of the same batch. With
            "auto" and a GPU, workers also decode those clips that they would finish before the GPU, or before the
            caller needs them (`balance`).
        cpu_share: with decode="auto", the share of clips that workers decode, 0 to 1. The decoder of each clip is then
            fixed. If None, measured times determine the decoder of each clip, so the frames of two runs may differ by
            rounding.
        colour: how close a GPU's colours must come to the CPU's colours, "close" or "exact" (`colour.colour_obstacle`).
            Workers decode the clips for which the GPU's colours are not close enough.
        rotation: replaces the dataset's `rotation`: "apply" turns frames upright, and "stored" leaves them as they are
            stored.
        size: (height, width) to which frames are stretched, which changes their proportions. Defaults to the dataset's
            `size` or `framing`.
        framing: a Framing, which replaces the dataset's `size` or `framing`. A GPU scales, crops and mirrors frames
            like the CPU.
        transform: A function that changes frames by DALI operations, as in the definition of a DALI pipeline. Its
            argument is uint8 FHWC on the device. (In contrast, the `transform` of a dataset may be any function, and
            runs in the workers; see `layout`.)
        audio_transform: A function that changes the audio of one clip, float32 [channels, samples], by DALI operations,
            for example to a spectrogram.
        normalize: (mean, std) for RGB in 0…1, with three numbers each. Frames become float32.
        layout: The order of the axes of each clip's `frames`: "FHWC", "FCHW" or "CFHW". Defaults to the dataset's
            layout. If the dataset has a `transform`, frames are delivered as this transform returns them, on the CPU,
            and the loader's `transform`, `normalize` and `layout` must not be given.
        collate: The treatment of a batch whose clips differ in shape: "error", "list" or "pad".
        last: The treatment of a last batch that is not full. "partial" delivers it, "drop" leaves it out, and "pad"
            repeats its clips and marks the repeated clips in `is_padding`.
        on_error: The reaction to a clip that is not available. "raise" raises the error, "skip" leaves the clip out of
            its batch, and "replace" loads another clip. The number of batches is always the same. Defaults to the
            dataset's `on_error`.
        num_workers: The number of processes that read and decode clips. If 0, this process does all work.
        threads: The number of decoder threads per clip.
        share_memory: The maximum amount of memory for later batches whose first clips were decoded together with clips
            of earlier batches, in bytes or as a text such as "2GiB". It is used only if the sampler has `share`. The
            batches that are prepared ahead (`prefetch`) take memory in addition. If it does not suffice, fewer clips
            are decoded together.
        prefetch: The minimum number of batches that are prepared ahead. With workers, at least two clips (two groups,
            if the sampler has `share`) per worker are always in progress. With decode="gpu", `share`
            and a fixed `size`, at least 512 clips are in progress, or fewer if they are larger than 224×224.
        output: The type of arrays: "torch" for tensors, or "numpy" for arrays, which do not need torch.

    Raises:
        FramedexError: An argument is wrong.
        MissingExtraError: DALI or torch is needed, but is not installed.
    """

    def __init__(
        self,
        dataset: ClipDataset | MultiViewDataset | ConcatClips | Any,
        *,
        batch_size: int = 1,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        device: object = "cpu",
        device_id: int = 0,
        decode: Decode = "auto",
        cpu_share: Share = None,
        colour: Colour = "close",
        rotation: Rotation | None = None,
        size: Size | None = None,
        framing: Framing | None = None,
        transform: Callable[[Any], Any] | None = None,
        audio_transform: Callable[[Any], Any] | None = None,
        normalize: Normalize | None = None,
        layout: Layout | None = None,
        collate: Collate = "error",
        last: Last = "partial",
        on_error: OnError | None = None,
        num_workers: int = 0,
        threads: int = 1,
        prefetch: int = 2,
        share_memory: int | str = "2GiB",
        output: Output = "torch",
    ) -> None:
        device, device_id = placed(device, device_id)
        dataset = _loadable(dataset)
        largest: int | None = batch_size
        if batch_sampler is not None:
            check_batch_sampler(batch_size=batch_size, sampler=sampler, last=last)
            largest = largest_batch(batch_sampler)
            needs_size = device == "gpu" or transform is not None or audio_transform is not None
            if largest is None and needs_size:
                raise FramedexError(
                    "a loader with a GPU or a transform needs to know the size of the largest batch",
                    found=f"{type(batch_sampler).__name__} without an attribute `largest_batch` or `batch_size`",
                    remedy="use a BucketSampler, or add one of these attributes to the sampler",
                )
            batch_size = largest or UNKNOWN_SIZE
        source: Any = sampler if batch_sampler is None else batch_sampler
        group_size = source.group_size if isinstance(source, ElasticSampler) else 1
        wrapped = getattr(batch_sampler, "sampler", None)
        if isinstance(wrapped, ElasticSampler) and wrapped.group_size > 1:
            raise FramedexError(
                "a sampler with share has no effect within a sampler of batches",
                found=type(batch_sampler).__name__,
                remedy="pass the sampler as sampler=, and batch_size=",
            )
        if group_size > 1 and isinstance(dataset, MultiViewDataset):
            raise FramedexError(
                "clips of several views cannot be decoded together with other clips",
                found=f"a sampler with share={group_size}",
                remedy="make the sampler without share",
            )
        clips = dataset.clips if isinstance(dataset, MultiViewDataset) else dataset
        own = (
            clips.pixels_with(size, framing, rotation)
            if isinstance(clips, ConcatClips)
            else [clips.pixels.changed(size, framing, rotation)]
        )
        own = [replace(part, threads=threads) for part in own]
        pixels = own[0]
        facts = [part.picture_facts for part in own]
        self._pictures = facts[:1] if all(one == facts[0] for one in facts) else facts
        self._options = options = LoaderOptions(
            pixels=pixels,
            framings=list(dict.fromkeys(part.framing for part in own)),
            device=device,
            device_id=device_id,
            decode=decode,
            colour=colour,
            num_workers=num_workers,
            batch_size=batch_size,
            prefetch=prefetch,
            last=last,
            collate=collate,
            on_error=on_error or clips.on_error,
            output=output,
            group_size=group_size,
            share_memory=byte_count("share_memory", share_memory),
        )
        finish = Finish(
            transform=transform,
            audio_transform=audio_transform,
            normalize=normalize,
            layout=layout or ("FHWC" if pixels.transform else pixels.axes),
            collate=collate,
            dtype=pixels.dtype,
        )
        check_pixels(options, finish, has_layout=layout is not None)
        if isinstance(dataset, MultiViewDataset) and dataset.stack and collate == "list":
            raise FramedexError("lists of views cannot be stacked", found="collate='list'", allowed="'error', 'pad'")
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        if batch_sampler is None and sampler is None:
            sampler = ClipSampler(dataset)
            sampler.set_epoch(dataset.epoch)
        self.sampler = sampler
        self._source: Any = sampler if batch_sampler is None else batch_sampler
        self._order: ElasticSampler[Any] | None = self._source if isinstance(self._source, ElasticSampler) else None
        if self._order is not None:
            check_unit(self._order.UNIT, "clips" if batch_sampler is None else "batches")
        self._groups: Callable[[Iterator[Any]], Iterator[tuple[list[int], int]]] = (
            partial(groups_of_size, clips=len(dataset), batch_size=batch_size, last=last)
            if batch_sampler is None
            else partial(given_groups, clips=len(dataset), largest=largest)
        )
        # A clip is replaced by a clip of the same bucket or the same dataset, so that the shape fits the batch.
        alike = batch_sampler if isinstance(batch_sampler, BucketSampler) else dataset
        setup = BatchSetup(
            clips=clips,
            fetching=FetchOptions(
                pixels=own,
                ends=clips.cumulative_sizes if isinstance(clips, ConcatClips) else (),
                colour=colour,
                caps=driver_support(device_id) if device == "gpu" else None,
            ),
            options=options,
            finish=finish,
            share=fixed_share(device, decode, cpu_share, num_workers),
            replacements=alike.replacements if isinstance(alike, BucketSampler | ConcatClips) else None,
            views=ViewJoiner(dataset, options) if isinstance(dataset, MultiViewDataset) else None,
            as_lists=dataset.uneven_columns if isinstance(dataset, ConcatClips) else frozenset(),
            to_torch=output == "torch",
        )
        self._batches = _batches(setup)
        self.report = self._batches.report
        self._ended: int | None = None  # the epoch if its last batch was delivered, but the iteration goes on

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch."""
        if self.batch_sampler is not None:
            return len(self._source)
        count = len(self._source) if isinstance(self._source, Sized) else len(self.dataset)
        size = self._options.batch_size
        return count // size if self._options.last == "drop" else -(-count // size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of an epoch. If the last iteration was interrupted, yield the rest of its epoch.

        If the last iteration delivered its last batch, the next epoch begins, even if the caller left the loop early.
        """
        if self._order is not None and self._order.next_epoch == self._ended:
            self._order.set_epoch(self._ended + 1)
        self._ended = None
        groups, ahead = self._groups(iter(self._source)), self._options.ahead
        self._count_delivered(clips=0, batches=0)
        later_of = None  # a function that returns the later clips that are decoded together with clips of a batch
        if self._order is not None:
            self.dataset.set_epoch(self._order.epoch)  # used by clips that are planned on access, and by random crops
        elif isinstance(wrapped := getattr(self.batch_sampler, "sampler", None), ElasticSampler):
            self.dataset.set_epoch(wrapped.next_epoch)  # a torch BatchSampler begins the epoch at its first batch
        # The key of each batch, and the number of its clips without padding.
        waiting: collections.deque[tuple[int, int]] = collections.deque()
        try:
            for number, (items, padding) in enumerate(groups):
                if not number:  # now, since the sampler may begin another iteration before this one ends
                    grouped = None if self._order is None else self._order.grouped
                    later_of = None if grouped is None else partial(later_clips, grouped, self._options)
                later = {} if later_of is None else later_of(number, items[: len(items) - padding])
                key = self._batches.begin(items, padding, is_first=not number, later=later)
                waiting.append((key, len(items) - padding))
                if len(waiting) > ahead:
                    yield self._deliver(*waiting.popleft())
            while waiting:
                yield self._deliver(*waiting.popleft())
        finally:
            self._batches.cancel([key for key, _ in waiting])
        self._ended = None
        if self._order is not None:
            self._order.set_epoch(self._order.epoch + 1)

    def _count_delivered(self, *, clips: int, batches: int) -> None:
        """Report delivered entries to an ElasticSampler, from which more entries were requested than delivered."""
        if self._order is not None:
            self._order.deliver(clips if self._order.UNIT == "clips" else batches)

    def close(self) -> None:
        """Stop the threads and the worker processes."""
        self._batches.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last delivered batch, with which a later run can continue.

        The state contains the state of the sampler, and the loader's options for the rotation, aspect and sizes of
        pictures.

        Raises:
            FramedexError: The sampler is not one of framedex's samplers.
        """
        return self._resumable().state_dict() | {PICTURES: self._pictures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` returned. The next iteration yields the rest of the state's epoch.

        Raises:
            FramedexError: The sampler is not one of framedex's samplers, or the state belongs to another order of
                clips, or to another rotation, aspect or sizes of pictures. A state of an earlier version, which did not
                record these options, is treated as a state of pictures as they are stored.
        """
        self._resumable().load_state_dict(without_pictures(state, self._pictures, "ClipLoader"))
        self._ended = None

    def _resumable(self) -> ElasticSampler[Any]:
        if self._order is None:
            raise FramedexError(
                "resuming needs a ClipSampler, MixtureSampler or BucketSampler",
                found=type(self._source).__name__,
                remedy="use sampler=ClipSampler(dataset)",
            )
        return self._order

    def _deliver(self, key: int, clips: int) -> dict[str, Any]:
        begun = time.perf_counter()
        batch = self._batches.take(key)
        self.report.add_seconds(waiting=time.perf_counter() - begun)
        self._count_delivered(clips=clips, batches=1)
        least = self._options.batch_size if self._options.last == "drop" else 1  # minimum size of the next batch
        if self._order is not None and self._order.remaining < least:
            self._ended = self._order.epoch
        return batch


def _batches(setup: BatchSetup) -> Batches:
    """Return the object that makes batches: with workers, in a process of its own if the setup can be sent to one."""
    if not setup.options.num_workers:
        return BatchQueue(setup)
    try:
        return FedBatches(setup)
    except UnsendableError as error:
        LOG.warning("batches are made in this process, because the loader cannot be sent to another process: %s", error)
        return BatchQueue(setup)


def _loadable(dataset: Any) -> ClipDataset | MultiViewDataset | ConcatClips:
    """Return a dataset of a type that ClipLoader loads. Raises FramedexError for other objects."""
    if isinstance(dataset, ClipDataset | MultiViewDataset | ConcatClips):
        return dataset
    if is_joined(dataset):
        return ConcatClips(dataset.datasets)
    raise FramedexError(
        "ClipLoader cannot load a dataset of this type",
        found=type(dataset).__name__,
        allowed="ClipDataset, MultiViewDataset, ConcatClips, torch's ConcatDataset",
        remedy="to load only some clips of a dataset, pass their numbers as sampler=",
    )
