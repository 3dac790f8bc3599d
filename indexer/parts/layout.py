"""The files of an index: their names, and the content of the header."""

from __future__ import annotations

from typing import Any

from framedex.core.column_rules import check_header
from framedex.files.headers import check_format
from framedex.indexer.schema import FORMAT, HEADER_KEYS, SCHEMA_VERSION
from framedex.storage.places import Place

HEADER = "index.json"
LISTING_NAME = "listing.parquet"
VIDEOS_FOLDER, FRAMES_FOLDER = "videos", "frames"
REMEDY = "the index is damaged: index again into a new folder, or fetch it again from where it came"


def read_header(path: Place) -> dict[str, Any]:
    """Return the content of index.json. Raises FormatError."""
    header = check_format(path, file_name=HEADER, expected=FORMAT, version=SCHEMA_VERSION, what="a framedex index")
    check_header(header, HEADER_KEYS, str(path / HEADER), REMEDY)
    return {"generation": 0} | header
