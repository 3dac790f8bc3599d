"""Verification of clips: frames decoded from a clip's byte ranges are compared with a full decode of the source."""

import logging
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import av
import numpy as np
from numpy.typing import NDArray

from framedex.errors import INTERNAL_ERROR, DecodeError, FormatError, StaleError, StorageError
from framedex.execution.engine import Calls, run_local
from framedex.indexer.containers import picture_md5
from framedex.loader.dataset.manifest import Manifest
from framedex.loader.order.order import sample_of
from framedex.loader.verification import truth as reference
from framedex.loader.verification.encoded import verify_encoded
from framedex.loader.verification.truth import Checked, Verdict, verdict_of, verdict_on
from framedex.records.clip import PAD
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.decoding.rgb import RgbConverter
from framedex.sharder.decoding.video import decode_md5
from framedex.sharder.packing.encoders import encoder_version
from framedex.sharder.packing.pack_options import ImageOptions, encode_image
from framedex.sharder.reading import SourceFiles, local_copy
from framedex.storage.places import OWN_STORE, Access, Place

LOG = logging.getLogger("framedex.loader")
# The expected frames by frame number: (pts, marks). A mark is the hash of a picture, an MD5 or a CRC-32. There are
# several marks if several frames have the same pts.
Truth = dict[int, tuple[int | None, set[str]]]
Mark = Callable[[av.VideoFrame], str]  # returns the hash of a picture, an MD5 or a CRC-32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """The numbers of the clips of one medium that are verified together."""

    dataset: Place
    access: Access
    clips: list[int]


def verify(
    dataset: Place,
    *,
    access: Access = OWN_STORE,
    sample: int | None = None,
    seed: int = 0,
    chosen: NDArray[np.int64] | None = None,
    workers: int = os.cpu_count() or 1,
    timeout_seconds: float | None = 3600.0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Checked]:
    """Verify clips, and yield one verdict per clip.

    Verdicts are grouped by medium. Each source is decoded once, from its beginning to the last frame that is needed.

    Args:
        dataset: The dataset.
        access: The rules for which sources may be read.
        sample: The number of clips to verify, chosen at random. If None, all clips are verified.
        seed: The seed of the random choice.
        chosen: int64, the numbers of the clips to verify. If given, `sample` and `seed` are ignored.
        workers: The number of processes that decode. If 0, the calling process decodes.
        timeout_seconds: The time limit per source. If a source takes longer, its clips get the verdict "undecodable".
            If None, there is no time limit.
        on_progress: A function that is called with the number of verified clips and the total number of clips.

    Raises:
        FramedexError: The dataset has encoded clips, and the encoder is not available to encode them again.
        StorageError: `access` does not allow reading the sources.
    """
    manifest = Manifest(dataset, access=access)
    manifest.check_locations()
    if manifest.header.encode is not None:
        encoder_version(manifest.header.encode)
    if chosen is None:
        chosen = sample_of(len(manifest), size=sample, seed=seed)
    media = manifest.media_rows()[chosen]
    order = np.argsort(media, kind="stable")
    groups = np.split(chosen[order], np.flatnonzero(np.diff(media[order])) + 1) if len(chosen) else []
    tasks = [_Task(dataset=dataset, access=access, clips=group.tolist()) for group in groups]
    done = 0
    calls = Calls(function=verify_medium, items=tasks, timeout_seconds=timeout_seconds)
    for outcome in run_local(calls, workers=min(workers, max(1, len(tasks)))):
        done += len(outcome.item.clips)
        if outcome.result is None:
            clips, unreadable = _clips(manifest, outcome.item.clips)
            yield from unreadable
            internal = outcome.kind == INTERNAL_ERROR
            if internal:
                LOG.info("%s\n%s", clips[0].medium.uri if clips else manifest.path, outcome.traceback)
            reason = outcome.message if internal else f"{outcome.kind}: {outcome.message}"
            verdict: Verdict = "internal_error" if internal else "undecodable"
            yield from [verdict_on(clip, None, verdict, reason) for clip in clips]
        else:
            yield from outcome.result
        on_progress(done, len(chosen))


def verify_medium(task: _Task) -> list[Checked]:
    """Return the verdicts on some clips of one medium.

    Frames are compared with the hashes in the index. If the index has no hashes, the source is decoded in full.
    """
    manifest = Manifest(task.dataset, access=task.access)
    clips, unreadable = _clips(manifest, task.clips)
    return unreadable + (_verify_clips(clips, manifest) if clips else [])


def _clips(manifest: Manifest, numbers: list[int]) -> tuple[list[Clip], list[Checked]]:
    """Read clips from the manifest by number. Return the clips, and the verdicts on clips whose rows are damaged."""
    clips, unreadable = [], []
    for number in numbers:
        try:
            clips.append(manifest.clip(number))
        except FormatError as error:
            name, where = manifest.clip_id(number), str(manifest.path)
            unreadable.append(
                Checked(clip_id=name, uri=where, frames=[], pts=[], md5=[], verdict="undecodable", reason=error.text())
            )
    return clips, unreadable


def _verify_clips(clips: list[Clip], manifest: Manifest) -> list[Checked]:
    """Return the verdicts on some clips of one medium, whose rows in the manifest are undamaged."""
    sources = SourceFiles()
    if manifest.header.encode is not None:
        return verify_encoded(clips, manifest.header.encode, sources)
    hashed = [(clip, clip.md5) for clip in clips if clip.md5 is not None]
    if len(hashed) == len(clips):
        return [_check(clip, sources, _recorded(clip, md5)) for clip, md5 in hashed]
    mark = _mark(clips[0], manifest.header.images)
    if mark is None:
        return _verify_images(clips, sources)
    try:
        manifest.locate(clips[0].medium.uri)
        with reference.own_copy(clips[0].medium) as medium:
            truth = _truth(medium, clips, mark)
    except StorageError as error:
        if error.kind != "foreign":
            raise
        return [verdict_on(clip, None, "stale", error.text()) for clip in clips]
    except (StaleError, av.error.FFmpegError, DecodeError) as error:
        return [reference.full_decode_failure(error, clip) for clip in clips]
    return [_check(clip, sources, truth) for clip in clips]


def _verify_images(clips: list[Clip], sources: SourceFiles) -> list[Checked]:
    """Return the verdicts on clips of one image or image sequence.

    When an image is read, its checksum is compared with the recorded one. An image that was not copied into a tar is
    also compared with the image that has the same number in the source.
    """
    own = [clip for clip in clips if clip.source == clip.medium.source]
    wanted = {int(frame) for clip in own for frame in clip.frames if frame != PAD}
    try:
        found = None
        if own:
            with local_copy(clips[0].medium) as medium:
                found = reference.images_of(medium, wanted, lambda data: f"{zlib.crc32(data):08x}")
    except StaleError as error:
        return [verdict_of(error, clip) for clip in clips]
    truth: Truth | None = None if found is None else {number: (None, {crc32}) for number, crc32 in found.items()}
    return [_check(clip, sources, truth if clip.source == clip.medium.source else None) for clip in clips]


def _mark(clip: Clip, images: ImageOptions | None) -> Mark | None:
    """Return the function that computes the hash of a decoded picture of the source.

    If frames were packed as images, the function encodes the picture as such an image and returns its CRC-32.

    Returns:
        The function, or None if the source consists of images.
    """
    if clip.medium.kind != IMAGES:
        return picture_md5
    if images is None or clip.medium.stream_index < 0:
        return None
    return lambda picture: f"{zlib.crc32(encode_image(RgbConverter().picture(picture), images)):08x}"


def _recorded(clip: Clip, md5: list[bytes | None]) -> Truth:
    """Return the pts and hashes that the index recorded for a clip's frames (`framedex index --verify`)."""
    rows = zip(clip.frames.tolist(), clip.pts.tolist(), md5, strict=True)
    return {frame: (pts, {own.hex()}) for frame, pts, own in rows if own is not None}


def _truth(medium: Medium, clips: list[Clip], mark: Mark) -> Truth:
    """Decode a source in full, and return the pts and hashes of the frames that some clips want.

    Decoders drop pictures of damaged media, so that counted frame numbers would be wrong. In such media, frames are
    identified by their timestamps.
    """
    by_pts = medium.damaged_gop_count > 0 and medium.pts_source == "container"
    wanted = {int(frame) for clip in clips for frame in clip.frames if frame != PAD}
    decoded = reference.decode_in_order(medium, wanted, by_pts=by_pts, mark=mark)
    if not by_pts:
        return {number: (pts, {found}) for number, pts, found in decoded}
    at: dict[int | None, set[str]] = {}
    for _, pts, found in decoded:
        at.setdefault(pts, set()).add(found)
    rows = {frame: pts for clip in clips for frame, pts in zip(clip.frames.tolist(), clip.pts.tolist(), strict=True)}
    return {frame: (pts, at[pts]) for frame, pts in rows.items() if pts in at}


def _check(clip: Clip, sources: SourceFiles, truth: Truth | None) -> Checked:
    try:
        by_rank = decode_md5(clip, sources.read(clip))
    except (StaleError, DecodeError) as error:
        return verdict_of(error, clip)
    marks = by_rank
    if clip.medium.kind == IMAGES and clip.md5 is None:
        recorded = clip.recipe.range_crc32
        assert recorded is not None  # the manifest has checksums for all images
        marks = {rank: f"{recorded[packet]:08x}" for packet, rank in enumerate(clip.recipe.packet_rank.tolist())}
    for place, (frame, rank) in enumerate(zip(clip.frames.tolist(), clip.recipe.position.tolist(), strict=True)):
        if frame == PAD or truth is None:
            continue
        expected = truth.get(frame)
        if expected is None:
            return verdict_on(clip, by_rank, "differs", f"the source has no frame {frame}")
        if marks[rank] not in expected[1]:
            other = ", ".join(sorted(expected[1]))
            reason = (
                f"frame {frame} (place {place}) has other pixels than the source, whose picture has the hash {other}"
            )
            return verdict_on(clip, by_rank, "differs", reason)
        if clip.medium.pts_source == "container" and expected[0] != int(clip.pts[place]):
            return verdict_on(clip, by_rank, "differs", f"frame {frame} has pts {expected[0]}, not {clip.pts[place]}")
    return verdict_on(clip, by_rank, "exact", None)
