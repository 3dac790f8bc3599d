"""Verification of encoded clips (`--encode`): whether each frame is the right picture, and how much it lost.

A lossy picture is compared with its own picture of the source and with others, by mean square differences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import av
import numpy as np
from numpy.typing import NDArray

from framedex.errors import DecodeError, StaleError, UncuttableError
from framedex.indexer.probing.image_facts import resize_rgb, rgb_of
from framedex.loader.verification import truth as reference
from framedex.loader.verification.truth import TAR, Checked, verdict_of, verdict_on
from framedex.records.clip import PAD
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.decoding.rgb import RgbConverter
from framedex.sharder.decoding.video import decode_unique
from framedex.sharder.packing.encoders import MATRIX, RANGE_NAME, colour_of, encode
from framedex.sharder.packing.pack_options import EncodeOptions
from framedex.sharder.reading import LOOSE, EncodedClip, SourceFiles, local_copy

Picture = NDArray[np.uint8]

PEAK = 255.0
MIN_SQUARE = 1e-6  # mean square difference that counts as no difference: 108 dB
VALUES_AT_ONCE = 1 << 16  # of each picture; their products are summed exactly in float64
# If a picture is nearer to another one of the source than to its own, and the two differ by more than twice its own
# distance to the nearer one, the triangle inequality says that its own is farther away, whatever was lost.
TWICE = 4.0  # squared
ROUNDED = 4.0  # mean square difference that counts as lost in rounding: 42 dB


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """The comparison of some lossy pictures with the pictures of their source.

    Attributes:
        psnr: float64 [F], the PSNR against each one's own picture, in dB.
        other: int64 [F], the place of the candidate that the picture shows instead of its own, -1 if it is its own.
        unlike: bool [F], whether the picture is farther from its own than encoding explains.
        undecided: bool [F], whether another candidate is as near as its own, or nearer by less than was lost.
    """

    psnr: NDArray[np.float64]
    other: NDArray[np.int64]
    unlike: NDArray[np.bool_]
    undecided: NDArray[np.bool_]


def nearness(
    found: Sequence[Picture],
    own: NDArray[np.int64],
    candidates: Sequence[Picture],
    lost: NDArray[np.float64],
) -> Nearness:
    """Compare lossy pictures with pictures of their source.

    Args:
        found: uint8 [H, W, 3] each, at least one.
        own: int64 [F], the place among the candidates of what each of them should be.
        candidates: uint8 [H, W, 3] each.
        lost: float64 [F], the mean square difference that encoding makes.
    """
    away = mean_squares(found, candidates)
    between = mean_squares([candidates[place] for place in own.tolist()], candidates)
    rows = np.arange(len(found))
    mine = away[rows, own]
    away[rows, own] = np.inf
    best = away.argmin(axis=1)
    nearest = away[rows, best]
    is_near = nearest <= mine
    is_other = is_near & (between[rows, best] > TWICE * nearest)
    return Nearness(
        psnr=10 * np.log10(PEAK**2 / np.maximum(mine, MIN_SQUARE)),
        other=np.where(is_other, best, -1),
        unlike=mine > TWICE * lost + ROUNDED,
        undecided=is_near & ~is_other,
    )


def mean_squares(some: Sequence[Picture], others: Sequence[Picture]) -> NDArray[np.float64]:
    """Return float64 [some, others]: the mean square difference of each picture from each other one."""
    left, right = (np.stack([picture.ravel() for picture in pictures]) for pictures in (some, others))
    total = np.zeros((len(left), len(right)))
    for first in range(0, left.shape[1], VALUES_AT_ONCE):
        one, other = (side[:, first : first + VALUES_AT_ONCE].astype(np.float64) for side in (left, right))
        total += (one * one).sum(axis=1)[:, None] + (other * other).sum(axis=1) - 2 * (one @ other.T)
    squares: NDArray[np.float64] = total / left.shape[1]
    return squares


BYTES_AT_ONCE = 1 << 30  # limit for the source's pictures that clips are compared with
Truth = dict[int, tuple[int | None, Picture]]  # presentation number → (pts, picture in the stored size)


def verify_encoded(clips: list[Clip], options: EncodeOptions, sources: SourceFiles) -> list[Checked]:
    """Return the verdicts on encoded clips of one medium, by a full decode of its source.

    The source's pictures are encoded again. A clip with the same bytes is "nearest". Another version of an encoder
    gives other bytes. Then a clip is "nearest" if each of its frames is nearer to its own picture than to all others
    that the clip wants and to those before and after it, and lost no more than twice what encoding it again loses.
    """
    verdicts: list[Checked] = []
    for group in _groups(sorted(clips, key=lambda clip: int(clip.frames.max()))):
        try:
            truth = _truth(group)
        except (StaleError, av.error.FFmpegError, DecodeError, OSError) as error:
            verdicts += [reference.full_decode_failure(error, clip) for clip in group]
            continue
        verdicts += [_check(clip, options, sources, truth) for clip in group]
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
    wanted = clip.frames[clip.frames != PAD].tolist()
    return {near for number in wanted for near in (number - 1, number, number + 1) if near >= 0}


def _truth(clips: list[Clip]) -> Truth | None:
    """Return the source's pictures for some clips, or None for an image sequence of a listing: its order is unknown.

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
        for frame, pts in zip(clip.frames.tolist(), clip.pts.tolist(), strict=True)
        if frame != PAD
    }
    wanted = set(numbers.values()) if by_pts else set().union(*map(_compared, clips))
    with reference.own_copy(medium) as copy:
        decoded = reference.decode_in_order(copy, wanted, by_pts=by_pts, mark=picture)
        if not by_pts:
            return {number: (pts, found) for number, pts, found in decoded}
        return {numbers[pts]: (pts, found) for _, pts, found in decoded if pts in numbers}


def _image_truth(medium: Medium, wanted: set[int]) -> Truth | None:
    container = TAR if medium.path.endswith(".tar") else LOOSE
    with local_copy(replace(medium, kind=IMAGES, container=container)) as copy:
        found = reference.images_of(copy, wanted, lambda data: resize_rgb(rgb_of(data), medium.height, medium.width))
    return None if found is None else {number: (None, picture) for number, picture in found.items()}


def _check(clip: Clip, options: EncodeOptions, sources: SourceFiles, truth: Truth | None) -> Checked:
    try:
        encoded = sources.read(clip)
        by_rank = dict(decode_unique(clip, encoded))
    except (StaleError, DecodeError) as error:
        return verdict_of(error, clip)
    if truth is None:
        return replace(verdict_on(clip, None, "nearest", None), undecided=len(by_rank))
    reason = _unlike_times(clip, truth)
    if reason is not None:
        return verdict_on(clip, None, "differs", reason)
    try:
        return _compare(clip, encoded, [by_rank[rank] for rank in sorted(by_rank)], options, truth)
    except UncuttableError as error:
        return verdict_of(error, clip)


def _compare(clip: Clip, encoded: EncodedClip, found: list[Picture], options: EncodeOptions, truth: Truth) -> Checked:
    """Return the verdict on a clip's pictures, in the order of their ranks."""
    frames = np.unique(clip.frames[clip.frames != PAD])
    expected = [truth[number][1] for number in frames.tolist()]
    again, packets = _encoded_again(clip, expected, options)
    pictures = dict(decode_unique(again, packets))
    remade = [pictures[rank] for rank in range(len(expected))]
    lost = np.array([mean_squares([one], [own])[0, 0] for one, own in zip(remade, expected, strict=True)])
    candidates = sorted(_compared(clip) & truth.keys())
    near = nearness(found, np.searchsorted(candidates, frames), [truth[number][1] for number in candidates], lost)
    same = np.array_equal(packets.payload, encoded.payload)
    colours = (clip.medium.color_matrix, clip.medium.color_range) == (MATRIX, RANGE_NAME)
    reason = None if same else _unlike_pictures(near, frames.tolist(), candidates)
    if not colours or (same and not all(map(np.array_equal, found, remade))):
        reason = "the dataset describes the colours or the configuration of its packets wrongly"
    return replace(
        verdict_on(clip, None, "nearest" if reason is None else "differs", reason),
        source_psnr=round(float(near.psnr.min()), 2),
        undecided=0 if same else int(near.undecided.sum()),
    )


def _encoded_again(clip: Clip, pictures: list[Picture], options: EncodeOptions) -> tuple[Clip, EncodedClip]:
    """Return a clip with its pictures encoded again. Raises UncuttableError for sizes that no packing gives."""
    medium = clip.medium
    colour = colour_of(medium.color_primaries, medium.color_transfer)
    stream = encode(pictures, (medium.height, medium.width), options, colour)
    size = np.array([len(packet) for packet in stream.packets], np.int64)
    recipe = replace(
        clip.recipe,
        range_length=np.array([size.sum()]),
        packet_size=size.astype(np.int32),
        packet_rank=stream.rank,
        position=np.arange(len(pictures), dtype=np.int32),
    )
    payload = np.frombuffer(b"".join(stream.packets), np.uint8)
    described = replace(
        medium, extradata=stream.configuration, color_matrix=MATRIX, color_range=RANGE_NAME, states=[b""]
    )
    own = replace(clip, medium=described, recipe=recipe)
    return own, EncodedClip(payload=payload, packet_first=np.append(0, np.cumsum(size)))


def _unlike_times(clip: Clip, truth: Truth) -> str | None:
    """Return a description of the first frame that the source lacks or has at another time."""
    for frame, pts in zip(clip.frames.tolist(), clip.pts.tolist(), strict=True):
        if frame == PAD:
            continue
        if frame not in truth:
            return f"the source has no frame {frame}"
        if clip.medium.pts_source == "container" and truth[frame][0] != pts and clip.medium.stream_index >= 0:
            return f"frame {frame} has pts {truth[frame][0]}, not {pts}"
    return None


def _unlike_pictures(near: Nearness, frames: list[int], candidates: list[int]) -> str | None:
    """Return a description of the first frame that shows another picture or is too different."""
    wrong: NDArray[np.bool_] = (near.other >= 0) | near.unlike
    if not wrong.any():
        return None
    place = int(np.argmax(wrong))
    loss = f"{near.psnr[place]:.1f} dB from its own"
    if near.other[place] >= 0:
        return f"frame {frames[place]} is the picture of frame {candidates[near.other[place]]}; {loss}"
    return f"frame {frames[place]} differs from its source by more than encoding explains; {loss}"
