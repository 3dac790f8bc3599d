"""Probe images: a folder of images, a single image, or the image sequences in a tar.

In the index, each image is one packet and a random access point.
"""

import hashlib
import os
import stat
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from framedex.errors import MediaError
from framedex.indexer.containers import ProbedFile, check_unchanged, opened_file
from framedex.indexer.facts import CodingFacts, Identity, MediumFacts, Problem, StreamFacts, problem_of
from framedex.indexer.probing.image_facts import BrokenImageError, facts_of, pixels_md5
from framedex.indexer.probing.packet_facts import timeline_of
from framedex.indexer.sources.members import FileImage, read_tar
from framedex.indexer.sources.named_medium import Form, readable_name
from framedex.indexer.sources.sequences import TIMES_NAME, ImageTimes, at_rate, at_seconds, group_names, read_times
from framedex.indexer.timeline import CLOSED, DAMAGED, summarise
from framedex.records.medium import IMAGES, PacketColumns

# The largest sizes in bytes of an image and of a folder's timestamps file. They limit the memory, because such files
# are read whole.
MAX_IMAGE_BYTES, MAX_TIMES_BYTES = 1 << 30, 1 << 28
MAX_SIZES = 3  # largest number of different image sizes that a message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTask:
    """The storage form and the times of images.

    `fps` and `seconds` of a listing have priority over the timestamps file in the folder. The timestamps file has
    priority over `default_fps`.

    Attributes:
        form: The form of storage: a folder of images, a tar, or a single image.
        names: The file names of a folder's images in order. Empty for a tar or a single image.
        member: The name of the sequence if the folder holds several sequences. None otherwise.
        fps: The frame rate that a listing states, or None.
        seconds: The times that a listing states, or None.
        default_fps: The frame rate that is used if neither a listing nor a timestamps file states times.
        single: Whether every image of a tar is a separate medium.
        ignored: Whether the images of a tar are left out.
    """

    form: Form
    names: tuple[str, ...] = ()
    member: str | None = None
    fps: Fraction | None = None
    seconds: tuple[float | None, ...] | None = None
    default_fps: Fraction | None = None
    single: bool = False
    ignored: bool = False

    @property
    def rate(self) -> Fraction | None:
        """The number of frames per second, used if no individual times are stated. None stands for 1 per second."""
        return self.fps if self.fps is not None else self.default_fps

    @property
    def may_have_times_file(self) -> bool:
        """Whether a timestamps file in the folder is used.

        The file is not used if a listing states the images' times, or if the folder holds several sequences.
        """
        return self.form == "folder" and self.member is None and self.fps is None and self.seconds is None


def probe_images(path: str, task: ImageTask, *, verify: bool) -> list[MediumFacts]:
    """Return the metadata of each image sequence. For an unusable file, a medium with a problem is returned.

    Args:
        path: The path of the folder, tar or image.
        task: The storage form and the times of the images.
        verify: Whether to decode every image and to keep the hashes of its pixels.
    """
    medium = MediumFacts(kind=IMAGES, member=task.member, container="tar" if task.form == "tar" else "files")
    try:
        if task.form == "folder":
            medium = replace(medium, identity=folder_identity(path, task))
            times = _folder_times(path, task)
            columns = _read_sequence(task.names, lambda number: _read(path, task.names[number]), verify)
            identity = folder_identity(path, task)
            if identity != medium.identity or int(columns.size.sum()) != identity.size_bytes:
                raise MediaError("changing", "the images changed while they were probed")
            offset = np.zeros(len(task.names), np.int64)
            return [_described(medium, columns, task.names, times, offset=offset, path=list(task.names))]
        with opened_file(path) as file:
            medium = replace(medium, identity=file.identity)
            if task.form == "tar":
                found = _probe_tar(file, task, medium, verify)
            else:
                whole = FileImage(name=os.path.basename(file.path), offset=0, size=file.size_bytes)
                found = [_in_file(file.descriptor, [whole], at_rate(1, task.rate), medium, verify)]
            check_unchanged(file)
            return found
    except MediaError as error:
        return [replace(medium, problem=problem_of(error))]


def folder_identity(path: str, task: ImageTask) -> Identity:
    """Return the identity of a folder's images. Raises MediaError if an image is missing or not a regular file."""
    digest = hashlib.blake2b(repr((task.fps, task.default_fps, task.seconds)).encode(), digest_size=16)
    size_bytes = mtime_ns = 0
    for name in task.names:
        status = _stat(path, name)
        size_bytes, mtime_ns = size_bytes + status.st_size, max(mtime_ns, status.st_mtime_ns)
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    if task.may_have_times_file and os.path.lexists(os.path.join(path, TIMES_NAME)):
        status = _stat(path, TIMES_NAME)
        digest.update(f"times\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return Identity(size_bytes=size_bytes, mtime_ns=mtime_ns, fingerprint=digest.hexdigest())


def _stat(folder: str, name: str) -> os.stat_result:
    try:
        status = os.stat(os.path.join(folder, name))
    except OSError as error:
        raise _unreadable(name, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise MediaError("unreadable", f"{name} is not a regular file")
    return status


def _unreadable(name: str, error: OSError) -> MediaError:
    kind = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
    return MediaError(kind, f"{name} cannot be opened: {error.strerror}")


def _read(folder: str, name: str, most: int = MAX_IMAGE_BYTES) -> bytes:
    """Return the bytes of a file. Raises MediaError if it is missing, not readable, or larger than `most` bytes."""
    try:
        descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(name, error) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise MediaError("unreadable", f"{name} is not a regular file")
        _check_size(name, status.st_size, most)
        try:
            return file.read()
        except OSError as error:
            raise _unreadable(name, error) from error


def _check_size(name: str, size: int, most: int = MAX_IMAGE_BYTES) -> None:
    if size > most:
        raise MediaError("too_large", f"{name} has {size} bytes, but at most {most} are allowed", refused=True)


def _folder_times(path: str, task: ImageTask) -> ImageTimes:
    """Return the times at which a folder's images are shown. Raises MediaError if stated times are invalid."""
    count = len(task.names)
    if task.seconds is not None:
        return at_seconds(task.seconds, count)
    if task.may_have_times_file and os.path.lexists(os.path.join(path, TIMES_NAME)):
        try:
            text = _read(path, TIMES_NAME, MAX_TIMES_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise MediaError("timestamps", f"{TIMES_NAME} is not valid UTF-8", refused=True) from None
        return at_seconds(read_times(text, task.names), count)
    return at_rate(count, task.rate)


def _probe_tar(file: ProbedFile, task: ImageTask, medium: MediumFacts, verify: bool) -> list[MediumFacts]:
    """Return the metadata of each image sequence in a tar. An unusable sequence does not affect the others."""
    tar = read_tar(file.read, file.size_bytes)
    by_name: dict[str, list[FileImage]] = {}
    for image in tar.images:
        by_name.setdefault(image.name, []).append(image)
    if not by_name:
        if tar.damage is not None:
            raise MediaError("truncated", f"the tar is damaged before its first video or image: {tar.damage}")
        raise MediaError("empty", "the tar contains neither videos nor images", refused=True)
    found = []
    for member, names in group_names(by_name, single=task.single).items():
        sequence = replace(medium, member=readable_name(member))
        try:
            images = [_only(by_name[name]) for name in names]
            sequence = _in_file(file.descriptor, images, at_rate(len(images), task.rate), sequence, verify)
            if tar.damage is not None:
                known = None if sequence.problem is None else sequence.problem.message
                message = "; ".join(filter(None, (known, f"the tar is truncated or damaged: {tar.damage}")))
                sequence = replace(sequence, problem=Problem(status=None, kind="truncated", message=message))
        except MediaError as error:
            sequence = replace(sequence, problem=problem_of(error))
        found.append(sequence)
    return found


def _only(images: list[FileImage]) -> FileImage:
    """Return the only image in a list of a tar's images with the same name.

    Raises:
        MediaError: There are several such images, the name is not valid UTF-8, or the image cannot be read.
    """
    image = images[0]
    if readable_name(image.name) != image.name:
        raise MediaError("file_name", f"the name of {readable_name(image.name)} is not valid UTF-8", refused=True)
    if len(images) > 1:
        raise MediaError("tar", f"the tar holds {image.name} {len(images)} times", refused=True)
    if image.problem is not None:
        raise MediaError("tar", f"{image.name} {image.problem}, so it is not one byte range of the tar", refused=True)
    _check_size(image.name, image.size)
    return image


def _in_file(
    descriptor: int, images: Sequence[FileImage], times: ImageTimes, medium: MediumFacts, verify: bool
) -> MediumFacts:
    """Return the metadata of an image sequence whose images are byte ranges of one file."""

    def read(number: int) -> bytes:
        image = images[number]
        try:
            return os.pread(descriptor, image.size, image.offset)  # pread is limited to 2 GiB; images are smaller
        except OSError as error:
            raise _unreadable(image.name, error) from error

    names = [image.name for image in images]
    offset = np.array([image.offset for image in images], np.int64)
    return _described(medium, _read_sequence(names, read, verify), names, times, offset=offset)


@dataclass(slots=True, kw_only=True)
class _Images:
    """The metadata of the n images of a sequence, collected image by image.

    Attributes:
        size: int64 [n], in bytes.
        crc32: int64 [n], the checksums of the files.
        md5: The MD5 of each image's pixels, n elements. None for a damaged image. The list is None if images are not
            verified.
        known: The metadata of the images whose headers could be read. The list may have fewer than n elements.
        problems: The error messages of damaged images, by image number.
        rotations: The counterclockwise rotation of each image in `known`, in degrees. None for a mirrored image.
    """

    size: NDArray[np.int64]
    crc32: NDArray[np.int64]
    md5: list[bytes | None] | None
    known: list[StreamFacts] = field(default_factory=list)
    problems: dict[int, str] = field(default_factory=dict)
    rotations: list[int | None] = field(default_factory=list)


def _read_sequence(names: Sequence[str], read: Callable[[int], bytes], verify: bool) -> _Images:
    """Read every image of a sequence once.

    Args:
        names: The names of the images, for messages.
        read: The function that takes an image number and returns the image's bytes.
        verify: Whether to decode every image and to keep the hashes of its pixels.

    Raises:
        MediaError: An image has an unsupported format, or all images are damaged.
    """
    n = len(names)
    images = _Images(size=np.zeros(n, np.int64), crc32=np.zeros(n, np.int64), md5=[None] * n if verify else None)
    for number, name in enumerate(names):
        data = read(number)
        images.size[number], images.crc32[number] = len(data), zlib.crc32(data)
        try:
            found, rotation, problem = facts_of(data)
            images.known.append(found)
            images.rotations.append(rotation)
            if problem is not None:
                raise BrokenImageError(problem)
            if images.md5 is not None:
                images.md5[number] = pixels_md5(data)
        except BrokenImageError as error:
            images.problems[number] = str(error)
        except MediaError as error:
            raise MediaError(error.kind, f"{name} {error.what}", refused=error.refused) from error
    if len(images.problems) == n:
        reason = images.problems[0]
        raise MediaError("damaged", reason if n == 1 else f"all images are damaged, first {names[0]}: {reason}")
    return images


def _described(
    medium: MediumFacts,
    images: _Images,
    names: Sequence[str],
    times: ImageTimes,
    *,
    offset: NDArray[np.int64],
    path: list[str] | None = None,
) -> MediumFacts:
    """Return a medium with the metadata of its n images added.

    Args:
        medium: The metadata that is known already.
        images: The result of reading the images.
        names: The names of the images.
        times: The times at which the images are shown.
        offset: int64 [n], the offset of each image in its file.
        path: The file of each image. None if all images are byte ranges of one file.
    """
    flags = np.full(len(names), CLOSED, np.int32)
    flags[list(images.problems)] |= DAMAGED
    tick = times.tick
    shapes = {(one.codec, one.pixel_format, one.width, one.height) for one in images.known}
    summary = summarise(times.pts, flags, last_duration=times.last_duration, time_base_seconds=float(tick))
    return replace(
        medium,
        stream=replace(images.known[0], time_base_num=tick.numerator, time_base_den=tick.denominator),
        coding=CodingFacts(states=[b""], varying_shape=len(shapes) > 1, byte_addressable=True),
        timeline=timeline_of(
            "packets", times.source, images.size, summary, hashed=images.md5 is not None, crc32=images.crc32
        ),
        # The images of a clip must all be rotated by the same angle, so images with different rotations stay as stored.
        rotation_degrees=(images.rotations[0] or 0) if len(set(images.rotations)) == 1 else 0,
        problem=_remarks(names, images),
        packets=PacketColumns(
            pts=times.pts,
            offset=offset,
            size=images.size,
            flags=flags,
            crc32=images.crc32,
            md5=images.md5,
            path=path,
        ),
    )


def _remarks(names: Sequence[str], images: _Images) -> Problem | None:
    """Describe damaged images, different sizes and different orientations in a usable sequence, or return None.

    Args:
        names: The names of the images.
        images: The result of reading the images.
    """
    remarks, kind = [], None
    if images.problems:
        number, reason = next(iter(images.problems.items()))
        kind = "damaged"
        remarks.append(f"{len(images.problems)} of {len(names)} images are damaged, first {names[number]}: {reason}")
    sizes = list(dict.fromkeys(f"{one.width}x{one.height}" for one in images.known))
    if len(sizes) > 1:
        more = ", …" if len(sizes) > MAX_SIZES else ""
        remarks.append(f"images have {len(sizes)} different sizes: {', '.join(sizes[:MAX_SIZES])}{more}")
    turns = set(images.rotations)
    if None in turns:
        remarks.append("an EXIF orientation mirrors images, so they stay as they are stored")
    elif len(turns) > 1:
        stated = ", ".join(str(degrees) for degrees in sorted(degrees for degrees in turns if degrees is not None))
        remarks.append(f"EXIF orientations differ ({stated} degrees), so images are not turned")
    return Problem(status=None, kind=kind, message="; ".join(remarks)) if remarks else None
