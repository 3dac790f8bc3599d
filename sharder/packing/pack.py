"""Pack planned clips as samples of tars. A sample has the clip's files and a JSON file.

The packets of a clip are copied into a tiny file. Alternatively, its frames are decoded, and stored as images or
encoded again. Worker processes do this work, and the main process copies the results into tars.

Workers do not send copied packets to the main process. A worker that cuts clips into tiny files returns headers and
byte ranges of source files, and the main process copies these ranges. If a medium's tiny files do not consist of
headers and byte ranges alone, the main process cuts the clips of this medium.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from framedex.core.pyav import MEDIUM_ERRORS
from framedex.errors import DecodeError, StaleError, UncuttableError
from framedex.execution.engine import Calls, Outcome, alone_if_lost
from framedex.execution.engines import Workers
from framedex.indexer.parts.index import Index
from framedex.records.clip import PAD, SAMPLE, AudioFile, ClipAudioPlan, Failure, Recipe
from framedex.records.columns import json_of
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, Medium, PlannedClip, WantedClip, failure_of, internal_failure
from framedex.sharder.clips.samples import Member, PlannedStep, Step
from framedex.sharder.clips.together import JoinedClips, joined, shared_part
from framedex.sharder.decoding.audio import ClipAudio, encode_flac, encode_wav, flac_bits, read_planned_audio, stretches
from framedex.sharder.decoding.video import encoded_images
from framedex.sharder.packing.clip_files import ClipFile, ClipFiles, copies_ranges
from framedex.sharder.packing.encoders import EncodedStream, encode_clip, encoded_file, scaled_pictures
from framedex.sharder.packing.mp4 import UNSPECIFIED
from framedex.sharder.packing.pack_options import (
    CODECS,
    FORMATS,
    EncodeOptions,
    ImageFormat,
    ImageOptions,
    as_they_are,
    image_files,
    in_first_order,
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

LOG = logging.getLogger("framedex.sharder")
Row = dict[str, Any]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Options = TypeVar("Options", ImageOptions, EncodeOptions)
Picture = TypeVar("Picture")

Pack = Literal["clips", "images", "needed"]
PACKS: tuple[Pack, ...] = ("clips", "images", "needed")
AudioFormat = Literal["flac", "wav"]
AUDIO_FORMATS: tuple[AudioFormat, ...] = ("flac", "wav")

RECODING_IN_FLIGHT = 4  # number of recoding tasks that are in memory at a time, per worker
SECONDS_A_TASK = 600.0  # timeout of a worker's task in seconds: recoding some clips, or cutting CLIPS_A_TASK clips
MAX_TOGETHER = 32  # maximum number of clips that a worker decodes together
LEAST_SHARED = 0.5  # share of a clip's packets that the clips before it decode, too, if they are decoded together
# Maximum number of bytes of the packets of clips that are decoded together, and of the pictures that they keep: scaled
# pictures with `--encode`, otherwise image files, whose size is estimated by their share of the bytes of a picture.
MAX_TOGETHER_BYTES = 64 << 20
FILE_SHARES: dict[ImageFormat, float] = {"jpeg": 0.15, "webp": 0.15, "png": 0.6}
CLIPS_A_TASK = 64  # number of clips per task; a single clip is cut faster than a task is sent to a worker
TASKS_IN_FLIGHT = 4  # number of cutting tasks that are submitted at a time, per worker
TASKS_AT_FIRST = 4  # number of cutting tasks that the main process does itself while the workers start
# Niceness of workers that cut clips. Copying the results takes longer than cutting, so the workers must not slow the
# main process down.
NICENESS = 10

# orjson passes dates and times to `_json_value`: if pandas is installed, pyarrow may return pandas types for them.
JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATETIME


def attempt(
    clip: Clip, function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result | Failure:
    """Call a function for a clip. Return the result, or a `Failure` of the clip if the function raises an error."""
    try:
        return function(*arguments, **named)
    except DecodeError as error:
        return Failure(clip_id=clip.clip_id, uri=clip.medium.name, kind="undecodable", message=error.text())
    except (StaleError, UncuttableError) as error:
        return failure_of(clip, error)
    except MEDIUM_ERRORS:
        raise
    except Exception as error:  # a bug that one clip triggers must not end the run for all other clips
        return internal_failure(clip.clip_id, clip.medium.name, error)


def as_step(made: Step | Failure, done: int) -> Step:
    """Return a step unchanged. Convert a failure to a step."""
    return Step(outcome=made, done=done) if isinstance(made, Failure) else made


class ClipPacking:
    """Copies the packets of each clip into a tiny file. Clips of images become image files instead.

    Args:
        needed: Whether to pack only clips of media whose packets are not byte ranges of their file.
    """

    def __init__(self, *, needed: bool) -> None:
        self._needed, self._files, self._sources = needed, ClipFiles(), SourceFiles()

    def pack(self, steps: Iterable[PlannedStep]) -> Iterator[Step]:
        """Yield every step. Clips become tiny files, and clips that cannot be cut become failures."""
        for step in steps:
            clip = step.outcome
            if isinstance(clip, Failure) or (self._needed and clip.source == clip.medium.source):
                yield step
            else:
                yield as_step(attempt(clip, self._cut, clip, step.done), step.done)

    def _cut(self, clip: PlannedClip, done: int) -> Step:
        if clip.medium.kind == IMAGES:
            files = in_first_order(clip, encoded_images(clip, self._sources.read(clip)))
            return image_step(clip, files, None, done)
        return file_step(self._files.cut(clip), done)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecodingTask(Generic[Options]):
    """A task for a worker: decode the clips of some steps, and store their frames as images or encode them again.

    Attributes:
        steps: Steps of the plan. Several steps have clips that share pictures.
        group: The clips, joined. None if there is at most one clip.
        encoded: The packets of the group or of the only clip. None if the step is a failure.
        options: The options of the images or of the encoded clips.
    """

    steps: list[Step]
    group: JoinedClips | None
    encoded: EncodedClip | None
    options: Options

    @property
    def clips(self) -> list[Clip]:
        """The clips of the steps. Empty if the only step is a failure."""
        return [step.outcome for step in self.steps if isinstance(step.outcome, Clip)]

    def one_by_one(self) -> Iterator[_RecodingTask[Options]]:
        """Yield a task for each clip of the group, with its packets. A task without a group is yielded unchanged."""
        group, encoded = self.group, self.encoded
        if group is None or encoded is None:
            yield self
            return
        for number, step in enumerate(self.steps):
            yield replace(self, steps=[step], group=None, encoded=group.encoded(number, encoded))


def recode_clips(steps: Iterable[Step], options: ImageOptions | EncodeOptions, workers: Workers) -> Iterator[Step]:
    """Yield every step. Clips become image files or encoded files, and clips that cannot be recoded become failures.

    Worker processes decode consecutive clips together if they share pictures. All encoded clips of a medium must have
    the same decoder configuration record, because the dataset stores the record once per medium.
    """
    if isinstance(options, ImageOptions):
        return _recoded(steps, options, to_images, image_step, workers)
    records: dict[str, bytes] = {}  # by media_id

    def encoded_step(clip: Clip, stream: EncodedStream, options: EncodeOptions, done: int) -> Step:
        if records.setdefault(clip.medium.media_id, stream.configuration) != stream.configuration:
            raise ValueError(f"encoded {options.codec} clips of one medium have different configuration records")
        return file_step(encoded_file(clip, stream, options), done)

    return _recoded(steps, options, to_stream, encoded_step, workers)


def _recoded(
    steps: Iterable[Step],
    options: Options,
    recode: Callable[[_RecodingTask[Options]], list[Result | Failure]],
    finish: Callable[[Clip, Result, Options, int], Step],
    workers: Workers,
) -> Iterator[Step]:
    """Yield every step. Replace clips by clips that workers recoded.

    Args:
        steps: The steps of the plan.
        options: The options of the images or of the encoded clips.
        recode: The function that workers call: `to_images` or `to_stream`.
        finish: A function that returns the step of a recoded clip. Its arguments are the clip, the result of `recode`,
            the options, and the value of the progress bar.
        workers: The worker processes.
    """
    calls = Calls(
        function=recode,
        items=_recoding_tasks(steps, options, workers.count),
        timeout_seconds=SECONDS_A_TASK,
        in_flight=RECODING_IN_FLIGHT,
        passes=lambda task: not task.clips,
    )
    for outcome in workers.run(calls):
        # A clip at which a worker crashes, hangs or runs out of memory must not cost the other clips of its task.
        for each in alone_if_lost(outcome, calls, lambda task: [*task.one_by_one()]):
            if each.item.encoded is None:
                yield from each.item.steps
                continue
            results = [None] if each.result is None else each.result
            for step, clip, recoded in zip(each.item.steps, each.item.clips, results, strict=True):
                if recoded is None:
                    made: Step | Failure = lost_clip(each, clip.clip_id, clip.medium.name)
                elif isinstance(recoded, Failure):
                    made = recoded
                else:
                    made = attempt(clip, finish, clip, recoded, options, step.done)
                yield as_step(made, step.done)


def _recoding_tasks(steps: Iterable[Step], options: Options, workers: int) -> Iterator[_RecodingTask[Options]]:
    """Read the packets of clips. Consecutive clips of one medium that share pictures become one task.

    The first tasks have a single clip, and later ones have more, so that a short plan occupies all workers.
    """
    sources, made = SourceFiles(), 0
    gathered: list[tuple[Step, Clip]] = []
    for step in steps:
        clip = step.outcome
        most = MAX_TOGETHER if workers < 2 else min(MAX_TOGETHER, 1 + made // workers)
        is_gathered = isinstance(clip, Clip) and _is_gathered(clip, [own for _, own in gathered], options, most)
        if gathered and not is_gathered:
            for task in _tasks_of(gathered, options, sources):
                yield task
                made += 1
            gathered = []
        if isinstance(clip, Clip):
            gathered.append((step, clip))
            if clip.recipe.range_path is None:
                # The file of a spool may be removed when the next clip is planned, but stays readable while it is open.
                with contextlib.suppress(StaleError), sources.opened(clip.source):
                    pass
        else:
            yield _RecodingTask(steps=[step], group=None, encoded=None, options=options)
    if gathered:
        yield from _tasks_of(gathered, options, sources)


def _is_gathered(clip: Clip, clips: list[Clip], options: ImageOptions | EncodeOptions, most: int) -> bool:
    """Return whether a clip is decoded together with the clips before it, of which there may be at most `most`."""
    if not clips or len(clips) >= most or shared_part(clip, clips) < LEAST_SHARED:
        return False
    own = [*clips, clip]
    first = np.unique(np.concatenate([one.recipe.packet_order for one in own]), return_index=True)[1]
    packet_bytes = int(np.concatenate([one.recipe.packet_size for one in own])[first].sum(dtype=np.int64))
    height, width = options.stored_size(clip.medium.height, clip.medium.width)
    pictures = len(np.unique(np.concatenate([one.frames for one in own])))
    share = FILE_SHARES[options.format] if isinstance(options, ImageOptions) else 1.0
    return max(packet_bytes, pictures * height * width * 3 * share) <= MAX_TOGETHER_BYTES


def _tasks_of(
    gathered: list[tuple[Step, Clip]], options: Options, sources: SourceFiles
) -> Iterator[_RecodingTask[Options]]:
    """Yield one task for the clips of steps, or one for each clip if the clips cannot be read together."""
    clips = [clip for _, clip in gathered]
    group = attempt(clips[0], joined, clips) if len(clips) > 1 else None
    if isinstance(group, Failure):
        LOG.warning("%d clips could not be decoded together: %s", len(clips), group.message)
    elif group is not None:
        encoded = attempt(group.whole, sources.read, group.whole)
        if not isinstance(encoded, Failure):  # otherwise, each clip alone shows whether it can be read
            steps = [step for step, _ in gathered]
            yield _RecodingTask(steps=steps, group=group, encoded=encoded, options=options)
            return
    for step, clip in gathered:
        read = attempt(clip, sources.read, clip)
        if isinstance(read, Failure):
            failed = Step(outcome=read, done=step.done)
            yield _RecodingTask(steps=[failed], group=None, encoded=None, options=options)
        else:
            yield _RecodingTask(steps=[step], group=None, encoded=read, options=options)


def to_images(task: _RecodingTask[ImageOptions]) -> list[list[bytes] | Failure]:
    """Decode the clips of a task, and return the frames of each clip as image files. Runs in a worker."""
    return _recoded_clips(task, image_files, in_first_order)


def to_stream(task: _RecodingTask[EncodeOptions]) -> list[EncodedStream | Failure]:
    """Decode and encode the clips of a task. Runs in a worker."""
    return _recoded_clips(task, scaled_pictures, lambda clip, pictures: encode_clip(clip, pictures, task.options))


def _recoded_clips(
    task: _RecodingTask[Options],
    pictures: Callable[[Clip, EncodedClip, Options], Iterator[tuple[int, Picture]]],
    recode: Callable[[Clip, Iterable[tuple[int, Picture]]], Result],
) -> list[Result | Failure]:
    """Return the result or the failure of each clip of a task.

    Args:
        task: The task.
        pictures: A function that yields (rank, picture) once for each wanted picture of a clip.
        recode: A function that returns the result of a clip from its (rank, picture), in ascending order of ranks
            unless the clip is damaged or has hidden pictures in an unknown order.
    """

    def alone(clip: Clip, own: EncodedClip) -> Result:
        return recode(clip, pictures(clip, own, task.options))

    found: dict[int, Result | Failure] = {}
    clips, group, encoded = task.clips, task.group, task.encoded
    if group is not None and encoded is not None:
        shown: list[dict[int, Picture]] = [{} for _ in clips]

        def take(users: list[tuple[int, int]], picture: Picture) -> None:
            for number, own_rank in users:
                shown[number][own_rank] = picture

        try:
            for number in group.complete(pictures(group.whole, encoded, task.options), take):
                found[number] = recode(clips[number], sorted(shown[number].items()))
                shown[number] = {}
        except Exception as error:  # then the other clips are decoded one by one, which shows the wrong clip
            level = logging.DEBUG if isinstance(error, MEDIUM_ERRORS) else logging.WARNING
            LOG.log(level, "%d clips could not be decoded together: %r", len(clips) - len(found), error)
            del shown
    for number, clip in enumerate(clips):
        if number not in found and encoded is not None:
            own = encoded if group is None else group.encoded(number, encoded)
            found[number] = attempt(clip, alone, clip, own)
    return [found[number] for number in range(len(clips))]


def file_step(file: ClipFile, done: int) -> Step:
    """Return the step of a clip that was cut into a tiny file. The step has the files of the webdataset sample."""
    return Step(outcome=file.clip, done=done, members=(file.member, Member(suffix="json", pieces=[clip_json(file)])))


def image_step(clip: Clip, files: list[bytes], options: ImageOptions | None, done: int) -> Step:
    """Return the step of a clip whose frames are image files. The step has the members of the sample.

    Args:
        clip: The planned clip.
        files: The contents of the image files: one per distinct wanted frame, in order of first appearance.
        options: The format and size of the images. None if the files are copies of the source's images.
        done: The value of the progress bar after this clip.
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
            Recipe,
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
    """Return a copy of a medium whose properties describe the stored images instead of the source."""
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
    """Return the content of the JSON member for a clip in a tiny file. docs/shards.md explains its keys."""
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
    """Return the entries that the JSON of every sample has, whether the clip is stored as a video or as images."""
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
    """Return a record as one line of JSON. Values may be numpy arrays; NaN and infinity become null."""
    return orjson.dumps(content, default=_json_value, option=JSON_OPTIONS)


def _json_value(value: Any) -> Any:
    """Convert a value that orjson cannot serialize. The user's columns may have values of any type."""
    if isinstance(value, np.ndarray):  # an array that is not contiguous
        return value.tolist()
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def with_audio(steps: Iterable[Step], form: AudioFormat) -> Iterator[Step]:
    """Yield every step. Packed clips with audio get an audio file, or become failures if the audio cannot be decoded.

    Args:
        steps: The steps of the plan.
        form: The format of the audio files.
    """
    sources = SourceFiles()
    for step in steps:
        clip = step.outcome
        if isinstance(clip, Failure) or clip.audio is None or not step.members:
            yield step
        else:
            yield as_step(attempt(clip, _add_audio_file, step, clip, clip.audio, sources, form), step.done)


def _add_audio_file(step: Step, clip: Clip, plan: ClipAudioPlan, sources: SourceFiles, form: AudioFormat) -> Step:
    audio = read_planned_audio(clip, plan, sources)
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
    """Add the description of the audio file to a member if the member is the JSON. Return other members unchanged."""
    if member.suffix != "json":
        return member
    content = orjson.loads(b"".join(piece for piece in member.pieces if isinstance(piece, bytes)))
    text = with_audio_text(content[KEY], plan, present, form)
    return replace(member, pieces=[orjson.dumps(content | {KEY: text})])


def _bits_of(clip: Clip, audio: ClipAudio) -> int:
    """Return the number of bits per sample in which FLAC stores a clip's audio.

    Audio of the source that is neither mixed nor resampled gets as many bits as its samples need. All other audio gets
    24 bits.
    """
    facts = clip.medium.audio
    if facts is None:
        return 16  # the medium has no audio, so the clip's audio is silence
    return flac_bits(facts) if (audio.rate, len(audio.samples)) == (facts.rate, facts.channels) else 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFileOptions:
    """Options for planning clips and cutting them into tiny files.

    Attributes:
        planning: The options of planning.
        needed: Whether to cut only clips of media whose packets are not byte ranges of their file.
        audio_format: The format of audio files in tars.
    """

    planning: PlanningOptions
    needed: bool = False
    audio_format: AudioFormat = "flac"


class ClipCutter:
    """Plans clips and cuts them into tiny files, within one process.

    Args:
        index: The index of the clips' media.
        options: The options of planning and cutting.
        spools: The spools for packets that are not byte ranges of their file. If None, no spools are made.
    """

    def __init__(self, index: Index, options: ClipFileOptions, spools: Spools | None) -> None:
        self._options, self._spools = options, spools
        self._packing = ClipPacking(needed=options.needed)
        self._media = OpenMedia(index, options.planning)

    def steps(self, groups: Iterable[ReadGroup]) -> Iterator[Step]:
        """Plan and cut the clips of groups, and yield their steps. The step of a clip has the members of its sample."""
        return with_audio(self._packing.pack(plan(groups, self._spools)), self._options.audio_format)

    def cut(self, sent: list[SentItem | PlannedStep]) -> Iterator[Step]:
        """Plan and cut items that were sent to this process, and yield their steps."""
        group: ReadGroup = [
            PlanItem(medium=self._media.of(item.media_id), wanted=item.wanted, done=item.done)
            if isinstance(item, SentItem)
            else item
            for item in sent
        ]
        return self.steps([group])


@dataclass(frozen=True, slots=True, kw_only=True)
class SentItem:
    """A wanted clip in the form that is sent to workers.

    Attributes:
        media_id: The media_id of the clip's medium.
        wanted: The wanted clip.
        done: The value of the progress bar after this item.
    """

    media_id: str
    wanted: WantedClip
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CuttingTask:
    """Consecutive items of a plan that are planned and cut together, by one worker or by the main process.

    Attributes:
        index: The folder of the index.
        options: The options of planning and cutting.
        sent: The items of the task. If a clip cannot be made, its item is a step with the failure. Empty if `own` is
            given.
        own: The items that only the main process can cut, because their tiny files are more than headers and byte
            ranges of the sources. None for a task that a worker can do.
        here: Whether the main process does the task because the workers are still starting.
    """

    index: Place
    options: ClipFileOptions
    sent: list[SentItem | PlannedStep]
    own: ReadGroup | None = None
    here: bool = False


def cut_in_workers(
    index: Index, options: ClipFileOptions, spools: Spools, groups: Iterable[ReadGroup], workers: Workers
) -> Iterator[Step]:
    """Plan and cut clips in worker processes. Yield the same steps as `ClipCutter.steps`, in the same order."""
    cutter = ClipCutter(index, options, spools)
    calls = Calls(
        function=cut,
        items=_cutting_tasks(index.path, options, groups),
        timeout_seconds=SECONDS_A_TASK,
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
            for each in alone_if_lost(outcome, calls, _divided):
                yield from _steps(each)


def _cutting_tasks(index: Place, options: ClipFileOptions, groups: Iterable[ReadGroup]) -> Iterator[CuttingTask]:
    numbers = itertools.count()

    def task(sent: list[SentItem | PlannedStep]) -> CuttingTask:
        return CuttingTask(index=index, options=options, sent=sent, here=next(numbers) < TASKS_AT_FIRST)

    gathered: list[SentItem | PlannedStep] = []
    for medium, items in itertools.groupby(itertools.chain.from_iterable(groups), _medium_of):
        if medium is not None and not _can_be_sent(medium):
            if gathered:
                yield task(gathered)
                gathered = []
            while own := list(itertools.islice(items, CLIPS_A_TASK)):
                yield CuttingTask(index=index, options=options, sent=[], own=own)
            continue
        for item in items:
            gathered.append(
                SentItem(media_id=item.medium.medium.media_id, wanted=item.wanted, done=item.done)
                if isinstance(item, PlanItem)
                else item
            )
            if len(gathered) >= CLIPS_A_TASK:
                yield task(gathered)
                gathered = []
    if gathered:
        yield task(gathered)


def _medium_of(item: PlanItem | PlannedStep) -> IndexedMedium | None:
    return item.medium if isinstance(item, PlanItem) else None


def _can_be_sent(medium: IndexedMedium) -> bool:
    """Return whether workers can cut a medium's clips.

    Workers can do so if the tiny files consist only of headers and byte ranges of the medium's file.
    """
    if medium.is_spooled or not copies_ranges(medium.medium) or medium.packets.offset is None:
        return False
    return medium.audio_packets is None or medium.audio_packets.offset is not None


def _divided(task: CuttingTask) -> list[CuttingTask]:
    return [replace(task, sent=[item]) for item in task.sent]


def _steps(outcome: Outcome[CuttingTask, list[Step]]) -> list[Step]:
    """Return the steps of a task. If the worker gave no result for its only item, the item becomes a failure."""
    if outcome.result is not None:
        return outcome.result
    [item] = outcome.item.sent
    if isinstance(item, PlannedStep):
        return [item]
    video = Index(outcome.item.index).video(item.media_id)
    uri = medium_name(video["uri"], video["member"])
    return [Step(outcome=lost_clip(outcome, item.wanted.clip_id, uri), done=item.done)]


def cut(task: CuttingTask) -> list[Step]:
    """Plan and cut the items of a task, and return their steps. Runs in a worker."""
    return list(_cutter(task.index, task.options).cut(task.sent))


@functools.lru_cache(1)
def _cutter(index: Place, options: ClipFileOptions) -> ClipCutter:
    os.nice(NICENESS)
    return ClipCutter(Index(index, access=options.planning.access), options, None)
