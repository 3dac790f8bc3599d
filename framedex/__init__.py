"""framedex: frame-exact clips out of video, planned on paper, decoded from byte ranges."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from framedex.version import __version__

if TYPE_CHECKING:
    from framedex.indexer.index import Index as Index
    from framedex.loader.clip_loader import ClipLoader as ClipLoader
    from framedex.loader.dali import clip_pipeline as clip_pipeline
    from framedex.loader.dataset import ClipDataset as ClipDataset
    from framedex.loader.sampler import ClipSampler as ClipSampler
    from framedex.storage.cache import DiskCache as DiskCache

_PUBLIC = {
    "ClipDataset": "framedex.loader.dataset",
    "ClipLoader": "framedex.loader.clip_loader",
    "ClipSampler": "framedex.loader.sampler",
    "DiskCache": "framedex.storage.cache",
    "Index": "framedex.indexer.index",
    "clip_pipeline": "framedex.loader.dali",
}

__all__ = ["ClipDataset", "ClipLoader", "ClipSampler", "DiskCache", "Index", "__version__", "clip_pipeline"]


def __getattr__(name: str) -> object:
    """Import public names when they are first used, so that `framedex index` never loads torch."""
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'framedex' has no attribute {name!r}")
