"""Contact sheets as PNG pictures and as WebP animations. In an animation, all clips play at the same time in a grid.

Text is drawn with a font that is part of this package, so sheets look the same on every machine. It is DejaVu Sans
Condensed 2.37 with Latin, Greek and Cyrillic letters only. The font that Pillow contains has ASCII letters only.
"""

import functools
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from framedex.errors import OutputError
from framedex.html.document import rgb
from framedex.loader.contact_sheets.sheet import Heading, ShownClip, ShownFrame, Waveform, begins

MARGIN, GAP = 28, 10
NAME_WIDTH = 110  # pixels, the width of the column of names beside the values
SETTINGS_CHARACTERS = 2000  # maximum number of characters of the policy's settings that are drawn

INK, SOFT, LINE, GROUND, RAISED = map(rgb, ("ink", "soft", "line", "ground", "raised"))
HATCH, BAD = map(rgb, ("hatch", "error"))
Color = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of text, and the position of its top left corner in pixels."""

    text: str
    left: int
    top: int
    size: int
    color: Color


@functools.cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Return the font in a given size. Raises OutputError if Pillow cannot draw scalable fonts."""
    file = files("framedex.loader.contact_sheets") / "DejaVuSansCondensed.ttf"
    try:
        return ImageFont.truetype(io.BytesIO(file.read_bytes()), size, layout_engine=ImageFont.Layout.BASIC)
    except ImportError as error:
        remedy = "install a Pillow with FreeType, or write .html"
        raise OutputError("this Pillow cannot draw scalable fonts", found=error, remedy=remedy) from error


@functools.cache
def _drawable(character: str) -> str:
    """Return a character if the font has a glyph for it, and otherwise its escape."""
    shape, missing = (bytes(font(16).getmask(each)) for each in (character, "\uffff"))
    return character if shape != missing else character.encode("unicode_escape").decode()


def wrapped(text: str, size: int, width: int) -> list[str]:
    """Break text into lines of at most `width` pixels, at spaces if possible."""
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


def cut_beginning(text: str, size: int, width: int) -> str:
    """Return a text as one line of at most `width` pixels. A longer text is cut at its beginning."""
    shown = "".join(map(_drawable, text))
    if font(size).getlength(shown) <= width:
        return shown
    while shown and font(size).getlength(f"…{shown}") > width:
        shown = shown[1:]
    return f"…{shown}"


class Text:
    """Lines of text that are arranged from top to bottom and then drawn."""

    def __init__(self, top: int, width: int) -> None:
        self.lines: list[Line] = []
        self.bottom, self._width = top, width

    def add(self, text: str, *, size: int, color: Color = INK, left: int = MARGIN, after: int = 0) -> None:
        """Append text, broken into lines. `after` is the space in pixels below the last line."""
        for line in wrapped(text, size, self._width - left - MARGIN):
            self.lines.append(Line(text=line, left=left, top=self.bottom, size=size, color=color))
            self.bottom += round(size * 1.4)
        self.bottom += after

    def add_pair(self, name: str, value: str, color: Color) -> None:
        """Append a name in the left column, and its value to the right of it."""
        top = self.bottom
        for line in wrapped(name, 13, NAME_WIDTH - GAP):
            self.lines.append(Line(text=line, left=MARGIN, top=self.bottom, size=13, color=SOFT))
            self.bottom += 18
        below, self.bottom = self.bottom, top
        self.add(value, size=13, color=color, left=MARGIN + NAME_WIDTH)
        self.bottom = max(self.bottom, below)

    def draw(self, image: Image.Image) -> None:
        """Draw all lines onto an image."""
        pen = ImageDraw.Draw(image)
        for line in self.lines:
            pen.text((line.left, line.top), line.text, fill=line.color, font=font(line.size))


def place_picture(clip: ShownClip, frame: ShownFrame) -> Image.Image:
    """Return the picture of one frame of a clip. Padding is hatched."""
    height, width = (side * clip.magnified for side in clip.size)
    picture = Image.new("RGB", (width, height), GROUND)
    if frame.picture is not None:
        given = Image.fromarray(np.ascontiguousarray(frame.picture))
        picture = given.resize((width, height), Image.Resampling.NEAREST)
    return _hatched(picture) if frame.padding else picture


def _hatched(picture: Image.Image) -> Image.Image:
    """Return a faded picture with diagonal lines, a border, and the word "padding" in the middle."""
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
    """Return a picture of the given width that shows the name, the counts and the settings of a dataset."""
    text = Text(MARGIN, width)
    text.add(heading.name, size=26, after=2)
    text.add(heading.counts(), size=14, color=SOFT, after=8)
    cut = len(heading.settings) > SETTINGS_CHARACTERS
    text.add(heading.settings[:SETTINGS_CHARACTERS] + " …" * cut, size=12, color=SOFT)
    image = Image.new("RGB", (width, text.bottom + 20), GROUND)
    text.draw(image)
    return image


COLUMNS = 8
MIN_CELL, MIN_WIDTH = 104, 760
# Limits in pixels. Cairo cannot draw longer sides, and Pillow warns of a decompression bomb above 89 478 485 pixels.
MAX_SIDE, MAX_PIXELS = 32_767, 80_000_000
CAPTION = 36
WAVE_HEIGHT = 48


def png_sheet(heading: Heading, clips: Iterable[ShownClip], columns: int | None) -> bytes:
    """Return a contact sheet as a PNG file.

    Args:
        heading: The heading of the sheet.
        clips: The clips to show.
        columns: The maximum number of frames per line. Defaults to COLUMNS.

    Raises:
        OutputError: The sheet is too large.
    """
    kept: list[ShownClip] = []
    pixels = 0
    for clip in clips:
        height, width = (side * clip.magnified for side in clip.size)
        pixels += height * width * len(clip.frames)
        if pixels > MAX_PIXELS:  # before the pictures of more clips are decoded
            raise _too_large(f"more than {pixels:,} pixels")
        kept.append(clip)
    cells = max((_cell_width(clip) for clip in kept), default=MIN_CELL)
    most = max((len(clip.frames) for clip in kept), default=1)
    width = max(MIN_WIDTH, 2 * MARGIN + min(columns or COLUMNS, max(1, most)) * (cells + GAP) - GAP)
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


def _check_size(width: int, height: int) -> None:
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise _too_large(f"at least {width:,} x {height:,} pixels")


def _too_large(found: str) -> OutputError:
    return OutputError(
        "the sheet is too large for one picture",
        found=found,
        allowed=f"sides of {MAX_SIDE:,}, {MAX_PIXELS:,} pixels in all",
        remedy="show fewer clips, pass a smaller --size, or write .html",
    )


def _clip_block(clip: ShownClip, width: int, columns: int) -> Image.Image:
    text = Text(18, width)
    text.add(clip.uri, size=17)
    text.add(clip.clip_id, size=13, color=SOFT, after=6)
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
    return max(MIN_CELL, clip.size[1] * clip.magnified)


def _draw_frame(image: Image.Image, clip: ShownClip, frame: ShownFrame, left: int, top: int) -> None:
    height, width = (side * clip.magnified for side in clip.size)
    image.paste(place_picture(clip, frame), (left, top))
    pen, below = ImageDraw.Draw(image), top + height + 4
    right = left + max(MIN_CELL, width)
    number = "" if frame.frame_index is None else f"#{frame.frame_index}"
    time = "" if frame.seconds is None else f"{frame.seconds:,.3f} s"
    gap = "" if frame.gap_seconds is None else f"{frame.gap_seconds:+,.3f} s"
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


WEBP_COLUMNS = 6
MIN_WEBP_CELL, MIN_WEBP_WIDTH = 150, 480
NAME, WEBP_CAPTION = 20, 24  # heights in pixels of the name above a picture and of the caption below it
# The shortest duration of a picture, to which times are rounded. Browsers show pictures of 10 ms or less for 100 ms.
TICK_MS = 20
REST_MS = 1000  # duration of the last picture, before all clips start again
MAX_WEBP_SIDE = 16_383  # limit of the WebP format, in pixels
MAX_WEBP_PIXELS = 200_000_000  # limit for the sum of all pictures of an animation, which are in memory together
QUALITY = 85


def webp_sheet(heading: Heading, clips: Iterable[ShownClip], columns: int | None) -> bytes:
    """Return an animation of clips as a WebP file.

    Each clip plays once per cycle. A frame is shown until the time of the next frame, but for at least 20 ms. The last
    frame is shown until the longest clip has ended.

    Args:
        heading: The heading of the sheet.
        clips: The clips to show.
        columns: The maximum number of clips per line. If None, the grid is nearly square, with at most WEBP_COLUMNS
            clips per line.

    Raises:
        OutputError: The animation is too large.
    """
    layout = _layout(heading, clips, columns)
    ticks, (cell_width, cell_height) = layout.ticks, layout.cell
    sheet = Image.new("RGB", layout.size, GROUND)
    sheet.paste(layout.head, (0, 0))
    pictures = []
    for tick in ticks.tolist():
        for number, (clip, times) in enumerate(zip(layout.clips, layout.shown, strict=True)):
            if tick == 0 or tick in times:
                down, across = divmod(number, layout.a_line)
                place = int(np.searchsorted(times, tick, side="right")) - 1
                at = (MARGIN + across * (cell_width + GAP), layout.head.height + down * (cell_height + GAP))
                sheet.paste(_cell(clip, place, layout.cell), at)
        pictures.append(sheet.copy())
    durations = (np.diff(ticks, append=ticks[-1]) * TICK_MS).tolist()
    durations[-1] = REST_MS
    file = io.BytesIO()
    pictures[0].save(
        file, "WEBP", save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=QUALITY, method=2
    )
    return file.getvalue()


def check_animation(heading: Heading, clips: Iterable[ShownClip], columns: int | None) -> None:
    """Raise OutputError if an animation of clips would be too large. The clips come from `Inspector.outline`."""
    _layout(heading, clips, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The arrangement of clips in an animation, in space and time. Times are counted in ticks of TICK_MS.

    Attributes:
        clips: The clips.
        shown: For each clip, the ticks at which its frames are shown.
        ticks: int64, all ticks at which any clip shows its next frame.
        a_line: The number of clips per line.
        cell: (width, height) of a clip's picture with its name and caption.
        head: The picture of the heading.
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
    """Return the layout of an animation. Raise OutputError as soon as the clips so far are too large."""
    kept: list[ShownClip] = []
    pixels = 0
    for clip in clips:
        kept.append(clip)
        pixels += clip.size[0] * clip.size[1] * sum(frame.frame_index is not None for frame in clip.frames)
        _check(pixels)
    a_line = min(columns or min(WEBP_COLUMNS, math.ceil(math.sqrt(len(kept)))), max(1, len(kept)))
    cell_width = max([MIN_WEBP_CELL, *(clip.size[1] * clip.magnified for clip in kept)])
    cell_height = max([1, *(clip.size[0] * clip.magnified for clip in kept)]) + NAME + WEBP_CAPTION
    lines = -(-len(kept) // max(1, a_line))
    width = max(MIN_WEBP_WIDTH, 2 * MARGIN + a_line * (cell_width + GAP) - GAP)
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
    """Raise OutputError if an animation of this size is too large.

    Args:
        pixels: The number of pixels of all pictures together.
        width, height: The size of one picture. 0 if it is not known yet.
    """
    if pixels > MAX_WEBP_PIXELS or max(width, height) > MAX_WEBP_SIDE:
        raise OutputError(
            "the sheet is too large for an animation",
            found=f"{pixels:,} pixels in all pictures, {width:,} x {height:,} each" if width else f"{pixels:,} pixels",
            allowed=f"sides of {MAX_WEBP_SIDE:,}, {MAX_WEBP_PIXELS:,} pixels in all",
            remedy="show fewer clips, pass a smaller --size, or browse the dataset with --serve",
        )


def _places(clip: ShownClip) -> NDArray[np.int64]:
    """Return int64 [frames], the tick at which each frame of a clip is shown, in strictly ascending order."""
    lengths = np.maximum(np.diff(begins(clip.frames)), TICK_MS / 1000)[:-1]
    exact = np.concatenate([np.zeros(min(1, len(clip.frames))), np.cumsum(lengths)])
    return np.floor(exact * 1000 / TICK_MS + 1e-6).astype(np.int64)  # 1e-6 compensates for rounding errors of times


def _cell(clip: ShownClip, place: int, size: tuple[int, int]) -> Image.Image:
    """Return the picture of one frame of a clip, with the file's name above, and the frame's number and time below."""
    width, height = size
    cell = Image.new("RGB", size, GROUND)
    pen = ImageDraw.Draw(cell)
    pen.text((0, 0), cut_beginning(clip.uri, 13, width), fill=INK, font=font(13))
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
    time = "" if frame.seconds is None else f"{frame.seconds:,.3f} s"
    pen.text((0, below), f"{number}  {time}", fill=INK, font=font(12))
    pen.text((width, below), f"{place + 1:,}/{len(clip.frames):,}", fill=SOFT, font=font(11), anchor="ra")
    assert height >= below  # the height of cells is that of the tallest picture
    return cell
