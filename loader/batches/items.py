"""What the loader needs from a dataset, and the part of an item that describes its frames."""

from __future__ import annotations

from typing import Any, Protocol

from framedex.sharder.clips.clip import Clip, MultiView
from framedex.sharder.reading.sources import SourceFiles


class ClipSource(Protocol):
    """Clips by number, as in ClipDataset.

    Attributes:
        sources: where their packets are read from.
    """

    sources: SourceFiles

    def __len__(self) -> int: ...

    def clip(self, number: int) -> Clip:
        """Return clip `number` as the manifest or the plan describes it."""
        ...

    def beside(self, clip: Clip) -> dict[str, Any]:
        """Return the entries of an item that are read beside its frames."""
        ...


def describe(clip: Clip) -> dict[str, Any]:
    """Return the part of an item that describes its frames."""
    return {
        "pts": clip.pts.copy(),  # Arrow's memory is read-only, which torch warns about
        "seconds": clip.seconds.copy(),
        "frame_index": clip.frame_index,
        "mask": clip.mask,
        "clip_id": clip.clip_id,
        "uri": clip.medium.uri,
        "rotation_degrees": clip.medium.rotation_degrees,
        "color_transfer": clip.medium.color_transfer,
        **_of_view(clip.multiview),
        **clip.columns,
    }


def _of_view(multiview: MultiView | None) -> dict[str, Any]:
    if multiview is None:
        return {}
    return {
        "multiview_id": multiview.multiview_id,
        "view_name": multiview.view,
        "view_away_seconds": multiview.away_seconds.copy(),
    }
