"""Image times come from a rate, a timestamps file or a listing; times that do not fit the images are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import framedex
from tests.support.datasets import run
from tests.support.images import only, sequence, write_rows


def test_images_without_times_come_one_a_second(tmp_path: Path) -> None:
    row, packets = only(tmp_path, sequence(tmp_path / "s"))
    assert (row["pts_source"], row["time_base_num"], row["time_base_den"]) == ("counted", 1, 1)
    assert packets.pts.tolist() == [0, 1, 2]
    assert (row["duration_pts"], row["is_vfr"]) == (3, False)


@pytest.mark.parametrize(
    "rate, base", [("30000/1001", (1001, 30000)), ("25", (1, 25)), ("29.97", (100, 2997)), ("0.5", (2, 1))]
)
def test_a_rate_is_exact(tmp_path: Path, rate: str, base: tuple[int, int]) -> None:
    row, packets = only(tmp_path, sequence(tmp_path / "s"), image_fps=rate)
    assert ((row["time_base_num"], row["time_base_den"]), row["pts_source"]) == (base, "listed")
    assert (packets.pts.tolist(), row["duration_pts"]) == ([0, 1, 2], 3)


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "1e999999999", "1/0", "", "x", "1/3/4", str(1 << 40), "0.0"])
def test_what_is_no_rate_is_an_error(rate: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frames per second"):
        framedex.index(tmp_path, tmp_path / "I", image_fps=rate)
    assert "--image-fps" in run("index", tmp_path, "--out", tmp_path / "I", f"--image-fps={rate}", code=2).output


@pytest.mark.parametrize("text", ["0\n0.5\n\n# late\n2.25\n", "frame2.png 2.25\nframe0.png 0\nframe1.png 5e-1\n"])
def test_a_timestamps_file_times_its_folder(tmp_path: Path, text: str) -> None:
    (sequence(tmp_path / "s") / "timestamps.txt").write_text(text)
    row, packets = only(tmp_path, tmp_path / "s", image_fps="25")
    assert packets.pts.tolist() == [0, 500_000, 2_250_000]
    assert (row["time_base_den"], row["pts_source"], row["is_vfr"]) == (1_000_000, "listed", True)
    assert row["duration_pts"] == 2_250_000 + 1_125_000


@pytest.mark.parametrize(
    "text, said",
    [
        ("0\n1\n", "2 timestamps for 3 images"),
        ("0\n1\n2\n3\n", "4 timestamps for 3 images"),
        ("0\n1\n1\n", "do not ascend"),
        ("2\n1\n0\n", "do not ascend"),
        ("0\nnan\n2\n", "not a number"),
        ("0\n1e999999999\n2\n", "not a number"),
        ("0\n1\n1e80\n", "beyond"),
        ("frame0.png 0\nframe1.png 1\n", "image 2 has no timestamp"),
        ("frame0.png 0\nframe0.png 1\nframe2.png 3\n", "twice"),
        ("frame0.png 0\nframe7.png 1\nframe2.png 3\n", "which is not an image"),
        ("frame0.png 0\n1\n2\n", "some do not"),
        ("", "0 timestamps"),
    ],
)  # fmt: skip
def test_times_that_do_not_fit_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (sequence(tmp_path / "s") / "timestamps.txt").write_text(text)
    row, _ = only(tmp_path, tmp_path / "s")
    assert (row["status"], row["error_kind"]) == ("refused", "timestamps")
    assert said in row["error_message"]


def test_a_listing_times_each_image(tmp_path: Path) -> None:
    sequence(tmp_path / "data", 3)
    listed = [{"uri": f"data/frame{n}.png", "sequence": "s", "seconds": time} for n, time in enumerate((-1, 0.1, 7.25))]
    _, packets = only(tmp_path, write_rows(tmp_path / "l.csv", listed))
    assert packets.pts.tolist() == [-1_000_000, 100_000, 7_250_000]
    listed[1]["seconds"] = ""
    row, _ = only(tmp_path / "second", write_rows(tmp_path / "l.csv", listed))
    assert (row["error_kind"], row["error_message"]) == ("timestamps", "image 1 has no timestamp")
