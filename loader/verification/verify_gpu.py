"""Verification of frames that a GPU decodes.

A GPU rounds colours differently from the CPU. So a frame counts as correct if it is nearer to the frame that the CPU
decodes than to the neighbouring frames.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import av
import numpy as np
from numpy.typing import NDArray

from framedex.errors import DecodeError, FramedexError, StaleError
from framedex.indexer.containers import RANGE_NUMBERS
from framedex.loader.batches.faults import ClipRequest, Fault, Fetched
from framedex.loader.batches.fetch import Fetcher, FetchOptions
from framedex.loader.batches.frames import Finish, Frames
from framedex.loader.clip_dataset import ClipDataset
from framedex.loader.order.order import sample_of
from framedex.loader.routing.driver import DriverSupport, driver_support
from framedex.loader.routing.routes import gpu_obstacle, nvjpeg_obstacle
from framedex.loader.verification.encoded import MIN_SQUARE, PEAK, Picture, mean_squares
from framedex.loader.verification.truth import Checked, decode_in_order, own_copy, verdict_of, verdict_on
from framedex.loader.verification.verify import verify
from framedex.records.clip import PAD
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.decoding.rgb import RgbConverter
from framedex.sharder.decoding.video import decode_frames
from framedex.storage.places import OWN_STORE, Access, Place

Decoder = Literal["nvdec", "nvjpeg", "cpu"]
Truth = dict[int, Picture]  # pictures decoded on the CPU, uint8 [H, W, 3], by frame number

BYTES_AT_ONCE = 1 << 30  # limit in bytes for pictures decoded on the CPU that are in memory at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOnGpu(Checked):
    """The verdict on one clip, and the decoder that was used.

    Attributes:
        decoder: The decoder of the clip.
        worst_psnr: The lowest PSNR of a frame of the clip against the frame that the CPU decodes, in dB. None if the
            CPU decoded the clip, or if the comparison was not completed.
    """

    decoder: Decoder
    worst_psnr: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """The similarity of a decoded picture to the correct picture.

    Attributes:
        is_own: Whether the decoded picture is nearer to the correct picture than to any neighbouring picture. None if
            there is no neighbour, or if all neighbours equal the correct picture.
        psnr: The PSNR against the correct picture, in dB.
    """

    is_own: bool | None
    psnr: float


def likeness(found: Picture, own: Picture, neighbours: Sequence[Picture]) -> Likeness:
    """Compare a decoded picture with the correct picture and with the neighbouring pictures.

    Args:
        found: uint8 [H, W, 3], the decoded picture.
        own: uint8 [H, W, 3], the correct picture.
        neighbours: The neighbouring pictures, uint8 [H, W, 3]. Those that equal the correct picture are ignored.
    """
    others = [other for other in neighbours if not np.array_equal(other, own)]
    away, *from_others = mean_squares([found], [own, *others])[0].tolist()
    return Likeness(
        is_own=away < min(from_others) if from_others else None,
        psnr=float(10 * np.log10(PEAK**2 / max(away, MIN_SQUARE))),
    )


def neighbours_of(number: int, truth: Mapping[int, Picture], *, by_place: bool) -> list[Picture]:
    """Return the pictures before and after a frame.

    Args:
        number: The number of the frame.
        truth: The correct pictures by frame number.
        by_place: Whether to return the nearest earlier and later frames in `truth`, whatever their numbers. If False,
            only the frames `number` - 1 and `number` + 1 are returned.
    """
    if not by_place:
        return [truth[other] for other in (number - 1, number + 1) if other in truth]
    numbers = sorted(truth)
    place = numbers.index(number)
    return [truth[other] for other in (*numbers[max(0, place - 1) : place], *numbers[place + 1 : place + 2])]


def verify_on_gpu(
    dataset: Place,
    *,
    access: Access = OWN_STORE,
    sample: int | None = None,
    seed: int = 0,
    workers: int = os.cpu_count() or 1,
    timeout_seconds: float | None = 3600.0,
    device_id: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[CheckedOnGpu]:
    """Verify clips as a GPU decodes them, and yield one verdict per clip.

    A clip that the GPU decodes is `nearest` if each of its frames is nearer to the CPU's picture of the same frame than
    to the pictures before and after it. These neighbouring pictures are decoded from the source. For images, encoded
    clips and damaged media, they are the neighbouring frames of the clip. Clips that the GPU must not decode are
    verified on the CPU, by `verify`.

    Args:
        dataset: The dataset.
        access: The rules for which sources may be read.
        sample: The number of clips to verify, chosen at random. If None, all clips are verified.
        seed: The seed of the random choice.
        workers: The number of processes that decode on the CPU.
        timeout_seconds: The time limit per source for clips that are verified on the CPU. If None, there is no limit.
        device_id: The number of the GPU.
        on_progress: A function that is called with the number of verified clips and the total number of clips.

    Raises:
        FramedexError: The NVIDIA driver or the GPU cannot be used.
    """
    support = driver_support(device_id)
    if support.reason is not None:
        raise FramedexError("--decode gpu needs an NVIDIA GPU", found=support.reason, remedy="use --decode cpu")
    from framedex.loader.dali.gpu import GpuFrames  # needs the extras torch and dali

    clips = ClipDataset(dataset, rotation="stored", root=access.root, allow_remote=access.allow_remote)
    clips.manifest.check_locations()
    chosen = sample_of(len(clips), size=sample, seed=seed)
    media = clips.manifest.media_rows()[chosen]
    fetcher = Fetcher(clips, FetchOptions(pixels=[clips.pixels], caps=support))
    finish = Finish(transform=None, audio_transform=None, normalize=None, layout="FHWC", collate="list")
    decoder = GpuFrames(finish, device_id=device_id, batch_size=1, in_progress=1, threads=2, scaled=False)
    on_cpu: list[int] = []
    done = 0
    for row in np.unique(media):
        waiting: list[tuple[Clip, Fetched]] = []
        for number in chosen[media == row].tolist():
            clip = clips.clip(number)
            try:
                fetched = _fetch(clips, clip, number, fetcher, support)
            except FramedexError as error:
                yield _on_gpu(verdict_of(error, clip), "cpu")
                done += 1
                continue
            if fetched is None:
                on_cpu.append(number)
                continue
            waiting.append((clip, fetched))
            # The CPU decodes three pictures for each frame (the frame and its two neighbours), with 3 bytes per pixel.
            if sum(9 * c.medium.width * c.medium.height * len(c.frames) for c, _ in waiting) >= BYTES_AT_ONCE:
                yield from _check_on_gpu(waiting, clips, decoder)
                done, waiting = done + len(waiting), []
        if waiting:
            yield from _check_on_gpu(waiting, clips, decoder)
        done += len(waiting)
        on_progress(done, len(chosen))
    for checked in verify(
        dataset,
        access=access,
        chosen=np.array(on_cpu, np.int64),
        workers=workers,
        timeout_seconds=timeout_seconds,
        on_progress=lambda checked, _: on_progress(done + checked, len(chosen)),
    ):
        yield _on_gpu(checked, "cpu")


def _fetch(clips: ClipDataset, clip: Clip, number: int, fetcher: Fetcher, support: DriverSupport) -> Fetched | None:
    """Return a clip prepared for decoding on a GPU, or None if the CPU must decode it. Raises FramedexError."""
    encoded = clips.sources.read(clip)
    if (nvjpeg_obstacle(clip) if clip.medium.kind == IMAGES else gpu_obstacle(clip, encoded, support)) is not None:
        return None
    fetched = fetcher(ClipRequest(number=number, on_gpu=True))
    if isinstance(fetched, Fault):
        raise fetched.error()
    return None if fetched.movie is None and fetched.images is None else fetched


def _check_on_gpu(waiting: list[tuple[Clip, Fetched]], clips: ClipDataset, decoder: Frames) -> Iterator[CheckedOnGpu]:
    """Decode clips of one medium on a GPU, and yield the verdicts."""
    medium = waiting[0][0].medium
    # The pictures of stored images and encoded clips differ from the pictures of the source.
    by_place = medium.kind == IMAGES or clips.manifest.header.encode is not None or medium.damaged_gop_count > 0
    try:
        source = {} if by_place else source_pictures(medium, [clip for clip, _ in waiting])
    except (StaleError, DecodeError) as error:
        yield from [_on_gpu(verdict_of(error, clip), _decoder(fetched)) for clip, fetched in waiting]
        return
    for clip, fetched in waiting:
        try:
            frames = decoder.decode_alone(fetched).cpu().numpy()
        except RuntimeError as error:
            from framedex.loader.batches.on_gpu import is_out_of_memory  # needs torch

            if is_out_of_memory(error):
                raise FramedexError(
                    "the GPU's memory is full",
                    where=f"clip {clip.clip_id}",
                    found=str(error).splitlines()[0],
                    remedy="look for other processes on the GPU with nvidia-smi",
                ) from error
            yield _on_gpu(verdict_on(clip, None, "undecodable", " ".join(str(error).split())), _decoder(fetched))
            continue
        try:
            truth = source
            if by_place:
                rows = zip(clip.frames.tolist(), decode_frames(clip, clips.sources.read(clip)), strict=True)
                truth = {number: frame for number, frame in rows if number != PAD}
        except FramedexError as error:
            yield _on_gpu(verdict_on(clip, None, "undecodable", error.text()), _decoder(fetched))
            continue
        yield compare(clip, frames, truth, decoder=_decoder(fetched), by_place=by_place)


def compare(
    clip: Clip, frames: NDArray[np.uint8], truth: Mapping[int, Picture], *, decoder: Decoder, by_place: bool
) -> CheckedOnGpu:
    """Compare a clip's frames with the pictures that the CPU decodes, and return the verdict.

    Args:
        clip: The clip.
        frames: uint8 [F, H, W, 3], the frames of the clip.
        truth: The correct pictures, decoded on the CPU, by frame number.
        decoder: The decoder of `frames`.
        by_place: Whether neighbours are the nearest frames in `truth`, as in `neighbours_of`.
    """
    worst, undecided, reason = None, 0, None
    for place, (number, frame) in enumerate(zip(clip.frames.tolist(), frames, strict=True)):
        if number == PAD:
            if frame.any() and reason is None:
                reason = f"place {place} is padding, but not black"
            continue
        own = truth.get(number)
        if own is None or own.shape != frame.shape:
            found = "no such frame" if own is None else f"pictures of {own.shape[1]}x{own.shape[0]}"
            reason = f"frame {number} (place {place}): the source has {found}"
            return _on_gpu(verdict_on(clip, None, "differs", reason), decoder)
        like = likeness(frame, own, neighbours_of(number, truth, by_place=by_place))
        worst = like.psnr if worst is None else min(worst, like.psnr)
        undecided += like.is_own is None
        if like.is_own is False and reason is None:
            psnr = f"PSNR against the picture of the CPU {like.psnr:.1f} dB"
            reason = f"frame {number} (place {place}) is nearer to a neighbour than to its own picture; {psnr}"
    checked = verdict_on(clip, None, "differs" if reason else "nearest", reason)
    return _on_gpu(replace(checked, undecided=undecided), decoder, worst)


def source_pictures(medium: Medium, clips: list[Clip]) -> Truth:
    """Decode a video in full. Return the frames that some clips want, and the frames directly before and after each.

    Raises:
        StaleError: The source changed.
        DecodeError: The source cannot be opened or decoded.
    """
    numbers = {int(frame) for clip in clips for frame in clip.frames if frame != PAD}
    converter = RgbConverter(medium.color_matrix, RANGE_NUMBERS.get(medium.color_range, 0))

    def picture(frame: av.VideoFrame) -> Picture:
        return np.array(converter.rows(frame, medium.height, medium.width)).reshape(medium.height, medium.width, 3)

    wanted = {near for number in numbers for near in (number - 1, number, number + 1)}
    try:
        with own_copy(medium) as copy:
            return {number: found for number, _, found in decode_in_order(copy, wanted, by_pts=False, mark=picture)}
    except (av.error.FFmpegError, OSError) as error:
        raise DecodeError(f"the full decode of the source failed: {error}", where=medium.path) from error


def _decoder(fetched: Fetched) -> Decoder:
    return "nvdec" if fetched.movie is not None else "nvjpeg"


def _on_gpu(checked: Checked, decoder: Decoder, worst: float | None = None) -> CheckedOnGpu:
    return CheckedOnGpu(**asdict(checked), decoder=decoder, worst_psnr=worst)
