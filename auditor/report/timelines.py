"""The data of the timeline in a report: the frames of one medium of an index, or the clips of one of a dataset."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.auditor.findings import Audit
from framedex.auditor.tables.database import Database
from framedex.auditor.tables.subject import literal
from framedex.core.words import counted

MAX_FRAMES = 2000  # maximum number of frames that are drawn
MAX_CLIPS = 60  # maximum number of clips that are drawn
LONG_GAP = 3.0  # a gap between frames is marked if it is longer than this factor times the median gap
NOT_KNOWN, CLOSED, OPEN = -1, 0, 1  # kinds of random access points

# The columns of `videos` and `clips` that the queries in this module use.
COLUMNS = (
    "media_id", "uri", "status", "kind", "frame_count", "is_vfr", "max_gap_seconds", "min_gap_seconds",
    "clip", "clip_id", "begin_seconds", "end_seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesTimeline:
    """Consecutive frames of one medium in presentation order.

    Attributes:
        uri, media_id: The uri and the media_id of the medium.
        why: A text that says why this medium was chosen.
        total: The number of frames of the medium.
        first: The number of the first frame of this timeline.
        seconds: float64 [n], the time of each frame.
        gap_seconds: float64 [n], the time since the previous frame. NaN for the first frame of the medium.
        size_bytes: int64 [n], the size of each frame's packet.
        start: int8 [n], OPEN, CLOSED or NOT_KNOWN for each random access point, and NOT_KNOWN for other frames.
        is_start: bool [n], whether the frame is a random access point.
        is_damaged: bool [n], whether the frame is in a damaged GOP.
    """

    uri: str
    media_id: str
    why: str
    total: int
    first: int
    seconds: NDArray[np.float64]
    gap_seconds: NDArray[np.float64]
    size_bytes: NDArray[np.int64]
    start: NDArray[np.int8]
    is_start: NDArray[np.bool_]
    is_damaged: NDArray[np.bool_]

    @property
    def median_gap(self) -> float:
        """The median time between two consecutive frames, or 0 if there is only one frame."""
        gaps = self.gap_seconds[np.isfinite(self.gap_seconds)]
        return float(np.median(gaps)) if len(gaps) else 0.0

    @property
    def long_gaps(self) -> NDArray[np.bool_]:
        """Whether the time since the previous frame exceeds LONG_GAP times the median, bool [n]."""
        return np.nan_to_num(self.gap_seconds) > max(LONG_GAP * self.median_gap, 1e-9)

    def as_json(self) -> dict[str, Any]:
        """Return a description of the timeline as JSON values."""
        return {
            "media_id": self.media_id,
            "uri": self.uri,
            "why": self.why,
            "frames": self.total,
            "first_shown": self.first,
            "shown": len(self.seconds),
            "begin_seconds": float(self.seconds[0]),
            "end_seconds": float(self.seconds[-1]),
            "start_points": int(self.is_start.sum()),
            "open_start_points": int((self.is_start & (self.start == OPEN)).sum()),
            "damaged_frames": int(self.is_damaged.sum()),
            "long_gaps": int(self.long_gaps.sum()),
            "longest_gap_seconds": float(np.nan_to_num(self.gap_seconds).max()),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineClip:
    """A clip on a timeline.

    Attributes:
        clip_id: The name of the clip.
        lane: The number of the row in which the clip is drawn. Clips that overlap in time are in different rows.
        seconds: float64 [frames], the times of the clip's frames in ascending order.
    """

    clip_id: str
    lane: int
    seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipsTimeline:
    """The clips of one medium.

    Attributes:
        uri, media_id: The uri and the media_id of the medium.
        why: A text that says why this medium was chosen.
        total: The number of clips of the medium.
        begin_seconds, end_seconds: The time span that is drawn.
        clips: The first clips of the medium, at most MAX_CLIPS.
    """

    uri: str
    media_id: str
    why: str
    total: int
    begin_seconds: float
    end_seconds: float
    clips: list[TimelineClip]

    def as_json(self) -> dict[str, Any]:
        """Return a description of the timeline as JSON values."""
        return {
            "media_id": self.media_id,
            "uri": self.uri,
            "why": self.why,
            "clips": self.total,
            "shown": len(self.clips),
            "begin_seconds": self.begin_seconds,
            "end_seconds": self.end_seconds,
        }


Timeline = FramesTimeline | ClipsTimeline


def timeline(db: Database, found: Audit) -> Timeline | None:
    """Return the timeline of the most informative medium, or None if there is no suitable medium."""
    if db.audited.kind == "dataset":
        return _clips_timeline(db)
    chosen = _chosen(db, found)
    return None if chosen is None else _frames_timeline(db, *chosen)


def _chosen(db: Database, found: Audit) -> tuple[str, str] | None:
    """Choose a video for the timeline. Return its media_id and the reason, or None if no video has several frames.

    The video that is an example of the most findings is chosen. Among equals, a video with a variable frame rate is
    preferred, then the one whose rate varies most, and then the one with the most frames.
    """
    seen = Counter(row["media_id"] for finding in found.findings for row in finding.examples if "media_id" in row)
    listed = ", ".join(f"({literal(media_id)}, {count})" for media_id, count in sorted(seen.items())) or "('', 0)"
    rows = db.ask(f"""
        SELECT media_id, n FROM videos LEFT JOIN (VALUES {listed}) AS seen(media_id, n) USING (media_id)
        WHERE status = 'ok' AND kind = 'video' AND frame_count > 1
        ORDER BY coalesce(n, 0) DESC, coalesce(is_vfr, false) DESC, max_gap_seconds / nullif(min_gap_seconds, 0) DESC \
NULLS LAST,
            frame_count DESC, uri, media_id
        LIMIT 1""").rows
    if not rows:
        return None
    media_id, count = rows[0]
    most_variable = "no finding has examples; this video has the most variable frame rate"
    return media_id, f"among the examples of {counted(count, 'finding')}" if count else most_variable


def _frames_timeline(db: Database, media_id: str, why: str) -> FramesTimeline | None:
    known = literal(media_id)
    frames = db.arrow(f"""
        SELECT uri, packet, seconds, gap_seconds, size_bytes, is_start, is_damaged FROM frames
        WHERE media_id = {known} ORDER BY frame""").read_all()
    if not len(frames):
        return None
    gaps = frames["gap_seconds"].fill_null(np.nan).to_numpy()
    # If there are too many frames, choose those around the longest gap.
    first = max(0, min(int(np.argmax(np.nan_to_num(gaps))) - MAX_FRAMES // 2, len(gaps) - MAX_FRAMES))
    shown = frames.slice(first, MAX_FRAMES)
    packets = shown["packet"].to_numpy()
    gops = db.ask(f"SELECT first_packet, is_open FROM gops WHERE media_id = {known} AND is_open IS NOT NULL")
    opened = {packet: OPEN if is_open else CLOSED for packet, is_open in gops.rows}
    return FramesTimeline(
        uri=frames["uri"][0].as_py(),
        media_id=media_id,
        why=why,
        total=len(frames),
        first=first,
        seconds=shown["seconds"].to_numpy(),
        gap_seconds=gaps[first : first + MAX_FRAMES],
        size_bytes=shown["size_bytes"].to_numpy().astype(np.int64),
        start=np.array([opened.get(packet, NOT_KNOWN) for packet in packets.tolist()], np.int8),
        is_start=shown["is_start"].to_numpy().astype(np.bool_),
        is_damaged=shown["is_damaged"].to_numpy().astype(np.bool_),
    )


def _clips_timeline(db: Database) -> ClipsTimeline | None:
    rows = db.ask("""
        SELECT media_id, any_value(uri) AS uri, count(*) AS n FROM clips WHERE begin_seconds IS NOT NULL
        GROUP BY media_id ORDER BY n DESC, max(end_seconds - begin_seconds) DESC, uri, media_id LIMIT 1""").rows
    if not rows:
        return None
    media_id, uri, total = rows[0]
    known = literal(media_id)
    sql = f"SELECT start_seconds, duration_seconds FROM videos WHERE media_id = {known} ORDER BY media_row LIMIT 1"
    begin, length = db.ask(sql).rows[0]
    clips = db.ask(f"""
        WITH chosen AS (
            SELECT clip, clip_id, begin_seconds FROM clips WHERE media_id = {known} AND begin_seconds IS NOT NULL
            ORDER BY begin_seconds, clip LIMIT {MAX_CLIPS}
        )
        SELECT clip_id, list(seconds ORDER BY place) AS seconds
        FROM chosen JOIN (SELECT clip_id, place, seconds FROM clip_frames WHERE NOT is_padding) USING (clip_id)
        GROUP BY clip, clip_id, begin_seconds ORDER BY begin_seconds, clip""").rows
    times = [np.sort(np.array(seconds, np.float64)) for _, seconds in clips]
    times = [each[np.isfinite(each)] for each in times]
    lanes = _lanes(times, gap=length / 200)
    ends = [float(each[-1]) for each in times if len(each)]
    return ClipsTimeline(
        uri=uri,
        media_id=media_id,
        why=f"the video with the most clips ({total:,})" if total > 1 else "the video with the longest clip",
        total=total,
        begin_seconds=float(begin),
        end_seconds=max([float(begin + length), *ends]),
        clips=[
            TimelineClip(clip_id=clip_id, lane=lane, seconds=each)
            for (clip_id, _), lane, each in zip(clips, lanes, times, strict=True)
            if len(each)
        ],
    )


def _lanes(times: list[NDArray[np.float64]], *, gap: float) -> list[int]:
    """Return the row in which each clip is drawn, which is the first row with room for it.

    Args:
        times: The times of each clip's frames. The clips are in the order of their first frames.
        gap: The minimum time between two clips in a row, in seconds.
    """
    ends: list[float] = []
    lanes = []
    for seconds in times:
        begin, end = (float(seconds[0]), float(seconds[-1])) if len(seconds) else (0.0, 0.0)
        lane = next((lane for lane, until in enumerate(ends) if until + gap <= begin), len(ends))
        ends[lane : lane + 1] = [end]
        lanes.append(lane)
    return lanes
