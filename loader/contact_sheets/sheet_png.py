"""A contact sheet as one picture, drawn with the font that Pillow brings: the same on every machine."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from framedex.errors import OutputError
from framedex.html.theme import rgb
from framedex.loader.contact_sheets.sheet import Heading, ShownClip, ShownFrame, Waveform

COLUMNS = 8
MARGIN, GAP, LEAST_CELL, LEAST_WIDTH = 28, 10, 104, 760
MOST_SIDE, MOST_PIXELS = 32_767, 80_000_000  # cairo draws no longer side; from 89 478 485 on Pillow warns of a bomb
SETTINGS_CHARACTERS = 2000
NAME_WIDTH = 110  # of the column with the names of facts
CAPTION = 36
WAVE_HEIGHT = 48

INK, SOFT, LINE, GROUND, RAISED = map(rgb, ("ink", "soft", "line", "ground", "raised"))
HATCH, BAD = map(rgb, ("hatch", "error"))
Color = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of text and the position of its top left corner."""

    text: str
    left: int
    top: int
    size: int
    color: Color


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
    blocks = [_heading_block(heading, width)]
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


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise OutputError("this Pillow has no scalable font", remedy="install a Pillow with FreeType, or write .html")
    return font


@functools.cache
def _drawable(character: str) -> str:
    """Return a character, or its escape where the font has no shape for it."""
    if character == "×":
        return "x"
    shape, missing = (bytes(_font(16).getmask(each)) for each in (character, "\uffff"))
    return character.encode("unicode_escape").decode() if shape == missing else character


def _wrapped(text: str, size: int, width: int) -> list[str]:
    """Return text as lines of at most `width` pixels, broken at spaces where it can be."""
    lines, font = [""], _font(size)
    for word in "".join(map(_drawable, text)).split(" "):
        grown = f"{lines[-1]} {word}" if lines[-1] else word
        if font.getlength(grown) <= width:
            lines[-1] = grown
            continue
        lines.append("")
        for character in word:
            if font.getlength(lines[-1] + character) > width:
                lines.append("")
            lines[-1] += character
    return [line for line in lines if line]


class _Text:
    """Lines laid out from the top down."""

    def __init__(self, top: int, width: int) -> None:
        self.lines: list[Line] = []
        self.bottom, self._width = top, width

    def add(self, text: str, *, size: int, color: Color = INK, left: int = MARGIN, after: int = 0) -> None:
        """Append wrapped text."""
        for line in _wrapped(text, size, self._width - left - MARGIN):
            self.lines.append(Line(text=line, left=left, top=self.bottom, size=size, color=color))
            self.bottom += round(size * 1.4)
        self.bottom += after

    def add_pair(self, name: str, value: str, color: Color) -> None:
        """Append a name and, beside it, its value."""
        top = self.bottom
        for line in _wrapped(name, 13, NAME_WIDTH - GAP):
            self.lines.append(Line(text=line, left=MARGIN, top=self.bottom, size=13, color=SOFT))
            self.bottom += 18
        below, self.bottom = self.bottom, top
        self.add(value, size=13, color=color, left=MARGIN + NAME_WIDTH)
        self.bottom = max(self.bottom, below)

    def draw(self, image: Image.Image) -> None:
        """Draw all lines."""
        pen = ImageDraw.Draw(image)
        for line in self.lines:
            pen.text((line.left, line.top), line.text, fill=line.color, font=_font(line.size))


def _heading_block(heading: Heading, width: int) -> Image.Image:
    text = _Text(MARGIN, width)
    text.add(heading.name, size=26, after=2)
    text.add(heading.counts(), size=14, color=SOFT, after=8)
    text.add(short_settings(heading.settings), size=12, color=SOFT)
    image = Image.new("RGB", (width, text.bottom + 20), GROUND)
    text.draw(image)
    return image


def short_settings(settings: str) -> str:
    """Return the settings of a policy as at most `SETTINGS_CHARACTERS`."""
    return settings if len(settings) <= SETTINGS_CHARACTERS else settings[:SETTINGS_CHARACTERS] + " …"


def _clip_block(clip: ShownClip, width: int, columns: int) -> Image.Image:
    text = _Text(18, width)
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
    picture = Image.new("RGB", (width, height), GROUND)
    if frame.picture is not None:
        given = Image.fromarray(np.ascontiguousarray(frame.picture))
        picture = given.resize((width, height), Image.Resampling.NEAREST)
    if frame.padding:
        picture = _hatched(picture)
    image.paste(picture, (left, top))
    pen, below = ImageDraw.Draw(image), top + height + 4
    right = left + max(LEAST_CELL, width)
    number = "" if frame.frame_index is None else f"#{frame.frame_index}"
    time = "" if frame.seconds is None else f"{frame.seconds:.3f} s"
    gap = "" if frame.gap_seconds is None else f"{frame.gap_seconds:+.3f} s"
    pen.text((left, below), number, fill=INK, font=_font(13))
    pen.text((right, below), time, fill=INK, font=_font(13), anchor="ra")
    pen.text((right, below + 16), gap, fill=SOFT, font=_font(11), anchor="ra")


def _hatched(picture: Image.Image) -> Image.Image:
    """Return a faded picture with slanting lines, a frame around it, and the word "padding" over it."""
    faded = Image.blend(picture, Image.new("RGB", picture.size, GROUND), 0.6)
    pen, (width, height) = ImageDraw.Draw(faded), picture.size
    for x in range(-height, width, 10):
        pen.line((x, height, x + height, 0), fill=HATCH)
    pen.rectangle((0, 0, width - 1, height - 1), outline=HATCH)
    left, top, right, bottom = pen.textbbox((width // 2, height // 2), "padding", font=_font(13), anchor="mm")
    pen.rectangle((left - 5, top - 4, right + 5, bottom + 3), fill=GROUND)
    pen.text((width // 2, height // 2), "padding", fill=INK, font=_font(13), anchor="mm")
    return faded


def _draw_sound(image: Image.Image, audio: Waveform, top: int) -> None:
    pen, middle = ImageDraw.Draw(image), top + WAVE_HEIGHT // 2
    width = min(image.width - 2 * MARGIN, max(1, len(audio.low)))
    pen.rectangle((MARGIN, top, MARGIN + width - 1, top + WAVE_HEIGHT - 1), fill=RAISED)
    for x, (low, high) in enumerate(zip(audio.low[:width].tolist(), audio.high[:width].tolist(), strict=True)):
        reach = WAVE_HEIGHT / 2 - 1
        pen.line((MARGIN + x, middle - round(high * reach), MARGIN + x, middle - round(low * reach)), fill=SOFT)
    pen.text((MARGIN, top + WAVE_HEIGHT + 4), f"audio · {audio.text}", fill=SOFT, font=_font(13))
