"""Hostile files: absurd claims cost neither time nor memory, and only the file itself is opened."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset, Index, index, shard
from framedex.errors import PolicyError, SourceError
from framedex.indexer import containers
from framedex.indexer.mp4 import boxes, sample_tables
from tests.support.audited import write_rows
from tests.support.datasets import run
from tests.support.media import damage
from tests.support.probed import facts_of, probed
from tests.support.running import outcomes

Medium, Change = Callable[[str], Path], Callable[[bytearray], bytearray]
MAX_SECONDS, MAX_MEMORY_BYTES, MAX_RESIDENT_KIB = 60.0, 2 << 30, 600 << 10
MAX_NESTED = 32  # levels of a user's column, by docs/limitations.md
ALL_ONES = b"\xff\xff\xff\xff"
IN_OPEN = 0x20
EBML = bytes.fromhex("1a45dfa3 8b 4282 88 6d6174726f736b61")  # EBML header with DocType matroska


def put(kind: bytes, at: int, value: bytes) -> Change:
    """Return a change that overwrites bytes of the first box of a kind, `at` counted from the end of its type."""

    def change(content: bytearray) -> bytearray:
        begin = content.index(kind) + 4 + at
        content[begin : begin + len(value)] = value
        return content

    return change


def box(kind: bytes, payload: bytes = b"") -> bytes:
    return struct.pack(">I4s", 8 + len(payload), kind) + payload


def nested(kind: bytes, depth: int) -> bytes:
    """Return nested boxes. They are built from the outermost box inwards; the other way takes quadratic time."""
    return b"".join(struct.pack(">I4s", 8 * (depth - level), kind) for level in range(depth))


def element(identifier: str, payload: bytes, claims: int | None = None) -> bytes:
    """Return a Matroska element with an eight-byte size field, which states `claims` in place of the true size."""
    size = len(payload) if claims is None else claims
    return bytes.fromhex(identifier) + (1 << 56 | size).to_bytes(8, "big") + payload


def matroska(*children: bytes) -> bytes:
    return EBML + element("18538067", b"".join(children))


def track(*children: bytes) -> bytes:
    number, kind = element("d7", b"\1"), element("83", b"\1")
    return element("1654ae6b", element("ae", number + kind + element("86", b"V_MPEG4/ISO/AVC") + b"".join(children)))


def nested_tags(depth: int) -> bytes:
    sizes = [12 * (depth - level - 1) for level in range(depth)]
    return b"".join(bytes.fromhex("67c8") + b"\x08\0" + (1 << 56 | size).to_bytes(8, "big") for size in sizes)


def run_length(kind: bytes) -> Change:
    """Return a change to one entry of a run-length table, which then stands for four billion samples."""
    return put(kind, 4, struct.pack(">III", 1, 0xFFFFFFFF, 1))


TABLES = (
    b"mvhd", b"tkhd", b"mdhd", b"hdlr", b"elst", b"stsd", b"avcC", b"stts", b"ctts", b"stss", b"stsc", b"stsz", b"stco",
)  # fmt: skip
MP4_HEAD = box(b"ftyp", b"isom\0\0\0\0isom")

PATCHED: dict[str, Change] = {
    "stsz_count": put(b"stsz", 8, ALL_ONES),
    "stsz_one_size_for_4_billion": put(b"stsz", 4, b"\0\0\0\1" + ALL_ONES),
    "stts_count": put(b"stts", 4, ALL_ONES),
    "stts_run": run_length(b"stts"),
    "stts_long_durations": put(b"stts", 8, ALL_ONES * 2),
    "ctts_count": put(b"ctts", 4, ALL_ONES),
    "ctts_run": run_length(b"ctts"),
    "stsc_count": put(b"stsc", 4, ALL_ONES),
    "stsc_4_billion_a_chunk": put(b"stsc", 12, ALL_ONES),
    "stco_count": put(b"stco", 4, ALL_ONES),
    "stco_far_away": put(b"stco", 8, ALL_ONES),
    "stss_count": put(b"stss", 4, ALL_ONES),
    "elst_count": put(b"elst", 4, ALL_ONES),
    "elst_long_edit": put(b"elst", 8, ALL_ONES[:3] + b"\xfe" + b"\x7f\xff\xff\xff"),
    "stsd_count": put(b"stsd", 4, ALL_ONES),
    "stsd_size": put(b"stsd", -8, ALL_ONES),
    "avcC_size": put(b"avcC", -8, ALL_ONES),
    "avcC_set_size": put(b"avcC", 6, b"\xff\xff"),
    "avcC_set_count": put(b"avcC", 5, b"\xff"),
    "width_and_height": put(b"avc1", 24, ALL_ONES),
    "time_scale": put(b"mdhd", 12, ALL_ONES),
    "time_scale_zero": put(b"mdhd", 12, b"\0\0\0\0"),
    "mdat_size_64": put(b"mdat", -8, b"\0\0\0\1mdat\x7f" + b"\xff" * 7),
    "mdat_size_64_all_ones": put(b"mdat", -8, b"\0\0\0\1mdat" + b"\xff" * 8),
    "mdat_size_64_zero": put(b"mdat", -8, b"\0\0\0\1mdat" + b"\0" * 8),
    "trak_size_zero": put(b"trak", -8, b"\0\0\0\0"),
    "trak_size_one": put(b"trak", -8, b"\0\0\0\1"),
    "trak_size_seven": put(b"trak", -8, b"\0\0\0\7"),
    "trak_over_its_parent": put(b"trak", -8, b"\x7f\xff\xff\xff"),
    "moov_in_itself": put(b"mvhd", -4, b"moov"),
} | {f"no_{kind.decode()}": put(kind, -4, b"free") for kind in TABLES}

MADE: dict[str, bytes] = {
    "nested_moov.mp4": MP4_HEAD + nested(b"moov", 200_000),
    "nested_trak.mp4": MP4_HEAD + box(b"moov", nested(b"trak", 200_000)),
    "nested_udta.mp4": MP4_HEAD + box(b"moov", nested(b"udta", 200_000)),
    "many_boxes.mp4": MP4_HEAD + box(b"free") * 1_000_000,
    "many_tracks.mp4": MP4_HEAD + box(b"moov", box(b"trak") * 200_000),
    "many_edits.mp4": MP4_HEAD + box(b"moov", box(b"trak", box(b"edts", box(b"elst")) * 20_000)),
    "empty_boxes.mp4": MP4_HEAD + box(b"moov", box(b"trak", box(b"tkhd") + box(b"edts", box(b"elst")))),
    "zero_boxes.mp4": MP4_HEAD + bytes(1 << 20),
    "one_box_of_16_exabytes.mp4": MP4_HEAD + b"\0\0\0\1moov" + b"\xff" * 8,
    "private_of_4_gigabytes.mkv": matroska(track(element("63a2", b"\1", claims=1 << 32))),
    "private_of_64_petabytes.mkv": matroska(track(element("63a2", b"\1", claims=(1 << 56) - 2))),
    "block_of_4_gigabytes.mkv": matroska(track(), element("1f43b675", element("a3", b"\x81", claims=1 << 32))),
    "width_and_height.mkv": matroska(
        track(element("e0", element("b0", ALL_ONES) + element("ba", ALL_ONES))),
        element("1f43b675", element("e7", b"\0") + element("a3", b"\x81\0\0\x80" + bytes(64))),
    ),
    "nested_tags.mkv": matroska(element("1254c367", element("7373", nested_tags(100_000)))),
    "many_segments.mkv": EBML + element("18538067", b"") * 100_000,
    "header_of_4_gigabytes.mkv": bytes.fromhex("1a45dfa3") + b"\1\0\0\1\0\0\0\0" + bytes(64),
    "linked_segment.mkv": matroska(element("1549a966", element("3eb923", bytes(16)) + element("3e83bb", b"next.mkv"))),
}


@pytest.fixture(scope="module")
def tried(medium: Medium, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of probing every hostile file, by name. One process with a memory limit probes them all."""
    folder = tmp_path_factory.mktemp("hostile")
    for name, change in PATCHED.items():
        damage(medium("h264_faststart.mp4"), folder / name, change)
    for name, content in MADE.items():
        (folder / name).write_bytes(content)
    paths = [str(folder / name) for name in (*PATCHED, *MADE)]
    found = outcomes(_measure, paths, timeout_seconds=MAX_SECONDS, memory_bytes=MAX_MEMORY_BYTES)
    assert sum(outcome.kind == "memory" for outcome in found) < len(found) / 4
    return {os.path.basename(outcome.item): outcome for outcome in found}


def _measure(path: str) -> list[object]:
    """Return the status, error kind, number of packets, CPU seconds, and peak resident memory so far in KiB."""
    begin = time.process_time()
    video, frames = probed(Path(path))
    # The peak of this process alone. ru_maxrss would include the memory of its parent at the time of the fork.
    with open("/proc/self/status", encoding="ascii") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    return [video["status"], video.get("error_kind"), len(frames["size"]), time.process_time() - begin, peak]


@pytest.mark.parametrize("name", [*PATCHED, *MADE])
def test_absurd_claims_cost_neither_time_nor_memory(name: str, tried: dict[str, Any]) -> None:
    outcome = tried[name]
    if outcome.kind == "memory":
        return  # libavformat's own limits also report ENOMEM
    assert outcome.result is not None, (outcome.kind, outcome.message)
    status, kind, packets, seconds, resident_kib = outcome.result
    assert seconds < 30, kind  # CPU seconds; the slowest file takes one
    assert resident_kib < MAX_RESIDENT_KIB, kind
    assert status == "ok" or packets == 0
    assert name in PATCHED or status != "ok"


def test_a_codec_without_a_decoder_is_refused(medium: Medium, tmp_path: Path) -> None:
    path = tmp_path / "unknown.mp4"
    damage(medium("h264_faststart.mp4"), path, put(b"stsd", 12, b"zzzz"))
    video, frames = probed(path)
    assert (video["status"], video["error_kind"], len(frames["size"])) == ("refused", "no_decoder", 0)


def test_a_fragmented_movie_without_sample_tables_is_libavformats(medium: Medium, tmp_path: Path) -> None:
    path = tmp_path / "bare.mp4"
    damage(medium("h264_fragmented.mp4"), path, put(b"stts", -4, b"free"))
    video, frames = probed(path)
    _, same = probed(medium("h264_fragmented.mp4"))
    assert (video["status"], video["stated_frames"]) == ("ok", None)
    assert np.array_equal(frames["pts"], same["pts"])


def test_hostile_files_are_rows_of_a_run(medium: Medium, tmp_path: Path) -> None:
    videos, out = tmp_path / "videos", tmp_path / "INDEX"
    videos.mkdir()
    shutil.copy(medium("h264_single.mp4"), videos / "good.mp4")
    for name in ("nested_moov.mp4", "many_boxes.mp4", "private_of_4_gigabytes.mkv"):
        (videos / name).write_bytes(MADE[name])
    report = json.loads(run("index", videos, "--out", out, "--json", "--memory", 2, "--timeout", 60, code=3).output)
    assert (report["ok"], len(report["problems"])) == (1, 3)
    assert len(Index(out).videos) == 4


@pytest.mark.parametrize("kind", [b"tkhd", b"elst"])
def test_boxes_without_content_are_truncated(kind: bytes, tmp_path: Path) -> None:
    inner = box(kind) if kind == b"tkhd" else box(b"edts", box(kind))
    (tmp_path / "a.mp4").write_bytes(MP4_HEAD + box(b"moov", box(b"trak", inner)))
    content = (tmp_path / "a.mp4").read_bytes()
    with pytest.raises(boxes.UntrustedTables):
        sample_tables.read_layout(lambda offset, length: content[offset : offset + length], len(content))


def test_requests_nested_too_deep_are_malformed(tmp_path: Path) -> None:
    (tmp_path / "clips.jsonl").write_text("[" * 100_000)
    with pytest.raises(PolicyError, match="not valid JSON"):
        shard(write_rows(tmp_path / "INDEX"), tmp_path / "D", clips=tmp_path / "clips.jsonl", progress=False)


@contextmanager
def opened(*paths: Path) -> Iterator[list[bool]]:
    """Yield a list. After the block, its only item states whether any of the files was opened meanwhile (inotify)."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert watch >= 0
    try:
        for path in paths:
            assert libc.inotify_add_watch(watch, os.fsencode(path), IN_OPEN) >= 0
        found: list[bool] = []
        yield found
        try:
            found.append(bool(os.read(watch, 4096)))
        except BlockingIOError:
            found.append(False)
    finally:
        os.close(watch)


def dash(target: str) -> str:
    return (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" profiles="urn:mpeg:dash:profile:'
        'isoff-main:2011"><Period><AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1">'
        f"<BaseURL>{target}</BaseURL></Representation></AdaptationSet></Period></MPD>"
    )


def hls(target: str) -> str:
    return f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{target}\n#EXT-X-ENDLIST\n"


PLAYLISTS: dict[str, Callable[[str], str]] = {
    "playlist.m3u8": hls,
    "playlist.mp4": hls,
    "playlist.mpd": dash,
    "list.ffconcat": lambda target: f"ffconcat version 1.0\nfile '{target}'\n",
    "list.mp4": lambda target: f"ffconcat version 1.0\nfile '{target}'\n",
    "session.sdp": lambda target: f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns={target}\nm=video 9 RTP/AVP 96\n",
    "companion.idx": lambda target: "# VobSub index file, v7 (do not modify this line!)\nid: en, index: 0\n",
}


@pytest.fixture
def sentinel(medium: Medium, tmp_path: Path) -> Path:
    """A valid video that must not be opened."""
    return Path(shutil.copy(medium("h264_single.mp4"), tmp_path / "sentinel.mp4"))


@pytest.mark.parametrize("name", PLAYLISTS)
@pytest.mark.parametrize("spelling", ["relative", "absolute", "file", "http"])
def test_playlists_are_not_followed(name: str, spelling: str, sentinel: Path, tmp_path: Path) -> None:
    target = {
        "relative": sentinel.name,
        "absolute": str(sentinel),
        "file": f"file:{sentinel}",
        "http": "http://127.0.0.1:9/x.mp4",
    }[spelling]
    path = tmp_path / name
    path.write_text(PLAYLISTS[name](target))
    shutil.copy(sentinel, tmp_path / "companion.sub")
    with opened(sentinel, tmp_path / "companion.sub") as found:
        with pytest.raises(av.error.FFmpegError):
            containers.open_container(str(path))
        video, _ = probed(path)
    assert video["status"] in ("failed", "refused")
    assert found == [False]


def test_the_watch_sees_what_the_options_prevent(sentinel: Path, tmp_path: Path) -> None:
    path = tmp_path / "list.mp4"
    path.write_text(f"ffconcat version 1.0\nfile '{sentinel.name}'\n")
    unlisted = {name: value for name, value in containers.OPEN_OPTIONS.items() if name != "format_whitelist"}
    with opened(sentinel) as found, av.open(f"file:{path}", options=unlisted) as container:
        assert container.format.name == "concat"
    assert found == [True]


@pytest.mark.parametrize("name", ["%03d.png", "%d.mp4", "*.png", "0[01].png"])
def test_patterns_of_file_names_name_one_file(name: str, sentinel: Path, tmp_path: Path) -> None:
    content = sentinel.read_bytes()
    others = [tmp_path / other for other in ("000.png", "001.png", "0.mp4", "1.mp4", "00.png", "01.png")]
    for other in others:
        other.write_bytes(content)
    (tmp_path / name).write_bytes(content)
    with opened(*others) as found:
        try:
            with av.open(f"file:{tmp_path / name}", options=containers.OPEN_OPTIONS) as container:
                assert container.format.name == "mov,mp4,m4a,3gp,3g2,mj2"
        except av.error.FFmpegError:
            pass
        facts_of(tmp_path / name)
    assert found == [False]


def data_reference(kind: bytes, target: str, flags: int = 0) -> bytes:
    """Return a dinf box with one reference, to another file (ISO/IEC 14496-12, 8.7.2; QuickTime's alis)."""
    if kind == b"alis":
        name = os.path.basename(target).encode()
        head = bytearray(150)
        head[50 - 36 : 50 - 36 + 1 + len(name[:63])] = bytes([len(name[:63])]) + name[:63]
        path = target.encode()
        payload = bytes(head) + struct.pack(">hH", 2, len(path)) + path + b"\0" * (len(path) % 2) + b"\xff\xff\0\0"
    else:
        payload = target.encode() + b"\0"
    entry = box(kind, struct.pack(">I", flags) + payload)
    return box(b"dinf", box(b"dref", struct.pack(">II", 0, 1) + entry))


@pytest.mark.parametrize("kind", [b"url ", b"urn ", b"alis"])
@pytest.mark.parametrize("spelling", ["relative", "absolute", "http"])
def test_data_references_are_not_followed(
    kind: bytes, spelling: str, sentinel: Path, medium: Medium, tmp_path: Path
) -> None:
    targets = {"relative": sentinel.name, "absolute": str(sentinel), "http": "http://127.0.0.1:9/x.mp4"}
    path = tmp_path / "reference.mov"
    reference = data_reference(kind, targets[spelling])
    damage(medium("h264_default.mp4"), path, lambda content: replace_dinf(content, reference))
    with opened(sentinel) as found:
        with av.open(f"file:{path}", options=containers.OPEN_OPTIONS) as container:
            for _ in container.demux():
                pass
        facts_of(path)
    assert found == [False]


def replace_dinf(content: bytearray, reference: bytes) -> bytearray:
    """Replace the dinf box of a file whose last box is moov, and correct the sizes of the boxes around it."""
    at = content.index(b"dinf") - 4
    (size,) = struct.unpack_from(">I", content, at)
    for kind in (b"moov", b"trak", b"mdia", b"minf"):
        parent = content.index(kind) - 4
        (old,) = struct.unpack_from(">I", content, parent)
        struct.pack_into(">I", content, parent, old + len(reference) - size)
    content[at : at + size] = reference
    return content


@pytest.mark.parametrize("levels", [MAX_NESTED + 1, 300, 100_000])
def test_user_columns_nested_too_deep_are_refused_where_they_are_read(levels: int, tmp_path: Path) -> None:
    line = f'{{"uri": "a.mp4", "frames": [0], "mine": {"[" * levels}1{"]" * levels}}}\n'
    (tmp_path / "clips.jsonl").write_text(line)
    with pytest.raises(PolicyError, match=r"nested too deeply|not valid JSON"):
        shard(write_rows(tmp_path / "INDEX"), tmp_path / "D", clips=tmp_path / "clips.jsonl", progress=False)
    (tmp_path / "listing.jsonl").write_text(line)
    with pytest.raises(SourceError, match="nested too deeply") as error:
        index(tmp_path / "listing.jsonl", tmp_path / "I", progress=False)
    assert error.value.where == f"{tmp_path / 'listing.jsonl'}:1"


def test_user_columns_as_deep_as_allowed_reach_the_clips(medium: Medium, tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    shutil.copy(medium("h264_single.mp4"), tmp_path / "videos" / "a.mp4")
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    (tmp_path / "clips.jsonl").write_text(
        f'{{"uri": "a.mp4", "frames": [0], "mine": {"[" * MAX_NESTED}1{"]" * MAX_NESTED}}}\n'
    )
    run("shard", tmp_path / "INDEX", "--clips", tmp_path / "clips.jsonl", "--out", tmp_path / "D", "--pack", "clips")
    assert str(ClipDataset(tmp_path / "D")[0]["mine"]) == "[" * MAX_NESTED + "1" + "]" * MAX_NESTED


def test_a_parquet_listing_nested_too_deep_is_refused(tmp_path: Path) -> None:
    kind = pa.int64()
    for _ in range(MAX_NESTED + 1):
        kind = pa.struct([("a", kind)])
    pq.write_table(pa.table({"uri": ["a.mp4"], "mine": pa.array([None], kind)}), tmp_path / "listing.parquet")
    with pytest.raises(SourceError, match="nested too deeply"):
        index(tmp_path / "listing.parquet", tmp_path / "I", progress=False)
