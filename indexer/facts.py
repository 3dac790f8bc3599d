"""Facts of a medium: the frozen records that probing returns. They become rows of an index.

Fields have the names of their columns (docs/format.md). Fields of audio lack the prefix `audio_`.
"""

from dataclasses import dataclass, fields
from typing import Any

from framedex.errors import MediaError
from framedex.indexer.timeline import Summary
from framedex.records.columns import columns_of, values_of
from framedex.records.medium import FAILED, OK, REFUSED, AudioPackets, MediumRecord, PacketColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The size, time and fingerprint of a file, an object or a folder of images. They show whether it has changed."""

    size_bytes: int
    mtime_ns: int
    fingerprint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """Facts about a video stream or the first image of a sequence, from its headers."""

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
    """The length and rate of a stream, from a header. A field is None if its value is missing or impossible."""

    stated_frames: int | None
    stated_duration_seconds: float | None
    stated_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingFacts:
    """Facts about the coding of a stream, from its packets. Some fields are None unless every packet was read."""

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
    """The summary of a stream's timeline, and how it was determined.

    `non_reference_share` and `open_gop_count` of the summary are None unless every packet was read.
    """

    depth: str
    pts_source: str
    hashed: bool
    summary: Summary
    packet_count: int
    packet_bytes: int
    first_packets: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofFacts:
    """The result of decoding frames twice: from the random access points of clips, and from further back."""

    proof: str
    proved_by: str
    not_reproducible_gop_count: int = 0
    first_difference: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The reason why a medium is not usable. If `status` is None, it is usable, and `message` describes its damage."""

    status: str | None
    kind: str | None
    message: str | None
    traceback: str | None = None


def problem_of(error: MediaError) -> Problem:
    """Return the problem of a medium that is not usable, from the error that probing raised."""
    status = REFUSED if error.refused else FAILED
    return Problem(status=status, kind=error.kind, message=error.what, traceback=error.traceback)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFacts:
    """The first audio stream of a file.

    Attributes:
        problem: The reason why the audio is not available; then some other fields are None. None if it is available.
    """

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
    """A medium as it was probed. Unknown facts are None.

    All facts of a usable medium are known, except `audio`, `proof` and `problem`.

    Attributes:
        kind: VIDEO or IMAGES.
        stream_index: The number of the stream, or -1 without a stream.
        is_best: Whether the stream is the best one of the file.
        member: The name of the medium in a file of several media, else None.
        member_offset: The position of a video inside the file. If None, the video is the file.
        member_bytes: The size of a video inside the file.
        sidecars: The user's columns for the medium, as JSON.
    """

    kind: str
    stream_index: int = -1
    is_best: bool = True
    member: str | None = None
    member_offset: int | None = None
    member_bytes: int | None = None
    sidecars: str | None = None
    identity: Identity | None = None
    container: str | None = None
    video_streams: int | None = None
    stream: StreamFacts | None = None
    stated: Stated | None = None
    coding: CodingFacts | None = None
    timeline: TimelineFacts | None = None
    proof: ProofFacts | None = None
    rotation_degrees: int | None = None
    problem: Problem | None = None
    audio: AudioFacts | None = None
    packets: PacketColumns | None = None

    @property
    def is_usable(self) -> bool:
        """Whether clips can be made of the medium."""
        return self.problem is None or self.problem.status is None


Row = dict[str, Any]

# The facts that are columns of `videos` themselves. `proof` is a record with a column of the same name.
SINGLE = tuple(one.name for one in fields(MediumFacts) if one.name in columns_of(MediumRecord) and one.name != "proof")


def rows_of(medium: MediumFacts) -> tuple[Row, Row]:
    """Return the rows of `videos` and `frames` for a medium, without its id and uri.

    The row of `videos` lacks the columns of missing records, which become null.
    """
    video = {name: getattr(medium, name) for name in SINGLE} | {"status": OK}
    for record in (medium.identity, medium.stream, medium.stated, medium.coding, medium.timeline, medium.proof):
        video |= {} if record is None else values_of(record)
    if medium.timeline is not None:
        video |= values_of(video.pop("summary"))
    if medium.problem is not None:
        video |= {f"error_{name}": getattr(medium.problem, name) for name in ("kind", "message", "traceback")}
        video["status"] = medium.problem.status or OK
    if medium.audio is not None:
        video |= {f"audio_{name}": value for name, value in values_of(medium.audio).items() if name != "packets"}
    if medium.packets is None or not medium.is_usable:
        return video, no_frames()
    frames = values_of(medium.packets)
    if medium.audio is not None and medium.audio.packets is not None:
        frames |= {f"audio_{name}": value for name, value in values_of(medium.audio.packets).items()}
    return video, frames


def no_frames() -> Row:
    """Return the row of `frames` for a medium that is not usable."""
    return {"pts": [], "offset": None, "size": [], "flags": []}
