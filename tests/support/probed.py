"""What probing finds, as the rows that an index gets of it."""

from __future__ import annotations

from collections.abc import Iterable

from framedex.indexer.facts import MediumFacts
from framedex.indexer.media_rows import Row, rows_of


def rows_found(found: Iterable[MediumFacts]) -> list[tuple[Row, Row]]:
    """Return the columns of `videos` and `frames` of each medium."""
    return [rows_of(medium) for medium in found]
