"""What the slices of a run share in their output folder: one plan, and a list of what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from framedex.errors import OutputError
from framedex.files.atomic import write_json_aside
from framedex.storage.outputs import Output
from framedex.storage.places import Place, small_text

Row = dict[str, Any]


def agreed_plan(output: Output, name: str, plan: Row) -> Row:
    """Write the plan of a run in slices, unless another slice has just written one. Return the plan that is written.

    Args:
        output: The folder.
        name: Of the plan's file.
        plan: What this slice would do.

    Raises:
        OutputError: Something else was written there.
    """
    write_json_aside(output.local / name, plan)
    try:
        output.publish(output.local / name)
    except OutputError:
        stored = written_plan(output.where, name)
        if stored is None:
            raise
        return stored
    return plan


def written_plan(place: Place, name: str) -> Row | None:
    """Return the plan of a run in slices, or None if there is none."""
    path = place / name
    if not path.exists():
        return None
    plan: Row = json.loads(small_text(path))
    return plan


def check_all_there(place: Place, count: int, what: str, missing: Iterable[int], *, slices: int) -> None:
    """Raise OutputError if slices are missing. It names the slices to run again.

    Args:
        place: The folder.
        count: How many results the slices have together.
        what: What they are, in the plural.
        missing: Numbers of those that are missing. Number n is of slice n modulo `slices`.
        slices: How many slices there are.
    """
    numbers = sorted(missing)
    if numbers:
        again = sorted({number % slices for number in numbers})
        raise OutputError(
            f"{len(numbers)} of {count} {what} are missing",
            where=str(place),
            found=f"nothing from {', '.join(f'--task {number}/{slices}' for number in again)}",
            remedy="run these slices again",
        )
