"""A clip as the browser shows it: its pictures, pixel for pixel, the place of each frame, and its sound."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import printable
from framedex.loader.contact_sheets.playing import ascends, begins
from framedex.loader.contact_sheets.sheet import ShownFrame
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.medium import Medium
from framedex.sharder.decoding.video import Size

MOST_CLIP_BYTES = 512 << 20  # of a clip's pictures; those of a larger clip are scaled down


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """The audio of a clip.

    Attributes:
        samples: float32 [channels, samples], full scale 1.
        rate: In Hz.
    """

    samples: NDArray[np.float32]
    rate: int

    def wav(self) -> bytes:
        """Return the audio as a WAV file with 16 bits per sample."""
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(len(self.samples))
            writer.setsampwidth(2)
            writer.setframerate(self.rate)
            finite = np.nan_to_num(self.samples, posinf=1, neginf=-1).clip(-1, 1)
            writer.writeframes(np.ascontiguousarray((finite * 32767).round().astype("<i2").T).tobytes())
        return file.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A decoded clip.

    Attributes:
        clip: The clip.
        pictures: uint8 [F, h, w, 3], zeros where padded by a constant.
        frames: One record per place.
        sound: Its audio, if it has any.
    """

    clip: Clip
    pictures: NDArray[np.uint8]
    frames: list[ShownFrame]
    sound: Sound | None

    @property
    def size_bytes(self) -> int:
        """The memory that it takes."""
        return self.pictures.nbytes + (0 if self.sound is None else self.sound.samples.nbytes)

    def poster(self) -> NDArray[np.uint8] | None:
        """Return the picture of the first place that is not padding. None: every place is."""
        real = [place for place, frame in enumerate(self.frames) if frame.picture is not None]
        return self.pictures[real[0]] if real else None

    def as_json(self) -> dict[str, Any]:
        """Return what the page needs to play it, beside the pictures."""
        height, width = self.pictures.shape[1:3]
        medium = self.clip.medium
        times = begins(self.frames).tolist()
        scaled = (height, width) != (medium.height, medium.width)
        return {
            "width": width,
            "height": height,
            "scaled": f"{medium.width} × {medium.height}" if scaled else None,
            "sound": None if self.sound is None else self.sound.samples.shape[1] / self.sound.rate,
            "begins": times[:-1],
            "duration": times[-1],
            "ascending": ascends(self.frames),
            "frames": [
                {"frame": f.frame_index, "seconds": f.seconds, "gap": f.gap_seconds, "padding": f.padding}
                for f in self.frames
            ],
        }


def fitting_size(medium: Medium, frames: int, longest_side: int | None) -> Size | None:
    """Return the (height, width) at which a clip is decoded. None: as it is stored.

    Args:
        medium: the medium of the clip.
        frames: how many places the clip has.
        longest_side: limit of a picture's longer side, in pixels. None: no limit.
    """
    height, width = medium.height, medium.width
    scale = min(1.0, (MOST_CLIP_BYTES / max(1, 3 * height * width * frames)) ** 0.5)
    if longest_side is not None:
        scale = min(scale, longest_side / max(height, width))
    return None if scale >= 1 else (max(1, int(height * scale)), max(1, int(width * scale)))


def facts_of(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return pairs of names and texts, without control characters."""
    return [[printable(name), printable(text)] for name, text in pairs]
