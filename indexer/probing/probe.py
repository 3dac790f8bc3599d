"""Probe one file: open it safely, choose its video streams, and return the facts of each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import av
import av.container
import av.error
import av.logging
import av.stream
import av.video.stream
import numpy as np
from numpy.typing import NDArray

from framedex.errors import MediaError
from framedex.files.fingerprint import first_packets
from framedex.indexer.audio.probe_audio import describe_audio
from framedex.indexer.bitstream.base.pictures import NO_START, BitstreamError, Pictures, Scanner
from framedex.indexer.bitstream.base.sequential import SequentialScanner
from framedex.indexer.bitstream.h26x.scanner import NalScanner
from framedex.indexer.bitstream.registry import scanner_for
from framedex.indexer.containers.medium_file import Probed, ProbedFile
from framedex.indexer.containers.opened_file import check_unchanged, opened_file
from framedex.indexer.containers.opening import memory_errors
from framedex.indexer.facts import (
    CodingFacts,
    MediumFacts,
    PacketColumns,
    Problem,
    StreamFacts,
    TimelineFacts,
    problem_of,
)
from framedex.indexer.images.probe_images import ImageTask, probe_images
from framedex.indexer.mp4.boxes import TruncatedError, UntrustedTables
from framedex.indexer.mp4.endings import ENDINGS
from framedex.indexer.mp4.sample_tables import Layout, read_layout
from framedex.indexer.probing.by_packets import Demuxed, demux
from framedex.indexer.probing.by_samples import scan_samples
from framedex.indexer.probing.by_tables import Tabulated, tabulate
from framedex.indexer.probing.full_decode import Decoded, compare, decode_all, dropped_at_ends, unsettled
from framedex.indexer.probing.plain_mp4 import describe_plain
from framedex.indexer.probing.stream_facts import container_name, describe_header, describe_stream, video_streams
from framedex.indexer.schema import VIDEO
from framedex.indexer.timeline import (
    CLOSED,
    CONTAINER,
    COUNTED,
    DAMAGED,
    DEALT,
    FIELD_CODED,
    HIDDEN,
    NO_PTS,
    START,
    STATED,
    UNSHOWN,
    Flags,
    Pts,
    Summary,
    check_reorder_depth,
    has_unordered_hidden,
    packet_flags,
    presentation_order,
    settle_timestamps,
    summarise,
)
from framedex.storage.objects import Facts

Depth = Literal["auto", "packets", "tables"]
Streams = Literal["best", "all"]

# Containers that state no presentation timestamps, or not reliably; libavformat makes some up.
TIMELESS = frozenset({"avi", "asf", "h264", "hevc", "m4v", "mpegvideo", "mxf", "h263", "mjpeg", "obu", "dv"})
# Decoders that learn from the stream how many pictures to hold back, and drop some where it says too little.
REORDERING = frozenset({"h264", "hevc"})
# Codecs whose palettes stand in the container.
PALETTE_OUTSIDE = frozenset({"rawvideo", "qtrle", "cinepak", "msvideo1", "msrle", "8bps", "smc"})
UNSETTLED_IF_DAMAGED = frozenset({"ffv1"})  # decoded twice where they are decoded at all
# Decoders that show pictures without what they refer to; others drop what comes before the first start point.
SHOW_ALL = frozenset({"mpeg4", "h263", "h263p", "flv1", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTask:
    """A file and how to probe it.

    depth: `packets`; `tables` where only sample tables may be read; `auto`, tables where they can be trusted. streams: `best`
    or `all`; cover art never counts. verify: decode every frame, too, which takes depth `packets`. images: of images, how
    they are stored and timed; None for a video. facts: of an object, as its folder was listed; None: not known. searched: nobody
    named the file, so that one without video is skipped, not failed.
    """

    path: str
    depth: Depth = "auto"
    streams: Streams = "best"
    verify: bool = False
    images: ImageTask | None = None
    facts: Facts | None = None
    searched: bool = False


def probe_medium(task: ProbeTask) -> list[MediumFacts]:
    """Return the facts of each chosen stream of a file, or of each sequence of images in it; never raises for a bad file.

    What cannot be used has a problem with status `failed` or `refused`, a kind and a reason.
    """
    if task.images is not None:
        return probe_images(task.path, task.images, verify=task.verify)
    medium = MediumFacts(kind=VIDEO)
    try:
        with opened_file(task.path) as file:
            medium = replace(medium, identity=file.identity)
            found = probe_opened(task, file, medium)
            check_unchanged(file)
            return found
    except MediaError as error:
        return [replace(medium, problem=problem_of(error))]


def probe_opened(task: ProbeTask, file: Probed, medium: MediumFacts) -> list[MediumFacts]:
    """Return the facts of an open file or object. medium: what is known. Raises MediaError, NeedsWholeError."""
    av.logging.set_level(None)
    plain = _probe_plain(task, file, medium)
    return _probe_file(task, file, medium) if plain is None else [plain]


def _probe_plain(task: ProbeTask, file: Probed, medium: MediumFacts) -> MediumFacts | None:
    """Return the facts of a plain MP4 whose sample tables tell all, or None of any other file."""
    if task.depth == "packets" or task.verify:
        return None
    try:
        if file.read(4, 4) != b"ftyp":
            return None
        layout = read_layout(file.read, file.size_bytes)
        plain = describe_plain(layout.movie)
        if plain is None:
            return None
        known = replace(medium, container="mp4", video_streams=1, stream_index=0, stated=plain.stated)
        return _probe_tables(layout, plain.track_id, file, known, plain.stream)
    except (UntrustedTables, TruncatedError):
        return None


def _probe_file(task: ProbeTask, file: Probed, medium: MediumFacts) -> list[MediumFacts]:
    with _open_container(file) as container:
        medium = replace(medium, container=container_name(container))
        try:
            streams = video_streams(container, skips=task.searched)
        except MediaError as error:
            return [replace(medium, problem=problem_of(error))]
        medium = replace(medium, video_streams=len(streams))
        chosen = streams if task.streams == "all" else streams[:1]
        found = [
            _probe_stream(task, container, stream, file, replace(medium, is_best=not number))
            for number, stream in enumerate(chosen)
        ]
        audio = describe_audio(file, container, tables_only=task.depth == "tables" and not task.verify)
        return [replace(one, audio=audio) for one in found]


def _open_container(file: Probed) -> av.container.InputContainer:
    try:
        return file.open()
    except av.error.ArgumentError as error:
        raise MediaError(
            "container",
            "libavformat takes it for a format that refers to other files, or that is not covered",
            refused=True,
        ) from error
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise MediaError("not_media", f"not a video, or damaged at its start: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _probe_stream(
    task: ProbeTask,
    container: av.container.InputContainer,
    stream: av.video.stream.VideoStream,
    file: Probed,
    medium: MediumFacts,
) -> MediumFacts:
    try:
        described = describe_stream(stream)
        stated = describe_header(container, stream)
        medium = replace(medium, stream_index=stream.index, stream=described, stated=stated)
        if described.pixel_format == "pal8" and described.codec in PALETTE_OUTSIDE:
            raise BitstreamError("palette", "the pictures' palette comes from outside of the bitstream")
        found = _try_tables(task, stream, file, medium, described)
        if found is not None:
            return found
        medium = _probe_packets(task, stream, file.whole(), medium, described)
        return replace(medium, rotation_degrees=_rotation(file, stream.index))
    except BitstreamError as error:
        problem = MediaError(error.kind, str(error), refused=not error.damaged)
    except MediaError as error:
        problem = error
    return replace(medium, problem=problem_of(problem))


def _try_tables(
    task: ProbeTask, stream: av.video.stream.VideoStream, file: Probed, medium: MediumFacts, described: StreamFacts
) -> MediumFacts | None:
    """Return the medium with what its sample tables say; None where packets have to be read.

    Raises MediaError where that must not be done.
    """
    if task.depth == "packets" or task.verify:
        return None
    try:
        if medium.container != "mp4":
            raise UntrustedTables(f"{medium.container} has no sample tables")
        return _probe_tables(read_layout(file.read, file.size_bytes), stream.id, file, medium, described)
    except (UntrustedTables, TruncatedError) as error:
        if task.depth == "auto":
            return None
        raise MediaError("untrusted_tables", f"{error}; --depth packets reads every packet", refused=True) from error


def _probe_tables(
    layout: Layout, track_id: int, file: Probed, medium: MediumFacts, described: StreamFacts
) -> MediumFacts:
    """Return the medium with what its sample tables say. Raises UntrustedTables where packets have to be read."""
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
    summary = _summary(described, demuxed, pts, flags)
    stated = (flags & STATED) != 0
    timeline = _timeline("tables", CONTAINER, demuxed, _tables_summary(summary, found.read, stated), hashed=False)
    return replace(
        medium,
        stream=described,
        coding=_coding(demuxed, pictures, _tables_fields(found), _tables_hide_unordered(found)),
        timeline=timeline,
        rotation_degrees=found.rotation_degrees,
        problem=_remarks(summary, flags, None),
        # Of pictures, states are of start points alone.
        packets=_packets(demuxed, pictures.state, pts, np.ma.masked_array(flags, ~(found.read | stated))),
    )


def _tables_summary(summary: Summary, read: NDArray[np.bool_], stated: NDArray[np.bool_]) -> Summary:
    """Return a summary without what only reading every packet, or every start point, tells.

    read, stated: bool [packets], whose headers were read, and which the tables call start points.
    """
    if not read.all():
        summary = replace(summary, non_reference_share=None)
    return replace(summary, open_gop_count=None) if stated.any() else summary


def _tables_fields(found: Tabulated) -> bool | None:
    """Return whether pictures are coded as fields; None where only reading every packet tells."""
    coded = bool(found.pictures.field_coded.any())
    if found.read.all() or not found.pictures.may_hold_fields:
        return coded
    return coded or bool((found.flags & FIELD_CODED).any()) or None


def _tables_hide_unordered(found: Tabulated) -> bool:
    """Return whether hidden packets are output in another order than their timestamps say."""
    if len(found.pictures.start) == len(found.flags):  # a picture each; else of start points alone
        return has_unordered_hidden(found.demuxed.pts, found.flags, found.pictures)
    # GOPs with hidden packets were looked at, which refuses what is out of order unless it is damaged.
    return bool((found.flags & HIDDEN).any() and (found.flags & DAMAGED).any())


def _probe_packets(
    task: ProbeTask, stream: av.video.stream.VideoStream, file: ProbedFile, medium: MediumFacts, described: StreamFacts
) -> MediumFacts:
    """Demux and scan every packet; return the medium with what they show."""
    codec = stream.codec_context.codec
    container = medium.container or ""
    make_scanner = scanner_for(codec.canonical_name, codec.intra_only)
    demuxed, pictures = _scan(stream, file, container, make_scanner)
    decoded: Decoded | None = None
    if pictures.forgets.any():
        decoded = decode_all(file.path, stream.index, len(demuxed.size))
        demuxed.hidden[dropped_at_ends(decoded, pictures)] = True
    flags = packet_flags(pictures, demuxed.hidden, demuxed.resets)
    wrong = np.flatnonzero(demuxed.resets & ((flags & CLOSED) == 0))
    if len(wrong):
        raise BitstreamError("parameter_sets", f"packet {wrong[0]} changes the configuration, and is no closed start")
    pts, source = settle_timestamps(
        demuxed.pts,
        demuxed.dts,
        demuxed.duration,
        flags,
        pictures,
        stated=container not in TIMELESS,
    )
    truncation = _truncation(file.path, container)
    pictures.damaged[demuxed.broken] = True
    if demuxed.offset is None:  # libavformat's parsers hand the mark of lost transport packets to the picture before
        pictures.damaged[1:][demuxed.broken[:-1]] = True
    pictures.damaged[-1] |= truncation is not None
    flags = packet_flags(pictures, demuxed.hidden, demuxed.resets)
    _check(described, flags, pictures)
    md5 = None
    # Decoding shows what parsing cannot: damage inside of pictures, an order that no timestamp confirms, and that a
    # codec of which nothing is known here gives a picture a packet.
    unconfirmed = make_scanner is SequentialScanner or (source in (DEALT, COUNTED) and described.codec in REORDERING)
    if task.verify or pictures.damaged.any() or unconfirmed or pictures.doubtful:
        decoded = decoded or decode_all(file.path, stream.index, len(flags))
        pictures.damaged[compare(decoded, presentation_order(pts, flags), demuxed.hidden)] = True
        if pictures.doubtful or described.codec in UNSETTLED_IF_DAMAGED:
            pictures.damaged[unsettled(file.path, stream.index, decoded, pictures.start != NO_START)] = True
        flags = packet_flags(pictures, demuxed.hidden, demuxed.resets)
        _check(described, flags, pictures)
        md5 = [
            digest if flag & UNSHOWN == 0 else None for digest, flag in zip(decoded.md5, flags.tolist(), strict=True)
        ]
    summary = _summary(described, demuxed, pts, flags)
    fields, unordered = bool(pictures.field_coded.any()), has_unordered_hidden(pts, flags, pictures)
    state = pictures.state[(flags & START) != 0]
    return replace(
        medium,
        coding=_coding(demuxed, pictures, fields, unordered),
        timeline=_timeline("packets", source, demuxed, summary, hashed=task.verify),
        problem=_remarks(summary, flags, truncation),
        packets=replace(_packets(demuxed, state, pts, flags), md5=md5 if task.verify else None),
    )


def _scan(
    stream: av.video.stream.VideoStream,
    file: ProbedFile,
    form: str,
    make_scanner: Callable[[bytes], Scanner],
) -> tuple[Demuxed, Pictures]:
    """Look into every packet: where sample tables say where they lie, in large pieces of the file, else one by one."""
    configuration = stream.codec_context.extradata or b""
    scanner = make_scanner(configuration)
    if form == "mp4" and isinstance(scanner, NalScanner):
        try:
            demuxed = scan_samples(file.descriptor, file.size_bytes, stream.id, scanner, configuration)
            return demuxed, scanner.finish()
        except UntrustedTables:
            scanner = make_scanner(configuration)
    # A container of its own for each stream: demuxing one consumes the others.
    with _open_container(file) as container:
        found = container.streams[stream.index]
        assert isinstance(found, av.video.stream.VideoStream)  # the same file, the same streams
        demuxed = demux(container, found, file.descriptor, scanner)
    return demuxed, scanner.finish()


def _truncation(path: str, container: str) -> str | None:
    """Return what is cut off at the file's end, or None."""
    if container not in ENDINGS:
        return None
    with open(path, "rb") as file:
        return ENDINGS[container](file, os.fstat(file.fileno()).st_size)


def _check(described: StreamFacts, flags: Flags, pictures: Pictures) -> None:
    """Raise for a stream of which no frame can be had."""
    if not (flags & START).any():
        raise BitstreamError("no_start", "the stream has no picture where decoding may start")
    before = int(np.argmax((flags & START) != 0))
    if before and described.codec in SHOW_ALL:
        raise BitstreamError(
            "no_start", f"{before} packets come before the first start point, and decoders show what they make of them"
        )
    shown = flags[(flags & UNSHOWN) == 0]
    if not len(shown):
        raise MediaError("empty", "the video stream presents no frame")
    if described.codec in REORDERING:
        check_reorder_depth(flags, pictures, described.reorder_depth)


def _summary(described: StreamFacts, demuxed: Demuxed, pts: Pts, flags: Flags) -> Summary:
    shown = np.flatnonzero((flags & UNSHOWN) == 0)
    last = shown[np.argmax(pts[shown])]
    if described.time_base_num is None or described.time_base_den is None:
        raise MediaError("timestamps", "the stream has no time base")
    time_base_seconds = described.time_base_num / described.time_base_den
    return summarise(pts, flags, last_duration=int(demuxed.duration[last]), time_base_seconds=time_base_seconds)


def _timeline(depth: str, source: str, demuxed: Demuxed, summary: Summary, *, hashed: bool) -> TimelineFacts:
    return TimelineFacts(
        depth=depth,
        pts_source=source,
        hashed=hashed,
        summary=summary,
        packet_count=len(demuxed.size),
        packet_bytes=int(demuxed.size.sum()),
        first_packets=first_packets(demuxed.size),
    )


def _coding(demuxed: Demuxed, pictures: Pictures, field_coded: bool | None, hidden_unordered: bool) -> CodingFacts:
    return CodingFacts(
        states=list(pictures.states),
        inband_parameter_sets=pictures.inband_sets,
        inner_start_codes=pictures.inner_start_codes,
        varying_shape=pictures.varying_shape,
        field_coded=field_coded,
        hidden_unordered=hidden_unordered,
        byte_addressable=demuxed.offset is not None,
        chroma_format=pictures.chroma_format,
        max_ref_frames=pictures.max_ref_frames,
    )


def _remarks(summary: Summary, flags: Flags, truncation: str | None) -> Problem | None:
    """Return what is damaged of a stream that can be used."""
    found = []
    before = int(np.argmax((flags & START) != 0))
    if summary.damaged_gop_count > (before > 0):
        found.append(f"{summary.damaged_gop_count - (before > 0)} of {summary.keyframe_count} GOPs are damaged")
    if before:
        found.append(f"{before} packets come before the first start point and are left out")
    if truncation:
        found.append(f"the file is truncated: {truncation}")
    kind = "truncated" if truncation else "damaged"
    return Problem(status=None, kind=kind, message="; ".join(found)) if found else None


def _packets(demuxed: Demuxed, state: NDArray[np.int32], pts: Pts, flags: Flags) -> PacketColumns:
    """Return the columns of packets; state: int32 [starts]. Masked elements are null."""
    return PacketColumns(
        pts=np.ma.masked_equal(pts, NO_PTS) if (pts == NO_PTS).any() else pts,
        offset=demuxed.offset,
        size=demuxed.size,
        flags=flags,
        start_state=state if state.any() else None,
    )


def _rotation(file: Probed, stream_index: int) -> int:
    """Decode the first picture, which shows that there is a decoder for the stream, and read its display matrix."""
    try:
        with _open_container(file) as container, memory_errors():
            for frame in container.decode(container.streams[stream_index]):
                assert isinstance(frame, av.VideoFrame)  # the stream is a video stream
                return frame.rotation
    except (av.error.FFmpegError, IndexError) as error:
        raise MediaError("undecodable", f"the first picture does not decode: {_reason(error)}") from error
    raise MediaError("undecodable", "no picture decodes from the stream")
