"""Find the media that the user names: files, folders, globs, lists, DALI file lists and listings with columns.

Files that a search of folders skips: images beside videos, and files whose endings are not those of videos.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from framedex.errors import MediaError, SourceError, StorageError
from framedex.indexer.schema import LISTING
from framedex.indexer.sources import named_medium
from framedex.indexer.sources.folders import (
    expand_glob,
    expand_pattern,
    fixed_prefix,
    folders_below,
    is_glob,
    is_pattern,
    names_folder,
    object_folders,
    pattern_folder,
    way_out,
)
from framedex.indexer.sources.lerobot import is_lerobot, read_lerobot, without_prefix
from framedex.indexer.sources.listing_files import read_list, read_table
from framedex.indexer.sources.members import holds_videos
from framedex.indexer.sources.sequences import TIMES_NAME, check_one_timing, folder_sequence, join_rows, visible_images
from framedex.records.medium import CLIP_NAMES
from framedex.storage.places import Place, parquet_file, place
from framedex.storage.uris import absolute, checked, common_folder, is_remote, local_path

TAKEN = named_medium.VIDEO_SUFFIXES | named_medium.IMAGE_SUFFIXES | {named_medium.TAR_SUFFIX}


@dataclass(slots=True)
class Skipped:
    """The absolute paths that a search skips.

    Attributes:
        thumbnails: images that lie beside videos.
        others: files with other endings.
    """

    thumbnails: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFiles:
    """Skipped files with the same ending.

    Attributes:
        ending: in lower case, empty for none.
        count: number of files.
        example: path of the first file.
    """

    ending: str
    count: int
    example: str


def is_other(name: str) -> bool:
    """Return whether a file is skipped because of its ending. Hidden files and timestamps files are not reported."""
    return _ending(name) not in TAKEN and name[:1] != "." and name != TIMES_NAME


def other_files(paths: Iterable[str]) -> list[OtherFiles]:
    """Return skipped files grouped by ending, the most frequent ending first."""
    by_ending: dict[str, list[str]] = {}
    for path in sorted(paths):
        by_ending.setdefault(_ending(path), []).append(path)
    found = [
        OtherFiles(
            ending=named_medium.readable_name(ending), count=len(some), example=named_medium.readable_name(some[0])
        )
        for ending, some in by_ending.items()
    ]
    return sorted(found, key=lambda some: (-some.count, some.ending))


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()


TABLE_SUFFIXES = frozenset({".csv", ".json", ".jsonl", ".ndjson", ".parquet"})
LIST_SUFFIXES = frozenset({".txt", ".list"})
OBJECT_SUFFIXES = named_medium.VIDEO_SUFFIXES | named_medium.IMAGE_SUFFIXES | TABLE_SUFFIXES | LIST_SUFFIXES
# A user column with such a name would hide one of a clip's own, or is the name of a row's number elsewhere.
RESERVED_COLUMNS = CLIP_NAMES | {*LISTING.names, "is_padding", "file_row_number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The media that sources name, and the files that were skipped.

    Attributes:
        listed: the mentions of media.
        thumbnails: how many images were skipped because they lie beside videos.
        others: the paths of files that were skipped because of their endings.
    """

    listed: list[named_medium.NamedMedium]
    thumbnails: int
    others: set[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How sources are read. For its attributes, see `discover`."""

    root: str | None
    follow_symlinks: bool
    images: named_medium.Images
    uri_column: str | None = None


def is_listing(source: str) -> bool:
    """Return whether a source is a listing by the ending of its name."""
    return os.path.splitext(source)[1].lower() in TABLE_SUFFIXES


def media_id(uri: str, stream: int | None = None, *, member: str | None = None) -> str:
    """Return the stable name of a medium: 16 hex digits of BLAKE2b over its uri.

    The hash also covers `stream` and `member`, if given.

    Args:
        uri: of the file or folder.
        stream: number of a video stream that is not the best one of its file.
        member: which of several sequences of images of one file or folder.
    """
    name = uri if stream is None else f"{uri}#{stream}"
    if member is not None:
        name = f"{name}\0{member}"  # no path holds a zero byte
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def default_root(sources: Sequence[str]) -> str:
    """Return the deepest folder on this machine that holds all sources on this machine.

    If all sources lie in stores, return the deepest folder of a store that holds them.
    """
    sources = [without_prefix(source) for source in sources]
    stored = [source.removeprefix("@") for source in sources if is_remote(source.removeprefix("@"))]
    if len(stored) == len(sources):
        return common_folder([_object_folder(source) for source in stored]) or "/"
    folders = []
    for source in sources:
        if is_remote(source.removeprefix("@")):
            continue
        source = local_path(source)
        path = os.path.abspath(fixed_prefix(source.removeprefix("@")))
        folders.append(path if os.path.isdir(path) else os.path.dirname(path))
    return os.path.commonpath(folders)


def discover(
    sources: Sequence[str],
    *,
    root: str | None = None,
    label_from_parent: bool = False,
    follow_symlinks: bool = False,
    images: named_medium.Images = "sequences",
    uri_column: str | None = None,
) -> Found:
    """Return every mention of a medium in the order given. The contents of folders and globs are sorted.

    Args:
        sources: what the user names.
        root: what relative paths inside lists and listings are relative to. None: the folder of the list, then the
            working directory.
        label_from_parent: give each medium a column `label`, the name of its folder.
        follow_symlinks: search linked folders, too, and let links lead out of the folder that a medium was found
            through: a folder that is a source, the part of a glob before its wildcards, or what the paths of a list are
            relative to. Without it, a medium outside has an error. A file that is a source may itself be a link.
        images: what the images of a searched folder are: one sequence, one medium each, or nothing.
        uri_column: the column of listings that names the media. None: `uri`, or as the columns say.

    Raises:
        SourceError: a list cannot be read, or a folder or glob names nothing.
    """
    sources = [local_path(source) for source in sources]
    search = Search(root=root, follow_symlinks=follow_symlinks, images=images, uri_column=uri_column)
    if uri_column is not None and not any(is_listing(source) for source in sources):
        raise SourceError(
            "no source is a listing, so that no column names media",
            where="--uri-column",
            found=uri_column,
            allowed="files ending in " + " ".join(sorted(TABLE_SUFFIXES)),
        )
    skipped = Skipped()
    listed = [_without_stray_bytes(item) for source in sources for item in _expand(source, search, skipped)]
    if not follow_symlinks:
        listed = _with_ways_out(listed)
    if label_from_parent:
        listed = [_with_parent_label(item) for item in listed]
    for item in listed:
        if clash := RESERVED_COLUMNS & item.columns.keys():
            raise SourceError(
                "a user column has a reserved name",
                where=item.spelled,
                found=", ".join(sorted(clash)),
                remedy="rename the column in the listing",
            )
    check_one_timing(listed)
    return Found(listed=_without_repeats(listed), thumbnails=len(skipped.thumbnails), others=skipped.others)


def _without_stray_bytes(item: named_medium.NamedMedium) -> named_medium.NamedMedium:
    """If a medium's name is not valid UTF-8, give it an error, and a name that can be written."""
    if "\0" in item.path:
        return replace(item, error=MediaError("file_name", "no file name holds a zero byte"))
    path, spelled = named_medium.readable_name(item.path), named_medium.readable_name(item.spelled)
    if (path, spelled) == (item.path, item.spelled):
        return _without_stray_images(item)
    error = MediaError("file_name", "the file name is not valid UTF-8; rename the file to have it indexed")
    return replace(item, path=path, spelled=spelled, error=error)


def _without_stray_images(item: named_medium.NamedMedium) -> named_medium.NamedMedium:
    """Give a sequence an error if the name of one of its images is not valid UTF-8."""
    wrong = next((name for name in item.images or () if named_medium.readable_name(name) != name), None)
    if wrong is None:
        return item
    name = named_medium.readable_name(wrong)
    message = f"the name of {name} is not valid UTF-8; rename the file to have the sequence indexed"
    return replace(item, images=(), error=MediaError("file_name", message))


def _with_ways_out(listed: list[named_medium.NamedMedium]) -> list[named_medium.NamedMedium]:
    """Give media an error if links lead out of their folder, unless another mention of them follows no such link."""
    real_folder = functools.lru_cache(maxsize=4096)(os.path.realpath)
    ways_out = [_way_out_error(item, real_folder) for item in listed]
    allowed = {(item.path, item.member) for item, error in zip(listed, ways_out, strict=True) if error is None}
    return [
        replace(item, error=error) if error is not None and (item.path, item.member) not in allowed else item
        for item, error in zip(listed, ways_out, strict=True)
    ]


def _way_out_error(item: named_medium.NamedMedium, real_folder: Callable[[str], str]) -> MediaError | None:
    if item.folder is None or item.error is not None:
        return None
    inside = [] if item.images is None else [*item.images, TIMES_NAME]
    paths = [item.path, *(os.path.join(item.path, name) for name in inside)]
    targets = (way_out(path, item.folder, real_folder) for path in paths)
    target = next((target for target in targets if target is not None), None)
    if target is None:
        return None
    if not os.path.lexists(target):
        return MediaError("missing", "cannot be opened: the link leads nowhere")
    return MediaError(
        "symlink",
        f"a link leads out of {named_medium.readable_name(item.folder)}, to {named_medium.readable_name(target)}; "
        "--follow-symlinks allows such links",
        refused=True,
    )


def _object_folder(source: str) -> str:
    """Return the folder of a store that a source names, or that holds what it names."""
    uri = checked(pattern_folder(source) if is_pattern(source) else source)
    return uri.rpartition("/")[0] if _names_object(uri) else uri


def _names_object(uri: str) -> bool:
    """Return whether the ending of a uri is that of an object."""
    return os.path.splitext(uri)[1].lower() in OBJECT_SUFFIXES or named_medium.is_tar_name(uri)


def _expand_objects(source: str, search: Search, skipped: Skipped) -> Iterator[named_medium.NamedMedium]:
    """Yield what a uri names: an object, the objects of a folder or pattern, or the entries of a list."""
    suffix = os.path.splitext(source)[1].lower()
    if is_pattern(source):
        found = expand_pattern(checked(source))
        if not found:
            raise SourceError("the pattern matches nothing", where=source)
        yield from (replace(_found(uri, None), facts=facts) for uri, facts in found)
    elif suffix == named_medium.PARQUET_SUFFIX and search.uri_column is None and _holds_videos(place(source)):
        yield _plain(source)
    elif suffix in TABLE_SUFFIXES | LIST_SUFFIXES:
        where = place(source)
        rows = (
            read_table(where, search.root, search.uri_column)
            if suffix in TABLE_SUFFIXES
            else read_list(where, search.root)
        )
        yield from join_rows([_folder_or_file(row) for row in rows], source)
    elif not source.endswith("/") and (source.startswith("http") or _names_object(checked(source))):
        yield _plain(source)
    else:
        folders = object_folders(checked(source))
        if not folders and not source.endswith("/"):
            yield _plain(source)  # an object whose name has no ending, or nothing; probing shows which
            return
        media: list[named_medium.NamedMedium] = []
        for folder in folders:
            found_here = _media_of(folder.uri, list(folder.files), None, search, skipped)
            media += [replace(item, facts=folder.files.get(item.path.rpartition("/")[2])) for item in found_here]
        yield from _some(media, source)


def _expand(source: str, search: Search, skipped: Skipped) -> Iterator[named_medium.NamedMedium]:
    if is_lerobot(source):
        yield from read_lerobot(source, follow_symlinks=search.follow_symlinks)
        return
    if is_remote(source):
        yield from _expand_objects(source, search, skipped)
        return
    if source.startswith("@") and is_remote(source[1:]):
        yield from (_folder_or_file(item) for item in read_list(place(source[1:]), search.root))
        return
    path = Path(source)
    if source.startswith("@") and not os.path.lexists(source):
        yield from _in_list(Path(source[1:]), search)
    elif path.is_dir():
        yield from _walk(source, source, search, skipped)
    elif is_glob(source):
        yield from _expand_glob(source, search, skipped)
    elif path.suffix.lower() == named_medium.PARQUET_SUFFIX and search.uri_column is None and _holds_videos(path):
        yield _plain(source)
    elif path.suffix.lower() in TABLE_SUFFIXES:
        rows = [_folder_or_file(row) for row in read_table(path, search.root, search.uri_column)]
        yield from join_rows(rows, source)
    elif path.suffix.lower() in LIST_SUFFIXES:
        yield from _in_list(path, search)
    else:
        yield _plain(source)


def _holds_videos(path: Place) -> bool:
    """Return whether a Parquet file holds videos. One that is not readable counts as a listing; its reader says why."""
    try:
        return holds_videos(parquet_file(path).schema_arrow)
    except (OSError, ValueError, pa.ArrowException, StorageError):
        return False


def _in_list(path: Path, search: Search) -> Iterator[named_medium.NamedMedium]:
    return (_folder_or_file(item) for item in read_list(path, search.root))


def _folder_or_file(item: named_medium.NamedMedium) -> named_medium.NamedMedium:
    """If a mention names a folder, return it as the mention of a sequence. Return others unchanged."""
    return folder_sequence(item) if item.error is None and names_folder(item.path, item.spelled) else item


def _expand_glob(source: str, search: Search, skipped: Skipped) -> Iterator[named_medium.NamedMedium]:
    """Yield the files that a glob names, and the media in the folders that it names.

    Links to folders are treated as in a search.
    """
    names = expand_glob(source, follow_symlinks=search.follow_symlinks)
    if not search.follow_symlinks:
        names = [name for name in names if not (os.path.isdir(name) and os.path.islink(name.rstrip("/")))]
    if not names:
        raise SourceError("the pattern matches nothing", where=source)
    folder = fixed_prefix(source)
    for name in names:
        yield from _walk(name, folder, search, skipped) if os.path.isdir(name) else [_found(name, folder)]


def _plain(name: str) -> named_medium.NamedMedium:
    return named_medium.NamedMedium(path=absolute(name), spelled=name, named="source")


def _found(name: str, folder: str | None) -> named_medium.NamedMedium:
    return named_medium.NamedMedium(path=absolute(name), spelled=name, folder=folder, named="search")


def _walk(top: str, folder: str, search: Search, skipped: Skipped) -> Iterator[named_medium.NamedMedium]:
    """Yield the media in a folder and below it. Add the paths of files that are not taken to `skipped`."""
    media: list[named_medium.NamedMedium] = []
    for base, files in folders_below(top, follow_symlinks=search.follow_symlinks):
        media += _media_of(base, files, folder, search, skipped)
    yield from _some(media, top)


def _media_of(
    base: str, files: list[str], folder: str | None, search: Search, skipped: Skipped
) -> Iterator[named_medium.NamedMedium]:
    """Yield the media among the files of one folder. Add the paths of files that are not taken to `skipped`."""
    videos = [name for name in files if os.path.splitext(name)[1].lower() in named_medium.VIDEO_SUFFIXES]
    yield from (_found(os.path.join(base, name), folder) for name in videos)
    skipped.others.update(absolute(os.path.join(base, name)) for name in files if is_other(name))
    yield from (_found(os.path.join(base, name), folder) for name in files if _is_found_tar(name))
    if search.images == "ignore":
        return
    images = visible_images(files)
    if videos:
        skipped.thumbnails.update(absolute(os.path.join(base, name)) for name in images)
    elif search.images == "single":
        yield from (_found(os.path.join(base, name), folder) for name in images)
    elif images:
        yield replace(_found(base, folder), images=images)


def _is_found_tar(name: str) -> bool:
    """Return whether a search takes a file as a tar. A compressed one is refused, so it must be named."""
    return os.path.splitext(name)[1].lower() == named_medium.TAR_SUFFIX


def _some(media: list[named_medium.NamedMedium], top: str) -> Iterator[named_medium.NamedMedium]:
    """Yield the media of a folder, sorted. Raises SourceError if there are none."""
    if not media:
        raise SourceError(
            "the folder holds no video and no image",
            where=top,
            allowed="files ending in "
            + " ".join(sorted(named_medium.VIDEO_SUFFIXES | named_medium.IMAGE_SUFFIXES | {named_medium.TAR_SUFFIX})),
            remedy="name the files themselves if they have other endings; "
            "--follow-symlinks also searches linked folders",
        )
    yield from sorted(media, key=lambda item: item.spelled)


def _with_parent_label(item: named_medium.NamedMedium) -> named_medium.NamedMedium:
    if "label" in item.columns:
        raise SourceError(
            "two labels for one medium: the listing's and its folder's name",
            where=item.spelled,
            remedy="leave out --label-from, or drop the listing's label column",
        )
    label = os.path.basename(os.path.dirname(item.path))
    return replace(item, columns=item.columns | {"label": label})


def _without_repeats(listed: list[named_medium.NamedMedium]) -> list[named_medium.NamedMedium]:
    """Drop repeated mentions: the same path with the same columns.

    If one of them comes from a search and another one names the medium, the result counts as named.
    """
    kept: dict[tuple[str, str | None, str], named_medium.NamedMedium] = {}
    for item in listed:
        key = (item.path, item.member, repr(sorted(item.columns.items())))
        if key not in kept:
            kept[key] = item
        elif kept[key].named == "search":
            kept[key] = replace(kept[key], named=item.named)
    return list(kept.values())
