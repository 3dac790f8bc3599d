"""The truth that clips are compared with, read from their sources without the index, and the verdict on one clip.

A video is decoded from its beginning, as a player would. Images are read in the order of their names. Videos in a tar
or a Parquet file are copied out by their names, as `tar x` or pyarrow would. Positions of the index are not used, since
verification checks them.
"""

import contextlib
import functools
import itertools
import os
import posixpath
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import av
from av.video.codeccontext import VideoCodecContext

from framedex.errors import DecodeError, FramedexError, StaleError
from framedex.files.parquet_cells import read_cell
from framedex.indexer.containers import decode_packet, demux_packets, open_container
from framedex.indexer.sources.sequences import group_names, visible_images
from framedex.records.clip import PAD
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.decoding.rgb import UNSPECIFIED
from framedex.sharder.reading import local_copy, open_recorded
from framedex.storage.uris import is_remote

Marked = TypeVar("Marked")


def decode_in_order(
    medium: Medium, wanted: set[int], *, by_pts: bool, mark: Callable[[av.VideoFrame], Marked]
) -> Iterator[tuple[int, int | None, Marked]]:
    """Yield (number, pts, mark) of the wanted frames by decoding the source from its beginning, as a player would.

    Frames are counted as the decoder returns them. Nothing of the index is used.

    Args:
        medium: the source.
        wanted: numbers of the wanted frames.
        by_pts: yield all frames, because the caller tells them apart by their timestamps.
        mark: makes the result from a picture.

    Raises:
        DecodeError: the video stream is missing.
    """
    last = max(wanted, default=-1)
    number = -1
    with open_container(medium.path) as container:
        there = 0 <= medium.stream_index < len(container.streams)
        context = container.streams[medium.stream_index].codec_context if there else None
        if not isinstance(context, VideoCodecContext):
            raise DecodeError(f"video stream {medium.stream_index} is no longer there", where=medium.path)
        context.thread_count = 1  # some decoders give other pictures with more (see `containers.decoders.ONE_THREAD`)
        matrix, color_range = context.colorspace, context.color_range  # decoding overwrites the container's values
        for packet in itertools.chain(demux_packets(container, medium.stream_index), [None]):
            try:
                frames = decode_packet(context, packet)
            except av.error.FFmpegError:
                continue  # damage; the frames after it are compared as well as possible
            for frame in frames:
                number += 1
                if number in wanted or by_pts:
                    if matrix != UNSPECIFIED:
                        frame.colorspace = matrix
                    if color_range:
                        frame.color_range = color_range
                    yield number, frame.pts, mark(frame)
            if number >= last and not by_pts:
                return


Used = TypeVar("Used")
TAR = "tar"  # the value of `media.container`


def images_of(medium: Medium, wanted: Iterable[int], use: Callable[[bytes], Used]) -> dict[int, Used] | None:
    """Return the results of `use` for the content of the wanted images, by their number. A medium may lack some.

    Returns:
        The results, or None if a listing made the sequence, since only the index records its order then.

    Raises:
        StaleError: the images are missing, or their number is not the indexed one.
    """
    try:
        if medium.container == TAR:
            with tarfile.open(medium.path, "r:", errors="surrogateescape") as tar:
                return _used(medium, wanted, *_in_tar(tar, medium.member), use)
        if not os.path.isdir(medium.path):
            return _used(medium, wanted, [medium.path], _read, use)
        if medium.member is not None:
            return None
        with os.scandir(medium.path) as entries:
            names = visible_images(entry.name for entry in entries if not entry.is_dir())
        return _used(medium, wanted, list(names), lambda name: _read(os.path.join(medium.path, name)), use)
    except (OSError, tarfile.TarError) as error:
        raise _stale_images(medium, str(error)) from error


def _read(path: str) -> bytes:
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read()


def _in_tar(tar: tarfile.TarFile, member: str | None) -> tuple[list[str], Callable[[str], bytes]]:
    """Return the names that make up a member of a tar, in order, and a function that reads one of them."""
    entries = {posixpath.normpath(entry.name): entry for entry in tar.getmembers() if entry.isfile()}
    images = visible_images(name for name in entries if posixpath.basename(name)[:1] != ".")
    names = group_names(images).get(member or "", [member] if member in images else [])

    def read(name: str) -> bytes:
        file = tar.extractfile(entries[name])
        assert file is not None  # a regular file
        return file.read()

    return names, read


def _used(
    medium: Medium,
    wanted: Iterable[int],
    names: list[str],
    read: Callable[[str], bytes],
    use: Callable[[bytes], Used],
) -> dict[int, Used]:
    if len(names) != medium.frame_count:
        raise _stale_images(medium, f"{len(names)} images")
    return {number: use(read(names[number])) for number in sorted(wanted) if 0 <= number < len(names)}


def _stale_images(medium: Medium, found: str) -> StaleError:
    return StaleError(
        "the source does not hold the images that were indexed",
        where=medium.path if medium.member is None else f"{medium.path}, {medium.member}",
        found=found,
        allowed=f"{medium.frame_count} images",
        remedy="index and shard again, or point root at where the sources moved",
    )


COPIED_BYTES = 8 << 20  # per read of a copy


@contextlib.contextmanager
def own_copy(medium: Medium) -> Iterator[Medium]:
    """Provide a medium whose path is on this machine, as `local_copy` does.

    A video in a tar or a Parquet file of this machine is found there by its name. In a store it is found by its
    position.

    Raises:
        StaleError: the source is not the one recorded.
        StorageError: the store does not deliver the source.
        OSError: the source cannot be opened, or the copy cannot be written.
    """
    if medium.part is None or medium.member is None or is_remote(medium.path):
        with local_copy(medium) as copy:
            yield copy
        return
    os.close(open_recorded(medium.source))
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        path = Path(folder) / f"medium{Path(medium.member).suffix}"
        with open(medium.path, "rb") as source:
            is_parquet = source.read(4) == b"PAR1"
            try:
                if is_parquet:
                    path.write_bytes(read_cell(Path(medium.path), medium.member))
                else:
                    entry = _entries(medium.path, medium.mtime_ns).get(medium.member)
            except (ValueError, tarfile.TarError) as error:
                raise _stale_member(medium, str(error)) from error
            if not is_parquet:
                if entry is None:
                    raise _stale_member(medium, "no such member")
                source.seek(entry.offset_data)
                left = entry.size
                with open(path, "wb") as file:
                    while left > 0 and (data := source.read(min(left, COPIED_BYTES))):  # the tar may end within it
                        left -= file.write(data)
        yield replace(medium, path=str(path), member_offset=None, member_bytes=None)


@functools.lru_cache(maxsize=4)
def _entries(path: str, mtime_ns: int) -> dict[str, tarfile.TarInfo]:
    """Return the files of a tar by name, up to where it is damaged."""
    entries: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(path, "r:", errors="surrogateescape") as tar, contextlib.suppress(tarfile.TarError):
        for entry in tar:
            if entry.isfile():
                entries[posixpath.normpath(entry.name)] = entry
    return entries


def _stale_member(medium: Medium, found: str) -> StaleError:
    return StaleError(
        "the file does not hold the video that was indexed",
        where=f"{medium.path}, {medium.member}",
        found=found,
        remedy="index and shard again, or point root at where the file moved",
    )


# "nearest": pictures that do not equal the source's, but are nearer to it than to any other (`encoded`, `verify_gpu`).
Verdict = Literal["exact", "nearest", "differs", "undecodable", "stale", "internal_error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The verdict on one clip.

    Attributes:
        clip_id: The clip's name.
        uri: Its source.
        frames: The frame numbers, -1 where padded.
        pts: The timestamp of each frame, None where padded.
        md5: The MD5 of each frame, None where padded or not decoded.
        verdict: The verdict.
        reason: The reason why the clip is wrong, else None.
        source_psnr: For an encoded clip, the lowest PSNR of its frames against the source's, in dB. None if the clip is
            not encoded, or if the comparison did not finish.
        undecided: The number of frames that are as near to another picture of their source.
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
        clip: The clip.
        by_rank: The MD5 of each picture by its rank. If None, no MD5 is known.
        verdict: The verdict.
        reason: The reason why the clip is wrong, else None.
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


def verdict_of(error: FramedexError, clip: Clip) -> Checked:
    """Return the verdict on a clip that cannot be compared because of an error."""
    return verdict_on(clip, None, "stale" if isinstance(error, StaleError) else "undecodable", error.text())


def full_decode_failure(error: Exception, clip: Clip) -> Checked:
    """Return the verdict on a clip whose source cannot be decoded in full."""
    if isinstance(error, StaleError):
        return verdict_of(error, clip)
    return verdict_on(clip, None, "undecodable", f"the source's full decode stops: {error}")
