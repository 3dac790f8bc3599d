"""The verdict on one clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framedex.records.clip import PAD
from framedex.sharder.clips.clip import Clip

# "nearest": a picture that is not the source's, bit for bit, but nearer to it than to any other (`encoded`,
# `verify_gpu`).
Verdict = Literal["exact", "nearest", "differs", "undecodable", "stale", "internal_error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The verdict on one clip.

    Attributes:
        clip_id: the clip's name.
        uri: its source.
        frames: frame numbers, -1 where padded.
        pts: the timestamp of each frame, None where padded.
        md5: the MD5 of each frame, None where padded and where nothing was decoded.
        verdict: the verdict.
        reason: why the clip is not right, else None.
        source_psnr: of an encoded clip, the lowest PSNR of its frames against the source's, in dB. None: the clip is
            not encoded, or the comparison did not finish.
        undecided: how many frames cannot be told from another picture of their source.
    """

    clip_id: str
    uri: str
    frames: list[int]
    pts: list[int | None]
    md5: list[str | None]
    verdict: Verdict
    reason: str | None
    source_psnr: float | None = None
    undecided: int = 0


def verdict_on(clip: Clip, by_rank: dict[int, str] | None, verdict: Verdict, reason: str | None) -> Checked:
    """Return a verdict on a clip.

    Args:
        clip: the clip.
        by_rank: the MD5 of each picture by its rank. None: none is known.
        verdict: the verdict.
        reason: why the clip is not right, else None.
    """
    frames = clip.frames.tolist()
    return Checked(
        clip_id=clip.clip_id,
        uri=clip.medium.name,
        frames=frames,
        pts=[None if frame == PAD else pts for frame, pts in zip(frames, clip.pts.tolist(), strict=True)],
        md5=[None if rank == PAD or by_rank is None else by_rank[rank] for rank in clip.recipe.position.tolist()],
        verdict=verdict,
        reason=reason,
    )
