"""The clips of a dataset for the browser, as ClipDataset gives them."""

from __future__ import annotations

from typing import Any

import numpy as np

from framedex.auditor.browser.address import whole_number
from framedex.auditor.browser.shown import Shown, Sound, facts_of, fitting_size
from framedex.errors import FramedexError, printable
from framedex.loader.clip_dataset import ClipDataset
from framedex.loader.contact_sheets.sheet import (
    Heading,
    clip_text,
    cost_text,
    heading_of,
    shown_columns,
    shown_frames,
    source_text,
    view_text,
)
from framedex.sharder.clips.clip import Clip
from framedex.storage.locations import Access
from framedex.storage.places import Place

COLUMNS_OF_A_CARD = 4


class Clips:
    """The clips of a dataset. A clip's key is its number. Threads may share it.

    Args:
        place: The dataset.
        access: Which sources may be read.
        longest_side: Limit of a picture's longer side, in pixels. None: pictures have their stored size.
    """

    spans = False  # whether a part can be chosen

    def __init__(self, place: Place, *, access: Access, longest_side: int | None) -> None:
        self._dataset = ClipDataset(place, root=access.root, allow_remote=access.allow_remote)
        self._longest_side = longest_side

    def heading(self) -> Heading:
        """Return the facts of the dataset. Raises FormatError."""
        return heading_of(self._dataset, None)

    def first_column(self) -> str:
        """Return the column that a filter begins with: `label`, or the first one of the user."""
        own = self._dataset.columns
        return "label" if "label" in own else own[0] if own else "uri"

    def card(self, key: Any) -> dict[str, Any]:
        """Return what the list of clips says about one. Raises FramedexError for a damaged row."""
        clip = self._clip(key)
        return {
            "key": str(key),
            "name": printable(clip.clip_id),
            "source": printable(clip.medium.name),
            "text": clip_text(clip),
            "columns": shown_columns(clip.columns)[:COLUMNS_OF_A_CARD],
            "error": None,
        }

    def describe(self, key: Any) -> dict[str, Any]:
        """Return everything about a clip but its pictures. Raises FramedexError."""
        clip = self._clip(key)
        view = [] if clip.multiview_id is None else [("view", view_text(clip))]
        facts = [*view, ("source", source_text(clip.medium)), ("clip", clip_text(clip)), ("cost", cost_text(clip))]
        return self.card(key) | {"columns": shown_columns(clip.columns), "facts": facts_of(facts)}

    def show(self, key: Any, first: int | None) -> Shown:
        """Return a clip with its pictures. `first` is for media only. Raises FramedexError."""
        number = self._number(key)
        clip = self._dataset.clip(number)
        size = fitting_size(clip.medium, len(clip.mask), self._longest_side)
        item = self._dataset.resized(size)[number]
        audio = item.get("audio")
        has_audio = "audio_rate" in item and isinstance(audio, np.ndarray) and audio.ndim == 2
        return Shown(
            clip=clip,
            pictures=item["frames"],
            frames=shown_frames(clip, item["frames"]),
            sound=Sound(samples=item["audio"], rate=int(item["audio_rate"])) if has_audio else None,
        )

    def _clip(self, key: Any) -> Clip:
        return self._dataset.clip(self._number(key))

    def _number(self, key: Any) -> int:
        """Return the number of a clip. Raises FramedexError if there is no such clip."""
        number = whole_number(str(key))
        if number is None or number >= len(self._dataset):
            raise FramedexError("there is no such clip", found=str(key)[:80], allowed=f"0 to {len(self._dataset) - 1}")
        return number
