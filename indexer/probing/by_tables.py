"""Depth `tables`: read only sample tables and the headers of start points.

The amount of data read does not grow with the bit rate.

Depth `tables`: the facts of a stream from its sample tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer import facts
from framedex.indexer.bitstream import base as picture_facts
from framedex.indexer.containers import Probed, ProbedFile
from framedex.indexer.mp4.boxes import TruncatedError, UntrustedTables
from framedex.indexer.mp4.sample_tables import Layout, SampleTable, read_sample_table
from framedex.indexer.parts.packets import Packets
from framedex.indexer.probing import packet_facts
from framedex.indexer.probing.by_packets import Demuxed, demuxed_of
from framedex.indexer.probing.packet_headers import SCANNERS, UnreadHeaders, find_lasting, flags_of, scan, scan_gop
from framedex.indexer.proofs.runs import differing_samples, drawn, needed_for, packets_in_ranges, stream_of
from framedex.indexer.reach import drops_leading
from framedex.indexer.schema import INTRA
from framedex.indexer.timeline import (
    CLOSED,
    CONTAINER,
    CONTINUES,
    DAMAGED,
    FIELD_CODED,
    HIDDEN,
    NON_REFERENCE,
    OPEN,
    START,
    STATED,
    UNSHOWN,
    Flags,
    Summary,
    check_ranks,
    has_unordered_hidden,
    presentation_order,
    ranks,
)
from framedex.records.medium import SAMPLED
from framedex.storage.reader import Read

MAX_LOOKED_AT = 16  # packets of the first GOP; all reorderings that a GOP shows appear within them
# If the tables call every sample a sync sample, the headers of all samples are read. The mean sample must have at least
# this many bytes, so that headers are a small part of the file.
MIN_MEAN_BYTES = 20_000
READ_AT_ONCE = 192 << 10  # bytes read from the beginning of the first GOP of an object, where requests are expensive
HIGH_444 = bytes([244])  # profile_idc of High 4:4:4 Predictive, which may be lossless (H.264 A.2.7)
COUNT_MODULUS = 16  # the least MaxPicOrderCntLsb of HEVC (7.4.3.2.1)
COUNT_STEPS = (1, 2)  # by which encoders count pictures in output order
# The number of largest non-sync samples that are checked. If one of them is a start point, stss is incomplete.
SUSPECTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabulated:
    """A stream as its sample tables describe it.

    Attributes:
        demuxed: the packets.
        flags: int32 [packets].
        read: bool [packets], packets whose flags come from their own headers.
        pictures: facts of start points, [starts].
        rotation_degrees: counterclockwise rotation that a player applies.
    """

    demuxed: Demuxed
    flags: Flags
    read: NDArray[np.bool_]
    pictures: picture_facts.Pictures
    rotation_degrees: int


def tabulate(
    read: Read,
    layout: Layout,
    track_id: int,
    *,
    codec: str,
    configuration: bytes,
    reorder_depth: int,
    file: ProbedFile | None,
) -> Tabulated:
    """Return a track's packets from the sample tables of an MP4, MOV or 3GP file.

    Args:
        read: reads ranges of the file or object.
        layout: holds the boxes of the file.
        track_id: of the track.
        codec: of the track, by FFmpeg's canonical name.
        configuration: the extradata that the demuxer reports.
        reorder_depth: how many frames the decoder holds back.
        file: the open file. None: an object; only the headers of its first packets are read. The other start
            points get the flag `STATED`, and whoever needs one of them reads its headers.

    Raises:
        UntrustedTables: the tables may differ from what a demuxer and the bitstream say; packets must be read instead.
    """
    try:
        table = read_sample_table(layout, track_id)
        demuxed = demuxed_of(table)
        if codec in INTRA:
            return _intra(table, demuxed)
        if table.configurations[int(table.sample_entry[0])] != configuration:
            raise UntrustedTables("the sample entry has another configuration than the demuxer says")
        if not table.sync_stated and demuxed.size.mean() < MIN_MEAN_BYTES:
            raise UntrustedTables("nothing says which samples are sync samples")
        return _predicted(read, table, demuxed, codec, configuration, reorder_depth, file)
    except (picture_facts.BitstreamError, TruncatedError) as error:
        raise UntrustedTables(str(error)) from error


def _intra(table: SampleTable, demuxed: Demuxed) -> Tabulated:
    """Return the packets of an intra codec. Each is a start point and needed by no other, so nothing else is read."""
    n = len(demuxed.size)
    flags = np.where(demuxed.hidden, HIDDEN, 0).astype(np.int32) | CLOSED | NON_REFERENCE
    _check_order(np.sort(demuxed.pts), flags)
    if (np.diff(demuxed.pts[~demuxed.hidden]) < 0).any():
        raise UntrustedTables(
            "samples are not in the order of their timestamps, and decoders of this codec do not reorder"
        )
    return Tabulated(
        demuxed=demuxed,
        flags=flags,
        read=np.ones(n, np.bool_),
        pictures=picture_facts.pictures_of(np.full(n, picture_facts.CLOSED_START, np.uint8)),
        rotation_degrees=table.rotation_degrees,
    )


def _predicted(
    read: Read,
    table: SampleTable,
    demuxed: Demuxed,
    codec: str,
    configuration: bytes,
    reorder_depth: int,
    file: ProbedFile | None,
) -> Tabulated:
    if codec not in SCANNERS:
        raise UntrustedTables(f"packets of {codec} have to be read")
    offset, size = demuxed.offset, demuxed.size
    assert offset is not None  # tables always locate the samples
    sync = np.flatnonzero(table.sync[table.size > 0])
    if not len(sync) or sync[0]:
        raise UntrustedTables("the first sample is no sync sample")
    if file is None:
        pictures, beginning = _scan_beginning(read, demuxed, sync, codec, configuration)
    else:
        pictures, beginning = _scan_some(read, demuxed, sync, codec, configuration, file)
    tells_little = pictures.inner_start_codes or pictures.varying_shape or pictures.may_hide or pictures.drops_leading
    if tells_little or pictures.begins_amid or pictures.forgets.any() or pictures.carries_over:
        raise UntrustedTables("the stream does what only reading every packet tells")
    if pictures.inband_sets and codec == "hevc":
        raise UntrustedTables("packets bring parameter sets, by which pictures may be reordered further than stated")
    if codec == "h264" and (pictures.start[1:] == picture_facts.OPEN_START).any():
        raise UntrustedTables(
            "a recovery point is believed once all pictures behind it are known not to refer to earlier ones"
        )
    flags = np.where(demuxed.hidden, HIDDEN, 0).astype(np.int32)
    seen = len(pictures.start)  # the number of start points that were read, the first ones
    flags[sync] |= CLOSED
    flags[sync[:seen]] ^= np.where(pictures.start == picture_facts.CLOSED_START, 0, CLOSED | OPEN).astype(np.int32)
    flags[sync[seen:]] |= STATED
    is_read = np.zeros(len(size), np.bool_)
    first = slice(0, len(beginning.start))
    flags[first] = flags_of(beginning, flags[first], demuxed.pts[first], at_first_start=True)
    if (flags[first] & CONTINUES).any():
        raise UntrustedTables("samples hold single fields, two of which make a frame")
    is_read[first] = True
    for begin, end in _stretches(sync, demuxed.hidden):
        if file is None and begin != sync[0]:  # its start point was not read: it may differ from the first one
            raise UntrustedTables("an edit list hides samples behind the first start points")
        part = slice(begin, end)
        flags[part] = scan_gop(
            read,
            codec,
            configuration,
            offset[part],
            size[part],
            flags[part],
            demuxed.pts[part],
            at_first_start=begin == 0,
        )
        is_read[part] = True
    flags[is_read] &= ~STATED
    listed = np.flatnonzero(flags & START)  # reading headers may have found others
    if not np.array_equal(listed, sync):
        raise UntrustedTables("a sample that is no sync sample is a start point")
    order = presentation_order(demuxed.pts, flags & ~HIDDEN if demuxed.hidden.any() else flags)
    _check_order(demuxed.pts[order], flags)
    check_ranks(ranks(order, len(flags)), reorder_depth)
    if codec == "hevc" and seen == len(sync):
        place = np.full(len(flags), -1, np.int64)
        place[order] = np.arange(len(order))
        _check_counts(pictures, place[sync])
    is_read[sync[:seen]] = True
    if seen < len(sync) and len(pictures.states) > 1:
        raise UntrustedTables("start points need states that only reading all of them tells")
    return Tabulated(
        demuxed=demuxed, flags=flags, read=is_read, pictures=pictures, rotation_degrees=table.rotation_degrees
    )


def _stretches(sync: NDArray[np.int64], hidden: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return (first, end) of each GOP with hidden packets; `end` is exclusive. All packets of these GOPs are read."""
    if not hidden.any():
        return []
    edges = np.append(sync, len(hidden))
    gops = np.unique(np.searchsorted(sync, np.flatnonzero(hidden), side="right") - 1).tolist()
    return [(int(edges[gop]), int(edges[gop + 1])) for gop in gops]


def _scan_some(
    read: Read, demuxed: Demuxed, sync: NDArray[np.int64], codec: str, configuration: bytes, file: ProbedFile
) -> tuple[picture_facts.Pictures, picture_facts.Pictures]:
    """Return the facts of the sync samples, [starts], and of the beginning of the first GOP.

    The first GOP shows whether leading pictures are dropped, and whether its timestamps are wrong. Some other samples
    are read, too: samples that hold parameter sets, because start points after them need these; the largest samples,
    because intra pictures are large; and one sample in full, because some cameras wrap several units in one length.

    Raises:
        UntrustedTables: a sample that is no sync sample is a start point, or a sync sample is no start point.
    """
    assert demuxed.offset is not None  # tables always locate the samples
    n = len(demuxed.size)
    first = min(MAX_LOOKED_AT, int(sync[1]) if len(sync) > 1 else n)
    chosen = np.zeros(n, np.bool_)
    chosen[sync] = True
    sizes = np.where(chosen, 0, demuxed.size)
    chosen[np.argpartition(sizes, -SUSPECTS)[-SUSPECTS:] if n > SUSPECTS else slice(None)] = True
    chosen[:first] = True
    length_size = SCANNERS[codec](configuration).length_size
    if length_size:
        chosen |= find_lasting(file, codec, length_size, demuxed.offset, demuxed.size)
    numbers = np.flatnonzero(chosen)
    more = np.zeros(len(numbers), np.bool_)
    more[int(np.argmin(demuxed.size[:first]))] = True
    pictures = scan(read, codec, configuration, demuxed.offset[numbers], demuxed.size[numbers], more, consecutive=False)
    started = numbers[pictures.start != picture_facts.NO_START]
    if not np.array_equal(started, sync):
        wrong = np.setxor1d(started, sync)[0]
        said = "a" if wrong in sync else "no"
        raise UntrustedTables(f"sample {wrong} is {said} sync sample, and its picture says otherwise")
    if codec == "hevc" and pictures.damaged[pictures.start != picture_facts.NO_START].any():
        raise UntrustedTables("a start point is damaged, and reading every packet tells what depends on it")
    return picture_facts.only(pictures, pictures.start != picture_facts.NO_START), picture_facts.only(
        pictures, numbers < first
    )


def _scan_beginning(
    read: Read, demuxed: Demuxed, sync: NDArray[np.int64], codec: str, configuration: bytes
) -> tuple[picture_facts.Pictures, picture_facts.Pictures]:
    """Return the facts of the first start point, [1], and of the beginning of its GOP, as far as one read covers it."""
    assert demuxed.offset is not None  # tables always locate the samples
    if codec == "h264" and configuration[1:2] == HIGH_444:
        raise UntrustedTables("a decoder may have to be told which encoder wrote the pictures")
    most = min(MAX_LOOKED_AT, int(sync[1]) if len(sync) > 1 else len(demuxed.size))
    begin = demuxed.offset[: most + 1]
    near = np.abs(begin - begin[1:2].sum()) < READ_AT_ONCE if most > 1 else np.ones(1, np.bool_)
    first = max(1, int(np.argmin(near[1:most]) + 1 if not near[1:most].all() else most))
    pictures = scan(read, codec, configuration, demuxed.offset[:first], demuxed.size[:first])
    if pictures.start[0] == picture_facts.NO_START or (pictures.start[1:] != picture_facts.NO_START).any():
        raise UntrustedTables("the first samples are start points where the tables say otherwise")
    return picture_facts.only(pictures, pictures.start != picture_facts.NO_START), pictures


def _check_counts(pictures: picture_facts.Pictures, rank: NDArray[np.int64]) -> None:
    """Check that as many pictures lie between start points of HEVC as their picture order counts say.

    Only open start points continue the counts of those before. Counts of pictures that lie far apart are only known
    up to a multiple of the stream's MaxPicOrderCntLsb, which COUNT_MODULUS divides.

    Args:
        pictures: facts of the start points, [starts].
        rank: int64 [starts], their places in output order.

    Raises:
        UntrustedTables: pictures are missing, or come twice.
    """
    continued = (np.diff(pictures.period) == 0) & (pictures.start[1:] == picture_facts.OPEN_START)
    counted, there = np.diff(pictures.order)[continued], np.diff(rank)[continued]
    if not any(((counted - step * there) % COUNT_MODULUS == 0).all() for step in COUNT_STEPS):
        raise UntrustedTables("between start points lie more or fewer pictures than they count")


def _check_order(times: NDArray[np.int64], flags: Flags) -> None:
    """Raise UntrustedTables if nothing is presented, or if sorted times repeat.

    If two times are the same, only the pictures show which comes first.
    """
    if not ((flags & UNSHOWN) == 0).any():
        raise UntrustedTables("no sample is presented")
    if not np.diff(times).all():
        raise UntrustedTables("samples share a timestamp")


def probe_tables(
    layout: Layout, track_id: int, file: Probed, medium: facts.MediumFacts, described: facts.StreamFacts, *, prove: int
) -> facts.MediumFacts:
    """Return the medium with the facts from its sample tables.

    Args:
        layout: the boxes of the file.
        track_id: of the stream.
        file: the file or object.
        medium: what is known of it so far.
        described: the stream, as headers describe it.
        prove: how many frames to reach as clips reach them, and to compare with a decode from further back.

    Raises:
        UntrustedTables: packets have to be read.
    """
    found = tabulate(
        file.read,
        layout,
        track_id,
        codec=described.codec,
        configuration=described.extradata or b"",
        reorder_depth=described.reorder_depth,
        file=file if isinstance(file, ProbedFile) else None,
    )
    demuxed, pts, flags, pictures = found.demuxed, found.demuxed.pts, found.flags, found.pictures
    summary = packet_facts.summary_of(described, demuxed, pts, flags)
    proof = None
    if prove:
        differs = _differing(found, file, described, prove)
        if differs.any():
            raise UntrustedTables("a frame that a clip's decoder gives differs from that of a decode from further back")
        proof = packet_facts.proof_facts(SAMPLED, differs, pts, flags)
    stated = (flags & STATED) != 0
    timeline = packet_facts.timeline_of(
        "tables", CONTAINER, demuxed, _summary(summary, found.read, stated), hashed=False
    )
    return replace(
        medium,
        stream=described,
        coding=packet_facts.coding_of(demuxed, pictures, _fields(found), _hide_unordered(found)),
        timeline=timeline,
        proof=proof,
        rotation_degrees=found.rotation_degrees,
        problem=packet_facts.remarks(summary, flags, None),
        # `pictures` holds start points alone, so `state` has one element per start point.
        packets=packet_facts.packet_columns(
            demuxed, pictures.state, pts, np.ma.masked_array(flags, ~(found.read | stated))
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """What reading headers needs to know of a medium that is being probed."""

    path: str
    codec: str
    extradata: bytes | None
    states: Sequence[bytes]
    inband_parameter_sets: bool
    reorder_depth: int


def _differing(found: Tabulated, file: Probed, described: facts.StreamFacts, count: int) -> NDArray[np.bool_]:
    """Return bool [packets]: those of `count` frames that differ when clips reach them. Raises UntrustedTables."""
    demuxed, pictures = found.demuxed, found.pictures
    drop_leading = drops_leading(described.codec)
    starts = (found.flags & START) != 0
    state = np.zeros(len(starts), np.int32)
    # `pictures` holds the start points that were read, the first ones; the others need no state.
    state[np.flatnonzero(starts)[: len(pictures.state)]] = pictures.state
    packets = Packets(
        pts=demuxed.pts, offset=demuxed.offset, size=demuxed.size, flags=found.flags, read=found.read, state=state
    )
    where = file.name
    headed = _Described(
        path=where,
        codec=described.codec,
        extradata=described.extradata,
        states=pictures.states,
        inband_parameter_sets=pictures.inband_sets,
        reorder_depth=described.reorder_depth,
    )
    targets = drawn(found.flags, count, drop_leading=drop_leading)
    try:
        headers = UnreadHeaders(packets, headed, file.read)
        headers.read(targets)
    except PolicyError as error:
        raise UntrustedTables(error.what) from error
    flags = headers.packets.flags
    assert demuxed.offset is not None  # tables always locate the samples
    needed = needed_for(flags, targets, described.reorder_depth, drop_leading=drop_leading)
    stream = stream_of(
        described,
        pictures.states,
        state[(flags & START) != 0],
        demuxed.pts,
        flags,
        where=where,
        ordered=not _hide_unordered(found),
    )
    return differing_samples(stream, flags, targets, packets_in_ranges(file.read, demuxed.offset, demuxed.size, needed))


def _summary(summary: Summary, read: NDArray[np.bool_], stated: NDArray[np.bool_]) -> Summary:
    """Return a summary without the numbers that only reading every packet, or every start point, shows.

    Args:
        summary: of the timeline.
        read: bool [packets], packets whose headers were read.
        stated: bool [packets], packets that only the tables call start points.
    """
    if not read.all():
        summary = replace(summary, non_reference_share=None)
    return replace(summary, open_gop_count=None) if stated.any() else summary


def _fields(found: Tabulated) -> bool | None:
    """Return whether pictures are coded as fields, or None if only reading every packet shows it."""
    coded = bool(found.pictures.field_coded.any())
    if found.read.all() or not found.pictures.may_hold_fields:
        return coded
    return coded or bool((found.flags & FIELD_CODED).any()) or None


def _hide_unordered(found: Tabulated) -> bool:
    """Return whether hidden packets are output in another order than their timestamps say."""
    if len(found.pictures.start) == len(found.flags):  # one picture per packet; otherwise start points alone
        return has_unordered_hidden(found.demuxed.pts, found.flags, found.pictures)
    # All headers of GOPs with hidden packets were read. `flags_of` rejects a wrong order, unless packets are damaged.
    return bool((found.flags & HIDDEN).any() and (found.flags & DAMAGED).any())
