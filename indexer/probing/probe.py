"""Probe one file: open it safely, choose its video streams, and return the facts of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import av
import av.container
import av.error
import av.logging
import av.video.stream

from framedex.errors import MediaError
from framedex.indexer.audio.probe_audio import describe_audio
from framedex.indexer.bitstream.pictures import BitstreamError
from framedex.indexer.containers import opening
from framedex.indexer.facts import (
    Identity,
    MediumFacts,
    StreamFacts,
    problem_of,
)
from framedex.indexer.images.probe_images import ImageTask, probe_images
from framedex.indexer.mp4.boxes import TruncatedError, UntrustedTables
from framedex.indexer.mp4.sample_tables import read_layout
from framedex.indexer.probing import stream_facts
from framedex.indexer.probing.by_tables import probe_tables
from framedex.indexer.probing.every_packet import probe_packets
from framedex.indexer.probing.members import in_file, named_member
from framedex.indexer.sources.members import FileMember
from framedex.indexer.sources.named_medium import Holder, Sidecar
from framedex.records.medium import IMAGES, VIDEO
from framedex.storage.objects import Facts

Depth = Literal["auto", "packets", "tables"]
Streams = Literal["best", "all"]

# Codecs whose palettes are stored in the container.
PALETTE_OUTSIDE = frozenset({"rawvideo", "qtrle", "cinepak", "msvideo1", "msrle", "8bps", "smc"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTask:
    """A file and how to probe it.

    Attributes:
        path: an absolute path, or the uri of an object.
        depth: `packets`; `tables`, where only sample tables may be read; `auto`, tables where they can be trusted.
        streams: `best` or `all`. Cover art never counts.
        verify: also decode every frame, and compare with every frame as clips reach it. This implies depth `packets`.
        prove: how many frames of each video, drawn at random, are reached as clips reach them and compared with a
            decode from further back. With `verify` these are all frames.
        images: how images are stored and timed. None: the file is a video.
        facts: of an object, as the listing of its folder states them. None: unknown.
        searched: a search found the file; nobody named it. Without a video stream it is then skipped, not failed.
        holds: which kind of file the media are inside of. None: the file is the medium.
        sidecars: of a tar: kinds of sidecars that become the user's columns.
        member: which video inside the file. None: the file is the video.
        expected: fingerprint of the file in which the member was found.
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
    """Return the facts of each chosen stream of a file, or of each sequence of images in it.

    A bad file raises nothing. A medium that is not usable has a problem with status `failed` or `refused`, a kind and a
    reason.
    """
    if task.images is not None:
        return probe_images(task.path, task.images, verify=task.verify)
    member, medium = task.member, medium_of(task)
    try:
        with opening.opened_file(task.path, member) as file:
            medium = replace(medium, identity=file.identity)
            check_member(task, file.identity)
            found = probe_opened(task, file, medium)
            medium = replace(medium, container=found[0].container, video_streams=found[0].video_streams)
            if medium.video_streams is not None:
                opening.check_unchanged(file)
            return found if member is None else [in_file(one, member) for one in found]
    except MediaError as error:
        return [replace(medium, problem=problem_of(error))]


def medium_of(task: ProbeTask) -> MediumFacts:
    """Return what is known of a medium before it is probed."""
    if task.images is not None:
        return MediumFacts(kind=IMAGES, member=task.images.member)
    medium = MediumFacts(kind=VIDEO)
    return medium if task.member is None else named_member(medium, task.member)


def check_member(task: ProbeTask, identity: Identity) -> None:
    """Raise MediaError if a video inside a file must not be opened, or if the file is no longer the one it is in."""
    if task.member is None:
        return
    if identity.fingerprint != task.expected:
        raise MediaError("changing", "the file that holds the video changed while it was indexed")
    if task.member.error is not None:
        raise task.member.error


def probe_opened(task: ProbeTask, file: opening.Probed, medium: MediumFacts) -> list[MediumFacts]:
    """Return the facts of an open file or object.

    Args:
        task: how to probe it.
        file: the open file or object.
        medium: what is known of it so far.

    Raises:
        MediaError: the file is not usable as a whole.
        NeedsWholeError: the object has to be copied to this machine first.
    """
    av.logging.set_level(None)
    plain = _probe_plain(task, file, medium)
    return _probe_file(task, file, medium) if plain is None else [plain]


def _probe_plain(task: ProbeTask, file: opening.Probed, medium: MediumFacts) -> MediumFacts | None:
    """Return the facts of a plain MP4 if its sample tables are sufficient, else None."""
    if task.depth == "packets" or task.verify:
        return None
    try:
        if file.read(4, 4) != b"ftyp":
            return None
        layout = read_layout(file.read, file.size_bytes)
        plain = stream_facts.describe_plain(layout.movie)
        if plain is None:
            return None
        known = replace(medium, container="mp4", video_streams=1, stream_index=0, stated=plain.stated)
        return probe_tables(layout, plain.track_id, file, known, plain.stream, prove=task.prove)
    except (UntrustedTables, TruncatedError):
        return None


def _probe_file(task: ProbeTask, file: opening.Probed, medium: MediumFacts) -> list[MediumFacts]:
    with opening.open_medium(file) as container:
        medium = replace(medium, container=stream_facts.container_name(container))
        try:
            streams = stream_facts.video_streams(container, skips=task.searched)
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


def _probe_stream(
    task: ProbeTask,
    container: av.container.InputContainer,
    stream: av.video.stream.VideoStream,
    file: opening.Probed,
    medium: MediumFacts,
) -> MediumFacts:
    try:
        described = stream_facts.describe_stream(stream)
        stated = stream_facts.describe_header(container, stream)
        medium = replace(medium, stream_index=stream.index, stream=described, stated=stated)
        if described.pixel_format == "pal8" and described.codec in PALETTE_OUTSIDE:
            raise BitstreamError("palette", "the pictures' palette comes from outside of the bitstream")
        found = _try_tables(task, stream, file, medium, described)
        if found is not None:
            return found
        medium = probe_packets(stream, file.whole(), medium, described, verify=task.verify, prove=task.prove)
        if medium.rotation_degrees is not None:
            return medium
        return replace(medium, rotation_degrees=_rotation(file, stream.index))
    except BitstreamError as error:
        problem = MediaError(error.kind, str(error), refused=not error.damaged)
    except MediaError as error:
        problem = error
    return replace(medium, problem=problem_of(problem))


def _try_tables(
    task: ProbeTask,
    stream: av.video.stream.VideoStream,
    file: opening.Probed,
    medium: MediumFacts,
    described: StreamFacts,
) -> MediumFacts | None:
    """Return the medium with the facts from its sample tables, or None if packets have to be read.

    Raises:
        MediaError: packets would have to be read, but depth `tables` forbids it.
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


def _rotation(file: opening.Probed, stream_index: int) -> int:
    """Decode the first picture, and return the rotation from its display matrix.

    Decoding also shows that there is a decoder for the stream.
    """
    try:
        with opening.open_medium(file) as container, opening.memory_errors():
            for frame in container.decode(container.streams[stream_index]):
                assert isinstance(frame, av.VideoFrame)  # the stream is a video stream
                return frame.rotation
    except (av.error.FFmpegError, IndexError) as error:
        raise MediaError("undecodable", f"the first picture does not decode: {opening.reason_of(error)}") from error
    raise MediaError("undecodable", "no picture decodes from the stream")
