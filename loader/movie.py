"""A clip as a tiny MP4: the sharder's box headers around the packets that were read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framedex.sharder.clip import Clip
from framedex.sharder.mp4 import movie_header
from framedex.sharder.sources import EncodedClip


def clip_movie(clip: Clip, encoded: EncodedClip) -> NDArray[np.uint8]:
    """Return uint8 [bytes]: a movie whose n-th presented frame is the clip's packet of rank n.

    A decoder that treats it as one stream sees every run after the first without a flush before it; see
    `routes.gpu_obstacle` for when that is safe.
    """
    header = movie_header(
        codec=clip.medium.codec,
        width=clip.medium.width,
        height=clip.medium.height,
        configuration=clip.medium.extradata or b"",
        packet_size=np.diff(encoded.packet_first),
        packet_rank=clip.recipe.packet_rank,
        sync=clip.recipe.run_first,
    )
    return np.concatenate([np.frombuffer(header, np.uint8), encoded.payload])
