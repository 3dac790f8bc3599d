"""Facts of a stream from its packets, for both depths."""

import numpy as np
from numpy.typing import NDArray

from framedex.core.pyav import ffmpeg_version
from framedex.errors import MediaError
from framedex.files.outputs import first_packets
from framedex.indexer import timeline
from framedex.indexer.bitstream.base import Pictures
from framedex.indexer.facts import CodingFacts, Problem, ProofFacts, StreamFacts, TimelineFacts
from framedex.indexer.probing.by_packets import Demuxed
from framedex.records.clip import NO_PTS
from framedex.records.medium import PacketColumns


def summary_of(described: StreamFacts, demuxed: Demuxed, pts: timeline.Pts, flags: timeline.Flags) -> timeline.Summary:
    """Return the summary of a timeline. Raises MediaError if the stream states no time base."""
    shown = np.flatnonzero((flags & timeline.UNSHOWN) == 0)
    last = shown[np.argmax(pts[shown])]
    if described.time_base_num is None or described.time_base_den is None:
        raise MediaError("timestamps", "the stream has no time base")
    time_base_seconds = described.time_base_num / described.time_base_den
    return timeline.summarise(
        pts, flags, last_duration=int(demuxed.duration[last]), time_base_seconds=time_base_seconds
    )


def timeline_of(depth: str, source: str, demuxed: Demuxed, summary: timeline.Summary, *, hashed: bool) -> TimelineFacts:
    """Return a stream's timeline and its origin. For `depth` and `source`, see `TimelineFacts`."""
    return TimelineFacts(
        depth=depth,
        pts_source=source,
        hashed=hashed,
        summary=summary,
        packet_count=len(demuxed.size),
        packet_bytes=int(demuxed.size.sum()),
        first_packets=first_packets(demuxed.size),
    )


def coding_of(demuxed: Demuxed, pictures: Pictures, field_coded: bool | None, hidden_unordered: bool) -> CodingFacts:
    """Return the facts about a stream's coding. For `field_coded` and `hidden_unordered`, see `CodingFacts`."""
    return CodingFacts(
        states=list(pictures.states),
        inband_parameter_sets=pictures.inband_sets,
        inner_start_codes=pictures.inner_start_codes,
        varying_shape=pictures.varying_shape,
        field_coded=field_coded,
        hidden_unordered=hidden_unordered,
        byte_addressable=demuxed.addressable,
        chroma_format=pictures.chroma_format,
        max_ref_frames=pictures.max_ref_frames,
    )


def proof_facts(proof: str, differs: NDArray[np.bool_], pts: timeline.Pts, flags: timeline.Flags) -> ProofFacts:
    """Return the result of a proof.

    Args:
        proof: EVERY_FRAME or SAMPLED.
        differs: bool [packets], pictures of runs that differ from those of a decode from further back.
        pts: int64 [packets].
        flags: int32 [packets], in which `NOT_REPRODUCIBLE` is set.
    """
    frames = timeline.presentation_order(pts, flags)
    return ProofFacts(
        proof=proof,
        proved_by=ffmpeg_version(),
        not_reproducible_gop_count=int(
            np.count_nonzero(flags[(flags & timeline.START) != 0] & timeline.NOT_REPRODUCIBLE)
        ),
        first_difference=int(np.argmax(differs[frames])) if differs[frames].any() else None,
    )


def remarks(
    summary: timeline.Summary,
    flags: timeline.Flags,
    truncation: str | None,
    proof: ProofFacts | None = None,
    *,
    unpackable: str | None = None,
) -> Problem | None:
    """Return the damage of a usable stream and the limits of its use. None stands for neither.

    Args:
        summary: the summary of its timeline.
        flags: int32 [packets].
        truncation: how its end is cut off, in words. If None, it is whole.
        proof: the proof of its frames.
        unpackable: its codec if clips can be read neither from its file nor from tiny files.
    """
    found = []
    before = int(np.argmax((flags & timeline.START) != 0))
    if summary.damaged_gop_count > (before > 0):
        found.append(f"{summary.damaged_gop_count - (before > 0)} of {summary.keyframe_count} GOPs are damaged")
    if proof is not None and proof.first_difference is not None:
        found.append(
            f"{proof.not_reproducible_gop_count} of these are not reproducible (a clip's decoder gives other pictures "
            f"than a full decode, first at frame {proof.first_difference})"
        )
    if before:
        found.append(f"{before} packets come before the first start point and are left out")
    if truncation:
        found.append(f"the file is truncated: {truncation}")
    kind = "truncated" if truncation else "damaged"
    if unpackable is not None:
        kind = kind if found else "unpackable"
        found.append(
            f"clips need --pack images: packets are not ranges of the file, and no tiny file can hold {unpackable}"
        )
    return Problem(status=None, kind=kind, message="; ".join(found)) if found else None


def packet_columns(
    demuxed: Demuxed, state: NDArray[np.int32], pts: timeline.Pts, flags: timeline.Flags
) -> PacketColumns:
    """Return the columns of packets. Masked elements are null.

    Args:
        demuxed: the packets.
        state: int32 [starts], the state that a decoder must be given at each random access point.
        pts: int64 [packets].
        flags: int32 [packets].
    """
    slots = np.ma.filled(flags, 0) >> timeline.USED_SHIFT  # slots of packets that were not read are unknown
    return PacketColumns(
        pts=np.ma.masked_equal(pts, NO_PTS) if (pts == NO_PTS).any() else pts,
        offset=demuxed.offset if demuxed.addressable else None,
        size=demuxed.size,
        flags=flags & timeline.FLAGS,
        slots=slots if slots.any() else None,
        start_state=state if state.any() else None,
    )
