"""Unusual media, each of which once gave a wrong frame, a wrong place in a file, or an error for all other media."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset, Index
from tests.support.counted import some
from tests.support.datasets import run, shard_clips
from tests.support.media import Recipe, encode
from tests.support.planes import picture_md5
from tests.support.reading import encoded_clip, pictures_of

FRAMES = 72


def made(recipe: Recipe, path: Path) -> Path:
    """Encode a recipe into a file; return the file's path."""
    encode(recipe, path)
    return path


def truth(path: Path) -> list[str]:
    """Return the md5 of every picture of a full decode."""
    with av.open(str(path)) as container:
        return [picture_md5(frame) for frame in container.decode(video=0)]


def loaded(dataset: ClipDataset, number: int) -> list[str]:
    """Return the md5 of a clip's pictures, in the order of its frames."""
    clip = dataset.clip(number)
    return pictures_of(clip, encoded_clip(dataset, clip))


def allow_gaps(sps: bytes) -> bytes:
    """Set gaps_in_frame_num_value_allowed_flag in a sequence parameter set without profile extensions (7.3.2.1.1)."""
    bits = "".join(f"{byte:08b}" for byte in sps[1:])
    at = 24

    def skip_ue() -> int:
        nonlocal at
        zeros = bits.index("1", at) - at
        value = int(bits[at + zeros : at + 2 * zeros + 1], 2) - 1
        at += 2 * zeros + 1
        return value

    skip_ue()
    skip_ue()
    if skip_ue() == 0:
        skip_ue()
    skip_ue()
    bits = bits[:at] + "1" + bits[at + 1 :]
    return sps[:1] + bytes(int(bits[first : first + 8], 2) for first in range(0, len(bits), 8))


def test_where_gaps_are_allowed_nothing_that_a_decoder_fills_them_with_is_left_out(tmp_path: Path) -> None:
    """FFmpeg fills a gap in frame_num with the last decoded picture, even if no other picture refers to it."""
    (tmp_path / "m").mkdir()
    options = {"x264-params": "keyint=24:bframes=2:ref=3:scenecut=0:b-adapt=0", "profile": "main"}
    whole = made(Recipe(name="a.h264", frames=FRAMES, options=options), tmp_path / "whole.h264").read_bytes()
    written, pictures = b"", 0
    for unit in whole.split(b"\0\0\1")[1:]:
        unit = unit.rstrip(b"\0")
        kind = unit[0] & 31
        if kind in (1, 5):
            pictures += 1
            if pictures % 24 == 8:  # a reference picture in the middle of each GOP
                continue
        written += b"\0\0\0\1" + (allow_gaps(unit) if kind == 7 else unit)
    path = tmp_path / "m" / "a.h264"
    path.write_bytes(written)
    expected = truth(path)
    run("index", tmp_path / "m", "--out", tmp_path / "I")
    clips = [{"uri": "a.h264", "frames": [frame]} for frame in range(len(expected))]
    dataset = ClipDataset(shard_clips(tmp_path / "I", tmp_path / "D", clips))
    assert [loaded(dataset, number) for number in range(len(dataset))] == [[md5] for md5 in expected]


def files_of(dataset: Path) -> dict[str, tuple[dict[str, Any], bytes]]:
    """Return the JSON and the file of each clip in the tars, by clip id."""
    found = {}
    for path in sorted((dataset / "shards").glob("*.tar")):
        with tarfile.open(path) as tar:
            members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        for name, content in members.items():
            if name.endswith(".json"):
                about = json.loads(content)
                (file,) = (other for other in members if other.startswith(name[:-4]) and other != name)
                found[about["clip_id"]] = about, members[file]
    return found


def test_pictures_that_an_edit_list_hides_out_of_order_have_no_place_in_a_file(tmp_path: Path) -> None:
    """Without composition offsets, the first packets hidden by the edit list are not the first ones that are output."""
    (tmp_path / "m").mkdir()
    whole, path = tmp_path / "whole.mp4", tmp_path / "m" / "a.mp4"
    encode(
        Recipe(name="a.mp4", frames=FRAMES, options={"x264-params": "keyint=12:bframes=3:b-adapt=0:scenecut=0"}), whole
    )
    with av.open(str(whole)) as source, av.open(str(path), "w") as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.pts, packet.stream = packet.dts, stream
                out.mux(packet)
    expected = truth(path)
    run("index", tmp_path / "m", "--out", tmp_path / "I", "--depth", "packets")
    (row,) = Index(tmp_path / "I").videos.to_pylist()
    assert row["hidden_unordered"]
    clips = [{"uri": "a.mp4", "frames": [frame], "clip_id": str(frame)} for frame in range(len(expected))]
    by_reference = ClipDataset(shard_clips(tmp_path / "I", tmp_path / "D", clips))
    assert [loaded(by_reference, number) for number in range(len(clips))] == [[md5] for md5 in expected]
    packed = shard_clips(tmp_path / "I", tmp_path / "P", clips, "--pack", "clips", code=3)
    kinds = pq.read_table(packed / "failures.parquet").to_pylist()
    assert {row["kind"] for row in kinds} == {"uncuttable"}
    assert 0 < len(kinds) <= 12
    for clip_id, (about, content) in files_of(packed).items():
        with av.open(io.BytesIO(content)) as file:
            shown = [picture_md5(frame) for frame in file.decode(video=0)]
        assert [shown[place] for place in about["frames_in_file"]] == [expected[int(clip_id)]]


@pytest.mark.parametrize(("pixels", "profile", "tag"), [("yuv444p10le", "4", "ap4h"), ("yuv422p10le", "1", "apcs")])
def test_prores_keeps_the_tag_that_says_how_deep_it_is(tmp_path: Path, pixels: str, profile: str, tag: str) -> None:
    (tmp_path / "m").mkdir()
    recipe = Recipe(name="a.mov", codec="prores_ks", frames=6, options={"profile": profile}, pix_fmt=pixels)
    path = made(recipe, tmp_path / "m" / "a.mov")
    expected = truth(path)
    run("index", tmp_path / "m", "--out", tmp_path / "I")
    clips = [{"uri": "a.mov", "frames": [frame, 0], "clip_id": str(frame)} for frame in range(6)]
    packed = shard_clips(tmp_path / "I", tmp_path / "P", clips, "--pack", "clips")
    for clip_id, (about, content) in some(files_of(packed).items()):
        with av.open(io.BytesIO(content)) as file:
            assert file.streams.video[0].codec_context.codec_tag == tag
            shown = [picture_md5(frame) for frame in file.decode(video=0)]
        assert [shown[place] for place in about["frames_in_file"]] == [expected[int(clip_id)], expected[0]]


@pytest.mark.parametrize("policy", ["uniform", "stride", "keyframes"])
def test_an_absurd_timestamp_harms_no_other_medium(tmp_path: Path, policy: str) -> None:
    (tmp_path / "m").mkdir()
    options = {"deadline": "realtime", "cpu-used": "8"}
    path = made(Recipe(name="a.ivf", codec="libvpx", frames=20, options=options), tmp_path / "m" / "a.ivf")
    content = bytearray(path.read_bytes())
    at, last = 32, 32
    while at < len(content):
        last, at = at, at + 12 + struct.unpack_from("<I", content, at)[0]
    struct.pack_into("<Q", content, last + 4, 1 << 61)
    path.write_bytes(content)
    encode(Recipe(name="b.mp4"), tmp_path / "m" / "b.mp4")
    run("index", tmp_path / "m", "--out", tmp_path / "I")
    asked = {"uniform": "frames: 4", "stride": "stride: 5\nframes: 4", "keyframes": ""}[policy]
    (tmp_path / "p.yaml").write_text(f"policy: {policy}\n{asked}\nfilter: duration_seconds > 0\n")
    run("shard", tmp_path / "I", "--policy", tmp_path / "p.yaml", "--out", tmp_path / "D")
    assert {row["uri"] for row in pq.read_table(tmp_path / "D" / "media").to_pylist()} >= {"b.mp4"}
    assert len(ClipDataset(tmp_path / "D")) >= 1


def remade(source: Path, path: Path, change: Callable[[list[av.Packet]], None], **options: str) -> Path:
    """Copy the packets of a video into another file after `change`; return the file's path."""
    with av.open(str(source)) as given, av.open(str(path), "w", options=options) as out:
        stream = out.add_stream_from_template(given.streams.video[0])
        packets = [packet for packet in given.demux(video=0) if packet.size]
        change(packets)
        for packet in packets:
            packet.stream = stream
            out.mux(packet)
    return path


def earlier(seconds: float) -> Callable[[list[av.Packet]], None]:
    """Return a change of packets with which the video begins in its middle; an edit list hides the pictures before."""

    def change(packets: list[av.Packet]) -> None:
        for packet in packets:
            assert packet.pts is not None
            assert packet.dts is not None
            assert packet.time_base is not None
            shift = int(seconds / packet.time_base)
            packet.pts, packet.dts = packet.pts - shift, packet.dts - shift

    return change


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_a_trim_that_keeps_its_preroll_hidden_is_indexed_from_its_tables(codec: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    whole = made(Recipe(name="a.mp4", codec=codec, frames=50), tmp_path / "whole.mp4")

    path = remade(whole, tmp_path / "m" / "trim.mp4", earlier(0.5), avoid_negative_ts="disabled")
    expected = truth(path)
    assert 30 < len(expected) < 40
    run("index", tmp_path / "m", "--out", tmp_path / "I")
    (row,) = Index(tmp_path / "I").videos.to_pylist()
    assert (row["status"], row["depth"], row["frame_count"]) == ("ok", "tables", len(expected))
    assert row["packet_count"] == 50
    clips = [{"uri": "trim.mp4", "frames": [frame]} for frame in range(len(expected))]
    for pack in ((), ("--pack", "clips")):
        dataset = ClipDataset(shard_clips(tmp_path / "I", tmp_path / f"D{len(pack)}", clips, *pack))
        assert [loaded(dataset, number) for number in range(len(clips))] == [[md5] for md5 in expected]


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_a_lie_about_the_picture_after_the_wanted_one_is_seen(codec: str, tmp_path: Path) -> None:
    """Timestamps are exchanged between a P picture and a B picture that is decoded after it and shown before it."""
    (tmp_path / "m").mkdir()
    text = "keyint=30:scenecut=0:bframes=2:b-adapt=0" + (":log-level=none:pools=1" if codec == "libx265" else "")
    recipe = Recipe(name="a.mp4", codec=codec, frames=150, options={codec[3:] + "-params": text})
    whole = made(recipe, tmp_path / "whole.mp4")

    def exchange(packets: list[av.Packet]) -> None:
        anchors = [n for n in range(95, 110) if packets[n].pts > packets[n + 1].pts]  # type: ignore[operator]
        one, other = packets[anchors[0]], packets[anchors[0] + 1]
        one.pts, other.pts = other.pts, one.pts

    path = remade(whole, tmp_path / "m" / "lie.mp4", exchange)
    expected = truth(path)
    run("index", tmp_path / "m", "--out", tmp_path / "I")
    (row,) = Index(tmp_path / "I").videos.to_pylist()
    assert row["depth"] == "tables"
    clips = [{"uri": "lie.mp4", "frames": [frame], "clip_id": str(frame)} for frame in range(85, 120)]
    dataset = ClipDataset(shard_clips(tmp_path / "I", tmp_path / "D", clips, code=3))
    assert len(dataset) < len(clips)
    for number in range(len(dataset)):
        assert loaded(dataset, number) == [expected[int(dataset.clip(number).clip_id)]]


@pytest.mark.parametrize("movflags", ["", "frag_keyframe+empty_moov"])
def test_png_that_is_no_sync_sample_is_no_frame_of_a_clip(movflags: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    whole = made(Recipe(name="a.mov", codec="png", pix_fmt="rgb24", frames=10, options={}), tmp_path / "whole.mov")

    def one_key_frame(packets: list[av.Packet]) -> None:
        for number, packet in enumerate(packets):
            packet.is_keyframe = number == 0

    remade(whole, tmp_path / "m" / "a.mov", one_key_frame, **({"movflags": movflags} if movflags else {}))
    run("index", tmp_path / "m", "--out", tmp_path / "I")
    (row,) = Index(tmp_path / "I").videos.to_pylist()
    assert (row["frame_count"], row["not_reproducible_gop_count"], row["first_difference"]) == (10, 9, 1)
    run("shard", tmp_path / "I", "--policy", "{policy: windows, frames: 2, stride: 1}", "--out", tmp_path / "D", code=1)


@pytest.mark.parametrize("pack", ["needed", "clips"])
def test_every_clip_of_a_medium_is_cut_after_its_packets_were_copied(pack: str, corpus: Path, tmp_path: Path) -> None:
    run("index", corpus / "mkv_headerstrip.mkv", "--out", tmp_path / "I")
    clips = [{"uri": "mkv_headerstrip.mkv", "frames": [number % 75], "clip_id": str(number)} for number in range(400)]
    dataset = shard_clips(tmp_path / "I", tmp_path / "D", clips, "--pack", pack)
    assert len(ClipDataset(dataset)) == 400


def test_parameter_sets_that_a_changed_one_makes_a_decoder_forget_are_given_again(tmp_path: Path) -> None:
    """The SPS changes but the PPS after it does not, and only the first start points carry any parameter sets."""
    (tmp_path / "m").mkdir()
    written = b""
    for aspect in (1, 2):
        options = {"x265-params": f"log-level=none:pools=1:keyint=10:scenecut=0:open-gop=0:sar={aspect}"}
        recipe = Recipe(name="a.hevc", codec="libx265", frames=40, options=options)
        units = made(recipe, tmp_path / f"{aspect}.hevc").read_bytes().split(b"\0\0\1")[1:]
        first = next(n for n, unit in enumerate(units) if unit[0] >> 1 & 63 < 32)
        kept = [unit for n, unit in enumerate(units) if n < first or unit[0] >> 1 & 63 < 32]
        written += b"".join(b"\0\0\0\1" + unit.rstrip(b"\0") for unit in kept)
    path = tmp_path / "m" / "a.hevc"
    path.write_bytes(written)
    expected = truth(path)
    assert len(expected) == 80
    run("index", tmp_path / "m", "--out", tmp_path / "I")
    clips = [{"uri": "a.hevc", "frames": [frame]} for frame in range(80)]
    dataset = ClipDataset(shard_clips(tmp_path / "I", tmp_path / "D", clips))
    assert [loaded(dataset, number) for number in range(80)] == [[md5] for md5 in expected]


def test_verifying_sees_damage_of_pictures_that_an_edit_list_hides(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    recipe = Recipe(name="a.mp4", frames=50, options={"x264-params": "keyint=25:scenecut=0:bframes=0"})
    path = remade(
        made(recipe, tmp_path / "whole.mp4"), tmp_path / "m" / "a.mp4", earlier(0.5), avoid_negative_ts="disabled"
    )
    run("index", path, "--out", tmp_path / "I", "--verify")
    (row,) = Index(tmp_path / "I").videos.to_pylist()
    assert (row["damaged_gop_count"], row["packet_count"] > row["frame_count"]) == (0, True)
    packets = Index(tmp_path / "I").packets(row["media_id"])
    assert packets.offset is not None
    content = bytearray(path.read_bytes())
    middle = int(packets.offset[5] + packets.size[5] // 2)
    content[middle : middle + 8] = bytes(8)
    path.write_bytes(content)
    run("index", path, "--out", tmp_path / "J", "--verify")
    (row,) = Index(tmp_path / "J").videos.to_pylist()
    assert row["damaged_gop_count"] == 1
