"""Frozen records with the metadata of a medium. Probing returns these records, and they become rows of an index.

Each field has the name of its column in the index (docs/format.md), except that fields of audio lack the prefix
`audio_`.
"""

from dataclasses import dataclass, fields

from framedex.errors import MediaError
from framedex.indexer.timeline import Summary
from framedex.records.columns import Row, columns_of, values_of
from framedex.records.medium import FAILED, OK, REFUSED, AudioPackets, MediumRecord, PacketColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The size, modification time and fingerprint of a file, an object or a folder of images.

    A rerun compares these values to detect changes of the medium.
    """

    size_bytes: int
    mtime_ns: int
    fingerprint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """The codec parameters in the headers of a video stream or of a sequence's first image."""

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
    """The length and frame rate of a stream, from a header. A field is None if the value is missing or impossible."""

    stated_frames: int | None
    stated_duration_seconds: float | None
    stated_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingFacts:
    """Coding properties of a stream, from its packets. Some fields are None unless every packet was read."""

    states: list[bytes]
    inband_parameter_sets: bool = False
    inner_start_codes: bool = False
    varying_shape: bool
    field_coded: bool | None = False
    hidden_unordered: bool = False
    byte_addressable: bool
    chroma_format: int | None = None
    max_ref_frames: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineFacts:
    """The summary of a stream's timeline, and the method by which the timeline was determined.

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
    """The result of a proof.

    A proof decodes frames as clips decode them, from a near random access point. It decodes the same frames again from
    further back, and compares the pictures.
    """

    proof: str
    proved_by: str
    not_reproducible_gop_count: int = 0
    first_difference: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The reason why a medium is not usable.

    If `status` is None, the medium is usable, and `message` describes damage of the medium.
    """

    status: str | None
    kind: str | None
    message: str | None
    traceback: str | None = None


def problem_of(error: MediaError) -> Problem:
    """Convert an error that probing raised into the problem of a medium that is not usable."""
    status = REFUSED if error.refused else FAILED
    return Problem(status=status, kind=error.kind, message=error.what, traceback=error.traceback)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFacts:
    """The first audio stream of a file.

    Attributes:
        problem: The reason why the audio is not available. None if the audio is available. If there is a problem, some
            other fields are None.
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
    """The metadata of a medium, as probing found them. Fields whose values are unknown are None.

    Of the fields that apply to a usable medium, only `audio`, `proof` and `problem` may be None.

    Attributes:
        kind: The kind of the medium, VIDEO or IMAGES.
        stream_index: The number of the video stream in the file. -1 if there is no stream.
        is_best: Whether the stream is the best one of the file.
        member: The name of the medium in a file with several media. None for other files.
        member_offset: The offset of the video in a file with several media, in bytes. If None, the video is the whole
            file, or has no byte range in the file.
        member_bytes: The size of the video in a file with several media, in bytes. None for other files.
        sidecars: The user columns that a tar or a Parquet file states for a medium inside it, as JSON. None for other
            media.
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
    is_mirrored: bool = False
    problem: Problem | None = None
    audio: AudioFacts | None = None
    packets: PacketColumns | None = None


# The fields of MediumFacts that are columns of `videos`. `proof` is excluded: in MediumFacts, it is a record, and the
# column `proof` is a field of this record.
SINGLE = tuple(one.name for one in fields(MediumFacts) if one.name in columns_of(MediumRecord) and one.name != "proof")


def rows_of(medium: MediumFacts) -> tuple[Row, Row]:
    """Return (row of `videos`, row of `frames`) of a medium, without the columns for id and uri.

    If a record of the medium is None, the row of `videos` lacks the columns of this record, and the table has null
    there.
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
    if medium.packets is None or video["status"] != OK:
        return video, no_frames()
    frames = values_of(medium.packets)
    if medium.audio is not None and medium.audio.packets is not None:
        frames |= {f"audio_{name}": value for name, value in values_of(medium.audio.packets).items()}
    return video, frames


def no_frames() -> Row:
    """Return the row of `frames` for a medium that is not usable."""
    return {"pts": [], "offset": None, "size": [], "flags": []}
