"""Probe a stream at depth `tables`: read its sample tables, and the packet headers of random access points.

The amount of data read does not depend on the bit rate.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer import facts, timeline
from framedex.indexer.bitstream import base as picture_facts
from framedex.indexer.containers import Probed, ProbedFile
from framedex.indexer.mp4.boxes import TruncatedError, UntrustedTables
from framedex.indexer.mp4.sample_tables import SampleTable, read_sample_table
from framedex.indexer.mp4.tracks import Layout
from framedex.indexer.parts.packets import Packets
from framedex.indexer.probing import packet_facts
from framedex.indexer.probing.by_packets import Demuxed, demuxed_of
from framedex.indexer.probing.packet_headers import SCANNERS, UnreadHeaders, find_lasting, flags_of, scan
from framedex.indexer.proofs.runs import differing_samples, drawn, packets_in_ranges, stream_of
from framedex.indexer.reach import drops_leading
from framedex.indexer.schema import INTRA
from framedex.records.medium import SAMPLED
from framedex.storage.reader import Read

# The number of packets whose headers are read at the beginning of the first GOP. Streams show within so many packets
# how they reorder pictures.
MAX_LOOKED_AT = 16
# Without a list of sync samples, all samples count as sync samples, so the headers of all samples are read. Such tables
# are used only if the mean sample size in bytes is at least this large, because then the headers are a small part of
# the file.
MIN_MEAN_BYTES = 20_000
READ_AT_ONCE = 192 << 10  # size in bytes of the request for an object's first GOP; one request is faster than two
HIGH_444 = bytes([244])  # profile_idc of High 4:4:4 Predictive, a profile that may be lossless (H.264 A.2.7)
COUNT_MODULUS = 16  # the smallest MaxPicOrderCntLsb that HEVC allows (7.4.3.2.1)
# The differences between the picture order counts of consecutive pictures. Encoders count by 1, or by 2 as if each
# picture were two fields.
COUNT_STEPS = (1, 2)
# Besides the sync samples, the headers of this many of the largest other samples are read. If such a sample is a random
# access point, the list of sync samples (the box stss) is incomplete.
SUSPECTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabulated:
    """A stream as its sample tables describe it.

    Attributes:
        demuxed: The packets.
        flags: int32 [packets].
        read: bool [packets], whether the packet's header was read.
        pictures: The properties of the random access points whose headers were read.
    """

    demuxed: Demuxed
    flags: timeline.Flags
    read: NDArray[np.bool_]
    pictures: picture_facts.Pictures


def tabulate(
    read: Read, layout: Layout, track_id: int, stream: facts.StreamFacts, file: ProbedFile | None
) -> Tabulated:
    """Return a track's packets from the sample tables of an MP4, MOV or 3GP file.

    Args:
        read: The function that reads byte ranges of the file or object.
        layout: The boxes of the file.
        track_id: The number of the track.
        stream: The metadata of the stream from headers.
        file: The open file. None for an object in object storage. Only the headers of an object's first packets are
            read. Its other random access points get the flag `STATED`, and their headers are read when a clip needs
            them.

    Raises:
        UntrustedTables: The tables may contradict the demuxer or the bitstream, so packets must be read instead.
    """
    try:
        table = read_sample_table(layout, track_id)
        if stream.codec in INTRA:
            return _tabulate_intra(demuxed_of(table, None))
        demuxed = demuxed_of(table, stream.extradata or b"")
        if not table.sync_stated and demuxed.size.mean() < MIN_MEAN_BYTES:
            raise UntrustedTables("the tables do not list sync samples")
        return _tabulate_predicted(read, table, demuxed, stream, file)
    except (picture_facts.BitstreamError, TruncatedError) as error:
        raise UntrustedTables(str(error)) from error


def _tabulate_intra(demuxed: Demuxed) -> Tabulated:
    """Return the packets of an intra codec. Each packet is a random access point, so headers are not read."""
    n = len(demuxed.size)
    flags = np.where(demuxed.hidden, timeline.HIDDEN, 0).astype(np.int32) | timeline.CLOSED | timeline.NON_REFERENCE
    _check_order(np.sort(demuxed.pts), flags)
    if (np.diff(demuxed.pts[~demuxed.hidden]) < 0).any():
        raise UntrustedTables("samples are not in the order of their timestamps, but the decoder does not reorder them")
    pictures = picture_facts.pictures_of(np.full(n, picture_facts.CLOSED_START, np.uint8))
    return Tabulated(demuxed=demuxed, flags=flags, read=np.ones(n, np.bool_), pictures=pictures)


def _tabulate_predicted(
    read: Read, table: SampleTable, demuxed: Demuxed, stream: facts.StreamFacts, file: ProbedFile | None
) -> Tabulated:
    """Return the packets of a codec with inter prediction. The arguments have the same meaning as in `tabulate`."""
    codec, configuration = stream.codec, stream.extradata or b""
    if codec not in SCANNERS:
        raise UntrustedTables(f"whole packets of {codec} have to be read")
    size = demuxed.size
    sync = np.flatnonzero(table.samples.sync[table.samples.size > 0])
    if not len(sync) or sync[0]:
        raise UntrustedTables("the first sample is not a sync sample")
    if file is None:
        pictures, beginning = _scan_beginning(read, demuxed, sync, codec, configuration)
    else:
        pictures, beginning = _scan_some(read, demuxed, sync, codec, configuration, file)
    is_unclear = pictures.inner_start_codes or pictures.varying_shape or pictures.may_hide or pictures.drops_leading
    if is_unclear or pictures.begins_amid or pictures.forgets.any() or pictures.carries_over:
        raise UntrustedTables("the stream has features that require reading every packet")
    if pictures.inband_sets and codec == "hevc":
        raise UntrustedTables("packets carry parameter sets, which may allow more reordering than the header states")
    if codec == "h264" and (pictures.start[1:] == picture_facts.OPEN_START).any():
        raise UntrustedTables(
            "every packet must be read to find pictures after a recovery point that need earlier pictures"
        )
    flags = np.where(demuxed.hidden, timeline.HIDDEN, 0).astype(np.int32)
    seen = len(pictures.start)  # the headers of the first `seen` random access points were read
    flags[sync] |= timeline.CLOSED
    flags[sync[:seen]] ^= np.where(pictures.start == picture_facts.CLOSED_START, 0, timeline.START).astype(np.int32)
    flags[sync[seen:]] |= timeline.STATED
    is_read = np.zeros(len(size), np.bool_)
    first = slice(0, len(beginning.start))
    flags[first] = flags_of(beginning, flags[first], demuxed.pts[first], at_first_start=True)
    if (flags[first] & timeline.CONTINUES).any():
        raise UntrustedTables("samples hold single fields instead of frames")
    is_read[first] = True
    # In GOPs with hidden packets (cut away by an edit list), all headers are read, because pictures may be output in
    # another order than the order of their timestamps.
    edges = np.append(sync, len(size))
    for gop in np.unique(np.searchsorted(sync, np.flatnonzero(demuxed.hidden), side="right") - 1).tolist():
        part = slice(int(edges[gop]), int(edges[gop + 1]))
        if file is None and gop:  # the header of this GOP's random access point was not read, and it may be open
            raise UntrustedTables("an edit list hides samples after the first GOP")
        found = scan(read, codec, configuration, demuxed.offset[part], size[part], in_middle=gop > 0)
        flags[part] = flags_of(found, flags[part], demuxed.pts[part], at_first_start=gop == 0)
        is_read[part] = True
    flags[is_read] &= ~timeline.STATED
    if not np.array_equal(np.flatnonzero(flags & timeline.START), sync):  # headers may show other random access points
        raise UntrustedTables("a sample that is not a sync sample is a random access point")
    order = timeline.presentation_order(demuxed.pts, flags & ~timeline.HIDDEN if demuxed.hidden.any() else flags)
    _check_order(demuxed.pts[order], flags)
    timeline.check_ranks(timeline.ranks(order, len(flags)), stream.reorder_depth)
    if codec == "hevc" and seen == len(sync):
        _check_counts(pictures, timeline.places(order, len(flags))[sync])
    is_read[sync[:seen]] = True
    if seen < len(sync) and len(pictures.states) > 1:
        raise UntrustedTables(
            "all random access points must be read to find the parameter sets that each of them needs"
        )
    return Tabulated(demuxed=demuxed, flags=flags, read=is_read, pictures=pictures)


def _scan_some(
    read: Read, demuxed: Demuxed, sync: NDArray[np.int64], codec: str, configuration: bytes, file: ProbedFile
) -> tuple[picture_facts.Pictures, picture_facts.Pictures]:
    """Return (properties of the sync samples, properties of the first samples of the first GOP).

    Headers of the first GOP show whether leading pictures are dropped and whether timestamps are wrong. The headers of
    some other samples are read, too:

    - samples with parameter sets, because random access points after them need these sets
    - the largest non-sync samples, because a large sample may be an intra picture that the tables do not list
    - one sample with more of its slices, because some cameras put several units after one length field

    Raises:
        UntrustedTables: The sync samples are not the random access points.
    """
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
    is_start = pictures.start != picture_facts.NO_START
    if not np.array_equal(numbers[is_start], sync):
        wrong = np.setxor1d(numbers[is_start], sync)[0]
        kind = "a" if wrong in sync else "not a"
        raise UntrustedTables(f"the tables list sample {wrong} as {kind} sync sample, but its picture contradicts this")
    if codec == "hevc" and pictures.damaged[is_start].any():
        raise UntrustedTables("every packet must be read to find pictures that depend on a damaged random access point")
    return picture_facts.only(pictures, is_start), picture_facts.only(pictures, numbers < first)


def _scan_beginning(
    read: Read, demuxed: Demuxed, sync: NDArray[np.int64], codec: str, configuration: bytes
) -> tuple[picture_facts.Pictures, picture_facts.Pictures]:
    """Return (properties of the first random access point, properties of the packets that one request reads).

    The request reads up to MAX_LOOKED_AT packets at the beginning of the first GOP.
    """
    if codec == "h264" and configuration[1:2] == HIGH_444:
        # The decoder reproduces errors of the x264 version that an SEI message states. Any packet may have this
        # message.
        raise UntrustedTables("the decoder may need the x264 version, which a later SEI message may state")
    most = min(MAX_LOOKED_AT, int(sync[1]) if len(sync) > 1 else len(demuxed.size))
    begin = demuxed.offset[: most + 1]
    near = np.abs(begin - begin[1:2].sum()) < READ_AT_ONCE if most > 1 else np.ones(1, np.bool_)
    first = max(1, int(np.argmin(near[1:most]) + 1 if not near[1:most].all() else most))
    pictures = scan(read, codec, configuration, demuxed.offset[:first], demuxed.size[:first])
    is_start = pictures.start != picture_facts.NO_START
    if not is_start[0] or is_start[1:].any():
        raise UntrustedTables("the sync samples are not the random access points")
    return picture_facts.only(pictures, is_start), pictures


def _check_counts(pictures: picture_facts.Pictures, rank: NDArray[np.int64]) -> None:
    """Check that the picture order counts of HEVC random access points agree with the number of pictures between them.

    Only open random access points are checked, because the count begins again at closed ones. Headers state the count
    only modulo the stream's MaxPicOrderCntLsb, a multiple of COUNT_MODULUS. So counts of distant pictures are compared
    modulo COUNT_MODULUS.

    Args:
        pictures: The properties of the random access points.
        rank: int64 [random access points], their positions in output order.

    Raises:
        UntrustedTables: Pictures are missing or duplicated.
    """
    continued = (np.diff(pictures.period) == 0) & (pictures.start[1:] == picture_facts.OPEN_START)
    counted, there = np.diff(pictures.order)[continued], np.diff(rank)[continued]
    if not any(((counted - step * there) % COUNT_MODULUS == 0).all() for step in COUNT_STEPS):
        raise UntrustedTables("picture order counts contradict the number of pictures between random access points")


def _check_order(times: NDArray[np.int64], flags: timeline.Flags) -> None:
    """Raise UntrustedTables if no packet presents a frame, or if two sorted times are equal.

    If two times are equal, only the bitstream shows which picture is output first.
    """
    if ((flags & timeline.UNSHOWN) != 0).all():
        raise UntrustedTables("no sample presents a frame")
    if not np.diff(times).all():
        raise UntrustedTables("several samples have the same timestamp")


def probe_tables(
    layout: Layout, track_id: int, file: Probed, medium: facts.MediumFacts, described: facts.StreamFacts, *, prove: int
) -> facts.MediumFacts:
    """Return the medium with the metadata from its sample tables added.

    Args:
        layout: The boxes of the file.
        track_id: The number of the stream's track.
        file: The file or object.
        medium: The metadata that is known already.
        described: The metadata of the stream from headers.
        prove: The number of random frames to decode twice, as clips decode them and from further back. The two pictures
            of each frame are compared.

    Raises:
        UntrustedTables: Packets have to be read.
    """
    found = tabulate(file.read, layout, track_id, described, file if isinstance(file, ProbedFile) else None)
    demuxed, pts, flags, pictures = found.demuxed, found.demuxed.pts, found.flags, found.pictures
    summary = packet_facts.summary_of(described, demuxed, pts, flags)
    problem = packet_facts.remarks(summary, flags, None)
    # Some values are known only if the headers of all packets, or of all random access points, were read.
    has_read_all, stated = bool(found.read.all()), (flags & timeline.STATED) != 0
    if not has_read_all:
        summary = replace(summary, non_reference_share=None)
    if stated.any():
        summary = replace(summary, open_gop_count=None)
    field_coded: bool | None = bool(pictures.field_coded.any())
    if pictures.may_hold_fields and not has_read_all:
        field_coded = field_coded or bool((flags & timeline.FIELD_CODED).any()) or None
    coding = packet_facts.coding_of(demuxed, pictures, field_coded, _hides_unordered(found))
    proof = None
    if prove:
        differs = _drawn_differing(found, file, described, coding, prove)
        if differs.any():
            raise UntrustedTables("a frame differs between the decode that a clip uses and a decode from further back")
        proof = packet_facts.proof_facts(SAMPLED, differs, pts, flags)
    track = layout.movie.tracks[track_id]
    return replace(
        medium,
        stream=described,
        coding=coding,
        timeline=packet_facts.timeline_of("tables", timeline.CONTAINER, demuxed.size, summary, hashed=False),
        proof=proof,
        rotation_degrees=track.rotation_degrees,
        is_mirrored=track.is_mirrored,
        problem=problem,
        # `pictures` has only random access points, so `pictures.state` has one element for each of them.
        packets=packet_facts.packet_columns(
            demuxed, pictures.state, pts, np.ma.masked_array(flags, ~(found.read | stated))
        ),
    )


def _drawn_differing(
    found: Tabulated, file: Probed, described: facts.StreamFacts, coding: facts.CodingFacts, count: int
) -> NDArray[np.bool_]:
    """Draw `count` frames at random, and compare each with the same frame decoded from further back.

    Returns:
        bool [packets], whether the frame was drawn and the two pictures differ.

    Raises:
        UntrustedTables: Packet headers contradict the tables.
    """
    demuxed, starts = found.demuxed, np.flatnonzero(found.flags & timeline.START)
    state = np.zeros(len(found.flags), np.int32)
    # Only the headers of the first random access points were read. The other random access points have state 0.
    state[starts[: len(found.pictures.state)]] = found.pictures.state
    packets = Packets(
        pts=demuxed.pts, offset=demuxed.offset, size=demuxed.size, flags=found.flags, read=found.read, state=state
    )
    targets = drawn(found.flags, count, drop_leading=drops_leading(described.codec))
    headers = UnreadHeaders(packets, described, coding, file.read, where=file.name)
    try:
        headers.read(targets)
    except PolicyError as error:
        raise UntrustedTables(error.what) from error
    flags = headers.packets.flags
    states, ordered = state[(flags & timeline.START) != 0], not coding.hidden_unordered
    stream = stream_of(described, coding.states, states, demuxed.pts, flags, where=file.name, ordered=ordered)
    packets_of = functools.partial(packets_in_ranges, file.read, demuxed.offset, demuxed.size)
    return differing_samples(stream, flags, targets, packets_of)


def _hides_unordered(found: Tabulated) -> bool:
    """Return whether the output order of hidden packets differs from the order of their timestamps."""
    if len(found.pictures.start) == len(found.flags):  # `pictures` has all packets, so their output order is known
        return timeline.has_unordered_hidden(found.demuxed.pts, found.flags, found.pictures)
    # In GOPs with hidden packets, all headers were read. Then `flags_of` has raised an error if the orders differ,
    # unless packets are damaged.
    return bool((found.flags & timeline.HIDDEN).any() and (found.flags & timeline.DAMAGED).any())
