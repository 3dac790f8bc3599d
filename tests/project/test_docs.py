"""What the documents show is what happens."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from docs.generate import POLICY_SCHEMA, generated_pages, page_text, policy_schema_text, render, results
from docs.sessions import BLOCK, PAGES, draw_videos, with_output
from tests.support.counted import some
from tests.support.depth import ROUNDS, rounds

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", generated_pages())
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == page_text(name), "run `make docs`"


def test_the_schema_of_policies_is_up_to_date() -> None:
    assert POLICY_SCHEMA.read_text(encoding="utf-8") == policy_schema_text(), "run `make docs`"


def test_the_readme_says_what_a_fresh_machine_took() -> None:
    demo, test, *_ = results()["fresh_debian_13"]["commands"]  # and the suite again
    assert (demo["command"], test["command"]) == ("make demo", "make test")
    megabytes, gigabytes = round(demo["downloaded_bytes"] / 1e6), test["downloaded_bytes"] / 1e9
    assert f"`make demo` takes {demo['seconds']} s and downloads {megabytes} MB" in README
    assert f"`make test` downloads {gigabytes:.1f} GB" in README
    assert f"takes {test['seconds'] / 60:.0f} minutes on two cores" in README


def test_all_pages_are_run_at_full_depth() -> None:
    assert ROUNDS["pages whose commands are run, from README.md on"][1] == len(PAGES)


@pytest.mark.parametrize("name", PAGES[: rounds("pages whose commands are run, from README.md on")])
def test_what_pages_show_is_what_happens(name: str, tmp_path: Path) -> None:
    """Run every terminal session and every Python block of the page."""
    if name != "README.md":  # which draws them itself
        draw_videos(tmp_path)
    shown = (ROOT / name).read_text(encoding="utf-8")
    assert len(BLOCK.findall(shown)) >= 2
    assert with_output(shown, tmp_path) == shown, "run `make docs`"
    if name == "README.md":
        ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
        written = [f"/{path.name}{'/' * path.is_dir()}" for path in some(tmp_path.iterdir(), 8)]
        assert set(written) - set(ignored) == {"/examples/"}  # which the commands use


@pytest.mark.parametrize("target", ["demo", "test", "clean"])
def test_make_leaves_a_virtual_environment_of_the_user_alone(target: str, tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    planned = subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "build" in planned
    assert ".venv" not in planned


def test_the_readmes_measurements_are_the_committed_ones() -> None:
    assert render("parts/random_access.md") in README
    low, high = (row["warm"] for row in results()["index"]["results"])
    for row, shown in ((low, "{:.0f} ms for 180 000 packets"), (high, "{:.1f} ms for a file of 1 GB")):
        assert shown.format(1000 * row["seconds"]["framedex, tables"]) in README
    times = [f"{row['times_as_fast_as_ffprobe']['framedex, tables']:.0f}" for row in (low, high)]
    assert f"{times[0]} and\n{times[1]} times as fast as `ffprobe -show_packets`" in README
    stored = results()["index_rows"]["real_bytes_a_frame"]["all"]
    assert f"{stored:.1f} bytes a frame of real video" in README


def a_loader_result() -> dict[str, Any]:
    """Return what benchmarks/loader.py writes, made up."""
    load = {"cpu_cores": 3.25, "nvdec_percent": 91.0, "nvdec_peak": 97.0, "gpu_percent": 5.0, "measured_by": "NVML"}
    ours = {"way": "nvdec", "load": load, "decoded": {"nvdec": 384, "cpu": 0}, "compared": 512, "different": 0}
    return {
        "environment": {"command": "python -m benchmarks.loader", "cpu": "CPU", "cores": 16, "versions": {"av": "18"}},
        "setup": {
            "clips": 128,
            "frames_a_clip": 16,
            "batch_size": 64,
            "size": [224, 224],
            "epochs_measured": 3,
            "warm_up_epochs": 1,
            "warm_up_clips_of_others": 8,
        },
        "results": [
            ours | {"video_seconds": 60, "median_seconds": 8.512},
            ours | {"video_seconds": 3000, "median_seconds": 8.634},
            {"way": "decord", "version": "0.6.0", "video_seconds": 60, "median_seconds": 5.2}
            | {"compared": 512, "different": 3},
            {"way": "opencv", "video_seconds": 60, "median_seconds": None, "reason": "past 300 s", "clips_done": 64},
            {"way": "opencv", "video_seconds": 3000, "median_seconds": None, "reason": "its process ended with -11: x"},
            {"way": "pynvvideocodec", "video_seconds": 60, "reason": "not installed: No module named 'PyNvVideoCodec'"},
        ],
    }


def test_a_loader_result_becomes_a_table_that_hides_no_failure() -> None:
    two = [
        {"way": "nvdec_on_1_gpus", "video_seconds": 60, "gpus": 1, "clips_a_second": 15.0, "median_seconds": 1.0},
        {"way": "nvdec_on_2_gpus", "video_seconds": 60, "gpus": 2, "clips_a_second": 29.4, "median_seconds": 1.0},
    ]
    slow = [{"name": "DALI readers.video", "video_seconds": 60, "seconds": [187.2]}]
    section = render(
        "parts/loader.md",
        loader=a_loader_result(),
        loader_two_gpus=a_loader_result() | {"results": two},
        loader_slow=a_loader_result() | {"results": slow},
    )
    assert "DALI took 187 s with `readers.video` out of 60 s of video." in section
    assert "| seconds for 128 clips | 60 s of video | 3000 s of video |" in section
    assert "| framedex, by reference, NVDEC alone | 8.51 | 8.63 |" in section
    assert "| decord, 16 processes (0.6.0) | 5.20, 3 of 512 frames wrong | – |" in section
    assert "| OpenCV, 16 processes | past 300 s, 64 clips done | failed |" in section
    assert "| PyNvVideoCodec `SimpleDecoder`, 16 threads | not installed | – |" in section
    assert "| framedex, by reference, NVDEC alone | 91 % | 3.2 | nvdec 384 |" in section
    assert "29.4 clips a second, 1.96 × the 15.0 of one" in section


def test_a_hazards_result_becomes_a_table_that_hides_no_wrong_frame() -> None:
    fine = {"right": 88, "wrong": 0, "refused": 0, "clips_not_seen": 0}
    environment = a_loader_result()["environment"]
    rows = [
        {"set": "made", "codec": "h264", "hazard": "default", "gate": {"nvdec": 11}, "loader": fine, "cpu": fine},
        {"set": "made", "codec": "h264", "hazard": "open GOP", "gate": {"an open start point": 10, "nvdec": 1}}
        | {"loader": fine, "cpu": fine, "forced": fine | {"right": 8, "wrong": 72, "outcome": "wrong"}},
        {"set": "corpus", "codec": "h264", "hazard": "paff.mp4", "gate": {"field-coded pictures": 11}}
        | {"loader": fine, "cpu": fine, "forced": fine | {"right": 0, "refused": 8, "outcome": "hangs"}},
    ]
    section = render(
        "parts/hazards.md",
        gpu_hazards={"environment": environment, "rows": rows[:2]},
        gpu_hazards_corpus={"environment": environment, "rows": rows[2:]},
    )
    assert "| h264 | default | NVDEC (11) | 88 right | – | 88 right |" in section
    gate = "CPU: an open start point (10)<br>NVDEC (1)"
    assert f"| h264 | open GOP | {gate} | 88 right | **8 right, 72 wrong** | 88 right |" in section
    assert "The corpus itself, 1 media at their own size: 88 frames right, 0 wrong." in section
    assert "| h264 | paff.mp4 | CPU: field-coded pictures (11) | 88 right | hangs; 8 refused | 88 right |" in section


def test_the_inexact_audio_codecs_are_known() -> None:
    rows = results()["audio_alignment"]["results"]
    inexact = {row["medium"] for row in rows if row["exact"] < row["clips"]}
    assert inexact == {"aac.mp4", "mp2.mkv", "opus_voice.mkv"}


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, target) for page in pages for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    ]
    for page, target in some(links, 20):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_that_pages_name_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    folders = r"`((?:indexer|sharder|loader|auditor|configs|tests|benchmarks|docs|examples|framedex)/[\w./*]+)`"
    named = [(page, name) for page in pages for name in re.findall(folders, page.read_text(encoding="utf-8"))]
    for page, name in some(named, 50):
        assert list(ROOT.glob(name.rstrip("/"))), f"{page.name} names {name}"
