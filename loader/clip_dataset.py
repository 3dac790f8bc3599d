"""ClipDataset: a map-style dataset of clips, for any DataLoader and Sampler.

The clips come from a dataset on disk. Or they come from an index and a policy, and each clip is planned when it is read
(`ClipDataset.from_index`). Planning a clip means to compute its frames and its byte ranges in the source.
"""

import contextlib
import copy
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, Unpack, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import column_as_numpy
from framedex.core.printing import user_line, warn_at
from framedex.core.pyav import MEDIUM_ERRORS
from framedex.core.words import check_choices, counted
from framedex.errors import DecodeError, FramedexError, StaleError
from framedex.execution.spawning import SharedNumber
from framedex.loader.arguments import check_counts
from framedex.loader.batches.chosen_clips import ChosenClips, ColumnsOfClips, ItemArguments, ItemOptions
from framedex.loader.batches.faults import OnError, read_or_replaced
from framedex.loader.batches.fetch import Decode
from framedex.loader.dali.proxy import ProxiedDataset
from framedex.loader.dataset.earlier import EarlierClips
from framedex.loader.dataset.frame_tables import FrameColumns
from framedex.loader.dataset.manifest import Manifest, changed_error
from framedex.loader.pixels.framing import Framing, Rotation
from framedex.loader.pixels.options import Layout, PixelOptions, Transform
from framedex.records.clip import Failure
from framedex.sharder.clips.clip import AudioOptions, Clip, JoinedViews
from framedex.sharder.clips.clip_source import Where, check_column_name
from framedex.sharder.clips.labels import LABEL, SPLIT, LabelsArgument, label_counts_of, lacking, plain
from framedex.sharder.clips.together import shared_groups
from framedex.sharder.decoding.video import SHOWN_BY_VERIFY, Dtype, Size
from framedex.storage.places import Access, Root, Stored, place
from framedex.storage.reader import DiskCache

LOG = logging.getLogger("framedex.loader")


class ClipDataset(ColumnsOfClips):
    """A map-style dataset of clips. It can be pickled and sent to spawned workers. Opening it reads one small file.

    Args:
        path: a dataset that `framedex shard` wrote: a folder, or a URI of object storage.
        decode: "cpu" decodes frames in `__getitem__`. With "movie", items have the encoded clip as a tiny MP4 instead
            of frames, for your own decoder or DALI pipeline.
        size: (height, width) to which frames are stretched, which changes their proportions. If None, `framing` sets
            the size. Without `framing`, frames keep their size.
        framing: other ways of scaling, such as by the shorter side or with letterboxing, and crops and mirroring (see
            `Framing`). Random crops differ between epochs (see `set_epoch`).
        rotation: "apply" turns frames upright, as players show them, by the nearest multiple of 90 degrees. Sizes,
            crops and shapes then refer to upright frames. "stored" leaves frames as they are stored. Defaults to
            "apply", but to "stored" with decode="movie", which does not decode frames.
        layout: order of the axes of `frames`: "FHWC", "FCHW" or "CFHW". Defaults to "FCHW" if there is a `transform`,
            and otherwise to "FHWC".
        dtype: the type of samples. "uint8" is RGB with 8 bits. "uint16" is RGB with 16 bits, where white is 65535. It
            loses no bits of 10-bit and 12-bit video, of depth maps (gray16) and of 16-bit PNGs. "raw" is the samples as
            they are stored, uint8 or uint16: [F, H, W, 1] for grey, and [F, H, W, 3] for formats whose three planes
            have the same size.
        transform: a function that is called with the frames of each clip, such as `torchvision.transforms.v2.Compose`.
            Its result replaces `frames` in the item. Its argument is uint8 [F, C, H, W], or has another `layout` or
            `dtype`. It is a torch tensor if torch is installed, and otherwise an array. During the call, the global
            random generators of Python, numpy and torch have a seed that is computed from `seed`, the epoch and the
            clip's name.
        seed: seed of random crops, of mirroring and of the transform, from 0 to 2**64 - 1.
        threads: decoder threads per clip. Use 1 with DataLoader workers, which already decode several clips at once.
        root: where the sources are now, if they moved: a folder that replaces the recorded root, or a mapping
            {old prefix: new prefix}.
        allow_remote: whether sources may lie in another store than the dataset, such as another bucket or web server.
            See docs/storage.md.
        where: A filter for clips. Clips that pass are numbered from 0. The filter is a mapping from columns to values,
            such as {"split": "train"} or {"codec": ["h264", "hevc"]}, or an expression as in the `filter` of a policy.
            The method `column` lists the names of columns.
        frame_columns: Columns of per-frame tables, such as states and actions. The listing gives the path of each table
            in its column `frame_table`. With a list of names, items have the values at the clip's frames. With a
            mapping {name: seconds}, such as {"action": [0.0, 0.1]}, items have the values at these times, and a mask
            that is False for times without a value. The times are relative to the clip's anchor frame if the policy
            defines one, and otherwise to the clip's first frame. With {name: None}, items have the values at the clip's
            frames, as with a list.
        labels: The numbers assigned to the labels in a column. If this is the name of a column, such as "label", the
            values of the column are sorted and numbered from 0. {"run": 0, "walk": 1} sets the numbers for the column
            `label`, and {"action": {"run": 0, "walk": 1}} sets the numbers for the column `action`. Items then have the
            number under the name of the column, and the label itself under this name with the suffix `_name`. The
            numbers do not depend on `where`. Defaults to the numbers that `framedex shard --labels` recorded.
        cache: A cache for object storage. If None, every read goes to the store.
        on_error: The reaction to a clip that is not available because its source has changed or does not decode.
            "raise" raises the error. "replace" returns another clip and logs a warning. The other clip is drawn at
            random, with the number of the unavailable clip as the seed. If permission is denied or the transform fails,
            the error is always raised.
        clip_bytes: The maximum number of bytes that the packets, the audio and the frames of one clip take in memory
            together. A clip that needs more is treated as not available. Defaults to a quarter of the memory of this
            machine or container.

    Raises:
        FramedexError: An argument is wrong.
        FormatError: There is no dataset at `path`, or this version of framedex cannot read it.
        StorageError: The sources are in another store, and neither `root` nor `allow_remote` is given.
    """

    def __init__(
        self,
        path: str | Path | Stored,
        *,
        decode: Decode = "cpu",
        size: Size | None = None,
        framing: Framing | None = None,
        rotation: Rotation | None = None,
        layout: Layout | None = None,
        dtype: Dtype = "uint8",
        transform: Transform | None = None,
        seed: int = 0,
        threads: int = 1,
        root: Root | None = None,
        allow_remote: bool = False,
        where: Where | None = None,
        frame_columns: FrameColumns | None = None,
        labels: LabelsArgument | None = None,
        cache: DiskCache | None = None,
        on_error: Literal["raise", "replace"] = "raise",
        clip_bytes: int | None = None,
    ) -> None:
        _check_on_error(on_error)
        items: ItemArguments = {
            "decode": decode,
            "size": size,
            "framing": framing,
            "rotation": rotation,
            "layout": layout,
            "dtype": dtype,
            "transform": transform,
            "threads": threads,
            "clip_bytes": clip_bytes,
            "frame_columns": frame_columns,
        }
        options = ItemOptions.of("ClipDataset", on_error, seed, items)
        manifest = Manifest(path, access=Access(root=root, allow_remote=allow_remote), cache=cache)
        self._set_clips(ChosenClips(manifest, options, where=where, labels=labels, cache=cache))

    @classmethod
    def from_index(
        cls,
        index: str | Path | Stored,
        policy: str | Path | Mapping[str, object],
        *,
        epoch: int = 0,
        seed: int | None = None,
        keep_damaged: bool = False,
        audio: bool | AudioOptions = False,
        repeat: int = 1,
        root: Root | None = None,
        allow_remote: bool = False,
        where: Where | None = None,
        labels: LabelsArgument | None = None,
        cache: DiskCache | None = None,
        on_error: Literal["raise", "replace"] = "raise",
        **items: Unpack[ItemArguments],
    ) -> Self:
        """Return a dataset of the clips that a policy selects from an index. Each clip is planned when it is read.

        Nothing is written to disk. Planning a clip means to compute its frames and byte ranges. The clips and their
        numbers are the same as those of `framedex shard INDEX --policy POLICY`. The policy's random draws differ
        between epochs (see `set_epoch`).

        Args:
            index: an index that `framedex index` wrote.
            policy: a YAML file, the name of a policy that comes with framedex ("fps"), or the content of a policy file,
                as a mapping or as YAML.
            epoch: the first epoch, 0 or more.
            seed: the seed of the policy's random draws, of random crops and of the transform. If None, the policy's
                draws use the seed in the policy, and crops and the transform use the seed 0.
            keep_damaged: whether clips may have frames of damaged GOPs.
            audio: whether clips have audio. AudioOptions also sets the rate, channels and length of the audio.
            repeat: the number of times that the dataset has each clip, one after the other. They differ in their random
                draws: an epoch has the draws of `repeat` consecutive epochs of a dataset without repetition. With
                `ClipSampler(share=…)`, pictures that they have in common are decoded once.
            root: where the sources are now, if they moved, as for `ClipDataset`.
            allow_remote: whether sources may lie in another store than the index.
            where: a filter for clips, as for `ClipDataset`.
            labels: the numbers assigned to the labels in a column, as for `ClipDataset`. If only the column is given,
                the labels of all index rows that the policy samples are numbered.
            cache: a cache for object storage, as for `ClipDataset`.
            on_error: the reaction to a clip that is not available, as for `ClipDataset`.
            items: `decode`, `size`, `framing`, `rotation`, `layout`, `dtype`, `transform`, `threads`, `frame_columns`
                and `clip_bytes`, as for `ClipDataset`.

        Raises:
            FramedexError: An argument is wrong.
            FormatError: `index` is not an index.
            PolicyError: The policy is malformed.
            NoClipsError: The policy selects no clip.
            StorageError: The sources are in another store, and neither `root` nor `allow_remote` is given.
        """
        from framedex.sharder.planning.on_the_fly import ClipPlans  # imported here, because it takes 0.2 s per process
        from framedex.sharder.policies.reading import with_seed

        _check_on_error(on_error)
        check_counts(repeat=(repeat, 1))
        options = ItemOptions.of("ClipDataset.from_index", on_error, seed or 0, items)
        plans = ClipPlans(
            place(index, cache),
            with_seed(policy, seed),
            access=Access(root=root, allow_remote=allow_remote),
            keep_damaged=keep_damaged,
            audio=AudioOptions() if audio is True else audio or None,
        )
        dataset = cls.__new__(cls)
        clips = ChosenClips(plans, options, where=where, labels=labels, cache=cache, repeat=repeat)
        dataset._set_clips(clips, checked_epoch(epoch))
        column = dataset.label_column or LABEL
        if column in plans.columns and SPLIT in plans.columns:
            table = pa.table({name: plans.column(name) for name in (column, SPLIT)})
            for warning in lacking(label_counts_of(table, column)):  # `framedex shard` prints the same warnings
                warn_at(user_line(), f"{plans.path}: {warning}")
        return dataset

    def _set_clips(self, clips: ChosenClips, epoch: int = 0) -> None:
        self._clips, self._epoch = clips, SharedNumber(epoch)
        self.origin, self.sources = clips.source, clips.files

    @property
    def decode(self) -> Decode:
        """The decoder of frames: "cpu", or "movie" if the caller decodes clips."""
        return self._clips.options.decode

    @property
    def size(self) -> Size | None:
        """(height, width) to which frames are stretched. If None, `pixels.framing` describes their size."""
        framing = self._clips.options.pixels.framing
        return framing.size if framing.is_plain else None

    @property
    def pixels(self) -> PixelOptions:
        """The options for frames, such as framing, layout, transform and seed."""
        return self._clips.options.pixels

    @property
    def on_error(self) -> OnError:
        """The reaction to a clip that is not available, "raise" or "replace"."""
        return self._clips.options.on_error

    @property
    def threads(self) -> int:
        """The number of decoder threads per clip."""
        return self.pixels.threads

    @property
    def frame_columns(self) -> FrameColumns | None:
        """The columns of per-frame tables that items have."""
        return self._clips.options.frame_columns

    def resized(self, size: Size | None) -> Self:
        """Return the same clips with uint8 frames [F, H, W, 3], only stretched to a size. Raises FramedexError."""
        own = self.pixels
        pixels = PixelOptions.of(size, rotation=own.rotation, threads=own.threads, clip_bytes=own.clip_bytes)
        other = copy.copy(self)
        other._clips = copy.copy(self._clips)
        other._clips.options = replace(self._clips.options, pixels=pixels)
        return other

    @property
    def manifest(self) -> Manifest:
        """The manifest of a dataset on disk. Raises FramedexError if clips are planned from an index."""
        if not isinstance(self.origin, Manifest):
            raise FramedexError("clips that are planned from an index have no manifest", where=str(self.origin.path))
        return self.origin

    @property
    def epoch(self) -> int:
        """The current epoch, which determines random draws."""
        return self._epoch.get()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of random draws, in this object and in its copies in other processes of this machine.

        Persistent workers see the new epoch, too. Call this between two epochs, because clips that are being read
        during the call may belong to either epoch. Random crops, mirroring and transforms differ between epochs. The
        frame numbers of a clip differ only if clips are planned from an index. The number of clips, their order and
        their names never change.

        Args:
            epoch: A whole number of 0 or more.

        Raises:
            FramedexError: `epoch` is negative or not a whole number.
        """
        self._epoch.set(checked_epoch(epoch))

    def epoch_of(self, number: int) -> int:
        """Return the epoch that determines the random draws of clip `number`. It differs from `epoch` with `repeat`."""
        repeat = self._clips.repeat
        return self.epoch * repeat + number % repeat

    def failures(self) -> Iterator[Failure]:
        """Yield the clips that the policy selects but framedex cannot make, each with the reason.

        Only a dataset of `from_index` yields failures. The failures of a dataset on disk are in its file
        failures.parquet.
        """
        yield from self.origin.failures()

    @property
    def column_types(self) -> dict[str, pa.DataType]:
        """The Arrow type of each column in `columns`, by name."""
        types = dict(self.origin.column_types)
        labels = self._clips.labels
        if labels is not None:
            types[labels.name_column] = types.get(labels.column, pa.string())
            types[labels.column] = pa.int64()
        return types

    def __repr__(self) -> str:
        """Return a description with the path, the number of clips and the columns."""
        columns = f", columns {', '.join(self.columns)}" if self.columns else ""
        planned = "" if isinstance(self.origin, Manifest) else ", planned from an index"
        return f"<ClipDataset {self.origin.path}: {counted(len(self), 'clip')}{columns}{planned}>"

    def __len__(self) -> int:
        return len(self._clips)

    @overload
    def column(self, name: str, *, as_arrow: Literal[False] = False) -> NDArray[Any]: ...

    @overload
    def column(self, name: str, *, as_arrow: Literal[True]) -> pa.ChunkedArray: ...

    def column(self, name: str, *, as_arrow: bool = False) -> NDArray[Any] | pa.ChunkedArray:
        """Return one value for each clip, in the order of the clips. Clips are neither read nor decoded.

        Args:
            name: one of `columns`, or a field of the clip or its medium. A clip has `clip_id`, `wanted_frames` (the
                number of its frames, with padding), `begin_seconds` and `end_seconds`, and if it is one of several
                views, `multiview_id` and `view_name`. A medium has `media_id`, `uri`, `member`, `kind`, `codec`,
                `width` and `height` (as stored), `upright_width` and `upright_height`, `rotation_degrees`,
                `sample_aspect_ratio`, `color_transfer`, `frame_count`, `frame_rate` (on average) and
                `duration_seconds`. If one of your columns has the name of a field of the medium, the name means your
                column. With `from_index`, a field of the clip requires sampling all clips, which reads the packets of
                all media.
            as_arrow: whether to return an Arrow array, in which null differs from all values.

        Returns:
            A numpy array [clips]. Numbers have the column's type, or are float64 with NaN if there are nulls. Booleans
            are bool, or objects with None if there are nulls. Texts are objects, with None for null. Times are
            datetime64, with NaT for null.

        Raises:
            FramedexError: There is no such column, or a column of integers has nulls and values that float64 cannot
                represent.
            FormatError: The dataset or the index is damaged or was replaced.
        """
        check_column_name(name)
        labels, numbers = self._clips.labels, self._clips.numbers
        found = self.origin.column(labels.column if labels is not None and name == labels.name_column else name)
        if numbers is not None:
            found = found.take(pa.array(numbers))
        if labels is not None and name == labels.column:
            values = labels.numbered(found, str(self.origin.path))
            return pa.chunked_array([values]) if as_arrow else values
        return plain(found) if as_arrow else column_as_numpy(found, name)

    def shapes(self) -> NDArray[np.int64]:
        """Return int64 [clips, 3]: frames, height and width of each clip as it is delivered. Clips are not read.

        The number of frames includes padding. `size` or `framing` sets height and width. Without them, frames keep
        their size. With `from_index`, if the clips of the policy differ in their number of frames, the packets of all
        media are read, which takes about 1 ms per medium.

        Raises:
            FormatError: The dataset or the index is damaged or was replaced.
        """
        stored = self.origin.shapes(with_aspects=self.pixels.framing.needs_aspects)
        numbers = self._clips.numbers
        return self.pixels.shapes(stored if numbers is None else stored.take(numbers))

    @property
    def version(self) -> str | None:
        """The version of a dataset on disk that was changed, for states of samplers. None for all other datasets."""
        return self.origin.version if isinstance(self.origin, Manifest) else None

    def earlier(self, version: str | None) -> EarlierClips | None:
        """Return the clips that a dataset on disk had in an earlier version (see `version`), or None.

        A dataset of chosen clips (`where`) does not know which clips would have been chosen.
        """
        whole = isinstance(self.origin, Manifest) and self._clips.numbers is None
        return self.manifest.earlier(version) if whole else None

    def places(self, kind: Literal["tar", "medium"]) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of the tar or medium that contains each clip.

        This reads one column of the manifest.

        Raises:
            FramedexError: `kind` is "tar", and the dataset has no tars.
        """
        return self._clips.taken(self.manifest.tar_rows() if kind == "tar" else self.origin.media_rows())

    def views(self) -> JoinedViews:
        """Return the table that joins clips to items of several views. This reads two columns of the manifest.

        Raises:
            FramedexError: The dataset was made without `views` or with `repeat`, so its clips cannot be joined.
            FormatError: The columns contradict each other.
        """
        if self._clips.repeat > 1:
            raise FramedexError(
                "the clips of a dataset with `repeat` cannot be joined to items of several views",
                found=f"repeat={self._clips.repeat}",
                remedy="leave out repeat",
            )
        views = self.origin.views()
        if views is None:
            raise FramedexError(
                "the dataset was made without `views`, so its clips cannot be joined",
                where=str(self.origin.path),
                remedy="shard with a policy whose `views` defines which rows of the listing belong together",
            )
        return views.joined(self._clips.numbers)

    def with_proxy(self, proxy: Callable[..., Any], *, device_id: int = 0) -> ProxiedDataset:
        """Return this dataset for a torch DataLoader whose workers send clips to a DALIServer (`proxy.ProxiedDataset`).

        Args:
            proxy: The `proxy` of a DALIServer that runs `clip_pipeline` with this dataset's size.
            device_id: The index of the GPU that decodes.
        """
        return ProxiedDataset(self, proxy, pixels=self.pixels, device_id=device_id)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return clip `number` as a dict. Negative numbers count from the end.

        Returns:
            A dict with the keys below. F is the number of the clip's frames, including padding. A padded frame is
            either blank, or repeats another frame.

            - `frames`, with decode="cpu": uint8 [F, H, W, 3], RGB. Blank frames are zeros. With a `framing` of several
            crops, [crops, F, H, W, 3]. With another `layout`, the axes are in another order. With a `transform`, its
            result.
            - `movie`, with decode="movie": uint8 [bytes], a tiny MP4.
            - `positions`, with decode="movie": int64 [F], the index of each frame in the movie, -1 for blank frames.
            - `pts`: int64 [F], timestamps in the medium's time base. Blank frames have the smallest int64.
            - `seconds`: float64 [F], `pts` in seconds by the container's clock, NaN for blank frames.
            - `frame_index`: int64 [F], the frames' numbers from 0 in presentation order, -1 for blank frames.
            - `mask`: bool [F], False for padded frames. A padded frame that repeats another frame has the number and
            time of that frame.
            - `clip_id`, `uri`, and the user's columns. With `labels`, the column of labels has the label's number, and
            the key with the suffix `_name` has the label itself.
            - `rotation_degrees`: the counterclockwise rotation in degrees that players apply. `rotation="apply"`
            applies it, too.
            - `sample_aspect_ratio`: the width of a stored sample divided by its height, 1 if the medium does not state
            it.
            - `color_transfer`: the medium's transfer characteristics (ISO/IEC 23091-2 table 3; 16 and 18 are HDR).
            Frames are delivered without tone mapping.
            - `multiview_id`, if the clip is one of several views: the name that all views share. `MultiViewDataset`
            joins the views.
            - `view_name`, if the clip is one of several views: the name of this view.
            - `view_away_seconds`, if the clip is one of several views: float64 [F], the time of each frame minus the
            wanted time.
            - `audio`, if the dataset has audio: float32 [channels, samples] with full scale at 1.
            - `audio_mask`, if the dataset has audio: bool [samples], False for silence that was filled in.
            - `audio_rate`, if the dataset has audio: the sampling rate in Hz.
            - each column of `frame_columns`: [F, …] if its values are wanted at the clip's frames, and [times, …] if
            they are wanted at given times. For times, the key with the suffix `_mask` has bool [times], which is False
            for times outside the range of the video from which the policy samples.

        Raises:
            IndexError: The clip does not exist.
            StaleError: The source has changed.
            DecodeError: The source does not decode.
            FramedexError: The `framing` cannot be applied to pictures of the clip's size.
            TransformError: The transform fails.
            PolicyError: With `from_index`, reading the source shows that the clip cannot be made.
            FormatError: With `from_index`, the index has changed.
        """
        return self._read(number)

    def __getitems__(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Return several clips, each as `__getitem__` does. A torch DataLoader calls this with the clips of a batch.

        Pictures that clips of one medium have in common are read and decoded once, so a batch of overlapping clips
        takes less time than its clips one by one. Clips are decoded together only as far as they do not take more
        memory than `clip_bytes` allows for one clip.
        """
        wanted, own = list(numbers), type(self)
        if self.decode != "cpu" or (own.__getitem__, own.item) != (ClipDataset.__getitem__, ClipDataset.item):
            return [self[number] for number in wanted]  # a subclass may return other items
        clips: dict[int, Clip] = {}  # by index in `wanted`, as the others
        epochs: dict[int, int] = {}
        for index, number in enumerate(wanted):
            with contextlib.suppress(IndexError, *MEDIUM_ERRORS):  # raised below, where `on_error` has an effect
                epochs[index] = self.epoch_of(number)
                clips[index] = self.clip(number, epoch=epochs[index])
        ready: dict[int, dict[str, Any]] = {}
        indices = list(clips)
        for group in shared_groups(list(clips.values())):
            several = [indices[number] for number in group]
            together = [clips[index] for index in several], [epochs[index] for index in several]
            try:
                for number, item in self._clips.items_together(*together, self.sources):
                    ready[several[number]] = item
            except MEDIUM_ERRORS as error:  # clips that are missing are read one by one, which shows the wrong clip
                LOG.debug("%d clips could not be decoded together: %r", len(several), error)
        return [ready.get(index) or self._read(number, clips.get(index)) for index, number in enumerate(wanted)]

    def _read(self, number: int, clip: Clip | None = None) -> dict[str, Any]:
        """Return clip `number` as `__getitem__` does. If the clip was planned already, it is given as `clip`."""

        def item(other: int) -> dict[str, Any]:
            return self._item(other, clip if other == number else None)

        return read_or_replaced(item, number, count=len(self), on_error=self.on_error)

    def item(self, number: int) -> dict[str, Any]:
        """Return clip `number` as `__getitem__` does, but always raise if the clip is not available.

        `on_error` has no effect.
        """
        return self._item(number, None)

    def _item(self, number: int, clip: Clip | None) -> dict[str, Any]:
        try:
            return self._clips.item(clip or self.clip(number), self.epoch_of(number), self.sources)
        except (StaleError, DecodeError) as error:
            if (fitted := self.fitted(error, number)) is not error:
                raise fitted from error
            raise

    def fitted(self, error: FramedexError, number: int) -> FramedexError:
        """Return a clip's error with a remedy for the kind of this dataset: on disk, or planned from an index."""
        planned = not isinstance(self.origin, Manifest)
        if isinstance(error, StaleError):
            if isinstance(self.origin, Manifest) and self.origin.was_changed():
                return changed_error(self.origin.path)
            if planned:
                error.remedy = "index again, or set root to the new location of the sources"
            else:
                with contextlib.suppress(FramedexError):  # if the clip's row is damaged, the remedy stays unchanged
                    clip = self.clip(number)
                    if clip.source != clip.medium.source:
                        error.remedy = "copy the tar from the dataset once more, or shard again"
        elif isinstance(error, DecodeError) and error.remedy == SHOWN_BY_VERIFY:
            command = "framedex index --verify" if planned else "framedex verify"
            error.remedy = f"{command} shows what does not decode; on_error='replace' loads another clip"
        error.args = (error.text(),)
        return error

    def extra_values(self, clip: Clip) -> dict[str, Any]:
        """Return an item's audio and its `frame_columns`.

        Raises:
            FramedexError: The clip has no per-frame table, or the table lacks a column.
            FormatError: The table is damaged, or its rows do not correspond to the clip's frames.
        """
        return self._clips.extra_values(clip, self.sources)

    def clip(self, number: int, *, epoch: int | None = None) -> Clip:
        """Return the record of clip `number`, which contains the clip's frames and byte ranges.

        For a dataset on disk, this does not read the source. With `from_index`, it reads the source if the index
        recorded only the container's sample tables, and these tables are not sufficient for planning the clip.

        Args:
            number: The number of the clip. Negative numbers count from the end.
            epoch: The epoch of the random draws. Defaults to the epoch of `set_epoch`.

        Raises:
            IndexError: The clip does not exist.
        """
        number = operator.index(number)
        if not -len(self) <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        return self._clips.clip(number % len(self), self.epoch_of(number) if epoch is None else epoch)


def _check_on_error(on_error: str) -> None:
    """Raise FramedexError if `on_error` is not possible for a map-style dataset."""
    if on_error == "skip":
        raise FramedexError(
            "a map-style dataset cannot skip a clip, because a DataLoader requests every clip number",
            where="on_error",
            found="skip",
            allowed="raise, replace",
            remedy="use ClipLoader(dataset, on_error='skip'), or ClipStream for clips in tars",
        )
    check_choices(on_error=(on_error, ("raise", "replace")))


def checked_epoch(epoch: int) -> int:
    """Return the epoch if it is a whole number of 0 or more. Raise FramedexError otherwise."""
    if type(epoch) is not int or not 0 <= epoch < 1 << 63:
        raise FramedexError("an epoch must be a whole number of 0 or more", found=repr(epoch))
    return epoch
