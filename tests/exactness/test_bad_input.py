"""Bad media become rows with an error kind and a reason. Other media are not affected."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import av
import pytest

from framedex import Index
from tests.support.datasets import run
from tests.support.flags import DAMAGED
from tests.support.media import Recipe, damage, encode
from tests.support.probed import probed as rows_of_file

Medium = Callable[[str], Path]


def probed(path: Path) -> tuple[str, str, str]:
    video, frames = rows_of_file(path)
    if video["status"] != "ok":
        assert frames == {"pts": [], "offset": None, "size": [], "flags": []}, "no frames of a medium that is not ok"
    return video["status"], video["error_kind"], video["error_message"]


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    assert probed(tmp_path / "a.mp4") == ("failed", "empty", "the file is empty")


def test_a_missing_file(tmp_path: Path) -> None:
    assert probed(tmp_path / "a.mp4")[:2] == ("failed", "missing")


def test_a_text_file_named_mp4(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("this is not a video\n" * 100)
    assert probed(tmp_path / "a.mp4")[:2] == ("failed", "not_media")


def test_a_folder_and_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    for path in (tmp_path, tmp_path / "pipe.mp4"):
        assert probed(path)[:2] == ("failed", "unreadable")


@pytest.mark.parametrize("name", ["h264_faststart.mp4", "h264_fragmented.mp4", "h264_vfr.mkv", "hevc_open_gop.mkv"])
@pytest.mark.parametrize("share", [0.6, 0.95])
def test_a_truncated_video(name: str, share: float, medium: Medium, tmp_path: Path) -> None:
    path = damage(medium(name), tmp_path / name, lambda content: content[: int(len(content) * share)])
    video, frames = rows_of_file(path)
    assert (video["status"], video["error_kind"]) == ("ok", "truncated")
    assert "truncated" in video["error_message"]
    assert frames["flags"][-1] & DAMAGED
    assert video["damaged_gop_count"] >= 1


def test_a_truncated_video_without_its_index(medium: Medium, tmp_path: Path) -> None:
    path = damage(medium("h264_default.mp4"), tmp_path / "a.mp4", lambda content: content[: len(content) // 2])
    assert probed(path)[:2] == ("failed", "not_media")


@pytest.mark.parametrize(
    ("name", "lost"),
    [("h264_default.mp4", 29), ("h264_b_pyramid.mkv", 30), ("hevc_closed.mp4", 21), ("hevc_open_gop.mkv", 25)],
)
def test_a_stream_that_lost_a_reference_picture(name: str, lost: int, medium: Medium, tmp_path: Path) -> None:
    """Decoders conceal the loss or drop pictures that refer to it, so every later frame number would be wrong."""
    path = tmp_path / name
    with av.open(str(medium(name))) as container, av.open(str(path), "w") as out:
        stream = out.add_stream_from_template(container.streams.video[0])
        for number, packet in enumerate(container.demux(video=0)):
            if packet.size and number != lost:
                packet.stream = stream
                out.mux(packet)
    video, frames = rows_of_file(path, depth="packets")
    assert (video["status"], video["error_kind"]) == ("ok", "damaged")
    damaged = (frames["flags"] & DAMAGED) != 0
    assert damaged[lost]
    assert not damaged[0]
    assert not damaged.all()


def test_an_encrypted_video(tmp_path: Path) -> None:
    protection = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": "ab" * 16, "encryption_kid": "cd" * 16}
    encode(Recipe(name="a.mp4", frames=5, muxer=protection), tmp_path / "a.mp4")
    status, kind, message = probed(tmp_path / "a.mp4")
    assert (status, kind) == ("failed", "encrypted")
    assert "encrypted" in message


def test_sound_alone(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as out:
        stream = out.add_stream("aac", rate=48_000)
        out.mux(stream.encode(None))
    assert probed(tmp_path / "a.mp4")[0] == "failed"


def test_a_playlist_is_not_followed(medium: Medium, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{medium('h264_fragmented.mp4')}\n#EXT-X-ENDLIST\n")
    assert probed(path)[0] != "ok"


def test_flipped_bytes_never_crash_the_prober(medium: Medium, tmp_path: Path) -> None:
    """The result is always a row. It has packets if and only if its status is ok."""
    import numpy as np

    rng = np.random.default_rng(0)
    for name in ("h264_default.mp4", "hevc_open_gop.mkv"):
        for _ in range(25):
            at = rng.integers(0, medium(name).stat().st_size, 4)

            def flip(content: bytearray, at: np.ndarray = at) -> bytearray:
                for byte in at:
                    content[byte] ^= 1 << int(byte % 8)
                return content

            video, frames = rows_of_file(damage(medium(name), tmp_path / name, flip))
            assert video["status"] in ("ok", "refused", "failed")
            assert (video["status"] == "ok") == bool(len(frames["pts"]))


def test_exit_codes_and_rows_of_a_run_with_failures(medium: Medium, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    shutil.copy(medium("h264_default.mp4"), videos / "good.mp4")
    (videos / "empty.mp4").touch()
    out = tmp_path / "INDEX"
    result = run("index", videos, "--out", out, code=3)
    assert "failed: empty.mp4: the file is empty (empty)" in result.output
    assert "1 failed" in result.output
    report = json.loads(run("index", videos, "--out", out, "--max-failures", 1, "--json").output)
    assert (report["ok"], report["failed"], report["unchanged"]) == (0, 1, 2)
    assert sorted(Index(out).videos["status"].to_pylist()) == ["failed", "ok"]
