"""The columns of a dataset's tables of clips, recipes, failures and tars.

The recipe of a clip describes which bytes of the medium to read and how to decode them into the frames and the audio
of the clip.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import FAR, ColumnRule
from framedex.records.columns import BYTES, COUNT, CRC32, INT32, POSITIVE, between, column, list_of

PAD = -1  # stands for the frame number of a wanted frame that is padding
NO_PTS = np.iinfo(np.int64).min  # stands for a missing timestamp in numpy arrays
NUMBER = between(0, INT32, needed=False)
PLACE = between(PAD, INT32)
NAME, ANY_TEXT = ColumnRule(needed=True, any_text=True), ColumnRule(any_text=True)
SAMPLES = between(-FAR, FAR)
# Names in `Column.also_in`. SAMPLE: the JSON of a clip in a tar. FIELDS: the table of columns with a single value per
# clip.
SAMPLE, FIELDS = "sample", "fields"
VIEWS_SINCE = (3, 4)  # first version of the format with the columns about views
ORDER_SINCE = (3, 7)  # first version of the format with `packet_order`


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRecord:
    """A row of the table `clips`, without the user's columns.

    Attributes:
        clip_id: Unique name of the clip.
        media_row: Number of the clip's medium: its row number in the table `media`, plus the count of numbers of
            removed media before it.
        frames: Presentation numbers (from 0) of the wanted frames, in the order of the clip. A number may occur several
            times. -1 is padding by a constant.
        mask: Whether each wanted frame is a real frame. False for padding by a constant or by repeated frames.
        pts: Timestamp of each wanted frame in the time base. Null for padding.
        seconds: Timestamp of each wanted frame in seconds on the container's clock. Null for padding.
        md5: MD5 over the native planes of each wanted frame, as in `frames.md5` of an index. Null for padding. The list
            is null if the index has no hashes.
        shard: Number of the tar that contains the clip: its row number in the table `shards`, plus the count of numbers
            of removed tars before it. Null if the clip is not packed. The byte ranges of a clip that is not packed
            refer to the source.
        stretch_first: First frame of the stretch: the part of the medium from which the policy sampled the clip. 0 for
            the whole medium, or the first frame of a range. Null for explicit clips.
        stretch_stop: The frame after the last frame of the stretch. Null for explicit clips.
        anchor_frame: Presentation number of the frame around which the clip was sampled. Null if the policy does not
            sample around frames.
        multiview_id: Name that is the same for all clips that show one scene at the same time from several views. Null
            if the clip has no other views.
        view_name: Name of the clip's view. Null if the clip has no other views.
        view_away_seconds: How much later than wanted each frame is: the time of the frame minus the time at which the
            policy wanted a frame of this view. Null for padding. The list is null if the clip has no other views.
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
    """The recipe for a clip's frames: the bytes to read from the medium, and the packets to decode.

    The fields are columns of the table `recipes`.

    Attributes:
        range_offset: Offset of each byte range to read, in decode order.
        range_length: Length of each byte range.
        range_path: Path of the file that contains each byte range, relative to the medium's folder. Null if the medium
            is not a sequence of loose images.
        range_crc32: CRC-32 of the bytes in each byte range. Null if the byte ranges are not images.
        packet_size: Size of each packet. The packets follow each other without gaps in the concatenated byte ranges. If
            a picture is stored in several packets of the medium, they count as one packet.
        packet_rank: Rank of each packet's picture in presentation order among the packets of the clip, from 0.
        packet_order: Rank of each packet in presentation order among all packets of the medium, from 0. Clips of one
            medium can be decoded together by it. Null in datasets from before version 3.7, if the packets of the medium
            are not in decode order in its file, and if the clip has a file of its own.
        run_first: Position of each run's first packet among the packets of the clip, from 0. A run is a random access
            point and some packets after it, which one decoder session decodes.
        run_open: For each run, whether the random access point at its beginning is open.
        run_state: For each run, the number of the entry of `media.states` that the decoder must get before the first
            packet.
        damaged: Whether a wanted frame is in a damaged GOP.
        position: For each wanted frame, the rank of the packet that contains it. -1 for padding.
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
    packet_order: NDArray[np.int32] | None = column(
        list_of(pa.int32()), rule=between(0, INT32, needed=False), since=ORDER_SINCE
    )
    run_first: NDArray[np.int32] = column(list_of(pa.int32()), nullable=False, rule=COUNT, also_in=(SAMPLE,))
    run_open: NDArray[np.bool_] = column(list_of(pa.bool_()), nullable=False, also_in=(SAMPLE,))
    run_state: NDArray[np.int32] = column(list_of(pa.int32()), nullable=False, rule=COUNT)
    damaged: bool = column(pa.bool_(), nullable=False, also_in=(SAMPLE,))
    position: NDArray[np.int32] = column(list_of(pa.int32()), nullable=False, rule=PLACE, also_in=(SAMPLE,))

    def __post_init__(self) -> None:
        runs = {len(self.run_first), len(self.run_open), len(self.run_state)}
        if len(self.packet_size) != len(self.packet_rank) or len(runs) > 1:
            raise ValueError("the columns of a recipe have different lengths")
        if int(self.range_length.sum()) != int(self.packet_size.sum()):
            raise ValueError("the byte ranges and the packets of a recipe have different total sizes")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecipe(Recipe):
    """A recipe with facts about its packets that are known when a clip is planned, and that are not stored.

    Attributes:
        packet_pts: int64 [packets]. Timestamp of each packet in the time base.
        packet_shown: bool [packets]. Whether a decoder outputs a picture for the packet.
        packet_start: bool [packets]. Whether a decoder may start at the packet without any state.
    """

    packet_pts: NDArray[np.int64]
    packet_shown: NDArray[np.bool_]
    packet_start: NDArray[np.bool_]


AUDIO = "audio_"  # prefix of the names of audio columns in the tables `recipes` and `frames`


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioRanges:
    """The byte ranges of a clip's audio: columns of the table `recipes` with the prefix `audio_`.

    Attributes:
        range_offset: Offset of each byte range that contains audio packets of the clip. If the audio is a file in the
            tar, the only byte range is this file. Null if the clip has no audio.
        range_length: Length of each byte range in `audio_range_offset`.
    """

    range_offset: NDArray[np.int64] = column(list_of(pa.int64()), unit="bytes", rule=BYTES)
    range_length: NDArray[np.int64] = column(list_of(pa.int64()), unit="bytes", rule=BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioRecipe(AudioRanges):
    """The recipe for consecutive audio samples of a medium: columns of the table `recipes` with the prefix `audio_`.

    The recipe has no byte ranges if the packets are not byte ranges of the file. Samples before the first and after the
    last sample that the medium presents are silent.

    Attributes:
        packet_size: Size of each audio packet. The packets follow each other without gaps in the concatenated byte
            ranges. The samples of the first packets may be discarded after decoding. Null if the byte range is a FLAC
            or WAV file.
        packet_sample: Position of the first decoded sample of each packet, as in `frames.audio_sample` of an index.
        begin_sample: Position of the first sample of the clip, at the sample rate of the medium.
        end_sample: Position after the last sample of the clip, at the sample rate of the medium.
    """

    packet_size: NDArray[np.int32] = column(list_of(pa.int32()), unit="bytes", rule=COUNT)
    packet_sample: NDArray[np.int64] = column(list_of(pa.int64()), unit="samples", rule=SAMPLES)
    begin_sample: int = column(pa.int64(), unit="samples", rule=SAMPLES)
    end_sample: int = column(pa.int64(), unit="samples", rule=SAMPLES)

    def __post_init__(self) -> None:
        if len(self.range_offset) != len(self.range_length) or len(self.packet_size) != len(self.packet_sample):
            raise ValueError("the columns of an audio recipe have different lengths")
        if len(self.range_length) and int(self.range_length.sum()) != int(self.packet_size.sum()):
            raise ValueError("the byte ranges and the packets of an audio recipe have different total sizes")
        if self.end_sample < self.begin_sample:
            raise ValueError(f"an audio recipe begins at sample {self.begin_sample}, but ends at {self.end_sample}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFile(AudioRanges):
    """The audio of a clip in a separate FLAC or WAV file, such as a file in a tar. Used instead of an `AudioRecipe`.

    The fields are columns of the table `recipes` with the prefix `audio_`. The only byte range is the whole file.

    Attributes:
        present: Two numbers for each section of the audio file that contains audio of the medium: the first sample of
            the section, and the sample after the end of the section. All other samples of the file are silence.
    """

    present: NDArray[np.int64] = column(list_of(pa.int64()), unit="samples", rule=between(0, FAR), also_in=(SAMPLE,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipAudioPlan:
    """The format of a clip's audio, and its recipe: columns of the table `recipes` with the prefix `audio_`.

    Attributes:
        recipe: Recipe of the samples.
        rate: Sample rate of the clip.
        channels: Number of audio channels of the clip.
        first: Position of the first sample of the clip. Position k is at k / `audio_rate` seconds on the container's
            clock.
        count: Number of samples of the clip.
    """

    recipe: AudioRecipe | AudioFile
    rate: int = column(pa.int32(), unit="Hz", rule=POSITIVE, also_in=(SAMPLE,))
    channels: int = column(pa.int32(), rule=between(1, 1024), also_in=(SAMPLE,))
    first: int = column(pa.int64(), unit="samples", rule=SAMPLES, also_in=(SAMPLE,))
    count: int = column(pa.int64(), unit="samples", rule=between(0, FAR), also_in=(SAMPLE,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A row of failures.parquet: a clip that could not be made, and the reason.

    Attributes:
        clip_id: Name of the clip. Null if the clip had no name yet.
        uri: Path or uri of the medium of the clip.
        kind: Reason as a short word that does not change between versions.
        message: Reason as a sentence.
        counts: Whether the row counts as a failure of the run. False for clips that a rule of the policy left out.
        traceback: Traceback of a bug of framedex (`kind` is `internal_error`). Null for other reasons.
    """

    clip_id: str | None = column(pa.string())
    uri: str | None = column(pa.string())
    kind: str = column(pa.string(), nullable=False)
    message: str = column(pa.string(), nullable=False)
    counts: bool = column(pa.bool_(), nullable=False, default=True)
    traceback: str | None = column(pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A row of the table `shards`: a tar of a dataset.

    Attributes:
        name: Path of the tar, relative to the dataset.
        size_bytes: Size of the tar.
        fingerprint: Fingerprint of the tar, computed in the same way as `videos.fingerprint` of an index.
        clips: Number of clips in the tar.
    """

    name: str = column(pa.string(), nullable=False)
    size_bytes: int = column(pa.int64(), unit="bytes", nullable=False, rule=BYTES)
    fingerprint: str = column(pa.string(), nullable=False)
    clips: int = column(pa.int64(), nullable=False, rule=COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A row of the table `removed`: clips that were removed from a dataset, without any name.

    Attributes:
        generation: Generation of the dataset that does not have the clips any more.
        media_id: Id of the medium of the clips. Clips of it are not added again. Null if the medium itself stayed.
        media_row: Number of the medium, as in `clips.media_row`. Null if only failures of the medium were removed.
        shard: Number of the tar that had the clips, as in `clips.shard`. Null if they were not packed.
        first_clip: Row number of the first of consecutive clips in the generation before.
        stop_clip: Row number after the last of these clips. Equal to `first_clip` if the medium had no clips.
    """

    generation: int = column(pa.int32(), nullable=False, rule=COUNT)
    media_id: str | None = column(pa.string())
    media_row: int | None = column(pa.int32(), rule=NUMBER)
    shard: int | None = column(pa.int32(), rule=NUMBER)
    first_clip: int = column(pa.int32(), nullable=False, rule=COUNT)
    stop_clip: int = column(pa.int32(), nullable=False, rule=COUNT)
