"""The tracks of a `moov` box (ISO/IEC 14496-12 8) and their edit lists.

All functions are pure functions of bytes and numpy columns. UntrustedTables is raised for boxes that demuxers might
interpret in different ways, such as duplicate boxes, misplaced boxes, and boxes that refer to data in other files.

Edit lists (8.6.6) are applied to a track's samples as libavformat applies them. libavformat returns a range of samples:
from the last sync sample that is presented at or before the beginning of the edit, to the first or second sync sample
after the edit. Samples that are presented outside the edit are marked as discarded. All timestamps are shifted, so that
the first presented picture has the time at which the empty edits end. Only one edit of a list may present media. Empty
edits may precede it.
"""

import math
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.mp4.boxes import Span, UntrustedTables, child_boxes

# Maps from a box type to the type of its only valid parent. The boxes in NESTED contain other boxes, the boxes in
# PARENTS contain fields.
NESTED = {b"edts": b"trak", b"mdia": b"trak", b"minf": b"mdia", b"dinf": b"minf", b"stbl": b"minf"}
PARENTS = {b"tkhd": b"trak", b"elst": b"edts", b"mdhd": b"mdia", b"dref": b"dinf"} | dict.fromkeys(
    (b"stsd", b"stts", b"ctts", b"stss", b"stps", b"stsc", b"stsz", b"stz2", b"stco", b"co64"), b"stbl"
)

RECORDS = (b"avcC", b"hvcC", b"av1C", b"vvcC", b"glbl")  # boxes whose payload is libavformat's extradata
VISUAL_HEADER_BYTES = 78  # size of the fields of a VisualSampleEntry (12.1.3) that precede its child boxes
ALIAS_WITH_PATH_BYTES = 150  # a QuickTime `alis` box with more bytes than this holds a path to another file
MAX_TIMESCALE = (1 << 31) - 1
MPEG4_VISUAL = 0x20  # objectTypeIndication of MPEG-4 Visual (ISO/IEC 14496-1 7.2.6.6.2)
# Codecs whose samples demuxers split into pictures by the bitstream, regardless of the sample tables.
REPARSED = {b"m1v ", b"m1v1", b"mp1v", b"mpeg", b"m2v1", b"mp2v", b"vc-1", b"ovc1"}
Matrix = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One entry of an edit list (8.6.6).

    Attributes:
        duration: the duration of the edit, in the time units of the movie.
        media_time: the time in the media at which the edit begins, in the time units of the track. -1 means an empty
            edit, which presents nothing.
    """

    duration: int
    media_time: int


@dataclass(frozen=True, slots=True)
class TrackDefaults:
    """Default values for the samples of a fragment, from a `trex` box (8.8.3) or a `tfhd` box that overrides it.

    The fields are in the order of a `trex` box.
    """

    description: int
    duration: int
    size: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """The content of one `trak` box: its headers, and the positions of its sample tables in the payload of the moov.

    Attributes:
        handler: the handler type, such as `vide`.
        timescale: the number of the track's time units per second.
        duration: the duration of the media, in the time units of the track.
        movie_timescale: the number of the movie's time units per second, which edits use.
        rotation_degrees: the counterclockwise rotation, -180 … 180, as a frame's display matrix states it.
        is_mirrored: whether the display matrix also mirrors pictures.
        rewrites: whether demuxers drop samples, or mark them as discarded, according to the edit list. If false, as in
            fragmented movies, demuxers only shift all timestamps.
    """

    track_id: int
    handler: bytes
    timescale: int
    duration: int
    movie_timescale: int
    rotation_degrees: int
    is_mirrored: bool
    edits: tuple[Edit, ...]
    rewrites: bool
    tables: dict[bytes, Span]
    groups: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Movie:
    """The content of a `moov` box: its payload, and the tracks and the defaults of fragments by track ID."""

    data: bytes
    tracks: dict[int, Track]
    defaults: dict[int, TrackDefaults]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The boxes at the top level of a file.

    Attributes:
        movie: the content of the moov box.
        moofs: (offset of the box in the file, payload of the box) for each moof box.
        media: (start, end) of the payload of each mdat box.
        has_sidx: whether the file has a sidx box.
        size_bytes: the size of the file.
    """

    movie: Movie
    moofs: list[tuple[int, bytes]]
    media: list[Span]
    has_sidx: bool
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class Samples:
    """Samples of a track in decode order, as sample tables or fragments list them.

    Attributes:
        offset: int64 [samples], offset of the sample in the file.
        size: int64 [samples], size of the sample in bytes.
        time: int64 [samples], decode times. Before the edit list is applied, decode times of sample tables begin at 0.
        composition: int64 [samples], composition offsets. None if the track has no composition offsets.
        duration: int64 [samples], durations of the samples in the time units of the track.
        sync: bool [samples], whether the sample is a sync sample.
        hidden: bool [samples], whether demuxers mark the sample as discarded.
        entry: int32 [samples], index of the sample entry, from 0.
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
        """Keep only the samples that a slice, a mask or an array of indices selects."""
        for name in self.__slots__:
            column = getattr(self, name)
            if column is not None:
                setattr(self, name, column[samples])

    def shift_needed(self, count: int) -> int:
        """Return the number of time units to add to PTS so that PTS is not below DTS in the first `count` samples."""
        return 0 if self.composition is None else max(0, -int(self.composition[:count].min(initial=0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEntries:
    """The content of the `stsd` box of a video track.

    Attributes:
        codec_tag: the four-character code that all sample entries have.
        width: the width in pixels that the first sample entry states.
        height: the height in pixels that the first sample entry states.
        configurations: the decoder configuration of each sample entry, b"" for an entry without one.
    """

    codec_tag: bytes
    width: int
    height: int
    configurations: list[bytes]


def read_movie(data: bytes) -> Movie:
    """Parse the payload of a `moov` box. Raises UntrustedTables."""
    timescale, rewrites = 0, True
    matrix: Matrix = ()
    tracks: dict[int, Track] = {}
    defaults: dict[int, TrackDefaults] = {}
    for kind, start, end in child_boxes(data, 0, len(data)):
        if kind == b"mvhd":
            if timescale:
                raise UntrustedTables("the moov has two mvhd boxes")
            long = data[start : start + 1] == b"\1"  # version 1: times have 64 bits
            (timescale,) = _unpack(">I", data[start:end], 20 if long else 12, "mvhd")
            if not 0 < timescale <= MAX_TIMESCALE:
                raise UntrustedTables(f"mvhd states the timescale {timescale}, which is out of range")
            matrix = _unpack(">9i", data[start:end], 48 if long else 36, "mvhd")
        elif kind == b"trak":
            if not timescale:
                raise UntrustedTables("a trak box precedes the mvhd box")
            track = _track(data, start, end, timescale, matrix, rewrites)
            rewrites = track.rewrites
            if track.track_id in tracks:
                raise UntrustedTables(f"two tracks have the track ID {track.track_id}")
            tracks[track.track_id] = track
        elif kind == b"mvex":
            for inner, first, last in child_boxes(data, start, end):
                if inner == b"trex":
                    track_id, *rest = _unpack(">5I", data[first:last], 4, "trex")
                    if track_id in defaults:
                        raise UntrustedTables(f"track {track_id} has two trex boxes")
                    defaults[track_id] = TrackDefaults(*rest)
        elif kind == b"cmov":
            raise UntrustedTables("the movie header is compressed (cmov)")
    return Movie(data=data, tracks=tracks, defaults=defaults)


def entry_table(data: bytes, span: Span, columns: int, name: str, dtype: str = ">u4") -> NDArray[np.generic]:
    """Return the entries of a table box, [entries, columns].

    The box begins with a version, flags and the number of entries.

    Args:
        data: the payload of the moov box.
        span: start and end of the payload of the table box in `data`.
        columns: the number of fields of each entry.
        name: the type of the box, for error messages.
        dtype: the type of each field.
    """
    start, end = span
    (count,) = _unpack(">I", data[start:end], 4, name)
    if count * np.dtype(dtype).itemsize * columns > end - start - 8:
        raise UntrustedTables(f"{name} claims {count} entries, but its {end - start} bytes hold fewer")
    return np.frombuffer(data, dtype, count * columns, start + 8).reshape(count, columns)


def read_sample_entries(movie: Movie, track: Track) -> SampleEntries:
    """Return the sample entries of a video track.

    Raises:
        UntrustedTables: if the `stsd` box is malformed, its entries have different types, the track is encrypted, or
            samples may not be single pictures.
    """
    if b"stsd" not in track.tables:
        raise UntrustedTables("the track has no stsd box")
    start, end = track.tables[b"stsd"]
    (count,) = _unpack(">I", movie.data[start:end], 4, "stsd")
    entries = child_boxes(movie.data, start + 8, end)[:count]
    if not entries or len(entries) != count:
        raise UntrustedTables(f"stsd claims {count} sample entries, but holds {len(entries)}")
    tags = {kind for kind, _, _ in entries}
    tag = entries[0][0]
    if len(tags) != 1:
        raise UntrustedTables(f"the sample entries have different types: {sorted(tags)}")
    if tag in (b"encv", b"drmi"):
        raise UntrustedTables("the track is encrypted")
    if tag in REPARSED:
        raise UntrustedTables(f"a sample of codec {tag.decode('latin-1')!r} need not be one whole picture")
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
        raise UntrustedTables(f"the {name} box has only {len(payload)} bytes, fewer than its fields need")
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
        raise UntrustedTables(f"the mdhd box has the unknown version {media[0]}")
    form, at = (">IQ", 20) if media[:1] == b"\1" else (">II", 12)
    media_timescale, duration = _unpack(form, media, at, "mdhd")
    if not 0 < media_timescale <= MAX_TIMESCALE:
        raise UntrustedTables(f"the timescale of track {track_id} is {media_timescale}, which is out of range")
    rotation_degrees, is_mirrored = _display(own_matrix, matrix)
    return Track(
        track_id=track_id,
        handler=handler,
        timescale=media_timescale,
        duration=duration,
        movie_timescale=timescale,
        rotation_degrees=rotation_degrees,
        is_mirrored=is_mirrored,
        edits=_edits(data[slice(*tables[b"elst"])]) if b"elst" in tables else (),
        rewrites=rewrites and not _is_empty(data, tables),
        tables=tables,
        groups=groups,
    )


def _spans(data: bytes, start: int, end: int) -> tuple[dict[bytes, Span], tuple[Span, ...], bytes]:
    """Return the spans of a trak's tables by box type, the spans of its sbgp boxes, and its handler type."""
    tables: dict[bytes, Span] = {}
    groups: list[Span] = []
    handler = b""
    waiting = [(b"trak", start, end)]
    while waiting:
        parent, first, last = waiting.pop()
        for kind, inner, after in child_boxes(data, first, last):
            if kind in NESTED or kind in PARENTS:
                if (NESTED.get(kind) or PARENTS[kind]) != parent:
                    raise UntrustedTables(f"box {kind.decode()} is misplaced in {parent.decode()}")
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
    """Return whether the moov lists no sample durations for a track, because all its samples are in fragments."""
    counts = {}
    for name, at in ((b"stts", 4), (b"stco", 4), (b"co64", 4), (b"stsz", 8), (b"stz2", 8)):
        if name in tables:
            (counts[name],) = _unpack(">I", data[slice(*tables[name])], at, name.decode())
    empty = not counts.pop(b"stts", 0)
    if empty and any(counts.values()):
        raise UntrustedTables("a track has samples or chunks, but its stts lists no durations")
    return empty


def _edits(payload: bytes) -> tuple[Edit, ...]:
    form = struct.Struct(">qqI" if payload[:1] == b"\1" else ">IiI")
    (count,) = _unpack(">I", payload, 4, "elst")
    if count * form.size != len(payload) - 8:
        raise UntrustedTables(f"elst claims {count} entries, which does not agree with its {len(payload)} bytes")
    if count > 1000:
        raise UntrustedTables(f"the edit list has {count} entries, the maximum is 1000")
    edits = []
    for duration, media_time, rate in form.iter_unpack(payload[8:]):
        if media_time != -1 and rate != 0x10000:
            raise UntrustedTables(f"an edit has the playback rate {rate / 0x10000}, only 1 is supported")
        if not 0 <= duration < 1 << 62 or not -1 <= media_time < 1 << 62:
            raise UntrustedTables(f"an edit has the invalid duration {duration} or media time {media_time}")
        edits.append(Edit(duration=duration, media_time=media_time))
    return tuple(edits)


def _display(track: Matrix, movie: Matrix) -> tuple[int, bool]:
    """Return the effect on pictures of the product of two transformation matrices (6.2.2).

    Returns:
        The counterclockwise rotation in degrees, and whether the product also mirrors pictures. (0, False) if it does
        not rotate them, or is degenerate.
    """
    shifts = (16, 16, 30)  # numbers of fractional bits: the third column of a matrix has 30, the others have 16
    a, b, c, d = (
        sum((track[3 * row + k] * movie[3 * k + column]) >> shifts[k] for k in range(3))
        for row in range(2)
        for column in range(2)
    )
    if not math.hypot(a, c) or not math.hypot(b, d):
        return 0, False
    degrees = round(-math.degrees(math.atan2(b / math.hypot(b, d), a / math.hypot(a, c))))
    return degrees, degrees != 0 and a * d - b * c < 0


def check_data_references(data: bytes, track: Track, used: set[int]) -> None:
    """Raise UntrustedTables if samples may be in another file (8.7.2).

    Args:
        data: the payload of the moov box.
        track: the track of the samples.
        used: the data reference indices of the track's sample entries, from 1.
    """
    if b"dref" not in track.tables:
        return
    start, end = track.tables[b"dref"]
    for number, (kind, first, last) in enumerate(child_boxes(data, start + 8, end), start=1):
        external = not data[first + 3 : first + 4] or not data[first + 3] & 1
        if number in used and (external or (kind == b"alis" and last - first + 8 > ALIAS_WITH_PATH_BYTES)):
            raise UntrustedTables("the samples are in another file")


def _configuration(data: bytes, start: int, end: int) -> bytes:
    """Return the decoder configuration of a sample entry, in the form of libavformat's extradata."""
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
                raise UntrustedTables("a sample of this elementary stream need not be one whole picture")
            at += 13
        elif tag == 5:
            return payload[at : at + length]
        else:
            at += length
    return b""


MAX_TIME = 1 << 60  # exclusive upper limit of times; the sum of two such times fits into int64


def time_offset(track: Track) -> int:
    """Return the time that libavformat subtracts from all timestamps of a track of a fragmented movie."""
    edits = list(track.edits)
    empty = rescale(edits.pop(0).duration, track) if edits and edits[0].media_time == -1 else 0
    if len(edits) > 1 or any(edit.media_time < 0 for edit in edits):
        raise UntrustedTables(
            f"the edit list of a fragmented movie has {len(track.edits)} entries; "
            "at most one empty entry and one other entry are allowed"
        )
    return (edits[0].media_time if edits else 0) - empty


def rescale(duration: int, track: Track) -> int:
    """Convert a duration from the time units of the movie to those of the track, rounding half up."""
    scaled = (duration * track.timescale + track.movie_timescale // 2) // track.movie_timescale
    if scaled >= MAX_TIME:
        raise UntrustedTables(f"an edit has an implausible duration, {duration} units of 1/{track.movie_timescale} s")
    return scaled


def apply_edits(track: Track, samples: Samples) -> None:
    """Apply a track's edit list to its samples, in place.

    Decode times must begin at 0. Samples that libavformat does not return are dropped.

    Raises:
        UntrustedTables: if the edit list is not supported.
    """
    time, composition, sync = samples.time, samples.composition, samples.sync
    # Only the last edit may present media. All edits before it must be empty.
    shown = [number for number, edit in enumerate(track.edits) if edit.media_time != -1]
    if shown != [len(track.edits) - 1]:
        raise UntrustedTables(
            f"the last edit, and only this one, has to present media; of {len(track.edits)} edits, {len(shown)} do"
        )
    *before, edit = track.edits
    empty = sum(rescale(each.duration, track) for each in before)
    if empty >= MAX_TIME:
        raise UntrustedTables("the empty edits have an implausible total duration")
    length = rescale(edit.duration, track)
    end_time = edit.media_time + length
    if end_time >= MAX_TIME or length == 0:
        raise UntrustedTables(f"an edit presents {length} units from time {edit.media_time}, which is out of range")
    shown_at = time if composition is None else time + composition
    first = _first_sample(edit.media_time, time, shown_at, sync, composition is not None)
    duration = np.diff(time[first:], append=time[-1] + length)
    shown_at = shown_at[first:]
    after = np.flatnonzero(sync[first:] & (shown_at + duration >= end_time))
    # With composition offsets, one more sync sample is kept, because pictures that follow a sync sample may be
    # presented before it.
    spare = 0 if composition is None else 1
    last = int(after[spare]) + 1 if len(after) > spare else len(shown_at)
    shown_at = shown_at[:last]
    hidden = (shown_at < edit.media_time) | (shown_at >= end_time)
    if hidden.all():
        raise UntrustedTables("the edit list presents no sample")
    if first and samples.entry.any():
        raise UntrustedTables("the edit list cuts off the beginning of a track that has several sample entries")
    moved = time[first : first + last] - time[first + int(np.argmin(hidden))] + empty
    presented = (moved if composition is None else moved + composition[first : first + last])[~hidden]
    # As in libavformat, the search for the earliest time restarts after each negative time.
    begin = np.flatnonzero(np.append(-1, presented[:-1]) < 0)[-1]
    samples.keep(slice(first, first + last))
    samples.time, samples.hidden = moved - max(int(presented[begin:].min()) - empty, 0), hidden


def _first_sample(
    media_time: int, time: NDArray[np.int64], shown_at: NDArray[np.int64], sync: NDArray[np.bool_], composed: bool
) -> int:
    """Return the index of the sample at which decoding starts.

    This is the last sync sample that is presented at or before the beginning of the edit. If there is none, the result
    depends on composition offsets. With them, it is sample 0. Without them, it is the last sample that is decoded at or
    before the beginning of the edit.

    Args:
        media_time: the media time at which the edit begins.
        time: int64 [samples], decode times.
        shown_at: int64 [samples], presentation times.
        sync: bool [samples], whether the sample is a sync sample.
        composed: whether the track has composition offsets.
    """
    before = int(np.searchsorted(time, media_time, side="right"))
    if before > 1 and time[before - 1] == time[before - 2]:
        raise UntrustedTables(f"the edit begins at several samples that have the same decode time, {time[before - 1]}")
    usable = sync[:before] & (shown_at[:before] <= media_time) if composed else sync[:before]
    starts = np.flatnonzero(usable)
    if len(starts):
        return int(starts[-1])
    return 0 if composed else max(before - 1, 0)
