"""Edit lists (ISO/IEC 14496-12 8.6.6), applied to a track's samples as libavformat does it. Pure numpy.

libavformat starts at the last sync sample that is shown before the edit, and ends one or two sync samples after the
edit. It marks samples that are shown outside of the edit as discarded, and moves all timestamps so that the first
picture shown is at the end of the empty edits. An edit list may have only one edit that shows media. Empty edits may
precede it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.mp4.boxes import UntrustedTables
from framedex.indexer.mp4.tracks import Edit, Track

MAX_TIME = 1 << 60  # sums of two of these are still int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """The samples that remain after the edit list was applied.

    Attributes:
        first: the first of them.
        end: the sample after the last of them.
        time: int64 [remaining samples], decode times before the shift.
        hidden: bool [remaining samples], discarded.
    """

    first: int
    end: int
    time: NDArray[np.int64]
    hidden: NDArray[np.bool_]


def time_offset(track: Track) -> int:
    """Return what libavformat subtracts from all timestamps if it does not rewrite samples (fragmented movies)."""
    edits = list(track.edits)
    empty = rescale(edits.pop(0).duration, track) if edits and edits[0].media_time == -1 else 0
    if len(edits) > 1 or any(edit.media_time < 0 for edit in edits):
        raise UntrustedTables(f"the edit list has {len(track.edits)} entries, in a fragmented movie")
    return (edits[0].media_time if edits else 0) - empty


def rescale(duration: int, track: Track) -> int:
    """Convert a duration from movie time units to the track's time units, rounded half up."""
    scaled = (duration * track.timescale + track.movie_timescale // 2) // track.movie_timescale
    if scaled >= MAX_TIME:
        raise UntrustedTables(f"an edit lasts {duration} units of 1/{track.movie_timescale} s")
    return scaled


def rewrite(
    track: Track,
    time: NDArray[np.int64],
    composition: NDArray[np.int64] | None,
    sync: NDArray[np.bool_],
    shift: int,
) -> Edited:
    """Apply the edit list to a track's samples.

    Args:
        track: the track, with its edit list.
        time: int64 [samples], decode times that begin at 0.
        composition: int64 [samples], offsets from ctts, None without ctts.
        sync: bool [samples], sync samples.
        shift: by how much all decode times are moved down so that no offset is negative.

    Raises:
        UntrustedTables: if the edit list is not covered.
    """
    edit, empty = _single_edit(track)
    length = rescale(edit.duration, track)
    end_time = edit.media_time + length
    if end_time >= MAX_TIME or length == 0:
        raise UntrustedTables(f"the edit shows {length} units from {edit.media_time}")
    shown_at = time if composition is None else time + composition
    first = _first_sample(edit.media_time, time, shown_at, sync, composition is not None)
    duration = np.diff(time[first:], append=time[-1] + length)
    shown_at = shown_at[first:]
    after = np.flatnonzero(sync[first:] & (shown_at + duration >= end_time))
    spare = 0 if composition is None else 1  # one more sync sample, for pictures that follow it and are shown before it
    last = int(after[spare]) + 1 if len(after) > spare else len(shown_at)
    shown_at = shown_at[:last]
    hidden = (shown_at < edit.media_time) | (shown_at >= end_time)
    if hidden.all():
        raise UntrustedTables("the edit list shows no sample")
    moved = time[first : first + last] - time[first + int(np.argmin(hidden))] + empty
    earliest = moved if composition is None else moved + composition[first : first + last]
    late = _earliest(earliest[~hidden]) - empty
    return Edited(first=first, end=first + last, time=moved - max(late, 0), hidden=hidden)


def _single_edit(track: Track) -> tuple[Edit, int]:
    """Return the only edit that shows media, and the duration in media time units of the empty edits before it."""
    shown = [number for number, edit in enumerate(track.edits) if edit.media_time != -1]
    if shown != [len(track.edits) - 1]:
        raise UntrustedTables(f"the edit list shows {len(shown)} pieces of the media in {len(track.edits)} entries")
    empty = sum(rescale(edit.duration, track) for edit in track.edits[:-1])
    if empty >= MAX_TIME:
        raise UntrustedTables("the edit list starts too late")
    return track.edits[-1], empty


def _first_sample(
    media_time: int, time: NDArray[np.int64], shown_at: NDArray[np.int64], sync: NDArray[np.bool_], composed: bool
) -> int:
    """Return the sample at which decoding starts: the last sync sample before the edit's start, or the first sample."""
    before = int(np.searchsorted(time, media_time, side="right"))
    if before > 1 and time[before - 1] == time[before - 2]:
        raise UntrustedTables(f"several samples are decoded at {time[before - 1]}, where the edit begins")
    usable = sync[:before] & (shown_at[:before] <= media_time) if composed else sync[:before]
    starts = np.flatnonzero(usable)
    if len(starts):
        return int(starts[-1])
    return 0 if composed else max(before - 1, 0)


def _earliest(shown_at: NDArray[np.int64]) -> int:
    """Return the earliest time as libavformat finds it: after a negative time, the search restarts at the next one."""
    negative = np.flatnonzero(shown_at < 0)
    if len(negative) and negative[-1] == len(shown_at) - 1:
        return int(shown_at[-1])
    return int(shown_at[negative[-1] + 1 if len(negative) else 0 :].min())
