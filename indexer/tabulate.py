"""Depth `tables`: sample tables alone, and the headers of start points. What is read does not grow with the bit rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.intra import INTRA
from framedex.indexer.bitstream.pictures import (
    CLOSED_START,
    NO_START,
    BitstreamError,
    Pictures,
    only,
    pictures_of,
)
from framedex.indexer.boxes import TruncatedError
from framedex.indexer.demux import Demuxed
from framedex.indexer.look import SCANNERS, Read, look, scan
from framedex.indexer.sampletables import Layout, SampleTable, UntrustedTables, read_sample_table
from framedex.indexer.timeline import (
    CLOSED,
    HIDDEN,
    NON_REFERENCE,
    OPEN,
    START,
    UNSHOWN,
    Flags,
    check_ranks,
    presentation_order,
)

MOST_LOOKED_AT = 48  # packets of the first GOP: all reorderings that one shows
# Where every sample is said to be a sync sample, the headers of all are read, if that is a small part of the file.
LEAST_MEAN_BYTES = 20_000
READ_WHOLE, READ_WHOLE_OF = 2, 32  # so many of the first packets are read whole, the smallest ones
SUSPECTS = 16  # the largest samples that are no sync samples: were one a start point, stss would be incomplete


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabulated:
    """A stream as its tables say it. read: bool [packets], whose flags were read. pictures: facts of start points, [starts]."""

    demuxed: Demuxed
    flags: Flags
    read: NDArray[np.bool_]
    pictures: Pictures
    rotation_degrees: int


def tabulate(
    read: Read, layout: Layout, track_id: int, *, codec: str, configuration: bytes, reorder_depth: int
) -> Tabulated:
    """Return a track's packets from the sample tables of an MP4, MOV or 3GP file, whose boxes `layout` holds.

    Raises UntrustedTables where the tables may not say what a demuxer and the bitstream say; then packets must be read.
    """
    try:
        table = read_sample_table(layout, track_id)
        demuxed = _demuxed(table)
        if codec in INTRA:
            return _intra(table, demuxed)
        if table.configurations[int(table.sample_entry[0])] != configuration:
            raise UntrustedTables("the sample entry has another configuration than the demuxer says")
        if not table.sync_stated and demuxed.size.mean() < LEAST_MEAN_BYTES:
            raise UntrustedTables("nothing says which samples are sync samples")
        return _predicted(read, table, demuxed, codec, configuration, reorder_depth)
    except (BitstreamError, TruncatedError) as error:
        raise UntrustedTables(str(error)) from error


def _demuxed(table: SampleTable) -> Demuxed:
    data = np.flatnonzero(table.size > 0)
    if not len(data):
        raise UntrustedTables("the track has no samples")
    if len(np.unique(table.sample_entry[data])) > 1:
        raise UntrustedTables("samples have several sample entries")
    return Demuxed(
        pts=table.pts[data],
        dts=table.dts[data],
        duration=table.duration[data],
        offset=table.offset[data],
        size=table.size[data],
        hidden=table.hidden[data],
        resets=np.zeros(len(data), np.bool_),
        broken=np.zeros(len(data), np.bool_),
    )


def _intra(table: SampleTable, demuxed: Demuxed) -> Tabulated:
    """Every packet of an intra codec is a start, and none is needed by another: there is nothing to look for."""
    n = len(demuxed.size)
    flags = np.where(demuxed.hidden, HIDDEN, 0).astype(np.int32) | CLOSED | NON_REFERENCE
    _check_order(demuxed.pts, flags)
    return Tabulated(
        demuxed=demuxed,
        flags=flags,
        read=np.ones(n, np.bool_),
        pictures=pictures_of(np.full(n, CLOSED_START, np.uint8)),
        rotation_degrees=table.rotation_degrees,
    )


def _predicted(
    read: Read, table: SampleTable, demuxed: Demuxed, codec: str, configuration: bytes, reorder_depth: int
) -> Tabulated:
    if codec not in SCANNERS:
        raise UntrustedTables(f"packets of {codec} have to be read")
    offset, size = demuxed.offset, demuxed.size
    assert offset is not None  # tables always say where samples lie
    sync = np.flatnonzero(table.sync[table.size > 0])
    if not len(sync) or sync[0]:
        raise UntrustedTables("the first sample is no sync sample")
    pictures = _scan_some(read, demuxed, sync, codec, configuration)
    if pictures.inner_start_codes or pictures.varying_shape or pictures.may_hide or pictures.drops_leading:
        raise UntrustedTables("the stream does what only reading every packet tells")
    flags = np.where(demuxed.hidden, HIDDEN, 0).astype(np.int32)
    flags[sync] |= np.where(pictures.start == CLOSED_START, CLOSED, OPEN)
    is_read = np.zeros(len(size), np.bool_)
    for first, last in _stretches(sync, demuxed.hidden):
        part = slice(first, last)
        flags[part] = look(
            read,
            codec,
            configuration,
            offset[part],
            size[part],
            flags[part],
            demuxed.pts[part],
            at_first_start=first == 0,
        )
        is_read[part] = True
    listed = np.flatnonzero(flags & START)  # looking may have found others
    if not np.array_equal(listed, sync):
        raise UntrustedTables("a sample that is no sync sample is a start point")
    _check_order(demuxed.pts, flags)
    if codec == "h264" or codec == "hevc":
        check_ranks(np.argsort(presentation_order(demuxed.pts, flags & ~HIDDEN)), reorder_depth)
    is_read[sync] = True
    return Tabulated(
        demuxed=demuxed, flags=flags, read=is_read, pictures=pictures, rotation_degrees=table.rotation_degrees
    )


def _stretches(sync: NDArray[np.int64], hidden: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return (first, behind the last) of the GOPs that are looked at whole: the first, and those with hidden packets.

    The first one is where leading pictures are dropped, and where timestamps that lie are found out.
    """
    edges = np.append(sync, len(hidden))
    gops = [0, *np.unique(np.searchsorted(sync, np.flatnonzero(hidden), side="right") - 1).tolist()]
    stretches = [(int(edges[gop]), int(edges[gop + 1])) for gop in dict.fromkeys(gops)]
    first, end = stretches[0]
    if end - first > MOST_LOOKED_AT and not hidden[first:end].any():
        stretches[0] = (first, first + MOST_LOOKED_AT)
    return stretches


def _scan_some(read: Read, demuxed: Demuxed, sync: NDArray[np.int64], codec: str, configuration: bytes) -> Pictures:
    """Return the facts of the sync samples, [starts]. Raises UntrustedTables where others are start points, too.

    Some packets are read whole, because some cameras wrap several units in one length, which headers alone do not show.
    """
    assert demuxed.offset is not None  # tables always say where samples lie
    others = np.ones(len(demuxed.size), np.bool_)
    others[sync] = False
    candidates = np.flatnonzero(others)
    suspects = candidates[np.argsort(demuxed.size[candidates], kind="stable")[-SUSPECTS:]]
    whole = np.argsort(demuxed.size[:READ_WHOLE_OF], kind="stable")[:READ_WHOLE]
    chosen = np.sort(np.concatenate([sync, suspects, np.setdiff1d(whole, np.union1d(sync, suspects))]))
    pictures = scan(read, codec, configuration, demuxed.offset[chosen], demuxed.size[chosen], np.isin(chosen, whole))
    started = chosen[pictures.start != NO_START]
    if not np.array_equal(started, sync):
        wrong = np.setxor1d(started, sync)[0]
        said = "a" if wrong in sync else "no"
        raise UntrustedTables(f"sample {wrong} is {said} sync sample, and its picture says otherwise")
    return only(pictures, pictures.start != NO_START)


def _check_order(pts: NDArray[np.int64], flags: Flags) -> None:
    if not ((flags & UNSHOWN) == 0).any():
        raise UntrustedTables("no sample is presented")
    if len(np.unique(pts[(flags & UNSHOWN) == 0])) < np.count_nonzero((flags & UNSHOWN) == 0):
        raise UntrustedTables("samples share a timestamp")
