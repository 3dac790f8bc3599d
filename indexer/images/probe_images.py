"""Probe images: a folder of loose ones, a single one, or the sequences in a tar. Each image is a packet and a start."""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction

import numpy as np

from framedex.errors import MediaError
from framedex.files.fingerprint import first_packets
from framedex.indexer.containers.opened_file import opened_file
from framedex.indexer.images.image_facts import BrokenImageError, ImageFacts, facts_of, pixels_md5, rotation_of
from framedex.indexer.media_rows import Row, no_frames, problem_columns
from framedex.indexer.schema import IMAGES, OK
from framedex.indexer.sources.image_times import TIMES_NAME, ImageTimes, at_rate, at_seconds, read_times
from framedex.indexer.sources.listed import Form, readable_name
from framedex.indexer.sources.sequences import group_names
from framedex.indexer.sources.tar_members import TarImage, read_tar
from framedex.indexer.timeline import CLOSED, DAMAGED, summarise

MOST_IMAGE_BYTES = 1 << 30
MOST_TIMES_BYTES = 1 << 28
MOST_SIZES = 3  # of different sizes, how many a message names
NOT_STATED = 2  # ISO/IEC 23091-2


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTask:
    """How images are stored and timed.

    form: what the path is. names: of a folder, those of its images in order. member: which of several sequences of a
    folder. fps, seconds: as a listing states them; they go before the folder's own timestamps file, and that before
    `default_fps`. single: every image of a tar is a medium.
    """

    form: Form
    names: tuple[str, ...] = ()
    member: str | None = None
    fps: Fraction | None = None
    seconds: tuple[float | None, ...] | None = None
    default_fps: Fraction | None = None
    single: bool = False

    @property
    def rate(self) -> Fraction | None:
        """Frames a second where only a rate can time the images; None: one."""
        return self.fps if self.fps is not None else self.default_fps

    @property
    def may_have_times_file(self) -> bool:
        """Whether a timestamps file in the folder counts: no listing times the images or chose them."""
        return self.form == "folder" and self.member is None and self.fps is None and self.seconds is None


def probe_images(path: str, task: ImageTask, *, verify: bool) -> list[tuple[Row, Row]]:
    """Return the (videos, frames) columns of each sequence, without identity but for `member`; never raises for bad files."""
    medium: Row = {"kind": IMAGES, "stream_index": -1, "member": task.member}
    medium["container"] = "tar" if task.form == "tar" else "files"
    try:
        if task.form == "folder":
            return [_probe_folder(path, task, medium, verify)]
        with opened_file(path, medium) as file:
            if task.form == "tar":
                return _probe_tar(file.descriptor, task, medium, verify)
            whole = TarImage(name=os.path.basename(path), offset=0, size=medium["size_bytes"])
            return [_in_file(file.descriptor, [whole], at_rate(1, task.rate), medium, verify)]
    except MediaError as error:
        return [(medium | problem_columns(error), no_frames())]


def folder_identity(path: str, task: ImageTask) -> Row:
    """Return `size_bytes`, `mtime_ns` and `fingerprint` of a folder's images. Raises MediaError where one is not there."""
    digest = hashlib.blake2b(repr((task.fps, task.default_fps, task.seconds)).encode(), digest_size=16)
    size_bytes = mtime_ns = 0
    for name in task.names:
        status = _stat(path, name)
        size_bytes, mtime_ns = size_bytes + status.st_size, max(mtime_ns, status.st_mtime_ns)
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    if task.may_have_times_file and os.path.lexists(os.path.join(path, TIMES_NAME)):
        status = _stat(path, TIMES_NAME)
        digest.update(f"times\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return {"size_bytes": size_bytes, "mtime_ns": mtime_ns, "fingerprint": digest.hexdigest()}


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


def _read(folder: str, name: str, most: int = MOST_IMAGE_BYTES) -> bytes:
    """Return a file's bytes. Raises MediaError."""
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


def _check_size(name: str, size: int, most: int = MOST_IMAGE_BYTES) -> None:
    if size > most:
        raise MediaError("too_large", f"{name} has {size} bytes; at most {most} are read at once", refused=True)


def _probe_folder(path: str, task: ImageTask, medium: Row, verify: bool) -> tuple[Row, Row]:
    identity = folder_identity(path, task)
    medium |= identity
    times = _folder_times(path, task)
    video, frames = _probe_sequence(task.names, lambda number: _read(path, task.names[number]), times, medium, verify)
    if folder_identity(path, task) != identity or int(frames["size"].sum()) != identity["size_bytes"]:
        raise MediaError("changing", "the images changed while they were probed")
    return video, frames | {"offset": np.zeros(len(task.names), np.int64), "path": list(task.names)}


def _folder_times(path: str, task: ImageTask) -> ImageTimes:
    """Return when a folder's images are shown. Raises MediaError for times that are stated, and are none."""
    count = len(task.names)
    if task.seconds is not None:
        return at_seconds(task.seconds, count)
    if task.may_have_times_file and os.path.lexists(os.path.join(path, TIMES_NAME)):
        try:
            text = _read(path, TIMES_NAME, MOST_TIMES_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise MediaError("timestamps", f"{TIMES_NAME} is not valid UTF-8", refused=True) from None
        return at_seconds(read_times(text, task.names), count)
    return at_rate(count, task.rate)


def _probe_tar(descriptor: int, task: ImageTask, medium: Row, verify: bool) -> list[tuple[Row, Row]]:
    """Return the rows of each sequence in a tar; one that cannot be used does not spoil the others."""
    tar = read_tar(descriptor, medium["size_bytes"])
    by_name: dict[str, list[TarImage]] = {}
    for image in tar.images:
        by_name.setdefault(image.name, []).append(image)
    if not by_name:
        if tar.truncation is not None:
            raise MediaError("truncated", f"the tar is damaged before its first image: {tar.truncation}")
        raise MediaError("empty", "the tar holds no image", refused=True)
    rows = []
    for member, names in group_names(by_name, single=task.single).items():
        row = medium | {"member": readable_name(member)}
        try:
            images = [_only(by_name[name]) for name in names]
            times = at_rate(len(images), task.rate)
            video, frames = _in_file(descriptor, images, times, row, verify)
            if tar.truncation is not None:
                said = [video.get("error_message"), f"the tar is truncated or damaged: {tar.truncation}"]
                video |= {"error_kind": "truncated", "error_message": "; ".join(text for text in said if text)}
            rows.append((video, frames))
        except MediaError as error:
            rows.append((row | problem_columns(error), no_frames()))
    return rows


def _only(images: list[TarImage]) -> TarImage:
    """Return the one image of a name. Raises MediaError where a sequence cannot be told from it."""
    image = images[0]
    if readable_name(image.name) != image.name:
        raise MediaError("file_name", f"the name of {readable_name(image.name)} is not valid UTF-8", refused=True)
    if len(images) > 1:
        raise MediaError("tar", f"the tar holds {image.name} {len(images)} times", refused=True)
    if image.problem is not None:
        raise MediaError("tar", f"{image.name} {image.problem}, and so no bytes of its own", refused=True)
    _check_size(image.name, image.size)
    return image


def _in_file(
    descriptor: int, images: Sequence[TarImage], times: ImageTimes, medium: Row, verify: bool
) -> tuple[Row, Row]:
    """Return the rows of images that are byte ranges of one file."""

    def read(number: int) -> bytes:
        image = images[number]
        try:
            return os.pread(descriptor, image.size, image.offset)  # at most 2 GiB at once; an image is smaller
        except OSError as error:
            raise _unreadable(image.name, error) from error

    video, frames = _probe_sequence([image.name for image in images], read, times, medium, verify)
    return video, frames | {"offset": np.array([image.offset for image in images], np.int64)}


def _probe_sequence(
    names: Sequence[str], read: Callable[[int], bytes], times: ImageTimes, medium: Row, verify: bool
) -> tuple[Row, Row]:
    """Read every image once and return the columns of `videos` and `frames`, those on where the images lie excepted.

    Raises MediaError for an image that is not covered, and where none is whole.
    """
    facts: list[ImageFacts | None] = []
    problems: dict[int, str] = {}
    size, crc32 = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    md5: list[bytes | None] = [None] * len(names)
    rotation = None
    for number, name in enumerate(names):
        data = read(number)
        size[number], crc32[number] = len(data), zlib.crc32(data)
        found = None
        try:
            found = facts_of(data)
            if rotation is None:
                rotation = rotation_of(data)
            if found.problem is not None:
                raise BrokenImageError(found.problem)
            if verify:
                md5[number] = pixels_md5(data)
        except BrokenImageError as error:
            problems[number] = str(error)
        except MediaError as error:
            raise MediaError(error.kind, f"{name} {error.what}", refused=error.refused) from error
        facts.append(found)
    if len(problems) == len(names):
        said = problems[0] if len(names) == 1 else f"no image is whole, first {names[0]}: {problems[0]}"
        raise MediaError("damaged", said)
    flags = np.full(len(names), CLOSED, np.int32)
    flags[list(problems)] |= DAMAGED
    known = [found for found in facts if found is not None]
    tick = times.tick
    summary = summarise(times.pts, flags, last_duration=times.last_duration, time_base_seconds=float(tick))
    video = medium | asdict(summary) | _constant_columns(known) | {"rotation_degrees": rotation, "hashed": verify}
    video |= {"time_base_num": tick.numerator, "time_base_den": tick.denominator, "pts_source": times.source}
    video |= _remarks(names, known, problems)
    frames: Row = {"pts": times.pts, "size": size, "flags": flags, "crc32": crc32}
    video |= {"packet_count": len(names), "packet_bytes": int(size.sum())}
    return video | {"first_packets": first_packets(size, crc32)}, frames | {"md5": md5 if verify else None}


def _constant_columns(known: Sequence[ImageFacts]) -> Row:
    """Return the columns of `videos` that the first image decides, and those that are the same for all images."""
    first = known[0]
    shape = (first.codec, first.pixel_format, first.width, first.height)
    return {
        "status": OK,
        "stream_index": -1,
        "depth": "packets",
        "codec": first.codec,
        "pixel_format": first.pixel_format,
        "width": first.width,
        "height": first.height,
        "color_range": first.color_range,
        "color_matrix": first.color_matrix,
        "color_primaries": NOT_STATED,
        "color_transfer": NOT_STATED,
        "states": [b""],
        "reorder_depth": 0,
        "inband_parameter_sets": False,
        "inner_start_codes": False,
        "field_coded": False,
        "hidden_unordered": False,
        "byte_addressable": True,
        "varying_shape": any((one.codec, one.pixel_format, one.width, one.height) != shape for one in known),
    }


def _remarks(names: Sequence[str], known: Sequence[ImageFacts], problems: dict[int, str]) -> Row:
    """Return why a sequence that can be used is remarkable: damaged images, and images of several sizes."""
    remarks, kind = [], None
    if problems:
        number, reason = next(iter(problems.items()))
        kind = "damaged"
        remarks.append(f"{len(problems)} of {len(names)} images are damaged, first {names[number]}: {reason}")
    sizes = list(dict.fromkeys(f"{one.width}x{one.height}" for one in known))
    if len(sizes) > 1:
        more = ", …" if len(sizes) > MOST_SIZES else ""
        remarks.append(f"images of {len(sizes)} sizes: {', '.join(sizes[:MOST_SIZES])}{more}")
    return {"error_kind": kind, "error_message": "; ".join(remarks) or None}
