"""Depth `tables`: the facts of a stream from its sample tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.containers.medium_file import Probed, ProbedFile
from framedex.indexer.facts import (
    MediumFacts,
    StreamFacts,
)
from framedex.indexer.mp4.sample_tables import Layout
from framedex.indexer.probing.by_tables import Tabulated, tabulate
from framedex.indexer.probing.packet_facts import coding_of, packet_columns, remarks, summary_of, timeline_of
from framedex.indexer.timeline import (
    CONTAINER,
    DAMAGED,
    FIELD_CODED,
    HIDDEN,
    STATED,
    Summary,
    has_unordered_hidden,
)


def probe_tables(
    layout: Layout, track_id: int, file: Probed, medium: MediumFacts, described: StreamFacts
) -> MediumFacts:
    """Return the medium with the facts from its sample tables. Raises UntrustedTables if packets have to be read."""
    found = tabulate(
        file.read,
        layout,
        track_id,
        codec=described.codec,
        configuration=described.extradata or b"",
        reorder_depth=described.reorder_depth,
        descriptor=file.descriptor if isinstance(file, ProbedFile) else None,
    )
    demuxed, pts, flags, pictures = found.demuxed, found.demuxed.pts, found.flags, found.pictures
    summary = summary_of(described, demuxed, pts, flags)
    stated = (flags & STATED) != 0
    timeline = timeline_of("tables", CONTAINER, demuxed, _summary(summary, found.read, stated), hashed=False)
    return replace(
        medium,
        stream=described,
        coding=coding_of(demuxed, pictures, _fields(found), _hide_unordered(found)),
        timeline=timeline,
        rotation_degrees=found.rotation_degrees,
        problem=remarks(summary, flags, None),
        # `pictures` holds start points alone, so `state` has one element per start point.
        packets=packet_columns(demuxed, pictures.state, pts, np.ma.masked_array(flags, ~(found.read | stated))),
    )


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
