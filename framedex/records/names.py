"""Names that clips have, which no column of a user may have."""

from __future__ import annotations

from framedex.records.clip import SAMPLE, ClipRecord
from framedex.records.columns import columns_of, keys_of
from framedex.records.medium import MediumRecord

# Keys of items that do not come from columns.
PICTURE_KEYS = frozenset({"frames", "movie", "positions"})
AUDIO_KEYS = frozenset({"audio", "audio_mask", "audio_rate"})
ITEM_KEYS = keys_of(ClipRecord).keys() | keys_of(MediumRecord).keys() | PICTURE_KEYS | AUDIO_KEYS
CLIP_NAMES = columns_of(ClipRecord).keys() | ITEM_KEYS
# Keys of the JSON of a packed clip (docs/shards.md).
SAMPLE_KEYS = {name for name, one in columns_of(ClipRecord).items() if SAMPLE in one.also_in} | {
    "uri",
    "member",
    "codec",
    "width",
    "height",
    "rotation_degrees",
    "time_base",
    "frame_rate",
    "frames_in_file",
    "seconds_in_file",
    "unshown_in_file",
    "timestamps",
    "images",
    "audio",
    "framedex",
}
