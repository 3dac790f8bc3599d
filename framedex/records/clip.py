"""The columns of a clip: a row of `clips` in a dataset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import ColumnRule
from framedex.records.columns import column, list_of

PAD = -1  # a wanted frame that is padding
NO_PTS = np.iinfo(np.int64).min
INT32 = (1 << 31) - 1
NUMBER = ColumnRule(least=0, most=INT32)
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

    clip_id: str = column(
        pa.string(),
        nullable=False,
        rule=ColumnRule(needed=True, any_text=True),
        also_in=(SAMPLE, FIELDS),
        key="clip_id",
    )
    media_row: int = column(
        pa.int32(), nullable=False, rule=ColumnRule(least=0, most=INT32, needed=True), also_in=(FIELDS,), of_table=True
    )
    frames: NDArray[np.int64] = column(
        list_of(pa.int32()),
        unit="frames",
        nullable=False,
        rule=ColumnRule(least=PAD, most=INT32, needed=True),
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
        pa.string(), rule=ColumnRule(any_text=True), since=VIEWS_SINCE, also_in=(SAMPLE, FIELDS), key="multiview_id"
    )
    view_name: str | None = column(
        pa.string(), rule=ColumnRule(any_text=True), since=VIEWS_SINCE, also_in=(SAMPLE, FIELDS), key="view_name"
    )
    view_away_seconds: NDArray[np.float64] | None = column(
        list_of(pa.float64(), nullable=True),
        unit="s",
        since=VIEWS_SINCE,
        also_in=(SAMPLE,),
        key="view_away_seconds",
        padding=np.nan,
    )
