"""What the loader needs from a dataset, and the parts of an item: pictures, audio, and what describes its frames."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np

from framedex.errors import FramedexError
from framedex.loader.pixels.options import PixelOptions
from framedex.loader.routing.movie import clip_movie
from framedex.records.columns import item_of
from framedex.sharder.clips.clip import Clip
from framedex.sharder.decoding.clip_audio import ReadsRanges, read_audio
from framedex.sharder.reading.held_bytes import HeldBytes
from framedex.sharder.reading.sources import SourceFiles

Decode = Literal["cpu", "movie"]


class ReadableClips(Protocol):
    """Clips by number, as in ClipDataset.

    Attributes:
        sources: where their packets are read from.
    """

    sources: SourceFiles

    @property
    def epoch(self) -> int:
        """The epoch whose random draws are used."""
        ...

    def __len__(self) -> int: ...

    def clip(self, number: int) -> Clip:
        """Return clip `number` as the manifest or the plan describes it."""
        ...

    def fit_remedy(self, error: FramedexError, number: int) -> None:
        """Change the remedy of a clip's error so that it fits the way in which the dataset was made."""
        ...

    def beside(self, clip: Clip) -> dict[str, Any]:
        """Return the entries of an item that are read beside its frames."""
        ...


def picture(
    clip: Clip, sources: SourceFiles | HeldBytes, *, decode: Decode, pixels: PixelOptions, epoch: int
) -> dict[str, Any]:
    """Return the part of an item that shows its frames, as `ClipDataset.__getitem__` describes it.

    Raises:
        StaleError: the clip's source is missing or changed.
        DecodeError: the clip does not decode, or would take too much memory, which is known before it is read.
        FramedexError: its pictures cannot be framed as `pixels` says, or the transform fails.
    """
    if decode == "movie":
        pixels.check_memory(clip, None)
        encoded = sources.read(clip)
        return {"movie": clip_movie(clip, encoded), "positions": clip.recipe.position.astype(np.int64)}
    draw = pixels.draw(clip, epoch)
    cutout = pixels.cutout((clip.medium.height, clip.medium.width), len(clip.frames), draw)
    pixels.check_memory(clip, cutout)
    encoded = sources.read(clip)
    return {"frames": pixels.finished(pixels.decoded(clip, encoded, cutout), draw)}


def sound(clip: Clip, sources: ReadsRanges) -> dict[str, Any]:
    """Return the part of an item that is its audio; empty if the dataset has none. Raises StaleError, DecodeError."""
    audio = read_audio(clip, sources)
    if audio is None:
        return {}
    return {"audio": audio.samples, "audio_mask": audio.mask, "audio_rate": audio.rate}


def describe(clip: Clip) -> dict[str, Any]:
    """Return the part of an item that describes its frames."""
    # Arrow's memory is read-only, which torch warns about.
    own = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in item_of(clip).items()}
    return own | item_of(clip.medium) | clip.columns
