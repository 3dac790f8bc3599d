"""Compute which windows (rectangles) of scaled frames are delivered, and cut them out of NumPy arrays or torch tensors.

If a picture is not scaled, this module crops the decoded picture before the conversion to RGB, so that only the cropped
part is converted. The part is larger than the wanted windows, because chroma is interpolated from neighbouring samples.
The part begins at a multiple of 32 pixels, and therefore with a whole sample of chroma. As a result, the wanted pixels
have the same values as after a conversion of the whole picture.
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
    """A rectangle of a scaled frame. Pixels of the window that are outside of the frame are zeros.

    Attributes:
        top: The first row, negative if the window extends beyond the top of the frame.
        left: The first column, negative if the window extends beyond the left side of the frame.
        is_flipped: Whether the window is mirrored left to right.
    """

    top: int
    left: int
    is_flipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutout:
    """The scaling and turning of one clip's frames, and the windows that are cut out of the frames.

    Attributes:
        scaled: (height, width) of whole frames after they are scaled and turned.
        size: (height, width) of each window.
        windows: The windows of the scaled and turned frames.
        is_stacked: Whether arrays have an axis of windows before the axis of frames. If False, there is one window.
        turns: The number of quarter turns counterclockwise, 0 to 3, by which frames are turned.
        part: ((top, left), (height, width)) of the part of a picture that is scaled to `scaled_picture`, in pixels of
            the picture before it is scaled and turned. If None, the whole picture is scaled.
    """

    scaled: Size
    size: Size
    windows: tuple[Window, ...] = (Window(0, 0),)
    is_stacked: bool = False
    turns: int = 0
    part: tuple[Size, Size] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether scaled and turned frames are delivered whole, without cutting or mirroring."""
        return self == whole(self.scaled)

    @property
    def scaled_picture(self) -> Size:
        """(height, width) to which a decoded picture is scaled before it is turned."""
        return self.scaled[::-1] if self.turns % 2 else self.scaled

    @property
    def leading(self) -> tuple[int, ...]:
        """The leading dimension of arrays: (number of windows,), or () if windows have no axis."""
        return (len(self.windows),) if self.is_stacked else ()

    @property
    def stands_out(self) -> bool:
        """Whether a window extends beyond the scaled frame."""
        return any(
            min(window.top, window.left) < 0
            or window.top + self.size[0] > self.scaled[0]
            or window.left + self.size[1] > self.scaled[1]
            for window in self.windows
        )

    def box(self) -> Part:
        """Return the rows and columns of the smallest part that contains all windows, before the picture is turned."""
        shown = [self.overlap(window)[0] for window in self.windows]
        rows, columns = (
            slice(min(part[axis].start for part in shown), max(part[axis].stop for part in shown)) for axis in (0, 1)
        )
        return _turned((rows, columns), self.scaled, -self.turns)

    def of_stored(self, shown: Size, stored: Size, turns: int) -> Cutout:
        """Return the cutout for stored pictures, given a cutout for the pictures that players show.

        The bounds of `part` become even, because most formats have one chroma sample for two rows or columns.

        Args:
            shown: (height, width) of shown pictures, to which `part` refers.
            stored: (height, width) of stored pictures.
            turns: The number of quarter turns counterclockwise from stored to shown pictures.
        """
        if self.part is None:
            return replace(self, turns=turns)
        upright = tuple(slice(at, at + side) for at, side in zip(*self.part, strict=True))
        lying = _turned(upright, shown, -turns)  # type: ignore[arg-type]
        of = shown[::-1] if turns % 2 else shown
        spans = [_even(part, *sides) for part, *sides in zip(lying, of, stored, strict=True)]
        return replace(self, turns=turns, part=tuple(zip(*spans, strict=True)))  # type: ignore[arg-type]

    def within(self, part: Part) -> Cutout:
        """Return the same windows with positions relative to a part of the scaled picture.

        Args:
            part: Rows and columns of the picture before it is turned. They must contain the rows and columns of `box`.
        """
        rows, columns = _turned(part, self.scaled_picture, self.turns)
        top, left = rows.start, columns.start
        return replace(
            self,
            scaled=(rows.stop - top, columns.stop - left),
            windows=tuple(window._replace(top=window.top - top, left=window.left - left) for window in self.windows),
        )

    def overlap(self, window: Window) -> tuple[Part, Part]:
        """Return the overlap of a window and the scaled frame: its position in the frame, and in the window."""
        rows = _overlap(window.top, self.size[0], self.scaled[0])
        columns = _overlap(window.left, self.size[1], self.scaled[1])
        return (rows[0], columns[0]), (rows[1], columns[1])


def whole(size: Size) -> Cutout:
    """Return the cutout that scales frames to a size without cutting them."""
    return Cutout(scaled=size, size=size)


def _overlap(first: int, length: int, available: int) -> tuple[slice, slice]:
    begin, end = max(first, 0), max(min(first + length, available), max(first, 0))
    return slice(begin, end), slice(begin - first, end - first)


def _even(span: slice, shown: int, stored: int) -> tuple[int, int]:
    """Return (begin, length) of a span of rows or columns in a stored picture, with even bounds where possible.

    Args:
        span: The rows or columns of a shown picture.
        shown: The number of rows or columns of the shown picture.
        stored: The number of rows or columns of the stored picture.
    """
    begin, end = (2 * round(at * stored / shown / 2) for at in (span.start, span.stop))
    begin = min(begin, (stored - 1) // 2 * 2)
    end = stored if span.stop == shown else min(max(end, begin + 2), stored)
    return begin, end - begin


def _turned(part: Part, size: Size, turns: int) -> Part:
    """Return the rows and columns of a part of a picture after quarter turns counterclockwise.

    Args:
        part: Rows and columns of the picture.
        size: (height, width) of the picture.
        turns: The number of quarter turns. Negative numbers turn clockwise.
    """
    rows, columns = part
    for _ in range(turns % 4):
        rows, columns = slice(size[1] - columns.stop, size[1] - columns.start), rows
        size = size[::-1]
    return rows, columns


def cut_into(target: Any, pictures: Any, cutout: Cutout, library: ModuleType) -> None:
    """Turn scaled pictures, and copy their windows into the delivered array.

    Where a window extends beyond the pictures, `target` is not written.

    Args:
        target: [windows, …, h, w, C], the delivered array. It must be zero where windows extend beyond the pictures.
        pictures: […, H, W, C], scaled and not yet turned.
        cutout: The turn and the windows.
        library: The module of the arrays' type, `numpy` or `torch`.
    """
    frames = library.rot90(pictures, cutout.turns, (-3, -2)) if cutout.turns else pictures
    for place, window in zip(target, cutout.windows, strict=True):
        (rows, columns), (into_rows, into_columns) = cutout.overlap(window)
        shown = frames[..., rows, columns, :]
        if window.is_flipped:
            shown = library.flip(shown, (-2,))
            into_columns = slice(cutout.size[1] - into_columns.stop, cutout.size[1] - into_columns.start)
        place[..., into_rows, into_columns, :] = shown


# MARGIN is the number of additional pixels on each side of the wanted part. It is more than the interpolation of chroma
# needs in any format. The bounds of parts are multiples of GRID pixels.
MARGIN, GRID = 16, 32
WORTHWHILE = 0.75  # a part is cropped if it is at most this share of the picture's area; a larger part saves too little


class PictureFilter:
    """A filter of libavfilter that does not copy pictures. The filter graph is reused for pictures of the same shape.

    Args:
        name: The name of the filter in libavfilter.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._graph: av.filter.Graph | None = None
        self._shape: tuple[object, ...] | None = None  # (width, height, format, arguments) of the graph

    def filtered(self, picture: av.VideoFrame, arguments: str) -> av.VideoFrame:
        """Apply the filter with some arguments to a picture."""
        shape = (picture.width, picture.height, picture.format.name, arguments)
        if self._graph is None or self._shape != shape:
            graph = av.filter.Graph()
            graph.threads = 1  # with more threads, a forked process would wait forever for threads that it lacks
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
    """Crops pictures without copying them. Successive pictures of the same shape reuse one filter graph."""

    def __init__(self) -> None:
        self._crop = PictureFilter("crop")

    def exact(self, picture: av.VideoFrame, part: Part) -> av.VideoFrame | None:
        """Crop a picture to exactly this part. Return None if the part would not have whole samples of chroma.

        The chroma of the part's outer pixels is interpolated without samples from outside of the part.
        """
        steps = _chroma_steps(picture)
        if not _is_cut(picture) or any(
            side.start % step or side.stop % step for side, step in zip(part, steps, strict=True)
        ):
            return None
        return self._cropped(picture, *part)

    def _cropped(self, picture: av.VideoFrame, rows: slice, columns: slice) -> av.VideoFrame:
        width, height = columns.stop - columns.start, rows.stop - rows.start
        return self._crop.filtered(picture, f"{width}:{height}:{columns.start}:{rows.start}:exact=1")

    def part(self, picture: av.VideoFrame, wanted: Part) -> tuple[av.VideoFrame, Part]:
        """Crop a picture to a part that contains the wanted rows and columns.

        The picture is returned whole if the part would be nearly as large, or if a cropped picture of this format may
        be converted to other pixels than the whole picture.

        Returns:
            The cropped picture, and the rows and columns of the part.
        """
        rows, columns = _widened(wanted[0], picture.height), _widened(wanted[1], picture.width)
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if not _is_cut(picture) or height * width > WORTHWHILE * picture.height * picture.width:
            return picture, (slice(0, picture.height), slice(0, picture.width))
        return self._cropped(picture, rows, columns), (rows, columns)


def _is_cut(picture: av.VideoFrame) -> bool:
    """Return whether a picture can be cropped before its conversion to RGB without changing any RGB pixel.

    The picture must consist of planes of luma and chroma, or of luma alone. Its height and width must be whole numbers
    of chroma samples, because libswscale stretches the chroma of other pictures. libswscale converts the two fields of
    an interlaced picture separately, so each field must have a whole number of chroma rows.
    """
    shape = picture.format
    if shape.is_rgb or shape.has_palette or shape.is_bit_stream:
        return False
    sides = ((picture.width, shape.chroma_width), (picture.height, shape.chroma_height))
    is_even = all(GRID * chroma(side) == side * chroma(GRID) for side, chroma in sides)
    is_even = is_even and not picture.height % _chroma_steps(picture)[0]
    return is_even and (shape.is_planar or len(shape.components) == 1)


def _chroma_steps(picture: av.VideoFrame) -> tuple[int, int]:
    """Return the numbers of rows and of columns that share a chroma sample.

    In an interlaced picture, each of the two fields has chroma rows of its own. So 4 rows of 4:2:0, or 2 rows of 4:2:2,
    contain one chroma row of each field.
    """
    rows, columns = GRID // picture.format.chroma_height(GRID), GRID // picture.format.chroma_width(GRID)
    return rows * (2 if picture.interlaced_frame else 1), columns


def _widened(wanted: slice, full: int) -> slice:
    begin = max(0, wanted.start - MARGIN) // GRID * GRID
    return slice(begin, min(full, -(-(wanted.stop + MARGIN) // GRID) * GRID))
