"""A small dataset for endurance runs.

It holds movies that NVDEC decodes, movies that it must not get, and images, in several sizes and codecs, some with
sound. Every frame shows its number.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.support.media import Recipe, make, picture, read_barcode

FRAMES, FRAMES_A_CLIP = 50, 6
IMAGE_SIZES = ((320, 256), (272, 208))
MOVIES = (
    Recipe(name="h264_a.mp4", options={"preset": "veryfast", "g": "20"}, size=(320, 256), audio=True),
    Recipe(name="h264_b.mkv", options={"preset": "veryfast", "g": "16"}, size=(416, 240), audio=True),
    Recipe(name="h264_c.mp4", options={"preset": "veryfast", "g": "25"}, size=(256, 320), audio=True),
    Recipe(
        name="hevc_a.mp4",
        codec="libx265",
        options={"preset": "ultrafast", "x265-params": "log-level=none:pools=1:keyint=20:open-gop=0"},
        size=(320, 256),
        audio=True,
    ),
    Recipe(name="cpu_high10.mkv", options={"preset": "veryfast", "g": "20"}, pix_fmt="yuv420p10le", audio=True),
    Recipe(name="cpu_vp9.mkv", codec="libvpx-vp9", options={"cpu-used": "8", "g": "25"}, size=(320, 256), audio=True),
)


def make_media(folder: Path, *, images: bool = True) -> Path:
    """Write the movies and two folders of JPEGs if they are missing; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for recipe in MOVIES:
        make(recipe, folder)
    for number, (width, height) in enumerate(IMAGE_SIZES if images else ()):
        shot = folder / f"images_{number}"
        shot.mkdir(exist_ok=True)
        for frame in range(FRAMES):
            Image.fromarray(picture(frame, width, height)).save(shot / f"{frame:03}.jpg", quality=95)
    return folder


def make_dataset(home: Path, *, clips: int, images: bool = True, audio: bool = False) -> Path:
    """Return a dataset in `home` of `clips` clips that alternate between the media, with frames in random order."""
    dataset = home / "DATASET"
    if (dataset / "dataset.json").exists():
        return dataset
    media = make_media(home / "media", images=images)
    command("index", media, "--out", home / "INDEX", "--image-fps", 25)
    names = names_of_media() if images else [recipe.name for recipe in MOVIES]
    rng = np.random.default_rng(1)
    wanted = [
        {
            "uri": names[number % len(names)],
            "clip_id": str(number),
            "number": number,
            "frames": rng.integers(0, FRAMES, FRAMES_A_CLIP).tolist(),
        }
        for number in range(clips)
    ]
    (home / "clips.jsonl").write_text("".join(json.dumps(clip) + "\n" for clip in wanted), encoding="utf-8")
    sound = ["--audio", "--audio-rate", 16_000] if audio else []
    command("shard", home / "INDEX", "--clips", home / "clips.jsonl", "--out", dataset, *sound)
    return dataset


def names_of_media() -> list[str]:
    """Return the names of the media that clips alternate between."""
    return [recipe.name for recipe in MOVIES] + [f"images_{number}" for number in range(len(IMAGE_SIZES))]


def medium_by_medium(clips: int, batch: int, *, batches: int = 6) -> list[int]:
    """Return clip numbers of a dataset of `clips` clips that give `batches` batches of each medium alone."""
    media = len(names_of_media())
    return [medium + media * (place % (clips // media)) for medium in range(media) for place in range(batch * batches)]


def command(*arguments: object) -> None:
    """Run `framedex ARGUMENTS`.

    Raises:
        RuntimeError: the command failed; the message is what it printed.
    """
    whole = [sys.executable, "-c", "from framedex.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"framedex {arguments[0]} ended with {done.returncode}: {done.stderr[-600:]}")


def wrong_clips(batch: dict[str, Any]) -> list[int]:
    """Return the numbers of the clips in a batch that have at least one wrong frame, judged by its barcode."""
    wrong = []
    for number, frames, wanted in zip(batch["number"], batch["frames"], batch["frame_index"], strict=True):
        pixels = np.asarray(frames.cpu() if hasattr(frames, "cpu") else frames)
        if not shows(pixels, np.asarray(wanted).tolist()):
            wrong.append(int(number))
    return wrong


def shows(pixels: Any, wanted: Iterable[int]) -> bool:
    """Return whether pictures at their original size, uint8 [F, H, W, 3], show the frame numbers `wanted`."""
    return [read_barcode(frame) for frame in pixels] == list(wanted)
