"""`framedex.index`: the Python function for the command `framedex index`."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import get_args

from framedex.core.limits import GIBIBYTE
from framedex.core.printing import progress_bar
from framedex.core.words import check_choices
from framedex.errors import SourceError
from framedex.execution.engines import EngineName, engine_of, processes
from framedex.files.outputs import check_writable
from framedex.indexer.probing.probe import Depth, Streams
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.work import IndexOptions, IndexReport
from framedex.indexer.sources.named_medium import SIDECARS, Images, Sidecar, sidecars_of
from framedex.indexer.sources.sequences import rate_of
from framedex.storage.places import Place, place


def index(
    sources: str | Path | Iterable[str | Path],
    out: str | Place,
    *,
    root: str | Path | None = None,
    uri_column: str | None = None,
    label_from_parent: bool = False,
    depth: Depth = "auto",
    streams: Streams = "best",
    images: Images = "sequences",
    sidecars: Iterable[Sidecar] = SIDECARS,
    image_fps: str | float | Fraction | None = None,
    verify: bool = False,
    prove: int = 0,
    retry: bool = False,
    prune: bool = False,
    prune_at_most: float = 0.1,
    follow_symlinks: bool = False,
    workers: int | None = None,
    timeout_seconds: float | None = 3600.0,
    memory_bytes: int | None = 8 * GIBIBYTE,
    engine: EngineName = "local",
    ray_address: str | None = None,
    progress: bool = True,
) -> IndexReport:
    """Write the packets, timestamps and random access points of every video into Parquet, as `framedex index` does.

    If the index exists, the call updates it, and probes only files that are new or changed.

    Args:
        sources: The source or sources of the media. A source is a video, an image, a tar of videos or images, a Parquet
            file with videos in a column, a folder, a glob, "@list.txt", or a listing (CSV, JSON, JSONL, Parquet).
            Sources may be in object storage, or on the Hugging Face Hub ("hf://datasets/OWNER/NAME@REVISION/PATH").
            "lerobot:FOLDER" stands for the LeRobot dataset in FOLDER.
        out: The folder of the index, on this machine or as a uri of object storage.
        root: The folder that the uris in the index are relative to. If given, relative paths in lists are relative to
            it, too. Default: the root of the existing index. For a new index, the common folder of the sources.
        uri_column: The column of a listing that contains the paths or uris of the media. Default: `uri`, or the known
            columns of Kinetics, Something-Something, WebVid and HowTo100M.
        label_from_parent: Whether to add a column `label` with the name of each file's folder.
        depth: How much of each file is read. "packets" reads every packet. "tables" reads only sample tables and random
            access points (MP4, MOV, 3GP). "auto" reads only tables if they can be trusted, and packets otherwise.
        streams: Which video streams of a file become media: only the best one ("best"), or all ("all").
        images: The treatment of images in a searched folder. With "sequences", they become one medium. With "single",
            each becomes a medium of one frame. With "ignore", they are skipped.
        sidecars: The kinds of sidecar files in a webdataset tar that become user columns, from "json", "txt", "cls" and
            "__key__" (the key of the sample).
        image_fps: The number of images per second, such as 25, 29.97 or "30000/1001", for images whose times are
            neither in a listing nor in a file. Default: 1.
        verify: Whether to check every frame and store its hash. A check decodes the frame twice, in a full decode and
            from the random access point that a clip would use, and compares the two pictures.
        prove: The number of random frames of each video to check. A check decodes the frame twice, from the random
            access point that a clip would use and from an earlier one, and compares the two pictures.
        retry: Whether to probe failed media again even if nothing changed.
        prune: Whether to remove media from the index that only these sources named, and that they no longer name.
        prune_at_most: The maximum share of the media named by these sources that may be pruned, from 0 to 1.
        follow_symlinks: Whether to search folders that are symbolic links, and to follow links that lead out of
            the searched folders.
        workers: The number of processes that probe media. Default: one per core. With 0, this process probes the media
            itself. In this case, time and memory are not limited, and a crash of a decoder ends this process.
        timeout_seconds: The time limit for each medium, in seconds. If None, time is not limited.
        memory_bytes: The memory that each process may map, in bytes. If None, memory is not limited.
        engine: The engine that runs the processes: "local" on this machine, or "ray" on a cluster.
        ray_address: The address of the Ray cluster. If None, Ray looks for a cluster itself.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The report of the run. Media that failed also have rows in the index, and entries in the report's `problems`.

    Raises:
        FramedexError: An argument is wrong, a source is missing, or `out` is not an index.
    """
    check_choices(depth=(depth, get_args(Depth)), streams=(streams, get_args(Streams)))
    check_choices(images=(images, get_args(Images)))
    written = place(out)
    check_writable(written)
    try:
        kinds = sidecars_of(sidecars)
    except ValueError as error:
        raise SourceError("the argument sidecars is wrong", found=error) from error
    several = [sources] if isinstance(sources, str | Path) else sources
    with progress_bar("video", shown=progress) as show:
        options = IndexOptions(
            sources=[str(source) for source in several],
            out=written,
            root=None if root is None else str(root),
            uri_column=uri_column,
            label_from_parent=label_from_parent,
            depth=depth,
            streams=streams,
            images=images,
            sidecars=kinds,
            image_fps=None if image_fps is None else rate_of(str(image_fps)),
            verify=verify,
            prove=prove,
            retry=retry,
            prune=prune,
            prune_at_most=prune_at_most,
            follow_symlinks=follow_symlinks,
            workers=processes(workers, engine),
            engine=engine_of(engine, ray_address),
            timeout_seconds=timeout_seconds,
            memory_bytes=memory_bytes,
            on_progress=show,
        )
        return build_index(options)
