"""Images as clips: they are indexed, planned, read, checked, decoded and verified like videos, and with videos."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image

from framedex import ClipDataset, ClipLoader
from framedex.errors import DecodeError, StaleError
from framedex.indexer.probing.image_facts import rgb_md5, rgb_of
from tests.conftest import Truth
from tests.support.counted import some
from tests.support.datasets import run, shard_clips
from tests.support.images import encoded, sequence, tar_of, write
from tests.support.manifests import rewrite_part
from tests.support.media import read_barcode
from tests.support.policies import policy_of

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


def pixels(number: int, size: tuple[int, int] = (32, 24)) -> NDArray[np.uint8]:
    """Return the pixels of `encoded(number)` in a lossless format."""
    return rgb_of(encoded(number, "PNG", size=size))


def indexed(tmp_path: Path, *sources: object) -> Path:
    run("index", *sources, "--out", tmp_path / "INDEX")
    return tmp_path / "INDEX"


def clips_of(tmp_path: Path, clips: list[dict[str, Any]], *sources: object, code: int = 0) -> Path:
    """Index sources and shard explicit clips of them."""
    return shard_clips(indexed(tmp_path, *sources), tmp_path / "D", clips, code=code)


def verdicts(dataset: Path, *arguments: object, code: int = 0) -> dict[str, dict[str, Any]]:
    output = run("verify", dataset, "--json", *arguments, code=code).output
    return {row["clip_id"]: row for row in map(json.loads, output.splitlines())}


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """The folder `shots`. Its folder `a` has twelve PNGs, whose natural order is not their order as text."""
    return sequence(tmp_path / "shots/a", 12).parent


def test_a_sequences_frames_are_its_images_in_natural_order(tmp_path: Path, shots: Path) -> None:
    (clip,) = ClipDataset(clips_of(tmp_path, [{"uri": "a", "frames": [11, 2, -1, 2, 10]}], shots, "--image-fps", 4))
    assert clip["frames"].shape == (5, 24, 32, 3)
    for place, number in enumerate([11, 2, -1, 2, 10]):
        assert (clip["frames"][place] == (0 if number < 0 else pixels(number))).all()
    assert clip["frame_index"].tolist() == [11, 2, -1, 2, 10]
    assert clip["mask"].tolist() == [True, True, False, True, True]
    assert np.nan_to_num(clip["seconds"], nan=-1).tolist() == [2.75, 0.5, -1, 0.5, 2.5]


@pytest.mark.parametrize(
    "kind, options", [("JPEG", {"quality": 90}), ("WEBP", {"quality": 80}), ("WEBP", {"lossless": True})]
)
def test_other_formats_are_what_pillow_makes_of_the_file(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    folder = write(tmp_path / "f", {f"{n}.{kind.lower()}": encoded(n, kind, **options) for n in range(3)})
    (clip,) = ClipDataset(clips_of(tmp_path, [{"uri": ".", "frames": [2, 0]}], folder))
    for frame, number in some(zip(clip["frames"], [2, 0], strict=True)):
        with Image.open(folder / f"{number}.{kind.lower()}") as image:
            assert (frame == np.asarray(image)).all()
        assert (frame == pixels(number)).all() == (options.get("lossless", False))


def test_a_palette_with_alpha_loads_without_a_warning(tmp_path: Path) -> None:
    image = Image.fromarray(pixels(0)).quantize(8)
    file = io.BytesIO()
    image.save(file, "PNG", transparency=bytes(range(8)))
    folder = write(tmp_path / "f", {"0.png": file.getvalue()})
    dataset = ClipDataset(clips_of(tmp_path, [{"uri": ".", "frames": [0]}], folder))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (dataset[0]["frames"][0] == np.asarray(image.convert("RGB"))).all()


def test_a_photograph_with_a_preview_behind_it_is_one_image(tmp_path: Path) -> None:
    first, second = Image.fromarray(pixels(0)), Image.fromarray(pixels(1))
    file, alone = io.BytesIO(), io.BytesIO()
    first.save(file, "MPO", save_all=True, append_images=[second], quality=90)
    first.save(alone, "JPEG", quality=90)
    folder = write(tmp_path / "f", {"0.jpg": file.getvalue()})
    (clip,) = ClipDataset(clips_of(tmp_path, [{"uri": ".", "frames": [0]}], folder))
    assert (clip["frames"][0] == rgb_of(alone.getvalue())).all()


def test_single_images_are_labelled_clips_of_one_frame(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "f", {f"{label}/{n}.png": encoded(n) for label, n in (("cat", 0), ("cat", 1), ("dog", 2))}
    )
    index = indexed(tmp_path, folder, "--images", "single", "--label-from", "parent")
    (tmp_path / "p.yaml").write_text("policy: frames\nframes: [0]\n")
    run("shard", index, "--policy", tmp_path / "p.yaml", "--out", tmp_path / "D")
    found = {clip["uri"]: (clip["label"], clip["frames"]) for clip in ClipDataset(tmp_path / "D")}
    assert {uri: label for uri, (label, _) in found.items()} == {
        "cat/0.png": "cat",
        "cat/1.png": "cat",
        "dog/2.png": "dog",
    }
    for number, uri in enumerate(sorted(found)):
        assert found[uri][1].shape == (1, 24, 32, 3)
        assert (found[uri][1][0] == pixels(number)).all()
    assert {row["verdict"] for row in verdicts(tmp_path / "D").values()} == {"exact"}


def test_sequences_of_a_tar_are_named_by_the_tar_and_the_member(tmp_path: Path) -> None:
    files = [(f"{folder}/{n}.png", encoded(n + base)) for folder, base in (("b", 20), ("a", 0)) for n in (10, 2, 1)]
    tar_of(tmp_path / "shots.tar", files)
    clips = [{"uri": "shots.tar/a", "frames": [2, 0]}, {"uri": "shots.tar/b", "frames": [1]}]
    dataset = ClipDataset(clips_of(tmp_path, clips, tmp_path / "shots.tar"))
    assert [(frame == pixels(n)).all() for frame, n in zip(dataset[0]["frames"], [10, 1], strict=True)] == [True, True]
    assert (dataset[1]["frames"][0] == pixels(22)).all()
    assert {row["verdict"] for row in verdicts(tmp_path / "D").values()} == {"exact"}
    failures = tmp_path / "E"
    shard_clips(tmp_path / "INDEX", failures, [clips[0], {"uri": "shots.tar", "frames": [0]}], code=3)
    (failure,) = pq.read_table(failures / "failures.parquet").to_pylist()
    assert "no such medium" in failure["message"]


def test_a_tar_of_one_sequence_is_named_by_itself(tmp_path: Path) -> None:
    tar_of(tmp_path / "one.tar", [("a/0.png", encoded(0)), ("a/1.png", encoded(1))])
    (clip,) = ClipDataset(clips_of(tmp_path, [{"uri": "one.tar", "frames": [1]}], tmp_path / "one.tar"))
    assert (clip["frames"][0] == pixels(1)).all()


def test_a_tar_that_webdataset_wrote_loads(tmp_path: Path) -> None:
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "w.tar")) as tar:
        for key in ("x", "y"):
            tar.write({"__key__": key, "json": {}} | {f"{n:03}.png": encoded(n + 5 * (key == "y")) for n in range(3)})
    clips = [{"uri": f"w.tar/{key}", "frames": [2, 1], "clip_id": key} for key in ("x", "y")]
    x, y = ClipDataset(clips_of(tmp_path, clips, tmp_path / "w.tar"))
    assert (x["frames"] == np.stack([pixels(2), pixels(1)])).all()
    assert (y["frames"] == np.stack([pixels(7), pixels(6)])).all()
    assert {row["verdict"] for row in verdicts(tmp_path / "D").values()} == {"exact"}


def test_sequences_that_a_listing_makes_keep_its_order_and_their_own_columns(tmp_path: Path) -> None:
    sequence(tmp_path / "f", 4)
    rows = [("s", 3, 0.0), ("s", 0, 0.5), ("t", 1, 0.0), ("t", 2, 2.0)]
    listing = "".join(f"f/frame{n}.png,{name},{time},{name}-label\n" for name, n, time in rows)
    (tmp_path / "l.csv").write_text(f"uri,sequence,seconds,label\n{listing}")
    index = indexed(tmp_path, tmp_path / "l.csv")
    (tmp_path / "p.yaml").write_text("policy: frames\nframes: [0, 1]\n")
    run("shard", index, "--policy", tmp_path / "p.yaml", "--out", tmp_path / "D")
    found = {clip["label"]: clip for clip in ClipDataset(tmp_path / "D")}
    assert (found["s-label"]["frames"] == np.stack([pixels(3), pixels(0)])).all()
    assert found["s-label"]["seconds"].tolist() == [0, 0.5]
    assert (found["t-label"]["frames"] == np.stack([pixels(1), pixels(2)])).all()
    assert found["t-label"]["seconds"].tolist() == [0, 2]
    assert {row["verdict"] for row in verdicts(tmp_path / "D").values()} == {"exact"}
    (clip,) = ClipDataset(shard_clips(index, tmp_path / "E", [{"uri": "f/t", "frames": [1]}]))
    assert (clip["frames"][0] == pixels(2)).all()


def test_images_and_videos_share_a_dataset_and_a_batch(
    tmp_path: Path, shots: Path, medium: Callable[[str], Path], truth: Callable[[str], Truth]
) -> None:
    shutil.copy(medium("h264_default.mp4"), tmp_path / "walk.mp4")
    tar_of(tmp_path / "t.tar", [("0.png", encoded(0, size=(48, 40)))])
    clips = [
        {"uri": "shots/a", "frames": [0, 11], "clip_id": "loose"},
        {"uri": "walk.mp4", "frames": [49, 7], "clip_id": "video"},
        {"uri": "t.tar", "frames": [0, -1], "clip_id": "tar"},
    ]
    dataset = ClipDataset(clips_of(tmp_path, clips, tmp_path))
    assert {name: row["verdict"] for name, row in verdicts(tmp_path / "D").items()} == dict.fromkeys(
        ("loose", "video", "tar"), "exact"
    )
    assert [read_barcode(frame) for frame in dataset[1]["frames"]] == [49, 7]
    (batch,) = ClipLoader(dataset, batch_size=3, size=(20, 28), num_workers=1)
    assert batch["frames"].shape == (3, 2, 20, 28, 3)
    order = [batch["clip_id"].index(name) for name in ("loose", "video", "tar")]
    small = np.asarray(Image.fromarray(pixels(11)).resize((28, 20), Image.Resampling.BILINEAR))
    assert (batch["frames"][order[0]][1].numpy() == small).all()
    assert batch["mask"][order[2]].tolist() == [True, False]
    assert not batch["frames"][order[2]][1].any()


def test_images_of_several_sizes_become_those_of_the_first_or_as_asked(tmp_path: Path) -> None:
    sizes = [(32, 24), (64, 48), (31, 7)]
    folder = write(tmp_path / "f", {f"{n}.png": encoded(n, size=size) for n, size in enumerate(sizes)})
    dataset = clips_of(tmp_path, [{"uri": ".", "frames": [2, 1, 0]}], folder)
    (clip,) = ClipDataset(dataset)
    assert clip["frames"].shape == (3, 24, 32, 3)
    assert (clip["frames"][2] == pixels(0)).all()
    (clip,) = ClipDataset(dataset, size=(48, 64))
    assert (clip["frames"][1] == pixels(1, (64, 48))).all()
    md5 = verdicts(dataset)["line-00000001"]["md5"]
    assert md5 == [rgb_md5(pixels(number, sizes[number])) for number in (2, 1, 0)], "as stored, not scaled"


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(encoded(99)),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        lambda path: path.write_bytes(path.read_bytes()[:-20] + b"\1" + path.read_bytes()[-19:]),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: (path.unlink(), path.symlink_to(path.with_name("frame4.png"))),
    ],
    ids=["replaced", "shorter", "longer", "one byte", "gone", "a folder", "a pipe", "a link to another"],
)
def test_an_image_that_changed_is_stale_and_others_are_not(
    tmp_path: Path, shots: Path, change: Callable[[Path], object]
) -> None:
    clips = [{"uri": "a", "frames": [number], "clip_id": str(number)} for number in (3, 5)]
    dataset = ClipDataset(clips_of(tmp_path, clips, shots))
    change(shots / "a/frame3.png")
    with pytest.raises(StaleError, match=r"frame3\.png"):
        dataset[0]
    assert (dataset[1]["frames"][0] == pixels(5)).all()
    assert verdicts(tmp_path / "D", code=3)["3"]["verdict"] == "stale"


def test_touching_an_image_changes_nothing(tmp_path: Path, shots: Path) -> None:
    dataset = clips_of(tmp_path, [{"uri": "a", "frames": [3]}], shots)
    os.utime(shots / "a/frame3.png", ns=(1, 1))
    assert {row["verdict"] for row in verdicts(dataset).values()} == {"exact"}


def test_an_image_that_joins_the_others_makes_their_numbers_stale(tmp_path: Path, shots: Path) -> None:
    dataset = clips_of(tmp_path, [{"uri": "a", "frames": [3]}], shots)
    (shots / "a/frame2b.png").write_bytes(encoded(50))
    assert {row["verdict"] for row in verdicts(dataset, code=3).values()} == {"stale"}


def test_a_tar_that_was_written_anew_is_stale(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "t.tar", [("0.png", encoded(0)), ("1.png", encoded(1))])
    dataset = clips_of(tmp_path, [{"uri": "t.tar", "frames": [1]}], path)
    tar_of(path, [("0.png", encoded(0)), ("1.png", encoded(2))])
    with pytest.raises(StaleError):
        ClipDataset(dataset)[0]
    opened = ClipDataset(dataset)
    assert {row["verdict"] for row in verdicts(dataset, code=3).values()} == {"stale"}
    with pytest.raises(StaleError):
        opened[0]


def test_a_tar_that_changes_while_it_is_open_is_stale(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "t.tar", [("0.png", encoded(0)), ("1.png", encoded(1))])
    dataset = ClipDataset(clips_of(tmp_path, [{"uri": "t.tar", "frames": [1]}] * 2, path))
    assert (dataset[0]["frames"][0] == pixels(1)).all()
    with open(path, "r+b") as file, tarfile.open(path) as tar:
        file.seek(tar.getmember("1.png").offset_data + 60)
        file.write(b"x")
    with pytest.raises(StaleError):
        dataset[1]


@pytest.mark.parametrize(
    "name", ["../secret.png", "/etc/passwd", "b/../../secret.png", "", "a\0b", "..", "http://127.0.0.1/a.png"]
)
def test_a_manifest_never_leads_out_of_its_media(tmp_path: Path, shots: Path, name: str) -> None:
    dataset = clips_of(tmp_path, [{"uri": "a", "frames": [0]}], shots)
    shutil.copy(shots / "a/frame0.png", shots / "secret.png")
    part = dataset / "recipes/part-000000.parquet"
    table = pq.read_table(part)
    number = table.schema.get_field_index("range_path")
    changed = pa.array([[name]], table.schema.field(number).type)
    rewrite_part(part, table.set_column(number, table.schema.field(number), changed))
    with pytest.raises(StaleError):
        ClipDataset(dataset)[0]


def test_verify_sees_a_plan_that_leads_to_another_image(tmp_path: Path, shots: Path) -> None:
    dataset = clips_of(tmp_path, [{"uri": "a", "frames": [2, 3]}], shots)
    part = dataset / "recipes/part-000000.parquet"
    table = pq.read_table(part)
    number = table.schema.get_field_index("position")
    turned = pa.array([row[::-1] for row in table["position"].to_pylist()], table.schema.field(number).type)
    rewrite_part(part, table.set_column(number, table.schema.field(number), turned))
    assert {row["verdict"] for row in verdicts(dataset, code=3).values()} == {"differs"}


def test_clips_avoid_damaged_images_unless_asked(tmp_path: Path, shots: Path) -> None:
    path = shots / "a/frame4.png"
    path.write_bytes(path.read_bytes()[:-30])
    clips = [{"uri": "a", "frames": [number], "clip_id": str(number)} for number in (3, 4)]
    dataset = clips_of(tmp_path, clips, shots, code=3)
    (failure,) = pq.read_table(dataset / "failures.parquet").to_pylist()
    assert (failure["clip_id"], failure["kind"]) == ("4", "damaged")
    run("shard", tmp_path / "INDEX", "--clips", tmp_path / "D.jsonl", "--out", tmp_path / "E", "--damaged", "keep")
    kept = ClipDataset(tmp_path / "E")
    assert (kept[0]["frames"][0] == pixels(3)).all()
    with pytest.raises(DecodeError, match="not a whole image"):
        kept[1]


def test_hashes_of_the_index_are_those_of_clips(tmp_path: Path, shots: Path) -> None:
    index = indexed(tmp_path, shots, "--verify")
    dataset = shard_clips(index, tmp_path / "D", [{"uri": "a", "frames": [7, -1]}])
    clip = ClipDataset(dataset).clip(0)
    assert clip.md5 == [bytes.fromhex(rgb_md5(pixels(7))), None]
    assert {row["verdict"] for row in verdicts(dataset).values()} == {"exact"}


def test_a_moved_root_can_be_told(tmp_path: Path, shots: Path) -> None:
    dataset = clips_of(tmp_path, [{"uri": "a", "frames": [7]}], shots)
    shots.rename(tmp_path / "moved")
    with pytest.raises(StaleError):
        ClipDataset(dataset)[0]
    assert (ClipDataset(dataset, root=tmp_path / "moved")[0]["frames"][0] == pixels(7)).all()


@pytest.mark.parametrize(
    "how",
    [["clips"], ["images", "--image-format", "png"], ["images", "--image-format", "webp", "--quality", 95]],
    ids=["clips", "images as they are", "images of another format"],
)
def test_images_are_packed_into_tars_and_verified_there(tmp_path: Path, shots: Path, how: list[object]) -> None:
    tar_of(shots / "t.tar", [(f"b/{number}.png", encoded(number + 20)) for number in range(3)])
    clips = [{"uri": "a", "frames": [11, 2, 11]}, {"uri": "t.tar/b", "frames": [2, -1, 0]}]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(clip) + "\n" for clip in clips))
    index = indexed(tmp_path, shots)
    run("shard", index, "--clips", tmp_path / "c.jsonl", "--out", tmp_path / "D", "--pack", *how)
    assert {row["verdict"] for row in verdicts(tmp_path / "D").values()} == {"exact"}
    shutil.rmtree(shots)
    for clip, numbers in zip(ClipDataset(tmp_path / "D"), ([11, 2, 11], [22, None, 20]), strict=True):
        for frame, number in zip(clip["frames"], numbers, strict=True):
            if number is None:
                assert not frame.any()
            elif "webp" in how:
                assert min(range(30), key=lambda n: np.abs(frame.astype(int) - pixels(n)).mean()) == number
            else:
                assert (frame == pixels(number)).all()


# Views are those of several videos: tests/exactness/test_multi_view.py.
@pytest.mark.parametrize(
    "config", sorted(path.name for path in CONFIGS.glob("*.yaml") if policy_of(path).policy.views is None)
)
def test_every_policy_samples_images(tmp_path: Path, config: str) -> None:
    sequence(tmp_path / "a", 160)
    row: dict[str, object] = {"uri": "a", "label": 1, "cuts": [0, 1.5, 4], "fold": 0, "fps": 10}
    if policy_of(CONFIGS / config).policy.names_ranges:
        row |= {"start": 0.5, "end": 4}
    (tmp_path / "l.jsonl").write_text(json.dumps(row))
    index = indexed(tmp_path, tmp_path / "l.jsonl")
    run("shard", index, "--policy", CONFIGS / config, "--out", tmp_path / "D")
    dataset = ClipDataset(tmp_path / "D")
    assert len(dataset)
    for clip in dataset:
        for frame, number in zip(clip["frames"], clip["frame_index"].tolist(), strict=True):
            assert (frame == (0 if number < 0 else pixels(number))).all()
