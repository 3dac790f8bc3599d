"""`--pack clips --encode`: the wanted frames alone, each once and in order, as one closed GOP that shows them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

import framedex
from framedex import ClipDataset, ClipLoader, EncodeOptions, Index
from framedex.errors import NoClipsError, PolicyError
from framedex.indexer.probing.probe import describe_stream
from tests.support.datasets import run, shard_clips, write_clips
from tests.support.encoded import CODECS, change_encoder, encode_clips, psnr
from tests.support.gpu import gpu_obstacles
from tests.support.media import RECIPES, Recipe, encode, garble_packet, read_barcode
from tests.support.packed import file_of, samples

FACTS = ("codec", "codec_tag", "profile", "pixel_format", "width", "height", "color_range", "color_matrix", "extradata")


def test_every_recipe_gives_the_right_frames_in_any_order(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": name, "frames": [0, 7, -1, 3, 7]} for name in RECIPES if RECIPES[name].frames > 7]
    dataset = ClipDataset(encode_clips(index.path, tmp_path / "D", clips, "--crf", 12))
    reference = ClipDataset(shard_clips(index.path, tmp_path / "R", clips))
    assert len(dataset) == len(reference) == len(clips) > 30
    for number in range(len(clips)):
        item, expected = dataset[number], reference[number]
        for name in ("pts", "seconds", "frame_index", "mask"):
            assert np.array_equal(item[name], expected[name], equal_nan=name == "seconds")
        own, right = (
            [read_barcode(frame) for frame in frames["frames"][frames["mask"]]] for frames in (item, expected)
        )
        assert own == right, clips[number]["uri"]
        assert not item["frames"][2].any()
    assert f"{len(clips)} nearest" in run("verify", tmp_path / "D").output


@pytest.mark.parametrize("codec", CODECS)
def test_a_clip_holds_its_frames_alone_behind_one_key_frame(index: Index, tmp_path: Path, codec: str) -> None:
    wanted = [41, 2, 30, 2, -1, 17, 9, 8, 7, 49]
    dataset = encode_clips(index.path, tmp_path / "D", [{"uri": "h264_default.mp4", "frames": wanted}], codec=codec)
    ((_, sample),) = samples(dataset)
    content = json.loads(sample["json"])
    with av.open(io.BytesIO(file_of(sample))) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        keys = [packet.is_keyframe for packet in packets]
    with av.open(io.BytesIO(file_of(sample))) as container:
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert keys == [True] + [False] * 7
    assert [read_barcode(frame) for frame in shown] == [2, 7, 8, 9, 17, 30, 41, 49]
    assert content["frames_in_file"] == [6, 0, 5, 0, -1, 4, 3, 2, 1, 7]
    assert content["unshown_in_file"] == 0
    item = ClipDataset(dataset)[0]
    assert [read_barcode(frame) for frame in item["frames"][item["mask"]]] == [41, 2, 30, 2, 17, 9, 8, 7, 49]
    assert "1 nearest" in run("verify", dataset).output


@pytest.mark.parametrize("codec", CODECS)
def test_the_manifest_describes_the_stream_as_a_player_sees_it(index: Index, tmp_path: Path, codec: str) -> None:
    clips = [{"uri": "h264_bt709.mp4", "frames": [4]}, {"uri": "h264_bt709.mp4", "frames": list(range(20))}]
    dataset = encode_clips(index.path, tmp_path / "D", clips, codec=codec)
    clip = ClipDataset(dataset).clip(1)
    found = []
    for _, sample in samples(dataset):
        with av.open(io.BytesIO(file_of(sample))) as container:
            found.append(describe_stream(container.streams.video[0]))
    assert len(found) == 2
    for name in FACTS:
        assert {getattr(facts, name) for facts in found} == {getattr(clip.medium, name)}, name
    assert max(facts.reorder_depth for facts in found) <= clip.medium.reorder_depth
    assert {facts.color_primaries for facts in found} == {clip.medium.color_primaries} == {1}
    header = json.loads((dataset / "dataset.json").read_text())
    assert header["encode"]["codec"] == codec
    assert "FFmpeg" in header["encode"]["encoder"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("uri", ["h264_bt709.mp4", "h264_default.mp4"])
def test_colours_are_those_of_the_source(index: Index, tmp_path: Path, codec: str, uri: str) -> None:
    """Use BT.709 pictures of soft colours, for which a wrong matrix would cost at least 10 dB."""
    clips = [{"uri": uri, "frames": [4, 30]}]
    dataset = ClipDataset(encode_clips(index.path, tmp_path / "D", clips, "--crf", 5, codec=codec))
    expected = ClipDataset(shard_clips(index.path, tmp_path / "R", clips))[0]["frames"]
    assert psnr(dataset[0]["frames"], expected) > (38 if uri == "h264_bt709.mp4" else 28)


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        (["--short-side", 96], (96, 118)),  # 117.3
        (["--short-side", 97], (96, 118)),
        (["--short-side", 4000], (144, 176)),
        (["--box", 100], (82, 100)),
        (["--size", "50x60"], (50, 60)),
        ([], (144, 176)),
    ],
)
def test_sizes_are_even_and_scaled_as_images_are(
    index: Index, tmp_path: Path, arguments: list[object], size: tuple[int, int]
) -> None:
    clips = [{"uri": "h264_default.mp4", "frames": [4]}]
    dataset = encode_clips(index.path, tmp_path / "D", clips, "--crf", 1, *arguments)
    ((_, sample),) = samples(dataset)
    content = json.loads(sample["json"])
    assert (content["height"], content["width"]) == size
    frames = ClipDataset(dataset)[0]["frames"]
    assert frames.shape == (1, *size, 3)
    path = write_clips(tmp_path / "images.jsonl", clips)
    words = ("shard", index.path, "--clips", path, "--out", tmp_path / "I", "--pack", "images")
    run(*words, "--image-format", "png", "--size", f"{size[0]}x{size[1]}")
    assert (
        psnr(frames, ClipDataset(tmp_path / "I")[0]["frames"]) > 26
    )  # a wrong scale or filter costs more than halved chroma
    assert "1 nearest" in run("verify", dataset).output


def test_odd_sizes_become_even_without_enlarging() -> None:
    assert EncodeOptions().stored_size(99, 131) == (98, 130)
    assert EncodeOptions(short_side=256).stored_size(1080, 1920) == (256, 456)  # 455.1
    assert EncodeOptions(short_side=255).stored_size(1080, 1920) == (254, 454)  # 453.3
    assert EncodeOptions(box=1).stored_size(1080, 1920) == (2, 2)


def test_options_that_do_not_go_together_are_errors(index: Index, tmp_path: Path) -> None:
    path = write_clips(tmp_path / "c.jsonl", [{"uri": "h264_vfr.mp4", "frames": [1]}])
    words = ("shard", index.path, "--clips", path, "--out", tmp_path / "D")
    assert "--encode needs --pack clips" in run(*words, "--encode", "h264", code=2).output
    assert "--encode needs --pack clips" in run(*words, "--pack", "images", "--encode", "av1", code=2).output
    assert "--encode needs --pack clips" in run(*words, "--pack", "needed", "--encode", "av1", code=2).output
    assert "--crf needs --encode" in run(*words, "--pack", "clips", "--crf", 20, code=2).output
    assert "--short-side needs" in run(*words, "--pack", "clips", "--short-side", 20, code=2).output
    encoding = (*words, "--pack", "clips", "--encode", "h264")
    assert "--quality needs --pack images" in run(*encoding, "--quality", 20, code=2).output
    assert "1 to 51" in run(*encoding, "--crf", 60, code=1).output
    assert "must be even" in run(*encoding, "--size", "51x60", code=1).output
    assert not (tmp_path / "D").exists()


def test_python_takes_a_codec_or_options_and_refuses_what_has_no_effect(index: Index, tmp_path: Path) -> None:
    clips: list[dict[str, Any]] = [{"uri": "h264_vfr.mp4", "frames": [1, 2]}]
    framedex.shard(index, tmp_path / "A", clips=clips, pack="clips", encode="h264", workers=0)
    options = EncodeOptions(codec="h264", crf=23)
    framedex.shard(index, tmp_path / "B", clips=clips, pack="clips", encode=options, workers=0)
    assert (tmp_path / "A/shards/clips-000000.tar").read_bytes() == (
        tmp_path / "B/shards/clips-000000.tar"
    ).read_bytes()
    with pytest.raises(PolicyError, match="encode needs pack='clips'"):
        framedex.shard(index, tmp_path / "C", clips=clips, pack="images", encode="h264")
    with pytest.raises(PolicyError, match="unknown codec"):
        framedex.shard(index, tmp_path / "C", clips=clips, pack="clips", encode="vp9")  # type: ignore[arg-type]


def test_an_encoder_that_is_missing_is_an_error_before_anything_is_written(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_encoder(monkeypatch, "h264", name="libx264_that_is_missing")
    words = ("shard", index.path, "--policy", "fps", "--out", tmp_path / "D", "--pack", "clips", "--encode", "h264")
    done = run(*words, code=1)
    assert "no working libx264_that_is_missing" in done.output
    assert "remedy" in done.output
    assert list(tmp_path.iterdir()) == []


def test_nvdec_may_decode_h264_clips_with_exact_colours(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": name, "frames": [1, 4]} for name in ("h264_bt709.mp4", "hevc_main10.mov")]
    dataset = ClipDataset(encode_clips(index.path, tmp_path / "D", clips))
    assert gpu_obstacles(dataset, colour="exact") == [None, None]


def test_pictures_too_small_for_the_encoder_are_rows_and_the_others_are_kept(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_default.mp4", "frames": [1, 4]}]
    options = EncodeOptions(codec="hevc", size=(64, 64))
    how: dict[str, Any] = {"pack": "clips", "encode": options, "workers": 0, "progress": False}
    with pytest.raises(NoClipsError) as caught:
        framedex.shard(index.path, tmp_path / "D", clips=clips, **how)
    (row,) = caught.value.failures
    assert row["kind"] == "uncuttable"
    assert "96 pixels or more per side" in row["message"]
    assert "choose another size" in row["message"]


def test_what_does_not_decode_is_gone_or_holds_padding_alone_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    for name in ("bad.mp4", "gone.mp4", "good.mp4"):
        encode(Recipe(name=name, options={"preset": "veryfast", "g": "10"}, frames=20), tmp_path / "videos" / name)
    bad = tmp_path / "videos" / "bad.mp4"
    garble_packet(bad, bad, 0, tmp_path / "PACKETS")
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX", "--depth", "packets")
    (tmp_path / "videos/gone.mp4").unlink()
    clips = [{"uri": name, "frames": [5]} for name in ("bad.mp4", "gone.mp4", "good.mp4")]
    clips += [{"uri": "good.mp4", "frames": [-1, -1]}, {"uri": "good.mp4", "frames": [7, 7, 7]}]
    dataset = encode_clips(tmp_path / "INDEX", tmp_path / "D", clips, code=3)
    rows = pq.read_table(dataset / "failures.parquet").to_pylist()
    kinds = [(row["uri"], row["kind"]) for row in rows]
    assert kinds[:2] == [("bad.mp4", "undecodable"), ("gone.mp4", "stale")]
    assert kinds[2][0] == "good.mp4"
    assert "only of padding" in rows[2]["message"]
    assert len(kinds) == 3
    kept = ClipDataset(dataset)
    assert [[read_barcode(frame) for frame in kept[n]["frames"]] for n in range(len(kept))] == [[5], [7, 7, 7]]
    assert [len(kept.clip(n).recipe.packet_size) for n in range(len(kept))] == [1, 1]


def test_sources_that_are_no_byte_ranges_and_codecs_that_no_file_holds_are_encoded(tmp_path: Path) -> None:
    from tests.support import planned

    (tmp_path / "videos").mkdir()
    encode(Recipe(name="a.ts", options={"g": "10"}, frames=20), tmp_path / "videos/a.ts")
    planned.encode(tmp_path / "videos/b.apng", "apng", {}, pix_fmt="rgb24", size=(176, 144), frames=10)
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    clips = [{"uri": name, "frames": [8, 3]} for name in ("a.ts", "b.apng")]
    dataset = encode_clips(tmp_path / "INDEX", tmp_path / "D", clips)
    assert "2 nearest" in run("verify", dataset).output
    for path in (tmp_path / "videos").iterdir():
        path.unlink()
    items = [ClipDataset(dataset)[number] for number in range(2)]
    assert [[read_barcode(frame) for frame in item["frames"]] for item in items] == [[8, 3], [8, 3]]


def test_sound_is_packed_beside_encoded_frames(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_audio.mp4", "frames": [3, 9, 20]}]
    encoded = ClipDataset(encode_clips(index.path, tmp_path / "D", clips, "--audio"))
    copied = ClipDataset(shard_clips(index.path, tmp_path / "R", clips, "--audio"))
    assert np.allclose(encoded[0]["audio"], copied[0]["audio"], atol=1e-6)  # FLAC keeps 24 bits
    assert encoded[0]["audio"].size
    assert [read_barcode(frame) for frame in encoded[0]["frames"]] == [3, 9, 20]


def test_the_encoded_frames_of_pictures_that_differ_in_size_have_the_size_of_the_medium(
    corpus: Path, tmp_path: Path
) -> None:
    run("index", corpus / "h264_sps_change.ts", "--out", tmp_path / "INDEX")
    (medium,) = Index(tmp_path / "INDEX").videos.to_pylist()
    assert medium["varying_shape"]
    frames = [0, medium["frame_count"] - 1]
    dataset = encode_clips(tmp_path / "INDEX", tmp_path / "D", [{"uri": medium["uri"], "frames": frames}])
    assert ClipDataset(dataset)[0]["frames"].shape == (2, medium["height"], medium["width"], 3)
    assert "1 nearest" in run("verify", dataset).output


def test_loaders_and_movies_give_the_frames_of_the_dataset(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_default.mp4", "frames": [30, 2, 7]}, {"uri": "hevc_closed.mp4", "frames": [1, 40, 3]}]
    path = encode_clips(index.path, tmp_path / "D", clips, "--size", "144x176")
    dataset = ClipDataset(path)
    (batch,) = ClipLoader(dataset, batch_size=2, output="numpy")
    assert np.array_equal(batch["frames"], np.stack([dataset[0]["frames"], dataset[1]["frames"]]))
    movie = ClipDataset(path, decode="movie")[0]["movie"]
    with av.open(io.BytesIO(bytes(movie))) as container:
        shown = [read_barcode(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    assert shown == [2, 7, 30]


def test_frames_of_damaged_gops_keep_their_flag(corpus: Path, tmp_path: Path) -> None:
    run("index", corpus / "corrupt_mid.ts", "--out", tmp_path / "INDEX", "--depth", "packets", "--verify")
    policy = "{policy: stride, stride: 1, frames: 8}"
    words = ("shard", tmp_path / "INDEX", "--policy", policy, "--pack", "clips", "--encode", "h264")
    run(*words, "--out", tmp_path / "D", "--damaged", "keep", "--max-failures", 99)
    dataset = ClipDataset(tmp_path / "D")
    damaged = [dataset.clip(number).recipe.damaged for number in range(len(dataset))]
    assert True in damaged
    assert False in damaged
    obstacles = gpu_obstacles(dataset)
    assert [obstacle is None for obstacle in obstacles] == [not flag for flag in damaged]


@pytest.mark.parametrize(
    "wrong",
    [{"crf": 23.5}, {"crf": "23"}, {"short_side": 96.5}, {"short_side": "96"}, {"size": (96,)}, {"size": "96x96"}],
)
def test_options_of_other_types_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        EncodeOptions(**wrong)
