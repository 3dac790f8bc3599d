"""ClipDataset: a map-style dataset over a manifest, for any DataLoader and Sampler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framedex.errors import FramedexError
from framedex.loader.manifest import Manifest, Root
from framedex.loader.movie import clip_movie
from framedex.sharder.clip import Clip
from framedex.sharder.clip_audio import read_audio
from framedex.sharder.decoder import Size, decode_rgb
from framedex.sharder.sources import SourceFiles

Decode = Literal["cpu", "movie"]


class ClipDataset:
    """The clips of a dataset directory by number. Map-style, picklable, spawn-safe; opening reads one small file.

    path: what `framedex shard` wrote. decode: "cpu" decodes in `__getitem__`; "movie" leaves that to the caller and
    gives the clip as a tiny MP4 instead, for a decoder or a DALI pipeline of your own. size: (height, width) to scale
    to. threads: decoder threads a clip; 1 is right under DataLoader workers. root: where the sources lie now, if they
    moved (a folder in place of the recorded root, or {old prefix: new prefix}). where: only the clips whose columns have
    these values, such as {"split": "train"}, numbered from 0.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        decode: Decode = "cpu",
        size: Size | None = None,
        threads: int = 1,
        root: Root | None = None,
        where: Mapping[str, object] | None = None,
    ) -> None:
        if decode not in ("cpu", "movie"):
            raise FramedexError("unknown decode", found=repr(decode), allowed="'cpu', 'movie'")
        if size is not None and (
            not isinstance(size, tuple | list)
            or len(size) != 2
            or any(type(side) is not int or side < 1 for side in size)
        ):
            raise FramedexError("size is (height, width), whole numbers above zero", found=repr(size))
        self.manifest = Manifest(path, root=root)
        self._numbers = None if where is None else self.manifest.where(where)
        self.decode: Decode = decode
        self.size = size
        self.threads = threads
        self.sources = SourceFiles()

    def __len__(self) -> int:
        return len(self.manifest) if self._numbers is None else len(self._numbers)

    def places(self, kind: Literal["tar", "medium"]) -> NDArray[np.int64]:
        """Return int64 [clips]: the number of the tar or medium that each clip is read from.

        Reads a column of the manifest, about 3 s for a million clips. Raises FramedexError where there are no tars.
        """
        rows = self.manifest.tar_rows() if kind == "tar" else self.manifest.media_rows()
        return rows if self._numbers is None else rows[self._numbers]

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return clip `number` (negative ones count from the end) as a dict.

        frames: uint8 [F, H, W, 3] RGB, zeros where padded (decode="cpu"); or movie: uint8 [bytes], and positions:
        int64 [F], each wanted frame's number in that movie, -1 where padded (decode="movie"). pts: int64 [F], the
        least int64 where padded. seconds: float64 [F], NaN where padded. frame_index: int64 [F], -1 where padded.
        mask: bool [F], False where padded. clip_id, uri, and the user's columns. Of a dataset with audio, audio: float32
        [channels, samples], full scale 1; audio_mask: bool [samples], False where silence was filled in; audio_rate: Hz.

        Raises IndexError, StaleError for a source that changed, DecodeError for one that does not decode.
        """
        clip = self.clip(number)
        encoded = self.sources.read(clip.source, clip.recipe, clip.medium.states)
        if self.decode == "movie":
            picture: dict[str, Any] = {
                "movie": clip_movie(clip, encoded),
                "positions": clip.recipe.position.astype(np.int64),
            }
        else:
            picture = {"frames": decode_rgb(clip, encoded, size=self.size, threads=self.threads)}
        return picture | self.sound(clip) | describe(clip)

    def sound(self, clip: Clip) -> dict[str, Any]:
        """Return the part of an item that is its audio; nothing where the dataset has none."""
        audio = read_audio(clip, self.sources)
        if audio is None:
            return {}
        return {"audio": audio.samples, "audio_mask": audio.mask, "audio_rate": audio.rate}

    def clip(self, number: int) -> Clip:
        """Return what the manifest says of clip `number`, without touching its source."""
        place = number + len(self) if number < 0 else number
        if self._numbers is None:
            return self.manifest.clip(place)
        if not 0 <= place < len(self._numbers):
            raise IndexError(f"clip {number} of {len(self._numbers)}")
        return self.manifest.clip(int(self._numbers[place]))


def describe(clip: Clip) -> dict[str, Any]:
    """Return the part of an item that says which frames it has."""
    return {
        "pts": clip.pts.copy(),  # Arrow's memory is read-only, which torch warns about
        "seconds": clip.seconds.copy(),
        "frame_index": clip.frame_index,
        "mask": clip.mask,
        "clip_id": clip.clip_id,
        "uri": clip.medium.uri,
        **clip.columns,
    }
