"""From planned clips to samples of tars: a clip's tiny file, or its frames as images, and its JSON.

Decodes clips in worker processes and stores their frames in another form: as images, or encoded again.

Plans clips and cuts their tiny files in worker processes, while this process copies the results into tars.

A clip's packets never pass between processes: a worker returns the names of ranges of files. Media whose clips cannot
be returned in this way are handled in this process, in their turn.
"""

from __future__ import annotations

import functools
import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import DecodeError, StaleError, UncuttableError
from framedex.execution.engine import Calls, Outcome
from framedex.execution.engines import Workers, run_local
from framedex.indexer.parts.index import Index
from framedex.records.clip import PAD, SAMPLE, Failure, Recipe
from framedex.records.columns import json_of
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, Medium, WantedClip, failure_of, internal_failure
from framedex.sharder.clips.samples import Member, Step
from framedex.sharder.packing.clip_files import ClipFile, ClipFiles, copies_ranges
from framedex.sharder.packing.encoders import EncodedStream, encode_clip, encoded_file
from framedex.sharder.packing.mp4 import UNSPECIFIED
from framedex.sharder.packing.pack_options import (
    CODECS,
    FORMATS,
    EncodeOptions,
    ImageOptions,
    as_they_are,
    image_files,
    unique_ranks,
)
from framedex.sharder.packing.sample_recipes import KEY, AudioFormat, recipe_text, with_audio
from framedex.sharder.planning.indexed_medium import IndexedMedium, OpenMedia, PlanningOptions
from framedex.sharder.planning.steps import PlanItem, ReadGroup, Spools, plan
from framedex.sharder.reading import EncodedClip, SourceFiles
from framedex.storage.places import Place
from framedex.storage.uris import medium_name

CLIPS_IN_FLIGHT = 4  # per worker: as packets, and in their new form
SECONDS_A_CLIP = 600.0  # decoding a clip is aborted after this time
Made = TypeVar("Made")
Make = Callable[[Clip, EncodedClip], Made]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task(Generic[Made]):
    """A step whose clip is to be decoded and stored in another process.

    Attributes:
        encoded: The clip's packets; None if there is nothing to do.
    """

    step: Step
    encoded: EncodedClip | None
    make: Make[Made]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a clip cannot be stored: the kind and the message of a failure."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoding(Generic[Made]):
    """Decodes each clip once, in worker processes, and stores its new form.

    Attributes:
        make: Runs in a worker: a clip and its packets → its new form. It can be pickled. It raises DecodeError for a
            clip that does not decode, and UncuttableError for one that cannot have that form.
        finish: Runs in this process: a clip, its new form and the progress of the plan → a step with members. It raises
            UncuttableError as `make` does.
    """

    make: Make[Made]
    finish: Callable[[Clip, Made, int], Step]
    workers: Workers

    def pack(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield every step, with clips in their new form, or failures for clips that have none."""
        calls = Calls(
            function=recode,
            items=self._tasks(steps),
            timeout_seconds=SECONDS_A_CLIP,
            in_flight=CLIPS_IN_FLIGHT,
        )
        for outcome in self.workers.run(calls):
            yield self._step(outcome)

    def _tasks(self, steps: Iterable[Step]) -> Iterator[_Task[Made]]:
        sources = SourceFiles()
        for step in steps:
            clip, encoded = step.outcome, None
            if isinstance(clip, Clip):
                try:
                    encoded = sources.read(clip)
                except StaleError as error:
                    step = Step(outcome=failure_of(clip, error), done=step.done)
                except MEDIUM_ERRORS:
                    raise
                except Exception as error:  # a bug at one clip must not end the run for the others
                    step = Step(outcome=internal_failure(clip.clip_id, clip.medium.name, error), done=step.done)
            yield _Task(step=step, encoded=encoded, make=self.make)

    def _step(self, outcome: Outcome[_Task[Made], Made | Refused | None]) -> Step:
        step, made = outcome.item.step, outcome.result
        clip = step.outcome
        if isinstance(clip, Failure):
            return step
        if made is None or isinstance(made, Refused):
            return Step(outcome=_failure(clip, outcome, made), done=step.done)
        try:
            return self.finish(clip, made, step.done)
        except UncuttableError as error:
            return Step(outcome=failure_of(clip, error), done=step.done)
        except MEDIUM_ERRORS:
            raise
        except Exception as error:  # a bug at one clip must not end the run for the others
            return Step(outcome=internal_failure(clip.clip_id, clip.medium.name, error), done=step.done)


def recode(task: _Task[Made]) -> Made | Refused | None:
    """Return a clip in its new form, or why it has none. Runs in a worker."""
    if task.encoded is None or isinstance(task.step.outcome, Failure):
        return None
    try:
        return task.make(task.step.outcome, task.encoded)
    except DecodeError as error:
        return Refused(kind="undecodable", message=error.text())
    except UncuttableError as error:
        return Refused(kind="uncuttable", message=error.text())


def _failure(clip: Clip, outcome: Outcome[_Task[Made], Made | Refused | None], refused: Refused | None) -> Failure:
    """Return the row of a clip that was refused, or whose worker gave no result."""
    kind, message = (refused.kind, refused.message) if refused else (outcome.kind or "error", outcome.message or "")
    return Failure(clip_id=clip.clip_id, uri=clip.medium.name, kind=kind, message=message, traceback=outcome.traceback)


Pack = Literal["clips", "images", "needed"]
PACKS: tuple[Pack, ...] = ("clips", "images", "needed")
Row = dict[str, Any]


class ClipPacking:
    """Copies each clip's packets into a tiny file. `needed`: only clips of media that are not addressable by bytes."""

    def __init__(self, *, needed: bool) -> None:
        self._needed, self._files, self._sources = needed, ClipFiles(), SourceFiles()

    def pack(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield every step, with clips as tiny files, or failures for clips that cannot be cut."""
        for step in steps:
            clip = step.outcome
            if isinstance(clip, Failure) or (self._needed and clip.source == clip.medium.source):
                yield step
                continue
            try:
                yield self._cut(clip, step.done)
            except (StaleError, UncuttableError) as error:
                yield Step(outcome=failure_of(clip, error), done=step.done)
            except MEDIUM_ERRORS:
                raise
            except Exception as error:  # a bug at one clip must not end the run for the others
                yield Step(outcome=internal_failure(clip.clip_id, clip.medium.name, error), done=step.done)

    def _cut(self, clip: Clip, done: int) -> Step:
        if clip.medium.kind == IMAGES:
            encoded = self._sources.read(clip)
            return image_step(clip, image_files(clip, encoded, None), None, done)
        return file_step(self._files.cut(clip), done)


def image_packing(options: ImageOptions, workers: Workers) -> Recoding[list[bytes]]:
    """Return what decodes each clip once, in worker processes, and stores every frame that it wants as an image."""

    def step(clip: Clip, files: list[bytes], done: int) -> Step:
        return image_step(clip, files, options, done)

    make = functools.partial(_make_images, options=options)
    return Recoding(make=make, finish=step, workers=workers)


def encoded_packing(options: EncodeOptions, workers: Workers) -> Recoding[EncodedStream]:
    """Return what decodes each clip once, in worker processes, and encodes the frames that it wants as a tiny file.

    All clips of a medium have its first clip's configuration record, because the dataset describes a medium once.
    """
    records: dict[str, bytes] = {}

    def step(clip: Clip, stream: EncodedStream, done: int) -> Step:
        record = records.setdefault(clip.medium.media_id, stream.configuration)
        if record != stream.configuration:
            raise ValueError(f"{options.codec} streams of one medium with several configuration records")
        return file_step(encoded_file(clip, stream, options), done)

    make = functools.partial(_make_stream, options=options)
    return Recoding(make=make, finish=step, workers=workers)


def _make_images(clip: Clip, encoded: EncodedClip, options: ImageOptions) -> list[bytes]:
    return image_files(clip, encoded, options)


def _make_stream(clip: Clip, encoded: EncodedClip, options: EncodeOptions) -> EncodedStream:
    return encode_clip(clip, encoded, options)


def file_step(file: ClipFile, done: int) -> Step:
    """Return a clip that is a tiny file, with its members."""
    members = (file.member, Member(suffix="json", pieces=[clip_json(file)]))
    return Step(outcome=file.clip, done=done, members=members)


def image_step(clip: Clip, files: list[bytes], options: ImageOptions | None, done: int) -> Step:
    """Return a clip whose frames are image files, with its members.

    Args:
        options: How frames are stored; None if the files are copies.
    """
    copied = options is None or as_they_are(clip.medium, options)
    names = {codec: FORMATS[name] for name, codec in CODECS.items()}
    suffix = names[clip.medium.codec] if options is None else FORMATS[options.format]
    suffixes = [f"{number:03d}.{suffix}" for number in range(len(files))]
    medium = clip.medium if options is None or copied else stored_medium(clip.medium, options)
    place = {rank: number for number, rank in enumerate(unique_ranks(clip).tolist())}
    position = np.array([place.get(rank, PAD) for rank in clip.recipe.position.tolist()], np.int32)
    packed = replace(clip, medium=medium, md5=clip.md5 if copied else None, recipe=_image_recipe(clip, files, position))
    shown = [None if rank == PAD else suffixes[rank] for rank in position.tolist()]
    content = as_json(describe(packed) | {"images": shown} | clip.columns | {KEY: recipe_text(packed, suffixes)})
    members = [Member(suffix=name, pieces=[file]) for name, file in zip(suffixes, files, strict=True)]
    return Step(outcome=packed, done=done, members=(*members, Member(suffix="json", pieces=[content])))


def _image_recipe(clip: Clip, files: list[bytes], position: NDArray[np.int32]) -> Recipe:
    """Return the recipe of a clip whose members are image files, in order."""
    size = np.array([len(file) for file in files], np.int64)
    first = np.zeros(1, np.int32)
    return Recipe(
        range_offset=np.cumsum(size) - size,
        range_length=size,
        packet_size=size.astype(np.int32),
        packet_rank=np.arange(len(files), dtype=np.int32),
        run_first=first,
        run_open=np.zeros(1, np.bool_),
        run_state=first,
        damaged=clip.recipe.damaged,
        position=position,
        range_crc32=np.array([zlib.crc32(file) for file in files], np.int64),
    )


def stored_medium(medium: Medium, options: ImageOptions) -> Medium:
    """Return a medium with the properties of its stored frames."""
    height, width = options.stored_size(medium.height, medium.width)
    return replace(
        medium,
        kind=IMAGES,
        container="tar",
        codec=CODECS[options.format],
        codec_tag=None,
        bits_per_coded_sample=None,
        profile=None,
        pixel_format=None,
        width=width,
        height=height,
        field_order=None,
        color_range=None,
        color_matrix=UNSPECIFIED,
        color_primaries=UNSPECIFIED,
        color_transfer=UNSPECIFIED,
        extradata=None,
        states=[b""],
        reorder_depth=0,
        inband_parameter_sets=False,
        inner_start_codes=False,
        varying_shape=False,
        chroma_format=None,
        max_ref_frames=None,
        field_coded=False,
        hidden_unordered=False,
    )


# Dates and times are passed to `_told`, whatever their type: pyarrow returns pandas's types if pandas is installed.
JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATETIME


def clip_json(file: ClipFile) -> bytes:
    """Return the JSON member of a clip's file; docs/shards.md explains its keys."""
    return as_json(
        describe(file.clip)
        | {
            "frames_in_file": file.frames,
            "seconds_in_file": file.seconds,
            "unshown_in_file": file.unshown,
            "timestamps": "source" if file.real_times else "ranks",
        }
        | file.clip.columns
        | {KEY: recipe_text(file.clip, [file.member.suffix])}
    )


def describe(clip: Clip) -> Row:
    """Return the entries that the JSON of any sample has about its clip."""
    medium = clip.medium
    rate = medium.frame_count * medium.time_base_den / (medium.duration_pts * medium.time_base_num or 1)
    own = json_of(clip, SAMPLE)
    return {
        "clip_id": own.pop("clip_id"),
        "uri": medium.uri,
        **({} if medium.member is None else {"member": medium.member}),
        "codec": medium.codec,
        "width": medium.width,
        "height": medium.height,
        "rotation_degrees": medium.rotation_degrees,
        "time_base": [medium.time_base_num, medium.time_base_den],
        "frame_rate": rate,
        **own,
    } | _describe_audio(clip)


def _describe_audio(clip: Clip) -> Row:
    if clip.audio is None:
        return {}
    audio = clip.audio
    facts = {"rate": audio.rate, "channels": audio.channels, "samples": audio.count}
    return {"audio": facts | {"begin_seconds": audio.first / audio.rate}}


def as_json(content: Row) -> bytes:
    """Return one line of JSON, with null for NaN and infinity. Values may be numpy arrays."""
    return orjson.dumps(content, default=_told, option=JSON_OPTIONS)


def _told(value: Any) -> Any:
    """Return a JSON value for a value that JSON cannot represent, for instance text for bytes.

    Users' columns may hold values of any other type; they become text, too.
    """
    if isinstance(value, np.ndarray):  # an array that is not contiguous
        return value.tolist()
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


CLIPS_A_TASK = 64
TASKS_IN_FLIGHT = 4  # per worker
TASKS_AT_FIRST = 4  # done in this process while workers start
BEHIND_COPYING = 10  # a worker's niceness: its results wait to be copied, and copying takes longest


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFileOptions:
    """How clips are planned and cut into files of their own.

    Attributes:
        needed: Cut only clips of media whose packets are not byte ranges of a file.
        audio_format: Format in which tars store audio.
    """

    planning: PlanningOptions
    needed: bool = False
    audio_format: AudioFormat = "flac"


class ClipCutter:
    """Plans and cuts clips in one process. `spools`: as for `plan`."""

    def __init__(self, index: Index, options: ClipFileOptions, spools: Spools | None) -> None:
        self._options, self._spools = options, spools
        self._packing = ClipPacking(needed=options.needed)
        self._media = OpenMedia(index, options.planning)

    def steps(self, groups: Iterable[ReadGroup]) -> Iterator[Step]:
        """Yield the steps of a plan, clips with their members."""
        return with_audio(self._packing.pack(plan(groups, self._spools)), self._options.audio_format)

    def cut(self, sent: list[SentItem]) -> Iterator[Step]:
        """Yield the steps of items of a plan."""
        media = [None if item.media_id is None else self._media.of(item.media_id) for item in sent]
        return self.steps(
            [
                [
                    PlanItem(medium=medium, wanted=item.wanted, done=item.done)
                    for item, medium in zip(sent, media, strict=True)
                ]
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SentItem:
    """An item of a plan, in the form that is sent to workers. `media_id`: its medium; None if that is not known."""

    media_id: str | None
    wanted: WantedClip | Failure
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CuttingTask:
    """The unit of work of one worker.

    Attributes:
        own: What this process cuts instead, because it takes more than ranges of files.
        here: Whether this process does the task, because no worker is ready yet.
    """

    index: Place
    options: ClipFileOptions
    sent: list[SentItem]
    own: ReadGroup | None = None
    here: bool = False


def cut_in_workers(
    index: Index, options: ClipFileOptions, spools: Spools, groups: Iterable[ReadGroup], workers: Workers
) -> Iterator[Step]:
    """Yield the same steps as `ClipCutter`, in the same order, made in worker processes."""
    cutter = ClipCutter(index, options, spools)
    calls = Calls(
        function=cut,
        items=_tasks(index.path, options, groups),
        timeout_seconds=SECONDS_A_CLIP,
        in_flight=TASKS_IN_FLIGHT,
        passes=lambda task: task.own is not None or task.here,
    )
    for outcome in workers.run(calls):
        task = outcome.item
        if task.own is not None:
            yield from cutter.steps([task.own])
        elif task.here:
            yield from cutter.cut(task.sent)
        else:
            yield from _steps(outcome)


def _tasks(index: Place, options: ClipFileOptions, groups: Iterable[ReadGroup]) -> Iterator[CuttingTask]:
    """Yield the plan in tasks."""
    numbers = itertools.count()

    def task(sent: list[SentItem]) -> CuttingTask:
        return CuttingTask(index=index, options=options, sent=sent, here=next(numbers) < TASKS_AT_FIRST)

    gathered: list[SentItem] = []
    for medium, items in itertools.groupby(itertools.chain.from_iterable(groups), lambda item: item.medium):
        if medium is not None and not _ships(medium):
            if gathered:
                yield task(gathered)
                gathered = []
            while own := list(itertools.islice(items, CLIPS_A_TASK)):
                yield CuttingTask(index=index, options=options, sent=[], own=own)
            continue
        for item in items:
            media_id = None if medium is None else medium.medium.media_id
            gathered.append(SentItem(media_id=media_id, wanted=item.wanted, done=item.done))
            if len(gathered) >= CLIPS_A_TASK:
                yield task(gathered)
                gathered = []
    if gathered:
        yield task(gathered)


def _ships(medium: IndexedMedium) -> bool:
    """Return whether workers can cut a medium's clips, which they do only as ranges of the medium's own file."""
    audio = medium.audio_packets
    if medium.is_spooled:
        return False
    return copies_ranges(medium.medium) and medium.addressable and (audio is None or audio.offset is not None)


def _steps(outcome: Outcome[CuttingTask, list[Step]]) -> Iterator[Step]:
    """Yield the result of a task. If it has none, yield the results of its clips one by one."""
    if outcome.result is not None:
        yield from outcome.result
        return
    task = outcome.item
    if len(task.sent) > 1:
        alone = [replace(task, sent=[item]) for item in task.sent]
        for each in run_local(Calls(function=cut, items=alone, timeout_seconds=SECONDS_A_CLIP), workers=1):
            yield from _steps(each)
        return
    [item] = task.sent
    wanted = item.wanted
    if isinstance(wanted, WantedClip):
        video = Index(task.index).video(item.media_id) if item.media_id else None
        uri = None if video is None else medium_name(video["uri"], video["member"])
        kind, message = outcome.kind or "error", outcome.message or ""
        wanted = Failure(clip_id=wanted.clip_id, uri=uri, kind=kind, message=message, traceback=outcome.traceback)
    yield Step(outcome=wanted, done=item.done)


def cut(task: CuttingTask) -> list[Step]:
    """Return the steps of a task. Runs in a worker."""
    return list(_cutter(task.index, task.options).cut(task.sent))


@functools.lru_cache(1)
def _cutter(index: Place, options: ClipFileOptions) -> ClipCutter:
    os.nice(BEHIND_COPYING)
    return ClipCutter(Index(index, access=options.planning.access), options, None)
