"""Offsets, sizes and timestamps of a track's packets from the sample tables of an MP4, MOV or 3GP file.

The packets equal those that libavformat's demuxer returns. If they might differ, because tables are malformed or
demuxers interpret them in different ways, UntrustedTables is raised with the reason. Packets are not read, only box
headers and the `moov` and `moof` boxes. So the cost depends on the size of these boxes, not on the size of the media.

The functions for the tables of a `stbl` box (ISO/IEC 14496-12 8.5 to 8.7) take the payload of the moov box, the track
and the number of samples, and return one value per sample. Their cost depends on the number of entries that a table
really has, not on the number that its header claims.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.mp4.boxes import (
    MAX_BOXES,
    Span,
    TruncatedError,
    UntrustedTables,
    iter_boxes,
    read_exactly,
)
from framedex.indexer.mp4.fragments import FREE_SAMPLES, MAX_SAMPLE_BYTES, read_fragments
from framedex.indexer.mp4.tracks import (
    Layout,
    SampleEntries,
    Samples,
    Track,
    apply_edits,
    entry_table,
    read_movie,
    read_sample_entries,
    time_offset,
)
from framedex.storage.reader import Read

MAX_SAMPLES = 100_000_000
MAX_DELTA = (1 << 32) - 1 - 480_000  # largest sample duration that libavformat does not read as a negative number
MAX_COMPOSITION = 1 << 28
MAX_OFFSET = 1 << 60


def sample_sizes(data: bytes, track: Track, size_bytes: int) -> NDArray[np.int64]:
    """Return the sizes of samples in bytes, int64 [samples], from a stsz or stz2 box (8.7.3).

    Args:
        data: the payload of the moov box.
        track: the track of the samples.
        size_bytes: the size of the file.
    """
    names = [name for name in (b"stsz", b"stz2") if name in track.tables]
    if len(names) != 1:
        raise UntrustedTables(f"the track has {len(names)} boxes of sample sizes (stsz, stz2), exactly one is needed")
    start, end = track.tables[names[0]]
    if end - start < 12:
        raise UntrustedTables(f"{names[0].decode()} has only {end - start} bytes, but needs at least 12")
    constant, count = (int.from_bytes(data[at : at + 4], "big") for at in (start + 4, start + 8))
    bits = 32
    if names[0] == b"stz2":
        bits, constant = constant & 0xFF, 0
        if bits not in (4, 8, 16):
            raise UntrustedTables(f"stz2 states sizes with {bits} bits, only 4, 8 and 16 are allowed")
    if constant:
        if count * constant > size_bytes or count > max(FREE_SAMPLES, len(data)):
            raise UntrustedTables(
                f"stsz claims {count} samples of {constant} bytes, but the file has {size_bytes} bytes"
            )
        return np.full(count, constant, np.int64)
    if (count * bits + 7) // 8 > end - start - 12:
        raise UntrustedTables(f"{names[0].decode()} claims {count} samples, but its {end - start} bytes hold fewer")
    if count > MAX_SAMPLES:
        raise UntrustedTables(f"the track has {count} samples, the maximum is {MAX_SAMPLES}")
    if bits == 4:
        pairs = np.frombuffer(data, np.uint8, (count + 1) // 2, start + 12)
        return np.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1)[:count].astype(np.int64)
    sizes = np.frombuffer(data, f">u{bits // 8}", count, start + 12).astype(np.int64)
    if count and sizes.max() > MAX_SAMPLE_BYTES:
        raise UntrustedTables(f"a sample has {sizes.max()} bytes, the maximum is {MAX_SAMPLE_BYTES}")
    return sizes


def sample_offsets(data: bytes, track: Track, size: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return each sample's offset in the file and the index of its sample entry, from the chunk boxes (8.7.4, 8.7.5).

    Args:
        data: the payload of the moov box.
        track: the track of the samples.
        size: int64 [samples], the sizes of the samples in bytes.
    """
    names = [name for name in (b"stco", b"co64") if name in track.tables]
    count = len(size)
    if len(names) != 1 or b"stsc" not in track.tables:
        if not names and not count:
            return size, np.zeros(0, np.int32)
        raise UntrustedTables(
            f"a track of {count} samples needs stsc and one of stco and co64, but has {len(names)} of these two boxes"
        )
    wide = names[0] == b"co64"
    chunk_offset = entry_table(data, track.tables[names[0]], 1, names[0].decode(), ">u8" if wide else ">u4")[:, 0]
    chunks = len(chunk_offset)
    if chunks and int(chunk_offset.max()) >= MAX_OFFSET:
        raise UntrustedTables(f"a chunk has the implausible offset {chunk_offset.max()}")
    runs = entry_table(data, track.tables[b"stsc"], 3, "stsc").astype(np.int64)
    first, samples, entry = runs[:, 0], runs[:, 1], runs[:, 2]
    if not count and not chunks:
        return size, np.zeros(0, np.int32)
    if not len(runs) or first[0] != 1 or first[-1] > chunks or not (np.diff(first) > 0).all():
        raise UntrustedTables(f"stsc does not list chunks in ascending order from 1 to at most {chunks}")
    if samples.min() < 1 or entry.min() < 1 or entry.max() > 1 << 16:
        raise UntrustedTables("stsc has a chunk without samples, or an invalid sample entry number")
    run_chunks = np.diff(first, append=chunks + 1)
    if int((run_chunks * samples).sum()) != count:
        raise UntrustedTables(
            f"stsc has {int((run_chunks * samples).sum())} samples, but the table of sizes has {count}"
        )
    chunk_samples = np.repeat(samples, run_chunks)
    before = np.cumsum(size) - size
    base = chunk_offset.astype(np.int64) - before[np.cumsum(chunk_samples) - chunk_samples]
    return before + np.repeat(base, chunk_samples), np.repeat(entry - 1, run_chunks * samples).astype(np.int32)


def _expand(counts: NDArray[np.int64], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Repeat each value as often as `counts` states, and return the first `count` elements."""
    ends = np.minimum(np.cumsum(counts), count)
    return np.repeat(values, np.diff(ends, prepend=0))


def sample_durations(data: bytes, track: Track, count: int) -> NDArray[np.int64]:
    """Return the durations of samples, int64 [samples], from the stts box (8.6.1.2)."""
    if b"stts" not in track.tables:
        if count:
            raise UntrustedTables("the track has no stts box")
        return np.zeros(0, np.int64)
    runs = entry_table(data, track.tables[b"stts"], 2, "stts").astype(np.int64)
    if len(runs) and runs[:, 1].max() > MAX_DELTA:
        raise UntrustedTables(
            f"stts has a duration of {runs[:, 1].max()}, which demuxers may read as a negative number"
        )
    durations = _expand(runs[:, 0], runs[:, 1], count)
    if len(durations) < count:
        raise UntrustedTables(f"stts has the durations of only {len(durations)} of {count} samples")
    return durations


def _composition_runs(data: bytes, track: Track) -> NDArray[np.int64]:
    """Return the sample counts and composition offsets of the ctts box (8.6.1.3), int64 [runs, 2].

    Offsets are read as signed integers in both versions of the box, as QuickTime reads them.
    """
    if b"ctts" not in track.tables:
        return np.zeros((0, 2), np.int64)
    runs = entry_table(data, track.tables[b"ctts"], 2, "ctts", ">i4").astype(np.int64)
    if len(runs) and (np.abs(runs[:, 1]).max() >= MAX_COMPOSITION or runs[:, 0].min() < 1):
        raise UntrustedTables("ctts has an implausible offset, or a run of 0 samples")
    return runs


def composition_offsets(data: bytes, track: Track, count: int) -> NDArray[np.int64] | None:
    """Return the composition offsets of samples, int64 [samples], or None if the ctts box is missing or empty."""
    runs = _composition_runs(data, track)
    if not len(runs):
        return None
    offsets = _expand(runs[:, 0], runs[:, 1], count)
    if len(offsets) < count:
        raise UntrustedTables(f"ctts has the offsets of only {len(offsets)} of {count} samples")
    return offsets


def sync_samples(data: bytes, track: Track, count: int) -> NDArray[np.bool_]:
    """Return which samples are sync samples, bool [samples].

    Sync samples are listed in the stss box (8.6.2), in QuickTime's stps box, and in sample groups of type `rap `
    (10.4). Without a stss box, all samples are sync samples.
    """
    if b"stss" not in track.tables:
        return np.ones(count, np.bool_)
    sync = np.zeros(count, np.bool_)
    for name in [one for one in (b"stss", b"stps") if one in track.tables]:
        numbers = entry_table(data, track.tables[name], 1, name.decode())[:, 0].astype(np.int64)
        if name == b"stss" and not len(numbers) and count:
            raise UntrustedTables("stss lists no sample, so only the bitstream shows where decoding may start")
        if len(numbers) and (numbers[0] < 1 or not (np.diff(numbers) > 0).all()):
            raise UntrustedTables(f"{name.decode()} does not list sample numbers in ascending order from 1")
        sync[numbers[numbers <= count] - 1] = True
    for start, end in track.groups:
        if data[start + 4 : start + 8] == b"rap ":
            span = (start + 4 + 4 * (data[start] == 1), end)
            runs = entry_table(data, span, 2, "sbgp").astype(np.int64)
            if len(runs) and runs[:, 0].min() < 1:
                raise UntrustedTables("sbgp has a run of 0 samples")
            grouped = _expand(runs[:, 0], runs[:, 1], count)
            sync[: len(grouped)] |= grouped > 0
    return sync


MAX_HEADER_BYTES = 1 << 30  # maximum total size of moov and moof boxes, which are in memory at the same time
VIDEO = b"vide"  # handler type of video tracks
# Boxes that belong inside moov or moof boxes. Demuxers also read them where they are misplaced.
INNER_BOXES = {b"trak", b"mvhd", b"mvex", b"traf", b"tfhd", b"tfdt", b"trun"}
# Codecs for which libavformat's parsers drop samples without data. For the codecs in PASSED_ON, libavformat has no
# parser, so it returns samples without data as empty packets.
SWALLOWED = {b"avc1", b"avc2", b"avc3", b"avc4", b"av01", b"vp09", b"apch", b"apcn", b"apcs", b"apco", b"ap4h", b"ap4x"}
PASSED_ON = {b"hvc1", b"hev1", b"mp4v", b"s263", b"jpeg", b"rle ", b"png "}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTable:
    """The packets of a video track in decode order, with timestamps in units of the track's timescale.

    Attributes:
        track: the track.
        entries: the sample entries of the track.
        samples: the packets. `samples.time` is the DTS that the tables state, after the edit list is applied.
            The DTS that libavformat returns may differ or be missing. If `sync_stated` is false, `samples.sync` is True
            everywhere.
        pts: int64 [packets], presentation timestamps after the edit list is applied.
        sync_stated: whether the file has a stss box, a stps box or fragments.
    """

    track: Track
    entries: SampleEntries
    samples: Samples
    pts: NDArray[np.int64]
    sync_stated: bool


def read_sample_table(layout: Layout, track_id: int) -> SampleTable:
    """Return the packets of one video track, given the result of `read_layout`.

    Raises:
        UntrustedTables: if the tables are malformed, or it is uncertain how demuxers interpret them.
        TruncatedError: if a sample extends past the end of the file.
    """
    movie = layout.movie
    if track_id not in movie.tracks:
        raise UntrustedTables(f"the file has no track {track_id}, its tracks are {sorted(movie.tracks)}")
    track = movie.tracks[track_id]
    if track.handler != VIDEO:
        raise UntrustedTables(
            f"track {track_id} is not a video track, its handler is {track.handler.decode('latin-1')!r}"
        )
    entries = read_sample_entries(movie, track)
    columns = _moov_samples(movie.data, track, layout.size_bytes)
    _check_durations(columns)
    # libavformat subtracts this shift from decode times if composition offsets are negative. It ignores the last two
    # runs of the ctts box.
    shift = -int(_composition_runs(movie.data, track)[:-2, 1].min(initial=0))
    if len(columns.time) and track.edits:
        if track.rewrites:
            apply_edits(track, columns)
        else:
            columns.time = columns.time - time_offset(track)
    columns.time = columns.time - shift
    if layout.moofs:
        columns, shift = _with_fragments(columns, layout, track, shift)
    _check_media(columns, layout)
    _check_durations(columns)
    _drop_empty(columns, entries.codec_tag)
    if len(columns.entry) and not 0 <= columns.entry.min() <= columns.entry.max() < len(entries.configurations):
        raise UntrustedTables(
            f"a sample refers to sample entry {columns.entry.max() + 1}, but there are {len(entries.configurations)}"
        )
    pts = columns.time + shift
    return SampleTable(
        track=track,
        entries=entries,
        samples=columns,
        pts=pts if columns.composition is None else pts + columns.composition,
        sync_stated=bool(layout.moofs) or not track.tables.keys().isdisjoint((b"stss", b"stps")),
    )


def read_samples(layout: Layout, track: Track) -> Samples:
    """Return the samples of a track of any type, including samples in fragments. The edit list is not applied.

    Raises:
        UntrustedTables: if the tables are malformed, or it is uncertain how demuxers interpret them.
        TruncatedError: if a sample extends past the end of the file.
    """
    columns = _moov_samples(layout.movie.data, track, layout.size_bytes)
    if layout.moofs:
        if len(columns.time) and track.rewrites and track.edits:
            raise UntrustedTables("demuxers apply the edit list to samples in moov, but not to those in fragments")
        offset = time_offset(track)
        columns.time = columns.time - offset
        columns, _ = _with_fragments(columns, layout, track, 0)
        columns.time = columns.time + offset
    _check_media(columns, layout)
    return columns


def read_layout(read: Read, size_bytes: int) -> Layout:
    """Read the top-level boxes of a file, and parse its moov box.

    Args:
        read: a function that returns `length` bytes of the file from `offset` on, given (offset, length).
        size_bytes: the size of the file.

    Raises:
        UntrustedTables: if boxes are malformed.
        TruncatedError: if a box extends past the end of the file.
    """
    moov: bytes | None = None
    moofs: list[tuple[int, bytes]] = []
    media: list[Span] = []
    has_sidx, budget, boxes = False, MAX_HEADER_BYTES, 0
    for kind, start, end in iter_boxes(read, 0, size_bytes):
        boxes += 1
        if kind in (b"moov", b"moof"):
            budget -= end - start
            if budget < 0:
                raise UntrustedTables(f"the moov and moof boxes together have more than {MAX_HEADER_BYTES} bytes")
        if kind == b"moov":
            if moov is not None or moofs:
                raise UntrustedTables("the file has two moov boxes, or one after its fragments")
            moov = read_exactly(read, start, end - start)
        elif kind == b"moof":
            moofs.append((start - 8, read_exactly(read, start, end - start)))
        elif kind == b"mdat":
            media.append((start, end))
        elif kind in INNER_BOXES:
            raise UntrustedTables(f"box {kind.decode()} is misplaced at the top level, at byte {start}")
        has_sidx |= kind == b"sidx"
    if boxes >= MAX_BOXES:
        raise UntrustedTables(f"the file has {MAX_BOXES} boxes or more")
    if moov is None:
        raise UntrustedTables("the file has no moov box")
    return Layout(movie=read_movie(moov), moofs=moofs, media=media, has_sidx=has_sidx, size_bytes=size_bytes)


def _moov_samples(data: bytes, track: Track, size_bytes: int) -> Samples:
    """Return the samples that the moov box lists. The edit list is not applied."""
    size = sample_sizes(data, track, size_bytes)
    count = len(size)
    offset, entry = sample_offsets(data, track, size)
    duration = sample_durations(data, track, count)
    return Samples(
        offset=offset,
        size=size,
        time=np.cumsum(duration) - duration,
        composition=composition_offsets(data, track, count),
        duration=duration,
        sync=sync_samples(data, track, count),
        hidden=np.zeros(count, np.bool_),
        entry=entry,
    )


def _with_fragments(columns: Samples, layout: Layout, track: Track, shift: int) -> tuple[Samples, int]:
    """Return the samples of the moov and of all fragments, and the number of time units to add to PTS."""
    listed, total = len(columns.time), 0
    if b"stts" in track.tables:
        counts, steps = entry_table(layout.movie.data, track.tables[b"stts"], 2, "stts").astype(np.int64).T
        total = int(counts @ steps)
    offset = time_offset(track)
    last_time = int(columns.time[-1]) + offset if listed else None
    more, first_shift = read_fragments(layout, track, start_time=total, last_time=last_time)
    needed = more.shift_needed(len(more.time))
    if needed > shift:
        if listed:
            raise UntrustedTables("negative composition offsets in fragments shift the timestamps of samples in moov")
        if layout.has_sidx and first_shift < needed:
            raise UntrustedTables(
                "negative composition offsets in a fragment shift the timestamps of earlier fragments"
            )
        shift = needed
    if columns.composition is None:
        columns.composition = np.zeros(listed, np.int64)
    more.time = more.time - offset
    names = Samples.__slots__
    return Samples(**{name: np.concatenate([getattr(columns, name), getattr(more, name)]) for name in names}), shift


def _check_media(columns: Samples, layout: Layout) -> None:
    """Raise an error if samples are outside the file or, in a fragmented file, outside the mdat boxes."""
    if not len(columns.offset):
        return
    end = columns.offset + columns.size
    if int(end.max()) > layout.size_bytes:
        number = int(np.argmax(end > layout.size_bytes))
        raise TruncatedError(
            f"sample {number} ends at byte {end[number]}, past the end of the file at {layout.size_bytes}"
        )
    if layout.moofs:
        media = np.array(layout.media or [(0, 0)], np.int64)
        box = np.searchsorted(media[:, 0], columns.offset, side="right") - 1
        if not ((box >= 0) & (end <= media[box, 1])).all():
            raise UntrustedTables("a sample of a fragmented movie is outside the mdat boxes")


def _check_durations(columns: Samples) -> None:
    if not columns.duration[:-1].all():
        raise UntrustedTables(
            "a sample has a duration of 0, so demuxers compute other timestamps than the tables state"
        )


def _drop_empty(columns: Samples, codec_tag: bytes) -> None:
    """Drop samples without data if libavformat drops them for this codec."""
    empty = columns.size == 0
    if not empty.any() or codec_tag in PASSED_ON:
        return
    if codec_tag not in SWALLOWED:
        raise UntrustedTables(f"{codec_tag.decode('latin-1')!r} has {int(empty.sum())} samples without data")
    columns.keep(~empty)
