"""Describe the plainest files without libavformat: an MP4 of one progressive 8-bit H.264 track and nothing else.

Opening a file with libavformat decodes its first pictures, which takes longer than reading all of its sample tables.
Files that are not plain are left to libavformat. For plain files, every fact is the same as libavformat's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from framedex.indexer.bitstream.h26x.h264_sequence import Sequence, parse_sequence
from framedex.indexer.bitstream.h26x.h264_sets import SPS, parse_configuration
from framedex.indexer.facts import Stated, StreamFacts
from framedex.indexer.mp4.boxes import UntrustedTables, child_boxes
from framedex.indexer.mp4.tracks import Movie, Track, entry_table, read_sample_entries
from framedex.indexer.probing.stream_facts import stated

VISUAL_ENTRY_BYTES = 78  # of a VisualSampleEntry before its boxes (ISO/IEC 14496-12 12.1.3)
PLAIN_BOXES = frozenset({b"avcC", b"pasp", b"btrt"})
COLOR_DEPTH = 24
MAX_DURATION = 1 << 62
PROFILES = {66: "Baseline", 77: "Main", 100: "High"}
CONSTRAINED = 0b010000  # constraint_set1_flag


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMovie:
    """What the headers of a plain MP4 say.

    Attributes:
        track_id: of its only track.
        stream: what they state about the stream.
        stated: what they state about its length and rate.
    """

    track_id: int
    stream: StreamFacts
    stated: Stated


def describe_plain(movie: Movie) -> PlainMovie | None:
    """Return what the headers of a plain movie say, or None if the movie is not plain."""
    if len(movie.tracks) != 1:
        return None
    (track,) = movie.tracks.values()
    try:
        return _describe(movie, track) if track.handler == b"vide" else None
    except (UntrustedTables, ValueError, struct.error):
        return None


def _describe(movie: Movie, track: Track) -> PlainMovie | None:
    entries = read_sample_entries(movie, track)
    if entries.codec_tag != b"avc1" or len(entries.configurations) != 1:
        return None
    _, nals = parse_configuration(entries.configurations[0])
    sets = [nal for nal in nals if nal[0] & 31 == SPS]
    boxes = _entry_boxes(movie.data, track)
    if len(sets) != 1 or boxes is None:
        return None
    sequence = parse_sequence(sets[0])
    aspect = struct.unpack(">II", boxes[b"pasp"]) if b"pasp" in boxes else (0, 1)
    plain = (
        sequence.profile_idc in PROFILES
        and (sequence.chroma_format, sequence.bit_depth) == (1, 8)
        and sequence.frames_only
        and sequence.reorder_depth is not None
        and (sequence.width, sequence.height) == (entries.width, entries.height)
        and aspect == sequence.sample_aspect
    )
    if not plain:
        return None
    return PlainMovie(
        track_id=track.track_id,
        stream=_stream(sequence, track, entries.configurations[0]),
        stated=_stated(sequence, movie, track),
    )


def _entry_boxes(data: bytes, track: Track) -> dict[bytes, bytes] | None:
    """Return the boxes in a track's only sample entry by kind, or None if anything is unusual."""
    start, end = track.tables[b"stsd"]
    ((_, first, last),) = child_boxes(data, start + 8, end)
    (depth,) = struct.unpack_from(">H", data, first + VISUAL_ENTRY_BYTES - 4)
    found = {kind: data[begin:stop] for kind, begin, stop in child_boxes(data, first + VISUAL_ENTRY_BYTES, last)}
    return found if depth == COLOR_DEPTH and found.keys() <= PLAIN_BOXES else None


def _stream(sequence: Sequence, track: Track, configuration: bytes) -> StreamFacts:
    profile = PROFILES[sequence.profile_idc]
    if sequence.profile_idc == 66 and sequence.constraints & CONSTRAINED:
        profile = "Constrained Baseline"
    ranges = {None: None, False: "limited", True: "full"}
    width, height = sequence.sample_aspect
    assert sequence.reorder_depth is not None  # of a plain movie
    return StreamFacts(
        codec="h264",
        codec_tag="avc1",
        bits_per_coded_sample=COLOR_DEPTH,
        profile=profile,
        pixel_format="yuvj420p" if sequence.full_range else "yuv420p",
        width=sequence.width,
        height=sequence.height,
        field_order="progressive",
        sample_aspect_ratio=width / height if width and height else None,
        color_range=ranges[sequence.full_range],
        color_matrix=sequence.matrix,
        color_primaries=sequence.primaries,
        color_transfer=sequence.transfer,
        time_base_num=1,
        time_base_den=track.timescale,
        extradata=configuration,
        reorder_depth=sequence.reorder_depth,
    )


def _stated(sequence: Sequence, movie: Movie, track: Track) -> Stated:
    """Return the stated length and rate.

    The length is what libavformat takes: the shortest duration that the headers state, with edits counted.
    """
    if b"stts" not in track.tables:
        raise UntrustedTables("the track has no stts box")
    counts, steps = entry_table(movie.data, track.tables[b"stts"], 2, "stts").astype(np.int64).T
    rate = None
    if sequence.ticks is not None and all(sequence.ticks):
        rate = Fraction(sequence.ticks[1], 2 * sequence.ticks[0])
    if not counts.sum():
        return stated(None, None, rate)
    units = min(track.duration or MAX_DURATION, int(counts @ steps))
    if track.edits:
        edited = sum(edit.duration for edit in track.edits) * track.timescale
        units = min(units, round(edited / track.movie_timescale))
    return stated(int(counts.sum()), float(Fraction(units, track.timescale)), rate)
