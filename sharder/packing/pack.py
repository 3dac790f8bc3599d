"""Packing of clips: from planned clips to samples of tars, each with the clip's files and a JSON.

A clip is copied into a tiny file, or decoded once and stored as images or as an encoded file. Worker processes do the
work, and this process copies the results into tars.

A clip's packets do not pass between processes: a worker that cuts clips returns the places of ranges of files. If a
medium's clips consist of anything else, this process cuts them.
"""

from __future__ import annotations

import functools
import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import DecodeError, StaleError, UncuttableError
from framedex.execution.engine import Calls, Outcome, run_local
from framedex.execution.engines import Workers
from framedex.indexer.parts.index import Index
from framedex.records.clip import PAD, SAMPLE, AudioFile, ClipAudioPlan, Failure
from framedex.records.columns import json_of
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, Medium, WantedClip, failure_of, internal_failure
from framedex.sharder.clips.samples import Member, Step
from framedex.sharder.decoding.audio import ClipAudio, encode_flac, encode_wav, flac_bits, read_audio, stretches
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
    recoded_medium,
    recoded_recipe,
    unique_ranks,
)
from framedex.sharder.packing.sample_recipes import KEY, recipe_text, with_audio_text
from framedex.sharder.planning.indexed_medium import IndexedMedium, OpenMedia, PlanningOptions
from framedex.sharder.planning.steps import PlanItem, ReadGroup, Spools, lost_clip, plan
from framedex.sharder.reading import EncodedClip, SourceFiles
from framedex.storage.places import Place
from framedex.storage.uris import medium_name

Row = dict[str, Any]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

Pack = Literal["clips", "images", "needed"]
PACKS: tuple[Pack, ...] = ("clips", "images", "needed")
AudioFormat = Literal["flac", "wav"]
AUDIO_FORMATS: tuple[AudioFormat, ...] = ("flac", "wav")

CLIPS_IN_FLIGHT = 4  # per worker; each is in memory as packets, and then in its new form
SECONDS_A_CLIP = 600.0  # decoding a clip is aborted after this time
CLIPS_A_TASK = 64  # cutting a clip takes less time than passing a task to a worker
TASKS_IN_FLIGHT = 4  # per worker
TASKS_AT_FIRST = 4  # done in this process while workers start
NICENESS = 10  # of workers that cut clips, because copying their results takes longer and must not wait

# `_json_value` converts dates and times of any type: pyarrow returns pandas's types if pandas is installed.
JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATETIME


def attempt(
    clip: Clip, function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result | Failure:
    """Return the result of a function, or the failure of a clip if the function raises an error."""
    try:
        return function(*arguments, **named)
    except DecodeError as error:
        return Failure(clip_id=clip.clip_id, uri=clip.medium.name, kind="undecodable", message=error.text())
    except (StaleError, UncuttableError) as error:
        return failure_of(clip, error)
    except MEDIUM_ERRORS:
        raise
    except Exception as error:  # a bug at one clip must not end the run for the others
        return internal_failure(clip.clip_id, clip.medium.name, error)


def as_step(made: Step | Failure, done: int) -> Step:
    """Return a step, or the step of a failure."""
    return Step(outcome=made, done=done) if isinstance(made, Failure) else made


class ClipPacking:
    """Copying of each clip's packets into a tiny file.

    Args:
        needed: Copy only clips of media whose packets are not byte ranges of their file.
    """

    def __init__(self, *, needed: bool) -> None:
        self._needed, self._files, self._sources = needed, ClipFiles(), SourceFiles()

    def pack(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield every step, with clips as tiny files, or failures for clips that cannot be cut."""
        for step in steps:
            clip = step.outcome
            if isinstance(clip, Failure) or (self._needed and clip.source == clip.medium.source):
                yield step
            else:
                yield as_step(attempt(clip, self._cut, clip, step.done), step.done)

    def _cut(self, clip: Clip, done: int) -> Step:
        if clip.medium.kind == IMAGES:
            return image_step(clip, image_files(clip, self._sources.read(clip), None), None, done)
        return file_step(self._files.cut(clip), done)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecodingTask:
    """A step whose clip another process decodes and stores in a new form.

    Attributes:
        encoded: The clip's packets; None if the step is a failure.
    """

    step: Step
    encoded: EncodedClip | None
    options: ImageOptions | EncodeOptions


Recoded = list[bytes] | EncodedStream


def recode_clips(steps: Iterable[Step], options: ImageOptions | EncodeOptions, workers: Workers) -> Iterator[Step]:
    """Yield every step, with clips as image files or encoded files, or failures for clips that cannot be recoded.

    Worker processes decode each clip once. All encoded clips of a medium have the configuration record of its first
    clip, because the dataset describes a medium once.
    """
    records: dict[str, bytes] = {}  # by media_id

    def finish(clip: Clip, recoded: Recoded, done: int) -> Step:
        if isinstance(options, ImageOptions):
            assert isinstance(recoded, list)
            return image_step(clip, recoded, options, done)
        assert isinstance(recoded, EncodedStream)
        if records.setdefault(clip.medium.media_id, recoded.configuration) != recoded.configuration:
            raise ValueError(f"{options.codec} streams of one medium with several configuration records")
        return file_step(encoded_file(clip, recoded, options), done)

    calls = Calls(
        function=recode,
        items=_recoding_tasks(steps, options),
        timeout_seconds=SECONDS_A_CLIP,
        in_flight=CLIPS_IN_FLIGHT,
    )
    for outcome in workers.run(calls):
        step, recoded = outcome.item.step, outcome.result
        clip = step.outcome
        if isinstance(clip, Failure):
            yield step
        elif recoded is None:
            yield Step(outcome=lost_clip(outcome, clip.clip_id, clip.medium.name), done=step.done)
        elif isinstance(recoded, Failure):
            yield Step(outcome=recoded, done=step.done)
        else:
            yield as_step(attempt(clip, finish, clip, recoded, step.done), step.done)


def _recoding_tasks(steps: Iterable[Step], options: ImageOptions | EncodeOptions) -> Iterator[_RecodingTask]:
    sources = SourceFiles()
    for step in steps:
        clip, encoded = step.outcome, None
        if isinstance(clip, Clip):
            read = attempt(clip, sources.read, clip)
            if isinstance(read, Failure):
                step = Step(outcome=read, done=step.done)
            else:
                encoded = read
        yield _RecodingTask(step=step, encoded=encoded, options=options)


def recode(task: _RecodingTask) -> Recoded | Failure | None:
    """Return a clip in its new form, or the reason why it does not decode or has no such form. Runs in a worker."""
    clip, options = task.step.outcome, task.options
    if task.encoded is None or isinstance(clip, Failure):
        return None
    if isinstance(options, EncodeOptions):
        return attempt(clip, encode_clip, clip, task.encoded, options)
    return attempt(clip, image_files, clip, task.encoded, options)


def file_step(file: ClipFile, done: int) -> Step:
    """Return the step of a clip that is a tiny file, with its members."""
    members = (file.member, Member(suffix="json", pieces=[clip_json(file)]))
    return Step(outcome=file.clip, done=done, members=members)


def image_step(clip: Clip, files: list[bytes], options: ImageOptions | None, done: int) -> Step:
    """Return the step of a clip whose frames are image files, with its members.

    Args:
        options: Format and size of the images; None if the files are copies.
    """
    copied = options is None or as_they_are(clip.medium, options)
    form = options.format if options else next(name for name, codec in CODECS.items() if codec == clip.medium.codec)
    suffixes = [f"{number:03d}.{FORMATS[form]}" for number in range(len(files))]
    place = {rank: number for number, rank in enumerate(unique_ranks(clip).tolist())}
    position = np.array([place.get(rank, PAD) for rank in clip.recipe.position.tolist()], np.int32)
    size = np.array([len(file) for file in files], np.int64)
    packed = replace(
        clip,
        medium=clip.medium if options is None or copied else stored_medium(clip.medium, options),
        md5=clip.md5 if copied else None,
        recipe=recoded_recipe(
            size,
            np.arange(len(files), dtype=np.int32),
            position,
            damaged=clip.recipe.damaged,
            range_offset=np.cumsum(size) - size,
            range_length=size,
            range_crc32=np.array([zlib.crc32(file) for file in files], np.int64),
        ),
    )
    shown = [None if rank == PAD else suffixes[rank] for rank in position.tolist()]
    content = as_json(describe(packed) | {"images": shown} | clip.columns | {KEY: recipe_text(packed, suffixes)})
    members = [Member(suffix=name, pieces=[file]) for name, file in zip(suffixes, files, strict=True)]
    return Step(outcome=packed, done=done, members=(*members, Member(suffix="json", pieces=[content])))


def stored_medium(medium: Medium, options: ImageOptions) -> Medium:
    """Return a medium with the properties of its stored frames."""
    return recoded_medium(
        medium,
        options,
        kind=IMAGES,
        container="tar",
        codec=CODECS[options.format],
        codec_tag=None,
        profile=None,
        pixel_format=None,
        field_order=None,
        color_range=None,
        color_matrix=UNSPECIFIED,
        color_primaries=UNSPECIFIED,
        color_transfer=UNSPECIFIED,
        extradata=None,
        reorder_depth=0,
        chroma_format=None,
    )


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
    """Return the entries about a clip that the JSON of any sample has."""
    medium, audio = clip.medium, clip.audio
    own = json_of(clip, SAMPLE)
    entries = {
        "clip_id": own.pop("clip_id"),
        "uri": medium.uri,
        **({} if medium.member is None else {"member": medium.member}),
        "codec": medium.codec,
        "width": medium.width,
        "height": medium.height,
        "rotation_degrees": medium.rotation_degrees,
        "sample_aspect_ratio": medium.aspect,
        "time_base": [medium.time_base_num, medium.time_base_den],
        "frame_rate": medium.frame_count * medium.time_base_den / (medium.duration_pts * medium.time_base_num or 1),
        **own,
    }
    if audio is not None:
        entries["audio"] = {
            "rate": audio.rate,
            "channels": audio.channels,
            "samples": audio.count,
            "begin_seconds": audio.first / audio.rate,
        }
    return entries


def as_json(content: Row) -> bytes:
    """Return one line of JSON, with null for NaN and infinity. Values may be numpy arrays."""
    return orjson.dumps(content, default=_json_value, option=JSON_OPTIONS)


def _json_value(value: Any) -> Any:
    """Return a JSON value for a value that orjson does not know. Users' columns may have values of any type."""
    if isinstance(value, np.ndarray):  # an array that is not contiguous
        return value.tolist()
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def with_audio(steps: Iterable[Step], form: AudioFormat) -> Iterator[Step]:
    """Yield every step; packed clips that carry audio get an audio file, or become failures if it does not decode."""
    sources = SourceFiles()
    for step in steps:
        clip = step.outcome
        if isinstance(clip, Failure) or clip.audio is None or not step.members:
            yield step
        else:
            yield as_step(attempt(clip, _add_audio_file, step, clip, clip.audio, sources, form), step.done)


def _add_audio_file(step: Step, clip: Clip, plan: ClipAudioPlan, sources: SourceFiles, form: AudioFormat) -> Step:
    audio = read_audio(clip, sources)
    assert audio is not None  # the clip has a plan for it
    if form == "wav":
        content = encode_wav(audio.samples, audio.rate)
    else:
        content = encode_flac(audio.samples, audio.rate, _bits_of(clip, audio))
    present = stretches(audio.mask)
    members = [_describe_audio(member, plan, present, form) for member in step.members]
    offset, length = np.array([sum(map(len, members))], np.int64), np.array([len(content)], np.int64)
    file = AudioFile(range_offset=offset, range_length=length, present=present)
    packed = replace(clip, audio=replace(plan, recipe=file), audio_source=None)
    return replace(step, outcome=packed, members=(*members, Member(suffix=form, pieces=[content])))


def _describe_audio(member: Member, plan: ClipAudioPlan, present: NDArray[np.int64], form: AudioFormat) -> Member:
    """Return a member of a sample. If it is the JSON, it describes the audio file."""
    if member.suffix != "json":
        return member
    content = orjson.loads(b"".join(piece for piece in member.pieces if isinstance(piece, bytes)))
    text = with_audio_text(content[KEY], plan, present, form)
    return replace(member, pieces=[orjson.dumps(content | {KEY: text})])


def _bits_of(clip: Clip, audio: ClipAudio) -> int:
    """Return the bits per sample that keep a medium's own samples; 24 for mixed or resampled samples."""
    facts = clip.medium.audio
    if facts is None:
        return 16  # silence
    return flac_bits(facts) if (audio.rate, len(audio.samples)) == (facts.rate, facts.channels) else 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFileOptions:
    """How clips are planned and cut into files of their own.

    Attributes:
        needed: Cut only clips of media whose packets are not byte ranges of their file.
        audio_format: Format in which tars store audio.
    """

    planning: PlanningOptions
    needed: bool = False
    audio_format: AudioFormat = "flac"


class ClipCutter:
    """Plans and cuts clips in one process.

    Args:
        spools: As for `plan`.
    """

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
        pairs = zip(media, sent, strict=True)
        return self.steps([[PlanItem(medium=medium, wanted=item.wanted, done=item.done) for medium, item in pairs]])


@dataclass(frozen=True, slots=True, kw_only=True)
class SentItem:
    """An item of a plan, in the form that is sent to workers.

    Attributes:
        media_id: The clip's medium; None if it is not known.
    """

    media_id: str | None
    wanted: WantedClip | Failure
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CuttingTask:
    """The unit of work of one worker.

    Attributes:
        own: The items that this process cuts instead, because their files consist of more than ranges.
        here: Whether this process does the task, because workers are still starting.
    """

    index: Place
    options: ClipFileOptions
    sent: list[SentItem]
    own: ReadGroup | None = None
    here: bool = False


def cut_in_workers(
    index: Index, options: ClipFileOptions, spools: Spools, groups: Iterable[ReadGroup], workers: Workers
) -> Iterator[Step]:
    """Yield the same steps as `ClipCutter`, in the same order, from worker processes."""
    cutter = ClipCutter(index, options, spools)
    calls = Calls(
        function=cut,
        items=_cutting_tasks(index.path, options, groups),
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


def _cutting_tasks(index: Place, options: ClipFileOptions, groups: Iterable[ReadGroup]) -> Iterator[CuttingTask]:
    numbers = itertools.count()

    def task(sent: list[SentItem]) -> CuttingTask:
        return CuttingTask(index=index, options=options, sent=sent, here=next(numbers) < TASKS_AT_FIRST)

    gathered: list[SentItem] = []
    for medium, items in itertools.groupby(itertools.chain.from_iterable(groups), lambda item: item.medium):
        if medium is not None and not _can_be_sent(medium):
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


def _can_be_sent(medium: IndexedMedium) -> bool:
    """Return whether workers can cut a medium's clips, which they do only as ranges of the medium's own file."""
    if medium.is_spooled or not copies_ranges(medium.medium) or medium.packets.offset is None:
        return False
    return medium.audio_packets is None or medium.audio_packets.offset is not None


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
        wanted = lost_clip(outcome, wanted.clip_id, uri)
    yield Step(outcome=wanted, done=item.done)


def cut(task: CuttingTask) -> list[Step]:
    """Return the steps of a task. Runs in a worker."""
    return list(_cutter(task.index, task.options).cut(task.sent))


@functools.lru_cache(1)
def _cutter(index: Place, options: ClipFileOptions) -> ClipCutter:
    os.nice(NICENESS)
    return ClipCutter(Index(index, access=options.planning.access), options, None)
