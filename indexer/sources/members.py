"""Find the media in a tar or a Parquet file, and the byte range of each medium. Nothing is unpacked.

The media of a tar are its images and videos. The media of a Parquet file are videos. Each video is a value of a binary
column, or of a column of structs with the fields `bytes` and `path`.
"""

import contextlib
import datetime
import decimal
import io
import json
import math
import posixpath
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from framedex.core.limits import MAX_NESTED, machine_bytes, type_depth
from framedex.errors import MediaError
from framedex.files.parquet_cells import cell_name, is_binary, leaf_of, value_ranges
from framedex.files.parquet_parts import checked_group, read_group
from framedex.indexer.sources import named_medium
from framedex.storage.objects import ByteRange
from framedex.storage.reader import RangedFile, Read

MAX_MEDIA = 10_000_000  # maximum number of media in a file; limits the memory if a file is malicious


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMember:
    """A video in a tar or a Parquet file.

    Attributes:
        name: The name of the video in the file.
        part: The byte range of the video in the file. None if the video is a value of a compressed column, which does
            not have a byte range.
        sidecars: The user columns of the video, as JSON (`named_medium.sidecar_text`). None if they are not read.
        remark: A problem that does not prevent probing: of the sidecars, or a truncation of the tar within the video.
            None if there is no such problem.
        error: The reason why the video must not be opened. None if it may be opened.
    """

    name: str
    part: ByteRange | None
    sidecars: str | None = None
    remark: str | None = None
    error: MediaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileImage:
    """An image in a tar.

    Attributes:
        name: The path of the image in the tar.
        offset: The offset of the image's first byte in the tar.
        size: The size of the image, in bytes.
        problem: The reason why the image is not usable, as a phrase that continues its name, such as "is a link". None
            if the image is usable.
    """

    name: str
    offset: int
    size: int
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContents:
    """The media in a tar or a Parquet file, in the order in which the file stores them.

    Attributes:
        images: The images.
        videos: The videos, which have different names.
        damage: A description of the file's damage. None if no damage was found.
    """

    images: list[FileImage]
    videos: list[FileMember]
    damage: str | None


BLOCK = 512
# Number of bytes after the end of a tar that must be zeros. Tars are padded with zeros to a multiple of 20 blocks.
MAX_ENDING_BYTES = 21 * BLOCK
# For the first bytes of a compressed file: (name of the format, tool for decompression).
COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ\0": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\x04\x22\x4d\x18": ("lz4", "unlz4"),
}


@dataclass(slots=True)
class _Sample:
    """A webdataset sample: consecutive files of a tar that share a key.

    Attributes:
        key: The key of the sample. None if the files do not have a key.
        videos: The videos of the sample.
        contents: The contents of the sidecars, by kind.
        problems: The problems of sidecars that cannot be used.
    """

    key: str | None = None
    videos: list[FileMember] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_tar(read: Read, size_bytes: int, *, sidecars: Sequence[named_medium.Sidecar] = ()) -> FileContents:
    """Find the images and videos in a tar (ustar, GNU or pax). Other files, hidden files and folders are skipped.

    Args:
        read: The function that reads byte ranges of the tar.
        size_bytes: The size of the tar, in bytes.
        sidecars: The kinds of sidecars to read. The files of a sample must be consecutive in the tar, as in webdataset.

    Raises:
        MediaError: The file is not a tar, is compressed, or has more than `MAX_MEDIA` images and videos.
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
                        raise tarfile.ReadError(f"the header at byte {member.offset} points backwards")
                    last = member.offset
                    if (image := _image(member, size_bytes)) is not None:
                        key, ending = named_medium.sample_parts(image.name) or (None, "")
                        if key is None or key != sample.key:
                            videos += _finished(sample, sidecars)
                            sample = _Sample(key=key)
                        if named_medium.form_of(image.name) == "image":
                            images.append(image)
                        elif posixpath.splitext(image.name)[1].lower() in named_medium.VIDEO_SUFFIXES:
                            sample.videos.append(_video(image, member.size, size_bytes))
                        elif ending in sidecars and ending != named_medium.KEY:
                            _take_sidecar(sample, ending, image, read)
                    if len(images) + len(videos) + len(sample.videos) > MAX_MEDIA:
                        raise MediaError("tar", f"the tar has more than {MAX_MEDIA} images and videos", refused=True)
                    tar.members.clear()  # type: ignore[attr-defined]  # frees the memory of past members
                    end = tar.offset
        except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
            if last < 0:
                raise MediaError("not_media", f"is not a tar: {error}") from error
            truncation = f"the member after the member at byte {last} cannot be read: {error or type(error).__name__}"
    videos += _finished(sample, sidecars)
    return FileContents(images=images, videos=_each_once(videos), damage=truncation or _ending(read, end, size_bytes))


def _check_not_compressed(head: bytes) -> None:
    for magic, (name, tool) in COMPRESSED.items():
        if head.startswith(magic):
            raise MediaError(
                "compressed_tar",
                f"the tar is compressed ({name}), so its members are not byte ranges of the file; decompress it with "
                f"{tool}, or write the tar without compression, which saves little space for videos",
                refused=True,
            )


def _image(member: tarfile.TarInfo, size_bytes: int) -> FileImage | None:
    """Return the name, byte range and problem of a member as a `FileImage`, even if the member is not an image.

    Return None for folders and hidden files.
    """
    name = posixpath.normpath(member.name) if member.name else ""
    if member.isdir() or member.name.endswith("/") or posixpath.basename(name)[:1] == ".":
        return None
    problem = None
    if member.issparse() or any(key.startswith("GNU.sparse") for key in member.pax_headers):
        problem = "is a sparse file"
    elif member.issym() or member.islnk():
        problem = "is a link"
    elif not member.isreg():
        problem = "is not a regular file"
    size = member.size if problem is None else 0
    return FileImage(name=name, offset=min(member.offset_data, size_bytes), size=size, problem=problem)


def _video(place: FileImage, stated_bytes: int, size_bytes: int) -> FileMember:
    """Return a video in a tar. If the tar is truncated within the video, the byte range ends where the tar ends.

    Args:
        place: The name, byte range and problem of the member (`_image`).
        stated_bytes: The size of the member in its header, in bytes.
        size_bytes: The size of the tar, in bytes.
    """
    part = ByteRange(offset=place.offset, size_bytes=min(place.size, size_bytes - place.offset))
    error = None
    if place.problem is not None:
        error = MediaError(
            "tar", f"{place.problem}, so its bytes are not a range of the tar; store it as a regular file", refused=True
        )
    elif named_medium.readable_name(place.name) != place.name:
        error = MediaError("file_name", "its name in the tar is not valid UTF-8; rename it", refused=True)
    elif not stated_bytes:
        error = MediaError("empty", "the member is empty")
    remark = None
    if part.size_bytes < place.size:
        remark = f"the tar is truncated within the member, and has {part.size_bytes} of its {place.size} bytes"
    return FileMember(name=named_medium.readable_name(place.name), part=part, remark=remark, error=error)


def _take_sidecar(sample: _Sample, kind: str, place: FileImage, read: Read) -> None:
    """Add the content of a sidecar to its sample, or the reason why it cannot be used."""
    if place.problem is not None or place.size > named_medium.MAX_SIDECAR_BYTES:
        said = place.problem or f"has {place.size} bytes, but at most {named_medium.MAX_SIDECAR_BYTES} are allowed"
        sample.problems.append(f"{named_medium.readable_name(place.name)} {said}")
    elif kind in sample.contents:
        sample.problems.append(f"{named_medium.readable_name(place.name)} occurs twice")
    else:
        sample.contents[kind] = read(place.offset, place.size)


def _finished(sample: _Sample, sidecars: Sequence[named_medium.Sidecar]) -> list[FileMember]:
    """Return the videos of a sample, and add the values and problems of its sidecars to each video."""
    if not sample.videos or not sidecars:
        return sample.videos
    key = None if sample.key is None else named_medium.readable_name(sample.key)
    text, problem = named_medium.sidecar_text(sidecars, key, sample.contents, sample.problems)
    return [
        replace(video, sidecars=text, remark="; ".join(filter(None, (video.remark, problem))) or None)
        for video in sample.videos
    ]


def _each_once(videos: list[FileMember]) -> list[FileMember]:
    """Return one video for each name. If several videos have the same name, the returned video is refused."""
    counts = Counter(video.name for video in videos)
    once = {video.name: video for video in videos}
    return [video if counts[name] == 1 else _refused(video, counts[name]) for name, video in once.items()]


def _refused(video: FileMember, count: int) -> FileMember:
    said = f"the tar has {count} members with this name; rename all but one"
    return replace(video, error=MediaError("tar", said, refused=True))


def _ending(read: Read, end: int, size_bytes: int) -> str | None:
    """Return the damage at the end of a tar, or None if the tar ends correctly.

    A tar ends with blocks of zeros, or at the end of the file.

    Args:
        read: The function that reads byte ranges of the tar.
        end: The offset at which the last member ends, in bytes. Negative if reading the members failed.
        size_bytes: The size of the file, in bytes.
    """
    if end > size_bytes:
        return f"it ends at byte {size_bytes}, within a member that should end at byte {end}"
    if end >= 0 and any(read(end, BLOCK)):
        return f"the header of a member is missing at byte {end}"
    if end >= 0 and any(read(end, MAX_ENDING_BYTES)):
        return f"other data, such as another tar, follow its end at byte {end}; combine both tars into one"
    return None


# The errors that reading a column may raise, for instance because a value is out of the range of Python's types, a text
# is not valid UTF-8, or a time zone is unknown.
UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError, LookupError, TypeError)
# Types of features of Hugging Face's `datasets` that are structs with the field `bytes`, but not videos.
OF_OTHERS = frozenset({"Image", "Audio", "Pdf", "Nifti", "Mesh"})


def holds_videos(schema: pa.Schema) -> bool:
    """Return whether a Parquet file with this schema contains videos, so that it is not a listing."""
    return "uri" not in schema.names and bool(video_columns(schema))


def video_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a Parquet file that contain videos.

    If the schema has metadata of Hugging Face's `datasets` with features of type Video, return the columns of these
    features. Otherwise, return all binary columns.
    """
    features = _features(schema)
    kinds = {name: str(one.get("_type")) for name, one in features.items() if isinstance(one, dict)}
    binary = [one.name for one in schema if leaf_of(one) is not None and kinds.get(one.name) not in OF_OTHERS]
    return [name for name in binary if kinds.get(name) == "Video"] or binary


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return the features that Hugging Face's `datasets` stored in the metadata of a schema."""
    try:
        found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def read_parquet(read: Read, size_bytes: int) -> FileContents:
    """Find the videos in a Parquet file, and read the other columns of their rows.

    The videos themselves are read only to find null values. This is necessary if the videos do not have byte ranges and
    the statistics of the file do not exclude null values.

    Args:
        read: The function that reads byte ranges of the file.
        size_bytes: The size of the file, in bytes.

    Raises:
        MediaError: The file is not a Parquet file, does not contain videos, or has more than `MAX_MEDIA` values.
    """
    try:
        file = pq.ParquetFile(RangedFile(read, size_bytes, "parquet"))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MediaError("not_media", f"is not a Parquet file, or is truncated: {error}") from error
    schema = file.schema_arrow
    columns = video_columns(schema)
    if not columns:
        said = "it is a listing; pass it as a source" if "uri" in schema.names else f"columns {', '.join(schema.names)}"
        raise MediaError("empty", f"no column of the Parquet file contains videos ({said})", refused=True)
    if file.metadata.num_rows * len(columns) > MAX_MEDIA:
        raise MediaError("too_large", f"the Parquet file has more than {MAX_MEDIA} values", refused=True)
    leaves = {column: _leaf(file, column) for column in columns}
    videos: list[FileMember] = []
    first = 0
    for number in range(file.metadata.num_row_groups):
        # Columns that JSON cannot represent, and columns with the same name as another column, are omitted.
        rows = _Rows(count=file.metadata.row_group(number).num_rows)
        for one in schema:
            if one.name not in columns and schema.names.count(one.name) == 1 and _is_plain(one.type):
                rows.values[one.name] = _values(file, number, one.name, one.name, rows)
        for column in columns:
            videos += _of_column(read, file, number, leaves[column], first, rows)
        first += file.metadata.row_group(number).num_rows
    return FileContents(images=[], videos=videos, damage=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A column of videos, and the leaf of the Parquet schema that contains the bytes of the videos.

    Attributes:
        column: The name of the column.
        path: The path of the leaf in the schema.
        number: The index of the leaf among all leaves of the schema.
        beside: The path of the text field `path` in the same struct. None if there is no such field.
    """

    column: str
    path: str
    number: int
    beside: str | None


def _leaf(file: pq.ParquetFile, column: str) -> _Leaf:
    """Return the leaf with the bytes of a column. Raises MediaError if several columns have the same name."""
    own = file.schema_arrow.field(column) if file.schema_arrow.names.count(column) == 1 else None
    path = None if own is None else leaf_of(own)
    numbers = [number for number in range(len(file.schema)) if file.schema.column(number).path == path]
    if own is None or path is None or len(numbers) != 1:
        raise MediaError("columns", f"several columns have the name {path or column}; rename one", refused=True)
    has_paths = pa.types.is_struct(own.type) and own.type.get_field_index("path") >= 0
    return _Leaf(column=column, path=path, number=numbers[0], beside=f"{column}.path" if has_paths else None)


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The columns of a row group that do not contain videos.

    Attributes:
        count: The number of rows in the row group.
        values: The values of each column, as JSON types, by the name of the column.
        unread: For each row with values that cannot be read, the columns of these values.
    """

    count: int
    values: dict[str, list[Any]] = field(default_factory=dict)
    unread: dict[int, list[str]] = field(default_factory=dict)


def _of_column(
    read: Read, file: pq.ParquetFile, row_group: int, leaf: _Leaf, first: int, rows: _Rows
) -> list[FileMember]:
    """Return the videos of one column in one row group.

    Args:
        read: The function that reads byte ranges of the file.
        file: The open file.
        row_group: The number of the row group.
        leaf: The column of videos.
        first: The number of the row group's first row in the file.
        rows: The columns of the row group that do not contain videos.
    """
    chunk = checked_group(file, row_group).column(leaf.number)
    places: list[ByteRange | None] = [None] * rows.count
    nulls: set[int] = set()
    try:
        places = value_ranges(read, chunk, file.schema.column(leaf.number))
        nulls = {row for row, place in enumerate(places) if place is None}
    # The column is compressed, is in lists, or is damaged. If it is damaged, reading a value raises the error later.
    except (ValueError, MemoryError):
        nulls = _nulls(file, row_group, leaf, chunk)
    if len(places) != rows.count:
        places, nulls = [None] * rows.count, set()
    paths = [None] * rows.count if leaf.beside is None else _values(file, row_group, leaf.column, leaf.beside, rows)
    columns = rows.values if leaf.beside is None else {"path": paths} | rows.values
    members = []
    for row, place in enumerate(places):
        error = _missing(paths[row]) if row in nulls else None
        if place is not None and not place.size_bytes:
            error = MediaError("empty", "the value is empty")
        unread = rows.unread.get(row)
        members.append(
            FileMember(
                name=cell_name(leaf.column, first + row),
                part=place,
                sidecars=json.dumps({named_medium.COLUMNS: {name: values[row] for name, values in columns.items()}}),
                remark=None if unread is None else f"values that cannot be read: column {', '.join(unread)}",
                error=error,
            )
        )
    return members


def _nulls(file: pq.ParquetFile, row_group: int, leaf: _Leaf, chunk: pq.ColumnChunkMetaData) -> set[int]:
    """Return the numbers of the rows of a row group in which a column is null.

    The column is read unless the statistics of the file show that it does not have nulls. If the column cannot be read,
    return an empty set, because reading a value of the column will raise the error later.
    """
    counts_nulls = chunk.is_stats_set and chunk.statistics is not None and chunk.statistics.has_null_count
    if counts_nulls and not chunk.statistics.null_count:
        return set()
    with contextlib.suppress(*UNREADABLE):
        values = read_group(file, row_group, [leaf.path], most_bytes=machine_bytes(), threads=True)[leaf.column]
        if pa.types.is_struct(values.type):
            values = pc.struct_field(values, "bytes")
        return set(pc.indices_nonzero(values.is_null()).to_pylist())
    return set()


def _missing(path: object) -> MediaError:
    hint = f", but a path; index the file {path} itself" if isinstance(path, str) and path else ""
    return MediaError("empty", f"the value has no bytes{hint}", refused=True)


def _values(file: pq.ParquetFile, row_group: int, column: str, path: str, rows: _Rows) -> list[Any]:
    """Return the values of a column, or of a field in a column of structs, as JSON types.

    For a value that cannot be read, return None and add the column to `rows.unread`.

    Args:
        file: The open file.
        row_group: The number of the row group.
        column: The name of the column.
        path: The path of the field in the schema. If equal to `column`, the values of the column itself are returned.
        rows: The record of the row group, to which unreadable values are added.
    """
    values: list[Any] | pa.ChunkedArray = [None] * rows.count
    with contextlib.suppress(*UNREADABLE):
        values = read_group(file, row_group, [path], threads=True)[column]
        if path != column:
            values = pc.struct_field(values, path.removeprefix(f"{column}."))
    return [_value(value, path, row, rows) for row, value in enumerate(values)]


def _value(scalar: pa.Scalar | None, column: str, row: int, rows: _Rows) -> Any:
    """Convert a value to a JSON type. If the value cannot be read, return None and add its column to `rows.unread`."""
    with contextlib.suppress(*UNREADABLE):
        if scalar is not None:
            return _plain_value(scalar.as_py())
    rows.unread.setdefault(row, []).append(column)
    return None


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether a type does not contain binaries and is not nested too deeply."""
    if type_depth(kind) > MAX_NESTED:
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return _is_plain(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if kind.num_fields:
        return all(_is_plain(kind.field(number).type) for number in range(kind.num_fields))
    return not (is_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _plain_value(value: Any) -> Any:
    """Convert a value to a JSON type. Dates and times become ISO 8601 texts, decimals texts, and NaN null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, datetime.timedelta)):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _plain_value(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(one) for one in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
