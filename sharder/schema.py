"""CONTRACT: the tables of a dataset's manifest. docs/format.md is generated from these schemas."""

import re
from typing import Literal

import pyarrow as pa

from framedex.core.column_rules import Key
from framedex.files.changes import LOG_NAME
from framedex.files.parquet_parts import PART_NAME
from framedex.indexer.schema import VIDEO_RULES, VIDEOS
from framedex.records import clip
from framedex.records.clip import FIELDS as IN_FIELDS
from framedex.records.columns import INT32, field_of, required, rules_of, schema_of
from framedex.records.medium import MEDIA as IN_MEDIA
from framedex.records.medium import MediumRecord

FORMAT = "framedex-dataset"
SCHEMA_VERSION = "3.10"
# Since this version, all media of a dataset are proven, except if the codec needs no proof (`indexer.schema.SCANNED`).
# To prove a medium, the indexer decodes frames as clips do, and compares them with a decode that begins earlier.
PROVES = (3, 6)
ROWS = (3, 10)  # since this version, parts have files from which single rows are read (`row_blocks`)
HEADER, POLICY_NAME, FAILURES_NAME = "dataset.json", "policy.yaml", "failures.parquet"
SHARDS_NAME, COLUMNS_NAME, FIELDS_NAME = "shards.parquet", "columns.parquet", "fields.parquet"
REMOVED_NAME = "removed.parquet"
CLIPS_FOLDER, RECIPES_FOLDER, MEDIA_FOLDER, SHARDS_FOLDER = "clips", "recipes", "media", "shards"
ROWS_FOLDER = "rows"
# The files and folders of a dataset. A dataset is replaced only if its folder has no other entries.
FILE_NAMES = (HEADER, POLICY_NAME, FAILURES_NAME, SHARDS_NAME, COLUMNS_NAME, FIELDS_NAME, REMOVED_NAME, LOG_NAME)
FOLDER_NAMES = (CLIPS_FOLDER, RECIPES_FOLDER, MEDIA_FOLDER, ROWS_FOLDER, SHARDS_FOLDER)
# Clips that will be appended are written into these folders of a dataset on a disk, first the second one.
APPENDED_FOLDERS = (".appended", ".appended.unfinished")
CLAIM_NAME = "unfinished.json"  # the object that keeps other runs away from a dataset in object storage
# The name of a tar or its index. A tar that was written anew has the generation of the dataset as its last number.
TAR_NAME = re.compile(r"([a-z]+-(\d{6,}))(?:-\d+)?\.(?:tar|idx)")
# The names of the files of a dataset. Only these files are removed when a dataset is replaced or changed.
OWN_NAME = re.compile(
    rf"(?:{CLIPS_FOLDER}|{RECIPES_FOLDER}|{MEDIA_FOLDER})/{PART_NAME.pattern}|{SHARDS_FOLDER}/{TAR_NAME.pattern}"
    rf"|{ROWS_FOLDER}/(?:{CLIPS_FOLDER}|{MEDIA_FOLDER})-\d{{6,}}\.rows"
    rf"|(?:failures|shards|columns|fields|removed)-\d{{6,}}\.parquet"
    rf"|{'|'.join(map(re.escape, (*FILE_NAMES, CLAIM_NAME)))}"
)

MAX_VIEWS = 256
Missing = Literal["error", "skip", "mask"]  # treatment of a clip if a view has no frames for it

# The columns of `clips`. The user's columns follow after them, with their original types.
CLIPS = schema_of(clip.ClipRecord)
RECIPES = pa.schema(
    [
        required("clip_id", pa.string(), "As in `clips`; row n of a recipes part belongs to row n of the clips part."),
        *schema_of(clip.Recipe),
        *schema_of(clip.AudioRecipe, prefix=clip.AUDIO),
        schema_of(clip.AudioFile, prefix=clip.AUDIO).field("audio_present"),
        *schema_of(clip.ClipAudioPlan, prefix=clip.AUDIO),
    ]
)

MEDIA = schema_of(MediumRecord, also_in=IN_MEDIA)

FAILURES, SHARDS, REMOVED = schema_of(clip.Failure), schema_of(clip.Shard), schema_of(clip.Removed)

# Columns of `fields` that come from the clip's medium.
MEDIUM_FIELDS = ("media_id", "uri", "member", "kind", "codec", "width", "height", "rotation_degrees", "color_transfer")
# The table `fields` (since version 3.5) has one row per clip and large row groups, so that a column of all clips can be
# read at once.
FIELDS = pa.schema(
    [
        *schema_of(clip.ClipRecord, also_in=IN_FIELDS),
        required("wanted_frames", pa.int32(), "How many frames the clip has, padding included.", unit="frames"),
        field_of("begin_seconds", pa.float64(), "Least of `clips.seconds`; null where the clip has no time.", unit="s"),
        field_of("end_seconds", pa.float64(), "Greatest of `clips.seconds`.", unit="s"),
        *(VIDEOS.field(name) for name in MEDIUM_FIELDS),
        field_of("duration_seconds", pa.float64(), "Duration of the medium.", unit="s"),
    ]
)

HEADER_KEYS = {
    "root": Key(kind=str),
    "images": Key(kind=dict, needed=False),
    "encode": Key(kind=dict, needed=False),
    "index_ffmpeg": Key(kind=list, element=str, needed=False),
    "views": Key(kind=dict, needed=False),
    "labels": Key(kind=dict, needed=False),
    "columns": Key(kind=list, element=str, needed=False, any_text=True),
    "job": Key(kind=str, needed=False),
    "clips_per_part": Key(kind=list, element=int, most=INT32, needed=False),
    "media_per_part": Key(kind=list, element=int, most=INT32, needed=False),
    "generation": Key(kind=int, most=INT32, needed=False),
    "parts": Key(kind=dict, needed=False),
    "files": Key(kind=dict, needed=False),
    "gone": Key(kind=dict, needed=False),
    "before": Key(kind=list, element=dict, needed=False),
}

MEDIA_RULES = {name: rule for name, rule in VIDEO_RULES.items() if name in MEDIA.names}
SHARD_RULES = rules_of(clip.Shard)
SHARD_NAME = re.compile(rf"{SHARDS_FOLDER}/[^/\0]+\.tar")

# To read one clip, a reader fetches a block of rows of `clips`, and one of `media`. A block has at most BLOCK_BYTES on
# average, but a number of rows within BLOCK_ROWS (docs/decisions/0005-rows-at-random.md).
CLIPS_PER_PART, BLOCK_BYTES, BLOCK_ROWS = 4096, 128 << 10, (1, 128)
DELTA_COLUMNS = (
    "range_offset",
    "range_length",
    "packet_size",
    "packet_rank",
    "packet_order",
    "run_first",
    "run_state",
    "position",
    "audio_range_offset",
    "audio_range_length",
    "audio_packet_size",
    "audio_packet_sample",
)
