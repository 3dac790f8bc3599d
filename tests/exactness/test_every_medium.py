"""Media other than one clean byte-addressable stream: several streams, cover art, packed clips, hashes, damage."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

import framedex
from benchmarks.exactness import try_folder
from framedex import ClipDataset, Index
from framedex.errors import DamageError, NoClipsError
from tests.support import planned
from tests.support.datasets import run, shard_clips
from tests.support.flags import DAMAGED, START
from tests.support.manifests import rewrite_part
from tests.support.media import Recipe, damage, encode, full_decode, garble_packet, picture, read_barcode
from tests.support.pictures import rgb_of
from tests.support.reading import Reader

Medium = Callable[[str], Path]


def rows(index: Path) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["uri"], row["stream_index"]): row for row in Index(index).videos.to_pylist()}


@pytest.fixture
def two_streams(tmp_path: Path) -> Path:
    """A folder with a Matroska file of two video streams. The barcodes of the second stream start at 500."""
    path = tmp_path / "videos" / "two.mkv"
    path.parent.mkdir()
    with av.open(str(path), "w") as out:
        streams = [out.add_stream("libx264", rate=25, options={"g": "10"}) for _ in range(2)]
        for stream, size in zip(streams, ((320, 240), (176, 144)), strict=True):
            stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(20):
            for stream, first in zip(streams, (0, 500), strict=True):
                content = picture(first + number, stream.width, stream.height)
                frame = av.VideoFrame.from_ndarray(content, format="rgb24")
                out.mux(stream.encode(frame))
        for stream in streams:
            out.mux(stream.encode(None))
    return path.parent


def test_all_streams_become_media_and_share_the_files_columns(two_streams: Path, tmp_path: Path) -> None:
    out = tmp_path / "INDEX"
    (two_streams / "l.csv").write_text("uri,label\ntwo.mkv,7\n")
    run("index", two_streams / "l.csv", "--out", out)
    assert list(rows(out)) == [("two.mkv", 0)]
    run("index", two_streams / "l.csv", "--out", out, "--streams", "all")
    assert sorted(rows(out)) == [("two.mkv", 0), ("two.mkv", 1)]
    assert rows(out)["two.mkv", 0]["video_streams"] == 2
    assert "1 unchanged" in run("index", two_streams / "l.csv", "--out", out).output

    (tmp_path / "p.yaml").write_text("policy: stride\nstride: 5\nframes: 4\n")
    run("shard", out, "--policy", tmp_path / "p.yaml", "--out", tmp_path / "D")
    clips = [ClipDataset(tmp_path / "D")[number] for number in range(2)]
    assert [clip["label"] for clip in clips] == [7, 7]
    assert [[read_barcode(frame) for frame in clip["frames"]] for clip in clips] == [
        [0, 5, 10, 15],
        [500, 505, 510, 515],
    ]


def test_a_request_may_name_a_stream(two_streams: Path, tmp_path: Path) -> None:
    run("index", two_streams, "--out", tmp_path / "INDEX", "--streams", "all")
    clips = [
        {"uri": "two.mkv", "frames": [3]},
        {"uri": "two.mkv", "stream": 1, "frames": [3]},
        {"uri": "two.mkv", "stream": 2, "frames": [3]},
    ]
    dataset = ClipDataset(shard_clips(tmp_path / "INDEX", tmp_path / "D", clips, code=3))
    assert [read_barcode(dataset[number]["frames"][0]) for number in range(2)] == [3, 503]
    assert "no such medium" in pq.read_table(tmp_path / "D" / "failures.parquet")["message"][0].as_py()


def test_cover_art_is_no_video(corpus: Path, tmp_path: Path) -> None:
    for name in ("cover_art.mp4", "cover_art.mkv"):
        run("index", corpus / name, "--out", tmp_path / name, "--streams", "all")
        ((_, row),) = rows(tmp_path / name).items()
        assert (row["codec"], row["video_streams"]) == ("h264", 1)


@pytest.fixture
def transport(tmp_path: Path) -> Path:
    """An index of a transport stream."""
    (tmp_path / "videos").mkdir()
    encode(Recipe(name="a.ts", options={"g": "12", "bf": "2"}), tmp_path / "videos" / "a.ts")
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX", "--verify")
    return tmp_path / "INDEX"


CLIPS = [{"uri": "a.ts", "frames": [30, 2, -1, 2, 49]}, {"uri": "a.ts", "frames": [17]}]


def test_what_is_not_addressable_is_refused_with_advice_and_packed_on_demand(transport: Path, tmp_path: Path) -> None:
    assert rows(transport)["a.ts", 0]["byte_addressable"] is False
    assert pq.read_table(transport / "frames" / "part-000000.parquet")["gap"][0].as_py() is None
    with pytest.raises(NoClipsError) as caught:
        framedex.shard(transport, tmp_path / "REFUSED", clips=CLIPS, workers=0, progress=False)
    assert ["--pack needed" in failure["message"] for failure in caught.value.failures] == [True] * len(CLIPS)
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(clip) + "\n" for clip in CLIPS))
    run("shard", transport, "--clips", tmp_path / "c.jsonl", "--pack", "needed", "--out", tmp_path / "D")
    dataset = ClipDataset(tmp_path / "D")
    assert [read_barcode(frame) for frame in dataset[0]["frames"][[0, 1, 3, 4]]] == [30, 2, 2, 49]
    assert not dataset[0]["frames"][2].any()
    assert "2 exact" in run("verify", tmp_path / "D").output


def test_a_packed_dataset_with_hashes_needs_its_source_no_more(transport: Path, tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(clip) + "\n" for clip in CLIPS))
    run("shard", transport, "--clips", tmp_path / "c.jsonl", "--pack", "needed", "--out", tmp_path / "D")
    (tmp_path / "videos" / "a.ts").unlink()
    (tmp_path / "D").rename(tmp_path / "elsewhere")
    assert "2 exact" in run("verify", tmp_path / "elsewhere").output
    assert ClipDataset(tmp_path / "elsewhere")[1]["frames"].shape == (1, 144, 176, 3)
    (tar,) = (tmp_path / "elsewhere" / "shards").glob("*.tar")
    damage(tar, tar, lambda content: content[:-1] + bytes([content[-1] ^ 1]))
    assert "2 stale" in run("verify", tmp_path / "elsewhere", code=3).output


def test_hashes_are_those_of_the_full_decode_and_find_what_changed(medium: Medium, tmp_path: Path) -> None:
    from tests.support.flags import presentation_order
    from tests.support.planes import picture_md5

    path = tmp_path / "a.mp4"
    path.write_bytes(medium("h264_b_pyramid.mkv").read_bytes())
    run("index", path, "--out", tmp_path / "INDEX")
    assert Index(tmp_path / "INDEX").packets(rows(tmp_path / "INDEX")["a.mp4", 0]["media_id"]).md5 is None
    run("index", path, "--out", tmp_path / "INDEX", "--verify")
    ((_, row),) = rows(tmp_path / "INDEX").items()
    assert row["hashed"]
    packets = Index(tmp_path / "INDEX").packets(row["media_id"])
    assert packets.md5 is not None
    found = [(packets.md5[n] or b"").hex() for n in presentation_order(packets.pts, packets.flags).tolist()]
    assert found == [picture_md5(frame) for frame in full_decode(path)]

    shard_clips(tmp_path / "INDEX", tmp_path / "D", [{"uri": "a.mp4", "frames": [4, -1, 40]}])
    clip = ClipDataset(tmp_path / "D").clip(0)
    assert clip.md5 == [bytes.fromhex(found[4]), None, bytes.fromhex(found[40])]
    assert "1 exact" in run("verify", tmp_path / "D").output
    table = pq.read_table(tmp_path / "D" / "clips" / "part-000000.parquet")
    wrong = [[found[5].encode()[:16], None, bytes.fromhex(found[40])]]
    column = table.schema.get_field_index("md5")
    field = table.schema.field(column)
    import pyarrow as pa

    table = table.set_column(column, field, pa.array(wrong, field.type))
    rewrite_part(tmp_path / "D" / "clips" / "part-000000.parquet", table)
    assert "1 differs" in run("verify", tmp_path / "D", code=3).output


@pytest.fixture
def damaged(medium: Medium, tmp_path: Path) -> Path:
    """An index of a video with three GOPs. A picture in the second GOP is overwritten with zeros."""
    (tmp_path / "videos").mkdir()
    source = medium("h264_default.mp4")
    run("index", source, "--out", tmp_path / "WHOLE", "--depth", "packets")
    index = Index(tmp_path / "WHOLE")
    packets = index.packets(index.videos["media_id"][0].as_py())
    assert packets.offset is not None
    at, size = int(packets.offset[30]), int(packets.size[30])

    def zero(content: bytearray) -> bytearray:
        content[at : at + size] = bytes(size)
        return content

    damage(source, tmp_path / "videos" / "a.mp4", zero)
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX", "--depth", "packets")
    return tmp_path / "INDEX"


def test_damage_is_flagged_by_gop_and_clips_avoid_it(damaged: Path, tmp_path: Path) -> None:
    row = rows(damaged)["a.mp4", 0]
    assert (row["status"], row["damaged_gop_count"], row["error_kind"]) == ("ok", 1, "damaged")
    flags = Index(damaged).packets(row["media_id"]).flags
    starts = [*np.flatnonzero(flags & START).tolist(), len(flags)]
    hit = next(number for number in range(len(starts)) if starts[number + 1] > 30)
    assert np.flatnonzero(flags & DAMAGED).tolist() == list(range(starts[hit], starts[hit + 1]))
    (tmp_path / "p.yaml").write_text("policy: stride\nstride: 1\nframes: 10\nlast: drop\n")
    output = run("shard", damaged, "--policy", tmp_path / "p.yaml", "--out", tmp_path / "D").output
    assert "clips left out (damaged)" in output
    assert "0 failed" in output
    assert set(pq.read_table(tmp_path / "D" / "failures.parquet")["kind"].to_pylist()) == {"damaged"}
    whole = ClipDataset(tmp_path / "D")
    assert 1 <= len(whole) <= 3
    for number in range(len(whole)):
        clip = whole[number]
        assert [read_barcode(frame) for frame in clip["frames"]] == [
            round(second * 25) for second in clip["seconds"].tolist()
        ]


def test_an_explicit_request_for_damage_fails_and_keep_gives_what_the_decoder_gives(
    damaged: Path, tmp_path: Path
) -> None:
    clips = [{"uri": "a.mp4", "frames": [1]}, {"uri": "a.mp4", "frames": [24]}]
    refused = shard_clips(damaged, tmp_path / "REFUSED", clips, code=3)
    assert pq.read_table(refused / "failures.parquet")["kind"].to_pylist() == ["damaged"]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(clip) + "\n" for clip in clips))
    run("shard", damaged, "--clips", tmp_path / "c.jsonl", "--damaged", "keep", "--out", tmp_path / "D")
    dataset = ClipDataset(tmp_path / "D")
    assert read_barcode(dataset[0]["frames"][0]) == 1
    assert dataset.clip(1).recipe.damaged
    assert dataset[1]["frames"].shape == (1, 144, 176, 3)


def test_damage_that_tables_do_not_show_is_seen_when_a_clip_is_planned(damaged: Path, tmp_path: Path) -> None:
    run("index", tmp_path / "videos", "--out", tmp_path / "TABLES", "--depth", "tables")
    assert rows(tmp_path / "TABLES")["a.mp4", 0]["damaged_gop_count"] == 0
    clips = [{"uri": "a.mp4", "frames": [1]}, {"uri": "a.mp4", "frames": [35]}]
    dataset = shard_clips(tmp_path / "TABLES", tmp_path / "D", clips, code=3)
    assert pq.read_table(dataset / "failures.parquet")["kind"].to_pylist() == ["damaged"]


def test_which_clips_of_a_damaged_gop_fail_depends_on_their_own_frames_alone(damaged: Path, tmp_path: Path) -> None:
    run("index", tmp_path / "videos", "--out", tmp_path / "TABLES", "--depth", "tables")
    count = rows(tmp_path / "TABLES")["a.mp4", 0]["frame_count"]
    clips = [{"clip_id": f"{frame:03d}", "uri": "a.mp4", "frames": [frame]} for frame in range(count)]
    clips += [
        {"clip_id": f"pair-{frame:03d}", "uri": "a.mp4", "frames": [frame, frame + 9]} for frame in range(count - 9)
    ]
    orders = {"forwards": clips, "backwards": clips[::-1], "shuffled": random.Random(3).sample(clips, len(clips))}
    failed = {}
    for name, ordered in orders.items():
        for pack in ("--pack needed", "--pack clips --workers 1", "--pack clips --workers 3"):
            dataset = tmp_path / f"{name} {pack}"
            shard_clips(tmp_path / "TABLES", dataset, ordered, *pack.split(), code=3)
            failed[dataset.name] = sorted(pq.read_table(dataset / "failures.parquet")["clip_id"].to_pylist())
    alone = sorted(str(clip["clip_id"]) for clip in clips if is_refused(tmp_path / "TABLES", clip))
    assert all(clip_ids == alone for clip_ids in failed.values())
    assert 5 < len(alone) < len(clips) // 2
    whole = ClipDataset(tmp_path / "forwards --pack needed")
    for number in range(len(whole)):
        clip = whole[number]
        assert [read_barcode(frame) for frame in clip["frames"]] == clip["frame_index"].tolist()


def is_refused(index: Path, request: dict[str, Any]) -> bool:
    """Return whether a clip is refused for damage when it is the only clip of its medium."""
    opened = Index(index)
    (uri,) = opened.videos["uri"].to_pylist()
    try:
        Reader(opened, uri).clip(request["frames"])
    except DamageError:
        return True
    return False


def test_damage_inside_of_pictures_is_seen_by_decoding(medium: Medium, tmp_path: Path) -> None:
    source = medium("h264_default.mp4")
    (tmp_path / "videos").mkdir()
    garble_packet(source, tmp_path / "videos" / "a.mp4", 25, tmp_path / "WHOLE")
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX", "--depth", "packets")
    assert rows(tmp_path / "INDEX")["a.mp4", 0]["damaged_gop_count"] == 0
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX", "--verify")
    assert rows(tmp_path / "INDEX")["a.mp4", 0]["damaged_gop_count"] == 1


def test_palettes_that_stand_in_the_container_are_refused(tmp_path: Path) -> None:
    encode(Recipe(name="a.mov", codec="qtrle", pix_fmt="rgb24", frames=3), tmp_path / "a.mov")
    encode(
        Recipe(name="b.mov", codec="rawvideo", pix_fmt="gray", frames=3), tmp_path / "b.mov"
    )  # is read as an 8-bit palette
    run("index", tmp_path, "--out", tmp_path / "INDEX", code=3)
    found = {uri: (row["status"], row["error_kind"]) for (uri, _), row in rows(tmp_path / "INDEX").items()}
    assert found == {"a.mov": ("ok", None), "b.mov": ("refused", "palette")}


def test_colours_that_the_container_alone_states_decide_the_conversion(tmp_path: Path) -> None:
    """A colr box states BT.709 and full range. The bitstream states nothing."""
    encode(Recipe(name="plain.mp4", frames=6), tmp_path / "plain.mp4")
    colour = struct.pack(">I4s4sHHHB", 19, b"colr", b"nclx", 1, 1, 1, 0x80)

    def insert(content: bytearray) -> bytearray:
        """Insert the box after avcC. moov is the last box of the file, so nothing else moves."""
        at = content.find(b"avcC") - 4
        content[at:at] = colour
        for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"avc1"):
            size = content.find(kind) - 4
            content[size : size + 4] = (int.from_bytes(content[size : size + 4], "big") + len(colour)).to_bytes(
                4, "big"
            )
        return content

    path = damage(tmp_path / "plain.mp4", tmp_path / "coloured.mp4", insert)
    run("index", path, "--out", tmp_path / "INDEX")
    ((_, row),) = rows(tmp_path / "INDEX").items()
    expected = [rgb_of(frame) for frame in full_decode(path)]
    dataset = ClipDataset(shard_clips(tmp_path / "INDEX", tmp_path / "D", [{"uri": path.name, "frames": [4, 1]}]))
    assert row["color_matrix"] == 1
    assert np.array_equal(dataset[0]["frames"], np.stack([expected[4], expected[1]]))


CODECS = {
    "a.avi": "libx264",
    "b.flv": "libx264",
    "c.mxf": "mpeg2video",
    "d.nut": "libx264",
    "e.vob": "mpeg2video",
    "f.asf": "msmpeg4",
    "g.webm": "libvpx-vp9",
    "h.h264": "libx264",
}


def test_every_frame_of_other_containers_is_exact(tmp_path: Path) -> None:
    for name, codec in CODECS.items():
        options = {"g": "12", "bf": "0" if codec in ("msmpeg4", "libvpx-vp9") else "2"}
        planned.encode(tmp_path / name, codec, options, pix_fmt="yuv420p", size=(176, 144), frames=30)
    tried = {medium.uri: (medium.status, medium.exact, medium.wrong) for medium in try_folder(tmp_path)}
    assert tried == {name: ("ok", 30, []) for name in CODECS}
