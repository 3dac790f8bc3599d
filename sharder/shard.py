"""The function `framedex.shard`, which does the same as the command `framedex shard`."""

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
from framedex.sharder.build import ShardOptions, build_from_policy, build_from_requests
from framedex.sharder.changing.append import append_from_policy
from framedex.sharder.clips.clip import AudioOptions
from framedex.sharder.clips.labels import LabelsArgument, wanted_labels
from framedex.sharder.packing.pack import PACKS, AudioFormat, Pack
from framedex.sharder.packing.pack_options import EncodeCodec, EncodeOptions, ImageOptions
from framedex.sharder.policies.reading import PolicyLike, find_policy
from framedex.sharder.policies.sampling import CHOICES, Choose
from framedex.sharder.selection.explicit_clips import OUTSIDE, ExplicitClips, Outside
from framedex.sharder.writing.report import ShardReport
from framedex.sharder.writing.tar_filling import SHARD_BYTES
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
    append: bool = False,
    replan_scenes: bool = False,
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
    """Plan clips from an index and write a dataset, as the command `framedex shard` does.

    Args:
        index: The folder, uri or opened index that `framedex.index` wrote.
        out: The folder or uri of the dataset. It must be new or empty.
        policy: The policy that says which frames make clips: a YAML file, the name of a policy that is included in
            framedex (such as "fps"), or the content of a policy as a mapping or as YAML text. Give either `policy` or
            `clips`.
        clips: The frames or seconds of every clip: mappings such as {"uri": "a.mp4", "frames": [0, 7, 3]}, or a JSON
            Lines, .json, .csv or .parquet file of such records.
        choose: With `clips`, the frame that is taken for a time: "nearest", "previous" or "next".
        outside: With `clips`, the treatment of frames and times outside of the video. "error": the clip is not made.
            "pad": such frames become padding. "edge": such frames become padding that repeats the first or last frame
            of the video. "drop": such frames are left out. The key `outside` of a single clip takes precedence.
        overwrite: Whether an existing dataset may be replaced.
        append: Whether to append clips of media that the existing dataset does not have and never had. The policy and
            all options must be those of the dataset.
        replan_scenes: With `append`, whether scenes with new views or files, and new scenes with files of the dataset,
            may be planned again, with all scenes that share files with them. Their clips are replaced.
        keep_damaged: Whether clips may have frames of damaged GOPs.
        pack: The data to copy into tars. "clips": every clip as a tiny video. "images": the frames of every clip as
            images. "needed": as "clips", but only for media whose packets are not byte ranges of their file. If None,
            nothing is copied, and clips refer to the sources.
        shard_bytes: The maximum size of a tar in bytes. A clip that would exceed it goes into a new tar.
        images: With pack="images", the format, quality and size of the images.
        encode: With pack="clips", the codec with which the wanted frames of each clip are encoded again as one closed
            GOP: "h264", "hevc" or "av1". EncodeOptions also sets a quality and a size. If None, packets are copied.
        audio: Whether clips carry audio. AudioOptions also sets the rate, the channels and the duration.
        audio_format: With `pack` and `audio`, the format of the audio files: "flac" or "wav".
        labels: The column of labels, and optionally the number that is assigned to each value: "label",
            {"run": 0, "walk": 1} or {"action": {"run": 0, "walk": 1}}, as for `ClipDataset`. The dataset records the
            numbers, so that all readers and splits use the same ones.
        workers: The number of processes that plan clips and, with `pack`, cut, decode and encode them. If None, one per
            core.
        engine: The engine that runs the processes: "local", or "ray" for a Ray cluster.
        ray_address: The address of the Ray cluster. If None, Ray finds the cluster.
        scratch: The local folder in which a dataset for object storage is written first. If None, a folder in the
            system's temporary folder is used.
        allow_remote: Whether media may be in other stores than the index (docs/storage.md).
        progress: Whether to show a progress bar if the output is a terminal.

    Returns:
        The report of the dataset. Clips that cannot be made do not raise an error. They are listed in `failures`.

    Raises:
        FramedexError: An argument is wrong, `index` is not an index, or `out` has other files than those of a dataset.
        NoClipsError: No clip could be made. No dataset is written.
        StorageError: Media are in another store than the index, and `allow_remote` is False.
    """
    if (policy is None) == (clips is None):
        raise PolicyError("give either policy or clips")
    check_choices(PolicyError, outside=(outside, OUTSIDE), choose=(choose, CHOICES))
    check_choices(pack=(pack, (None, *PACKS)), audio_format=(audio_format, get_args(AudioFormat)))
    if policy is not None and (outside, choose) != ("error", "nearest"):
        raise PolicyError(
            "the arguments choose and outside need clips", found="policy", remedy="use the policy's own key `choose`"
        )
    if append and (policy is None or overwrite or labels is not None):
        raise PolicyError("append needs a policy, and allows neither overwrite nor labels")
    if replan_scenes and not append:
        raise PolicyError("replan_scenes needs append")
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
        if policy is not None and append:
            return append_from_policy(opened, written, find_policy(policy), options, replan_scenes=replan_scenes)
        if policy is not None:
            return build_from_policy(opened, written, find_policy(policy), options)
        assert clips is not None  # either policy or clips was given
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="framedex-"))
        requests = ExplicitClips(_clips_file(clips, Path(folder)))
        return build_from_requests(opened, written, requests, choose=choose, outside=outside, options=options)


def _clips_file(clips: str | Path | Iterable[Mapping[str, object]], folder: Path) -> Path:
    """Return the path of a file of clips. Mappings are first written to a JSON Lines file in `folder`.

    Raises:
        PolicyError: A mapping has a value that JSON does not support, or a time that is not finite.
    """
    if isinstance(clips, str | Path):
        return Path(clips)
    path = folder / "clips.jsonl"
    with path.open("wb") as file:
        for number, clip in enumerate(clips, 1):
            seconds, where = clip.get("seconds"), f"clip {number}"
            times = seconds if isinstance(seconds, Iterable) and not isinstance(seconds, str | bytes) else ()
            for time in times:  # in JSON, NaN and infinity would become null, which means padding
                if isinstance(time, float | np.floating) and not np.isfinite(time):
                    raise PolicyError("seconds must be finite", where=where, found=time, remedy="use None for padding")
            try:
                file.write(orjson.dumps(dict(clip), option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            except (TypeError, ValueError) as error:
                raise PolicyError("a clip cannot be written as JSON", where=where, found=error) from error
    return path
