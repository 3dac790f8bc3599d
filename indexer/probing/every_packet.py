"""Probe a stream at depth `packets`: read all of its packets.

For some codecs, a scanner parses the packets. The whole stream is also decoded if parsing leaves something uncertain,
or if the codec has no scanner.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from framedex.errors import MediaError
from framedex.indexer import facts, timeline
from framedex.indexer.bitstream.av1 import Av1Scanner
from framedex.indexer.bitstream.base import CLOSED_START, UNSPECIFIED, BitstreamError, Pictures, Scanner, pictures_of
from framedex.indexer.bitstream.h264 import H264Scanner
from framedex.indexer.bitstream.hevc import HevcScanner
from framedex.indexer.bitstream.scanner import NalScanner
from framedex.indexer.bitstream.vpx import Vp8Scanner, Vp9Scanner
from framedex.indexer.containers import ProbedFile, open_medium
from framedex.indexer.mp4.boxes import ENDINGS, UntrustedTables
from framedex.indexer.probing import packet_facts
from framedex.indexer.probing.by_packets import Demuxed, demux, scan_samples
from framedex.indexer.proofs import full_decode, runs
from framedex.indexer.proofs.runs import crossing_shapes, shapes_of
from framedex.indexer.reach import Numbers, drops_leading
from framedex.indexer.schema import IN_NO_FILE, SCANNED
from framedex.records.medium import EVERY_FRAME, MAX_REORDERED, SAMPLED

SCANNERS: dict[str, Callable[[bytes], Scanner]] = {
    "h264": H264Scanner,
    "hevc": HevcScanner,
    "av1": Av1Scanner,
    "vp9": Vp9Scanner,
    "vp8": Vp8Scanner,
}


class IntraScanner:
    """The scanner of intra codecs (`schema.INTRA`), in which each packet is decoded independently of the others."""

    def __init__(self, configuration: bytes) -> None:
        self._packets = 0

    def feed(self, data: bytes) -> None:
        """Count a packet. Its bytes are not parsed."""
        self._packets += 1

    def finish(self) -> Pictures:
        """Return the properties of all packets that were fed."""
        start = np.full(self._packets, CLOSED_START, np.uint8)
        return pictures_of(start, non_reference=np.ones(self._packets, np.bool_))


# Containers without reliable presentation timestamps. The timestamps that libavformat reports for them are guesses.
TIMELESS = frozenset({"avi", "asf", "h264", "hevc", "m4v", "mpegvideo", "mxf", "h263", "mjpeg", "obu", "dv"})
# Codecs whose streams state how many pictures a decoder holds back for reordering. If the stated number is too small, a
# decoder drops pictures.
REORDERING = frozenset({"h264", "hevc"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreamProof:
    """The proof of a stream, which compares the frames of clips with the same frames of a longer decode.

    A clip decodes runs. A run is a random access point and packets after it.

    Attributes:
        described: The metadata of the stream from headers.
        file: The file.
        stream_index: The number of the stream in the file.
        demuxed: The packets.
        pts: int64 [packets], the timestamps.
    """

    described: facts.StreamFacts
    file: ProbedFile
    stream_index: int
    demuxed: Demuxed
    pts: timeline.Pts

    def _stream(self, pictures: Pictures, flags: timeline.Flags) -> runs.Stream:
        return runs.stream_of(
            self.described,
            pictures.states,
            pictures.state[(flags & timeline.START) != 0],
            self.pts,
            flags,
            where=self.file.name,
            ordered=not timeline.has_unordered_hidden(self.pts, flags, pictures),
        )

    def _packets(self, needed: Numbers) -> Iterator[tuple[int, bytes]]:
        """Yield (number, bytes) of packets in decode order. Packets that are not needed may be among them."""
        if not self.demuxed.addressable:
            return runs.demuxed_packets(self.file, self.stream_index)
        return runs.packets_in_ranges(self.file.read, self.demuxed.offset, self.demuxed.size, needed)

    def drawn_differing(self, pictures: Pictures, flags: timeline.Flags, count: int) -> NDArray[np.bool_]:
        """Draw `count` frames at random, and compare each with the same frame decoded from further back.

        Returns:
            bool [packets], whether the frame was drawn and the two pictures differ.
        """
        targets = runs.drawn(flags, count, drop_leading=drops_leading(self.described.codec))
        return runs.differing_samples(self._stream(pictures, flags), flags, targets, self._packets)

    def differing(
        self, pictures: Pictures, decoded: full_decode.Decoded, flags: timeline.Flags, starts: Numbers | None
    ) -> tuple[NDArray[np.bool_], bool]:
        """Decode runs, and compare their frames with the frames of the full decode. See `Trials.differing`.

        Args:
            pictures: The properties of the pictures, with the decoder states of random access points.
            decoded: The result of the full decode.
            flags: int32 [packets].
            starts: The random access points whose frames are compared. If None, all frames are compared.

        Returns:
            (bool [packets], whether the frame differs; whether any frame differs after the next random access point, in
            a run that continues past this point).
        """
        if self.described.codec in SCANNED:  # clips decode runs that end before the next random access point
            shapes = shapes_of(flags, drop_leading=drops_leading(self.described.codec), starts=starts)
        else:
            shapes = crossing_shapes(flags, starts)
        if not shapes:
            return np.zeros(len(flags), np.bool_), False
        needed = np.unique(np.concatenate([shape.packet for shape in shapes]))
        prints = runs.prints_of_runs(self._stream(pictures, flags), shapes, self._packets(needed))
        differs_over = runs.differing(shapes, prints, decoded.prints, over=True)
        return runs.differing(shapes, prints, decoded.prints), bool(differs_over.any())


def probe_packets(
    stream: av.video.stream.VideoStream,
    file: ProbedFile,
    medium: facts.MediumFacts,
    described: facts.StreamFacts,
    *,
    verify: bool,
    prove: int,
) -> facts.MediumFacts:
    """Demux and scan every packet, and return the medium with the resulting metadata added.

    Args:
        stream: A stream of an open container.
        file: The file.
        medium: The metadata that is known already.
        described: The metadata of the stream from headers.
        verify: Whether to decode every frame, to store the hashes of the frames, and to compare every frame with the
            same frame decoded as clips decode it.
        prove: The number of frames to decode as clips decode them, and to compare with a decode from further back. If
            one of them differs, every frame is decoded and compared.

    Raises:
        BitstreamError: The bitstream is damaged, or uses a feature that framedex does not reproduce.
        MediaError: The stream is encrypted, not readable, or presents no frame.
    """
    codec, container = described.codec, medium.container or ""
    decoded = None
    if codec in SCANNED:
        demuxed, pictures = _scan(stream, file, container)
        if pictures.forgets.any():
            whole = full_decode.decode_all(file, stream.index, len(demuxed.size))
            demuxed.hidden[full_decode.dropped_at_ends(whole, pictures)] = True
    else:
        demuxed, pictures, decoded = _decode(stream, file, hashed=verify)
        described = _as_decoded(described, decoded)
        medium = replace(medium, stream=described)
    flags = timeline.packet_flags(pictures, demuxed.hidden, demuxed.resets)
    wrong = np.flatnonzero(demuxed.resets & ((flags & timeline.CLOSED) == 0))
    if len(wrong):
        raise BitstreamError(
            "parameter_sets", f"packet {wrong[0]} changes the configuration, but is not a closed random access point"
        )
    pts, source = timeline.settle_timestamps(
        demuxed.pts,
        demuxed.dts,
        demuxed.duration,
        flags,
        pictures,
        stated=container not in TIMELESS,
    )
    truncation = ENDINGS[container](file.read, file.size_bytes) if container in ENDINGS else None
    pictures.damaged[demuxed.broken] = True
    # If transport packets are lost, libavformat may report the packet before the damaged packet. So the packet after a
    # reported packet counts as damaged, too.
    if not demuxed.addressable:
        pictures.damaged[1:][demuxed.broken[:-1]] = True
    pictures.damaged[-1] |= truncation is not None
    flags = timeline.packet_flags(pictures, demuxed.hidden, demuxed.resets)
    _check_frames(described, flags, pictures)
    proof = None
    stream_proof = _StreamProof(described=described, file=file, stream_index=stream.index, demuxed=demuxed, pts=pts)
    if decoded is not None:
        differing = functools.partial(stream_proof.differing, pictures, decoded)
        pictures, differs = full_decode.proven_pictures(
            pictures, full_decode.Trials(demuxed.hidden, demuxed.resets, differing)
        )
        flags = timeline.packet_flags(pictures, demuxed.hidden, demuxed.resets, differs)
        proof = packet_facts.proof_facts(EVERY_FRAME, differs, pts, flags)
    else:
        # Everything is decoded if pictures may be damaged or if no timestamps confirm the output order.
        unconfirmed = source == timeline.JOINED or (
            source in (timeline.DEALT, timeline.COUNTED) and codec in REORDERING
        )
        decodes_all = verify or pictures.damaged.any() or unconfirmed or pictures.doubtful or pictures.carries_over
        if prove and not decodes_all:
            differs = stream_proof.drawn_differing(pictures, flags, prove)
            decodes_all = bool(differs.any())
            proof = packet_facts.proof_facts(SAMPLED, differs, pts, flags)
        if decodes_all:
            decoded = full_decode.decode_all(file, stream.index, len(flags), hashed=verify)
            differing = functools.partial(stream_proof.differing, pictures, decoded)
            differs, _ = differing(flags, None)
            if differs.any():
                trials = full_decode.Trials(demuxed.hidden, demuxed.resets, differing)
                pictures, differs = full_decode.with_fewer_starts(pictures, differs, trials)
            expected = timeline.presentation_order(pts, flags)
            pictures.damaged[full_decode.compare(decoded, expected, demuxed.hidden)] = True
            if source != timeline.CONTAINER:
                pictures.damaged[full_decode.behind_difference(decoded, expected, demuxed.hidden)] = True
            flags = timeline.packet_flags(pictures, demuxed.hidden, demuxed.resets, differs)
            _check_frames(described, flags, pictures)
            proof = packet_facts.proof_facts(EVERY_FRAME, differs, pts, flags)
    md5 = None
    if verify and decoded is not None:
        shown = (flags & timeline.UNSHOWN) == 0
        md5 = [digest if is_shown else None for digest, is_shown in zip(decoded.md5, shown.tolist(), strict=True)]
    if (flags & timeline.NOT_REPRODUCIBLE)[(flags & timeline.UNSHOWN) == 0].all():
        raise BitstreamError(
            "not_reproducible", "every frame of a clip would differ from the same frame of a full decode"
        )
    summary = packet_facts.summary_of(described, demuxed, pts, flags)
    display = None if decoded is None else decoded.display
    fields, unordered = bool(pictures.field_coded.any()), timeline.has_unordered_hidden(pts, flags, pictures)
    state = pictures.state[(flags & timeline.START) != 0]
    return replace(
        medium,
        coding=packet_facts.coding_of(demuxed, pictures, fields, unordered),
        timeline=packet_facts.timeline_of("packets", source, demuxed.size, summary, hashed=verify),
        proof=proof,
        problem=packet_facts.remarks(
            summary,
            flags,
            truncation,
            proof,
            unpackable=codec if not demuxed.addressable and codec in IN_NO_FILE else None,
        ),
        packets=replace(packet_facts.packet_columns(demuxed, state, pts, flags), md5=md5),
        rotation_degrees=None if display is None else display[0],
        is_mirrored=display is not None and display[1],
    )


def _as_decoded(described: facts.StreamFacts, decoded: full_decode.Decoded) -> facts.StreamFacts:
    """Return the metadata from headers, with the reorder depth and the colours corrected from a full decode.

    Raises:
        BitstreamError: Pictures are reordered over more than MAX_REORDERED places.
    """
    depth = max(described.reorder_depth, timeline.reorder_depth_needed(decoded.place[decoded.came]))
    if depth > MAX_REORDERED:
        raise BitstreamError(
            "output_order", f"pictures are reordered over {depth} places, but at most {MAX_REORDERED} are supported"
        )
    if len(decoded.colours) > 1:  # "unspecified" in the index means that each decoded picture states its colour
        described = replace(described, color_range=None, color_matrix=UNSPECIFIED)
    return replace(described, reorder_depth=depth)


def _scan(stream: av.video.stream.VideoStream, file: ProbedFile, form: str) -> tuple[Demuxed, Pictures]:
    """Scan every packet, and return (packets, properties of their pictures).

    If sample tables with the packets' byte ranges can be used, the file is read in large pieces. Otherwise packets are
    demuxed one by one.

    Args:
        stream: A stream of an open container.
        file: The file.
        form: The name of the container, such as `mp4`.
    """
    configuration = stream.codec_context.extradata or b""
    make_scanner = SCANNERS.get(stream.codec_context.codec.canonical_name, IntraScanner)
    scanner = make_scanner(configuration)
    if form == "mp4" and isinstance(scanner, NalScanner):
        try:
            demuxed = scan_samples(file, stream.id, scanner, configuration)
            return demuxed, scanner.finish()
        except UntrustedTables:
            scanner = make_scanner(configuration)
    with _opened_again(file, stream) as (container, found):
        demuxed = demux(
            container,
            found,
            file.read,
            lambda _, data: scanner.feed(data),
            scanner.reconfigure if isinstance(scanner, NalScanner) else None,
        )
    return demuxed, scanner.finish()


def _decode(
    stream: av.video.stream.VideoStream, file: ProbedFile, *, hashed: bool
) -> tuple[Demuxed, Pictures, full_decode.Decoded]:
    """Decode every packet, and return (packets, properties of their pictures, result of the decode)."""
    codec, fields, headers = stream.codec_context.codec.canonical_name, list[int](), list[bool]()

    def feed(packet: av.Packet[Any], data: bytes) -> None:
        fields.append(full_decode.fields_in(codec, data))
        headers.append(full_decode.has_lasting_header(codec, data))
        decoder.feed(packet)

    with _opened_again(file, stream) as (container, found):
        decoder = full_decode.FullDecoder(found.codec_context, hashed=hashed)
        demuxed = demux(container, found, file.read, feed)
        decoded = decoder.finish()
    pictures = full_decode.shown_pictures(decoded, fields, headers)
    if codec == "mpeg4" and decoded.interlaced:
        pictures = full_decode.from_packet_0(pictures)
    return demuxed, pictures, decoded


@contextlib.contextmanager
def _opened_again(
    file: ProbedFile, stream: av.video.stream.VideoStream
) -> Iterator[tuple[av.container.InputContainer, av.video.stream.VideoStream]]:
    """Open the file again, because demuxing a stream of a container also consumes the packets of its other streams."""
    with open_medium(file) as container:
        found = container.streams[stream.index]
        assert isinstance(found, av.video.stream.VideoStream)  # as in the container that was opened first
        yield container, found


def _check_frames(described: facts.StreamFacts, flags: timeline.Flags, pictures: Pictures) -> None:
    """Check that the stream has frames, and that decoders output them.

    Raises:
        BitstreamError: The stream has no random access point, or its stated reorder depth makes decoders drop frames.
        MediaError: The stream presents no frame.
    """
    if not (flags & timeline.START).any():
        raise BitstreamError("no_start", "the stream does not have a random access point")
    if ((flags & timeline.UNSHOWN) != 0).all():
        raise MediaError("empty", "the video stream presents no frame")
    if described.codec in REORDERING:
        timeline.check_reorder_depth(flags, pictures, described.reorder_depth)
