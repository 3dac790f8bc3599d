"""The reference frames for the verification of clips, and the verdict on one clip.

Reference frames are read from the sources without the index, since verification checks the index. A video is decoded
from its beginning, as a player does it. Images are read in the order of their names. A video in a tar or a Parquet file
is extracted by its name, as `tar x` or pyarrow does it, and not by the recorded byte range.
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
    """Decode a source from its beginning, as a player does it. Yield (number, pts, mark) of the wanted frames.

    A frame's number is its position in the decoder's output. The index is not used.

    Args:
        medium: The source.
        wanted: The numbers of the wanted frames.
        by_pts: Whether to yield all frames, because the caller identifies them by their timestamps.
        mark: A function that is called with each picture. Its result is yielded.

    Raises:
        DecodeError: The file does not have the video stream.
    """
    last = max(wanted, default=-1)
    number = -1
    with open_container(medium.path) as container:
        there = 0 <= medium.stream_index < len(container.streams)
        context = container.streams[medium.stream_index].codec_context if there else None
        if not isinstance(context, VideoCodecContext):
            raise DecodeError(f"the source does not have video stream {medium.stream_index}", where=medium.path)
        context.thread_count = 1  # with more, some decoders return other pictures (`containers.decoders.ONE_THREAD`)
        matrix, color_range = context.colorspace, context.color_range  # the container's, before decoding changes them
        for packet in itertools.chain(demux_packets(container, medium.stream_index), [None]):
            try:
                frames = decode_packet(context, packet)
            except av.error.FFmpegError:
                continue  # the packet is damaged; later frames are compared nevertheless
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
TAR = "tar"  # a value of the column `container` of the table `media`


def images_of(medium: Medium, wanted: Iterable[int], use: Callable[[bytes], Used]) -> dict[int, Used] | None:
    """Read the wanted images of a medium, and call a function with the bytes of each.

    Args:
        medium: An image or an image sequence.
        wanted: The numbers of the wanted images. Numbers that the medium does not have are ignored.
        use: The function.

    Returns:
        The results of `use` by image number. None if a listing defines the sequence, because the order of the images is
            then recorded only in the index.

    Raises:
        StaleError: The images cannot be read, or the number of images differs from the index.
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
    # With O_NONBLOCK, opening a FIFO does not wait for a writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read()


def _in_tar(tar: tarfile.TarFile, member: str | None) -> tuple[list[str], Callable[[str], bytes]]:
    """Return the names of a member's images in a tar, in order, and a function that reads the file with a name."""
    entries = {posixpath.normpath(entry.name): entry for entry in tar.getmembers() if entry.isfile()}
    images = visible_images(name for name in entries if posixpath.basename(name)[:1] != ".")
    names = group_names(images).get(member or "", [member] if member in images else [])

    def read(name: str) -> bytes:
        file = tar.extractfile(entries[name])
        assert file is not None  # `entries` has only regular files
        return file.read()

    return names, read


def _used(
    medium: Medium, wanted: Iterable[int], names: list[str], read: Callable[[str], bytes], use: Callable[[bytes], Used]
) -> dict[int, Used]:
    if len(names) != medium.frame_count:
        raise _stale_images(medium, f"{len(names)} images")
    return {number: use(read(names[number])) for number in sorted(wanted) if 0 <= number < len(names)}


def _stale_images(medium: Medium, found: str) -> StaleError:
    return StaleError(
        "the source does not contain the images that were indexed",
        where=medium.path if medium.member is None else f"{medium.path}, {medium.member}",
        found=found,
        allowed=f"{medium.frame_count} images",
        remedy="index and shard again, or set root to the new location of the sources",
    )


COPIED_BYTES = 8 << 20  # bytes per read while a member is copied


@contextlib.contextmanager
def own_copy(medium: Medium) -> Iterator[Medium]:
    """Provide a medium whose path is a file on this machine, like `local_copy`.

    A video in a local tar or Parquet file is extracted by its name. If the tar or Parquet file is in object storage,
    the video is copied by its recorded byte range.

    Raises:
        StaleError: The source changed since it was indexed.
        StorageError: The source cannot be read from object storage.
        OSError: The source cannot be opened, or the copy cannot be written.
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
                    # `read` returns no data if the tar is truncated within the member.
                    while left > 0 and (data := source.read(min(left, COPIED_BYTES))):
                        left -= file.write(data)
        yield replace(medium, path=str(path), member_offset=None, member_bytes=None)


@functools.lru_cache(maxsize=4)
def _entries(path: str, mtime_ns: int) -> dict[str, tarfile.TarInfo]:
    """Return the regular files of a tar by name. If the tar is damaged, only files before the damage are returned."""
    entries: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(path, "r:", errors="surrogateescape") as tar, contextlib.suppress(tarfile.TarError):
        for entry in tar:
            if entry.isfile():
                entries[posixpath.normpath(entry.name)] = entry
    return entries


def _stale_member(medium: Medium, found: str) -> StaleError:
    return StaleError(
        "the file does not contain the video that was indexed",
        where=f"{medium.path}, {medium.member}",
        found=found,
        remedy="index and shard again, or set root to the new location of the sources",
    )


# "nearest" means that each picture differs from its expected picture, but is nearer to it than to other pictures of the
# source (`encoded`, `verify_gpu`).
Verdict = Literal["exact", "nearest", "differs", "undecodable", "stale", "internal_error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The verdict on one clip.

    Attributes:
        clip_id: The name of the clip.
        uri: The uri of the clip's source.
        frames: The number of each frame, or -1 for padding.
        pts: The timestamp of each frame, or None for padding.
        md5: The MD5 of each frame, or None for padding and for frames that were not decoded.
        verdict: The verdict.
        reason: The reason why the clip is wrong. None if the clip is correct.
        source_psnr: The lowest PSNR of an encoded clip's frames against the source pictures, in dB. None if the clip is
            not encoded, or if the comparison was not completed.
        undecided: The number of frames that, by the comparison, may show the expected picture or another picture of the
            source.
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
    """Return the record of a verdict on a clip.

    Args:
        clip: The clip.
        by_rank: The MD5 of each picture of the recipe, by rank. None if the clip was not decoded.
        verdict: The verdict.
        reason: The reason why the clip is wrong. None if the clip is correct.
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
    """Return the verdict on a clip that could not be compared because of an error."""
    return verdict_on(clip, None, "stale" if isinstance(error, StaleError) else "undecodable", error.text())


def full_decode_failure(error: Exception, clip: Clip) -> Checked:
    """Return the verdict on a clip whose source could not be decoded in full because of an error."""
    if isinstance(error, StaleError):
        return verdict_of(error, clip)
    return verdict_on(clip, None, "undecodable", f"the full decode of the source failed: {error}")
