"""The tracks of a `moov` box (ISO/IEC 14496-12 8) and their edit lists. Pure functions of bytes and numpy columns.

Boxes that a demuxer might read differently (doubled, misplaced, external data) raise UntrustedTables.

Edit lists (8.6.6) are applied to a track's samples as libavformat applies them. It starts at the last sync sample that
is shown before the edit, and ends one or two sync samples after the edit. It marks samples that are shown outside of
the edit as discarded, and moves all timestamps so that the first picture shown is at the end of the empty edits. Only
one edit of a list may show media. Empty edits may precede it.
"""

import math
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.mp4.boxes import Span, UntrustedTables, child_boxes

NESTED = {b"edts": b"trak", b"mdia": b"trak", b"minf": b"mdia", b"dinf": b"minf", b"stbl": b"minf"}
PARENTS = {b"tkhd": b"trak", b"elst": b"edts", b"mdhd": b"mdia", b"dref": b"dinf"} | dict.fromkeys(
    (b"stsd", b"stts", b"ctts", b"stss", b"stps", b"stsc", b"stsz", b"stz2", b"stco", b"co64"), b"stbl"
)
RECORDS = (b"avcC", b"hvcC", b"av1C", b"vvcC", b"glbl")  # boxes whose payload is the extradata
VISUAL_HEADER_BYTES = 78  # bytes that a VisualSampleEntry (12.1.3) has before its boxes
ALIAS_WITH_PATH_BYTES = 150
MAX_TIMESCALE = (1 << 31) - 1
MPEG4_VISUAL = 0x20  # objectTypeIndication (ISO/IEC 14496-1 7.2.6.6.2)
# Demuxers split these into pictures again, whatever the tables say.
REPARSED = {b"m1v ", b"m1v1", b"mp1v", b"mpeg", b"m2v1", b"mp2v", b"vc-1", b"ovc1"}
Matrix = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One entry of an edit list (8.6.6).

    Attributes:
        duration: duration in movie time units.
        media_time: where the edit begins, in media time units. -1 stands for an empty edit.
    """

    duration: int
    media_time: int


@dataclass(frozen=True, slots=True)
class TrackDefaults:
    """Defaults of the samples of a fragment, from a `trex` box (8.8.3) or from a `tfhd` box that overrides it.

    Fields have the order of a `trex` box.
    """

    description: int
    duration: int
    size: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One `trak`: its headers, and where each sample table lies in the bytes of the moov.

    Attributes:
        duration: duration of the media, in its time units.
        rotation_degrees: counterclockwise, -180 … 180, as a frame's display matrix states it.
        rewrites: whether a demuxer rewrites the samples by the edit list. In a fragmented movie, it only shifts all
            timestamps.
    """

    track_id: int
    handler: bytes
    timescale: int
    duration: int
    movie_timescale: int
    rotation_degrees: int
    edits: tuple[Edit, ...]
    rewrites: bool
    tables: dict[bytes, Span]
    groups: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Movie:
    """A `moov`: its bytes, its tracks by id, and the fragments' defaults by track id."""

    data: bytes
    tracks: dict[int, Track]
    defaults: dict[int, TrackDefaults]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The boxes at the top level of a file.

    Attributes:
        movie: the moov box.
        moofs: (byte where the box starts, its payload) of each moof box.
        media: start and end of the payload of each mdat box.
        has_sidx: whether the file has a sidx box.
        size_bytes: size of the file.
    """

    movie: Movie
    moofs: list[tuple[int, bytes]]
    media: list[Span]
    has_sidx: bool
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class Samples:
    """Samples of a track in decode order, as tables or fragments list them.

    Attributes:
        offset: int64 [samples], where the sample lies in the file.
        size: int64 [samples], bytes.
        time: int64 [samples], decode times before any edit. Those of tables begin at 0.
        composition: int64 [samples], composition offsets. If None, there are none.
        duration: int64 [samples].
        sync: bool [samples], sync samples.
        hidden: bool [samples], samples that a demuxer marks as discarded.
        entry: int32 [samples], number of the sample entry, from 0.
    """

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    time: NDArray[np.int64]
    composition: NDArray[np.int64] | None
    duration: NDArray[np.int64]
    sync: NDArray[np.bool_]
    hidden: NDArray[np.bool_]
    entry: NDArray[np.int32]

    def keep(self, samples: slice | NDArray[np.bool_] | NDArray[np.int64]) -> None:
        """Keep only these samples, given by a slice, a mask or their numbers."""
        for name in self.__slots__:
            column = getattr(self, name)
            if column is not None:
                setattr(self, name, column[samples])

    def shift_needed(self, count: int) -> int:
        """Return by how much timestamps move up for negative composition offsets of the first `count` samples."""
        return 0 if self.composition is None else max(0, -int(self.composition[:count].min(initial=0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEntries:
    """The `stsd` of a video track: a codec tag, and the decoder configuration of each entry, b"" if it has none."""

    codec_tag: bytes
    width: int
    height: int
    configurations: list[bytes]


def read_movie(data: bytes) -> Movie:
    """Return the content of a `moov` payload. Raises UntrustedTables."""
    timescale, rewrites = 0, True
    matrix: Matrix = ()
    tracks: dict[int, Track] = {}
    defaults: dict[int, TrackDefaults] = {}
    for kind, start, end in child_boxes(data, 0, len(data)):
        if kind == b"mvhd":
            if timescale:
                raise UntrustedTables("the movie has two mvhd boxes")
            long = data[start : start + 1] == b"\1"  # version 1: times have 64 bits
            (timescale,) = _unpack(">I", data[start:end], 20 if long else 12, "mvhd")
            if not 0 < timescale <= MAX_TIMESCALE:
                raise UntrustedTables(f"the movie's timescale is {timescale}")
            matrix = _unpack(">9i", data[start:end], 48 if long else 36, "mvhd")
        elif kind == b"trak":
            if not timescale:
                raise UntrustedTables("a trak box stands before the mvhd box")
            track = _track(data, start, end, timescale, matrix, rewrites)
            rewrites = track.rewrites
            if track.track_id in tracks:
                raise UntrustedTables(f"two tracks have the id {track.track_id}")
            tracks[track.track_id] = track
        elif kind == b"mvex":
            for inner, first, last in child_boxes(data, start, end):
                if inner == b"trex":
                    track_id, *rest = _unpack(">5I", data[first:last], 4, "trex")
                    if track_id in defaults:
                        raise UntrustedTables(f"two trex boxes for track {track_id}")
                    defaults[track_id] = TrackDefaults(*rest)
        elif kind == b"cmov":
            raise UntrustedTables("the movie header is compressed (cmov)")
    return Movie(data=data, tracks=tracks, defaults=defaults)


def entry_table(data: bytes, span: Span, columns: int, name: str, dtype: str = ">u4") -> NDArray[np.generic]:
    """Return [entries, columns]: a table that starts with version, flags and a count of entries."""
    start, end = span
    (count,) = _unpack(">I", data[start:end], 4, name)
    width = np.dtype(dtype).itemsize * columns
    if count * width > end - start - 8:
        raise UntrustedTables(f"{name} claims {count} entries, its {end - start} bytes hold less")
    return np.frombuffer(data, dtype, count * columns, start + 8).reshape(count, columns)


def read_sample_entries(movie: Movie, track: Track) -> SampleEntries:
    """Return the sample entries of a video track. Raises UntrustedTables if they differ in kind or are encrypted."""
    if b"stsd" not in track.tables:
        raise UntrustedTables("the track has no stsd box")
    start, end = track.tables[b"stsd"]
    (count,) = _unpack(">I", movie.data[start:end], 4, "stsd")
    entries = child_boxes(movie.data, start + 8, end)[:count]
    if not entries or len(entries) != count:
        raise UntrustedTables(f"stsd claims {count} sample entries and holds {len(entries)}")
    tags = {kind for kind, _, _ in entries}
    tag = entries[0][0]
    if len(tags) != 1:
        raise UntrustedTables(f"the sample entries are of several kinds: {sorted(tags)}")
    if tag in (b"encv", b"drmi"):
        raise UntrustedTables("the track is encrypted")
    if tag in REPARSED:
        raise UntrustedTables(f"samples of {tag.decode('latin-1')!r} are not its pictures one by one")
    references = {struct.unpack_from(">H", movie.data, s + 6)[0] for _, s, e in entries if e - s >= 8}
    check_data_references(movie.data, track, references)
    width, height = _unpack(">HH", movie.data[slice(*entries[0][1:])], 24, "stsd")
    return SampleEntries(
        codec_tag=tag,
        width=width,
        height=height,
        configurations=[_configuration(movie.data, first, last) for _, first, last in entries],
    )


def _unpack(form: str, payload: bytes, offset: int, name: str) -> tuple[int, ...]:
    if len(payload) < offset + struct.calcsize(form):
        raise UntrustedTables(f"the {name} box has {len(payload)} bytes, too few")
    return struct.unpack_from(form, payload, offset)


def _track(data: bytes, start: int, end: int, timescale: int, matrix: Matrix, rewrites: bool) -> Track:
    tables, groups, handler = _spans(data, start, end)
    for name in (b"tkhd", b"mdhd"):
        if name not in tables:
            raise UntrustedTables(f"a track has no {name.decode()} box")
    header = data[slice(*tables[b"tkhd"])]
    long = header[:1] == b"\1"
    (track_id,) = _unpack(">I", header, 20 if long else 12, "tkhd")
    own_matrix = _unpack(">9i", header, 52 if long else 40, "tkhd")
    media = data[slice(*tables[b"mdhd"])]
    if media[:1] > b"\1":
        raise UntrustedTables(f"mdhd is of version {media[0]}")
    form, at = (">IQ", 20) if media[:1] == b"\1" else (">II", 12)
    media_timescale, duration = _unpack(form, media, at, "mdhd")
    if not 0 < media_timescale <= MAX_TIMESCALE:
        raise UntrustedTables(f"the timescale of track {track_id} is {media_timescale}")
    return Track(
        track_id=track_id,
        handler=handler,
        timescale=media_timescale,
        duration=duration,
        movie_timescale=timescale,
        rotation_degrees=_rotation(own_matrix, matrix),
        edits=_edits(data[slice(*tables[b"elst"])]) if b"elst" in tables else (),
        rewrites=rewrites and not _is_empty(data, tables),
        tables=tables,
        groups=groups,
    )


def _spans(data: bytes, start: int, end: int) -> tuple[dict[bytes, Span], tuple[Span, ...], bytes]:
    """Return where the tables of a trak lie, its sbgp boxes, and its handler type."""
    tables: dict[bytes, Span] = {}
    groups: list[Span] = []
    handler = b""
    waiting = [(b"trak", start, end)]
    while waiting:
        parent, first, last = waiting.pop()
        for kind, inner, after in child_boxes(data, first, last):
            if kind in NESTED or kind in PARENTS:
                if (NESTED.get(kind) or PARENTS[kind]) != parent:
                    raise UntrustedTables(f"box {kind.decode()} stands in {parent.decode()}")
                if kind in NESTED:
                    waiting.append((kind, inner, after))
                elif kind in tables:
                    raise UntrustedTables(f"a track has two {kind.decode()} boxes")
                else:
                    tables[kind] = (inner, after)
            elif kind == b"sbgp" and parent == b"stbl":
                groups.append((inner, after))
            elif kind == b"hdlr" and parent == b"mdia":
                if handler:
                    raise UntrustedTables("a track has two hdlr boxes")
                handler = data[inner + 8 : inner + 12]
    return tables, tuple(groups), handler


def _is_empty(data: bytes, tables: dict[bytes, Span]) -> bool:
    """Return whether a track has no sample durations in the moov, so that its samples come in fragments."""
    counts = {}
    for name, at in ((b"stts", 4), (b"stco", 4), (b"co64", 4), (b"stsz", 8), (b"stz2", 8)):
        if name in tables:
            (counts[name],) = _unpack(">I", data[slice(*tables[name])], at, name.decode())
    empty = not counts.pop(b"stts", 0)
    if empty and any(counts.values()):
        raise UntrustedTables("a track has samples or chunks, but no durations in stts")
    return empty


def _edits(payload: bytes) -> tuple[Edit, ...]:
    form = struct.Struct(">qqI" if payload[:1] == b"\1" else ">IiI")
    (count,) = _unpack(">I", payload, 4, "elst")
    if count * form.size != len(payload) - 8:
        raise UntrustedTables(f"elst claims {count} entries in {len(payload)} bytes")
    if count > 1000:
        raise UntrustedTables(f"the edit list has {count} entries")
    edits = []
    for duration, media_time, rate in form.iter_unpack(payload[8:]):
        if media_time != -1 and rate != 0x10000:
            raise UntrustedTables(f"the edit list plays at rate {rate / 0x10000}")
        if not 0 <= duration < 1 << 62 or not -1 <= media_time < 1 << 62:
            raise UntrustedTables(f"the edit list shows {duration} units from {media_time}")
        edits.append(Edit(duration=duration, media_time=media_time))
    return tuple(edits)


def _rotation(track: Matrix, movie: Matrix) -> int:
    """Return the counterclockwise rotation of the product of two matrices (6.2.2), or 0 if they state none."""
    shifts = (16, 16, 30)  # the third column of a matrix has 30 bits behind the point
    a, b, c, d = (
        sum((track[3 * row + k] * movie[3 * k + column]) >> shifts[k] for k in range(3))
        for row in range(2)
        for column in range(2)
    )
    if not math.hypot(a, c) or not math.hypot(b, d):
        return 0
    return round(-math.degrees(math.atan2(b / math.hypot(b, d), a / math.hypot(a, c))))


def check_data_references(data: bytes, track: Track, used: set[int]) -> None:
    """Raise UntrustedTables unless every sample lies in this file (8.7.2)."""
    if b"dref" not in track.tables:
        return
    start, end = track.tables[b"dref"]
    for number, (kind, first, last) in enumerate(child_boxes(data, start + 8, end), start=1):
        external = not data[first + 3 : first + 4] or not data[first + 3] & 1
        if number in used and (external or (kind == b"alis" and last - first + 8 > ALIAS_WITH_PATH_BYTES)):
            raise UntrustedTables("the samples lie in another file")


def _configuration(data: bytes, start: int, end: int) -> bytes:
    """Return the decoder configuration of a sample entry as libavformat's extradata."""
    for kind, first, last in child_boxes(data, min(start + VISUAL_HEADER_BYTES, end), end):
        if kind in RECORDS:
            return data[first:last]
        if kind == b"esds":
            return _decoder_specific(data[first:last])
    return b""


def _decoder_specific(payload: bytes) -> bytes:
    """Return the DecoderSpecificInfo of an elementary stream descriptor (ISO/IEC 14496-1 7.2.6.5)."""
    at = 4
    while at < len(payload):
        tag, at = payload[at], at + 1
        length = 0
        for _ in range(4):
            byte = payload[at] if at < len(payload) else 0
            length, at = length << 7 | byte & 0x7F, at + 1
            if not byte & 0x80:
                break
        if tag == 3:
            flags = payload[at + 2] if at + 2 < len(payload) else 0
            if flags & 0xE0:
                raise UntrustedTables("the elementary stream descriptor refers to other streams")
            at += 3
        elif tag == 4:
            if payload[at : at + 1] != bytes([MPEG4_VISUAL]):
                raise UntrustedTables("samples of this elementary stream are not its pictures one by one")
            at += 13
        elif tag == 5:
            return payload[at : at + length]
        else:
            at += length
    return b""


MAX_TIME = 1 << 60  # the sum of two such times fits int64


def time_offset(track: Track) -> int:
    """Return the time that libavformat subtracts from all timestamps of a fragmented movie."""
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


def apply_edits(track: Track, samples: Samples) -> None:
    """Apply a track's edit list to its samples, whose decode times begin at 0. Samples that are cut off are dropped.

    Raises:
        UntrustedTables: if the edit list is not covered.
    """
    time, composition, sync = samples.time, samples.composition, samples.sync
    # Only the last edit may show media; empty edits may stand before it.
    shown = [number for number, edit in enumerate(track.edits) if edit.media_time != -1]
    if shown != [len(track.edits) - 1]:
        raise UntrustedTables(f"the edit list shows {len(shown)} pieces of the media in {len(track.edits)} entries")
    *before, edit = track.edits
    empty = sum(rescale(each.duration, track) for each in before)
    if empty >= MAX_TIME:
        raise UntrustedTables("the edit list starts too late")
    length = rescale(edit.duration, track)
    end_time = edit.media_time + length
    if end_time >= MAX_TIME or length == 0:
        raise UntrustedTables(f"the edit shows {length} units from {edit.media_time}")
    shown_at = time if composition is None else time + composition
    first = _first_sample(edit.media_time, time, shown_at, sync, composition is not None)
    duration = np.diff(time[first:], append=time[-1] + length)
    shown_at = shown_at[first:]
    after = np.flatnonzero(sync[first:] & (shown_at + duration >= end_time))
    spare = 0 if composition is None else 1  # one more sync sample: pictures behind it may be shown before it
    last = int(after[spare]) + 1 if len(after) > spare else len(shown_at)
    shown_at = shown_at[:last]
    hidden = (shown_at < edit.media_time) | (shown_at >= end_time)
    if hidden.all():
        raise UntrustedTables("the edit list shows no sample")
    if first and samples.entry.any():
        raise UntrustedTables("the edit list cuts a track of several sample entries")
    moved = time[first : first + last] - time[first + int(np.argmin(hidden))] + empty
    presented = (moved if composition is None else moved + composition[first : first + last])[~hidden]
    # As in libavformat, the search for the earliest time restarts behind each negative time.
    begin = np.flatnonzero(np.append(-1, presented[:-1]) < 0)[-1]
    samples.keep(slice(first, first + last))
    samples.time, samples.hidden = moved - max(int(presented[begin:].min()) - empty, 0), hidden


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
