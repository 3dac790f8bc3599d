"""`framedex verify` on encoded clips: right ones are "nearest" with their worst PSNR, and wrong frames are found."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import framedex
from framedex import Index
from framedex.errors import FormatError
from framedex.loader.verification.encoded import mean_squares, nearness
from tests.support.datasets import run
from tests.support.encoded import change_encoder, encode_clips
from tests.support.images import tar_of, write
from tests.support.manifests import rewrite_part
from tests.support.media import picture

FRAMES = [[4, 9, 14, 19], [24, 29, 34]]
Column = list[Any]


@pytest.fixture
def dataset(index: Index, tmp_path: Path) -> Path:
    clips = [{"uri": "h264_default.mp4", "frames": frames, "clip_id": str(frames[0])} for frames in FRAMES]
    return encode_clips(index.path, tmp_path / "D", clips, "--short-side", 96)


@pytest.fixture(params=["same", "another"])
def encoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The encoder that verification finds: the one that packed, or one that gives other bytes."""
    if request.param == "another":
        change_encoder(monkeypatch, "h264", preset="fast")
    return str(request.param)


def verified(dataset: Path) -> Any:
    return framedex.verify(dataset, workers=0, progress=False)


def rewrite(path: Path, changes: dict[str, Callable[[Column], Column]]) -> None:
    table = pq.read_table(path)
    for name, change in changes.items():
        place, kind = table.schema.get_field_index(name), table.schema.field(name)
        table = table.set_column(place, kind, pa.array(change(table[name].to_pylist()), kind.type))
    rewrite_part(path, table)


def shifted(dataset: Path, by: int) -> None:
    """Make a manifest say that clips show later frames than they do."""
    pts_by = int(np.diff(pq.read_table(dataset / "clips")["pts"][0].as_py())[0]) // 5 * by
    rewrite(
        dataset / "clips/part-000000.parquet",
        {
            "frames": lambda rows: [[frame + by for frame in row] for row in rows],
            "pts": lambda rows: [[pts + pts_by for pts in row] for row in rows],
        },
    )


def test_right_clips_are_nearest_with_their_worst_psnr(dataset: Path, encoder: str) -> None:
    report = verified(dataset)
    assert report.verdicts == {"nearest": 2}
    assert report.is_exact
    assert 25 < report.source_psnr < 50
    assert report.undecided == 0


@pytest.mark.parametrize("by", [-4, -1, 1, 2, 7])
def test_a_shifted_frame_is_found(dataset: Path, encoder: str, by: int) -> None:
    shifted(dataset, by)
    report = verified(dataset)
    assert report.verdicts == {"differs": 2}
    reason = "is the picture of frame" if abs(by) == 1 else "frame"
    assert reason in str(report.wrong[0].reason)


def test_swapped_clips_are_found(dataset: Path, encoder: str) -> None:
    for folder, names in (("clips", ("frames", "mask", "pts", "seconds")), ("recipes", ("position",))):
        shortened = dict.fromkeys(names, lambda rows: [row[:3] for row in rows])
        rewrite(dataset / f"{folder}/part-000000.parquet", shortened)
    moved = ("range_offset", "range_length", "packet_size", "packet_rank")
    rewrite(dataset / "recipes/part-000000.parquet", dict.fromkeys(moved, lambda rows: rows[::-1]))
    assert verified(dataset).verdicts["nearest"] == 0


def test_a_frame_in_the_place_of_another_is_found(dataset: Path, encoder: str, index: Index, tmp_path: Path) -> None:
    """Give a clip the packets of another one that has one frame in place of another."""
    clips = [{"uri": "h264_default.mp4", "frames": frames} for frames in ([4, 9, 14, 19], [4, 9, 16, 19])]
    both = encode_clips(index.path, tmp_path / "B", clips, "--short-side", 96)
    assert verified(both).verdicts == {"nearest": 2}
    moved = ("range_offset", "range_length", "packet_size", "packet_rank")
    rewrite(both / "recipes/part-000000.parquet", dict.fromkeys(moved, lambda rows: rows[::-1]))
    report = verified(both)
    assert report.verdicts == {"differs": 2}
    assert {str(checked.reason).split(" is")[0].split(" differs")[0] for checked in report.wrong} == {
        "frame 14",
        "frame 16",
    }


@pytest.mark.parametrize(("column", "value"), [("color_range", "full"), ("color_matrix", 1), ("color_matrix", 9)])
def test_colours_that_the_dataset_describes_wrongly_are_found(
    dataset: Path, encoder: str, column: str, value: object
) -> None:
    rewrite(dataset / "media/part-000000.parquet", {column: lambda rows: [value] * len(rows)})
    assert verified(dataset).verdicts == {"differs": 2}


def test_a_missing_encoder_is_an_error_with_a_remedy(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_encoder(monkeypatch, "h264", name="missing")
    assert "install PyAV's own wheels" in run("verify", dataset, code=1).output


def test_the_command_tells_verdicts_and_psnr(dataset: Path) -> None:
    done = run("verify", dataset).output
    assert "2 nearest (7 frames)" in done
    assert "worst encoded frame: " in done
    assert "dB PSNR; 0 frames not distinguishable" in done
    rows = [json.loads(line) for line in run("verify", dataset, "--json").output.splitlines()]
    assert [row["verdict"] for row in rows] == ["nearest", "nearest"]
    assert all(25 < row["source_psnr"] < 50 and row["undecided"] == 0 for row in rows)
    shifted(dataset, 1)
    assert "is the picture of frame" in run("verify", dataset, code=3).output


@pytest.mark.parametrize("in_tar", [False, True])
def test_encoded_images_of_a_sequence_are_compared_with_it(tmp_path: Path, in_tar: bool) -> None:
    folder = write(tmp_path / "shots/a", {f"{number:02}.png": png(number) for number in range(12)})
    source = folder.parent
    if in_tar:
        files = [(f"a/{path.name}", path.read_bytes()) for path in sorted(folder.iterdir())]
        source = tar_of(tmp_path / "a.tar", files)
    run("index", source, "--out", tmp_path / "INDEX")
    uri = Index(tmp_path / "INDEX").videos["uri"][0].as_py()
    dataset = encode_clips(tmp_path / "INDEX", tmp_path / "D", [{"uri": uri, "frames": [7, 3, 3, 11]}])
    report = verified(dataset)
    assert report.verdicts == {"nearest": 1}
    assert 25 < report.source_psnr < 60
    rewrite(
        dataset / "clips/part-000000.parquet", {"frames": lambda rows: [[frame - 1 for frame in row] for row in rows]}
    )
    assert verified(dataset).verdicts == {"differs": 1}


@pytest.mark.parametrize("change", [{"codec": "vp9"}, {"crf": "low"}, {"size": [1]}, {"crf": 99}])
def test_a_header_that_says_something_impossible_is_damaged(dataset: Path, change: dict[str, Any]) -> None:
    header = json.loads((dataset / "dataset.json").read_text())
    header["encode"] |= change
    (dataset / "dataset.json").write_text(json.dumps(header))
    with pytest.raises(FormatError, match=r"dataset\.json is damaged"):
        framedex.ClipDataset(dataset)


def test_a_source_that_changed_is_stale(tmp_path: Path) -> None:
    from tests.support.media import Recipe, encode

    (tmp_path / "videos").mkdir()
    path = tmp_path / "videos/a.mp4"
    encode(Recipe(name="a.mp4", options={"g": "10"}, frames=20), path)
    run("index", tmp_path / "videos", "--out", tmp_path / "INDEX")
    dataset = encode_clips(tmp_path / "INDEX", tmp_path / "D", [{"uri": "a.mp4", "frames": [3]}])
    path.write_bytes(path.read_bytes() + b"\0")
    assert verified(dataset).verdicts == {"stale": 1}


def png(number: int) -> bytes:
    """Return a picture that shows its number."""
    file = io.BytesIO()
    Image.fromarray(picture(number, 176, 144)).save(file, "PNG")
    return file.getvalue()


def pictures(count: int, seed: int = 0) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    made: list[np.ndarray[Any, np.dtype[np.uint8]]]
    made = [np.random.default_rng((seed, number)).integers(40, 200, (8, 12, 3), np.uint8) for number in range(count)]
    return made


def test_distances_are_mean_squares() -> None:
    some, others = pictures(3), pictures(4, seed=1)
    expected = [[np.mean((one.astype(float) - other) ** 2) for other in others] for one in some]
    assert np.allclose(mean_squares(some, others), expected)


def test_a_picture_is_another_one_only_if_they_differ_by_more_than_was_lost() -> None:
    first, second = pictures(2)
    close, lossy = first + np.uint8(1), first + np.uint8(3)
    lost = np.full(3, 9.0)
    near = nearness([second + np.uint8(3), lossy, lossy], np.array([0, 0, 1]), [first, close, second], lost)
    assert near.other.tolist() == [2, -1, -1]
    assert near.undecided.tolist() == [False, True, False]
    assert near.unlike.tolist() == [True, False, False]
    assert near.psnr[0] < 20 < 35 < near.psnr[1]


def test_a_picture_that_lost_more_than_encoding_does_is_unlike_its_own() -> None:
    first, second = pictures(2)
    found = [first + np.uint8(2), first + np.uint8(4), second]
    assert nearness(found, np.array([0, 0, 0]), [first], np.full(3, 2.0)).unlike.tolist() == [False, True, True]
