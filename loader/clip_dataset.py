"""ClipDataset: a map-style dataset over a manifest, or over an index and a policy, for any DataLoader and Sampler."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from framedex.core.tallies import counted
from framedex.errors import FramedexError
from framedex.loader.batches.items import describe
from framedex.loader.dali.proxy import ProxiedDataset
from framedex.loader.dataset.bit_depth import warn_of_lost_bits
from framedex.loader.dataset.ffmpeg_version import warn_of_other_ffmpeg
from framedex.loader.dataset.manifest import Manifest
from framedex.loader.order.epoch import SharedEpoch
from framedex.loader.routing.movie import clip_movie
from framedex.sharder.clips.audio import AudioOptions
from framedex.sharder.clips.clip import Clip, Failure
from framedex.sharder.clips.medium import Root
from framedex.sharder.decoding.clip_audio import read_audio
from framedex.sharder.decoding.video import Size, decode_rgb
from framedex.sharder.planning.on_the_fly import ClipPlans
from framedex.sharder.policies.reading import PolicyFile, PolicyLike, find_policy, make_policy
from framedex.sharder.reading.sources import SourceFiles
from framedex.storage.cache import DiskCache
from framedex.storage.places import Stored, place

Decode = Literal["cpu", "movie"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemOptions:
    """What `ClipDataset.__getitem__` gives, and how it is made. The names are those of ClipDataset's arguments.

    Raises FramedexError for a value that is not allowed.
    """

    decode: Decode
    size: Size | None
    threads: int

    def __post_init__(self) -> None:
        if self.decode not in ("cpu", "movie"):
            raise FramedexError("unknown decode", found=repr(self.decode), allowed="'cpu', 'movie'")
        if self.size is not None and (
            not isinstance(self.size, tuple | list)
            or len(self.size) != 2
            or any(type(side) is not int or side < 1 for side in self.size)
        ):
            raise FramedexError("size is (height, width), whole numbers above zero", found=repr(self.size))


class ClipDataset:
    """The clips of a dataset by number. Map-style, picklable, spawn-safe; opening reads one small file.

    Args:
        path: what `framedex shard` wrote: a folder, or a uri of object storage.
        decode: "cpu" decodes in `__getitem__`; "movie" gives the clip as a tiny MP4 instead, for a decoder or a DALI pipeline
            of your own.
        size: (height, width) that frames are scaled to. None: as they are stored.
        threads: decoder threads per clip; 1 is right under DataLoader workers.
        root: where the sources lie now, if they moved: a folder in place of the recorded root, or {old prefix: new prefix}.
        where: only the clips whose columns have these values, such as {"split": "train"}, numbered from 0.
        cache: for what is read of object storage. None: no cache.

    Raises:
        FramedexError: an argument is wrong.
        FormatError: there is no dataset at `path`, or one that this version does not read.
    """

    def __init__(
        self,
        path: str | Path | Stored,
        *,
        decode: Decode = "cpu",
        size: Size | None = None,
        threads: int = 1,
        root: Root | None = None,
        where: Mapping[str, object] | None = None,
        cache: DiskCache | None = None,
    ) -> None:
        options = ItemOptions(decode=decode, size=size, threads=threads)
        manifest = Manifest(path, root=root, cache=cache)
        self._hold(manifest, where, SharedEpoch(), options, SourceFiles(cache))

    @classmethod
    def from_index(
        cls,
        index: str | Path | Stored,
        policy: PolicyLike,
        *,
        epoch: int = 0,
        seed: int | None = None,
        keep_damaged: bool = False,
        audio: bool | AudioOptions = False,
        decode: Decode = "cpu",
        size: Size | None = None,
        threads: int = 1,
        root: Root | None = None,
        where: Mapping[str, object] | None = None,
        cache: DiskCache | None = None,
    ) -> Self:
        """Return the clips that a policy finds in an index, each planned when it is asked for: no dataset on disk.

        They are those of `framedex shard INDEX --policy POLICY`, with the same numbers. What the policy draws at random is
        drawn anew in each epoch (see `set_epoch`); `epoch` is the first. policy: a YAML file, the name of a policy that comes with
        framedex ("fps"), or what a file says, as a mapping or as YAML. seed: in
        place of the policy's. keep_damaged, audio: as `--damaged keep` and `--audio`. The rest as for the class.

        Raises FormatError for what is no index, PolicyError.
        """
        options = ItemOptions(decode=decode, size=size, threads=threads)
        plans = ClipPlans(
            place(index, cache),
            _policy_file(policy, seed),
            root=root,
            keep_damaged=keep_damaged,
            audio=AudioOptions() if audio is True else audio or None,
        )
        dataset = cls.__new__(cls)
        dataset._hold(plans, where, SharedEpoch(_checked_epoch(epoch)), options, SourceFiles(cache))
        return dataset

    def _hold(
        self,
        origin: Manifest | ClipPlans,
        where: Mapping[str, object] | None,
        epoch: SharedEpoch,
        options: ItemOptions,
        sources: SourceFiles,
    ) -> None:
        warn_of_other_ffmpeg(str(origin.path), tuple(origin.ffmpeg))
        self.origin: Manifest | ClipPlans = origin
        self.sources = sources
        self._numbers = None if where is None else origin.where(where)
        self._epoch = epoch
        self._options = options

    @property
    def decode(self) -> Decode:
        """Who decodes: "cpu", or "movie", which leaves it to the caller."""
        return self._options.decode

    @property
    def size(self) -> Size | None:
        """(height, width) that frames are scaled to."""
        return self._options.size

    @property
    def threads(self) -> int:
        """Decoder threads per clip."""
        return self._options.threads

    def resized(self, size: Size | None) -> Self:
        """Return the same clips, scaled to another size. Raises FramedexError."""
        other = copy.copy(self)
        other._options = replace(self._options, size=size)
        return other

    @property
    def manifest(self) -> Manifest:
        """The manifest of a dataset on disk. Raises FramedexError where clips are planned as they are asked for."""
        if not isinstance(self.origin, Manifest):
            raise FramedexError("clips that are planned from an index have no manifest", where=str(self.origin.path))
        return self.origin

    @property
    def epoch(self) -> int:
        """The epoch whose draws are given."""
        return self._epoch.get()

    def set_epoch(self, epoch: int) -> None:
        """Draw anew what is random, here and in all copies of this dataset in other processes of this machine.

        Workers that live on from epoch to epoch see it: call it between two epochs, for clips that are being read belong
        to either. A dataset on disk is the same in all epochs. The number of clips, their order and names never change.
        """
        self._epoch.set(_checked_epoch(epoch))

    def failures(self) -> Iterator[Failure]:
        """Yield why clips that the policy of `from_index` wants are not there; nothing for a dataset on disk, which has a
        failures.parquet.
        """
        yield from () if isinstance(self.origin, Manifest) else self.origin.failures()

    @property
    def columns(self) -> list[str]:
        """The user's columns: those of a listing, of explicit clips and of a split."""
        return self.origin.columns

    def __repr__(self) -> str:
        """Return what it holds: clips, columns and where they come from."""
        columns = f", columns {', '.join(self.columns)}" if self.columns else ""
        planned = "" if isinstance(self.origin, Manifest) else ", planned from an index"
        return f"<ClipDataset {self.origin.path}: {counted(len(self), 'clip')}{columns}{planned}>"

    def __len__(self) -> int:
        return len(self.origin) if self._numbers is None else len(self._numbers)

    def places(self, kind: Literal["tar", "medium"]) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of the tar or medium that each clip is read from.

        Reads a column of the manifest, about 3 s for a million clips. Raises FramedexError where there are no tars.
        """
        rows = self.manifest.tar_rows() if kind == "tar" else self.manifest.media_rows()
        return rows if self._numbers is None else rows[self._numbers]

    def with_proxy(self, proxy: Callable[..., Any], *, device_id: int = 0) -> ProxiedDataset:
        """Return these clips for a torch DataLoader whose workers send them to a DALIServer (`proxy.ProxiedDataset`).

        proxy: the `proxy` of a server that runs `clip_pipeline` with this dataset's size.
        """
        return ProxiedDataset(self, proxy, size=self._options.size, threads=self._options.threads, device_id=device_id)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return clip `number` (negative ones count from the end) as a dict.

        frames: uint8 [F, H, W, 3] RGB, zeros where padded (decode="cpu"); or movie: uint8 [bytes], and positions:
        int64 [F], each wanted frame's number in that movie, -1 where padded (decode="movie"). pts: int64 [F], the
        least int64 where padded. seconds: float64 [F], NaN where padded. frame_index: int64 [F], -1 where padded.
        mask: bool [F], False where padded. clip_id, uri, and the user's columns. rotation_degrees: counterclockwise, what a
        player would do to the frames; color_transfer: of the medium (ISO/IEC 23091-2 table 3; 16 and 18 are HDR), which
        nothing is done about. Of a dataset with audio, audio: float32
        [channels, samples], full scale 1; audio_mask: bool [samples], False where silence was filled in; audio_rate: Hz.

        Raises IndexError, StaleError for a source that changed, DecodeError for one that does not decode; of `from_index`,
        also PolicyError for a clip that reading the source shows to be impossible, FormatError for an index that changed.
        """
        clip = self.clip(number)
        encoded = self.sources.read(clip.source, clip.recipe, clip.medium.states)
        if self._options.decode == "movie":
            picture: dict[str, Any] = {
                "movie": clip_movie(clip, encoded),
                "positions": clip.recipe.position.astype(np.int64),
            }
        else:
            picture = {"frames": decode_rgb(clip, encoded, size=self._options.size, threads=self._options.threads)}
        return picture | self.sound(clip) | describe(clip)

    def sound(self, clip: Clip) -> dict[str, Any]:
        """Return the part of an item that is its audio; nothing where the dataset has none."""
        audio = read_audio(clip, self.sources)
        if audio is None:
            return {}
        return {"audio": audio.samples, "audio_mask": audio.mask, "audio_rate": audio.rate}

    def clip(self, number: int, *, epoch: int | None = None) -> Clip:
        """Return clip `number` as the manifest or the plan says it. epoch: whose draws, if not those of `set_epoch`.

        A manifest never touches the source. A plan reads it where an index of sample tables does not know enough.
        """
        place = number + len(self) if number < 0 else number
        if not 0 <= place < len(self):
            raise IndexError(f"clip {number} of {len(self)}")
        clip = self.origin.clip(
            place if self._numbers is None else int(self._numbers[place]), self.epoch if epoch is None else epoch
        )
        if self._options.decode == "cpu":
            warn_of_lost_bits(str(self.origin.path), clip.medium)
        return clip


def _checked_epoch(epoch: int) -> int:
    if type(epoch) is not int or not 0 <= epoch < 1 << 63:
        raise FramedexError("an epoch is a whole number of 0 or more", found=repr(epoch))
    return epoch


def _policy_file(policy: PolicyLike, seed: int | None) -> PolicyFile:
    """Return what a policy says, with another seed where one is given. Raises PolicyError."""
    found = find_policy(policy)
    return found if seed is None else make_policy(found.resolved | {"seed": seed}, where="policy")
