"""The results of probing as rows of an index."""

from __future__ import annotations

from collections.abc import Iterable

from framedex.indexer.facts import MediumFacts
from framedex.indexer.media_rows import Row, rows_of


def rows_found(found: Iterable[MediumFacts]) -> list[tuple[Row, Row]]:
    """Return the columns of `videos` and `frames` for each medium."""
    return [rows_of(medium) for medium in found]
