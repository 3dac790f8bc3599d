"""Sample tables read as columns equal the packets of PyAV's demuxer, or are refused with a reason."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from framedex.core.pyav import LENIENT_METADATA
from framedex.indexer.mp4 import boxes, sample_tables
from tests.support.counted import some
from tests.support.depth import EXAMPLES
from tests.support.ffmpeg import ffmpeg
from tests.support.media import RECIPES
from tests.support.mp4_boxes import TrackTables, box, full_box, movie, random_fragments, random_tables

SHOWN_AS_KEYS = {"mjpeg", "prores", "png", "dnxhd"}  # libavformat marks every packet of these as a key frame
FLAGS_FROM_PICTURES = {"h264", "av1", "vp9"}  # libavformat parses the bitstream and ignores stss
RECORDS = {"h264", "hevc", "av1", "mpeg4"}

REMUXES = {
    "head_cut.mp4": ["-ss", "0.7"],
    "head_and_tail_cut.mp4": ["-ss", "0.5", "-t", "0.6"],
    "tail_cut.mov": ["-t", "0.7"],
    "delayed.mp4": ["-itsoffset", "1.5"],
    "early.mp4": ["-itsoffset", "-0.4"],
    "no_edit_list.mp4": ["-use_editlist", "0"],
    "negative_offsets.mp4": ["-movflags", "negative_cts_offsets"],
    "timescale.mp4": ["-video_track_timescale", "1000003"],
    "timecode.mov": ["-timecode", "01:00:00:00"],
    "fragments.mp4": ["-movflags", "frag_keyframe+empty_moov"],
    "fragments_after_samples.mp4": ["-movflags", "frag_keyframe"],
    "fragments_delayed.mp4": ["-itsoffset", "1.5", "-movflags", "frag_keyframe+empty_moov"],
    "fragments_of_a_picture.mp4": ["-movflags", "frag_every_frame+empty_moov+default_base_moof"],
    "separate_moof.mp4": ["-movflags", "frag_keyframe+separate_moof+empty_moov"],
    "no_base_offset.mp4": ["-movflags", "frag_keyframe+omit_tfhd_offset+empty_moov"],
    "cmaf.mp4": ["-movflags", "cmaf"],
    "dash.mp4": ["-movflags", "dash+delay_moov+global_sidx"],
    "fragments_negative.mp4": ["-movflags", "negative_cts_offsets+frag_keyframe+empty_moov"],
}


def read_file(path: Path, track_id: int) -> sample_tables.SampleTable:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        layout = sample_tables.read_layout(
            lambda offset, length: os.pread(descriptor, length, offset), path.stat().st_size
        )
        return sample_tables.read_sample_table(layout, track_id)
    finally:
        os.close(descriptor)


def read_bytes(content: bytes, track_id: int = 1) -> sample_tables.SampleTable:
    layout = sample_tables.read_layout(lambda offset, length: content[offset : offset + length], len(content))
    return sample_tables.read_sample_table(layout, track_id)


def check_against_demuxer(path: Path) -> int:
    """Compare all columns of all video tracks; return the number of tracks that were not refused."""
    read = 0
    with av.open(str(path), **LENIENT_METADATA) as container:
        streams = [one for one in container.streams.video if not one.disposition & Disposition.attached_pic]
        packets: dict[int, list[av.Packet[Any]]] = {one.index: [] for one in streams}
        for packet in container.demux(streams) if streams else ():
            if packet.size or packet.dts is not None:
                packets[packet.stream.index].append(packet)
        for stream in streams:
            try:
                table = read_file(path, stream.id)
            except (boxes.UntrustedTables, boxes.TruncatedError):
                continue
            read += 1
            check_columns(table, packets[stream.index], stream)
    return read


def check_columns(
    table: sample_tables.SampleTable, packets: list[av.Packet[Any]], stream: av.video.stream.VideoStream
) -> None:
    codec = stream.codec_context.name
    assert table.samples.offset.tolist() == [packet.pos for packet in packets]
    assert table.samples.size.tolist() == [packet.size for packet in packets]
    assert table.pts.tolist() == [packet.pts for packet in packets]
    assert table.samples.hidden.tolist() == [packet.is_discard for packet in packets]
    assert stream.time_base is not None
    assert stream.time_base.denominator == table.track.timescale
    if codec not in SHOWN_AS_KEYS | FLAGS_FROM_PICTURES:
        assert table.samples.sync.tolist() == [packet.is_keyframe for packet in packets]
    if (
        table.pts >= table.samples.time
    ).all() and not table.samples.hidden.any():  # otherwise libavformat generates its own dts
        assert table.samples.time.tolist() == [packet.dts for packet in packets]
    if codec in RECORDS:
        assert table.entries.configurations[0] == (stream.codec_context.extradata or b"")


@pytest.mark.parametrize("name", [name for name in RECIPES if name.endswith((".mp4", ".mov"))])
def test_recipes_are_read_as_the_demuxer_reads_them(name: str, medium: Callable[[str], Path]) -> None:
    assert check_against_demuxer(medium(name)) == 1


@pytest.mark.parametrize("name", REMUXES)
@pytest.mark.parametrize("source", ["h264_open_gop.mp4", "hevc_temporal_layers.mp4", "h264_vfr.mp4"])
def test_what_ffmpeg_muxes_is_read_as_the_demuxer_reads_it(
    source: str, name: str, medium: Callable[[str], Path], tmp_path: Path
) -> None:
    options = REMUXES[name]
    before = options if options[0] in ("-ss", "-itsoffset") else []
    before, after = (before[:2], options[2:]) if before else ([], options)
    command = [ffmpeg(), "-v", "error", *before, "-i", str(medium(source)), "-c", "copy", *after, str(tmp_path / name)]
    subprocess.run(command, check=True)
    assert check_against_demuxer(tmp_path / name) == 1


@pytest.mark.slow
def test_the_corpus_is_read_as_the_demuxer_reads_it(corpus: Path) -> None:
    read = 0
    for path in sorted(corpus.iterdir()):
        if path.suffix in (".mp4", ".mov", ".3gp"):
            try:
                read += check_against_demuxer(path)
            except av.error.FFmpegError:
                continue
    assert read >= 60


def test_random_tables_are_read_as_the_demuxer_reads_them(tmp_path: Path) -> None:
    read = 0
    for seed in range(150):
        content = movie([random_tables(2 * seed), random_tables(2 * seed + 1)], tag=[b"rle ", b"mp4v"][seed % 2])
        (tmp_path / "random.mp4").write_bytes(content)
        read += check_against_demuxer(tmp_path / "random.mp4")
    assert read > 80


def test_random_fragments_are_read_as_the_demuxer_reads_them(tmp_path: Path) -> None:
    read = 0
    for seed in range(150):
        (tmp_path / "random.mp4").write_bytes(random_fragments(seed, tag=[b"rle ", b"mp4v"][seed % 2]))
        read += check_against_demuxer(tmp_path / "random.mp4")
    assert read > 100


def test_headers_of_tracks(medium: Callable[[str], Path], corpus: Path) -> None:
    content = medium("h264_audio.mp4").read_bytes()
    tracks = sample_tables.read_layout(
        lambda offset, length: content[offset : offset + length], len(content)
    ).movie.tracks
    assert {track_id: track.handler for track_id, track in tracks.items()} == {1: b"vide", 2: b"soun"}
    for name in ("rotate90.mp4", "rotate180.mov", "cont_h264.mp4"):
        with av.open(str(corpus / name)) as container:
            frame = next(container.decode(video=0))
        table = read_file(corpus / name, 1)
        assert (table.track.rotation_degrees, table.entries.width, table.entries.height) == (
            frame.rotation,
            frame.width,
            frame.height,
        )


def test_two_sample_entries_are_told_apart(corpus: Path) -> None:
    table = read_file(corpus / "mp4_two_stsd.mp4", 1)
    assert len(table.entries.configurations) == 2
    assert sorted(set(table.samples.entry.tolist())) == [0, 1]


def test_only_headers_are_read(medium: Callable[[str], Path]) -> None:
    for name in ("h264_default.mp4", "h264_fragmented.mp4"):
        content = medium(name).read_bytes()
        touched = np.zeros(len(content), np.bool_)

        def read(offset: int, length: int, content: bytes = content, touched: NDArray[np.bool_] = touched) -> bytes:
            touched[offset : offset + length] = True
            return content[offset : offset + length]

        table = sample_tables.read_sample_table(sample_tables.read_layout(read, len(content)), 1)
        for offset, size in some(zip(table.samples.offset.tolist(), table.samples.size.tolist(), strict=True)):
            assert not touched[offset : offset + size].any()


PLAIN = TrackTables(sizes=[5, 6, 7, 8], stts=[(4, 20)], stss=[1], chunks=[2, 2])


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        (TrackTables(sizes=[5] * 4, stts=[(3, 20)], chunks=[4]), "durations of only 3 of 4 samples"),
        (TrackTables(sizes=[5] * 4, stts=[(2, 0), (2, 20)], chunks=[4]), "duration of 0"),
        (TrackTables(sizes=[5] * 4, stts=[(4, 2**32 - 1)], chunks=[4]), "negative"),
        (TrackTables(sizes=[5] * 4, stts=[(4, 20)], ctts=[(2, 20)], chunks=[4]), "offsets of only 2"),
        (TrackTables(sizes=[5] * 4, stts=[(4, 20)], chunks=[3]), "stsc has 3 samples"),
        (TrackTables(sizes=[5] * 4, stts=[(4, 20)], stss=[3, 2], chunks=[4]), "in ascending order"),
        (TrackTables(sizes=[5] * 4, stts=[(4, 20)], stss=[], chunks=[4]), "stss lists no sample"),
        (TrackTables(sizes=[5] * 4, stts=[(4, 20)], chunks=[4], edits=[(9, 0), (9, 20)]), "of 2 edits, 2 do"),
        (TrackTables(sizes=[5] * 4, stts=[(4, 20)], chunks=[4], edits=[(9, 0), (9, -1)]), "of 2 edits, 1 do"),
        (TrackTables(sizes=[5] * 4, stts=[(4, 20)], chunks=[4], edits=[(9, 900)]), "presents no sample"),
        (TrackTables(sizes=[5] * 4, stts=[(4, 20)], chunks=[4], edits=[(9, -2)]), "media time -2"),
    ],
)
def test_what_is_not_certain_is_refused(tables: TrackTables, reason: str) -> None:
    with pytest.raises(boxes.UntrustedTables, match=reason):
        read_bytes(movie([tables]))


def test_absurd_counts_are_refused_at_once() -> None:
    content = bytearray(movie([TrackTables(sizes=[1] * 4, stts=[(2**32 - 1, 20)] * 2, chunks=[4])]))
    at = content.index(b"stsz") + 12
    assert len(read_bytes(bytes(content)).samples.size) == 4
    for count in (5, 1 << 20, 2**32 - 1):
        content[at : at + 4] = struct.pack(">I", count)
        with pytest.raises(boxes.UntrustedTables):
            read_bytes(bytes(content))


def test_damage_to_the_structure_is_refused() -> None:
    content = movie([PLAIN])
    assert len(read_bytes(content).pts) == 4
    for broken, reason in (
        (content.replace(b"moov", b"free"), "no moov"),
        (content + box(b"moov", b""), "two moov"),
        (content.replace(b"stts", b"stss", 1), "two stss"),
        (content.replace(b"stbl", b"free"), "no stsd"),
        (content.replace(b"vide", b"soun"), "not a video track"),
        (content.replace(b"rle ", b"encv"), "encrypted"),
        (content.replace(full_box(b"url ", 0, 1), full_box(b"url ", 0, 0)), "another file"),
    ):
        with pytest.raises(boxes.UntrustedTables, match=reason):
            read_bytes(broken)
    with pytest.raises(boxes.UntrustedTables, match="has no track 9"):
        read_bytes(content, 9)
    with pytest.raises(boxes.TruncatedError):
        read_bytes(content[:-1])


@settings(max_examples=3 * EXAMPLES)
@given(st.integers(0, 1 << 30))
def test_mutations_end_in_a_table_or_a_reason(seed: int) -> None:
    draw = random.Random(seed)
    content = bytearray(random_fragments(seed) if seed % 2 else movie([random_tables(seed)]))
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(content) - 8)
        content[at : at + 4] = draw.choice(
            [b"\0\0\0\0", b"\0\0\0\1", b"\xff" * 4, b"\x7f\xff\xff\xff", bytes([at % 256] * 4)]
        )
    whole = bytes(content[: draw.choice([len(content), draw.randrange(len(content))])])
    try:
        table = read_bytes(whole)
    except (boxes.UntrustedTables, boxes.TruncatedError):
        return
    assert (table.samples.offset >= 0).all()
    assert (table.samples.offset + table.samples.size <= len(whole)).all()
