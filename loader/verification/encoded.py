"""Checks encoded clips (`--encode`): each frame is the right one, and how much it lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import av
import av.error
import numpy as np
from numpy.typing import NDArray

from framedex.errors import DecodeError, StaleError
from framedex.indexer.images.rgb import resize_rgb, rgb_of
from framedex.indexer.schema import IMAGES
from framedex.loader.verification.checked import Checked, Verdict, verdict_on
from framedex.loader.verification.full_decode import decode_in_order
from framedex.loader.verification.image_truth import TAR, images_of
from framedex.loader.verification.member_truth import own_copy
from framedex.loader.verification.nearness import Nearness, Picture, nearness
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.medium import Medium
from framedex.sharder.decoding.rgb import RgbConverter
from framedex.sharder.decoding.video import decode_unique
from framedex.sharder.reading.local_copies import LOOSE, local_copy
from framedex.sharder.reading.sources import SourceFiles
from framedex.sharder.schema import PAD

BYTES_AT_ONCE = 1 << 30  # limit for the source's pictures that clips are compared with
Truth = dict[int, tuple[int | None, Picture]]  # presentation number → (pts, picture in the stored size)


def verify_encoded(clips: list[Clip], sources: SourceFiles) -> list[Checked]:
    """Return the verdicts on encoded clips of one medium, by a full decode of its source.

    A clip is "nearest" if each of its frames is nearer to its own picture of the source than to all others that the
    clip wants and to those before and after it. Of pictures that differ as little as the loss, any is right.
    """
    verdicts: list[Checked] = []
    for group in _groups(sorted(clips, key=lambda clip: int(clip.frame_index.max()))):
        try:
            truth = _truth(group)
        except (StaleError, av.error.FFmpegError, DecodeError, OSError) as error:
            verdicts += [_no_truth(clip, error) for clip in group]
            continue
        verdicts += [_check(clip, sources, truth) for clip in group]
    return verdicts


def _groups(clips: list[Clip]) -> Iterator[list[Clip]]:
    """Yield clips in groups whose pictures fit into memory together, or single clips."""
    group: list[Clip] = []
    numbers: set[int] = set()
    most = BYTES_AT_ONCE // (clips[0].medium.height * clips[0].medium.width * 3)
    for clip in clips:
        own = _compared(clip)
        if group and len(numbers | own) > most:
            yield group
            group, numbers = [], set()
        group.append(clip)
        numbers |= own
    yield group


def _compared(clip: Clip) -> set[int]:
    """Return the numbers of the frames that a clip wants, and of those before and after each."""
    wanted = clip.frame_index[clip.frame_index != PAD].tolist()
    return {near for number in wanted for near in (number - 1, number, number + 1) if near >= 0}


def _truth(clips: list[Clip]) -> Truth | None:
    """Return the source's pictures for some clips. None: a listing made a sequence of images, whose order is not known.

    Damage makes decoders lose pictures. There, timestamps tell frames apart, and wanted frames alone are known.
    """
    medium = clips[0].medium
    if medium.stream_index < 0:
        return _image_truth(medium, set().union(*map(_compared, clips)))

    def picture(frame: av.VideoFrame) -> Picture:
        return np.array(resize_rgb(RgbConverter().picture(frame), medium.height, medium.width))

    by_pts = medium.damaged_gop_count > 0 and medium.pts_source == "container"
    numbers = {
        pts: frame
        for clip in clips
        for frame, pts in zip(clip.frame_index.tolist(), clip.pts.tolist(), strict=True)
        if frame != PAD
    }
    wanted = set(numbers.values()) if by_pts else set().union(*map(_compared, clips))
    with own_copy(medium) as copy:
        decoded = decode_in_order(copy, wanted, by_pts=by_pts, mark=picture)
        if not by_pts:
            return {number: (pts, found) for number, pts, found in decoded}
        return {numbers[pts]: (pts, found) for _, pts, found in decoded if pts in numbers}


def _image_truth(medium: Medium, wanted: set[int]) -> Truth | None:
    container = TAR if medium.path.endswith(".tar") else LOOSE
    with local_copy(replace(medium, kind=IMAGES, container=container)) as copy:
        found = images_of(copy, wanted, lambda data: resize_rgb(rgb_of(data), medium.height, medium.width))
    return None if found is None else {number: (None, picture) for number, picture in found.items()}


def _no_truth(clip: Clip, error: Exception) -> Checked:
    if isinstance(error, StaleError):
        return verdict_on(clip, None, "stale", error.text())
    return verdict_on(clip, None, "undecodable", f"the source's full decode stops: {error}")


def _check(clip: Clip, sources: SourceFiles, truth: Truth | None) -> Checked:
    try:
        encoded = sources.read(clip.source, clip.recipe, clip.medium.states)
        by_rank = dict(decode_unique(clip, encoded))
    except StaleError as error:
        return verdict_on(clip, None, "stale", error.text())
    except DecodeError as error:
        return verdict_on(clip, None, "undecodable", error.text())
    if truth is None:
        return replace(verdict_on(clip, None, "nearest", None), undecided=len(by_rank))
    frame_of = dict(zip(clip.recipe.position.tolist(), clip.frame_index.tolist(), strict=True))
    ranks = sorted(by_rank)
    frames = [frame_of[rank] for rank in ranks]
    reason = _unlike_times(clip, truth)
    if reason is not None:
        return verdict_on(clip, None, "differs", reason)
    candidates = sorted(_compared(clip) & truth.keys())
    near = nearness(
        [by_rank[rank] for rank in ranks],
        np.searchsorted(candidates, frames),
        [truth[number][1] for number in candidates],
    )
    reason = _unlike_pictures(near, frames, candidates)
    verdict: Verdict = "nearest" if reason is None else "differs"
    return replace(
        verdict_on(clip, None, verdict, reason),
        source_psnr=round(float(near.psnr.min()), 2),
        undecided=int(near.undecided.sum()),
    )


def _unlike_times(clip: Clip, truth: Truth) -> str | None:
    """Return which frame the source does not have, or has at another time."""
    for frame, pts in zip(clip.frame_index.tolist(), clip.pts.tolist(), strict=True):
        if frame == PAD:
            continue
        if frame not in truth:
            return f"the source has no frame {frame}"
        if clip.medium.pts_source == "container" and truth[frame][0] != pts and clip.medium.stream_index >= 0:
            return f"frame {frame} has pts {truth[frame][0]}, not {pts}"
    return None


def _unlike_pictures(near: Nearness, frames: list[int], candidates: list[int]) -> str | None:
    """Return which frame is another picture."""
    wrong: NDArray[np.bool_] = (near.other >= 0) | near.unlike
    if not wrong.any():
        return None
    place = int(np.argmax(wrong))
    loss = f"{near.psnr[place]:.1f} dB from its own"
    if near.other[place] >= 0:
        return f"frame {frames[place]} is the picture of frame {candidates[near.other[place]]}; {loss}"
    return f"frame {frames[place]} is not a picture of its source; {loss}"
