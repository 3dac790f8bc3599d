"""Clips and the media that they belong to: requested, planned, or read from a manifest.

A planned clip has a recipe: byte ranges of a recorded source, and the packets in them. This module also plans audio
recipes. An interval of time gives samples, and samples give packets. A recipe contains earlier packets, too: as many as
the codec must have decoded for its output to equal that of a decode from the beginning.
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
from framedex.records.clip import AudioRecipe, ClipAudioPlan, ClipRecord, Failure, Recipe
from framedex.records.medium import AudioPackets, MediumRecord
from framedex.sharder.schema import Missing
from framedex.storage.objects import ByteRange
from framedex.storage.uris import medium_name


def coalesce(
    offset: NDArray[np.int64], size: NDArray[np.int64], first_of: NDArray[np.intp] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Join byte ranges that follow each other without a gap. Return (offset, length), int64 [ranges].

    Args:
        offset: int64 [input ranges].
        size: int64 [input ranges].
        first_of: Numbers of the input ranges that always begin a new range.
    """
    first = np.ones(len(offset), np.bool_)
    first[1:] = offset[1:] != offset[:-1] + size[:-1]
    if first_of is not None:
        first[first_of] = True
    return offset[first], np.add.reduceat(size, np.flatnonzero(first)).astype(np.int64)


CONTENT_ALONE = -1  # in place of a modification time, for files that only their content identifies


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteSource:
    """A file that byte ranges point into, as it was recorded. `mtime_ns` may be `CONTENT_ALONE`."""

    path: str
    size_bytes: int
    mtime_ns: int
    fingerprint: str


def stale(where: str, found: str, allowed: str | None = None) -> StaleError:
    """Return the error for a file that differs from the recorded one."""
    return StaleError(
        "the source is not the file that was indexed",
        where=where,
        found=found,
        allowed=allowed,
        remedy="index and shard again, or point root at where the sources moved",
    )


ABSENT = -1  # a view that a clip of several views lacks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedViews:
    """The clips of each item of several views, as a table.

    Attributes:
        names: The views, in the order of arrays.
        table: int64 [items, views]: the place of each view's clip among the chosen clips, ABSENT where an item lacks
            the view.
        examples: For each view, the numbers of two clips of the whole dataset: one of this view, and the first one of
            the same item.
    """

    names: list[str]
    table: NDArray[np.int64]
    examples: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewsOfClips:
    """The clips of several views of a dataset.

    Attributes:
        names: The views, in the order of arrays.
        missing: How clips are treated that lack a view.
        item: int64 [clips], ascending: the number of the clip of several views that each clip belongs to.
        view: int64 [clips]: which of `names` each clip is.
    """

    names: list[str]
    missing: Missing
    item: NDArray[np.int64]
    view: NDArray[np.int64]

    def joined(self, chosen: NDArray[np.int64] | None = None) -> JoinedViews:
        """Return the clips of several views. Those that lack a view are left out, unless `missing` is "mask".

        Args:
            chosen: int64, ascending, the numbers of the clips that are joined. If None, all clips are.
        """
        item, view = (self.item, self.view) if chosen is None else (self.item[chosen], self.view[chosen])
        there, row = np.unique(item, return_inverse=True)
        table = np.full((len(there), len(self.names)), ABSENT, np.int64)
        table[row, view] = np.arange(len(item))
        kept = table if self.missing == "mask" else table[(table != ABSENT).all(axis=1)]
        # `argmax` finds the first clip, which also stands for a view without clips.
        firsts = [int(np.argmax(self.view == place)) for place in range(len(self.names))] if len(self.item) else []
        pairs = [(first, int(np.argmax(self.item == self.item[first]))) for first in firsts]
        return JoinedViews(names=self.names, table=kept, examples=dict(zip(self.names, pairs, strict=False)))


MAX_CHANNELS = 8  # PyAV gives every plane of up to this many channels


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFacts(AudioCoding):
    """A medium's audio stream: the `audio_…` columns of `videos` without that prefix.

    Attributes:
        first_sample: First sample that a full decode presents, on the grid of `rate`.
        end_sample: End (exclusive) of the samples that a full decode presents, on the same grid.
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
    """The audio that a dataset's clips get.

    Attributes:
        rate: The sample rate in Hz. If None, the medium's own.
        channels: The number of channels. If None, the medium's own.
        seconds: The length. If None, the clip's length.
    """

    rate: int | None = None
    channels: int | None = None
    seconds: Fraction | None = None

    def __post_init__(self) -> None:
        for name, value in (("rate", self.rate), ("channels", self.channels), ("seconds", self.seconds)):
            if value is not None and value <= 0:
                raise PolicyError(f"audio {name} that is not above 0", found=value)

    def facts(self) -> dict[str, Any]:
        """Return plain JSON values, as dataset.json records them."""
        return asdict(self) | {"seconds": None if self.seconds is None else str(self.seconds)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreRoll:
    """The packets that a fresh decoder must have decoded before its output is correct.

    Attributes:
        packets: Number of preceding packets. Each must have all its own data available.
        seconds: Minimum duration of the preceding packets.
        reservoir_bytes: Number of preceding data bytes that those packets may point back to.
        overhead_bytes: Bytes of each packet that do not count towards `reservoir_bytes`.
    """

    packets: int = 0
    seconds: Fraction = Fraction(0)
    reservoir_bytes: int = 0
    overhead_bytes: int = 0


# A transform codec's output is the sum of two windows: ISO/IEC 14496-3 4.6.11 (AAC), Vorbis I 1.3.2, ATSC A/52 7.9.4.
# One packet makes AAC-LC, Vorbis, AC-3 and E-AC-3 bit-equal (measured by benchmarks/audio_alignment.py). AAC has two
# more: SBR uses the previous frame (14496-3 4.6.18), and the filters of parametric stereo ring on (8.6.4). E-AC-3 gets
# one in reserve.
# MPEG audio: polyphase synthesis remembers 480 samples (ISO/IEC 11172-3 2.4.3.4). Layer 3 overlaps granules, and a
# frame at a low sample rate has one granule. main_data_begin points back up to 511 bytes (2.4.2.7). Headers and side
# information, at most 4 + 2 + 32 bytes, are not main data.
# Opus predicts from its earlier output. RFC 7845 4.6 asks for 80 ms; after that, whole clips were measured at -13 dB.
# One second brings speech to 100 dB and most music to equality.
# TrueHD restarts at major syncs, which are at most 128 access units apart (FFmpeg's decoder; measured).
# DTS and Speex continue from earlier output without a bound. Codecs that are not listed are refused: Microsoft's ADPCM
# and WMA decode to noise if block sizes are unknown, and an index does not record them.
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
    """Return the pre-roll of a codec, or None if it must be decoded from its beginning.

    Raises:
        PolicyError: The codec was not measured.
    """
    if codec.startswith("pcm_"):  # every packet is independent
        return PreRoll()
    if codec not in PRE_ROLL:
        raise PolicyError(
            "audio of a codec that was not measured to decode exactly from the middle",
            found=codec,
            allowed=f"pcm_…, {', '.join(PRE_ROLL)}",
        )
    return PRE_ROLL[codec]


def plan_audio(
    packets: AudioPackets, facts: AudioFacts, begin_seconds: Fraction, end_seconds: Fraction, margin_samples: int = 0
) -> AudioRecipe:
    """Return the recipe for the samples of a half-open interval of the medium's clock.

    Args:
        packets: All audio packets of the medium.
        facts: Its audio stream.
        begin_seconds: Begin of the interval.
        end_seconds: End of the interval.
        margin_samples: Number of additional samples on each side, at the medium's rate.

    Raises:
        PolicyError: The interval ends before it begins, the codec was not measured, or there are too many channels.
    """
    if facts.channels > MAX_CHANNELS:
        raise PolicyError("audio of too many channels", found=facts.channels, allowed=f"1 to {MAX_CHANNELS}")
    if end_seconds < begin_seconds:
        raise PolicyError("an audio interval that ends before it begins", found=f"{begin_seconds} to {end_seconds} s")
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
    """Return (first, stop) of the packets to decode for samples begin to end. Without packets, both are equal."""
    begin, end = max(begin, facts.first_sample), min(end, facts.end_sample)
    if begin >= end or not len(packets.sample):
        return 0, 0
    # If several packets claim one position, only the last gives samples; the others are included too.
    stop = int(np.searchsorted(packets.sample, end, side="left"))
    target = max(int(np.searchsorted(packets.sample, begin, side="right")) - 1, 0)
    target = int(np.searchsorted(packets.sample, packets.sample[target], side="left"))
    if target >= stop:
        return 0, 0
    return (0 if need is None else _rolled_back(packets, facts.rate, need, target)), stop


def _rolled_back(packets: AudioPackets, rate: int, need: PreRoll, target: int) -> int:
    """Return the first packet to decode so that the output of packet `target` is correct."""
    first = max(target - need.packets, 0)
    if need.seconds:
        earliest = int(packets.sample[target]) - math.ceil(need.seconds * rate)
        first = min(first, max(int(np.searchsorted(packets.sample, earliest, side="right")) - 1, 0))
    missing = need.reservoir_bytes
    while missing > 0 and first > 0:
        first -= 1
        missing -= max(int(packets.size[first]) - need.overhead_bytes, 0)
    return first


# Names of FFmpeg's pixel formats (libavutil/pixdesc.c). Most end in the bits per sample and the byte order.
BITS_AT_END = re.compile(r"(9|10|12|14|16|32)(?:msb)?[bl]e$")
BITS_BY_NAME = (
    (re.compile(r"(?:(?:rgb|bgr|xv)48|(?:rgba|bgra|ayuv)64)[bl]e"), 16),
    (re.compile(r"(?:rgb96|rgba128)[bl]e"), 32),
    (re.compile(r"xv36[bl]e"), 12),
    (re.compile(r"(?:xv30|v30x|nv20)[bl]e"), 10),
)


LOG = logging.getLogger("framedex.loader")


@functools.cache  # so that a process warns once
def tell_unproven(where: str, codecs: tuple[str, ...]) -> None:
    """Warn that an earlier version planned clips of media whose frames it had counted without decoding them.

    Args:
        where: The dataset, or the tars.
        codecs: The codecs of these media.
    """
    LOG.warning(
        "%s: clips of %s were planned by an earlier version of framedex, which counted frames by packets and tried "
        "none of them. To be sure of their frames, index the videos again and make the dataset again.",
        where,
        " and ".join(codecs),
    )


@functools.cache
def bits_of(pixel_format: str | None) -> int:
    """Return the number of bits of a pixel format's largest sample, at least 8; 8 if the format is unknown."""
    name = pixel_format or ""
    by_name = next((bits for pattern, bits in BITS_BY_NAME if pattern.fullmatch(name)), None)
    at_end = BITS_AT_END.search(name)
    return by_name or (8 if at_end is None else int(at_end[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium(MediumRecord):
    """A medium, and where its source lies now: `path` is a file, or the folder of loose images."""

    path: str

    @property
    def name(self) -> str:
        """Its name in messages."""
        return medium_name(self.uri, self.member)

    @property
    def part(self) -> ByteRange | None:
        """The place of the video in its file. If None, it is the whole file, or a cell."""
        if self.member_offset is None or self.member_bytes is None:
            return None
        return ByteRange(offset=self.member_offset, size_bytes=self.member_bytes)

    @property
    def cell(self) -> str | None:
        """The name of the value in a compressed column of a Parquet file. If None, the video is not such a value."""
        return self.member if self.member_offset is None and self.member_bytes is not None else None

    @property
    def turns(self) -> int:
        """The quarter turns counterclockwise, 0 to 3, that are nearest to the rotation by which players turn it."""
        return round(self.rotation_degrees / 90) % 4

    @property
    def aspect(self) -> float:
        """The width of a sample over its height, 1 if it is not stated."""
        return self.sample_aspect_ratio or 1.0

    @property
    def bits(self) -> int:
        """Bits per sample of its pictures."""
        return bits_of(self.pixel_format)

    @property
    def audio(self) -> AudioFacts | None:
        """Its audio stream. If None, it has no usable audio."""
        if self.audio_stream_index is None or self.audio_problem is not None:
            return None
        return AudioFacts(**{field.name: getattr(self, f"audio_{field.name}") for field in fields(AudioFacts)})

    @property
    def source(self) -> ByteSource:
        """The file that was indexed."""
        return ByteSource(
            path=self.path, size_bytes=self.size_bytes, mtime_ns=self.mtime_ns, fingerprint=self.fingerprint
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiView:
    """The place of a clip in a clip of several views.

    Attributes:
        multiview_id: The name that all views share.
        view_name: The view.
        view_away_seconds: float64 [F], each frame's time minus the wanted time, NaN where padded.
    """

    multiview_id: str
    view_name: str
    view_away_seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedClip:
    """A clip before it is planned.

    Attributes:
        frames: int64 [F], -1 where padded by a constant.
        mask: bool [F], False where padded, by a constant or by repeating frames.
        columns: The user's columns.
        stretch: The frames [first, stop) of the medium that a policy sampled. If None, no policy selected it.
        anchor_frame: Number of the clip's anchor frame. If None, the clip has no anchor.
        multiview: Its place in a clip of several views. If None, it stands alone.
        asked_in: The place of the user's request for this clip. If None, a policy selected it.
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
    """A planned clip: its row of `clips`, and the recipe for its frames.

    Attributes:
        columns: The user's columns.
        source: The file that the recipe's ranges point into.
        audio: The clip's audio. If None, audio was not requested.
        audio_source: The file of the audio packets. If None, it is `source`.
    """

    medium: Medium
    columns: dict[str, Any]
    recipe: Recipe
    source: ByteSource
    audio: ClipAudioPlan | None = None
    audio_source: ByteSource | None = None

    @property
    def stretch(self) -> tuple[int, int] | None:
        """The frames [first, stop) of the medium that a policy sampled. If None, no policy selected it."""
        if self.stretch_first is None or self.stretch_stop is None:
            return None
        return self.stretch_first, self.stretch_stop


def failure_of(clip: Clip, error: StaleError | UncuttableError) -> Failure:
    """Return the row with the reason why a planned clip is missing."""
    kind = "stale" if isinstance(error, StaleError) else "uncuttable"
    return Failure(clip_id=clip.clip_id, uri=clip.medium.name, kind=kind, message=error.text())


def internal_failure(clip_id: str, uri: str, error: Exception) -> Failure:
    """Return the row of a clip that is missing because of an error of framedex itself."""
    found = internal_error(error)
    return Failure(clip_id=clip_id, uri=uri, kind=INTERNAL_ERROR, message=found.what, traceback=found.traceback)
