"""The header of a dataset: reading and checking it."""

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from framedex.core.column_rules import check_header
from framedex.core.limits import usual_clip_bytes
from framedex.errors import FormatError, PolicyError
from framedex.files.headers import check_format, is_since
from framedex.records.clip import ClipRecord
from framedex.records.columns import names_in
from framedex.sharder import schema
from framedex.sharder.clips.labels import Labels, stored_labels
from framedex.sharder.packing.pack_options import EncodeOptions, ImageOptions
from framedex.storage.places import Place

REMEDY = "the dataset is damaged: shard again, or fetch it again from where it came"
ORDER_BYTES = 48  # the memory per clip of an epoch's order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetHeader:
    """The contents of a dataset's header.

    Attributes:
        root: The folder of the sources.
        images: The options for stored frames (`--pack images`), or None.
        encode: The options for encoded clips (`--encode`), or None.
        ffmpeg: The versions of FFmpeg's libraries that made the index.
        labels: The column of labels and the numbers of its values, or None.
        views: The names of the views, and the treatment of clips that lack one. None if each clip stands alone.
        own: framedex's own columns of `clips`.
        filed: The user's columns that have a file of all clips. None for a dataset that is older than these files: its
            columns are read from the parts, which takes some seconds for a million clips.
        first: The number of the first row of each part and then the number of all rows, by table.
        proves: Whether videos of codecs that are not parsed were proven when they were indexed.
    """

    root: str
    images: ImageOptions | None
    encode: EncodeOptions | None
    ffmpeg: list[str]
    labels: Labels | None
    views: tuple[list[str], schema.Missing] | None
    own: list[str]
    filed: list[str] | None
    first: dict[str, NDArray[np.int64]]
    proves: bool


def read_header(path: Place) -> DatasetHeader:
    """Read the header of a dataset. Raises FormatError if it is missing, damaged or of another format."""
    stored = check_format(
        path, file_name=schema.HEADER, expected=schema.FORMAT, version=schema.SCHEMA_VERSION, what="a framedex dataset"
    )
    check_header(stored, schema.HEADER_KEYS, str(path / schema.HEADER), REMEDY)
    try:
        clips, media = (np.cumsum([0, *stored[key]]) for key in ("clips_per_part", "media_per_part"))
        first = {schema.CLIPS_FOLDER: clips, schema.MEDIA_FOLDER: media, schema.RECIPES_FOLDER: clips}
        most = usual_clip_bytes() // ORDER_BYTES
        for folder, rows in first.items():
            if rows[-1] > most:
                raise ValueError(f"{rows[-1]:,} rows of {folder}; {most:,} are allowed")
        return DatasetHeader(
            root=stored["root"],
            images=None if (images := stored.get("images")) is None else ImageOptions(**images | _limits(images)),
            encode=_encode(stored.get("encode")),
            ffmpeg=stored.get("index_ffmpeg") or [],
            labels=stored_labels(stored.get("labels")),
            views=_views(stored.get("views")),
            own=names_in(ClipRecord, stored["schema_version"]),
            filed=stored.get("columns"),
            first=first,
            proves=is_since(stored["schema_version"], schema.PROVES),
        )
    except (KeyError, TypeError, ValueError, PolicyError) as error:
        raise FormatError(f"{schema.HEADER} is damaged", where=str(path), found=repr(error)) from error


def _views(stored: dict[str, Any] | None) -> tuple[list[str], schema.Missing] | None:
    """Return the names of the views, and the treatment of clips that lack one. Raises ValueError."""
    if stored is None:
        return None
    names, missing = stored["names"], stored["missing"]
    if not all(isinstance(name, str) for name in names) or missing not in get_args(schema.Missing):
        raise ValueError(f"views {names}, missing {missing}")
    if len(names) > schema.MAX_VIEWS:
        raise ValueError(f"{len(names):,} views; {schema.MAX_VIEWS} are allowed")
    return list(names), missing


def _encode(stored: dict[str, Any] | None) -> EncodeOptions | None:
    """Return the options for encoded clips, without the name of the encoder, which readers do not need."""
    if stored is None:
        return None
    own = {name: value for name, value in stored.items() if name != "encoder"}
    return EncodeOptions(**own | _limits(stored))


def _limits(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the size of stored frames. Raises ValueError for a malformed size."""
    size = None if stored["size"] is None else tuple(stored["size"])
    sides = (*(size or ()), stored.get("short_side"), stored.get("box"))
    if any(type(side) not in (int, type(None)) for side in sides) or (size is not None and len(size) != 2):
        raise ValueError(f"frames of size {size}")
    return {"size": size}
