"""Cuts a part out of a decoded picture before it is converted, so that only this part is converted.

The part is larger than what is wanted of it, so that the wanted samples are those of a conversion of the whole picture:
chroma is interpolated from neighbours, and a part that begins at a multiple of 32 begins with a whole sample of chroma.
"""

from __future__ import annotations

from fractions import Fraction

import av
import av.filter

# Pixels around the wanted ones, more than the interpolation of chroma reaches in any format; and the grid of parts.
MARGIN, GRID = 16, 32
WORTHWHILE = 0.75  # share of the picture; larger parts are not cut out

Part = tuple[slice, slice]  # rows, columns


class Cropper:
    """Cuts parts out of pictures, without copying them. Picture after picture of one shape is fast."""

    def __init__(self) -> None:
        self._graph: av.filter.Graph | None = None
        self._shape: tuple[object, ...] | None = None  # of the pictures and parts that the graph takes

    def part(self, picture: av.VideoFrame, wanted: Part) -> tuple[av.VideoFrame, Part]:
        """Return a picture that shows a part that holds the wanted rows and columns, and that part's rows and columns.

        Returns the picture itself if its format is not known to have the same samples in parts, or if nearly all of it
        is wanted.
        """
        rows, columns = _widened(wanted[0], picture.height), _widened(wanted[1], picture.width)
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if not _is_cut(picture) or height * width > WORTHWHILE * picture.height * picture.width:
            return picture, (slice(0, picture.height), slice(0, picture.width))
        crop = f"{width}:{height}:{columns.start}:{rows.start}:exact=1"
        shape = (picture.width, picture.height, picture.format.name, crop)
        if self._graph is None or self._shape != shape:
            self._graph, self._shape = _graph(picture, crop), shape
        self._graph.push(picture)
        found = self._graph.pull()
        assert isinstance(found, av.VideoFrame)
        return found, (rows, columns)


def _is_cut(picture: av.VideoFrame) -> bool:
    """Return whether pictures like this one are cut before conversion: planes of luma and chroma, or luma alone.

    Of a picture whose sides are not whole samples of chroma, libswscale stretches the chroma a little. It converts the
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


def _graph(picture: av.VideoFrame, crop: str) -> av.filter.Graph:
    graph = av.filter.Graph()
    graph.threads = 1  # as in `rgb._centring_graph`
    nodes = (
        graph.add_buffer(
            width=picture.width, height=picture.height, format=picture.format, time_base=Fraction(1, 1000)
        ),
        graph.add("crop", crop),
        graph.add("buffersink"),
    )
    graph.link_nodes(*nodes).configure()
    return graph
