"""Media that few would make, each of which once gave another frame, a wrong place in a file, or an error for all others."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import av
import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset
from framedex.indexer.index import Index
from framedex.indexer.planes import picture_md5
from framedex.sharder.decoder import decode_md5
from tests.datasets import run, shard_clips
from tests.media import Recipe, encode

FRAMES = 72


def made(recipe: Recipe, path: Path) -> Path:
    """Encode a recipe into a file; return its path."""
    encode(recipe, path)
    return path


def truth(path: Path) -> list[str]:
    """Return the md5 of every picture of a full decode."""
    with av.open(str(path)) as container:
        return [picture_md5(frame) for frame in container.decode(video=0)]


def loaded(dataset: ClipDataset, number: int) -> list[str]:
    """Return the md5 of a clip's pictures, in the order of its frames."""
    clip = dataset.clip(number)
    by_rank = decode_md5(clip, dataset.sources.read(clip.source, clip.recipe, clip.medium.states))
    return [by_rank[rank] for rank in clip.recipe.position.tolist()]


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
    """FFmpeg fills a gap in frame_num with the picture that was decoded last, also one that no other needs."""
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
    """Return the JSON and the file of each clip in tars, by its id."""
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
    """Without composition offsets, the first packets that the edit list hides are not those that are output first."""
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
    for clip_id, (about, content) in files_of(packed).items():
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
