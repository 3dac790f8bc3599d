"""Functions that turn the packets of a stream into records of its metadata. Both index depths use them."""

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
    """Return the summary of a stream's timeline. Raises MediaError if the stream has no time base."""
    shown = np.flatnonzero((flags & timeline.UNSHOWN) == 0)
    last = shown[np.argmax(pts[shown])]
    if described.time_base_num is None or described.time_base_den is None:
        raise MediaError("timestamps", "the stream has no time base")
    time_base_seconds = described.time_base_num / described.time_base_den
    return timeline.summarise(
        pts, flags, last_duration=int(demuxed.duration[last]), time_base_seconds=time_base_seconds
    )


def timeline_of(
    depth: str,
    source: str,
    size: NDArray[np.int64],
    summary: timeline.Summary,
    *,
    hashed: bool,
    crc32: NDArray[np.int64] | None = None,
) -> TimelineFacts:
    """Return the record of a stream's timeline.

    Args:
        depth: The depth at which the stream was probed, `packets` or `tables`.
        source: The origin of the timestamps (the column `pts_source`).
        size: int64 [packets], in bytes.
        summary: The summary of the timeline.
        hashed: Whether the frames were hashed.
        crc32: int64 [packets], the checksums of images. None for videos.
    """
    return TimelineFacts(
        depth=depth,
        pts_source=source,
        hashed=hashed,
        summary=summary,
        packet_count=len(size),
        packet_bytes=int(size.sum()),
        first_packets=first_packets(size, crc32),
    )


def coding_of(demuxed: Demuxed, pictures: Pictures, field_coded: bool | None, hidden_unordered: bool) -> CodingFacts:
    """Return the properties of a stream's coding.

    Args:
        demuxed: The packets.
        pictures: The properties of the pictures.
        field_coded: Whether some packets hold single fields. None if it is unknown.
        hidden_unordered: Whether the output order of hidden packets differs from the order of their timestamps.
    """
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
        proof: The extent of the proof: EVERY_FRAME or SAMPLED.
        differs: bool [packets]. True if the picture that a run gives differs from the one that a decode from further
            back gives.
        pts: int64 [packets], the timestamps.
        flags: int32 [packets]. `NOT_REPRODUCIBLE` is already set in GOPs with such differences.
    """
    frames, starts = timeline.presentation_order(pts, flags), flags[(flags & timeline.START) != 0]
    return ProofFacts(
        proof=proof,
        proved_by=ffmpeg_version(),
        not_reproducible_gop_count=int(np.count_nonzero(starts & timeline.NOT_REPRODUCIBLE)),
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
    """Return a description of a usable stream's damage and of the limits of its use, or None if it has neither.

    Args:
        summary: The summary of the stream's timeline.
        flags: int32 [packets].
        truncation: A description of where the file is truncated. None if the file is complete.
        proof: The result of the proof. None if no frames were compared.
        unpackable: The stream's codec if clips can be read neither from the file nor from tiny files. None otherwise.
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
            f"clips need --pack images: packets are not ranges of the file, and tiny files cannot hold {unpackable}"
        )
    return Problem(status=None, kind=kind, message="; ".join(found)) if found else None


def packet_columns(
    demuxed: Demuxed, state: NDArray[np.int32], pts: timeline.Pts, flags: timeline.Flags
) -> PacketColumns:
    """Return the packets as columns of `frames`. Masked elements become null.

    Args:
        demuxed: The packets.
        state: int32 [random access points], the number of the state that a decoder must be given there.
        pts: int64 [packets], the timestamps.
        flags: int32 [packets]. The flags of packets that were not read are masked.
    """
    slots = np.ma.filled(flags, 0) >> timeline.USED_SHIFT  # 0 for packets that were not read
    return PacketColumns(
        pts=np.ma.masked_equal(pts, NO_PTS) if (pts == NO_PTS).any() else pts,
        offset=demuxed.offset if demuxed.addressable else None,
        size=demuxed.size,
        flags=flags & timeline.FLAGS,
        slots=slots if slots.any() else None,
        start_state=state if state.any() else None,
    )
