"""Find the images and videos in a tar, and where their bytes are. Nothing is ever unpacked."""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from framedex.errors import MediaError
from framedex.indexer.sources.file_member import MOST_MEDIA, FileContents, FileImage, FileMember
from framedex.indexer.sources.named_medium import form_of, is_video_name, readable_name
from framedex.indexer.sources.sidecars import KEY, MOST_SIDECAR_BYTES, Sidecar, sample_parts, sidecar_text
from framedex.storage.ranges import ByteRange
from framedex.storage.reader import RangedFile, Read

BLOCK = 512
MOST_ENDING_BYTES = 21 * BLOCK  # of what follows a tar's end; it is filled up with zeros to records of 20 blocks
# The first bytes of compressed files, and what decompresses them.
COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ\0": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\x04\x22\x4d\x18": ("lz4", "unlz4"),
}


@dataclass(slots=True)
class _Sample:
    """The files that follow each other and share a key: videos, and sidecars by kind."""

    key: str | None = None
    videos: list[FileMember] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_tar(read: Read, size_bytes: int, *, sidecars: Sequence[Sidecar] = ()) -> FileContents:
    """Read the headers of a tar: ustar, GNU or pax. Names are never looked up outside of the tar.

    Files of other kinds, hidden files and folders are skipped.

    Args:
        read: reads ranges of the tar.
        size_bytes: of the tar.
        sidecars: kinds of sidecars that are read, too. The files of a sample must follow each other, as webdataset
            expects them.

    Raises:
        MediaError: the file is not a tar, is compressed, or holds more than `MOST_MEDIA` images and videos.
    """
    _check_not_compressed(read(0, 8))
    images: list[FileImage] = []
    videos: list[FileMember] = []
    sample = _Sample()
    truncation = None
    with io.BufferedReader(RangedFile(read, size_bytes, "tar"), BLOCK * 16) as file:
        end = last = -1
        try:
            with tarfile.open(fileobj=file, mode="r:", errors="surrogateescape", encoding="utf-8") as tar:
                while (member := tar.next()) is not None:
                    if member.offset <= last or member.size < 0:
                        raise tarfile.ReadError(f"the header at byte {member.offset} leads backwards")
                    last = member.offset
                    found = _named(member, size_bytes)
                    if found is not None:
                        name, image = found
                        key, ending = sample_parts(name) or (None, "")
                        if key is None or key != sample.key:
                            videos += _finished(sample, sidecars)
                            sample = _Sample(key=key)
                        if form_of(name) == "image":
                            images.append(image)
                        elif is_video_name(name):
                            sample.videos.append(_video(image, member.size, size_bytes))
                        elif ending in sidecars and ending != KEY:
                            _take_sidecar(sample, ending, image, read)
                    if len(images) + len(videos) + len(sample.videos) > MOST_MEDIA:
                        raise MediaError("tar", f"the tar has more than {MOST_MEDIA} images and videos", refused=True)
                    tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all members
                    end = tar.offset
        except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
            if last < 0:
                raise MediaError("not_media", f"is no tar: {error}") from error
            truncation = f"no member can be read behind the one at byte {last}: {error or type(error).__name__}"
    videos += _finished(sample, sidecars)
    return FileContents(images=images, videos=_each_once(videos), damage=truncation or _ending(read, end, size_bytes))


def _check_not_compressed(head: bytes) -> None:
    for magic, (name, tool) in COMPRESSED.items():
        if head.startswith(magic):
            raise MediaError(
                "compressed_tar",
                f"the tar is compressed ({name}), so its members are no ranges of bytes; {tool} it, or write it "
                "without compression, which saves little for videos",
                refused=True,
            )


def _named(member: tarfile.TarInfo, size_bytes: int) -> tuple[str, FileImage] | None:
    """Return (name, place) of a member that may be of use, or None for folders and hidden files."""
    name = posixpath.normpath(member.name) if member.name else ""
    if member.isdir() or member.name.endswith("/") or posixpath.basename(name)[:1] == ".":
        return None
    problem = None
    if member.issparse() or any(key.startswith("GNU.sparse") for key in member.pax_headers):
        problem = "is stored with holes"
    elif member.issym() or member.islnk():
        problem = "is a link"
    elif not member.isreg():
        problem = "is no file"
    size = member.size if problem is None else 0
    return name, FileImage(name=name, offset=min(member.offset_data, size_bytes), size=size, problem=problem)


def _video(place: FileImage, stated_bytes: int, size_bytes: int) -> FileMember:
    """Return a video of a tar. If the tar ends within it, the video ends there, too."""
    part = ByteRange(offset=place.offset, size_bytes=min(place.size, size_bytes - place.offset))
    error = None
    if place.problem is not None:
        error = MediaError(
            "tar", f"{place.problem}, and so has no bytes of its own; write it as a plain file", refused=True
        )
    elif readable_name(place.name) != place.name:
        error = MediaError("file_name", "its name in the tar is not valid UTF-8; rename it", refused=True)
    elif not stated_bytes:
        error = MediaError("empty", "the member is empty")
    remark = None
    if part.size_bytes < place.size:
        remark = f"the tar ends within the member: it has {part.size_bytes} of {place.size} bytes"
    return FileMember(name=readable_name(place.name), part=part, remark=remark, error=error)


def _take_sidecar(sample: _Sample, kind: str, place: FileImage, read: Read) -> None:
    """Read a sidecar into its sample."""
    if place.problem is not None or place.size > MOST_SIDECAR_BYTES:
        said = place.problem or f"has {place.size} bytes; at most {MOST_SIDECAR_BYTES} are read"
        sample.problems.append(f"{readable_name(place.name)} {said}")
    elif kind in sample.contents:
        sample.problems.append(f"{readable_name(place.name)} is there twice")
    else:
        sample.contents[kind] = read(place.offset, place.size)


def _finished(sample: _Sample, sidecars: Sequence[Sidecar]) -> list[FileMember]:
    """Return the videos of a sample with its sidecars."""
    if not sample.videos or not sidecars:
        return sample.videos
    key = None if sample.key is None else readable_name(sample.key)
    text, problem = sidecar_text(sidecars, key, sample.contents, sample.problems)
    return [
        replace(video, sidecars=text, remark="; ".join(filter(None, (video.remark, problem))) or None)
        for video in sample.videos
    ]


def _each_once(videos: list[FileMember]) -> list[FileMember]:
    """Return the videos, each name once. What has the same name as another one cannot be told from it."""
    counts = Counter(video.name for video in videos)
    once = {video.name: video for video in videos}
    return [video if counts[name] == 1 else _refused(video, counts[name]) for name, video in once.items()]


def _refused(video: FileMember, count: int) -> FileMember:
    said = f"the tar holds {count} members of this name; rename all but one"
    return replace(video, error=MediaError("tar", said, refused=True))


def _ending(read: Read, end: int, size_bytes: int) -> str | None:
    """Return why the headers end at byte `end`, or None if the tar ends there.

    A tar ends at blocks of zeros, or with its file.
    """
    if end > size_bytes:
        return f"it ends at byte {size_bytes}, within a member that goes to byte {end}"
    if end >= 0 and any(read(end, BLOCK)):
        return f"there is no member's header at byte {end}"
    if end >= 0 and any(read(end, MOST_ENDING_BYTES)):
        return f"behind its end at byte {end} lies something else, such as another tar; write one tar of both"
    return None
