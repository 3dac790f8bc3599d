"""Checks that the columns of a usable row of `videos`, or of a row of `frames`, agree with each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.core.column_rules import RowAt
from framedex.indexer.timeline import START
from framedex.records.medium import MOST_PIXELS

Row = Mapping[str, Any]

PER_PACKET = ("gap", "size", "flags", "slots", "md5", "path", "crc32")


def check_video(row: Row, at: RowAt) -> None:
    """Check that the columns of a usable row of `videos`, or of `media`, agree. Raises FormatError."""
    if row["width"] * row["height"] > MOST_PIXELS:
        raise at.wrong("width", f"{row['width']} × {row['height']} pixels", f"up to {MOST_PIXELS:,} in all")
    if not row["states"] or None in row["states"]:
        raise at.wrong("states", row["states"], "one or more, of which the first is empty")
    if row["audio_stream_index"] is not None and row["audio_problem"] is None:
        for name in (
            "audio_codec",
            "audio_rate",
            "audio_channels",
            "audio_layout",
            "audio_first_sample",
            "audio_end_sample",
        ):
            if row[name] is None:
                raise at.wrong(name, "null", "a value, as its medium has audio")
        if row["audio_end_sample"] < row["audio_first_sample"]:
            raise at.unlike("audio_end_sample", "audio_first_sample", str(row["audio_end_sample"]))


def check_packets(row: Row, at: RowAt) -> None:
    """Check the lists in a row of `frames`.

    Timestamps cannot be checked against anything here, because they alone say which frame is which.

    Args:
        row: numpy arrays or lists, None for null.
        at: where the row is, for the error.

    Raises:
        FormatError: if lists do not agree.
    """
    _same_length(row, "pts", PER_PACKET, at)
    if row["start_state"] is not None:
        starts = int(np.count_nonzero(row["flags"] & START))
        if len(row["start_state"]) != starts:
            raise at.unlike("start_state", "flags", f"{len(row['start_state'])} for {starts} start points")
    if row["gap"] is not None:
        _check_offsets(row["gap"], row["size"], "gap", at)


def check_audio_packets(row: Row, at: RowAt) -> None:
    """Check the lists of audio packets in a row of `frames`. Raises FormatError."""
    _same_length(row, "audio_sample", ("audio_gap", "audio_size"), at)
    if (row["audio_sample"][1:] < row["audio_sample"][:-1]).any():
        raise at.wrong("audio_sample", "positions that turn back", "ascending ones")
    if row["audio_gap"] is not None:
        _check_offsets(row["audio_gap"], row["audio_size"], "audio_gap", at)


def _check_offsets(gap: NDArray[np.int64], size: NDArray[np.int64], name: str, at: RowAt) -> None:
    """Check that packets can lie in a file: no packet begins at a negative offset or past what int64 holds."""
    begins = np.cumsum(gap.astype(np.float64) + size) - size
    if len(begins) and not 0 <= begins.min() <= begins.max() <= float(1 << 61):
        raise at.wrong(name, "packets that begin before their file, or far behind any")


def _same_length(row: Row, name: str, others: tuple[str, ...], at: RowAt) -> None:
    for other in others:
        if row[other] is not None and len(row[other]) != len(row[name]):
            raise at.unlike(other, name, f"{len(row[other])} elements for {len(row[name])}")
