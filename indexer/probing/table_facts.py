"""Depth `tables`: the facts of a stream from its sample tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.containers.medium_file import Probed, ProbedFile
from framedex.indexer.facts import (
    MediumFacts,
    StreamFacts,
)
from framedex.indexer.mp4.boxes import UntrustedTables
from framedex.indexer.mp4.sample_tables import Layout
from framedex.indexer.parts.packets import Packets
from framedex.indexer.plans.reach import drops_leading
from framedex.indexer.probing.by_tables import Tabulated, tabulate
from framedex.indexer.probing.packet_facts import (
    coding_of,
    packet_columns,
    proof_facts,
    remarks,
    summary_of,
    timeline_of,
)
from framedex.indexer.probing.unread_headers import UnreadHeaders
from framedex.indexer.proofs.runs import stream_of
from framedex.indexer.proofs.sampled import differing_samples, drawn, needed_for, packets_in_ranges
from framedex.indexer.timeline import (
    CONTAINER,
    DAMAGED,
    FIELD_CODED,
    HIDDEN,
    START,
    STATED,
    Summary,
    has_unordered_hidden,
)
from framedex.records.medium import SAMPLED


def probe_tables(
    layout: Layout, track_id: int, file: Probed, medium: MediumFacts, described: StreamFacts, *, prove: int
) -> MediumFacts:
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
    summary = summary_of(described, demuxed, pts, flags)
    proof = None
    if prove:
        differs = _differing(found, file, described, prove)
        if differs.any():
            raise UntrustedTables("a frame that a clip's decoder gives differs from that of a decode from further back")
        proof = proof_facts(SAMPLED, differs, pts, flags)
    stated = (flags & STATED) != 0
    timeline = timeline_of("tables", CONTAINER, demuxed, _summary(summary, found.read, stated), hashed=False)
    return replace(
        medium,
        stream=described,
        coding=coding_of(demuxed, pictures, _fields(found), _hide_unordered(found)),
        timeline=timeline,
        proof=proof,
        rotation_degrees=found.rotation_degrees,
        problem=remarks(summary, flags, None),
        # `pictures` holds start points alone, so `state` has one element per start point.
        packets=packet_columns(demuxed, pictures.state, pts, np.ma.masked_array(flags, ~(found.read | stated))),
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


def _differing(found: Tabulated, file: Probed, described: StreamFacts, count: int) -> NDArray[np.bool_]:
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
    # All headers of GOPs with hidden packets were read. `judge` rejects a wrong order, unless packets are damaged.
    return bool((found.flags & HIDDEN).any() and (found.flags & DAMAGED).any())
