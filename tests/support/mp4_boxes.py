"""Random but well-formed MP4 files, box by box: odd sample tables, edit lists and fragments that no muxer writes."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

FILE_TYPE = b"isom" + struct.pack(">I", 0x200) + b"isomiso4"
UNITY_MATRIX = struct.pack(">9I", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
VISUAL_ENTRY = struct.pack(">6xH16xHHIIIH32sHh", 1, 64, 48, 0x480000, 0x480000, 0, 1, b"", 24, -1)


def box(kind: bytes, *payloads: bytes) -> bytes:
    """Return a box (ISO/IEC 14496-12, 4.2)."""
    return struct.pack(">I", 8 + sum(map(len, payloads))) + kind + b"".join(payloads)


def full_box(kind: bytes, version: int, flags: int, *payloads: bytes) -> bytes:
    """Return a box that begins with a version and flags."""
    return box(kind, bytes([version]) + flags.to_bytes(3, "big"), *payloads)


@dataclass(kw_only=True)
class TrackTables:
    """The contents of one track's tables; `stts` and `ctts` are runs of (count, value)."""

    sizes: list[int]
    stts: list[tuple[int, int]]
    ctts: list[tuple[int, int]] = field(default_factory=list)
    stss: list[int] | None = None
    chunks: list[int] = field(default_factory=list)  # samples per chunk
    descriptions: list[int] = field(default_factory=list)  # sample entry of each chunk, from 1
    edits: list[tuple[int, int]] = field(default_factory=list)  # (duration, media_time)
    wide: bool = False
    compact: bool = False
    extra: bytes = b""


def runs(values: list[int]) -> list[tuple[int, int]]:
    """Return the run lengths of the values, as (count, value)."""
    found: list[tuple[int, int]] = []
    for value in values:
        if found and found[-1][1] == value:
            found[-1] = (found[-1][0] + 1, value)
        else:
            found.append((1, value))
    return found


def table(kind: bytes, form: str, rows: Sequence[tuple[int, ...]], version: int = 0) -> bytes:
    """Return a full box that contains the number of rows and the rows."""
    return full_box(kind, version, 0, struct.pack(">I", len(rows)), *(struct.pack(form, *row) for row in rows))


def movie(
    tracks: list[TrackTables],
    *,
    tag: bytes = b"rle ",
    configuration: bytes = b"",
    more: bytes = b"",
    timescale: int = 600,
    movie_timescale: int = 1000,
    gap: int = 3,
) -> bytes:
    """Return a file of ftyp, moov and mdat, with the chunks of all tracks one after another.

    Args:
        tag: the type of the sample entry.
        configuration: boxes at the end of the sample entry.
        more: boxes at the end of the moov.
        gap: the number of bytes after each chunk.
    """
    head = box(b"ftyp", FILE_TYPE)

    def moov(first: int) -> bytes:
        traks, at = [], first
        for number, tables in enumerate(tracks, start=1):
            offsets, sample = [], 0
            for samples in tables.chunks:
                offsets.append(at)
                at += sum(tables.sizes[sample : sample + samples]) + gap
                sample += samples
            traks.append(trak(number, tables, offsets, box(tag, VISUAL_ENTRY, configuration), timescale))
        return box(b"moov", movie_header(movie_timescale), *traks, more)

    start = len(head) + len(moov(0)) + 8
    payload = sum(sum(tables.sizes) + gap * len(tables.chunks) for tables in tracks)
    return head + moov(start) + box(b"mdat", bytes(n % 251 for n in range(payload)))


def movie_header(timescale: int) -> bytes:
    """Return an mvhd box."""
    return full_box(
        b"mvhd",
        0,
        0,
        struct.pack(">IIIIIH10x", 0, 0, timescale, 0, 0x10000, 0x100),
        UNITY_MATRIX,
        bytes(24),
        b"\0\0\0\2",
    )


def trak(number: int, tables: TrackTables, offsets: list[int], entry: bytes, timescale: int) -> bytes:
    """Return the trak box of a video track."""
    header = (
        struct.pack(">IIIII8xHHHH", 0, 0, number, 0, 0, 0, 0, 0, 0)
        + UNITY_MATRIX
        + struct.pack(">II", 64 << 16, 48 << 16)
    )
    descriptions = tables.descriptions or [1] * len(tables.chunks)
    stsc = [
        (chunk + 1, samples, entry)
        for chunk, (samples, entry) in enumerate(zip(tables.chunks, descriptions, strict=True))
        if not chunk or (samples, entry) != (tables.chunks[chunk - 1], descriptions[chunk - 1])
    ]
    if tables.compact:
        sizes = full_box(b"stz2", 0, 0, struct.pack(">II", 8, len(tables.sizes)), bytes(tables.sizes))
    elif len(set(tables.sizes)) == 1 and tables.sizes[0]:
        sizes = full_box(b"stsz", 0, 0, struct.pack(">II", tables.sizes[0], len(tables.sizes)))
    else:
        sizes = full_box(b"stsz", 0, 0, struct.pack(f">II{len(tables.sizes)}I", 0, len(tables.sizes), *tables.sizes))
    stbl = [
        full_box(b"stsd", 0, 0, struct.pack(">I", max([1, *descriptions])), entry * max([1, *descriptions])),
        table(b"stts", ">II", list(tables.stts)),
        table(b"stsc", ">III", stsc),
        sizes,
        table(b"co64" if tables.wide else b"stco", ">Q" if tables.wide else ">I", [(offset,) for offset in offsets]),
        tables.extra,
    ]
    if tables.ctts:
        stbl.append(table(b"ctts", ">Ii", list(tables.ctts), version=len(tables.ctts) % 2))
    if tables.stss is not None:
        stbl.append(table(b"stss", ">I", [(sample,) for sample in tables.stss]))
    edits = [(duration, media_time, 0x10000) for duration, media_time in tables.edits]
    media = box(
        b"mdia",
        full_box(b"mdhd", 0, 0, struct.pack(">IIIIHH", 0, 0, timescale, 0, 0x55C4, 0)),
        full_box(b"hdlr", 0, 0, struct.pack(">I4s12xx", 0, b"vide")),
        box(
            b"minf",
            full_box(b"vmhd", 0, 1, bytes(8)),
            box(b"dinf", full_box(b"dref", 0, 0, struct.pack(">I", 1), full_box(b"url ", 0, 1))),
            box(b"stbl", *stbl),
        ),
    )
    return box(
        b"trak",
        full_box(b"tkhd", 0, 3, header),
        *([box(b"edts", table(b"elst", ">IiI", edits))] if edits else []),
        media,
    )


def random_tables(seed: int) -> TrackTables:
    """Return tables drawn from a seed; each oddity appears now and then."""
    draw = random.Random(seed)
    count = draw.choice([1, 2, 3, 5, 17, 40])
    zero = draw.random() < 0.1
    sizes = [draw.choice([0, 9]) if zero else draw.randrange(1, 200) for _ in range(count)]
    if draw.random() < 0.2:
        sizes = [draw.randrange(1, 50)] * count
    durations = draw.choice([[20], [20], [20, 40], [0, 20, 40], [1, 20, 5000], [0, 1]])
    stts = runs([draw.choice(durations) for _ in range(count)])
    if draw.random() < 0.1:
        stts[-1] = (stts[-1][0] + 7, stts[-1][1])
    offsets = draw.choice([[0], [0, 20], [20, 40, 80], [-40, 0, 40], [-20, 0], [7, -13, 20], [-500, 20]])
    ctts = runs([draw.choice(offsets) for _ in range(count)]) if draw.random() < 0.7 else []
    stss = None
    if draw.random() < 0.8:
        stss = sorted(draw.sample(range(1, count + 1), draw.randrange(1, count + 1)))
        if draw.random() < 0.7:
            stss = sorted({1, *stss[:: draw.choice([1, 3])]})
    chunks: list[int] = []
    while sum(chunks) < count:
        chunks.append(min(draw.choice([1, 2, 2, 5]), count - sum(chunks)))
    edits = []
    if draw.random() < 0.7:
        edits = [(draw.choice([0, 30, 333, 1000]), -1) for _ in range(draw.choice([0, 0, 1, 2]))]
        edits.append(
            (draw.choice([1, 33, 100, 333, 1000, 100_000]), draw.choice([0, 1, 20, 40, 41, 100, 199, 400, 900]))
        )
    return TrackTables(
        sizes=sizes, stts=stts, ctts=ctts, stss=stss, chunks=chunks, edits=edits,
        wide=draw.random() < 0.2, compact=draw.random() < 0.2,
        extra=full_box(b"sdtp", 0, 0, bytes(count)) if draw.random() < 0.1 else b"",
    )  # fmt: skip


def random_fragments(seed: int, *, tag: bytes = b"rle ", configuration: bytes = b"") -> bytes:
    """Return a fragmented file of one or two tracks, drawn from a seed; the moov may list samples as well."""
    draw = random.Random(seed)
    tracks = draw.choice([1, 1, 2])
    empty = TrackTables(sizes=[], stts=[])
    listed = [random_tables(seed * 5 + number) if draw.random() < 0.2 else empty for number in range(tracks)]
    if draw.random() < 0.3:
        edits = [(draw.choice([0, 500]), -1)] * draw.choice([0, 1]) + [(0, draw.choice([0, 40, 100]))]
        listed = [TrackTables(sizes=[], stts=[], edits=edits), *listed[1:]]
    defaults = [
        full_box(b"trex", 0, 0, struct.pack(">5I", number, 1, 20, 7, draw.choice([0, 0x10000])))
        for number in range(1, tracks + 1)
    ]
    content = movie(listed, tag=tag, configuration=configuration, more=box(b"mvex", *defaults))
    times = [draw.choice([0, 1000])] * tracks
    with_time, style = draw.random() < 0.8, draw.choice(["moof", "implicit", "absolute"])
    offsets = draw.choice([[0], [0, 20, 40], [-40, 0, 20], [0, -20]])
    for number in range(draw.randrange(1, 6)):
        payload = b""
        trafs = []
        for track in range(1, tracks + 1):
            if draw.random() < 0.1:
                continue
            truns, at = [], len(payload)
            for _ in range(draw.choice([1, 1, 2])):
                trun = _random_run(draw, offsets)
                truns.append((len(payload), *trun))
                payload += bytes(draw.randrange(256) for _ in range(sum(trun[2])))
                times[track - 1] += sum(trun[1])
            start = times[track - 1] - sum(sum(run[2]) for run in truns) + draw.choice([0, 0, 0, 5, -15, 100])
            trafs.append((track, truns, at, max(start, 0)))
        head = len(_moof(number, trafs, style, with_time, 0, 0))
        content += _moof(number, trafs, style, with_time, head + 8, len(content)) + box(b"mdat", payload)
    return content


def _random_run(draw: random.Random, offsets: list[int]) -> tuple[int, list[int], list[int], list[int], list[int]]:
    """Return the flags, durations, sizes, sample flags and composition offsets of a random trun."""
    count = draw.randrange(1, 6)
    flags = sum(bit for bit in (0x100, 0x200, 0x400, 0x800) if draw.random() < 0.5)
    if not flags & 0x400 and draw.random() < 0.5:
        flags |= 4
    durations = [draw.choice([20, 40, 1]) if flags & 0x100 else 20 for _ in range(count)]
    sizes = [draw.randrange(1, 90) if flags & 0x200 else 7 for _ in range(count)]
    sample_flags = [draw.choice([0, 0x10000, 0x1000000, 0x2000000]) for _ in range(count)]
    return flags, durations, sizes, sample_flags, [draw.choice(offsets) for _ in range(count)]


def _moof(number: int, trafs: list[tuple], style: str, with_time: bool, data: int, start: int) -> bytes:  # type: ignore[type-arg]
    """Return a moof box.

    Args:
        data: the number of bytes from the start of the moof to the start of its data.
        start: the offset of the moof in the file.
    """
    boxes = [full_box(b"mfhd", 0, 0, struct.pack(">I", number + 1))]
    for order, (track, truns, at, time) in enumerate(trafs):
        flags = {"moof": 0x20000, "absolute": 1, "implicit": 0}[style]
        base = {"moof": 0, "absolute": 0, "implicit": at + data if order else 0}[style]
        header = struct.pack(">I", track) + (struct.pack(">Q", start) if flags & 1 else b"")
        inner = [full_box(b"tfhd", 0, flags, header)]
        if with_time:
            inner.append(full_box(b"tfdt", 1, 0, struct.pack(">Q", time)))
        for offset, run_flags, durations, sizes, sample_flags, composition in truns:
            rows = b""
            for row in zip(durations, sizes, sample_flags, composition, strict=True):
                rows += b"".join(
                    struct.pack(">i", value)
                    for value, bit in zip(row, (0x100, 0x200, 0x400, 0x800), strict=True)
                    if run_flags & bit
                )
            first = struct.pack(">I", 0x2000000) if run_flags & 4 else b""
            head = struct.pack(">Ii", len(durations), offset + data - base)
            inner.append(full_box(b"trun", 1, run_flags | 1, head, first, rows))
        boxes.append(box(b"traf", *inner))
    return box(b"moof", *boxes)
