"""Reads an audio track's packets from the sample tables of an MP4, MOV or 3GP file, without reading a packet.

Where the tables list single PCM samples, packets are pieces of chunks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.mp4.boxes import UntrustedTables, child_boxes
from framedex.indexer.mp4.edit_list import rescale, time_offset
from framedex.indexer.mp4.sample_tables import Layout, read_samples
from framedex.indexer.mp4.tracks import Movie, Track, check_data_references

SOUND = b"soun"
ENCRYPTED = (b"enca", b"drms")
PIECE_SAMPLES = 1024  # as libavformat groups single PCM samples


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTable:
    """The packets of an audio track in decode order. Times are in 1 / timescale seconds.

    Attributes:
        offset: int64 [packets], in bytes of the file.
        size: int64 [packets], in bytes.
        time: int64 [packets], after the edit list.
        duration: int64 [packets], as stated.
        hidden: bool [packets], after the end of what the edit list shows, or wholly before its beginning.
        length: how much of the track is shown, by its samples or by its edit list, whichever is less; None in
            fragmented movies.
    """

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    time: NDArray[np.int64]
    duration: NDArray[np.int64]
    hidden: NDArray[np.bool_]
    timescale: int
    length: int | None


def read_audio_table(layout: Layout, track_id: int) -> AudioTable:
    """Return the packets of one audio track of a file that `read_layout` has read.

    Raises:
        UntrustedTables: if the tables are malformed or their meaning is not certain.
        TruncatedError: if the file ends before its samples do.
    """
    movie = layout.movie
    track = movie.tracks.get(track_id)
    if track is None or track.handler != SOUND:
        raise UntrustedTables(f"there is no audio track {track_id}")
    _check_entries(movie, track)
    samples = read_samples(layout, track)
    if samples.composition is not None and samples.composition.any():
        raise UntrustedTables("audio samples have composition offsets")
    if samples.entry.any() or not samples.size.all() or not len(samples.size):
        raise UntrustedTables("the track has no samples, some without data, or several sample entries")
    if not samples.duration[:-1].all() or samples.hidden.any():
        raise UntrustedTables("samples have no duration, or fragments overlap")
    time, hidden = _edited(track, samples.time, samples.duration)
    table = AudioTable(
        offset=samples.offset,
        size=samples.size,
        time=time,
        duration=samples.duration,
        hidden=hidden,
        timescale=track.timescale,
        length=_shown_length(track, samples.duration) if track.rewrites else None,
    )
    return _grouped(table) if (samples.duration == 1).all() else table


def _check_entries(movie: Movie, track: Track) -> None:
    if b"stsd" not in track.tables:
        raise UntrustedTables("the track has no stsd box")
    start, end = track.tables[b"stsd"]
    entries = child_boxes(movie.data, start + 8, end)
    if len(entries) != 1:
        raise UntrustedTables(f"the audio track has {len(entries)} sample entries")
    ((kind, first, last),) = entries
    if kind in ENCRYPTED:
        raise UntrustedTables("the audio track is encrypted")
    if last - first < 8:
        raise UntrustedTables("the sample entry is too short")
    check_data_references(movie.data, track, {struct.unpack_from(">H", movie.data, first + 6)[0]})


def _edited(
    track: Track, time: NDArray[np.int64], duration: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the times after the edit list is applied, and which samples it hides."""
    hidden = np.zeros(len(time), np.bool_)
    if not track.edits:
        return time, hidden
    if not track.rewrites:
        return time - time_offset(track), hidden
    *empty, edit = track.edits
    if edit.media_time < 0 or any(one.media_time != -1 for one in empty):
        raise UntrustedTables("the edit list shows several pieces of the audio")
    length = rescale(edit.duration, track)
    if not length:
        raise UntrustedTables("the edit list shows nothing of the audio")
    hidden = (time + duration <= edit.media_time) | (time >= edit.media_time + length)
    if hidden.all():
        raise UntrustedTables("the edit list shows nothing of the audio")
    return time - edit.media_time + sum(rescale(one.duration, track) for one in empty), hidden


def _shown_length(track: Track, duration: NDArray[np.int64]) -> int:
    whole = int(duration.sum())
    if not track.edits:
        return whole
    return min(whole - track.edits[-1].media_time, rescale(track.edits[-1].duration, track))


def _grouped(table: AudioTable) -> AudioTable:
    """Group samples that are contiguous in the file and in time into pieces of at most PIECE_SAMPLES."""
    breaks = (
        (np.diff(table.offset) != table.size[:-1])
        | (np.diff(table.time) != 1)
        | (np.diff(table.hidden.view(np.int8)) != 0)
    )
    first = np.append(0, np.flatnonzero(breaks) + 1)
    length = np.diff(first, append=len(table.size))
    pieces = -(-length // PIECE_SAMPLES)
    run = np.repeat(np.arange(len(first)), pieces)
    within = np.arange(len(run)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = first[run] + within * PIECE_SAMPLES
    count = np.minimum(PIECE_SAMPLES, length[run] - within * PIECE_SAMPLES)
    ends = np.cumsum(table.size)
    return AudioTable(
        offset=table.offset[start],
        size=ends[start + count - 1] - ends[start] + table.size[start],
        time=table.time[start],
        duration=count,
        hidden=table.hidden[start],
        timescale=table.timescale,
        length=table.length,
    )
