"""`--pack clips`: tiny files that any player decodes to the wanted frames, and that the loader reads as usual."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset, Index
from framedex.errors import StaleError, UncuttableError
from framedex.sharder.packing.clip_files import ClipFiles
from framedex.sharder.packing.tars import Tar
from framedex.sharder.planning import planner, steps
from framedex.sharder.writing import writer
from tests.conftest import Truth
from tests.sharder.planning.test_planner import packets_of
from tests.support import planned
from tests.support.counted import some
from tests.support.datasets import content as bytes_of
from tests.support.datasets import run, write_clips
from tests.support.flags import CLOSED, LEADING, NON_REFERENCE, OPEN, RESET, SKIPPED
from tests.support.gpu import gpu_obstacles
from tests.support.media import RECIPES, Recipe, damage, encode, read_barcode
from tests.support.packed import described, file_of, one_go, samples, tars
from tests.support.reading import indexed_medium, wanted_clip

Medium = Callable[[str], Path]


def pack(index: Path, out: Path, clips: list[dict[str, Any]], *arguments: object, code: int = 0) -> Path:
    """Pack explicit clips of an index."""
    path = write_clips(out.with_suffix(".jsonl"), clips)
    run("shard", index, "--clips", path, "--out", out, "--pack", "clips", *arguments, code=code)
    return out


def mixed_clips(name: str, frames: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return clips of all frames, shuffled, each with a repeat and padding, and clips of consecutive frames."""
    order = rng.permutation(frames).tolist()
    clips = [[*order[at : at + 5], -1, order[at]] for at in range(0, frames, 5)]
    clips += [list(range(at, min(at + 6, frames))) for at in rng.integers(0, frames, 3).tolist()]
    return [{"uri": name, "frames": wanted, "clip_id": f"{name}-{n}"} for n, wanted in enumerate(clips)]


@pytest.fixture(scope="module")
def every_recipe(index: Index, truth: Callable[[str], Truth], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of packed clips that contain every frame of every recipe."""
    rng = np.random.default_rng(11)
    clips = [clip for name in RECIPES for clip in mixed_clips(name, len(truth(name).md5), rng)]
    return pack(index.path, tmp_path_factory.mktemp("packed") / "D", clips, "--shard-size", "1MB")


def test_every_clip_of_every_recipe_is_exact_by_the_loader(every_recipe: Path) -> None:
    output = run("verify", every_recipe, "--workers", 2).output
    assert output.startswith(f"{len(ClipDataset(every_recipe))} exact")
    assert not pq.read_table(every_recipe / "failures.parquet").num_rows


def test_every_file_decoded_in_one_go_shows_the_wanted_frames_at_their_times(
    every_recipe: Path, truth: Callable[[str], Truth]
) -> None:
    for content, sample in some(described(every_recipe).values()):
        shown, expected = one_go(file_of(sample)), truth(content["uri"])
        seconds = [second for second, _ in shown]
        assert seconds == sorted(set(seconds))
        assert seconds[0] >= 0
        first = min(second for second in content["seconds"] if second is not None)
        moved = min(second for second in content["seconds_in_file"] if second is not None) - first
        for frame, place, second, own in some(
            zip(
                content["frames"],
                content["frames_in_file"],
                content["seconds_in_file"],
                content["seconds"],
                strict=True,
            )
        ):
            if frame < 0:
                assert (place, second) == (-1, None)
                continue
            assert shown[place][1] == expected.md5[frame], content["clip_id"]
            assert shown[place][0] == pytest.approx(second, abs=1e-5)
            assert content["timestamps"] == "source"
            assert second == pytest.approx(own + moved, abs=1e-3), "gaps between frames are the source's"


def test_torchcodec_gives_the_wanted_frames_by_number(every_recipe: Path, torchcodec: ModuleType) -> None:
    for content, sample in some(list(described(every_recipe).values())[::3]):
        if RECIPES[content["uri"]].pix_fmt not in ("yuv420p", "yuv420p10le"):
            continue
        wanted = [(f, p) for f, p in zip(content["frames"], content["frames_in_file"], strict=True) if f >= 0]
        decoder = torchcodec.VideoDecoder(file_of(sample), dimension_order="NHWC")
        pictures = decoder.get_frames_at([place for _, place in wanted]).data.numpy()
        assert [read_barcode(picture) for picture in pictures] == [frame for frame, _ in wanted], content["clip_id"]


def test_nothing_lies_before_zero_and_no_edit_list_is_written(every_recipe: Path) -> None:
    for content in some(file_of(sample) for _, sample in samples(every_recipe)):
        assert b"elst" not in content[:4096]
        with av.open(io.BytesIO(content)) as container:
            times = [packet.pts for packet in container.demux(video=0) if packet.pts is not None]
        assert min(times) >= 0


def test_tars_stay_below_the_size_asked_for_and_clips_are_numbered_through(every_recipe: Path) -> None:
    sizes = [path.stat().st_size for path in tars(every_recipe)]
    assert len(sizes) > 3
    assert max(sizes) <= 1_000_000
    assert [key for key, _ in samples(every_recipe)] == [f"{n:09d}" for n in range(len(ClipDataset(every_recipe)))]
    rows = pq.read_table(every_recipe / "shards.parquet").to_pylist()
    assert [row["size_bytes"] for row in rows] == sizes
    assert sum(row["clips"] for row in rows) == len(ClipDataset(every_recipe))
    assert [row["name"] for row in rows] == [f"shards/clips-{n:06d}.tar" for n in range(len(sizes))]


def test_a_clip_larger_than_a_tar_has_one_of_its_own(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_lossless.mp4", "frames": [n, 29 - n]} for n in range(4)]
    dataset = pack(index.path, tmp_path / "D", clips, "--shard-size", "2KB")
    assert [row["clips"] for row in pq.read_table(dataset / "shards.parquet").to_pylist()] == [1, 1, 1, 1]
    assert "4 exact" in run("verify", dataset).output


def test_the_gate_to_nvdec_works_from_packed_facts(every_recipe: Path, index: Index, tmp_path: Path) -> None:
    dataset = ClipDataset(every_recipe)
    clips = [dataset.clip(number) for number in range(len(dataset))]
    assert {clip.medium.container for clip in clips} == {"mp4"}
    assert not any(clip.recipe.run_state.any() for clip in clips)
    sent = {clip.medium.uri for clip, why in zip(clips, gpu_obstacles(dataset), strict=True) if why is None}
    assert "hevc_closed.mp4" in sent
    assert "h264_default.mp4" in sent
    assert "h264_lossless.mp4" not in sent


ELSEWHERE = {
    "a.avi": ("libx264", "2"),
    "b.flv": ("libx264", "2"),
    "c.ts": ("libx264", "2"),
    "d.ts": ("libx265", "2"),
    "e.mpg": ("mpeg2video", "2"),
    "f.h264": ("libx264", "2"),
    "g.webm": ("libvpx-vp9", "0"),
    "h.mkv": ("libsvtav1", "0"),
    "j.avi": ("mpeg4", "2"),
    "k.mov": ("prores_ks", "0"),
    "l.mkv": ("ffv1", "0"),
    "m.avi": ("mjpeg", "0"),
    "n.mov": ("png", "0"),
    "o.webm": ("libvpx", "0"),
    "p.asf": ("wmv2", "0"),
}
PIXELS = {"prores_ks": "yuv422p10le", "mjpeg": "yuvj420p", "png": "rgb24"}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index and packed clips of media that are rewritten, muxed by libavformat, or demuxed first."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "videos").mkdir()
    for name, (codec, bframes) in ELSEWHERE.items():
        options = (
            {"g": "9"} | ({"bf": bframes} if bframes != "0" else {}) | ({"preset": "12"} if "svt" in codec else {})
        )
        pix_fmt = PIXELS.get(codec, "yuv420p")
        path = folder / "videos" / name
        planned.encode(path, codec, options, pix_fmt=pix_fmt, size=(176, 144), frames=25)
    run("index", folder / "videos", "--out", folder / "INDEX")
    rng = np.random.default_rng(5)
    pack(folder / "INDEX", folder / "D", [clip for name in ELSEWHERE for clip in mixed_clips(name, 25, rng)])
    return folder


def test_every_codec_and_container_is_exact_by_loader_and_in_one_go(elsewhere: Path) -> None:
    count = len(ClipDataset(elsewhere / "D"))
    assert run("verify", elsewhere / "D").output.startswith(f"{count} exact")
    suffixes = {}
    for content, sample in described(elsewhere / "D").values():
        shown = one_go(file_of(sample))
        source = one_go((elsewhere / "videos" / content["uri"]).read_bytes())
        wanted = [(f, p) for f, p in zip(content["frames"], content["frames_in_file"], strict=True) if f >= 0]
        assert [shown[place][1] for _, place in wanted] == [source[f][1] for f, _ in wanted], content["clip_id"]
        suffix = next(iter(sample))
        assert content["timestamps"] == ("ranks" if suffix == "avi" else "source")
        suffixes[content["uri"]] = suffix
    expected = {
        "c.ts": "mp4", "d.ts": "mp4", "g.webm": "mp4", "h.mkv": "mp4", "e.mpg": "mkv", "k.mov": "mov", "n.mov": "mov",
        "p.asf": "avi",
    }  # fmt: skip
    assert {name: suffixes[name] for name in expected} == expected


def test_packed_clips_need_their_sources_no_more(elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "D").symlink_to(elsewhere / "D")
    dataset = ClipDataset(tmp_path / "D", root="/nowhere")
    for number in some(range(len(dataset))):
        item = dataset[number]
        assert [read_barcode(f) for f in item["frames"][item["mask"]]] == item["frame_index"][item["mask"]].tolist()


def test_needed_packs_what_is_no_byte_range_and_leaves_the_rest(elsewhere: Path, tmp_path: Path) -> None:
    clips = [{"uri": name, "frames": [20, 3]} for name in ("a.avi", "c.ts", "g.webm", "e.mpg")]
    path = write_clips(tmp_path / "c.jsonl", clips)
    refused = tmp_path / "REFUSED"
    run("shard", elsewhere / "INDEX", "--clips", path, "--out", refused, code=3)
    assert all("--pack needed" in text for text in pq.read_table(refused / "failures.parquet")["message"].to_pylist())
    run("shard", elsewhere / "INDEX", "--clips", path, "--out", tmp_path / "D", "--pack", "needed")
    shards = pq.read_table(tmp_path / "D/clips/part-000000.parquet")["shard"].to_pylist()
    assert shards == [None, 0, None, 0]
    assert "4 exact" in run("verify", tmp_path / "D").output
    assert not list(tmp_path.glob("D*/.writing-*")), "what was demuxed on the way is gone"


def test_a_source_gone_or_changed_fails_its_clips_alone(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    for name in ("gone.mp4", "changed.ts", "good.mp4", "gone.ts"):
        encode(Recipe(name=name, options={"g": "10"}, frames=20), tmp_path / "videos" / name)
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    for name in ("gone.mp4", "gone.ts"):
        (tmp_path / "videos" / name).unlink()
    changed = tmp_path / "videos" / "changed.ts"
    damage(changed, changed, lambda content: content + b"\0" * 188)
    clips = [{"uri": name, "frames": [n]} for name in ("gone.mp4", "changed.ts", "good.mp4", "gone.ts") for n in (3, 9)]
    dataset = pack(tmp_path / "INDEX", tmp_path / "D", clips, code=3)
    rows = pq.read_table(dataset / "failures.parquet").to_pylist()
    assert [(row["uri"], row["kind"]) for row in rows] == [
        (name, "stale") for name in ("gone.mp4", "changed.ts", "gone.ts") for _ in range(2)
    ]
    assert "2 exact" in run("verify", dataset).output


def test_sources_that_change_while_they_are_copied_fail_their_clips_alone(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Tar._copy

    def some(tar: Tar, piece: Any) -> None:
        copy(tar, piece)
        if sum(offset for offset, _ in piece.ranges) % 3 == 0:
            raise StaleError("changed", where=piece.source.path)

    monkeypatch.setattr(Tar, "_copy", some)
    clips = [{"uri": name, "frames": [n, n + 2]} for n in range(30) for name in ("h264_default.mp4", "h264_audio.mkv")]
    written = []
    for in_flight in (1, 2, 5):
        monkeypatch.setattr(writer, "COPIES_IN_FLIGHT", in_flight)
        dataset = pack(index.path, tmp_path / str(in_flight), clips, "--shard-size", "200kB", code=3)
        written.append(bytes_of(dataset))
    assert written[0] == written[1] == written[2]
    kinds = pq.read_table(dataset / "failures.parquet")["kind"].to_pylist()
    assert set(kinds) == {"stale"}
    assert 5 <= len(kinds) <= 55
    assert len(list(tars(dataset))) > 2
    assert f"{len(clips) - len(kinds)} exact" in run("verify", dataset).output


def test_what_was_demuxed_stays_until_it_is_copied(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Tar._copy

    def slowly(tar: Tar, piece: Any) -> None:
        time.sleep(0.02)
        copy(tar, piece)

    monkeypatch.setattr(Tar, "_copy", slowly)
    monkeypatch.setattr(steps, "MAX_BYTES", 1)
    for number in range(5):
        (tmp_path / "videos").mkdir(exist_ok=True)
        shutil.copy(corpus / "mkv_headerstrip.mkv", tmp_path / "videos" / f"{number}.mkv")
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    clips = [{"uri": f"{number}.mkv", "frames": [3, 9]} for number in range(5)]
    dataset = pack(tmp_path / "INDEX", tmp_path / "D", clips)
    assert "5 exact" in run("verify", dataset).output
    assert not list(tmp_path.rglob(".writing-*"))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["--pack images", "--pack clips --encode h264"])
def test_what_was_demuxed_stays_until_its_clips_are_recoded(
    how: str, workers: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MAX_BYTES", 1)  # the demuxed packets of one video at a time
    (tmp_path / "videos").mkdir()
    for number in range(4):
        shutil.copy(corpus / "mkv_headerstrip.mkv", tmp_path / "videos" / f"{number}.mkv")
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    clips = [
        {"uri": f"{number}.mkv", "frames": [first, 9]} for number in range(4) for first in ((3, 4)[: 1 + number % 2])
    ]
    listed = write_clips(tmp_path / "clips.jsonl", clips)
    run("shard", tmp_path / "INDEX", "--clips", listed, "--out", tmp_path / "D", "--workers", workers, *how.split())
    assert len(ClipDataset(tmp_path / "D")) == len(clips)


def test_a_codec_that_no_file_holds_is_a_row_with_advice(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    planned.encode(tmp_path / "videos/a.apng", "apng", {}, pix_fmt="rgb24", size=(176, 144), frames=10)
    planned.encode(tmp_path / "videos/c.mkv", "rawvideo", {}, pix_fmt="yuv420p", size=(176, 144), frames=10)
    encode(Recipe(name="b.mp4", frames=10), tmp_path / "videos/b.mp4")
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    clips = [{"uri": name, "frames": [5]} for name in ("a.apng", "b.mp4", "c.mkv")]
    dataset = pack(tmp_path / "INDEX", tmp_path / "D", clips, code=3)
    rows = pq.read_table(dataset / "failures.parquet").to_pylist()
    assert [row["uri"] for row in rows] == ["a.apng", "c.mkv"]
    for row in rows:
        assert (row["kind"], row["counts"]) == ("uncuttable", True)
        assert "--pack images" in row["message"]
    assert "1 exact" in run("verify", dataset).output


def test_a_clip_that_begins_with_pictures_nobody_shows_is_not_cut(index: Index) -> None:
    clip = indexed_medium(index, "h264_default.mp4", one_stream=True).clip(wanted_clip(np.array([3, 9])))
    assert ClipFiles().cut(clip).unshown == 0
    shown = np.append(False, np.ones(len(clip.recipe.packet_size) - 1, np.bool_))
    with pytest.raises(UncuttableError, match="decoders do not show"):
        ClipFiles().cut(replace(clip, recipe=replace(clip.recipe, packet_shown=shown)))


def test_users_columns_are_in_the_json_and_may_not_take_its_names(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_vfr.mp4", "frames": [1], "caption": "ünï", "label": None, "score": 1.5}]
    dataset = pack(index.path, tmp_path / "D", clips)
    (_, sample), = samples(dataset)  # fmt: skip
    content = json.loads(sample["json"])
    assert (content["caption"], content["label"], content["score"]) == ("ünï", None, 1.5)
    clash = [clips[0] | {"frames_in_file": 3}]
    path = write_clips(tmp_path / "c.jsonl", clash)
    output = run("shard", index.path, "--clips", path, "--out", tmp_path / "E", "--pack", "clips", code=1).output
    assert "frames_in_file" in output
    assert not (tmp_path / "E").exists()


@pytest.mark.parametrize("size", ["0", "many", "-1MB", "1XB"])
def test_a_shard_size_that_is_none_is_a_usage_error(index: Index, tmp_path: Path, size: str) -> None:
    path = write_clips(tmp_path / "c.jsonl", [{"uri": "h264_vfr.mp4", "frames": [1]}])
    run("shard", index.path, "--clips", path, "--out", tmp_path / "D", "--shard-size", size, code=2)


def joined(flags: list[int], frames: list[int], *, drop_leading: bool = False) -> list[tuple[int, int]]:
    begin, end = planner.Planner(packets_of(flags), drop_leading=drop_leading).joined(np.array(frames))
    return list(zip(begin.tolist(), end.tolist(), strict=True))


def test_runs_at_closed_starts_follow_each_other_and_others_are_joined() -> None:
    flags = [CLOSED, 0, 0, OPEN, 0, 0, CLOSED, 0, 0]
    assert joined(flags, [1, 7]) == [(0, 1), (6, 7)]
    assert joined(flags, [1, 4]) == [(0, 4)]
    assert joined(flags, [0, 4, 8]) == [(0, 4), (6, 8)]
    assert joined(flags, [4]) == [(3, 4)]


def test_a_first_run_begins_where_no_leading_picture_is_left_undecodable() -> None:
    flags = [CLOSED, 0, OPEN, LEADING, LEADING | NON_REFERENCE, 0, OPEN, LEADING | NON_REFERENCE, 0]
    assert joined(flags, [5]) == [(0, 5)]
    assert joined(flags, [5], drop_leading=True) == [(2, 5)]
    assert joined(flags, [8]) == [(6, 8)], "what no other picture needs is left out anyway"
    assert joined(flags, [2, 8]) == [(0, 8)], "the run that was joined to it counts, too"
    assert joined([OPEN, LEADING | SKIPPED, 0], [1]) == [(0, 2)], (
        "decoders drop leading pictures of the very first start"
    )


def test_no_stream_goes_over_a_change_of_configuration() -> None:
    flags = [CLOSED, 0, CLOSED | RESET, 0, CLOSED, 0]
    assert joined(flags, [1]) == [(0, 1)]
    assert joined(flags, [3, 5]) == [(2, 5)]
    for frames in ([1, 3], [1, 5]):
        with pytest.raises(UncuttableError, match="pack images"):
            joined(flags, frames)
