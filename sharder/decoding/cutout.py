"""Which part of the scaled frames of a clip is delivered: pure geometry, the same for arrays of numpy and of torch.

Cuts a part out of a decoded picture before it is converted, so that only this part is converted.

The part is larger than what is wanted of it, so that the wanted samples are those of a conversion of the whole picture:
chroma is interpolated from neighbours, and a part that begins at a multiple of 32 begins with a whole sample of chroma.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from types import ModuleType
from typing import Any, NamedTuple

import av
import av.filter

Size = tuple[int, int]  # height, width
Part = tuple[slice, slice]  # rows, columns


class Window(NamedTuple):
    """A rectangle of a scaled frame. It may stand out of the frame, where there are zeros.

    Attributes:
        top: Its first row, below 0 if it stands out.
        left: Its first column, below 0 if it stands out.
        is_flipped: Whether it is mirrored left to right.
    """

    top: int
    left: int
    is_flipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutout:
    """How the frames of one clip are scaled, turned and cut.

    Attributes:
        scaled: (height, width) of whole frames after they are scaled and turned.
        size: (height, width) of each window.
        windows: The windows of the scaled and turned frames.
        is_stacked: Whether the windows are an axis in front of the frames. If not, there is one window.
        turns: The number of quarter turns counterclockwise, 0 to 3, by which frames are turned.
    """

    scaled: Size
    size: Size
    windows: tuple[Window, ...] = (Window(0, 0),)
    is_stacked: bool = False
    turns: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether scaled frames are delivered as they are."""
        return self == whole(self.scaled)

    @property
    def scaled_picture(self) -> Size:
        """(height, width) to which a decoded picture is scaled before it is turned."""
        return self.scaled[::-1] if self.turns % 2 else self.scaled

    @property
    def leading(self) -> tuple[int, ...]:
        """The axis of the windows as a shape: () if there is none."""
        return (len(self.windows),) if self.is_stacked else ()

    @property
    def stands_out(self) -> bool:
        """Whether a window shows more than the scaled frame has."""
        return any(
            min(window.top, window.left) < 0
            or window.top + self.size[0] > self.scaled[0]
            or window.left + self.size[1] > self.scaled[1]
            for window in self.windows
        )

    def box(self) -> Part:
        """Return the rows and columns of the smallest part of a scaled picture, not yet turned, with all windows."""
        shown = [self.overlap(window)[0] for window in self.windows]
        rows, columns = ([part[axis] for part in shown] for axis in (0, 1))
        part = (
            slice(min(part.start for part in rows), max(part.stop for part in rows)),
            slice(min(part.start for part in columns), max(part.stop for part in columns)),
        )
        return _turned(part, self.scaled, -self.turns)

    def within(self, part: Part) -> Cutout:
        """Return the same windows of a part of the scaled picture.

        Args:
            part: Rows and columns of the picture, not yet turned, in which those of `box` lie.
        """
        rows, columns = _turned(part, self.scaled_picture, self.turns)
        top, left = rows.start, columns.start
        return replace(
            self,
            scaled=(rows.stop - top, columns.stop - left),
            windows=tuple(window._replace(top=window.top - top, left=window.left - left) for window in self.windows),
        )

    def overlap(self, window: Window) -> tuple[Part, Part]:
        """Return the rows and columns that a window shows of a scaled frame, and where they lie in the window."""
        rows = _overlap(window.top, self.size[0], self.scaled[0])
        columns = _overlap(window.left, self.size[1], self.scaled[1])
        return (rows[0], columns[0]), (rows[1], columns[1])


def whole(size: Size) -> Cutout:
    """Return the cutout of frames that are scaled and not cut."""
    return Cutout(scaled=size, size=size)


def _overlap(first: int, length: int, available: int) -> tuple[slice, slice]:
    begin, end = max(first, 0), max(min(first + length, available), max(first, 0))
    return slice(begin, end), slice(begin - first, end - first)


def _turned(part: Part, size: Size, turns: int) -> Part:
    """Return the rows and columns of a part of a picture after quarter turns counterclockwise.

    Args:
        part: Rows and columns of the picture.
        size: (height, width) of the picture.
        turns: The number of turns, clockwise if it is below 0.
    """
    rows, columns = part
    for _ in range(turns % 4):
        rows, columns = slice(size[1] - columns.stop, size[1] - columns.start), rows
        size = size[::-1]
    return rows, columns


def cut_into(target: Any, pictures: Any, cutout: Cutout, library: ModuleType) -> None:
    """Turn scaled pictures, and copy their windows to where they are delivered.

    Parts of windows outside of the pictures are not written.

    Args:
        target: [windows, …, h, w, C], zeros where windows may stand out.
        pictures: […, H, W, C], scaled and not yet turned.
        cutout: The turn and the windows.
        library: `numpy` or `torch`, whichever the arrays are of.
    """
    frames = library.rot90(pictures, cutout.turns, (-3, -2)) if cutout.turns else pictures
    for place, window in zip(target, cutout.windows, strict=True):
        (rows, columns), (into_rows, into_columns) = cutout.overlap(window)
        shown = frames[..., rows, columns, :]
        if window.is_flipped:
            shown = library.flip(shown, (-2,))
            into_columns = slice(cutout.size[1] - into_columns.stop, cutout.size[1] - into_columns.start)
        place[..., into_rows, into_columns, :] = shown


# Pixels around the wanted ones, more than the interpolation of chroma reaches in any format; and the grid of parts.
MARGIN, GRID = 16, 32
WORTHWHILE = 0.75  # share of the picture; larger parts are not cut out


class PictureFilter:
    """A filter of libavfilter for pictures, which are not copied. Picture after picture of one shape is fast.

    Args:
        name: The name of the filter.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._graph: av.filter.Graph | None = None
        self._shape: tuple[object, ...] | None = None  # the graph takes only pictures of this shape and format

    def filtered(self, picture: av.VideoFrame, arguments: str) -> av.VideoFrame:
        """Return a filtered picture."""
        shape = (picture.width, picture.height, picture.format.name, arguments)
        if self._graph is None or self._shape != shape:
            graph = av.filter.Graph()
            graph.threads = 1  # a forked process would lack the graph's threads and wait for them forever
            source = graph.add_buffer(
                width=picture.width, height=picture.height, format=picture.format, time_base=Fraction(1, 1000)
            )
            graph.link_nodes(source, graph.add(self._name, arguments), graph.add("buffersink")).configure()
            self._graph, self._shape = graph, shape
        self._graph.push(picture)
        found = self._graph.pull()
        assert isinstance(found, av.VideoFrame)
        return found


class Cropper:
    """Cuts parts out of pictures, without copying them. Picture after picture of one shape is fast."""

    def __init__(self) -> None:
        self._crop = PictureFilter("crop")

    def part(self, picture: av.VideoFrame, wanted: Part) -> tuple[av.VideoFrame, Part]:
        """Return a picture that shows a part that holds the wanted rows and columns, and that part's rows and columns.

        Returns the picture itself if its format is not known to have the same samples in parts, or if nearly all of it
        is wanted.
        """
        rows, columns = _widened(wanted[0], picture.height), _widened(wanted[1], picture.width)
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if not _is_cut(picture) or height * width > WORTHWHILE * picture.height * picture.width:
            return picture, (slice(0, picture.height), slice(0, picture.width))
        found = self._crop.filtered(picture, f"{width}:{height}:{columns.start}:{rows.start}:exact=1")
        return found, (rows, columns)


def _is_cut(picture: av.VideoFrame) -> bool:
    """Return whether pictures like this one are cut before conversion: planes of luma and chroma, or luma alone.

    libswscale stretches the chroma of a picture whose sides are not whole samples of chroma. It converts the
    two fields of an interlaced picture apart from each other, so each of them must have whole samples.
    """
    shape = picture.format
    if shape.is_rgb or shape.has_palette or shape.is_bit_stream:
        return False
    sides = ((picture.width, shape.chroma_width), (picture.height, shape.chroma_height))
    is_even = all(GRID * chroma(side) == side * chroma(GRID) for side, chroma in sides)
    rows = 2 * GRID // shape.chroma_height(GRID)  # in which each field has a row of chroma
    is_even = is_even and not (picture.interlaced_frame and picture.height % rows)
    return is_even and (shape.is_planar or len(shape.components) == 1)


def _widened(wanted: slice, full: int) -> slice:
    begin = max(0, wanted.start - MARGIN) // GRID * GRID
    return slice(begin, min(full, -(-(wanted.stop + MARGIN) // GRID) * GRID))
