"""ClipLoader's arguments as checked records: how clips are decoded, and what batches are made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from framedex.core.hints import check_choices
from framedex.loader.arguments import Decode, Device, Last, Output, check_counts
from framedex.loader.batches.collate import COLLATES, Collate
from framedex.loader.batches.faults import ON_ERROR, OnError
from framedex.loader.batches.rotation import Rotation
from framedex.loader.pixels.options import PixelOptions
from framedex.loader.routing.colour import Colour
from framedex.loader.routing.share import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """How clips are decoded.

    The fields have the names of ClipLoader's arguments, which explains them.

    Raises:
        FramedexError: a value is not allowed.
    """

    device: Device
    device_id: int
    decode: Decode
    cpu_share: Share
    colour: Colour
    rotation: Rotation
    pixels: PixelOptions
    num_workers: int

    def __post_init__(self) -> None:
        check_choices(
            decode=(self.decode, get_args(Decode)),
            colour=(self.colour, get_args(Colour)),
            rotation=(self.rotation, get_args(Rotation)),
        )
        check_counts(num_workers=(self.num_workers, 0), threads=(self.pixels.threads, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What batches are made of clips.

    The fields have the names of ClipLoader's arguments, which explains them.

    Raises:
        FramedexError: a value is not allowed.
    """

    batch_size: int
    prefetch: int
    last: Last
    collate: Collate
    on_error: OnError
    output: Output

    def __post_init__(self) -> None:
        check_choices(
            last=(self.last, get_args(Last)),
            collate=(self.collate, COLLATES),
            on_error=(self.on_error, ON_ERROR),
            output=(self.output, get_args(Output)),
        )
        check_counts(batch_size=(self.batch_size, 1), prefetch=(self.prefetch, 0))

    def ahead(self, decoding: DecodeOptions) -> int:
        """Return how many batches begin before the one that is delivered.

        Two clips per worker are in progress. If a GPU decodes beside workers, there are six, because a clip goes to a
        worker only if the GPU has enough other clips to decode in the meantime. Whole frames of the stored size would
        take too much of the GPU's memory for that.
        """
        if decoding.device == "cpu" and not decoding.num_workers:
            return 0
        is_small = decoding.pixels.framing.scales or decoding.pixels.framing.crop is not None
        shared = decoding.device == "gpu" and decoding.decode == "auto" and is_small
        clips = 6 if shared else 2
        return max(self.prefetch, -(-clips * decoding.num_workers // self.batch_size))
