"""Verification of encoded clips (`--encode`).

Verification checks that each frame shows the right picture, and that the encoder lost no more than expected. A picture
of the clip is compared with the source picture that it should show and with other source pictures, by mean square
differences.
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
from framedex.sharder.clips.clip import Clip
from framedex.sharder.decoding.rgb import RgbConverter
from framedex.sharder.decoding.video import decode_unique
from framedex.sharder.packing.encoders import MATRIX, RANGE_NAME, colour_of, encode
from framedex.sharder.packing.pack_options import EncodeOptions
from framedex.sharder.reading import LOOSE, EncodedClip, SourceFiles, local_copy

Picture = NDArray[np.uint8]

PEAK = 255.0
MIN_SQUARE = 1e-6  # the smallest mean square difference that is reported. It corresponds to a PSNR of 108 dB
VALUES_AT_ONCE = 1 << 16  # values per picture in one matrix product. Sums of that many products are exact in float64
# The factor 2, for squared distances. Let d be the distance of a decoded picture from the source picture that is
# nearest to it. If that source picture and the expected one are more than 2 × d apart, the triangle inequality says
# that the decoded picture is more than d from the expected one. Then it shows the wrong picture.
TWICE = 4.0
ROUNDED = 4.0  # the mean square difference that rounding can explain. It corresponds to a PSNR of 42 dB


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """The result of comparing pictures of an encoded clip with source pictures.

    The source picture that a picture of the clip should show is called its expected picture. The source pictures with
    which it is compared are called candidates.

    Attributes:
        psnr: float64 [F], the PSNR of each picture against its expected picture, in dB.
        other: int64 [F], the index of the candidate that the picture shows instead of its expected picture. -1 if it
            does not show another candidate.
        unlike: bool [F], whether the picture differs from its expected picture by more than encoding explains.
        undecided: bool [F], whether another candidate is at least as near as the expected picture, but not so much
            nearer that the picture certainly shows it.
    """

    psnr: NDArray[np.float64]
    other: NDArray[np.int64]
    unlike: NDArray[np.bool_]
    undecided: NDArray[np.bool_]


def nearness(
    found: Sequence[Picture], own: NDArray[np.int64], candidates: Sequence[Picture], lost: NDArray[np.float64]
) -> Nearness:
    """Compare pictures of an encoded clip with source pictures.

    Args:
        found: The pictures of the clip, uint8 [H, W, 3]. There must be at least one.
        own: int64 [F]. For each picture in `found`, the index in `candidates` of the picture that it should show.
        candidates: The source pictures, uint8 [H, W, 3].
        lost: float64 [F], the mean square difference that encoding the expected picture causes.
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
    """Return float64 [some, others], the mean square difference between each of `some` and each of `others`."""
    left, right = (np.stack([picture.ravel() for picture in pictures]) for pictures in (some, others))
    total = np.zeros((len(left), len(right)))
    for first in range(0, left.shape[1], VALUES_AT_ONCE):
        one, other = (side[:, first : first + VALUES_AT_ONCE].astype(np.float64) for side in (left, right))
        total += (one * one).sum(axis=1)[:, None] + (other * other).sum(axis=1) - 2 * (one @ other.T)
    return np.divide(total, left.shape[1])


BYTES_AT_ONCE = 1 << 30  # limit in bytes for source pictures that are in memory at the same time
Truth = dict[int, tuple[int | None, Picture]]  # (pts, source picture scaled to the clip's size) by frame number


def verify_encoded(clips: list[Clip], options: EncodeOptions, sources: SourceFiles) -> list[Checked]:
    """Decode the source of encoded clips in full, and return the verdicts on the clips.

    The source pictures are encoded again. If the result has the same bytes as the clip, the clip is "nearest". Another
    version of the encoder produces other bytes. In this case, a clip is "nearest" if each of its frames meets two
    conditions. The frame is nearer to its expected source picture than to the other frames of the clip and to the
    frames directly before and after them. The error of the frame is at most about twice the error of encoding the
    picture again.
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
    """Divide clips into groups whose source pictures fit into memory together. A larger clip is a group of its own."""
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
    """Return the numbers of the frames that a clip wants, and of the frames directly before and after each of them."""
    wanted = clip.frames[clip.frames != PAD].tolist()
    return {near for number in wanted for near in (number - 1, number, number + 1) if near >= 0}


def _truth(clips: list[Clip]) -> Truth | None:
    """Return the source pictures with which some clips are compared.

    Decoders drop pictures of damaged media, so that counted frame numbers would be wrong. In such media, frames are
    identified by their timestamps, and only the frames that the clips want are returned, without neighbours.

    Returns:
        The pictures by frame number. None if a listing defines the image sequence, because the order of its images is
        unknown.
    """
    medium = clips[0].medium
    compared: set[int] = set().union(*map(_compared, clips))
    if medium.stream_index < 0:
        container = TAR if medium.path.endswith(".tar") else LOOSE
        with local_copy(replace(medium, kind=IMAGES, container=container)) as copy:
            images = reference.images_of(
                copy, compared, lambda data: resize_rgb(rgb_of(data), medium.height, medium.width)
            )
        return None if images is None else {number: (None, image) for number, image in images.items()}

    def picture(frame: av.VideoFrame) -> Picture:
        return np.array(resize_rgb(RgbConverter().picture(frame), medium.height, medium.width))

    by_pts = medium.damaged_gop_count > 0 and medium.pts_source == "container"
    numbers = {
        pts: frame
        for clip in clips
        for frame, pts in zip(clip.frames.tolist(), clip.pts.tolist(), strict=True)
        if frame != PAD
    }
    wanted = set(numbers.values()) if by_pts else compared
    with reference.own_copy(medium) as copy:
        decoded = reference.decode_in_order(copy, wanted, by_pts=by_pts, mark=picture)
        if not by_pts:
            return {number: (pts, found) for number, pts, found in decoded}
        return {numbers[pts]: (pts, found) for _, pts, found in decoded if pts in numbers}


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
    """Return the verdict on a clip. `found` has the clip's decoded pictures in presentation order."""
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
        reason = "the dataset records wrong colour properties or a wrong decoder configuration for its packets"
    return replace(
        verdict_on(clip, None, "nearest" if reason is None else "differs", reason),
        source_psnr=round(float(near.psnr.min()), 2),
        undecided=0 if same else int(near.undecided.sum()),
    )


def _encoded_again(clip: Clip, pictures: list[Picture], options: EncodeOptions) -> tuple[Clip, EncodedClip]:
    """Encode a clip's source pictures again. Raises UncuttableError for sizes that `framedex shard` never encodes."""
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
    """Return a description of the first frame that the source lacks or has at another time, or None if all agree."""
    for frame, pts in zip(clip.frames.tolist(), clip.pts.tolist(), strict=True):
        if frame == PAD:
            continue
        if frame not in truth:
            return f"the source has no frame {frame}"
        if clip.medium.pts_source == "container" and truth[frame][0] != pts and clip.medium.stream_index >= 0:
            return f"frame {frame} has pts {truth[frame][0]}, not {pts}"
    return None


def _unlike_pictures(near: Nearness, frames: list[int], candidates: list[int]) -> str | None:
    """Return a description of the first frame that shows a wrong picture or is too different, or None if all agree."""
    wrong: NDArray[np.bool_] = (near.other >= 0) | near.unlike
    if not wrong.any():
        return None
    place = int(np.argmax(wrong))
    loss = f"PSNR against the expected picture {near.psnr[place]:.1f} dB"
    if near.other[place] >= 0:
        return f"frame {frames[place]} is the picture of frame {candidates[near.other[place]]}; {loss}"
    return f"frame {frames[place]} differs from its source by more than encoding explains; {loss}"
