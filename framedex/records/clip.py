"""The columns of a dataset's tables of clips, recipes, failures and tars.

A clip's recipe describes how to get its frames and its audio out of its medium.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import FAR, ColumnRule
from framedex.records.columns import BYTES, COUNT, CRC32, INT32, POSITIVE, between, column, list_of

PAD = -1  # a wanted frame that is padding
NO_PTS = np.iinfo(np.int64).min
NUMBER = between(0, INT32, needed=False)
PLACE = between(PAD, INT32)
NAME, ANY_TEXT = ColumnRule(needed=True, any_text=True), ColumnRule(any_text=True)
SAMPLES = between(-FAR, FAR)
# Places of `Column.also_in`: the JSON of a clip in a tar, and the table with a single value of each clip per column.
SAMPLE, FIELDS = "sample", "fields"
VIEWS_SINCE = (3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRecord:
    """A row of `clips`, without the user's columns.

    Attributes:
        clip_id: Unique name of the clip.
        media_row: Row of the clip's medium in `media`.
        frames: Wanted frames in order, by presentation number from 0. Frames may repeat. -1 is padding by a constant.
        mask: False for padding, by a constant or by repeated frames.
        pts: Timestamps of the wanted frames; null for padding.
        seconds: Timestamps of the wanted frames by the container's clock; null for padding.
        md5: MD5 over the native planes of each frame (as `frames.md5` of an index), null for padding. Null if the index
            has no hashes.
        shard: Number of the tar with the clip (a row of `shards`). Null if its ranges point into the source.
        stretch_first: First frame of the stretch of the medium that the policy sampled: 0, or the first frame of a
            range. Null for explicit clips.
        stretch_stop: The frame after the stretch.
        anchor_frame: Number of the frame that the clip is about. Null if the policy has no such frame.
        multiview_id: Name that the clips of several views share if they belong together. Null if a clip stands
            alone.
        view_name: Name of the clip's view.
        view_away_seconds: Time of each frame minus the time that was wanted of the view; null for padding.
    """

    clip_id: str = column(pa.string(), nullable=False, rule=NAME, also_in=(SAMPLE, FIELDS), key="clip_id")
    media_row: int = column(pa.int32(), nullable=False, rule=COUNT, also_in=(FIELDS,), of_table=True)
    frames: NDArray[np.int64] = column(
        list_of(pa.int32()),
        unit="frames",
        nullable=False,
        rule=PLACE,
        also_in=(SAMPLE,),
        key="frame_index",
        dtype=np.int64,
        padding=PAD,
    )
    mask: NDArray[np.bool_] = column(list_of(pa.bool_()), nullable=False, also_in=(SAMPLE,), key="mask", padding=False)
    pts: NDArray[np.int64] = column(
        list_of(pa.int64(), nullable=True),
        unit="time base",
        nullable=False,
        also_in=(SAMPLE,),
        key="pts",
        padding=NO_PTS,
    )
    seconds: NDArray[np.float64] = column(
        list_of(pa.float64(), nullable=True), unit="s", nullable=False, also_in=(SAMPLE,), key="seconds", padding=np.nan
    )
    md5: list[bytes | None] | None = column(list_of(pa.binary(16), nullable=True))
    shard: int | None = column(pa.int32(), rule=NUMBER, also_in=(FIELDS,), of_table=True)
    stretch_first: int | None = column(pa.int32(), unit="frames", rule=NUMBER)
    stretch_stop: int | None = column(pa.int32(), unit="frames", rule=NUMBER)
    anchor_frame: int | None = column(pa.int32(), unit="frames", rule=NUMBER)
    multiview_id: str | None = column(
        pa.string(), rule=ANY_TEXT, since=VIEWS_SINCE, also_in=(SAMPLE, FIELDS), key="multiview_id"
    )
    view_name: str | None = column(
        pa.string(), rule=ANY_TEXT, since=VIEWS_SINCE, also_in=(SAMPLE, FIELDS), key="view_name"
    )
    view_away_seconds: NDArray[np.float64] | None = column(
        list_of(pa.float64(), nullable=True),
        unit="s",
        since=VIEWS_SINCE,
        also_in=(SAMPLE,),
        key="view_away_seconds",
        padding=np.nan,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The recipe for a clip's frames: the bytes to read from its medium, and the packets to decode.

    The fields are columns of `recipes`, except for `packet_pts`, `packet_shown` and `packet_start`. These three are
    known when a clip is planned, and are not stored.

    Attributes:
        range_offset: Offsets of the byte ranges to read, in decode order.
        range_length: Lengths of the byte ranges.
        range_path: The file of each range of loose images, relative to the medium's folder.
        range_crc32: CRC-32 of each range of images.
        packet_size: Sizes of the packets in the joined ranges. The packets of one picture count as one.
        packet_rank: Presentation rank of each packet within the clip's own stream, from 0.
        run_first: Number (within this clip) of the first packet of each run. Each run is decoded in a session of its
            own.
        run_open: Whether the run begins at an open random access point.
        run_state: Number of the entry of `media.states` that each run's decoder must be given before its first packet.
        damaged: Whether a wanted frame lies in a damaged GOP.
        position: The packet's rank for each wanted frame; -1 for padding.
        packet_pts: int64 [packets], timestamps.
        packet_shown: bool [packets], whether a decoder outputs the packet.
        packet_start: bool [packets], whether decoding may start at the packet without any state.
    """

    range_offset: NDArray[np.int64] = column(
        list_of(pa.int64()), unit="bytes", nullable=False, rule=BYTES, also_in=(SAMPLE,)
    )
    range_length: NDArray[np.int64] = column(
        list_of(pa.int64()), unit="bytes", nullable=False, rule=BYTES, also_in=(SAMPLE,)
    )
    range_path: list[str] | None = column(list_of(pa.string()))
    range_crc32: NDArray[np.int64] | None = column(list_of(pa.int64()), rule=CRC32, also_in=(SAMPLE,))
    packet_size: NDArray[np.int32] = column(
        list_of(pa.int32()), unit="bytes", nullable=False, rule=COUNT, also_in=(SAMPLE,)
    )
    packet_rank: NDArray[np.int32] = column(list_of(pa.int32()), nullable=False, rule=COUNT, also_in=(SAMPLE,))
    run_first: NDArray[np.int32] = column(list_of(pa.int32()), nullable=False, rule=COUNT, also_in=(SAMPLE,))
    run_open: NDArray[np.bool_] = column(list_of(pa.bool_()), nullable=False, also_in=(SAMPLE,))
    run_state: NDArray[np.int32] = column(list_of(pa.int32()), nullable=False, rule=COUNT)
    damaged: bool = column(pa.bool_(), nullable=False, also_in=(SAMPLE,))
    position: NDArray[np.int32] = column(list_of(pa.int32()), nullable=False, rule=PLACE, also_in=(SAMPLE,))
    packet_pts: NDArray[np.int64] | None = None
    packet_shown: NDArray[np.bool_] | None = None
    packet_start: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if len(self.packet_size) != len(self.packet_rank) or not (
            len(self.run_first) == len(self.run_open) == len(self.run_state)
        ):
            raise ValueError("recipe columns of different lengths")
        if int(self.range_length.sum()) != int(self.packet_size.sum()):
            raise ValueError("a recipe's ranges and packets differ in size")


AUDIO = "audio_"  # the prefix of the columns of audio in `recipes`


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioRanges:
    """The bytes of a clip's audio: columns of `recipes` with the prefix `audio_`.

    Attributes:
        range_offset: Offsets of the byte ranges of the clip's audio packets, or of its audio file in the tar. Null
            without audio.
        range_length: Lengths of these ranges.
    """

    range_offset: NDArray[np.int64] = column(list_of(pa.int64()), unit="bytes", rule=BYTES)
    range_length: NDArray[np.int64] = column(list_of(pa.int64()), unit="bytes", rule=BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioRecipe(AudioRanges):
    """The recipe for a stretch of a medium's audio samples: columns of `recipes` with the prefix `audio_`.

    There are no ranges if the packets are not byte ranges of the file. The stretch may extend beyond the samples that
    the medium presents. That part is filled with silence.

    Attributes:
        packet_size: Sizes of the packets in the joined ranges. The first ones may be decoded only to be dropped. Null
            if the range is a FLAC or WAV file.
        packet_sample: Position of each packet's first decoded sample, as `frames.audio_sample` of an index.
        begin_sample: The first sample that is needed, at the medium's own rate.
        end_sample: The sample after the last one that is needed.
    """

    packet_size: NDArray[np.int32] = column(list_of(pa.int32()), unit="bytes", rule=COUNT)
    packet_sample: NDArray[np.int64] = column(list_of(pa.int64()), unit="samples", rule=SAMPLES)
    begin_sample: int = column(pa.int64(), unit="samples", rule=SAMPLES)
    end_sample: int = column(pa.int64(), unit="samples", rule=SAMPLES)

    def __post_init__(self) -> None:
        if len(self.range_offset) != len(self.range_length) or len(self.packet_size) != len(self.packet_sample):
            raise ValueError("audio recipe columns of different lengths")
        if len(self.range_length) and int(self.range_length.sum()) != int(self.packet_size.sum()):
            raise ValueError("an audio recipe's ranges and packets differ in size")
        if self.end_sample < self.begin_sample:
            raise ValueError(f"an audio recipe from sample {self.begin_sample} to {self.end_sample}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFile(AudioRanges):
    """A clip's audio in a FLAC or WAV file of its own, for instance in a tar: columns of `recipes` as in `AudioRecipe`.

    The only range is the whole file.

    Attributes:
        present: First sample of each stretch of the audio file that the medium presents, and the sample after it, in
            turn. The other samples are silence.
    """

    present: NDArray[np.int64] = column(list_of(pa.int64()), unit="samples", rule=between(0, FAR), also_in=(SAMPLE,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipAudioPlan:
    """The format of a clip's audio, and the recipe for it: columns of `recipes` with the prefix `audio_`.

    Attributes:
        rate: The clip's sample rate.
        channels: The clip's number of channels.
        first: The clip's first sample. Sample k is at k / `audio_rate` seconds on the container's clock.
        count: The clip's number of samples.
    """

    recipe: AudioRecipe | AudioFile
    rate: int = column(pa.int32(), unit="Hz", rule=POSITIVE, also_in=(SAMPLE,))
    channels: int = column(pa.int32(), rule=between(1, 1024), also_in=(SAMPLE,))
    first: int = column(pa.int64(), unit="samples", rule=SAMPLES, also_in=(SAMPLE,))
    count: int = column(pa.int64(), unit="samples", rule=between(0, FAR), also_in=(SAMPLE,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A clip that could not be made.

    Attributes:
        clip_id: Name of the wanted clip, if it had one.
        uri: The medium of the wanted clip.
        kind: Short stable word for the reason.
        message: The reason in words.
        counts: Whether this counts as a failure of the run. Clips that a policy leaves out by its own rules do not
            count.
        traceback: The traceback of a failure of framedex itself (`kind` is `internal_error`); else null.
    """

    clip_id: str | None = column(pa.string())
    uri: str | None = column(pa.string())
    kind: str = column(pa.string(), nullable=False)
    message: str = column(pa.string(), nullable=False)
    counts: bool = column(pa.bool_(), nullable=False, default=True)
    traceback: str | None = column(pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A tar of a dataset.

    Attributes:
        name: Path of the tar in the dataset.
        size_bytes: Size of the tar.
        fingerprint: Fingerprint of the tar, made as `videos.fingerprint` of an index.
        clips: Number of clips in the tar.
    """

    name: str = column(pa.string(), nullable=False)
    size_bytes: int = column(pa.int64(), unit="bytes", nullable=False, rule=BYTES)
    fingerprint: str = column(pa.string(), nullable=False)
    clips: int = column(pa.int64(), nullable=False, rule=COUNT)
