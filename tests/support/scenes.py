"""Scenes of several cameras that differ in frame rate, size, beginning and length, with a listing of them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import made
from tests.support.media import FRAME_RATE, TICKS, Recipe, encode

HEVC = {"preset": "ultrafast", "x265-params": "log-level=none:pools=1:keyint=12"}
VIEWS = ("front", "left", "wrist")


@dataclass(frozen=True, kw_only=True)
class Camera:
    """A video of a scene. `times`: of its frames, in TICKS."""

    scene: str
    view: str
    times: tuple[int, ...]
    size: tuple[int, int] = (176, 144)
    codec: str = "libx264"
    pix_fmt: str = "yuv420p"

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.scene}-{self.view}.mp4"

    @property
    def seconds(self) -> list[Fraction]:
        """The times of its frames from its first one on."""
        return [Fraction(time - self.times[0], TICKS) for time in self.times]

    @property
    def last_seconds(self) -> Fraction:
        """How long its last frame lasts: a frame at FRAME_RATE, as the encoder of recipes writes it."""
        return Fraction(1, FRAME_RATE)


def regular(fps: int, count: int, first: int = 0) -> tuple[int, ...]:
    """Return the times of frames at a constant rate."""
    return tuple(first + number * TICKS // fps for number in range(count))


def irregular(count: int, seed: int) -> tuple[int, ...]:
    """Return the times of frames at a rate that varies around 30 a second."""
    gaps = np.random.default_rng(seed).integers(1_500, 4_500, count - 1)
    return (0, *np.cumsum(gaps).tolist())


CAMERAS = (
    Camera(scene="a", view="front", times=regular(25, 75)),
    Camera(scene="a", view="left", times=irregular(90, 3)),
    Camera(scene="a", view="wrist", times=regular(50, 150, first=4500), size=(208, 160), codec="libx265"),
    Camera(scene="b", view="front", times=regular(25, 50)),
    Camera(scene="b", view="left", times=regular(30, 60)),
    Camera(scene="b", view="wrist", times=regular(50, 50), size=(208, 160), codec="libx265"),  # half as long
    Camera(scene="c", view="front", times=regular(25, 40)),
    Camera(scene="c", view="left", times=regular(30, 48)),  # without a camera at the wrist
)


def _encoded(recipe: Recipe) -> Path:
    """Return the file of a recipe, encoded once per machine."""
    name = hashlib.blake2b(repr(recipe).encode(), digest_size=10).hexdigest()
    sources = (*made.MEDIA_SOURCES, "tests/support/scenes.py")
    return made.folder(f"scene-{name}", *sources, make=lambda place: encode(recipe, place / recipe.name)) / recipe.name


def write_scenes(folder: Path, cameras: Sequence[Camera] = CAMERAS, **columns: dict[str, Any]) -> Path:
    """Write the videos of all cameras, and a listing of them.

    Args:
        columns: further columns of the listing, by the file's name.

    Returns:
        The listing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for camera in cameras:
        options = {"preset": "ultrafast"} if camera.codec == "libx264" else HEVC
        recipe = Recipe(
            name=camera.name,
            codec=camera.codec,
            options=options,
            pix_fmt=camera.pix_fmt,
            size=camera.size,
            times=camera.times,
        )
        shutil.copy(_encoded(recipe), folder / camera.name)
        own = {name: values.get(camera.name) for name, values in columns.items()}
        rows.append({"uri": camera.name, "episode": camera.scene, "camera": camera.view, "task": "stack"} | own)
    listing = folder / "scenes.jsonl"
    listing.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return listing
