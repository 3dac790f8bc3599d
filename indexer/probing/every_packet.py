"""Depth `packets`: the facts of a stream from all of its packets.

If the packets do not show everything, the whole stream is decoded, too.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import av.video.stream
import numpy as np
from numpy.typing import NDArray

from framedex.errors import MediaError
from framedex.indexer.bitstream.base.pictures import BitstreamError, Pictures, Scanner
from framedex.indexer.bitstream.base.sequential import SequentialScanner
from framedex.indexer.bitstream.h26x.scanner import NalScanner
from framedex.indexer.bitstream.registry import scanner_for
from framedex.indexer.containers.medium_file import ProbedFile, open_medium
from framedex.indexer.facts import (
    MediumFacts,
    StreamFacts,
)
from framedex.indexer.mp4.boxes import UntrustedTables
from framedex.indexer.mp4.endings import ENDINGS
from framedex.indexer.plans.reach import drops_leading
from framedex.indexer.probing.by_packets import Demuxed, demux
from framedex.indexer.probing.by_samples import scan_samples
from framedex.indexer.probing.packet_facts import (
    coding_of,
    packet_columns,
    proof_facts,
    remarks,
    summary_of,
    timeline_of,
)
from framedex.indexer.proofs.full_decode import behind_difference, compare, decode_all, dropped_at_ends
from framedex.indexer.proofs.sampled import demuxed_packets, differing, drawn, needed_for, packets_in_ranges
from framedex.indexer.proofs.shapes import shapes_of
from framedex.indexer.proofs.side_by_side import Proof, Stream, stream_of
from framedex.indexer.schema import EVERY_FRAME, SAMPLED
from framedex.indexer.timeline import (
    CLOSED,
    CONTAINER,
    COUNTED,
    DEALT,
    JOINED,
    START,
    UNSHOWN,
    Flags,
    Pts,
    check_reorder_depth,
    has_unordered_hidden,
    packet_flags,
    presentation_order,
    settle_timestamps,
)
from framedex.storage.reader import RangedFile

# Containers that state no presentation timestamps, or unreliable ones. libavformat invents some.
TIMELESS = frozenset({"avi", "asf", "h264", "hevc", "m4v", "mpegvideo", "mxf", "h263", "mjpeg", "obu", "dv"})
# Decoders that read from the stream how many pictures to hold back, and drop pictures if that number is too small.
REORDERING = frozenset({"h264", "hevc"})
# Decoders that output pictures whose references are missing. Others drop what comes before the first start point.
SHOW_ALL = frozenset({"mpeg4", "h263", "h263p", "flv1", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2"})


def probe_packets(
    stream: av.video.stream.VideoStream,
    file: ProbedFile,
    medium: MediumFacts,
    described: StreamFacts,
    *,
    verify: bool,
    prove: int,
) -> MediumFacts:
    """Demux and scan every packet; return the medium with the facts that they show.

    Args:
        stream: of an open container.
        file: the file.
        medium: what is known of it so far.
        described: the stream, as headers describe it.
        verify: decode every frame, keep the hashes, and compare with every frame as clips reach it.
        prove: how many frames to compare in this way where not all are decoded. If one of them differs, all are.

    Raises:
        BitstreamError: the bitstream is damaged, or does what framedex does not reproduce.
        MediaError: the stream is encrypted, not readable, or presents no frame.
    """
    codec = stream.codec_context.codec
    container = medium.container or ""
    make_scanner = scanner_for(codec.canonical_name, codec.intra_only)
    demuxed, pictures = _scan(stream, file, container, make_scanner)
    if pictures.forgets.any():
        demuxed.hidden[dropped_at_ends(decode_all(file, stream.index, len(demuxed.size)), pictures)] = True
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
    truncation = _truncation(file, container)
    pictures.damaged[demuxed.broken] = True
    if demuxed.offset is None:  # libavformat's parsers may mark lost transport packets at the picture before
        pictures.damaged[1:][demuxed.broken[:-1]] = True
    pictures.damaged[-1] |= truncation is not None
    flags = packet_flags(pictures, demuxed.hidden, demuxed.resets)
    _check(described, flags, pictures)
    md5, proof = None, None
    # Decoding shows what parsing cannot: damage inside pictures, the output order where no timestamp confirms it, and
    # whether an unknown codec gives one picture per packet.
    unconfirmed = source == JOINED or (source in (DEALT, COUNTED) and described.codec in REORDERING)
    unconfirmed |= make_scanner is SequentialScanner
    proved = _stream(described, pictures, pts, flags, file.name)
    decodes_all = verify or pictures.damaged.any() or unconfirmed or pictures.doubtful
    if prove and not decodes_all:
        differs = _differing(proved, flags, prove, demuxed, file, stream.index)
        decodes_all = bool(differs.any())
        proof = proof_facts(SAMPLED, differs, pts, flags)
    if decodes_all:
        runs = Proof(proved, shapes_of(flags, drop_leading=drops_leading(described.codec)))
        decoded = decode_all(file, stream.index, len(flags), runs)
        expected = presentation_order(pts, flags)
        pictures.damaged[compare(decoded, expected, demuxed.hidden)] = True
        if source != CONTAINER:
            pictures.damaged[behind_difference(decoded, expected, demuxed.hidden)] = True
        flags = packet_flags(pictures, demuxed.hidden, demuxed.resets, runs.differs)
        _check(described, flags, pictures)
        proof = proof_facts(EVERY_FRAME, runs.differs, pts, flags)
        md5 = [
            digest if flag & UNSHOWN == 0 else None for digest, flag in zip(decoded.md5, flags.tolist(), strict=True)
        ]
    summary = summary_of(described, demuxed, pts, flags)
    fields, unordered = bool(pictures.field_coded.any()), has_unordered_hidden(pts, flags, pictures)
    state = pictures.state[(flags & START) != 0]
    return replace(
        medium,
        coding=coding_of(demuxed, pictures, fields, unordered),
        timeline=timeline_of("packets", source, demuxed, summary, hashed=verify),
        proof=proof,
        problem=remarks(summary, flags, truncation, proof),
        packets=replace(packet_columns(demuxed, state, pts, flags), md5=md5 if verify else None),
    )


def _stream(described: StreamFacts, pictures: Pictures, pts: Pts, flags: Flags, where: str) -> Stream:
    """Return what decoders of runs have to know. For arguments, see `stream_of`."""
    return stream_of(
        described,
        pictures.states,
        pictures.state[(flags & START) != 0],
        pts,
        flags,
        where=where,
        ordered=not has_unordered_hidden(pts, flags, pictures),
    )


def _differing(
    proved: Stream, flags: Flags, count: int, demuxed: Demuxed, file: ProbedFile, stream_index: int
) -> NDArray[np.bool_]:
    """Return bool [packets]: those of `count` frames that differ when clips reach them."""
    drop_leading = drops_leading(proved.coded.codec)
    targets = drawn(flags, count, drop_leading=drop_leading)
    if demuxed.offset is None:
        packets = demuxed_packets(file, stream_index)
    else:
        needed = needed_for(flags, targets, proved.coded.reorder_depth, drop_leading=drop_leading)
        packets = packets_in_ranges(file.read, demuxed.offset, demuxed.size, needed)
    return differing(proved, flags, targets, packets)


def _scan(
    stream: av.video.stream.VideoStream,
    file: ProbedFile,
    form: str,
    make_scanner: Callable[[bytes], Scanner],
) -> tuple[Demuxed, Pictures]:
    """Scan every packet.

    If sample tables locate the packets, the file is read in large pieces. Otherwise packets are demuxed one by one.
    """
    configuration = stream.codec_context.extradata or b""
    scanner = make_scanner(configuration)
    if form == "mp4" and isinstance(scanner, NalScanner):
        try:
            demuxed = scan_samples(file, stream.id, scanner, configuration)
            return demuxed, scanner.finish()
        except UntrustedTables:
            scanner = make_scanner(configuration)
    # Each stream needs a container of its own: demuxing one stream consumes the others.
    with open_medium(file) as container:
        found = container.streams[stream.index]
        assert isinstance(found, av.video.stream.VideoStream)  # the same file, the same streams
        demuxed = demux(container, found, file.read, scanner)
    return demuxed, scanner.finish()


def _truncation(file: ProbedFile, container: str) -> str | None:
    """Return what is cut off at the file's end, or None."""
    if container not in ENDINGS:
        return None
    with io.BufferedReader(RangedFile(file.read, file.size_bytes, file.name)) as opened:
        return ENDINGS[container](opened, file.size_bytes)


def _check(described: StreamFacts, flags: Flags, pictures: Pictures) -> None:
    """Check that frames of a stream are available.

    Raises:
        BitstreamError: decoding may start nowhere, or decoders would not output what the index says.
        MediaError: the stream presents no frame.
    """
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
