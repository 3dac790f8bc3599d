"""A contact sheet as an animation: clips beside each other that play at the same time."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from framedex.errors import OutputError
from framedex.loader.contact_sheets.drawing import (
    BAD,
    GAP,
    GROUND,
    INK,
    MARGIN,
    SOFT,
    font,
    heading_block,
    place_picture,
    wrapped,
)
from framedex.loader.contact_sheets.playing import begins
from framedex.loader.contact_sheets.sheet import Heading, ShownClip

COLUMNS = 6
LEAST_CELL, LEAST_WIDTH = 150, 480
NAME, CAPTION = 20, 24  # heights above and below a picture
TICK_MS = 20  # the shortest time of a picture; browsers show pictures of up to 10 ms for 100 ms
REST_MS = 1000  # at the end, before all clips begin again
MOST_SIDE, MOST_PIXELS = 16_383, 200_000_000  # of a WebP file; of all pictures together, which are held in memory
QUALITY = 85


def webp_sheet(heading: Heading, clips: Iterable[ShownClip], columns: int | None) -> bytes:
    """Return an animation of clips as a WebP file.

    Each clip plays once, every place for the time until the next one, but for at least 20 ms. It then shows its last
    place until the longest clip has ended.

    Args:
        heading: the dataset.
        clips: the clips to show.
        columns: most clips per line. None: as many lines as clips in a line, and at most COLUMNS.

    Raises:
        OutputError: the animation is too large.
    """
    layout = _layout(heading, clips, columns)
    kept, shown, ticks = layout.clips, layout.shown, layout.ticks
    a_line, (cell_width, cell_height), head = layout.a_line, layout.cell, layout.head
    width, height = layout.size
    sheet = Image.new("RGB", (width, height), GROUND)
    sheet.paste(head, (0, 0))
    pictures = []
    for tick in ticks.tolist():
        for number, (clip, times) in enumerate(zip(kept, shown, strict=True)):
            if tick == 0 or tick in times:
                down, across = divmod(number, a_line)
                place = int(np.searchsorted(times, tick, side="right")) - 1
                at = (MARGIN + across * (cell_width + GAP), head.height + down * (cell_height + GAP))
                sheet.paste(_cell(clip, place, (cell_width, cell_height)), at)
        pictures.append(sheet.copy())
    durations = (np.diff(ticks, append=ticks[-1]) * TICK_MS).tolist()
    durations[-1] = REST_MS
    file = io.BytesIO()
    pictures[0].save(
        file, "WEBP", save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=QUALITY, method=2
    )
    return file.getvalue()


def check_animation(heading: Heading, clips: Iterable[ShownClip], columns: int | None) -> None:
    """Raise OutputError if `webp_sheet` would, for clips as `Inspector.outline` returns them."""
    _layout(heading, clips, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where and when an animation shows its clips.

    Attributes:
        clips: the clips.
        shown: the ticks at which each of them shows its places.
        ticks: int64, the ticks at which the animation changes.
        a_line: how many clips a line has.
        cell: (width, height) of a clip with its texts.
        head: the picture of the heading.
        size: (width, height) of the animation.
    """

    clips: list[ShownClip]
    shown: list[NDArray[np.int64]]
    ticks: NDArray[np.int64]
    a_line: int
    cell: tuple[int, int]
    head: Image.Image
    size: tuple[int, int]


def _layout(heading: Heading, clips: Iterable[ShownClip], columns: int | None) -> _Layout:
    """Return the layout of an animation. Raises OutputError as soon as it is known to be too large."""
    kept: list[ShownClip] = []
    pixels = 0
    for clip in clips:
        kept.append(clip)
        pixels += clip.size[0] * clip.size[1] * sum(frame.frame_index is not None for frame in clip.frames)
        _check(pixels)
    a_line = min(columns or min(COLUMNS, math.ceil(math.sqrt(len(kept)))), max(1, len(kept)))
    cell_width = max([LEAST_CELL, *(clip.size[1] * clip.magnified for clip in kept)])
    cell_height = max([1, *(clip.size[0] * clip.magnified for clip in kept)]) + NAME + CAPTION
    lines = -(-len(kept) // max(1, a_line))
    width = max(LEAST_WIDTH, 2 * MARGIN + a_line * (cell_width + GAP) - GAP)
    head = heading_block(heading, width)
    height = head.height + lines * (cell_height + GAP) + MARGIN
    shown = [_places(clip) for clip in kept]
    ticks = np.unique(np.concatenate([np.zeros(1, np.int64), *shown]))
    _check(width * height * len(ticks), width, height)
    return _Layout(
        clips=kept,
        shown=shown,
        ticks=ticks,
        a_line=a_line,
        cell=(cell_width, cell_height),
        head=head,
        size=(width, height),
    )


def _check(pixels: int, width: int = 0, height: int = 0) -> None:
    """Raise OutputError for an animation that is too large."""
    if pixels > MOST_PIXELS or max(width, height) > MOST_SIDE:
        raise OutputError(
            "the sheet is too large for an animation",
            found=f"{pixels:,} pixels in all pictures, {width:,} x {height:,} each" if width else f"{pixels:,} pixels",
            allowed=f"sides of {MOST_SIDE:,}, {MOST_PIXELS:,} pixels in all",
            remedy="show fewer clips, pass a smaller --size, or browse the dataset with --serve",
        )


def _places(clip: ShownClip) -> NDArray[np.int64]:
    """Return int64 [places]: the tick at which each place of a clip is shown. All differ."""
    lengths = np.maximum(np.diff(begins(clip.frames)), TICK_MS / 1000)[:-1]
    exact = np.concatenate([np.zeros(min(1, len(clip.frames))), np.cumsum(lengths)])
    return np.floor(exact * 1000 / TICK_MS + 1e-6).astype(np.int64)  # 1e-6: a time on a tick stays there


def _cell(clip: ShownClip, place: int, size: tuple[int, int]) -> Image.Image:
    """Return the picture of one place of a clip, with the clip's name above and the frame's number and time below."""
    width, height = size
    cell = Image.new("RGB", size, GROUND)
    pen = ImageDraw.Draw(cell)
    name = wrapped(clip.clip_id, 13, width)
    pen.text((0, 0), name[0] if name else "", fill=INK, font=font(13))
    if clip.error is not None:
        for line, text in enumerate(wrapped(clip.error.splitlines()[0], 12, width)):
            pen.text((0, NAME + 16 * line), text, fill=BAD, font=font(12))
        return cell
    if not clip.frames:
        return cell
    frame = clip.frames[place]
    picture = place_picture(clip, frame)
    cell.paste(picture, (0, NAME))
    below = NAME + picture.height + 4
    number = "padding" if frame.frame_index is None else f"#{frame.frame_index}"
    time = "" if frame.seconds is None else f"{frame.seconds:.3f} s"
    pen.text((0, below), f"{number}  {time}", fill=INK, font=font(12))
    pen.text((width, below), f"{place + 1}/{len(clip.frames)}", fill=SOFT, font=font(11), anchor="ra")
    assert height >= below  # the cell is made for the tallest picture
    return cell
