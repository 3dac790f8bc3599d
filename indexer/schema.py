"""CONTRACT: the tables of an index. docs/format.md is generated from the schemas below.

Also the names of an index's files, and the content of its header.
"""

from typing import Any

import pyarrow as pa

from framedex.core.column_rules import Key, check_header
from framedex.files.headers import check_format
from framedex.records.columns import field_of, required, rules_of, schema_of
from framedex.records.medium import AUDIO, AudioPacketRecord, MediumRecord, PacketRecord
from framedex.storage.places import Place

FORMAT = "framedex-index"
SCHEMA_VERSION = "3.8"  # readers accept every minor version of their major version

# The error kind of files without a video stream. Such a file is refused if a search found it, and else fails.
NO_VIDEO = "no_video"
# The error kind of videos that an earlier version indexed without the proof that their codec now needs (`SCANNED`).
UNPROVEN = "unproven"
PROVES = (3, 8)  # from this version of the format on, such videos have a proof, and the number of frames it counted
# Codecs that cannot be written into tiny files: Matroska does not record the memory layout of raw samples, and
# libavformat writes RealVideo only into RealMedia.
IN_NO_FILE = frozenset({"rawvideo", "rv10", "rv20", "rv30", "rv40"})
# Codecs whose packets FFmpeg decodes from their own bytes alone, even if they are cut off or damaged.
INTRA = frozenset({
    "asv1", "asv2", "dpx", "dvvideo", "r210", "sgi", "utvideo", "v210", "y41p", "yuv4", "zlib",
})  # fmt: skip
# Codecs whose packets are parsed. Videos of all others are decoded completely, and decoding is tried from their random
# access points (`proof`).
SCANNED = INTRA | {"h264", "hevc", "av1", "vp9", "vp8"}


VIDEOS = schema_of(MediumRecord)
VIDEO_RULES = rules_of(MediumRecord)
FRAMES = pa.schema(
    [
        required(
            "media_id", pa.string(), "As in `videos`. Row n of a frames part belongs to row n of the videos part."
        ),
        *schema_of(PacketRecord),
        *schema_of(AudioPacketRecord, prefix=AUDIO),
    ]
)

FILE_ROW = "file_row"

# The listing has these columns, and after them the user's columns with their own types.
LISTING = pa.schema(
    [
        required("media_id", pa.string(), "As in `videos`."),
        required("listing_row", pa.int32(), "Number of this row among the rows that list the same medium."),
        required("listed_uri", pa.string(), "The medium's uri as the listing spells it."),
        field_of(
            FILE_ROW,
            pa.int32(),
            "Number of the row in the user's listing, from 0, without the header; null if no listing names the medium. "
            "From version 3.7 on.",
        ),
    ]
)

# Names of user columns that framedex interprets.
FRAME_TABLE = "frame_table"  # a Parquet file with a row for each frame of the row's stretch, relative to the root
FRAME_ROW = "frame_row"  # the row of the stretch's first frame
LISTING_PROBLEM = "listing_problem"  # why policies make no clips of the row; empty if they do

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
REMEDY = "the index is damaged: index again into a new folder, or fetch it again from where it came"


def read_header(path: Place) -> dict[str, Any]:
    """Return the content of index.json. Raises FormatError."""
    header = check_format(path, file_name=HEADER, expected=FORMAT, version=SCHEMA_VERSION, what="a framedex index")
    check_header(header, HEADER_KEYS, str(path / HEADER), REMEDY)
    return {"generation": 0} | header
