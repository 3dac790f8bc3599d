"""Facts of a medium, as frozen records: what probing returns, and what `media_rows` turns into rows of an index.

Fields have the names of their columns (docs/format.md), those of audio without the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framedex.errors import MediaError
from framedex.indexer.schema import FAILED, REFUSED
from framedex.indexer.timeline import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What tells a file, an object or a folder of images from what lies there later."""

    size_bytes: int
    mtime_ns: int
    fingerprint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """What headers say of a video stream, or the first image of a sequence."""

    codec: str
    pixel_format: str | None
    width: int
    height: int
    color_range: str | None
    color_matrix: int
    color_primaries: int
    color_transfer: int
    time_base_num: int | None
    time_base_den: int | None
    reorder_depth: int
    codec_tag: str | None = None
    bits_per_coded_sample: int | None = None
    profile: str | None = None
    field_order: str | None = None
    sample_aspect_ratio: float | None = None
    extradata: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What a header states of a stream's length and rate; None where it states nothing that can be."""

    stated_frames: int | None
    stated_duration_seconds: float | None
    stated_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingFacts:
    """What the packets of a stream show of its coding. None: only reading every packet tells."""

    states: list[bytes]
    inband_parameter_sets: bool
    inner_start_codes: bool
    varying_shape: bool
    field_coded: bool | None
    hidden_unordered: bool
    byte_addressable: bool
    chroma_format: int | None = None
    max_ref_frames: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineFacts:
    """The timeline of a stream in a few numbers, and how it was found out.

    non_reference_share and open_gop_count of the summary are None where only reading every packet tells.
    """

    depth: str
    pts_source: str
    hashed: bool
    summary: Summary
    packet_count: int
    packet_bytes: int
    first_packets: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a medium cannot be used, or, with `status` None, what is damaged in one that can."""

    status: str | None
    kind: str | None
    message: str | None
    traceback: str | None = None


def problem_of(error: MediaError) -> Problem:
    """Return why a medium cannot be used."""
    status = REFUSED if error.refused else FAILED
    return Problem(status=status, kind=error.kind, message=error.what, traceback=error.traceback)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketColumns:
    """The packets of a medium in decode order, columns of n. Masked elements of pts and flags are null.

    pts: int64. offset: int64, None where packets are not one byte range of the file each. size: int64. flags: int32.
    start_state: int32 [starts]. md5: with --verify, 16 bytes or None each. crc32, path: of images.
    """

    pts: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]
    flags: NDArray[np.int32]
    start_state: NDArray[np.int32] | None = None
    md5: Sequence[bytes | None] | None = None
    crc32: NDArray[np.int64] | None = None
    path: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPackets:
    """The packets of an audio stream in decode order, int64 columns of n; offset as in PacketColumns."""

    sample: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    size: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFacts:
    """The first audio stream of a file. problem: why it is not available; then only some of the rest is known."""

    stream_index: int
    start_seconds: float | None = None
    duration_seconds: float | None = None
    codec: str | None = None
    codec_tag: str | None = None
    rate: int | None = None
    channels: int | None = None
    layout: str | None = None
    sample_format: str | None = None
    bits_per_coded_sample: int | None = None
    extradata: bytes | None = None
    first_sample: int | None = None
    end_sample: int | None = None
    problem: str | None = None
    packets: AudioPackets | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediumFacts:
    """A medium as it was probed. What is not known is None; of a usable medium, everything but `audio` and `problem` is.

    kind: VIDEO or IMAGES. stream_index: -1 without a stream. is_best: whether the stream is the file's best. member: which of
    several media of its file.
    """

    kind: str
    stream_index: int = -1
    is_best: bool = True
    member: str | None = None
    identity: Identity | None = None
    container: str | None = None
    video_streams: int | None = None
    stream: StreamFacts | None = None
    stated: Stated | None = None
    coding: CodingFacts | None = None
    timeline: TimelineFacts | None = None
    rotation_degrees: int | None = None
    problem: Problem | None = None
    audio: AudioFacts | None = None
    packets: PacketColumns | None = None

    @property
    def is_usable(self) -> bool:
        """Whether its frames are available."""
        return self.problem is None or self.problem.status is None
