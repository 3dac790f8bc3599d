"""What the views of a scene have, on the scene's clock: how long they last, and where they show nothing new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from framedex.sharder.policies.terms import Terms
from framedex.sharder.views.matching import Part
from framedex.sharder.views.scene_sampling import SceneView, parts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFacts:
    """A view of a scene.

    Attributes:
        problem: Why the view is missing; None if it is there. The other values are None if it is missing.
        frames: How many frames it has.
        begins_seconds: When it begins, by the clock of the scene.
        ends_seconds: When it ends, by that clock.
        rate: Seconds that pass in the view while the clock counts one.
        frame_seconds: How long a frame lasts on average.
        longest_gap_seconds: The longest time from one frame to the next, or from the last one to the end.
        gap_at_seconds: When that begins, by the clock of the scene.
    """

    view: str
    problem: str | None = None
    frames: int | None = None
    begins_seconds: float | None = None
    ends_seconds: float | None = None
    rate: float | None = None
    frame_seconds: float | None = None
    longest_gap_seconds: float | None = None
    gap_at_seconds: float | None = None


def facts_of(policy: Terms, scene: Mapping[str, SceneView | str], names: Sequence[str]) -> list[ViewFacts]:
    """Return what each view of a scene has.

    Args:
        policy: A policy with `views`.
        scene: The views, as for `sample_scene`.
        names: The views that a clip has.
    """
    parts, absent = parts_of(policy, scene, names)
    return [
        _facts(view, parts[view]) if view in parts else ViewFacts(view=view, problem=absent[view].message)
        for view in names
    ]


def _facts(view: str, part: Part) -> ViewFacts:
    unit, span = float(part.timeline.time_base), part.span
    pts = part.timeline.pts[span.first : span.stop]
    ends = np.append(pts, pts[-1]).astype(np.float64)
    ends[-1] = float(span.end)
    gaps = np.diff(ends) * unit
    widest = int(np.argmax(gaps))
    own_seconds = (float(pts[widest]) - float(span.start)) * unit
    offset, rate = float(part.offset_seconds), float(part.rate)
    return ViewFacts(
        view=view,
        frames=len(pts),
        begins_seconds=-offset / rate,
        ends_seconds=float(part.clock_seconds),
        rate=rate,
        frame_seconds=float(part.frame_seconds),
        longest_gap_seconds=float(gaps[widest]),
        gap_at_seconds=(own_seconds - offset) / rate,
    )
