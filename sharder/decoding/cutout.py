"""Compute and cut the windows of scaled frames that are delivered, for arrays of NumPy and of torch.

If a picture is not scaled, this module crops the decoded picture before the conversion to RGB, so that only the cropped
part is converted. The part is larger than the wanted windows, because chroma is interpolated from neighbouring samples.
It begins at a multiple of 32 pixels, and therefore with a whole sample of chroma. As a result, the wanted pixels equal
those of a conversion of the whole picture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import av
import av.filter
import numpy as np
from numpy.typing import NDArray

Size = tuple[int, int]  # height, width


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
    """The geometry of one clip: the size to which frames are scaled, and the windows that are cut from scaled frames.

    Attributes:
        scaled: The (height, width) to which whole frames are scaled.
        size: The (height, width) of each window.
        windows: The windows of the scaled frames.
        is_stacked: Whether the delivered array has an axis of windows before the axis of frames. If not, there is only
            one window.
    """

    scaled: Size
    size: Size
    windows: tuple[Window, ...] = (Window(0, 0),)
    is_stacked: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether scaled frames are delivered without cutting."""
        return self.size == self.scaled and self.windows == (Window(0, 0),) and not self.is_stacked

    @property
    def leading(self) -> tuple[int, ...]:
        """The shape of the axis of windows: (number of windows,), or () if there is no such axis."""
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

    def box(self) -> tuple[slice, slice]:
        """Return the rows and columns of the smallest part of a scaled frame that contains all windows."""
        shown = [self.overlap(window)[0] for window in self.windows]
        rows, columns = ([part[axis] for part in shown] for axis in (0, 1))
        return (
            slice(min(part.start for part in rows), max(part.stop for part in rows)),
            slice(min(part.start for part in columns), max(part.stop for part in columns)),
        )

    def within(self, part: tuple[slice, slice]) -> Cutout:
        """Return a cutout with the same windows, relative to a part of the scaled frame.

        Args:
            part: The rows and columns of the part. They must contain `box`.
        """
        top, left = part[0].start, part[1].start
        return replace(
            self,
            scaled=(part[0].stop - top, part[1].stop - left),
            windows=tuple(window._replace(top=window.top - top, left=window.left - left) for window in self.windows),
        )

    def overlap(self, window: Window) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
        """Return the rows and columns of the scaled frame that a window contains, and their positions in the window."""
        rows = _overlap(window.top, self.size[0], self.scaled[0])
        columns = _overlap(window.left, self.size[1], self.scaled[1])
        return (rows[0], columns[0]), (rows[1], columns[1])


def whole(size: Size) -> Cutout:
    """Return the cutout for frames that are scaled to a size and not cut."""
    return Cutout(scaled=size, size=size)


def cut(frames: NDArray[Any], cutout: Cutout) -> NDArray[Any]:
    """Cut the windows out of scaled frames. Return [F, h, w, C], or [windows, F, h, w, C] if windows are stacked.

    Args:
        frames: [F, H, W, C], the scaled frames.
        cutout: The cutout with the windows.
    """
    if cutout.is_whole:
        return frames
    target = np.zeros((len(cutout.windows), len(frames), *cutout.size, frames.shape[-1]), frames.dtype)
    cut_into(target, frames, cutout, np.flip)
    return target if cutout.is_stacked else target[0]


def _overlap(first: int, length: int, available: int) -> tuple[slice, slice]:
    begin, end = max(first, 0), max(min(first + length, available), max(first, 0))
    return slice(begin, end), slice(begin - first, end - first)


def cut_into(target: Any, frames: Any, cutout: Cutout, flip: Any) -> None:
    """Copy the windows of scaled frames into an array. Pixels of windows beyond the frames are not written.

    Args:
        target: [windows, …, h, w, C], the output. It must be zero where windows extend beyond the frames.
        frames: […, H, W, C], the scaled frames.
        cutout: The cutout with the windows.
        flip: `numpy.flip` or `torch.flip`. flip(array, (-2,)) must mirror axis -2 of an array.
    """
    for place, window in zip(target, cutout.windows, strict=True):
        (rows, columns), (into_rows, into_columns) = cutout.overlap(window)
        shown = frames[..., rows, columns, :]
        if window.is_flipped:
            shown = flip(shown, (-2,))
            into_columns = slice(cutout.size[1] - into_columns.stop, cutout.size[1] - into_columns.start)
        place[..., into_rows, into_columns, :] = shown


# MARGIN is the number of additional pixels on each side of the wanted part. The interpolation of chroma needs fewer
# pixels in all formats. The bounds of parts are multiples of GRID pixels.
MARGIN, GRID = 16, 32
WORTHWHILE = 0.75  # maximum share of the picture's area up to which a part is cropped; larger parts save too little

Part = tuple[slice, slice]  # rows, columns


class PictureFilter:
    """A filter of libavfilter that does not copy pictures. Its graph is kept while pictures have the same shape.

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
    """Crops pictures without copying them. Successive pictures of the same shape are fast."""

    def __init__(self) -> None:
        self._crop = PictureFilter("crop")

    def part(self, picture: av.VideoFrame, wanted: Part) -> tuple[av.VideoFrame, Part]:
        """Crop a picture to a part that contains the wanted rows and columns.

        The picture is not cropped if the part is nearly the whole picture, or if the conversion of a part may differ
        from the conversion of the whole picture in this format.

        Returns:
            The cropped picture, and the rows and columns of the part.
        """
        rows, columns = _widened(wanted[0], picture.height), _widened(wanted[1], picture.width)
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if not _is_cut(picture) or height * width > WORTHWHILE * picture.height * picture.width:
            return picture, (slice(0, picture.height), slice(0, picture.width))
        found = self._crop.filtered(picture, f"{width}:{height}:{columns.start}:{rows.start}:exact=1")
        return found, (rows, columns)


def _is_cut(picture: av.VideoFrame) -> bool:
    """Return whether a picture can be cropped before conversion without a change of the result.

    The picture must consist of planes of luma and chroma, or of luma alone. Its height and width must be whole numbers
    of chroma samples, because libswscale stretches the chroma of other pictures. libswscale converts the two fields of
    an interlaced picture separately, so each field must have a whole number of chroma rows.
    """
    shape = picture.format
    if shape.is_rgb or shape.has_palette or shape.is_bit_stream:
        return False
    sides = ((picture.width, shape.chroma_width), (picture.height, shape.chroma_height))
    is_even = all(GRID * chroma(side) == side * chroma(GRID) for side, chroma in sides)
    rows = 2 * GRID // shape.chroma_height(GRID)  # number of luma rows in which each field has one row of chroma
    is_even = is_even and not (picture.interlaced_frame and picture.height % rows)
    return is_even and (shape.is_planar or len(shape.components) == 1)


def _widened(wanted: slice, full: int) -> slice:
    begin = max(0, wanted.start - MARGIN) // GRID * GRID
    return slice(begin, min(full, -(-(wanted.stop + MARGIN) // GRID) * GRID))
