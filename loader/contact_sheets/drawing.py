"""Text and pictures of contact sheets that are pictures, drawn with the font that Pillow brings."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from framedex.errors import OutputError
from framedex.html.theme import rgb
from framedex.loader.contact_sheets.sheet import Heading, ShownClip, ShownFrame

MARGIN, GAP = 28, 10
NAME_WIDTH = 110  # of the column with the names of facts
SETTINGS_CHARACTERS = 2000
SPELT = {"×": "x", "–": "-", "−": "-", "…": "..."}  # characters of framedex's own texts that the font may lack

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


@functools.cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Return the font at a size. Raises OutputError if Pillow has none that scales."""
    found = ImageFont.load_default(size)
    if not isinstance(found, ImageFont.FreeTypeFont):
        raise OutputError("this Pillow has no scalable font", remedy="install a Pillow with FreeType, or write .html")
    return found


@functools.cache
def _drawable(character: str) -> str:
    """Return a character, or another spelling where the font has no shape for it: SPELT, or else its escape."""
    shape, missing = (bytes(font(16).getmask(each)) for each in (character, "\uffff"))
    if shape != missing:
        return character
    return SPELT.get(character) or character.encode("unicode_escape").decode()


def wrapped(text: str, size: int, width: int) -> list[str]:
    """Return text as lines of at most `width` pixels, broken at spaces where it can be."""
    lines, shapes = [""], font(size)
    for word in "".join(map(_drawable, text)).split(" "):
        grown = f"{lines[-1]} {word}" if lines[-1] else word
        if shapes.getlength(grown) <= width:
            lines[-1] = grown
            continue
        lines.append("")
        for character in word:
            if shapes.getlength(lines[-1] + character) > width:
                lines.append("")
            lines[-1] += character
    return [line for line in lines if line]


class Text:
    """Lines laid out from the top down."""

    def __init__(self, top: int, width: int) -> None:
        self.lines: list[Line] = []
        self.bottom, self._width = top, width

    def add(self, text: str, *, size: int, color: Color = INK, left: int = MARGIN, after: int = 0) -> None:
        """Append wrapped text."""
        for line in wrapped(text, size, self._width - left - MARGIN):
            self.lines.append(Line(text=line, left=left, top=self.bottom, size=size, color=color))
            self.bottom += round(size * 1.4)
        self.bottom += after

    def add_pair(self, name: str, value: str, color: Color) -> None:
        """Append a name and, beside it, its value."""
        top = self.bottom
        for line in wrapped(name, 13, NAME_WIDTH - GAP):
            self.lines.append(Line(text=line, left=MARGIN, top=self.bottom, size=13, color=SOFT))
            self.bottom += 18
        below, self.bottom = self.bottom, top
        self.add(value, size=13, color=color, left=MARGIN + NAME_WIDTH)
        self.bottom = max(self.bottom, below)

    def draw(self, image: Image.Image) -> None:
        """Draw all lines."""
        pen = ImageDraw.Draw(image)
        for line in self.lines:
            pen.text((line.left, line.top), line.text, fill=line.color, font=font(line.size))


def place_picture(clip: ShownClip, frame: ShownFrame) -> Image.Image:
    """Return the picture of one place of a clip, hatched where it is padding."""
    height, width = (side * clip.magnified for side in clip.size)
    picture = Image.new("RGB", (width, height), GROUND)
    if frame.picture is not None:
        given = Image.fromarray(np.ascontiguousarray(frame.picture))
        picture = given.resize((width, height), Image.Resampling.NEAREST)
    return _hatched(picture) if frame.padding else picture


def _hatched(picture: Image.Image) -> Image.Image:
    """Return a faded picture with slanting lines, a frame around it, and the word "padding" over it."""
    faded = Image.blend(picture, Image.new("RGB", picture.size, GROUND), 0.6)
    pen, (width, height) = ImageDraw.Draw(faded), picture.size
    for x in range(-height, width, 10):
        pen.line((x, height, x + height, 0), fill=HATCH)
    pen.rectangle((0, 0, width - 1, height - 1), outline=HATCH)
    left, top, right, bottom = pen.textbbox((width // 2, height // 2), "padding", font=font(13), anchor="mm")
    pen.rectangle((left - 5, top - 4, right + 5, bottom + 3), fill=GROUND)
    pen.text((width // 2, height // 2), "padding", fill=INK, font=font(13), anchor="mm")
    return faded


def heading_block(heading: Heading, width: int) -> Image.Image:
    """Return the name, the counts and the settings of the dataset as a picture of this width."""
    text = Text(MARGIN, width)
    text.add(heading.name, size=26, after=2)
    text.add(heading.counts(), size=14, color=SOFT, after=8)
    text.add(_short_settings(heading.settings), size=12, color=SOFT)
    image = Image.new("RGB", (width, text.bottom + 20), GROUND)
    text.draw(image)
    return image


def _short_settings(settings: str) -> str:
    """Return the settings of a policy as at most `SETTINGS_CHARACTERS`."""
    return settings if len(settings) <= SETTINGS_CHARACTERS else settings[:SETTINGS_CHARACTERS] + " …"
