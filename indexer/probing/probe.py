"""Probe one file: open it safely, choose its video streams, and return the metadata of each stream.

Plain files are probed without libavformat. A file is plain if it is an MP4 whose only track is progressive 8-bit H.264
video. This is faster: when libavformat opens a file, it decodes the first pictures, which takes longer than reading all
sample tables. The result is the same as with libavformat. All other files are opened with libavformat.

If a video is stored inside another file, such as a tar, the offsets of its packets are offsets in the outer file.
"""

import struct
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeVar

import av
import numpy as np
from av.video.codeccontext import VideoCodecContext

from framedex.core.pyav import fraction_of
from framedex.errors import MediaError
from framedex.indexer import containers
from framedex.indexer.bitstream.base import NO_ASPECT, BitstreamError
from framedex.indexer.bitstream.h264_sets import SPS, Sps, parse_configuration, parse_sps
from framedex.indexer.facts import Identity, MediumFacts, Problem, Stated, StreamFacts, problem_of
from framedex.indexer.mp4.boxes import TruncatedError, UntrustedTables, child_boxes
from framedex.indexer.mp4.sample_tables import read_layout
from framedex.indexer.mp4.tracks import VISUAL_HEADER_BYTES, Movie, Track, entry_table, read_sample_entries
from framedex.indexer.probing.by_tables import probe_tables
from framedex.indexer.probing.every_packet import probe_packets
from framedex.indexer.probing.probe_audio import describe_audio
from framedex.indexer.probing.probe_images import ImageTask, probe_images
from framedex.indexer.schema import NO_VIDEO, SCANNED
from framedex.indexer.sources.members import FileMember
from framedex.indexer.sources.named_medium import Holder, Sidecar
from framedex.records.medium import COLOR_RANGES, FIELD_ORDERS, IMAGES, VIDEO, AudioPackets, PacketColumns
from framedex.storage.objects import Facts

PacketsOrNone = TypeVar("PacketsOrNone", PacketColumns | None, AudioPackets | None)


def with_member(medium: MediumFacts, member: FileMember) -> MediumFacts:
    """Return a medium with the name, byte range and sidecars of a member (a video in a tar or a Parquet file)."""
    part = member.part
    return replace(
        medium,
        member=member.name,
        member_offset=None if part is None else part.offset,
        member_bytes=0 if part is None else part.size_bytes,
        sidecars=member.sidecars,
    )


def in_file(medium: MediumFacts, member: FileMember) -> MediumFacts:
    """Change the packet offsets of a medium that was probed as a member into offsets in the outer file.

    Args:
        medium: The medium, with offsets from the member's beginning.
        member: The member.
    """
    assert member.part is not None  # `part` is None only for values of compressed columns; see `in_cell`
    begin = member.part.offset
    return replace(
        with_member(medium, member),
        packets=_move_packets(medium.packets, begin),
        audio=medium.audio and replace(medium.audio, packets=_move_packets(medium.audio.packets, begin)),
        problem=_with_remark(medium.problem, member.remark),
    )


def in_cell(medium: MediumFacts, member: FileMember, size_bytes: int) -> MediumFacts:
    """Remove the packet offsets of a medium that was probed from a copy of a value in a compressed Parquet column.

    Args:
        medium: The medium, with offsets in the copy.
        member: The member.
        size_bytes: The size of the uncompressed value.
    """
    audio = medium.audio
    return replace(
        with_member(medium, member),
        member_bytes=size_bytes,
        coding=medium.coding and replace(medium.coding, byte_addressable=False),
        packets=medium.packets and replace(medium.packets, offset=None),
        audio=audio and replace(audio, packets=audio.packets and replace(audio.packets, offset=None)),
        problem=_with_remark(medium.problem, member.remark),
    )


def _move_packets(packets: PacketsOrNone, by: int) -> PacketsOrNone:
    """Return packets with `by` bytes added to their offsets."""
    return packets if packets is None or packets.offset is None else replace(packets, offset=packets.offset + by)


def _with_remark(problem: Problem | None, remark: str | None, *, kind: str | None = "member") -> Problem | None:
    """Return the problem of a medium, with a remark appended, by default about its member."""
    if remark is None:
        return problem
    if problem is None:
        return Problem(status=None, kind=kind, message=remark)
    return replace(problem, message="; ".join(filter(None, (problem.message, remark))))


MIRRORED = "the display matrix mirrors pictures, so they stay as they are stored"
# Containers whose headers state the duration of a stream. For other containers, libavformat estimates the duration.
STATING = frozenset({"mp4", "matroska", "avi", "flv", "asf", "mxf", "ivf"})
CLOCKED = frozenset({"h263"})  # codecs whose streams state a clock rate instead of a frame rate
# The largest frame rate in frames per second. A larger number is a clock rate, such as 90 000, which streams with
# variable frame rate may state instead.
MAX_STATED_RATE = 1000
CONTAINERS = {"mov,mp4,m4a,3gp,3g2,mj2": "mp4", "matroska,webm": "matroska"}


def container_name(container: av.container.InputContainer) -> str:
    """Return `mp4`, `matroska`, or libavformat's name for another container."""
    return CONTAINERS.get(container.format.name, container.format.name)


def video_streams(container: av.container.InputContainer, *, skips: bool = False) -> list[av.video.stream.VideoStream]:
    """Return the video streams except cover art. The stream that libavformat considers the best is the first.

    Args:
        container: An open container.
        skips: If True, a file without a video stream gets the status `refused`, and the run reports the file as
            skipped. If False, such a file gets the status `failed`.

    Raises:
        MediaError: There is no video stream.
    """
    cover = av.stream.Disposition.attached_pic
    videos = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not videos:
        raise MediaError(NO_VIDEO, "there is no video stream", refused=skips)
    best = container.streams.best("video")
    return sorted(videos, key=lambda stream: (stream is not best, stream.index))


def describe_header(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> Stated:
    """Return a stream's length and rate as the container's header states them."""
    name = container_name(container)
    # The header of a fragmented MP4 does not cover its fragments, so it does not state the number of frames.
    if name not in STATING or (name == "mp4" and not stream.frames):
        return stated(None, None, fraction_of(stream.codec_context.framerate))
    seconds = None if container.duration is None else container.duration / av.time_base
    time_base = fraction_of(stream.time_base)
    if stream.duration is not None and time_base is not None:
        seconds = float(stream.duration * time_base)
    elif len(container.streams) > 1:  # the file's duration may be the duration of a longer stream
        seconds = None
    rate = None if stream.codec_context.codec.canonical_name in CLOCKED else fraction_of(stream.codec_context.framerate)
    if rate is None and name != "mp4":  # for mp4, the average rate is computed by libavformat, not stated by the header
        rate = fraction_of(stream.average_rate)
    frames = stream.frames if name == "mp4" else None  # libavformat only estimates it in other containers
    return stated(frames, seconds, rate)


def describe_stream(stream: av.video.stream.VideoStream) -> StreamFacts:
    """Return the metadata that libavformat reports for a stream. Raises MediaError if FFmpeg has no decoder for it."""
    context = stream.codec_context
    if context is None:
        raise MediaError("no_decoder", "FFmpeg has no decoder for the video stream's codec", refused=True)
    aspect, time_base = fraction_of(stream.sample_aspect_ratio), fraction_of(stream.time_base)
    return StreamFacts(
        codec=context.codec.canonical_name,
        codec_tag=codec_tag_of(context),
        bits_per_coded_sample=context.bits_per_coded_sample,
        profile=context.profile,
        pixel_format=context.pix_fmt,
        width=context.width,
        height=context.height,
        field_order=FIELD_ORDERS.get(int(context.field_order)),
        sample_aspect_ratio=float(aspect) if aspect else None,
        color_range=COLOR_RANGES.get(int(context.color_range)),
        color_matrix=int(context.colorspace),
        color_primaries=int(context.color_primaries),
        color_transfer=int(context.color_trc),
        time_base_num=time_base.numerator if time_base else None,
        time_base_den=time_base.denominator if time_base else None,
        extradata=context.extradata,
        reorder_depth=context.reorder_depth,
    )


def codec_tag_of(context: VideoCodecContext) -> str | None:
    """Return the codec tag, or None if there is none.

    A tag may be a number instead of four letters. A number is kept only for codecs that framedex does not parse,
    because some of their decoders depend on the number. For example, FFmpeg flips raw pictures if the tag is 3 (AVI's
    BI_BITFIELDS). For parsed codecs, a number does not have an effect.
    """
    try:
        tag = context.codec_tag
    except UnicodeDecodeError:
        return None
    is_kept = tag.isprintable() or context.codec.canonical_name not in SCANNED
    return tag if is_kept and tag.strip("\0") else None


def stated(frames: int | None, seconds: float | None, rate: Fraction | None) -> Stated:
    """Return a record of the length and frame rate that a header states. Impossible values become None.

    Args:
        frames: The stated number of frames, or None.
        seconds: The stated duration, or None.
        rate: The stated number of frames per second, or None.
    """
    return Stated(
        stated_frames=frames,
        stated_duration_seconds=seconds if seconds is not None and seconds > 0 else None,
        stated_rate=None if rate is None or not 0 < rate <= MAX_STATED_RATE else float(rate),
    )


# The boxes that the sample entry of a plain file may have. Other boxes may change the metadata in ways that are not
# implemented here. For example, a colr box overrides the colours of the bitstream.
PLAIN_BOXES = frozenset({b"avcC", b"pasp", b"btrt"})
# The value of `depth` in the sample entry of a plain file. libavformat reports it as bits_per_coded_sample. With
# another value, pictures may have a palette.
COLOR_DEPTH = 24
MAX_DURATION = 1 << 62  # used if no duration is stated; larger than any stated duration
PROFILES = {66: "Baseline", 77: "Main", 100: "High"}
CONSTRAINED = 0b010000  # constraint_set1_flag


def describe_plain(movie: Movie) -> tuple[int, StreamFacts, Stated] | None:
    """Return (track id, metadata of the stream, stated length and rate) of a plain file, or None for other files."""
    try:
        (track,) = movie.tracks.values()
        return _describe_track(movie, track) if track.handler == b"vide" else None
    except (UntrustedTables, ValueError, struct.error):
        return None


def _describe_track(movie: Movie, track: Track) -> tuple[int, StreamFacts, Stated] | None:
    entries = read_sample_entries(movie, track)
    if entries.codec_tag != b"avc1" or len(entries.configurations) != 1:
        return None
    [configuration] = entries.configurations
    _, nals = parse_configuration(configuration)
    sets = [nal for nal in nals if nal[0] & 31 == SPS]
    boxes = _entry_boxes(movie.data, track)
    if len(sets) != 1 or boxes is None:
        return None
    _, sps = parse_sps(sets[0])
    aspect = struct.unpack(">II", boxes[b"pasp"]) if b"pasp" in boxes else NO_ASPECT
    left, right, top, bottom = sps.window
    plain = (
        sps.profile in PROFILES
        and sps.shape[:2] == (1, 0)  # 4:2:0 with 8 bits per sample
        and sps.frames_only
        and (sps.width - left - right, sps.height - top - bottom) == (entries.width, entries.height)
        and aspect == sps.sample_aspect
    )
    if not plain or sps.reorder_depth is None:
        return None
    is_constrained = sps.profile == 66 and sps.constraints & CONSTRAINED
    profile = "Constrained Baseline" if is_constrained else PROFILES[sps.profile]
    width, height = sps.sample_aspect
    full_range, primaries, transfer, matrix = sps.shape[-4:]
    stream = StreamFacts(
        codec="h264",
        codec_tag="avc1",
        bits_per_coded_sample=COLOR_DEPTH,
        profile=profile,
        pixel_format="yuvj420p" if full_range == 1 else "yuv420p",
        width=entries.width,
        height=entries.height,
        field_order="progressive",
        sample_aspect_ratio=width / height if width and height else None,
        color_range={0: "limited", 1: "full"}.get(full_range),
        color_matrix=matrix,
        color_primaries=primaries,
        color_transfer=transfer,
        time_base_num=1,
        time_base_den=track.timescale,
        extradata=configuration,
        reorder_depth=sps.reorder_depth,
    )
    return track.track_id, stream, _stated_in_tables(sps, movie, track)


def _entry_boxes(data: bytes, track: Track) -> dict[bytes, bytes] | None:
    """Return the contents of the boxes in a track's only sample entry, by box type. Return None if it is not plain."""
    start, end = track.tables[b"stsd"]
    ((_, first, last),) = child_boxes(data, start + 8, end)
    (depth,) = struct.unpack_from(">H", data, first + VISUAL_HEADER_BYTES - 4)
    found = {kind: data[begin:stop] for kind, begin, stop in child_boxes(data, first + VISUAL_HEADER_BYTES, last)}
    return found if depth == COLOR_DEPTH and found.keys() <= PLAIN_BOXES else None


def _stated_in_tables(sps: Sps, movie: Movie, track: Track) -> Stated:
    """Return the length and frame rate that the headers of a plain file state.

    As in libavformat, the duration is the shortest of the durations that the headers and the edit list state.
    """
    if b"stts" not in track.tables:
        raise UntrustedTables("the track has no stts box")
    counts, steps = entry_table(movie.data, track.tables[b"stts"], 2, "stts").astype(np.int64).T
    rate = Fraction(sps.ticks[1], 2 * sps.ticks[0]) if sps.ticks is not None and all(sps.ticks) else None
    if not counts.sum():
        return stated(None, None, rate)
    units = min(track.duration or MAX_DURATION, int(counts @ steps))
    if track.edits:
        edited = sum(edit.duration for edit in track.edits) * track.timescale
        units = min(units, round(edited / track.movie_timescale))
    return stated(int(counts.sum()), float(Fraction(units, track.timescale)), rate)


Depth = Literal["auto", "packets", "tables"]
Streams = Literal["best", "all"]

# Codecs whose palette may be stored in the container instead of the bitstream.
PALETTE_OUTSIDE = frozenset({"rawvideo", "qtrle", "cinepak", "msvideo1", "msrle", "8bps", "smc"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTask:
    """A file to probe, with the options of probing.

    Attributes:
        path: The absolute path of a file, or the URI of an object.
        depth: The depth of probing. `packets` reads every packet. `tables` reads sample tables and some packet headers.
            `auto` is `tables` if the tables can be trusted, and `packets` otherwise.
        streams: The video streams to probe: the `best` one or `all`. Cover art is never probed.
        verify: Whether to decode every frame, and to compare every frame with the same frame decoded as clips decode
            it. This implies depth `packets`.
        prove: The number of frames of each video to draw at random, to decode as clips decode them, and to compare with
            a decode from further back. With `verify`, all frames are compared.
        images: The storage form and the times of images. None if the file is a video.
        facts: The metadata of an object from a listing of its folder. None if the folder was not listed.
        searched: Whether the file was found by a search instead of being named by the user. A file without a video
            stream is skipped if it was found by a search, and fails otherwise.
        holds: `tar` or `parquet` for a file that contains several media. None if the file itself is the medium.
        sidecars: The kinds of sidecars in a tar that become the user's columns.
        member: The video inside the file. None if the file itself is the video.
        expected: The fingerprint that the file had when `member` was found. None without a member.
    """

    path: str
    depth: Depth = "auto"
    streams: Streams = "best"
    verify: bool = False
    prove: int = 0
    images: ImageTask | None = None
    facts: Facts | None = None
    searched: bool = False
    holds: Holder | None = None
    sidecars: tuple[Sidecar, ...] = ()
    member: FileMember | None = None
    expected: str | None = None


def probe_medium(task: ProbeTask) -> list[MediumFacts]:
    """Return the metadata of each chosen stream of a file, or of each image sequence in the file.

    Unusable files raise no error. A medium that is not usable has a problem with status `failed` or `refused`, an error
    kind and a message.
    """
    if task.images is not None:
        return probe_images(task.path, task.images, verify=task.verify)
    member, medium = task.member, medium_of(task)
    try:
        with containers.opened_file(task.path, member) as file:
            medium = replace(medium, identity=file.identity)
            check_member(task, file.identity)
            found = probe_opened(task, file, medium)
            medium = replace(medium, container=found[0].container, video_streams=found[0].video_streams)
            if medium.video_streams is not None:
                containers.check_unchanged(file)
            return found if member is None else [in_file(one, member) for one in found]
    except MediaError as error:
        return [replace(medium, problem=problem_of(error))]


def medium_of(task: ProbeTask) -> MediumFacts:
    """Return the metadata of a medium that is known before the medium is probed."""
    if task.images is not None:
        return MediumFacts(kind=IMAGES, member=task.images.member)
    medium = MediumFacts(kind=VIDEO)
    return medium if task.member is None else with_member(medium, task.member)


def check_member(task: ProbeTask, identity: Identity) -> None:
    """Raise MediaError if a member cannot be read, or if its outer file has changed since the member was found.

    Args:
        task: The task. If it has no member, nothing is checked.
        identity: The identity of the outer file.
    """
    if task.member is None:
        return
    if identity.fingerprint != task.expected:
        raise MediaError("changing", "the file that holds the video changed while it was indexed")
    if task.member.error is not None:
        raise task.member.error


def probe_opened(task: ProbeTask, file: containers.Probed, medium: MediumFacts) -> list[MediumFacts]:
    """Return the metadata of each chosen stream of an open file or object.

    Args:
        task: The options of probing.
        file: The open file or object.
        medium: The metadata that is known already.

    Raises:
        MediaError: No stream of the file is usable.
        NeedsWholeError: The object has to be copied to this machine first.
    """
    av.logging.set_level(None)  # the index records problems; FFmpeg's own messages would only disturb progress bars
    plain = _probe_plain(task, file, medium)
    if plain is not None:
        return [_as_stored_if_mirrored(plain)]
    with containers.open_medium(file) as container:
        medium = replace(medium, container=container_name(container))
        try:
            streams = video_streams(container, skips=task.searched)
        except MediaError as error:
            return [replace(medium, problem=problem_of(error))]
        medium = replace(medium, video_streams=len(streams))
        chosen = streams if task.streams == "all" else streams[:1]
        found = [
            _as_stored_if_mirrored(_probe_stream(task, container, stream, file, replace(medium, is_best=not number)))
            for number, stream in enumerate(chosen)
        ]
        audio = describe_audio(file, container, tables_only=task.depth == "tables" and not task.verify)
        return [replace(one, audio=audio) for one in found]


def _as_stored_if_mirrored(found: MediumFacts) -> MediumFacts:
    """Return a medium without its rotation, and with a remark, if its display matrix mirrors pictures.

    The index has no column for mirroring, and players show other pictures than rotation alone would give.
    """
    if not found.is_mirrored:
        return found
    return replace(found, rotation_degrees=0, problem=_with_remark(found.problem, MIRRORED, kind=None))


def _probe_plain(task: ProbeTask, file: containers.Probed, medium: MediumFacts) -> MediumFacts | None:
    """Return the metadata of a plain MP4, or None if the file is not plain or its sample tables are not sufficient."""
    if task.depth == "packets" or task.verify:
        return None
    try:
        if file.read(4, 4) != b"ftyp":
            return None
        layout = read_layout(file.read, file.size_bytes)
        if (plain := describe_plain(layout.movie)) is None:
            return None
        track_id, stream, length = plain
        known = replace(medium, container="mp4", video_streams=1, stream_index=0, stated=length)
        return probe_tables(layout, track_id, file, known, stream, prove=task.prove)
    except (UntrustedTables, TruncatedError):
        return None


def _probe_stream(
    task: ProbeTask,
    container: av.container.InputContainer,
    stream: av.video.stream.VideoStream,
    file: containers.Probed,
    medium: MediumFacts,
) -> MediumFacts:
    try:
        described = describe_stream(stream)
        medium = replace(medium, stream_index=stream.index, stream=described, stated=describe_header(container, stream))
        if described.pixel_format == "pal8" and described.codec in PALETTE_OUTSIDE:
            raise BitstreamError("palette", "the palette of the pictures is in the container, not in the bitstream")
        found = _try_tables(task, stream, file, medium, described)
        if found is None:
            found = probe_packets(stream, file.whole(), medium, described, verify=task.verify, prove=task.prove)
        if found.rotation_degrees is None:
            rotation_degrees, is_mirrored = _decode_display(file, stream.index)
            found = replace(found, rotation_degrees=rotation_degrees, is_mirrored=is_mirrored)
        return found
    except BitstreamError as error:
        problem = MediaError(error.kind, str(error), refused=not error.damaged)
    except MediaError as error:
        problem = error
    return replace(medium, problem=problem_of(problem))


def _try_tables(
    task: ProbeTask,
    stream: av.video.stream.VideoStream,
    file: containers.Probed,
    medium: MediumFacts,
    described: StreamFacts,
) -> MediumFacts | None:
    """Return the medium with the metadata from its sample tables added, or None if packets have to be read.

    Raises:
        MediaError: Packets have to be read, but the depth is `tables`.
    """
    if task.depth == "packets" or task.verify:
        return None
    try:
        if medium.container != "mp4":
            raise UntrustedTables(f"{medium.container} has no sample tables")
        return probe_tables(
            read_layout(file.read, file.size_bytes), stream.id, file, medium, described, prove=task.prove
        )
    except (UntrustedTables, TruncatedError) as error:
        if task.depth == "auto":
            return None
        raise MediaError("untrusted_tables", f"{error}; --depth packets reads every packet", refused=True) from error


def _decode_display(file: containers.Probed, stream_index: int) -> tuple[int, bool]:
    """Decode the first picture, and return its `containers.display_of`.

    Raises:
        MediaError: No picture can be decoded.
    """
    try:
        with containers.open_medium(file) as container, containers.memory_errors():
            for frame in container.decode(container.streams[stream_index]):
                assert isinstance(frame, av.VideoFrame)  # the stream is a video stream
                return containers.display_of(frame)
    except (av.error.FFmpegError, IndexError) as error:
        raise MediaError(
            "undecodable", f"the first picture cannot be decoded: {containers.reason_of(error)}"
        ) from error
    raise MediaError("undecodable", "no picture of the stream can be decoded")
