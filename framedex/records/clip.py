"""The columns of a clip: a row of `clips` in a dataset.

A clip's recipe, a row of `recipes` in a dataset: how to get its frames and its audio out of its medium.

The columns of the small tables of a dataset: its failures, and its tars.
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
SAMPLE = "sample"  # the JSON of a clip in a tar has the column, under its own name
FIELDS = "fields"  # the table of one value for each clip has it
VIEWS_SINCE = (3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRecord:
    """A row of `clips`, without the user's columns. F: the number of wanted frames.

    Attributes:
        clip_id: Unique name of the clip.
        media_row: Row of the clip's medium in `media`.
        frames: Wanted frames in order, by presentation number from 0; repeats allowed; -1 for padding by a constant.
        mask: False where padded, by a constant or by repeating frames.
        pts: Their timestamps; null for padding.
        seconds: Their timestamps by the container's clock; null for padding.
        md5: MD5 over the native planes of each frame (as `frames.md5` of an index), null for padding; null where the
            index has none.
        shard: Number of the tar that holds the clip (a row of `shards`); null: its ranges point into the source.
        stretch_first: First frame of the stretch of the medium that the policy sampled: 0, or where a range begins.
            Null for explicit clips.
        stretch_stop: The frame behind the stretch.
        anchor_frame: Number of the frame that the clip is about; null where the policy has no such frame.
        multiview_id: Name that the clips of several views share which belong together; null where a clip stands alone.
        view_name: Which of these views it is.
        view_away_seconds: Time of each frame minus the one that was wanted of the view; null for padding.
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
    """How to get a clip's frames out of its medium.

    `packet_pts`, `packet_shown` and `packet_start` are known when a clip is planned, and are not stored.
    The other fields are columns of `recipes`.

    Attributes:
        range_offset: Byte ranges to read, in decode order: where each begins.
        range_length: How long each is.
        range_path: The file of each range of loose images, relative to the medium's folder.
        range_crc32: CRC-32 of each range of images.
        packet_size: Sizes of the packets that the joined ranges hold; the packets of one picture count as one.
        packet_rank: Presentation rank of each packet within the clip's own stream, from 0.
        run_first: Number (in this clip) of the first packet of each run. Runs are decoded in sessions of their own.
        run_open: Whether the run begins at an open start point.
        run_state: Which of `media.states` each run's decoder must be given before its first packet.
        damaged: Some wanted frame lies in a damaged GOP.
        position: For each wanted frame, its packet's rank; -1 for padding.
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


AUDIO = "audio_"  # prefix of the columns below


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioRanges:
    """The bytes of a clip's audio: columns of `recipes` with the prefix `audio_`.

    Attributes:
        range_offset: Byte ranges of the clip's audio packets, or of its audio file in the tar: where each begins. Null
            without audio.
        range_length: How long each is.
    """

    range_offset: NDArray[np.int64] = column(list_of(pa.int64()), unit="bytes", rule=BYTES)
    range_length: NDArray[np.int64] = column(list_of(pa.int64()), unit="bytes", rule=BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioRecipe(AudioRanges):
    """How to read and decode a stretch of a medium's audio samples: columns of `recipes` with the prefix `audio_`.

    There are no ranges if the packets are not byte ranges of the file. The interval of samples may extend beyond what
    the medium presents; that part is filled with silence.

    Attributes:
        packet_size: Sizes of the packets that the joined ranges hold, those first that are decoded and dropped; null
            where the range is a FLAC or WAV file.
        packet_sample: Where each packet's first decoded sample lies, as `frames.audio_sample` of an index.
        begin_sample: The first sample that is needed, at the medium's own rate.
        end_sample: Behind the last one.
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

    The range is one, the file.

    Attributes:
        present: Begin and end of each stretch of samples in an audio file that the medium presents, in turn; the others
            are silence.
    """

    present: NDArray[np.int64] = column(list_of(pa.int64()), unit="samples", rule=between(0, FAR), also_in=(SAMPLE,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipAudioPlan:
    """A clip's audio and how to get it: columns of `recipes` with the prefix `audio_`.

    Attributes:
        rate: The clip's sample rate.
        channels: Its channels.
        first: Its first sample: sample k is at k / `audio_rate` seconds on the container's clock.
        count: How many samples it has.
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
        clip_id: The clip that was asked for, where it had a name.
        uri: The medium it was asked of.
        kind: Short stable word for why there is no clip.
        message: The reason in words.
        counts: Whether it counts as a failure of the run; what a policy leaves out by its own rules does not.
        traceback: Where framedex itself failed (`kind` is `internal_error`); else null.
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
        name: File in the dataset: a tar.
        size_bytes: Its size.
        fingerprint: Its fingerprint, made as `videos.fingerprint` of an index.
        clips: How many clips it holds.
    """

    name: str = column(pa.string(), nullable=False)
    size_bytes: int = column(pa.int64(), unit="bytes", nullable=False, rule=BYTES)
    fingerprint: str = column(pa.string(), nullable=False)
    clips: int = column(pa.int64(), nullable=False, rule=COUNT)
