"""Decodes a sample of a packed dataset's tar by itself: for a webdataset pipeline of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import orjson

from framedex.errors import DecodeError, FormatError, FramedexError, StaleError
from framedex.loader.batches.chosen_clips import PixelArguments, check_arguments
from framedex.loader.batches.fetch import describe, picture, sound
from framedex.loader.pixels.options import PixelOptions
from framedex.sharder.packing.sample_recipes import REMEDY, SampleClip, sample_clip
from framedex.sharder.reading.sources import HeldBytes

JSON = "json"


def decode_sample(
    sample: Mapping[str, Any],
    *,
    seed: int = 0,
    epoch: int = 0,
    **pixels: Unpack[PixelArguments],
) -> dict[str, Any]:
    """Return the clip of a sample as a dict, decoded from the sample's own files.

    For a pipeline of webdataset: `webdataset.WebDataset(urls).map(framedex.decode_sample)`. Frames are those of
    `ClipDataset`, by the same decoders. The user's columns have the types that JSON has.

    Args:
        sample: the files of a sample as bytes, by their names without the key, as webdataset gives them before any
            `decode`. `__key__` and `__url__` name the sample in messages.
        seed: as for `ClipDataset`.
        epoch: the epoch for which `framing` and `transform` draw. Every epoch needs a pipeline with its number.
        pixels: `size`, `framing`, `layout`, `dtype`, `transform`, `threads` and `clip_bytes`, as for `ClipDataset`. In
            a pipeline, use `functools.partial(framedex.decode_sample, size=(224, 224))`.

    Returns:
        A dict as `ClipDataset.__getitem__` describes it, with `frames`.

    Raises:
        FormatError: the sample was not packed by framedex, is of another version, lacks a file or has a damaged JSON.
        DecodeError: a file is damaged.
        FramedexError: an option is not allowed, or the clip's pictures cannot be framed as `framing` says.
        TransformError: the transform fails.
    """
    check_arguments(pixels, PixelArguments, "decode_sample")
    how = PixelOptions.of(seed=seed, **pixels)
    where = _where(sample)
    files = {name: content for name, content in sample.items() if not name.startswith("__")}
    found = sample_clip(_json(files, where), _sizes(files), where)
    held = HeldBytes(first_byte=0, content=_joined(found, files))
    clip = found.clip
    try:
        shown = picture(clip, held, decode="cpu", pixels=how, epoch=epoch)
        return shown | sound(clip, held) | describe(clip)
    except StaleError as error:
        raise DecodeError(
            "the sample's files are not those that were packed", where=where, found=error.found, remedy=REMEDY
        ) from error


def _where(sample: object) -> str:
    """Return the name of a sample in messages."""
    if not isinstance(sample, Mapping):
        raise FramedexError(
            "a sample is a dict of files, as webdataset gives it", found=type(sample).__name__, allowed="a dict"
        )
    return f"{sample.get('__url__', 'sample')}, {sample.get('__key__', 'no key')}"


def _json(files: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the sample's JSON, parsed."""
    content = files.get(JSON)
    if content is None:
        raise FormatError(
            "the sample has no JSON",
            where=where,
            found=", ".join(files) or "no files",
            allowed="KEY.json",
            remedy=REMEDY,
        )
    if isinstance(content, Mapping):  # a step of the pipeline parsed it
        return content
    try:
        parsed = orjson.loads(content)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise FormatError("the sample's JSON is damaged", where=where, found=error, remedy=REMEDY) from error
    if not isinstance(parsed, dict):
        raise FormatError("the sample's JSON is damaged", where=where, found=type(parsed).__name__, remedy=REMEDY)
    return parsed


def _sizes(files: Mapping[str, Any]) -> dict[str, int]:
    return {name: len(content) for name, content in files.items() if isinstance(content, bytes)}


def _joined(found: SampleClip, files: Mapping[str, Any]) -> Any:
    """Return uint8 [bytes]: the sample's files, joined."""
    return np.frombuffer(b"".join(files[name] for name in found.files), np.uint8)
