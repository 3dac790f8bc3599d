"""framedex: frame-exact clips out of video, planned from an index, decoded from byte ranges."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from framedex.core.version import __version__

if TYPE_CHECKING:
    from framedex.indexer.parts.index import Index as Index
    from framedex.loader.clip_dataset import ClipDataset as ClipDataset
    from framedex.loader.clip_loader import ClipLoader as ClipLoader
    from framedex.loader.dali.pipelines import clip_pipeline as clip_pipeline
    from framedex.loader.order.sampler import ClipSampler as ClipSampler
    from framedex.storage.cache import DiskCache as DiskCache

_PUBLIC = {
    "ClipDataset": "framedex.loader.clip_dataset",
    "ClipLoader": "framedex.loader.clip_loader",
    "ClipSampler": "framedex.loader.order.sampler",
    "DiskCache": "framedex.storage.cache",
    "Index": "framedex.indexer.parts.index",
    "clip_pipeline": "framedex.loader.dali.pipelines",
}

__all__ = ["ClipDataset", "ClipLoader", "ClipSampler", "DiskCache", "Index", "__version__", "clip_pipeline"]


def __getattr__(name: str) -> object:
    """Import public names when they are first used, so that `framedex index` never loads torch."""
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'framedex' has no attribute {name!r}")
