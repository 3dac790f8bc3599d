"""How many visual tokens a model makes of clips, from their shapes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from framedex.errors import FramedexError
from framedex.loader.arguments import check_counts


def visual_tokens(shapes: ArrayLike, *, patch: int, merge: int = 1, temporal_patch: int = 1) -> NDArray[np.int64]:
    """Return int64 [clips]: the visual tokens of each clip, for models that cut frames into square patches.

    A model cuts every `temporal_patch` frames into patches, and joins `merge` × `merge` patches into one token. Frames
    and sizes that are no multiples are rounded up.

    Args:
        shapes: [clips, 3], the frames, height and width of each clip, such as `ClipDataset.shapes` returns.
        patch: side of a patch in pixels.
        merge: patches along each side of a token.
        temporal_patch: frames that share their tokens.

    Raises:
        FramedexError: `shapes` has another shape, or a number is below 1.
    """
    check_counts(patch=(patch, 1), merge=(merge, 1), temporal_patch=(temporal_patch, 1))
    table = np.asarray(shapes)
    if table.ndim != 2 or table.shape[1] != 3 or table.dtype.kind not in "iu":
        found = f"{table.dtype} {list(table.shape)}"
        raise FramedexError("shapes has frames, height and width of each clip", found=found, allowed="whole [clips, 3]")
    side = patch * merge
    tokens: NDArray[np.int64] = np.prod(-(-table.astype(np.int64) // (temporal_patch, side, side)), axis=1)
    return tokens
