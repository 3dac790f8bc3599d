"""`framedex.shard`: the Python function for the command `framedex shard`."""

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import orjson

from framedex.core.printing import progress_bar
from framedex.core.words import check_choices
from framedex.errors import PolicyError
from framedex.execution.engines import EngineName, engine_of, processes
from framedex.files.outputs import check_writable
from framedex.indexer.parts.index import Index
from framedex.sharder.build import SHARD_BYTES, ShardOptions, build_from_policy, build_from_requests
from framedex.sharder.clips.clip import AudioOptions
from framedex.sharder.clips.labels import LabelsArgument, wanted_labels
from framedex.sharder.packing.pack import PACKS, AudioFormat, Pack
from framedex.sharder.packing.pack_options import EncodeCodec, EncodeOptions, ImageOptions
from framedex.sharder.policies.reading import PolicyLike, find_policy
from framedex.sharder.policies.sampling import CHOICES, Choose
from framedex.sharder.selection.explicit_clips import OUTSIDE, ExplicitClips, Outside
from framedex.sharder.writing.report import ShardReport
from framedex.storage.places import Access, Place, place


def shard(
    index: str | Place | Index,
    out: str | Place,
    *,
    policy: PolicyLike | None = None,
    clips: str | Path | Iterable[Mapping[str, object]] | None = None,
    choose: Choose = "nearest",
    outside: Outside = "error",
    overwrite: bool = False,
    keep_damaged: bool = False,
    pack: Pack | None = None,
    shard_bytes: int = SHARD_BYTES,
    images: ImageOptions | None = None,
    encode: EncodeOptions | EncodeCodec | None = None,
    audio: bool | AudioOptions = False,
    audio_format: AudioFormat = "flac",
    labels: LabelsArgument | None = None,
    workers: int | None = None,
    engine: EngineName = "local",
    ray_address: str | None = None,
    scratch: str | Path | None = None,
    allow_remote: bool = False,
    progress: bool = True,
) -> ShardReport:
    """Plan clips from an index and write a dataset, as `framedex shard` does.

    Args:
        index: The output of `framedex.index`.
        out: The dataset: a folder that is new or empty, or a uri of object storage.
        policy: Which frames make a clip: a YAML file, the name of a policy that comes with framedex ("fps"), or the
            content of such a file, as a mapping or as YAML. Give either this or `clips`.
        clips: Frames or seconds of every clip: mappings such as {"uri": "a.mp4", "frames": [0, 7, 3]}, or a file of
            them: JSON Lines, .json, .csv or .parquet.
        choose: With `clips`, which frame a time means: "nearest", "previous" or "next".
        outside: With `clips`, what happens to frames and times outside of a video. "error": the clip is not made.
            "pad": they are padding. "edge": they are padding that shows the first or last frame. "drop": they are left
            out. A clip's own key `outside` takes precedence.
        overwrite: Replace an existing dataset.
        keep_damaged: Allow clips with frames of damaged GOPs.
        pack: What is copied into tars. "clips": every clip as a tiny video. "images": its frames as images. "needed":
            as "clips", but only clips of media that are not byte ranges of their file. None copies nothing; clips point
            into the sources.
        shard_bytes: Target size of a tar. A new tar begins when the next clip would exceed it.
        images: With pack="images", how frames are stored.
        encode: With pack="clips", encode the wanted frames of each clip again, alone and as one closed GOP: "h264",
            "hevc" or "av1", or EncodeOptions with a size and a quality. None copies packets.
        audio: Whether clips carry audio; AudioOptions sets its rate, channels and length.
        audio_format: With `pack` and `audio`, "flac" or "wav".
        labels: Numbers for the values of a column, which the dataset records, so that all of its readers and splits
            have the same ones: "label", {"run": 0, "walk": 1} or {"action": {"run": 0, "walk": 1}}, as for
            `ClipDataset`.
        workers: Number of processes that plan, and with `pack` cut and encode. None: one per core.
        engine: "local", or "ray" for a cluster.
        ray_address: Address of the cluster. None: Ray finds it.
        scratch: A local folder where a dataset for object storage is written first. None: the system's temporary
            folder.
        allow_remote: Whether media may lie in another store than the index (docs/storage.md).
        progress: Show a progress bar on a terminal.

    Returns:
        What the dataset holds. If some clips cannot be made, that is not an error; they are listed in `failures`.

    Raises:
        FramedexError: An argument is wrong, `index` is not an index, or `out` holds something else.
        NoClipsError: No clip could be made. Nothing is written.
        StorageError: Media lie in another store than the index, and `allow_remote` is False.
    """
    if (policy is None) == (clips is None):
        raise PolicyError("give either policy or clips")
    check_choices(PolicyError, outside=(outside, OUTSIDE), choose=(choose, CHOICES))
    check_choices(pack=(pack, (None, *PACKS)), audio_format=(audio_format, get_args(AudioFormat)))
    if policy is not None and (outside, choose) != ("error", "nearest"):
        raise PolicyError("choose and outside are for clips", found="policy", remedy="a policy has the key `choose`")
    written = place(out)
    check_writable(written)
    if isinstance(index, Index):
        opened = Index(index.path, access=replace(index.access, allow_remote=True)) if allow_remote else index
    else:
        opened = Index(index, access=Access(allow_remote=allow_remote))
    with ExitStack() as stack:
        options = ShardOptions(
            overwrite=overwrite,
            keep_damaged=keep_damaged,
            pack=pack,
            shard_bytes=shard_bytes,
            images=images or ImageOptions(),
            encode=EncodeOptions(codec=encode) if isinstance(encode, str) else encode,
            workers=processes(workers, engine),
            engine=engine_of(engine, ray_address),
            audio=AudioOptions() if audio is True else audio or None,
            audio_format=audio_format,
            labels=None if labels is None else wanted_labels(labels),
            scratch=None if scratch is None else Path(scratch),
            on_progress=stack.enter_context(progress_bar("", shown=progress)),
        )
        if policy is not None:
            return build_from_policy(opened, written, find_policy(policy), options)
        assert clips is not None  # either policy or clips was given
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="framedex-"))
        requests = ExplicitClips(_clips_file(clips, Path(folder)))
        return build_from_requests(opened, written, requests, choose=choose, outside=outside, options=options)


def _clips_file(clips: str | Path | Iterable[Mapping[str, object]], folder: Path) -> Path:
    """Return a JSONL file of clips, in a folder if they are mappings. Raises PolicyError for non-JSON values."""
    if isinstance(clips, str | Path):
        return Path(clips)
    path = folder / "clips.jsonl"
    with path.open("wb") as file:
        for number, clip in enumerate(clips, 1):
            _check_finite(clip.get("seconds"), f"clip {number}")
            try:
                file.write(orjson.dumps(dict(clip), option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            except (TypeError, ValueError) as error:
                raise PolicyError("a clip cannot be written as JSON", where=f"clip {number}", found=error) from error
    return path


def _check_finite(seconds: object, where: str) -> None:
    """Raise PolicyError for times that are no numbers, which JSON would write as padding."""
    if not isinstance(seconds, Iterable) or isinstance(seconds, str | bytes):
        return
    for second in seconds:
        if isinstance(second, float | np.floating) and not np.isfinite(second):
            raise PolicyError("seconds must be finite", where=where, found=second, remedy="None is padding")
