"""Demuxing with libavformat."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from framedex import Index
from framedex.indexer.containers import demux_packets, open_container
from tests.support.datasets import run
from tests.support.ffmpeg import ffmpeg

TIMES = 20  # what PyAV 18 does depends on memory that it does not own
PACKET_BYTES = 188  # of a transport stream
NULL_PACKET = b"\x47\x1f\xff\x10" + b"\xff" * 184
SEARCHED_BYTES = 6_000_000  # libavformat searches the first 5 MB, some seconds and the end for streams


@pytest.fixture
def late_sound(medium: Callable[[str], Path], tmp_path: Path) -> Path:
    """A transport stream in which sound, of another program, begins in the middle."""
    transport = ["-f", "mpegts", "-muxdelay", "0"]
    long = ["-stream_loop", "30", "-i", medium("h264_default.mp4")]
    video = [ffmpeg(), "-v", "error", *long, "-c", "copy", *transport, tmp_path / "video.ts"]
    tone = ["-f", "lavfi", "-i", "sine=duration=2", "-c:a", "mp2", "-mpegts_start_pid", "512"]
    sound = [ffmpeg(), "-v", "error", *tone, *transport, tmp_path / "sound.ts"]
    for command in (video, sound):
        subprocess.run(command, check=True)
    both = tmp_path / "both.ts"
    pictures = (tmp_path / "video.ts").read_bytes()
    middle = len(pictures) // PACKET_BYTES // 2 * PACKET_BYTES
    padding = NULL_PACKET * (SEARCHED_BYTES // PACKET_BYTES)
    both.write_bytes(pictures[:middle] + padding + (tmp_path / "sound.ts").read_bytes() + pictures[middle:])
    return both


def test_a_stream_that_appears_on_the_way_takes_no_packet_from_another(late_sound: Path) -> None:
    with open_container(str(late_sound.with_name("video.ts"))) as container:
        alone = [bytes(packet) for packet in demux_packets(container, 0)]
    assert alone
    for _ in range(TIMES):
        with open_container(str(late_sound)) as container:
            assert len(container.streams) == 1  # the sound is not known yet
            assert [bytes(packet) for packet in demux_packets(container, 0)] == alone


def test_a_stream_that_appears_on_the_way_is_no_damage(late_sound: Path, tmp_path: Path) -> None:
    run("index", late_sound, "--out", tmp_path / "INDEX")
    (row,) = Index(tmp_path / "INDEX").videos.to_pylist()
    assert (row["status"], row["damaged_gop_count"], row["error_message"]) == ("ok", 0, None)
