"""`framedex.index`: the Python function for the command `framedex index`."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import get_args

from framedex.core.printing import progress_bar
from framedex.core.words import check_choices
from framedex.errors import SourceError
from framedex.execution.engine import GIBIBYTE
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
    follow_symlinks: bool = False,
    workers: int | None = None,
    timeout_seconds: float | None = 3600.0,
    memory_bytes: int | None = 8 * GIBIBYTE,
    engine: EngineName = "local",
    ray_address: str | None = None,
    progress: bool = True,
) -> IndexReport:
    """Record the packets, timestamps and random access points of every video in Parquet, as `framedex index` does.

    Another call brings the index up to date: it probes only files that are new or changed.

    Args:
        sources: A video, an image, a tar of videos or images, a Parquet file with videos in a column, a folder, a glob,
            "@list.txt", a listing (CSV, JSON, JSONL, Parquet), or several of these. They may be in object storage, or
            on the Hugging Face Hub ("hf://datasets/OWNER/NAME@REVISION/PATH"). "lerobot:FOLDER" names a LeRobot
            dataset.
        out: The index: a folder, or a uri of object storage.
        root: The folder that recorded uris are relative to. Default: the root of the existing index, or the common
            folder of the sources.
        uri_column: The column of a listing that names the media. Default: `uri`, or the known columns of Kinetics,
            Something-Something, WebVid and HowTo100M.
        label_from_parent: Add a column `label`, the name of each file's folder.
        depth: "packets" reads every packet. "tables" reads only sample tables (MP4, MOV, 3GP). "auto" reads tables if
            they can be trusted, and packets otherwise.
        streams: The video streams of a file that become media, "best" or "all".
        images: The media that the images of a searched folder become: "sequences", "single" (one frame each) or
            "ignore".
        sidecars: The files beside the videos of a webdataset tar that become user columns: kinds out of "json", "txt",
            "cls" and "__key__" (the key of the sample).
        image_fps: Images per second, such as 25, 29.97 or "30000/1001", for images without times of their own.
            Default: 1.
        verify: Decode every frame, store its hash, and compare it with the frame as clips reach it.
        prove: Number of random frames of each video to decode as clips reach them, and to compare with a decode from
            further back.
        retry: Probe failed media again even if nothing changed.
        follow_symlinks: Also search linked folders.
        workers: Number of processes that probe. Default: one per core. With 0, this process probes. Then neither time
            nor memory is limited, and a crash of a decoder ends this process.
        timeout_seconds: Time limit for each medium. None for no limit.
        memory_bytes: Memory that each process may map. None for no limit.
        engine: "local", or "ray" for a cluster.
        ray_address: Address of the cluster. By default, Ray finds it.
        progress: Show a progress bar on a terminal.

    Returns:
        The report of the run. Failed media are rows of the index, and are listed in `problems`.

    Raises:
        FramedexError: An argument is wrong, a source is missing, or `out` is something else than an index.
    """
    check_choices(depth=(depth, get_args(Depth)), streams=(streams, get_args(Streams)))
    check_choices(images=(images, get_args(Images)))
    written = place(out)
    check_writable(written)
    try:
        kinds = sidecars_of(sidecars)
    except ValueError as error:
        raise SourceError("sidecars of an unknown kind", found=error) from error
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
            follow_symlinks=follow_symlinks,
            workers=processes(workers, engine),
            engine=engine_of(engine, ray_address),
            timeout_seconds=timeout_seconds,
            memory_bytes=memory_bytes,
            on_progress=show,
        )
        return build_index(options)
