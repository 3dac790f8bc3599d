"""The shapes of clips, from columns alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SIZE_FIELDS = ("height", "width", "rotation_degrees")  # of a clip's medium, never null
SHAPE_FIELDS = ("wanted_frames", *SIZE_FIELDS)


def shapes_of(
    frames: pa.ChunkedArray,
    height: pa.ChunkedArray,
    width: pa.ChunkedArray,
    rotation_degrees: pa.ChunkedArray,
    *,
    upright: bool,
) -> NDArray[np.int64]:
    """Return int64 [clips, 3]: frames, height and width of each clip.

    Args:
        frames: how many frames each clip has.
        height: of the stored pictures of each clip.
        width: of the stored pictures of each clip.
        rotation_degrees: how a player turns the pictures.
        upright: whether they are turned so, to the nearest quarter turn.
    """
    shapes = np.stack([column.to_numpy().astype(np.int64) for column in (frames, height, width)], axis=1)
    if upright:
        turned = np.rint(rotation_degrees.to_numpy() / 90).astype(np.int64) % 2 == 1
        shapes[turned, 1:] = shapes[turned, :0:-1]
    return shapes
