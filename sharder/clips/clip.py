"""Data classes for clips and their media. Clips are requested, planned, or read from a manifest.

A planned clip has a recipe, which lists the byte ranges of the source to read and the packets in these ranges. This
module also plans recipes for audio: an interval of time determines the samples, and the samples determine the packets.
An audio recipe begins some packets before the wanted samples (the pre-roll), because many decoders give exact output
only after they have decoded earlier packets.
"""

import functools
import logging
import math
import re
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.errors import INTERNAL_ERROR, PolicyError, StaleError, UncuttableError, internal_error
from framedex.indexer.probing.audio_times import AudioCoding
from framedex.records.clip import AudioRecipe, ClipAudioPlan, ClipRecord, Failure, PlannedRecipe, Recipe
from framedex.records.medium import AudioPackets, MediumRecord
from framedex.sharder.schema import Missing
from framedex.storage.objects import ByteRange
from framedex.storage.uris import medium_name


def coalesce(
    offset: NDArray[np.int64], size: NDArray[np.int64], first_of: NDArray[np.intp] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join byte ranges that follow each other without a gap. Return (offset, length), int64 [ranges].

    Args:
        offset: int64 [input ranges], the first byte of each input range.
        size: int64 [input ranges], the number of bytes of each input range.
        first_of: The indices of the input ranges that are never joined to the input range before them. If None, all
            adjacent ranges are joined.
    """
    first = first_of_ranges(offset, size, first_of)
    return offset[first], np.add.reduceat(size, first).astype(np.int64)


def first_of_ranges(
    offset: NDArray[np.int64], size: NDArray[np.int64], first_of: NDArray[np.intp] | None = None
) -> NDArray[np.intp]:
    """Return the index of the first input range of each joined range. For arguments, see `coalesce`."""
    first = np.ones(len(offset), np.bool_)
    first[1:] = offset[1:] != offset[:-1] + size[:-1]
    if first_of is not None:
        first[first_of] = True
    return np.flatnonzero(first)


CONTENT_ALONE = -1  # value of `mtime_ns` for files that are identified by their content instead of a modification time


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteSource:
    """A file that byte ranges point into. Its properties were recorded when the file was indexed or written.

    Attributes:
        path: The path or URI of the file.
        size_bytes: The size of the file.
        mtime_ns: The modification time of the file, or `CONTENT_ALONE` if the fingerprint alone identifies the file.
        fingerprint: The fingerprint of the file's content.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    fingerprint: str


def stale(where: str, found: str, allowed: str | None = None) -> StaleError:
    """Return the error for a file that differs from the recorded file.

    Args:
        where: The path or URI of the file.
        found: A description of the present file.
        allowed: A description of the recorded file.
    """
    return StaleError(
        "the source is not the file that was indexed",
        where=where,
        found=found,
        allowed=allowed,
        remedy="index and shard again, or set root to the folder to which the sources moved",
    )


ABSENT = -1  # marks a view that is missing in a clip of several views


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedViews:
    """The items of a dataset with several views, as a table. An item joins the clips of several cameras, one per view.

    Attributes:
        names: The names of the views, in the order of the columns of `table`.
        table: int64 [items, views]: the clip of each view, as an index into the chosen clips (see
            `ViewsOfClips.joined`). ABSENT if an item lacks the view.
        examples: For each view, the numbers of two clips in the whole dataset: a clip of this view, and the first clip
            of the same item.
    """

    names: list[str]
    table: NDArray[np.int64]
    examples: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewsOfClips:
    """The assignment of a dataset's clips to items and views. An item joins the clips of several cameras, one per view.

    Attributes:
        names: The names of the views, in the order of a loader's arrays.
        missing: The treatment of items that lack a view.
        item: int64 [clips], ascending: the number of the item to which each clip belongs.
        view: int64 [clips]: the view of each clip, as an index into `names`.
    """

    names: list[str]
    missing: Missing
    item: NDArray[np.int64]
    view: NDArray[np.int64]

    def joined(self, chosen: NDArray[np.int64] | None = None) -> JoinedViews:
        """Join clips to items, and return the table of items. Unless `missing` is "mask", leave out incomplete items.

        Args:
            chosen: int64, ascending: the numbers of the clips to join. If None, all clips are joined.
        """
        item, view = (self.item, self.view) if chosen is None else (self.item[chosen], self.view[chosen])
        there, row = np.unique(item, return_inverse=True)
        table = np.full((len(there), len(self.names)), ABSENT, np.int64)
        table[row, view] = np.arange(len(item))
        kept = table if self.missing == "mask" else table[(table != ABSENT).all(axis=1)]
        # `argmax` returns the first clip of the view. For a view without clips, it returns clip 0.
        firsts = [int(np.argmax(self.view == place)) for place in range(len(self.names))] if len(self.item) else []
        pairs = [(first, int(np.argmax(self.item == self.item[first]))) for first in firsts]
        return JoinedViews(names=self.names, table=kept, examples=dict(zip(self.names, pairs, strict=False)))


MAX_CHANNELS = 8  # maximum number of channels for which PyAV provides all planes of planar audio


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFacts(AudioCoding):
    """The properties of a medium's audio stream: the `audio_…` columns of `videos`, without that prefix.

    Attributes:
        stream_index: The index of the audio stream in its container.
        channels: The number of channels.
        bits_per_coded_sample: The bits per sample that the container states. None if the container does not state them.
        first_sample: The number of the first sample that a full decode presents. Sample k is at k / `rate` seconds.
        end_sample: The number after the last sample that a full decode presents.
    """

    stream_index: int
    channels: int
    bits_per_coded_sample: int | None
    first_sample: int
    end_sample: int

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.channels <= 0 or self.end_sample < self.first_sample:
            raise ValueError(
                f"audio of {self.channels} channels at {self.rate} Hz, samples {self.first_sample} to {self.end_sample}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioOptions:
    """The sample rate, number of channels and duration of the clips' audio.

    Attributes:
        rate: The sample rate in Hz. If None, each clip has the rate of its medium.
        channels: The number of channels. If None, each clip has the channels of its medium.
        seconds: The duration of the audio. If None, the audio lasts as long as the clip.
    """

    rate: int | None = None
    channels: int | None = None
    seconds: Fraction | None = None

    def __post_init__(self) -> None:
        for name, value in (("rate", self.rate), ("channels", self.channels), ("seconds", self.seconds)):
            if value is not None and value <= 0:
                raise PolicyError(f"audio {name} must be above 0", found=value)

    def facts(self) -> dict[str, Any]:
        """Return the options as JSON values, in the form in which dataset.json records them."""
        return asdict(self) | {"seconds": None if self.seconds is None else str(self.seconds)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreRoll:
    """The packets that a new decoder must have decoded before its output is correct.

    Attributes:
        packets: The minimum number of preceding packets. All data to which these packets refer must be available.
        seconds: The minimum duration of the preceding packets.
        reservoir_bytes: The maximum number of earlier data bytes to which a packet may refer (bit reservoir).
        overhead_bytes: The number of bytes in each packet that are not data of the bit reservoir.
    """

    packets: int = 0
    seconds: Fraction = Fraction(0)
    reservoir_bytes: int = 0
    overhead_bytes: int = 0


# The pre-roll of each codec. None means that the codec must be decoded from the beginning.
# Transform codecs overlap and add the windows of two packets: ISO/IEC 14496-3 4.6.11 (AAC), Vorbis I 1.3.2, ATSC A/52
# 7.9.4 (AC-3). After one packet, the output of AAC-LC, Vorbis, AC-3 and E-AC-3 is bit-equal (measured by
# benchmarks/audio_alignment.py). AAC gets two more packets, because SBR uses the previous frame (14496-3 4.6.18) and
# the filters of parametric stereo decay slowly (8.6.4). E-AC-3 gets one more packet in reserve.
# MPEG audio: the state of the polyphase synthesis spans 480 samples (ISO/IEC 11172-3 2.4.3.4). Layer 3 overlaps
# granules, and a frame at a low sample rate has a single granule. main_data_begin points back by up to 511 bytes
# (2.4.2.7). Headers and side information, at most 4 + 2 + 32 bytes, are not main data.
# Opus predicts from its earlier output. RFC 7845 4.6 asks for 80 ms, but after a pre-roll of 80 ms, whole clips were
# measured at -13 dB. After a pre-roll of one second, speech reaches 100 dB, and most music is bit-equal.
# TrueHD restarts at major syncs, which are at most 128 access units apart (FFmpeg's decoder; measured).
# DTS and Speex depend on all earlier output. Codecs that are not listed are refused. For example, Microsoft's ADPCM and
# WMA decode to noise if the block size is unknown, and an index does not record block sizes.
PRE_ROLL: dict[str, PreRoll | None] = {
    "aac": PreRoll(packets=3),
    "ac3": PreRoll(packets=1),
    "alac": PreRoll(),
    "dts": None,
    "eac3": PreRoll(packets=2),
    "flac": PreRoll(),
    "mp2": PreRoll(packets=1),
    "mp3": PreRoll(packets=2, reservoir_bytes=511, overhead_bytes=38),
    "opus": PreRoll(seconds=Fraction(1)),
    "speex": None,
    "truehd": PreRoll(packets=128),
    "tta": PreRoll(),
    "vorbis": PreRoll(packets=1),
    "wavpack": PreRoll(),
}


def pre_roll(codec: str) -> PreRoll | None:
    """Return the pre-roll of a codec, or None if a stream of this codec must be decoded from its beginning.

    Raises:
        PolicyError: The pre-roll of the codec is not known.
    """
    if codec.startswith("pcm_"):  # each packet decodes independently
        return PreRoll()
    if codec not in PRE_ROLL:
        raise PolicyError(
            "audio of this codec was not tested to decode exactly from the middle of a stream",
            found=codec,
            allowed=f"pcm_…, {', '.join(PRE_ROLL)}",
        )
    return PRE_ROLL[codec]


def plan_audio(
    packets: AudioPackets, facts: AudioFacts, begin_seconds: Fraction, end_seconds: Fraction, margin_samples: int = 0
) -> AudioRecipe:
    """Return the recipe for the audio samples in a half-open interval of time.

    Args:
        packets: All audio packets of the medium.
        facts: The properties of the medium's audio stream.
        begin_seconds: The begin of the interval (inclusive), on the medium's clock.
        end_seconds: The end of the interval (exclusive), on the medium's clock.
        margin_samples: The number of additional samples on each side, at the medium's sample rate.

    Raises:
        PolicyError: The interval ends before it begins, the pre-roll of the codec is not known, or the stream has too
            many channels.
    """
    if facts.channels > MAX_CHANNELS:
        raise PolicyError("the audio has too many channels", found=facts.channels, allowed=f"1 to {MAX_CHANNELS}")
    if end_seconds < begin_seconds:
        raise PolicyError("an audio interval ends before it begins", found=f"{begin_seconds} to {end_seconds} s")
    begin = math.floor(begin_seconds * facts.rate) - margin_samples
    end = math.ceil(end_seconds * facts.rate) + margin_samples
    first, stop = _packets_of(packets, facts, pre_roll(facts.codec), begin, end)
    size = packets.size[first:stop]
    offset, length = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if packets.offset is not None:
        offset, length = coalesce(packets.offset[first:stop], size)
    return AudioRecipe(
        range_offset=offset,
        range_length=length,
        packet_size=size.astype(np.int32),
        packet_sample=packets.sample[first:stop],
        begin_sample=begin,
        end_sample=end,
    )


def _packets_of(
    packets: AudioPackets, facts: AudioFacts, need: PreRoll | None, begin: int, end: int
) -> tuple[int, int]:
    """Return the numbers [first, stop) of the packets to decode for the samples [begin, end). They may be empty."""
    begin, end = max(begin, facts.first_sample), min(end, facts.end_sample)
    if begin >= end or not len(packets.sample):
        return 0, 0
    # If several packets have the same position, all of them are included, although only the last of them has samples.
    stop = int(np.searchsorted(packets.sample, end, side="left"))
    target = max(int(np.searchsorted(packets.sample, begin, side="right")) - 1, 0)
    target = int(np.searchsorted(packets.sample, packets.sample[target], side="left"))
    if target >= stop:
        return 0, 0
    return (0 if need is None else _rolled_back(packets, facts.rate, need, target)), stop


def _rolled_back(packets: AudioPackets, rate: int, need: PreRoll, target: int) -> int:
    """Return the number of the packet at which decoding must begin for the output of packet `target` to be correct."""
    first = max(target - need.packets, 0)
    if need.seconds:
        earliest = int(packets.sample[target]) - math.ceil(need.seconds * rate)
        first = min(first, max(int(np.searchsorted(packets.sample, earliest, side="right")) - 1, 0))
    missing = need.reservoir_bytes
    while missing > 0 and first > 0:
        first -= 1
        missing -= max(int(packets.size[first]) - need.overhead_bytes, 0)
    return first


# Patterns for the names of FFmpeg's pixel formats (libavutil/pixdesc.c). Most names end with the bits per sample and
# the byte order.
BITS_AT_END = re.compile(r"(9|10|12|14|16|32)(?:msb)?[bl]e$")
BITS_BY_NAME = (
    (re.compile(r"(?:(?:rgb|bgr|xv)48|(?:rgba|bgra|ayuv)64)[bl]e"), 16),
    (re.compile(r"(?:rgb96|rgba128)[bl]e"), 32),
    (re.compile(r"xv36[bl]e"), 12),
    (re.compile(r"(?:xv30|v30x|nv20)[bl]e"), 10),
)


LOG = logging.getLogger("framedex.loader")


@functools.cache  # a process warns once for each dataset
def tell_unproven(where: str, codecs: tuple[str, ...]) -> None:
    """Warn that an earlier version of framedex planned clips without a test decode, so frame numbers may be wrong.

    Args:
        where: The path of the dataset, or of its tars.
        codecs: The codecs of the affected media.
    """
    LOG.warning(
        "%s: clips of %s were planned by an earlier version of framedex, which counted packets as frames and did not "
        "decode them to verify this. To be sure of the frames, index the videos again and make the dataset again.",
        where,
        " and ".join(codecs),
    )


@functools.cache
def bits_of(pixel_format: str | None) -> int:
    """Return the number of bits per sample of a pixel format, at least 8. Return 8 if the format is unknown."""
    name = pixel_format or ""
    by_name = next((bits for pattern, bits in BITS_BY_NAME if pattern.fullmatch(name)), None)
    at_end = BITS_AT_END.search(name)
    return by_name or (8 if at_end is None else int(at_end[1]))


def quarter_turns(degrees: Any) -> Any:
    """Return the quarter turns counterclockwise, 0 to 3, that are nearest to rotations in degrees.

    Args:
        degrees: int64, a NumPy array or scalar.
    """
    return np.rint(degrees / 90).astype(np.int64) % 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium(MediumRecord):
    """A medium and the present location of its source.

    Attributes:
        path: The file of the medium, or the folder if the medium consists of image files.
    """

    path: str

    @property
    def name(self) -> str:
        """The name of the medium in messages."""
        return medium_name(self.uri, self.member)

    @property
    def part(self) -> ByteRange | None:
        """The byte range of the video in its file. None if the video is a whole file or a compressed cell (`cell`)."""
        if self.member_offset is None or self.member_bytes is None:
            return None
        return ByteRange(offset=self.member_offset, size_bytes=self.member_bytes)

    @property
    def cell(self) -> str | None:
        """The name of the cell if the video is the value of a cell in a compressed Parquet column, else None."""
        return self.member if self.member_offset is None and self.member_bytes is not None else None

    @property
    def turns(self) -> int:
        """The rotation that players apply, rounded to quarter turns counterclockwise, 0 to 3."""
        return int(quarter_turns(np.int64(self.rotation_degrees)))

    @property
    def aspect(self) -> float:
        """The pixel aspect ratio (width / height), 1 if it is unknown."""
        return self.sample_aspect_ratio or 1.0

    @property
    def bits(self) -> int:
        """The number of bits per sample of the pictures."""
        return bits_of(self.pixel_format)

    @property
    def audio(self) -> AudioFacts | None:
        """The properties of the audio stream. None if the medium has no usable audio."""
        if self.audio_stream_index is None or self.audio_problem is not None:
            return None
        return AudioFacts(**{field.name: getattr(self, f"audio_{field.name}") for field in fields(AudioFacts)})

    @property
    def source(self) -> ByteSource:
        """The file that was indexed, with its recorded properties."""
        return ByteSource(
            path=self.path, size_bytes=self.size_bytes, mtime_ns=self.mtime_ns, fingerprint=self.fingerprint
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiView:
    """The link from a clip, which shows one camera's view, to the clip of several views that contains it.

    Attributes:
        multiview_id: The name of the clip of several views. The clips of all its views have the same name here.
        view_name: The name of the view that this clip shows.
        view_away_seconds: float64 [F], the time of each frame minus the wanted time. NaN for padding.
    """

    multiview_id: str
    view_name: str
    view_away_seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedClip:
    """A clip that was requested and is not planned yet.

    Attributes:
        clip_id: The name of the clip.
        frames: int64 [F], the numbers of the frames. -1 for padding by a constant.
        mask: bool [F], False for padding, by a constant or by repeated frames.
        columns: The user's columns of the clip.
        stretch: The frames [first, stop) of the medium from which a policy sampled the clip. None if no policy selected
            the clip.
        anchor_frame: The number of the clip's anchor frame. None if the clip has no anchor.
        multiview: The link to the clip of several views that contains this clip. None if no such clip contains it.
        asked_in: The location of the user's request for this clip, for messages. None if a policy selected the clip.
    """

    clip_id: str
    frames: NDArray[np.int64]
    mask: NDArray[np.bool_]
    columns: dict[str, Any]
    stretch: tuple[int, int] | None = None
    anchor_frame: int | None = None
    multiview: MultiView | None = None
    asked_in: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(ClipRecord):
    """A clip that was planned or read from a manifest: its row of `clips`, and the recipe for its frames.

    Attributes:
        medium: The medium of the clip.
        columns: The user's columns of the clip.
        recipe: The recipe for the frames.
        source: The file that the recipe's byte ranges point into.
        audio: The plan of the clip's audio. None if audio was not requested.
        audio_source: The file that contains the audio packets. If None, `source` contains the audio packets.
    """

    medium: Medium
    columns: dict[str, Any]
    recipe: Recipe
    source: ByteSource
    audio: ClipAudioPlan | None = None
    audio_source: ByteSource | None = None

    @property
    def stretch(self) -> tuple[int, int] | None:
        """The frames [first, stop) of the medium from which a policy sampled the clip. None without a policy."""
        if self.stretch_first is None or self.stretch_stop is None:
            return None
        return self.stretch_first, self.stretch_stop


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClip(Clip):
    """A clip that was planned but is not packed yet."""

    recipe: PlannedRecipe


def failure_of(clip: Clip, error: StaleError | UncuttableError) -> Failure:
    """Return the `Failure` to record for a planned clip that cannot be made because of an error."""
    kind = "stale" if isinstance(error, StaleError) else "uncuttable"
    return Failure(clip_id=clip.clip_id, uri=clip.medium.name, kind=kind, message=error.text())


def internal_failure(clip_id: str, uri: str, error: Exception) -> Failure:
    """Return the `Failure` to record for a clip that cannot be made because of a bug in framedex."""
    found = internal_error(error)
    return Failure(clip_id=clip_id, uri=uri, kind=INTERNAL_ERROR, message=found.what, traceback=found.traceback)
