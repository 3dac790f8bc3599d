"""What the gate to NVDEC says of clips, and drivers that say what they decode."""

from __future__ import annotations

from typing import Any

from framedex import ClipDataset
from framedex.loader.routing import movie, routes
from framedex.loader.routing.driver import DecoderLimits, DriverSupport, driver_support
from tests.support.reading import encoded_clip

Kind = tuple[str, int, int]  # codec, chroma format, bits


def gpu_obstacles(dataset: ClipDataset, **how: Any) -> list[str | None]:
    """Return for each clip of a dataset why NVDEC does not decode it; None if it does.

    Args:
        how: `colour`, `caps`: see `gpu_obstacle`.
    """
    return [routes.gpu_obstacle(dataset.clip(number), **how) for number in range(len(dataset))]


def movie_for_gpu(dataset: ClipDataset, number: int) -> movie.GpuMovie | None:
    """Return what DALI gets for a clip of a dataset."""
    clip = dataset.clip(number)
    return movie.gpu_movie(clip, encoded_clip(dataset, clip))


def first_driver() -> DriverSupport:
    """Return what the driver of the first GPU says that it decodes."""
    return driver_support(0)


def driver(*kinds: Kind, reason: str | None = None, **limits: int) -> DriverSupport:
    """Return the answer of a driver that decodes these kinds of streams.

    Args:
        reason: why it decodes none.
        limits: those of every decoder that are not the ones below.
    """
    usual = {"least_width": 48, "least_height": 16, "most_width": 4096, "most_height": 4096}
    decoder = DecoderLimits(**usual | {"most_macroblocks": 1 << 16, "engines": 1} | limits)
    return DriverSupport(limits=dict.fromkeys(kinds, decoder), reason=reason)
