"""A contact sheet as one picture, drawn with the font that Pillow brings: the same on every machine."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from PIL import Image, ImageDraw

from framedex.errors import OutputError
from framedex.loader.contact_sheets.drawing import (
    BAD,
    GAP,
    GROUND,
    INK,
    LINE,
    MARGIN,
    RAISED,
    SOFT,
    Text,
    font,
    heading_block,
    place_picture,
)
from framedex.loader.contact_sheets.sheet import Heading, ShownClip, ShownFrame, Waveform

COLUMNS = 8
LEAST_CELL, LEAST_WIDTH = 104, 760
MOST_SIDE, MOST_PIXELS = 32_767, 80_000_000  # cairo draws no longer side; from 89 478 485 on Pillow warns of a bomb
CAPTION = 36
WAVE_HEIGHT = 48


def png_sheet(heading: Heading, clips: Iterable[ShownClip], columns: int | None) -> bytes:
    """Return a contact sheet as a PNG file.

    Args:
        heading: the dataset.
        clips: the clips to show.
        columns: most frames per line. None: COLUMNS.

    Raises:
        OutputError: the sheet is too large.
    """
    kept = list(_while_they_fit(clips))
    cells = max((_cell_width(clip) for clip in kept), default=LEAST_CELL)
    most = max((len(clip.frames) for clip in kept), default=1)
    width = max(LEAST_WIDTH, 2 * MARGIN + min(columns or COLUMNS, max(1, most)) * (cells + GAP) - GAP)
    blocks = [heading_block(heading, width)]
    for clip in kept:
        blocks.append(_clip_block(clip, width, columns or COLUMNS))
        _check_size(width, sum(block.height for block in blocks))
    sheet = Image.new("RGB", (width, sum(block.height for block in blocks)), GROUND)
    top = 0
    for block in blocks:
        sheet.paste(block, (0, top))
        top += block.height
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _while_they_fit(clips: Iterable[ShownClip]) -> Iterator[ShownClip]:
    """Yield clips, and raise an error as soon as their pictures alone are too large for the sheet."""
    pixels = 0
    for clip in clips:
        height, width = (side * clip.magnified for side in clip.size)
        pixels += height * width * len(clip.frames)
        if pixels > MOST_PIXELS:
            raise _too_large(f"more than {pixels:,} pixels")
        yield clip


def _check_size(width: int, height: int) -> None:
    if max(width, height) > MOST_SIDE or width * height > MOST_PIXELS:
        raise _too_large(f"at least {width:,} x {height:,} pixels")


def _too_large(found: str) -> OutputError:
    return OutputError(
        "the sheet is too large for one picture",
        found=found,
        allowed=f"sides of {MOST_SIDE:,}, {MOST_PIXELS:,} pixels in all",
        remedy="show fewer clips, pass a smaller --size, or write .html",
    )


def _clip_block(clip: ShownClip, width: int, columns: int) -> Image.Image:
    text = Text(18, width)
    text.add(clip.clip_id, size=17)
    text.add(clip.uri, size=13, color=SOFT, after=6)
    for color, pairs in ((INK, clip.columns), (SOFT, clip.facts)):
        for name, value in pairs:
            text.add_pair(name, value, color)
    if clip.error is not None:
        text.bottom += 6
        text.add("Not decoded", size=14, color=BAD)
        for line in clip.error.splitlines():
            text.add(line, size=13, color=BAD)
    first = text.bottom + 10
    cell_width, cell_height = _cell_width(clip), clip.size[0] * clip.magnified + CAPTION + GAP
    a_line = max(1, min(columns, (width - 2 * MARGIN + GAP) // (cell_width + GAP)))
    bottom = first + -(-len(clip.frames) // a_line) * cell_height
    height = bottom + (WAVE_HEIGHT + 36 if clip.audio else 0) + 12
    _check_size(width, height)
    image = Image.new("RGB", (width, height), GROUND)
    ImageDraw.Draw(image).line((MARGIN, 0, width - MARGIN, 0), fill=LINE)
    text.draw(image)
    for place, frame in enumerate(clip.frames):
        down, across = divmod(place, a_line)
        _draw_frame(image, clip, frame, MARGIN + across * (cell_width + GAP), first + down * cell_height)
    if clip.audio is not None:
        _draw_sound(image, clip.audio, bottom + 4)
    return image


def _cell_width(clip: ShownClip) -> int:
    return max(LEAST_CELL, clip.size[1] * clip.magnified)


def _draw_frame(image: Image.Image, clip: ShownClip, frame: ShownFrame, left: int, top: int) -> None:
    height, width = (side * clip.magnified for side in clip.size)
    image.paste(place_picture(clip, frame), (left, top))
    pen, below = ImageDraw.Draw(image), top + height + 4
    right = left + max(LEAST_CELL, width)
    number = "" if frame.frame_index is None else f"#{frame.frame_index}"
    time = "" if frame.seconds is None else f"{frame.seconds:.3f} s"
    gap = "" if frame.gap_seconds is None else f"{frame.gap_seconds:+.3f} s"
    pen.text((left, below), number, fill=INK, font=font(13))
    pen.text((right, below), time, fill=INK, font=font(13), anchor="ra")
    pen.text((right, below + 16), gap, fill=SOFT, font=font(11), anchor="ra")


def _draw_sound(image: Image.Image, audio: Waveform, top: int) -> None:
    pen, middle = ImageDraw.Draw(image), top + WAVE_HEIGHT // 2
    width = min(image.width - 2 * MARGIN, max(1, len(audio.low)))
    pen.rectangle((MARGIN, top, MARGIN + width - 1, top + WAVE_HEIGHT - 1), fill=RAISED)
    for x, (low, high) in enumerate(zip(audio.low[:width].tolist(), audio.high[:width].tolist(), strict=True)):
        reach = WAVE_HEIGHT / 2 - 1
        pen.line((MARGIN + x, middle - round(high * reach), MARGIN + x, middle - round(low * reach)), fill=SOFT)
    pen.text((MARGIN, top + WAVE_HEIGHT + 4), f"audio · {audio.text}", fill=SOFT, font=font(13))
