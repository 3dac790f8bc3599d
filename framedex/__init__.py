"""framedex: frame-exact video clips, planned from an index and decoded from byte ranges."""

import importlib
from typing import TYPE_CHECKING

from framedex.core.version import __version__

if TYPE_CHECKING:
    from framedex.auditor.audit import audit as audit
    from framedex.auditor.audit import query as query
    from framedex.errors import FramedexError as FramedexError
    from framedex.indexer.index import index as index
    from framedex.indexer.parts.index import Index as Index
    from framedex.loader.clip_dataset import ClipDataset as ClipDataset
    from framedex.loader.clip_loader import ClipLoader as ClipLoader
    from framedex.loader.clip_stream import ClipStream as ClipStream
    from framedex.loader.concat_clips import ConcatClips as ConcatClips
    from framedex.loader.dali.pipelines import clip_pipeline as clip_pipeline
    from framedex.loader.multi_view_dataset import MultiViewDataset as MultiViewDataset
    from framedex.loader.order.bucket_sampler import BucketSampler as BucketSampler
    from framedex.loader.order.mixture_sampler import MixtureSampler as MixtureSampler
    from framedex.loader.order.order import visual_tokens as visual_tokens
    from framedex.loader.order.sampler import ClipSampler as ClipSampler
    from framedex.loader.pixels.framing import Framing as Framing
    from framedex.loader.pixels.framing import SmartResize as SmartResize
    from framedex.loader.prompts import prompt_text as prompt_text
    from framedex.loader.streams.reading import decode_sample as decode_sample
    from framedex.loader.verify import verify as verify
    from framedex.sharder.clips.clip import AudioOptions as AudioOptions
    from framedex.sharder.packing.pack_options import EncodeOptions as EncodeOptions
    from framedex.sharder.packing.pack_options import ImageOptions as ImageOptions
    from framedex.sharder.shard import shard as shard
    from framedex.storage.reader import DiskCache as DiskCache

# The module of each public name. Importing all these modules at once would load torch and FFmpeg for every command.
_PUBLIC = {
    "AudioOptions": "framedex.sharder.clips.clip",
    "BucketSampler": "framedex.loader.order.bucket_sampler",
    "ClipDataset": "framedex.loader.clip_dataset",
    "ClipLoader": "framedex.loader.clip_loader",
    "ClipSampler": "framedex.loader.order.sampler",
    "ClipStream": "framedex.loader.clip_stream",
    "ConcatClips": "framedex.loader.concat_clips",
    "DiskCache": "framedex.storage.reader",
    "EncodeOptions": "framedex.sharder.packing.pack_options",
    "FramedexError": "framedex.errors",
    "Framing": "framedex.loader.pixels.framing",
    "ImageOptions": "framedex.sharder.packing.pack_options",
    "Index": "framedex.indexer.parts.index",
    "MixtureSampler": "framedex.loader.order.mixture_sampler",
    "MultiViewDataset": "framedex.loader.multi_view_dataset",
    "SmartResize": "framedex.loader.pixels.framing",
    "audit": "framedex.auditor.audit",
    "clip_pipeline": "framedex.loader.dali.pipelines",
    "decode_sample": "framedex.loader.streams.reading",
    "index": "framedex.indexer.index",
    "prompt_text": "framedex.loader.prompts",
    "query": "framedex.auditor.audit",
    "shard": "framedex.sharder.shard",
    "verify": "framedex.loader.verify",
    "visual_tokens": "framedex.loader.order.order",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `framedex index` never loads torch."""
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'framedex' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all public names, including those that have not been imported yet."""
    return sorted(__all__)
