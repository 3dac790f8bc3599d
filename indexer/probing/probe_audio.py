"""Probe the first audio stream of a file. A problem with the audio does not make the video unusable.

Packets are taken from the sample tables of an MP4, MOV or 3GP file if the tables are sufficient. Otherwise the stream
is demuxed. If the tables list single PCM samples, consecutive samples of a chunk are grouped into packets.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import av
import numpy as np
from av.stream import Discard
from numpy.typing import NDArray

from framedex.core.pyav import ENDS_AUDIO_BY_TABLE, fraction_of
from framedex.indexer.containers import Probed, ProbedFile, demux_packets, memory_errors
from framedex.indexer.facts import AudioFacts
from framedex.indexer.mp4.boxes import TruncatedError, UntrustedTables, child_boxes
from framedex.indexer.mp4.sample_tables import read_layout, read_samples
from framedex.indexer.mp4.tracks import Layout, Movie, Samples, Track, check_data_references, rescale, time_offset
from framedex.indexer.probing import audio_times
from framedex.indexer.probing.by_packets import PayloadFinder
from framedex.records.clip import NO_PTS
from framedex.records.medium import AudioPackets

SOUND = b"soun"
ENCRYPTED = (b"enca", b"drms")
PIECE_SAMPLES = 1024  # number of single PCM samples that become a packet, as in libavformat


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTable:
    """The packets of an audio track in decode order.

    Attributes:
        samples: The packets. The edit list is already applied to their times. Their durations are taken from the
            tables. A packet is hidden if the edit list does not present any part of it.
        timescale: The number of units of time per second.
        length: The duration of the samples, or of the edit list if the edit list is shorter, in units of the timescale.
            None in fragmented movies.
    """

    samples: Samples
    timescale: int
    length: int | None


def read_audio_table(layout: Layout, track_id: int) -> AudioTable:
    """Return the packets of an audio track.

    Args:
        layout: The boxes of the file, from `read_layout`.
        track_id: The number of the track.

    Raises:
        UntrustedTables: The tables are malformed or ambiguous.
        TruncatedError: The file ends before its last sample does.
    """
    movie = layout.movie
    track = movie.tracks.get(track_id)
    if track is None or track.handler != SOUND:
        raise UntrustedTables(f"there is no audio track {track_id}")
    _check_entries(movie, track)
    samples = read_samples(layout, track)
    if samples.composition is not None and samples.composition.any():
        raise UntrustedTables("audio samples have composition offsets")
    if samples.entry.any() or not samples.size.all() or not len(samples.size):
        raise UntrustedTables("the audio track has no samples, has empty samples, or has several sample entries")
    if not samples.duration[:-1].all() or samples.hidden.any():
        raise UntrustedTables("some audio samples have a duration of 0, or fragments overlap")
    length = int(samples.duration.sum())
    if track.edits:
        length = min(length - track.edits[-1].media_time, rescale(track.edits[-1].duration, track))
        samples.time, samples.hidden = _edited(track, samples.time, samples.duration)
    if (samples.duration == 1).all():
        _group(samples)
    return AudioTable(samples=samples, timescale=track.timescale, length=length if track.rewrites else None)


def _check_entries(movie: Movie, track: Track) -> None:
    if b"stsd" not in track.tables:
        raise UntrustedTables("the audio track has no stsd box")
    start, end = track.tables[b"stsd"]
    entries = child_boxes(movie.data, start + 8, end)
    if len(entries) != 1:
        raise UntrustedTables(f"the audio track has {len(entries)} sample entries")
    ((kind, first, last),) = entries
    if kind in ENCRYPTED:
        raise UntrustedTables("the audio track is encrypted")
    if last - first < 8:
        raise UntrustedTables("the sample entry of the audio track is too short")
    check_data_references(movie.data, track, {struct.unpack_from(">H", movie.data, first + 6)[0]})


def _edited(
    track: Track, time: NDArray[np.int64], duration: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Apply the edit list of a track, and return (times of the samples, whether each sample is hidden).

    Args:
        track: The track.
        time: int64 [samples], the times without the edit list, in units of the track's timescale.
        duration: int64 [samples], the durations in the same unit.
    """
    if not track.rewrites:
        return time - time_offset(track), np.zeros(len(time), np.bool_)
    *empty, edit = track.edits
    if edit.media_time < 0 or any(one.media_time != -1 for one in empty):
        raise UntrustedTables("the edit list presents several pieces of the audio")
    length = rescale(edit.duration, track)
    hidden = (time + duration <= edit.media_time) | (time >= edit.media_time + length)
    if not length or hidden.all():
        raise UntrustedTables("the edit list does not present any part of the audio")
    return time - edit.media_time + sum(rescale(one.duration, track) for one in empty), hidden


def _group(samples: Samples) -> None:
    """Group samples that are contiguous in the file and in time into packets of at most PIECE_SAMPLES samples."""
    breaks = (np.diff(samples.offset) != samples.size[:-1]) | (np.diff(samples.time) != 1) | np.diff(samples.hidden)
    first = np.append(0, np.flatnonzero(breaks) + 1)
    length = np.diff(first, append=len(samples.size))
    pieces = -(-length // PIECE_SAMPLES)
    run = np.repeat(np.arange(len(first)), pieces)
    within = np.arange(len(run)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = first[run] + within * PIECE_SAMPLES
    count = np.minimum(PIECE_SAMPLES, length[run] - within * PIECE_SAMPLES)
    size = np.add.reduceat(samples.size, start)
    samples.keep(start)
    samples.size, samples.duration = size, count


LOOKED_AT = 4  # number of packets at each end of the stream that are decoded to count their samples
NEAR_BYTES = 32 << 10  # of an object, packets within this distance from the first or last packet are decoded
# Codecs whose frame size libavformat knows. FFmpeg 9 trims the last packet of an MP4 by the frame size (see
# `_dropped_at_end`).
FRAMED = frozenset({"aac", "mp1", "mp2", "mp3", "ac3", "eac3"})
UNKNOWN = "no packet of the audio decodes"


@dataclass(slots=True)
class _Demuxed:
    """The properties of demuxed audio packets, collected packet by packet.

    Attributes:
        pts: The timestamps. NO_PTS where a timestamp is missing.
        size: The sizes in bytes.
        offset: The offsets in the file. Valid only if `addressable`.
        samples: The numbers of samples that packet headers state. Empty if headers of the codec do not state them.
        skip: For some packet numbers, the numbers of samples to drop (from the packet's beginning on, at its end).
        discarded: The numbers of packets that an edit list cuts away.
        head: The bytes of the first packets.
        tail: The bytes of the last packets.
        addressable: Whether every packet is one byte range of the file.
    """

    pts: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    skip: dict[int, tuple[int, int]] = field(default_factory=dict)
    discarded: list[int] = field(default_factory=list)
    head: list[bytes] = field(default_factory=list)
    tail: list[bytes] = field(default_factory=list)
    addressable: bool = True


def describe_audio(file: Probed, container: av.container.InputContainer, *, tables_only: bool) -> AudioFacts | None:
    """Return the metadata of the first audio stream, or None if there is no audio stream.

    If the audio is not available, `problem` of the returned record states the reason. However, errors of reading an
    object are raised.

    Args:
        file: The file or object.
        container: The same file or object, opened with PyAV. The first packets are read from the container.
        tables_only: If True, only the sample tables and the few packets that check the tables are read.

    Raises:
        MemoryError: Memory runs out.
    """
    if not container.streams.audio:
        return None
    stream = container.streams.audio[0]
    described = _described(stream)
    return _or_problem(described, lambda: _probe(file, container, stream, described, tables_only))


def _or_problem(audio: AudioFacts, step: Callable[[], AudioFacts]) -> AudioFacts:
    """Return the result of a step of probing. If the step fails, return `audio` with the reason as its problem.

    Args:
        audio: The metadata before the step.
        step: The function that returns the metadata after the step.
    """
    try:
        with memory_errors():
            return step()
    except audio_times.AudioProblem as problem:
        reason = str(problem)
    except (av.error.FFmpegError, OSError, OverflowError) as error:  # OverflowError if times do not fit into 64 bits
        reason = f"the audio is not readable: {getattr(error, 'strerror', None) or error}"
    return replace(audio, problem=reason)


def _described(stream: av.audio.stream.AudioStream) -> AudioFacts:
    """Return the metadata that libavformat reports for a stream, before any packet is decoded."""
    context = stream.codec_context
    time_base = fraction_of(stream.time_base) or Fraction(0)
    audio = AudioFacts(
        stream_index=stream.index,
        start_seconds=float(stream.start_time * time_base) if time_base and stream.start_time is not None else None,
        duration_seconds=float(stream.duration * time_base) if time_base and stream.duration else None,
    )
    if not context:  # FFmpeg has no decoder for the stream
        return audio
    try:
        tag = context.codec_tag
    except UnicodeDecodeError:
        tag = ""
    return replace(
        audio,
        codec=context.codec.canonical_name,
        codec_tag=tag if tag and tag.isprintable() else None,
        rate=context.sample_rate or None,
        channels=context.channels or None,
        layout=context.layout.name if context.channels else None,
        sample_format=context.format.name if context.format else None,
        extradata=context.extradata,
    )


def _probe(
    file: Probed,
    container: av.container.InputContainer,
    stream: av.audio.stream.AudioStream,
    audio: AudioFacts,
    tables_only: bool,
) -> AudioFacts:
    time_base = fraction_of(stream.time_base)
    if audio.codec is None or time_base is None:
        raise audio_times.AudioProblem("there is no decoder for the audio")
    if file.sparing:  # otherwise, video packets before the first audio packet would be read
        for video in container.streams.video:
            video.discard = Discard.all
    try:
        first = next(container.decode(stream), None)
    except av.error.FFmpegError:
        raise
    except (IndexError, ValueError) as error:  # damage that looks like a new stream, or a decoder that does not open
        raise audio_times.AudioProblem(f"{UNKNOWN}: {error}") from error
    if not isinstance(first, av.AudioFrame):
        raise audio_times.AudioProblem(UNKNOWN)
    coding = audio_times.AudioCoding(
        codec=audio.codec,
        codec_tag=audio.codec_tag,
        extradata=audio.extradata,
        rate=first.sample_rate,
        layout=first.layout.name,
        sample_format=first.format.name,
    )
    decoded = replace(
        audio,
        rate=coding.rate,
        channels=first.layout.nb_channels,
        layout=coding.layout,
        sample_format=coding.sample_format,
    )

    def located() -> AudioFacts:
        if coding.rate <= 0:
            raise audio_times.AudioProblem("the sample rate is not known")
        found = _from_tables(stream, file, coding, first.pts) if "mp4" in container.format.name else None
        if found is None:
            if tables_only:
                raise audio_times.AudioProblem("sample tables are not sufficient; --depth packets reads every packet")
            found = _from_packets(file.whole(), stream, time_base, coding)
        (begin, end), packets = found
        bits = _bits_of(coding) if coding.codec.startswith("pcm_") else None
        return replace(decoded, bits_per_coded_sample=bits, first_sample=begin, end_sample=end, packets=packets)

    return _or_problem(decoded, located)


def _bits_of(coding: audio_times.AudioCoding) -> int | None:
    digits = "".join(itertools.takewhile(str.isdigit, coding.codec[len("pcm_") :].lstrip("sfu")))
    return int(digits) if digits else 8 if coding.codec in ("pcm_alaw", "pcm_mulaw") else None


def _from_packets(
    file: ProbedFile, stream: av.audio.stream.AudioStream, time_base: Fraction, coding: audio_times.AudioCoding
) -> tuple[tuple[int, int], AudioPackets]:
    """Demux every audio packet, and return ((first presented sample, end), packets). `end` is exclusive."""
    demuxed = _demux(file, stream.index, coding)
    samples = _counted(demuxed, coding)
    if samples is None:
        with file.open() as container:
            packets = (bytes(packet) for packet in demux_packets(container, stream.index))
            samples = np.array(
                audio_times.count_samples(coding, itertools.islice(packets, len(demuxed.size))), np.int64
            )
    pts = np.array(demuxed.pts, np.int64)
    sample = audio_times.positions(pts, samples, time_base, coding.rate)
    # AAC's spectral band replication doubles the sample rate, and so the number of samples that libavcodec skips.
    is_doubled = stream.codec_context.codec.canonical_name == "aac" and int(samples.max()) == 2048
    discarded = np.isin(np.arange(len(pts)), demuxed.discarded)
    if coding.codec == "vorbis":  # the first packet only starts the overlap and gives no output (Vorbis I 4.3.8)
        demuxed.skip.setdefault(0, (int(samples[0]), 0))
    if coding.codec == "opus":  # the pre-skip in OpusHead (RFC 7845 5.1), unless the demuxer states one
        head = coding.extradata or b""
        pre_skip = int.from_bytes(head[10:12], "little") if head.startswith(b"OpusHead") else 0
        demuxed.skip.setdefault(0, (pre_skip, 0))
    span = audio_times.presented(sample, samples, demuxed.skip, discarded, multiplier=2 if is_doubled else 1)
    offset = np.array(demuxed.offset, np.int64) if demuxed.addressable else None
    return span, AudioPackets(sample=sample, offset=offset, size=np.array(demuxed.size, np.int64))


def _demux(file: ProbedFile, stream_index: int, coding: audio_times.AudioCoding) -> _Demuxed:
    """Demux every audio packet.

    Args:
        file: The file.
        stream_index: The number of the stream in the file.
        coding: The parameters for the decoder.

    Raises:
        AudioProblem: The stream is damaged or encrypted, changes its configuration, or has no packets.
    """
    demuxed, finder = _Demuxed(), PayloadFinder(file.read)
    count = audio_times.HEADERS.get(coding.codec)
    header: bytes | None = None
    with file.open() as container:
        for number, packet in enumerate(demux_packets(container, stream_index)):
            data = bytes(packet)
            if packet.is_corrupt:
                raise audio_times.AudioProblem(f"audio packet {number} is damaged")
            if packet.has_sidedata("encryption_info"):
                raise audio_times.AudioProblem("the audio is encrypted")
            if packet.has_sidedata("new_extradata") and bytes(packet.get_sidedata("new_extradata")) != coding.extradata:
                raise audio_times.AudioProblem(f"the decoder's configuration changes at audio packet {number}")
            if packet.has_sidedata("skip_samples"):
                skip = bytes(packet.get_sidedata("skip_samples"))
                demuxed.skip[number] = (int.from_bytes(skip[:4], "little"), int.from_bytes(skip[4:8], "little"))
            if packet.is_discard:
                demuxed.discarded.append(number)
            fixed = audio_times.fixed_header(coding.codec, data)
            header = fixed if header is None else header
            if fixed != header:
                raise audio_times.AudioProblem(f"the configuration changes, or audio packet {number} is damaged")
            demuxed.offset.append(finder.find(packet.pos, data))
            demuxed.size.append(len(data))
            demuxed.pts.append(packet.pts if packet.pts is not None else NO_PTS)
            if count is not None:
                demuxed.samples.append(count(data))
            if number < LOOKED_AT:
                demuxed.head.append(data)
            demuxed.tail = [*demuxed.tail[-LOOKED_AT:], data]
    if not demuxed.size:
        raise audio_times.AudioProblem("the audio stream has no packets")
    demuxed.addressable = finder.found_all
    return demuxed


def _counted(demuxed: _Demuxed, coding: audio_times.AudioCoding) -> NDArray[np.int64] | None:
    """Return the number of samples in each packet, without decoding all packets.

    Some packets at both ends of the stream are decoded to check the result.

    Returns:
        int64 [packets]. None if all packets must be decoded.
    """
    size = np.array(demuxed.size, np.int64)
    head = audio_times.count_samples(coding, demuxed.head)
    samples = _by_rule(coding, head, size, np.array(demuxed.samples, np.int64))
    if samples is None:
        return None
    try:
        tail = audio_times.count_samples(coding, demuxed.tail)
    except audio_times.AudioProblem:
        return None
    if samples[: len(head)].tolist() != head or samples[-len(tail) : -1].tolist() != tail[:-1]:
        return None
    samples[-1] = tail[-1]
    return samples


def _by_rule(
    coding: audio_times.AudioCoding, head: list[int], size: NDArray[np.int64], stated: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    if len(stated):
        return stated
    if coding.codec in audio_times.CONSTANT:
        samples = np.full(len(size), head[0], np.int64)
        samples[-1] = head[-1] if len(head) == len(size) else samples[-1]
        return samples
    if coding.codec.startswith("pcm_") and head[0] and int(size[0]) % head[0] == 0:
        return size // (int(size[0]) // head[0])
    return None


def _from_tables(
    stream: av.audio.stream.AudioStream, file: Probed, coding: audio_times.AudioCoding, first_pts: int | None
) -> tuple[tuple[int, int], AudioPackets] | None:
    """Return ((first presented sample, end), packets) from sample tables, or None if the tables are not sufficient.

    Args:
        stream: The audio stream.
        file: The file or object.
        coding: The parameters for the decoder.
        first_pts: The timestamp of the first decoded frame, in units of the track's timescale.
    """
    try:
        table = read_audio_table(read_layout(file.read, file.size_bytes), stream.id)
        return _tabulated(file, table, coding, first_pts)
    except (UntrustedTables, TruncatedError, audio_times.AudioProblem):
        return None


def _tabulated(
    file: Probed, table: AudioTable, coding: audio_times.AudioCoding, first_pts: int | None
) -> tuple[tuple[int, int], AudioPackets]:
    found, scale = table.samples, Fraction(coding.rate, table.timescale)
    if scale.denominator != 1 or first_pts is None:
        raise UntrustedTables("the timescale does not divide the sample rate, or the first timestamp is missing")
    n = len(found.size)
    ends = sorted({*range(min(LOOKED_AT, n)), *range(max(0, n - LOOKED_AT - 1), n)})
    if file.sparing:  # decode only packets that are stored near the first packet or the last packet
        ends = [k for k in ends if min(abs(found.offset[k] - found.offset[edge]) for edge in (0, -1)) <= NEAR_BYTES]
    probed = (file.read(int(found.offset[k]), int(found.size[k])) for k in ends)
    counts = np.array(audio_times.count_samples(coding, probed), np.int64)
    duration = found.duration * int(scale)
    samples = np.full(n, counts[0], np.int64) if coding.codec in audio_times.CONSTANT else duration.copy()
    if (samples[ends[:-1]] != counts[:-1]).any():
        raise UntrustedTables("audio packets decode to other numbers of samples than the tables state")
    if not coding.codec.startswith("pcm_") and (samples[:-1] != samples[0]).any():
        raise UntrustedTables("audio packets differ in their durations, and a longer duration may mean a gap")
    samples[-1] = counts[-1]
    stated = found.time * int(scale)
    sample = audio_times.positions(stated, samples, Fraction(1, coding.rate), coding.rate)
    shown = np.flatnonzero(~found.hidden & (samples > 0))
    skipped = first_pts * int(scale) - int(stated[shown[0]])
    first, last = int(sample[shown[0]]) + skipped, int(shown[-1])
    if not 0 <= skipped < samples[shown[0]]:
        raise UntrustedTables("the timestamp of the first presented sample differs from the tables")
    dropped = _dropped_at_end(table, coding, stated, samples, last)
    packets = AudioPackets(sample=sample, offset=found.offset, size=found.size)
    return (first, int(sample[last] + samples[last]) - dropped), packets


def _dropped_at_end(
    table: AudioTable, coding: audio_times.AudioCoding, stated: NDArray[np.int64], samples: NDArray[np.int64], last: int
) -> int:
    """Return the number of samples that libavformat drops at the end of an MP4's last presented packet.

    FFmpeg up to version 8 does not drop samples. From version 9 on, FFmpeg drops the samples of the track's last packet
    that are after the track's end. FFmpeg computes this end as time zero plus the track's length, even if the track
    begins later than at time zero. In such tracks, FFmpeg drops too many samples: the samples after the track's end,
    and as many more as fit between time zero and the beginning. If both numbers together are a whole packet or
    more, FFmpeg does not drop samples.

    Args:
        table: The packets of the track.
        coding: The parameters for the decoder.
        stated: int64 [packets], the timestamps, in samples.
        samples: int64 [packets], the number of samples in each packet.
        last: The number of the last presented packet.

    Raises:
        UntrustedTables: The last presented packet ends after the track's length, but is not the track's last packet, or
            its codec is not in FRAMED. Only demuxing shows which samples are dropped.
    """
    if not ENDS_AUDIO_BY_TABLE or table.length is None:
        return 0
    if coding.rate != table.timescale:
        raise UntrustedTables("the track's timescale differs from the sample rate")
    start, count = int(stated[last]), int(samples[last])
    beyond = start + max(count, int(table.samples.duration[last])) - table.length
    if beyond <= 0:
        return 0
    if coding.codec not in FRAMED or last != len(samples) - 1:
        raise UntrustedTables("the last presented audio packet ends after the track's length")
    beyond = start + count - table.length
    return beyond if 0 < beyond < count else 0
