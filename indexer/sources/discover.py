"""Find the media of sources: files, folders, globs, text lists, DALI file lists, and listings with columns.

The result is a list of mentions. A mention (`NamedMedium`) is a source that is a file, one line of a list, one row of a
listing, or one medium that a search of a folder or a glob found. A search of folders skips images in folders with
videos, and files without the filename extension of a video, an image or a tar.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from framedex.errors import MediaError, SourceError, StorageError
from framedex.indexer.schema import LISTING
from framedex.indexer.sources import folders, named_medium
from framedex.indexer.sources.lerobot import LEROBOT, read_lerobot
from framedex.indexer.sources.listing_files import read_list, read_table
from framedex.indexer.sources.members import holds_videos
from framedex.indexer.sources.sequences import TIMES_NAME, check_one_timing, folder_sequence, join_rows, visible_images
from framedex.records.medium import CLIP_NAMES
from framedex.storage.places import Place, parquet_file, place
from framedex.storage.uris import absolute, checked, common_folder, is_remote, local_path

TAKEN = named_medium.VIDEO_SUFFIXES | named_medium.IMAGE_SUFFIXES | {named_medium.TAR_SUFFIX}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFiles:
    """A group of skipped files with the same filename extension.

    Attributes:
        ending: The filename extension in lower case. Empty for files without an extension.
        count: The number of files in the group.
        example: The path of the first file in sorted order.
    """

    ending: str
    count: int
    example: str


def is_other(name: str) -> bool:
    """Return whether a search reports a file as skipped. Hidden files and timestamps files are not reported."""
    return _ending(name) not in TAKEN and name[:1] != "." and name != TIMES_NAME


def other_files(paths: Iterable[str]) -> list[OtherFiles]:
    """Group skipped files by filename extension. The most frequent extension is first."""
    by_ending: dict[str, list[str]] = {}
    for path in sorted(paths):
        by_ending.setdefault(_ending(path), []).append(path)
    readable = named_medium.readable_name
    found = [
        OtherFiles(ending=readable(ending), count=len(some), example=readable(some[0]))
        for ending, some in by_ending.items()
    ]
    return sorted(found, key=lambda some: (-some.count, some.ending))


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()


TABLE_SUFFIXES = frozenset({".csv", ".json", ".jsonl", ".ndjson", ".parquet"})
LIST_SUFFIXES = frozenset({".txt", ".list"})
OBJECT_SUFFIXES = TAKEN | TABLE_SUFFIXES | LIST_SUFFIXES
# Names that user columns must not have: the columns of clips and of the index's listing, and DuckDB's column with the
# number of a row.
RESERVED_COLUMNS = CLIP_NAMES | {*LISTING.names, "is_padding", "file_row_number"}


@dataclass(slots=True, kw_only=True)
class Found:
    """The media found in the sources, and the absolute paths of skipped files.

    Attributes:
        listed: The mentions of media.
        thumbnails: The images that were skipped because their folders contain videos.
        others: The files that were skipped because of their filename extensions.
    """

    listed: list[named_medium.NamedMedium] = field(default_factory=list)
    thumbnails: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The options for finding the media of sources.

    Attributes:
        root: The base folder of relative paths in lists and listings. If None, relative paths are tried in the folder
            of the list, then in the working directory.
        uri_column: The column of listings with the paths or uris of the media. If None, the column is `uri`, or the
            paths are made from the columns of a well-known dataset.
        label_from_parent: Whether to add a column `label` with the name of each medium's folder.
        follow_symlinks: Whether to search folders that are symbolic links, and to allow links that lead out of the
            folder through which a medium was found. If False, a medium outside of this folder has an error. The folder
            is a source, the part of a glob before its wildcards, or the base folder of a list. A file that is itself a
            source may always be a link.
        images: How the images of a searched folder become media: together as one sequence, each image as a medium, or
            not at all.
    """

    root: str | None = None
    uri_column: str | None = None
    label_from_parent: bool = False
    follow_symlinks: bool = False
    images: named_medium.Images = "sequences"


DEFAULTS = Search()


def is_listing(source: str) -> bool:
    """Return whether a source has the filename extension of a listing."""
    return _ending(source) in TABLE_SUFFIXES


def media_id(uri: str, stream: int | None = None, *, member: str | None = None) -> str:
    """Return the id of a medium: a BLAKE2b hash, as 16 hex digits, of the uri, the stream and the member.

    Args:
        uri: The uri of the file or folder.
        stream: The number of the video stream. None for the best stream of a file.
        member: The name of the medium in a file or folder with several media. None for other media.
    """
    name = uri if stream is None else f"{uri}#{stream}"
    if member is not None:
        # The zero byte makes the text different from the uri of any other medium, because paths never contain a zero
        # byte.
        name = f"{name}\0{member}"
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def default_root(sources: Sequence[str]) -> str:
    """Return the deepest folder that contains all sources that are on this machine.

    If all sources are in object storage, return the deepest folder there that contains all of them.
    """
    sources = [source.removeprefix(LEROBOT) for source in sources]
    local = [local_path(source) for source in sources if not is_remote(source.removeprefix("@"))]
    if not local:
        return common_folder([_object_folder(source.removeprefix("@")) for source in sources]) or "/"
    paths = [os.path.abspath(folders.fixed_prefix(source.removeprefix("@"))) for source in local]
    return os.path.commonpath([path if os.path.isdir(path) else os.path.dirname(path) for path in paths])


def source_name(source: str) -> str:
    """Return the name by which an index records a source: its absolute path or uri, after `@` or `lerobot:`."""
    prefix = next((prefix for prefix in ("@", LEROBOT) if source.startswith(prefix)), "")
    return named_medium.readable_name(prefix + absolute(source.removeprefix(prefix)).rstrip("/")) or "/"


def discover(sources: Sequence[str], search: Search = DEFAULTS, *, names: Sequence[str] | None = None) -> Found:
    """Return all mentions of media in the sources, in order. The media of a folder or a glob are sorted.

    Args:
        sources: The sources, as the user spells them.
        search: The options.
        names: The names of the sources that the index records. If None, those of `source_name`.

    Raises:
        SourceError: A list cannot be read, or a folder or glob does not contain any media.
    """
    names = list(map(source_name, sources)) if names is None else names
    sources = [local_path(source) for source in sources]
    if search.uri_column is not None and not any(is_listing(source) for source in sources):
        raise SourceError(
            "the option applies only to listings, and no source is a listing",
            where="--uri-column",
            found=search.uri_column,
            allowed="sources ending in " + " ".join(sorted(TABLE_SUFFIXES)),
        )
    found = Found()
    listed = [
        replace(_check_name(item), sources=(name,))
        for source, name in zip(sources, names, strict=True)
        for item in _expand(source, search, found)
    ]
    if not search.follow_symlinks:
        # If one mention of a medium does not get an error, its other mentions do not get an error, either.
        real_folder = functools.lru_cache(maxsize=4096)(os.path.realpath)  # cached, because many media share folders
        errors = [_link_error(item, real_folder) for item in listed]
        allowed = {(item.path, item.member) for item, error in zip(listed, errors, strict=True) if error is None}
        listed = [
            replace(item, error=error) if error is not None and (item.path, item.member) not in allowed else item
            for item, error in zip(listed, errors, strict=True)
        ]
    if search.label_from_parent:
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
    # Repeated mentions of the same medium with the same columns are removed. If a search found a medium and the user
    # also named it, the remaining mention counts as named by the user.
    kept: dict[tuple[str, str | None, str], named_medium.NamedMedium] = {}
    for item in listed:
        key = (item.path, item.member, repr(sorted(item.columns.items())))
        if (first := kept.get(key)) is None:
            kept[key] = item
            continue
        both = tuple(dict.fromkeys(first.sources + item.sources))
        kept[key] = replace(first, named=item.named if first.named == "search" else first.named, sources=both)
    found.listed = list(kept.values())
    return found


def _check_name(item: named_medium.NamedMedium) -> named_medium.NamedMedium:
    """Check the file names in a mention (a row of a listing or list). Return it, with an error if they are invalid.

    In the returned names, invalid bytes are replaced by `\\xNN`, so that the names can be written into an index.
    """
    readable = named_medium.readable_name
    if "\0" in item.path:
        return replace(item, error=MediaError("file_name", "file names cannot have a zero byte"))
    if (readable(item.path), readable(item.spelled)) != (item.path, item.spelled):
        error = MediaError("file_name", "the file name is not valid UTF-8; rename the file to have it indexed")
        return replace(item, path=readable(item.path), spelled=readable(item.spelled), error=error)
    wrong = next((name for name in item.images or () if readable(name) != name), None)
    if wrong is None:
        return item
    message = f"the name of {readable(wrong)} is not valid UTF-8; rename the file to have the sequence indexed"
    return replace(item, images=(), error=MediaError("file_name", message))


def _link_error(item: named_medium.NamedMedium, real_folder: Callable[[str], str]) -> MediaError | None:
    """Return the error of a mention if links lead out of the folder where its medium was found, else None."""
    if item.folder is None or item.error is not None:
        return None
    inside = [] if item.images is None else [*item.images, TIMES_NAME]
    paths = [item.path, *(os.path.join(item.path, name) for name in inside)]
    target = next(filter(None, (folders.way_out(path, item.folder, real_folder) for path in paths)), None)
    if target is None:
        return None
    if not os.path.lexists(target):
        return MediaError("missing", "cannot be opened: the target of the link does not exist")
    return MediaError(
        "symlink",
        f"a link leads out of {named_medium.readable_name(item.folder)}, to {named_medium.readable_name(target)}; "
        "--follow-symlinks allows such links",
        refused=True,
    )


def _object_folder(source: str) -> str:
    """Return the folder of a source in object storage. If the source is an object or a pattern, this is its folder."""
    uri = checked(folders.pattern_folder(source) if folders.is_pattern(source) else source)
    return uri.rpartition("/")[0] if _names_object(uri) else uri


def _names_object(uri: str) -> bool:
    """Return whether a uri has a filename extension that framedex reads, so that it is an object and not a folder."""
    return _ending(uri) in OBJECT_SUFFIXES or named_medium.is_tar_name(uri)


def _expand(source: str, search: Search, found: Found) -> Iterator[named_medium.NamedMedium]:
    """Yield the mentions of media in a source."""
    remote, suffix = is_remote(source), _ending(source)
    if source.startswith(LEROBOT):
        yield from read_lerobot(source, follow_symlinks=search.follow_symlinks)
    # On this machine, the name of an existing file may begin with @. Such a file is not a list.
    elif source.startswith("@") and (is_remote(source[1:]) or not os.path.lexists(source)):
        yield from _expand_list(source[1:], search)
    elif folders.is_pattern(source) if remote else folders.is_glob(source):
        yield from _expand_pattern(source, search, found)
    elif not remote and os.path.isdir(source):
        yield from _walk(source, source, search, found)
    elif suffix == named_medium.PARQUET_SUFFIX and search.uri_column is None and _holds_videos(place(source)):
        yield _plain(source)
    elif suffix in TABLE_SUFFIXES:
        rows = [_folder_or_file(row) for row in read_table(place(source), search.root, search.uri_column)]
        yield from join_rows(rows, source)
    elif suffix in LIST_SUFFIXES:
        yield from _expand_list(source, search)
    elif not remote or (not source.endswith("/") and (source.startswith("http") or _names_object(checked(source)))):
        yield _plain(source)
    else:
        by_folder = folders.object_folders(checked(source))
        if not by_folder and not source.endswith("/"):
            yield _plain(source)  # an object without a filename extension, or missing; probing finds out
            return
        media: list[named_medium.NamedMedium] = []
        for folder, files in by_folder.items():
            media_here = _media_of(folder, list(files), None, search, found)
            media += [replace(item, facts=files.get(item.path.rpartition("/")[2])) for item in media_here]
        yield from _sorted_media(media, source)


def _holds_videos(path: Place) -> bool:
    """Return whether a Parquet file contains videos.

    If the file is not readable, return False, so that it is read as a listing, which raises the error.
    """
    try:
        return holds_videos(parquet_file(path).schema_arrow)
    except (OSError, ValueError, pa.ArrowException, StorageError):
        return False


def _expand_list(source: str, search: Search) -> Iterator[named_medium.NamedMedium]:
    return (_folder_or_file(item) for item in read_list(place(source), search.root))


def _folder_or_file(item: named_medium.NamedMedium) -> named_medium.NamedMedium:
    """Convert the mention of a folder into the mention of an image sequence. Return other mentions unchanged."""
    return folder_sequence(item) if item.error is None and folders.names_folder(item.path, item.spelled) else item


def _expand_pattern(source: str, search: Search, found: Found) -> Iterator[named_medium.NamedMedium]:
    """Yield the files or objects that match a pattern, and the media in folders that match.

    Links to folders are skipped, unless the search follows links.
    """
    if is_remote(source):
        media = [replace(_found(uri, None), facts=facts) for uri, facts in folders.expand_pattern(checked(source))]
    else:
        folder = folders.fixed_prefix(source)
        media = []
        for name in folders.expand_glob(source, follow_symlinks=search.follow_symlinks):
            if not os.path.isdir(name):
                media.append(_found(name, folder))
            elif search.follow_symlinks or not os.path.islink(name.rstrip("/")):
                media += _walk(name, folder, search, found)
    if not media:
        raise SourceError("no file or folder matches the pattern", where=source)
    yield from media


def _plain(name: str) -> named_medium.NamedMedium:
    return named_medium.NamedMedium(path=absolute(name), spelled=name, named="source")


def _found(name: str, folder: str | None) -> named_medium.NamedMedium:
    return named_medium.NamedMedium(path=absolute(name), spelled=name, folder=folder, named="search")


def _walk(top: str, folder: str, search: Search, found: Found) -> Iterator[named_medium.NamedMedium]:
    """Yield the media in a folder and its subfolders, sorted. Add the paths of skipped files to `found`.

    Args:
        top: The folder.
        folder: Links must not lead out of this folder.
        search: The options.
        found: The record of skipped files.
    """
    searched = folders.folders_below(top, follow_symlinks=search.follow_symlinks)
    media = [item for base, files in searched for item in _media_of(base, files, folder, search, found)]
    yield from _sorted_media(media, top)


def _media_of(
    base: str, files: list[str], folder: str | None, search: Search, found: Found
) -> Iterator[named_medium.NamedMedium]:
    """Yield the media among the files of one folder. Add the paths of skipped files to `found`.

    Args:
        base: The folder.
        files: The names of the files directly in the folder.
        folder: Links must not lead out of this folder. None in object storage.
        search: The options.
        found: The record of skipped files.
    """
    videos = [name for name in files if _ending(name) in named_medium.VIDEO_SUFFIXES]
    # A search skips compressed tars, because they are always refused. A compressed tar that the user names is refused
    # with an error.
    tars = [name for name in files if _ending(name) == named_medium.TAR_SUFFIX]
    yield from (_found(os.path.join(base, name), folder) for name in videos + tars)
    found.others.update(absolute(os.path.join(base, name)) for name in files if is_other(name))
    if search.images == "ignore":
        return
    images = visible_images(files)
    if videos:
        found.thumbnails.update(absolute(os.path.join(base, name)) for name in images)
    elif search.images == "single":
        yield from (_found(os.path.join(base, name), folder) for name in images)
    elif images:
        yield replace(_found(base, folder), images=images)


def _sorted_media(media: list[named_medium.NamedMedium], top: str) -> list[named_medium.NamedMedium]:
    """Return the media of a folder, sorted by their spelled uris. Raises SourceError if there are no media."""
    if not media:
        raise SourceError(
            "the folder contains neither videos nor images",
            where=top,
            allowed="files ending in " + " ".join(sorted(TAKEN)),
            remedy="if files have other extensions, pass the files themselves; "
            "--follow-symlinks also searches linked folders",
        )
    return sorted(media, key=lambda item: item.spelled)


def _with_parent_label(item: named_medium.NamedMedium) -> named_medium.NamedMedium:
    if "label" in item.columns:
        raise SourceError(
            "a medium has two labels: the name of its folder, and a column of the listing",
            where=item.spelled,
            remedy="omit --label-from, or remove the column label from the listing",
        )
    label = os.path.basename(os.path.dirname(item.path))
    return replace(item, columns=item.columns | {"label": label})
