"""Rows of `videos` and `frames` from the facts of a medium: the only place where facts become columns."""

from __future__ import annotations

from typing import Any

from framedex.indexer.facts import AudioFacts, MediumFacts
from framedex.records.columns import values_of
from framedex.records.medium import OK

Row = dict[str, Any]

SINGLE = (
    "kind",
    "stream_index",
    "member",
    "member_offset",
    "member_bytes",
    "sidecars",
    "container",
    "video_streams",
    "rotation_degrees",
)


def rows_of(medium: MediumFacts) -> tuple[Row, Row]:
    """Return the columns of `videos` and `frames` for a medium, without the columns that name it."""
    return _video_row(medium), _frames_row(medium)


def no_frames() -> Row:
    """Return the `frames` columns for a medium that is not usable."""
    return {"pts": [], "offset": None, "size": [], "flags": []}


def _video_row(medium: MediumFacts) -> Row:
    """Return the columns of `videos`. Columns of a missing record are left out, so they become null."""
    row = {name: getattr(medium, name) for name in SINGLE} | {"status": OK}
    for record in (medium.identity, medium.stream, medium.stated, medium.coding, medium.timeline, medium.proof):
        row |= {} if record is None else values_of(record)
    if medium.timeline is not None:
        row |= values_of(row.pop("summary"))
    if medium.problem is not None:
        row |= {
            "status": medium.problem.status or OK,
            "error_kind": medium.problem.kind,
            "error_message": medium.problem.message,
            "error_traceback": medium.problem.traceback,
        }
    return row if medium.audio is None else row | _audio_row(medium.audio)


def _audio_row(audio: AudioFacts) -> Row:
    columns = values_of(audio)
    del columns["packets"]
    return {f"audio_{name}": value for name, value in columns.items()}


def _frames_row(medium: MediumFacts) -> Row:
    if medium.packets is None or not medium.is_usable:
        return no_frames()
    row = values_of(medium.packets)
    if medium.audio is not None and medium.audio.packets is not None:
        row |= {f"audio_{name}": value for name, value in values_of(medium.audio.packets).items()}
    return row
