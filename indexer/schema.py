"""CONTRACT: the schemas of the tables of an index, the names of its files, and the content of its header.

docs/format.md is generated from the schemas.
"""

from typing import Any

import pyarrow as pa

from framedex.core.column_rules import Key, check_header
from framedex.files.headers import check_format
from framedex.records.clip import AUDIO
from framedex.records.columns import field_of, list_of, required, rules_of, schema_of
from framedex.records.medium import AudioPacketRecord, MediumRecord, PacketRecord
from framedex.storage.places import Place

FORMAT = "framedex-index"
SCHEMA_VERSION = "3.9"  # readers accept all minor versions of the same major version

# The error kind of files without a video stream. Such a file is refused if it was found by a search of a folder or
# pattern. If the user named the file, it fails.
NO_VIDEO = "no_video"
# The error kind of videos that an earlier version of framedex indexed without a proof, and that need one now. This
# version requires a proof for all codecs that are not in `SCANNED`.
UNPROVEN = "unproven"
# From this version of the format on, each video whose codec is not in `SCANNED` has a proof, and its frames are counted
# by the proof.
PROVES = (3, 8)
# Codecs that cannot be written into tiny files (the files of `--pack clips`, one for each clip). Matroska does not
# record the memory layout of raw samples, and libavformat writes RealVideo only into RealMedia files.
IN_NO_FILE = frozenset({"rawvideo", "rv10", "rv20", "rv30", "rv40"})
# Codecs whose packets FFmpeg decodes independently of each other, even if a packet is truncated or damaged.
INTRA = frozenset({
    "asv1", "asv2", "dpx", "dvvideo", "r210", "sgi", "utvideo", "v210", "y41p", "yuv4", "zlib",
})  # fmt: skip
# Codecs whose random access points are known without decoding, because framedex parses their packets or because they
# are in `INTRA`. A video of another codec is decoded completely, and again from its random access points (`proof`).
SCANNED = INTRA | {"h264", "hevc", "av1", "vp9", "vp8"}


VIDEOS = schema_of(MediumRecord)
VIDEO_RULES = rules_of(MediumRecord)
FRAMES = pa.schema(
    [
        required(
            "media_id",
            pa.string(),
            "As in `videos`. Row n of a part of `frames` belongs to row n of the same part of `videos`.",
        ),
        *schema_of(PacketRecord),
        *schema_of(AudioPacketRecord, prefix=AUDIO),
    ]
)

FILE_ROW, NAMED_BY = "file_row", "named_by"

# The first columns of the listing. The user's columns follow, with the types that they have in the user's listing.
LISTING = pa.schema(
    [
        required("media_id", pa.string(), "As in `videos`."),
        required("listing_row", pa.int32(), "Number of this row among the rows that list the same medium, from 0."),
        required("listed_uri", pa.string(), "The medium's uri as the listing spells it."),
        field_of(
            FILE_ROW,
            pa.int32(),
            "Number of the row in the user's listing, from 0, without the header; null if no listing names the medium. "
            "From version 3.7 on.",
        ),
        field_of(
            NAMED_BY,
            list_of(pa.string()),
            "Sources that named the medium: absolute paths or uris of files, folders, lists, listings and patterns. "
            "The values of the user's columns come from the first one. Null if only runs of an earlier version named "
            "the medium. From version 3.9 on.",
        ),
    ]
)

# Names of user columns that framedex interprets. A stretch is the part of a medium to which a row of the listing
# applies.
FRAME_TABLE = "frame_table"  # path, relative to the root, of a Parquet file with one row per frame of the stretch
FRAME_ROW = "frame_row"  # number of the row of `frame_table` for the first frame of the stretch
LISTING_PROBLEM = "listing_problem"  # reason why no clips are made of the row; empty if clips are made of it

HEADER_KEYS = {
    "root": Key(kind=str),
    "generation": Key(kind=int, needed=False),
    "ffmpeg": Key(kind=list, element=str, needed=False),
}

DELTA_COLUMNS = ("pts", "gap", "size", "flags", "start_state", "audio_sample", "audio_gap", "audio_size")
FRAMES_PER_ROW_GROUP = 100_000


HEADER = "index.json"
LISTING_NAME = "listing.parquet"
VIDEOS_FOLDER, FRAMES_FOLDER = "videos", "frames"
REMEDY = "the index is damaged: write a new index into a new folder, or copy the index again from its origin"


def read_header(path: Place) -> dict[str, Any]:
    """Return the content of index.json. Raises FormatError."""
    header = check_format(path, file_name=HEADER, expected=FORMAT, version=SCHEMA_VERSION, what="a framedex index")
    check_header(header, HEADER_KEYS, str(path / HEADER), REMEDY)
    return {"generation": 0} | header
