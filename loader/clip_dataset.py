"""ClipDataset: a map-style dataset of clips, for any DataLoader and Sampler.

The clips come from a dataset on disk, or are planned on access from an index and a policy.
"""

import contextlib
import copy
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, Unpack, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import column_as_numpy
from framedex.core.printing import user_line, warn_at
from framedex.core.words import check_choices, counted
from framedex.errors import DecodeError, FramedexError, StaleError
from framedex.execution.spawning import SharedNumber
from framedex.loader.batches.chosen_clips import ChosenClips, ColumnsOfClips, ItemArguments, ItemOptions
from framedex.loader.batches.faults import OnError, read_or_replaced
from framedex.loader.batches.fetch import Decode
from framedex.loader.dali.proxy import ProxiedDataset
from framedex.loader.dataset.frame_tables import FrameColumns
from framedex.loader.dataset.manifest import Manifest
from framedex.loader.pixels.framing import Framing, Rotation
from framedex.loader.pixels.options import Dtype, Layout, PixelOptions, Transform
from framedex.records.clip import Failure
from framedex.sharder.clips.clip import AudioOptions, Clip, JoinedViews
from framedex.sharder.clips.clip_source import Where, check_column_name
from framedex.sharder.clips.labels import LABEL, SPLIT, LabelsArgument, label_counts_of, lacking, plain
from framedex.sharder.decoding.video import SHOWN_BY_VERIFY, Size
from framedex.storage.places import Access, Root, Stored, place
from framedex.storage.reader import DiskCache


class ClipDataset(ColumnsOfClips):
    """A map-style dataset of clips. It is picklable, also for spawned workers. Opening it reads a single small file.

    Args:
        path: a dataset that `framedex shard` wrote: a folder, or a URI of object storage.
        decode: "cpu" decodes in `__getitem__`. "movie" returns the clip as a tiny MP4 instead, for a decoder or a DALI
            pipeline of your own.
        size: (height, width) to which frames are stretched, which changes their proportions. If None, `framing` sets
            the size, or frames keep theirs.
        framing: other ways to a size: by the shorter or longer side, letterboxed, cropped, mirrored. Random crops are
            drawn again in each epoch (see `set_epoch`).
        rotation: "apply" turns frames upright, as players show them, to the nearest quarter turn: sizes, crops and
            shapes are then those of upright frames. "stored" leaves frames as they are stored. Defaults to "apply", and
            to "stored" with decode="movie", which does not decode frames.
        layout: order of the axes of `frames`: "FHWC", "FCHW" or "CFHW". Defaults to "FHWC", or with a `transform` to
            "FCHW".
        dtype: "uint8": RGB of 8 bits. "uint16": RGB of 16 bits, white is 65535, which keeps the bits of video of 10 and
            12 bits, of depth maps (gray16) and of PNGs of 16 bits. "raw": the samples as they are stored, [F, H, W, 1]
            for grey and [F, H, W, 3] for planes of one size, uint8 or uint16.
        transform: a function of a clip's frames, such as `torchvision.transforms.v2.Compose`: uint8 [F, C, H, W] (or
            another `layout`), a torch tensor if torch is installed, otherwise an array. Its result becomes `frames`. It
            is called once per clip. The global generators of Python, numpy and torch are seeded for it by the seed, the
            epoch and the clip.
        seed: seed of random crops, of mirroring and of the transform, from 0 to 2**64 - 1.
        threads: decoder threads per clip. 1 is right under DataLoader workers.
        root: where the sources are now, if they moved: a folder that replaces the recorded root, or a mapping
            {old prefix: new prefix}.
        allow_remote: whether sources may lie in another store than the dataset, such as another bucket or web server.
            See docs/storage.md.
        where: A filter for clips. Clips that pass are numbered from 0. The filter is a mapping from columns to values,
            such as {"split": "train"} or {"codec": ["h264", "hevc"]}, or an expression as in the `filter` of a policy.
            The method `column` describes the columns.
        frame_columns: Columns of per-frame tables, such as states and actions. The listing gives the path of each table
            in its column `frame_table`. With a list of names, items have the values at the clip's frames. With a
            mapping {name: seconds}, items have the values at these times relative to the clip's anchor (or its first
            frame), and a mask of the times that have a value. {name: None} means the clip's frames, as in a list.
        labels: The numbers assigned to the labels in a column. With the name of a column, such as "label", its values
            are sorted and numbered from 0. {"run": 0, "walk": 1} sets the numbers for the column `label`, and
            {"action": {"run": 0, "walk": 1}} those for another column. Items then have the number under the name of the
            column, and the label itself under this name with the suffix `_name`. The numbers do not depend on `where`.
            Defaults to the numbers that `framedex shard --labels` recorded.
        cache: A cache for object storage. If None, every read goes to the store.
        on_error: The reaction to a clip that is not available because its source has changed or does not decode.
            "raise" raises the error. "replace" returns another clip and logs a warning. The clip's number seeds the
            draw of the clips that may replace it. If permission is denied or the transform fails, the error is always
            raised.
        clip_bytes: The maximum memory for the packets, the audio and the frames of one clip together. A clip that needs
            more is treated as not available. Defaults to a quarter of the memory of this machine or container.

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
        root: Root | None = None,
        allow_remote: bool = False,
        where: Where | None = None,
        labels: LabelsArgument | None = None,
        cache: DiskCache | None = None,
        on_error: Literal["raise", "replace"] = "raise",
        **items: Unpack[ItemArguments],
    ) -> Self:
        """Return a dataset of the clips that a policy selects from an index. Each clip is planned when it is read.

        Nothing is written to disk. The clips and their numbers are the same as those of
        `framedex shard INDEX --policy POLICY`. The policy's random draws differ between epochs (see `set_epoch`).

        Args:
            index: an index that `framedex index` wrote.
            policy: a YAML file, the name of a policy that comes with framedex ("fps"), or the content of a policy file,
                as a mapping or as YAML.
            epoch: the first epoch, 0 or more.
            seed: replaces the policy's seed, and is the seed of crops and of the transform. Defaults to the policy's
                own seed, and to 0 for crops and the transform.
            keep_damaged: allow clips with frames of damaged GOPs.
            audio: whether clips carry audio; AudioOptions sets its rate, channels and length.
            root: as for `ClipDataset`, as all following arguments.
            allow_remote: whether sources may lie in another store than the index.
            where: keep only some clips.
            labels: numbers for the values of a column, in all rows of the index that the policy samples.
            cache: a cache for object storage.
            on_error: the reaction to a clip that is not available.
            items: `decode`, `size`, `framing`, `rotation`, `layout`, `dtype`, `transform`, `threads`, `frame_columns`
                and `clip_bytes`.

        Raises:
            FramedexError: An argument is wrong.
            FormatError: `index` is not an index.
            PolicyError: The policy is malformed.
            NoClipsError: The policy selects no clip.
            StorageError: The sources are in another store, and neither `root` nor `allow_remote` is given.
        """
        from framedex.sharder.planning.on_the_fly import ClipPlans  # this import takes 0.2 s, also in each worker
        from framedex.sharder.policies.reading import with_seed

        _check_on_error(on_error)
        options = ItemOptions.of("ClipDataset.from_index", on_error, seed or 0, items)
        plans = ClipPlans(
            place(index, cache),
            with_seed(policy, seed),
            access=Access(root=root, allow_remote=allow_remote),
            keep_damaged=keep_damaged,
            audio=AudioOptions() if audio is True else audio or None,
        )
        dataset = cls.__new__(cls)
        dataset._set_clips(ChosenClips(plans, options, where=where, labels=labels, cache=cache), checked_epoch(epoch))
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

    def pixels_of(self, number: int) -> PixelOptions:
        """Return the options for the frames of a clip."""
        return self.pixels

    def resized(self, size: Size | None) -> Self:
        """Return the same clips as uint8 [F, H, W, 3], stretched to another size alone. Raises FramedexError."""
        own = self.pixels
        return self.with_pixels(
            PixelOptions.of(size, rotation=own.rotation, threads=own.threads, clip_bytes=own.clip_bytes)
        )

    def with_pixels(self, pixels: PixelOptions) -> Self:
        """Return the same clips with other options for frames."""
        other = copy.copy(self)
        other._clips = copy.copy(self._clips)
        other._clips.options = replace(self._clips.options, pixels=pixels, decode="cpu")
        return other

    @property
    def manifest(self) -> Manifest:
        """The manifest of a dataset on disk. Raises FramedexError if clips are planned from an index."""
        if not isinstance(self.origin, Manifest):
            raise FramedexError("clips that are planned from an index have no manifest", where=str(self.origin.path))
        return self.origin

    @property
    def epoch(self) -> int:
        """The epoch that determines random draws."""
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
            FramedexError: `epoch` is not such a number.
        """
        self._epoch.set(checked_epoch(epoch))

    def failures(self) -> Iterator[Failure]:
        """Yield the clips that the policy selects but that cannot be made, each with the reason.

        This applies to datasets of `from_index`. A dataset on disk yields nothing. Its failures are in
        failures.parquet.
        """
        yield from self.origin.failures()

    @property
    def column_types(self) -> dict[str, pa.DataType]:
        """The Arrow type of each of the user's columns in `columns`."""
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
            name: one of `columns`, or a value of every clip: `clip_id`; `wanted_frames` (padding included),
                `begin_seconds` and `end_seconds` of its frames; `multiview_id` and `view_name` of clips of several
                views; `media_id`, `uri`, `member`, `kind`, `codec`, `width` and `height` (as stored), `upright_width`
                and `upright_height`, `rotation_degrees`, `sample_aspect_ratio`, `color_transfer`, `frame_count`,
                `frame_rate` (on average) and `duration_seconds` of its medium. A column of your own hides a field of
                the medium of the same name. With `from_index`, the first six sample all clips, which reads the packets
                of all media.
            as_arrow: return Arrow's array, which distinguishes nulls from all values.

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

        Frames include padding. `size` or `framing` set the size, or clips keep their own. With `from_index`, a policy
        whose clips differ in their number of frames is applied to all media, which reads their packets (1 ms per
        medium).

        Raises:
            FormatError: The dataset or the index is damaged or was replaced.
        """
        stored = self.origin.shapes(with_aspects=self.pixels.framing.needs_aspects)
        numbers = self._clips.numbers
        return self.pixels.shapes(stored if numbers is None else stored.take(numbers))

    def places(self, kind: Literal["tar", "medium"]) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of the tar or medium that contains each clip.

        This reads one column of the manifest.

        Raises:
            FramedexError: `kind` is "tar", and the dataset has no tars.
        """
        rows = self.manifest.tar_rows() if kind == "tar" else self.origin.media_rows()
        return self._clips.taken(rows)

    def views(self) -> JoinedViews:
        """Return the table that joins clips to items of several views. This reads two columns of the manifest.

        Raises:
            FramedexError: The dataset was made without `views`, so its clips cannot be joined.
            FormatError: The columns contradict each other.
        """
        views = self.origin.views()
        if views is None:
            raise FramedexError(
                "the clips of the dataset are not views that can be joined",
                where=str(self.origin.path),
                remedy="shard with a policy whose `views` says which rows of the listing belong together",
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
            A dict with these keys:

            - `frames`, with decode="cpu": uint8 [F, H, W, 3], RGB, zeros where empty; [crops, F, H, W, 3] with a
            `framing` of several crops, in another order of axes with `layout`, or what `transform` returned.
            - `movie`, with decode="movie": uint8 [bytes], a tiny MP4.
            - `positions`, with decode="movie": int64 [F], each wanted frame's number in that movie, -1 where empty.
            - `pts`: int64 [F], timestamps in the medium's time base, the least int64 where empty.
            - `seconds`: float64 [F], `pts` in seconds by the container's clock, NaN where empty.
            - `frame_index`: int64 [F], numbers of the frames from 0 in presentation order, -1 where empty.
            - `mask`: bool [F], False where padded: empty, or repeating a frame, whose number and time it has.
            - `clip_id`, `uri`, and the user's columns. With `labels`, the column has the number of its value, which is
            in `NAME_name`.
            - `rotation_degrees`: the counterclockwise rotation that players apply, as `rotation="apply"` does.
            - `sample_aspect_ratio`: the width of a stored sample over its height, 1 if it is not stated.
            - `color_transfer`: the medium's transfer characteristics (ISO/IEC 23091-2 table 3; 16 and 18 are HDR).
            Frames are delivered without tone mapping.
            - `multiview_id`, `view_name` and `view_away_seconds`, if the clip is one of several views: the name that
            all views of the clip share, the name of this view, and float64 [F], the time of each frame minus the time
            that was wanted (`MultiViewDataset` joins the views).
            - `audio`, if the dataset has audio: float32 [channels, samples] with full scale at 1.
            - `audio_mask`, if the dataset has audio: bool [samples], False for silence that was filled in.
            - `audio_rate`, if the dataset has audio: the sampling rate in Hz.
            - the `frame_columns`: [F, …] for the clip's frames. For times, [times, …], and `NAME_mask`, bool [times],
            False for times outside the sampled range of the video.

        Raises:
            IndexError: The clip does not exist.
            StaleError: The source has changed.
            DecodeError: The source does not decode.
            FramedexError: The size of the clip's pictures is not possible with the `framing`.
            TransformError: The transform fails.
            PolicyError: With `from_index`, reading the source shows that the clip cannot be made.
            FormatError: With `from_index`, the index has changed.
        """
        return read_or_replaced(self.item, number, count=len(self), on_error=self.on_error)

    def item(self, number: int) -> dict[str, Any]:
        """Return clip `number` as `__getitem__` does, but always raise if the clip is not available.

        `on_error` has no effect.
        """
        try:
            return self._clips.item(self.clip(number), self.epoch, self.sources)
        except (StaleError, DecodeError) as error:
            self.fit_remedy(error, number)
            raise

    def fit_remedy(self, error: FramedexError, number: int) -> None:
        """Adapt the remedy in a clip's error to the kind of this dataset: on disk, or planned from an index."""
        planned = not isinstance(self.origin, Manifest)
        if isinstance(error, StaleError):
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

    def extra_values(self, clip: Clip) -> dict[str, Any]:
        """Return an item's audio and its `frame_columns`.

        Raises:
            FramedexError: The clip has no per-frame table, or the table lacks a column.
            FormatError: The table is damaged, or its rows do not correspond to the clip's frames.
        """
        return self._clips.extra_values(clip, self.sources)

    def clip(self, number: int, *, epoch: int | None = None) -> Clip:
        """Return the record of clip `number`, which says how the clip is read and decoded.

        For a dataset on disk, this does not read the source. For clips that are planned from an index, it reads the
        source if the index has only the container's sample tables and these are not sufficient.

        Args:
            number: The number of the clip. Negative numbers count from the end.
            epoch: The epoch of the random draws. Defaults to the epoch of `set_epoch`.

        Raises:
            IndexError: The clip does not exist.
        """
        number = operator.index(number)
        if not -len(self) <= number < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        return self._clips.clip(number % len(self), self.epoch if epoch is None else epoch)


def _check_on_error(on_error: str) -> None:
    """Raise FramedexError if `on_error` is not possible for a map-style dataset."""
    if on_error == "skip":
        raise FramedexError(
            "a map-style dataset cannot skip a clip, because a DataLoader requests every clip number",
            where="on_error",
            found="skip",
            allowed="raise, replace",
            remedy="ClipLoader(dataset, on_error='skip'), or ClipStream for clips in tars",
        )
    check_choices(on_error=(on_error, ("raise", "replace")))


def checked_epoch(epoch: int) -> int:
    """Return the epoch if it is a whole number of 0 or more. Raise FramedexError otherwise."""
    if type(epoch) is not int or not 0 <= epoch < 1 << 63:
        raise FramedexError("an epoch must be a whole number of 0 or more", found=repr(epoch))
    return epoch
