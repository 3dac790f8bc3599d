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
from framedex.indexer.runs.build import IndexReport, build_index
from framedex.indexer.runs.work import IndexOptions
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
    """Record the packets, timestamps and start points of every video in Parquet, as `framedex index` does.

    Calling it again brings the index up to date: only what is new or changed is probed.

    Args:
        sources: a video, an image, a tar of videos or images, a Parquet file with videos in a column, a folder, a glob,
            "@list.txt", a listing (CSV, JSON, JSONL, Parquet), or several of these. They may be in object storage, or
            on the Hugging Face Hub ("hf://datasets/OWNER/NAME@REVISION/PATH"). "lerobot:FOLDER" names a LeRobot
            dataset.
        out: the index: a folder, or a uri of object storage.
        root: the folder that recorded uris are relative to. None: the root of the existing index, else the
            sources' common folder.
        uri_column: the column of a listing that names the media. None: `uri`, or as the columns of Kinetics,
            Something-Something, WebVid and HowTo100M say.
        label_from_parent: add a column `label`, the name of each file's folder.
        depth: "packets" reads every packet. "tables" reads sample tables alone (MP4, MOV, 3GP). "auto" reads tables
            where they can be trusted, else packets.
        streams: which video streams of a file become media, "best" or "all".
        images: what the images of a searched folder are: "sequences", "single" (media of one frame each) or "ignore".
        sidecars: which files beside the videos of a webdataset tar become columns of the user's: kinds out of "json",
            "txt", "cls" and "__key__" (the key of the sample).
        image_fps: images per second of images without times of their own: 25, 29.97, "30000/1001". None: 1.
        verify: decode every frame, store its hash, and compare it with the frame as clips reach it.
        prove: how many frames of each video, drawn at random, to reach as clips reach them and compare with a decode
            that begins further back.
        retry: probe failed media again, even if nothing changed.
        follow_symlinks: also search linked folders.
        workers: how many processes probe. None: one per core. 0: this process; then nothing limits time and memory, and
            a crash of a decoder ends this process.
        timeout_seconds: time limit for each medium. None: no limit.
        memory_bytes: how much memory each process may map. None: no limit.
        engine: "local", or "ray" for a cluster.
        ray_address: address of the cluster. None: Ray finds it.
        progress: show a progress bar on a terminal.

    Returns:
        What the run did. Failed media are rows of the index, and are listed in `problems`.

    Raises:
        FramedexError: an argument is wrong, a source is missing, or `out` holds something else.
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
