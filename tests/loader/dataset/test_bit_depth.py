"""Media of more than 8 bits become uint8: each dataset warns once, and an audit finds all such media."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import av
import duckdb
import pytest

from framedex import ClipDataset, ClipLoader
from framedex.sharder.clips.clip import bits_of
from tests.support.datasets import run, shard_clips
from tests.support.depth import drawn
from tests.support.media import Recipe, make
from tests.support.running import ROOT, environment

LOST = "more than 8 bits"
BAYER = "bayer"  # PyAV counts the components of these formats per pixel of the mosaic


@pytest.fixture(scope="module")
def index(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of three media: a depth map and a video of more than 8 bits, and a video of 8 bits."""
    folder = tmp_path_factory.mktemp("deep")
    depth = make(Recipe(name="depth.mkv", codec="ffv1", pix_fmt="gray16le", frames=5), folder)
    run("index", depth, medium("h264_high10.mkv"), medium("h264_default.mp4"), "--out", folder / "INDEX")
    return folder / "INDEX"


def dataset(index: Path, out: Path, *names: str) -> ClipDataset:
    uris = json.loads(run("audit", index, "--sql", "SELECT uri FROM videos", "--format", "json").stdout)
    clips = [{"uri": row["uri"], "frames": [0, 2]} for name in names for row in uris if row["uri"].endswith(name)]
    assert len(clips) == len(names)
    return ClipDataset(shard_clips(index, out, clips))


def test_bits_are_those_that_ffmpeg_says_of_every_pixel_format() -> None:
    names = [name for name in av.video.format.names if BAYER not in name]
    assert len(names) > 150
    for name in names:
        components = av.VideoFormat(name).components
        assert bits_of(name) == max(8, *(component.bits for component in components), 0), name
    assert bits_of(None) == bits_of("") == 8


@pytest.mark.parametrize("kind", ["index", "dataset"])
def test_audits_count_bits_as_the_loader_does(kind: str) -> None:
    names = [*av.video.format.names, None]
    view = (ROOT / "auditor/views" / kind / "videos.sql").read_text()
    case = view[view.index("CASE WHEN regexp_matches") : view.index(" AS bits")]
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT {case} FROM (SELECT unnest($names) AS pixel_format)", {"names": names})
        assert [bits for (bits,) in found.fetchall()] == [None if name is None else bits_of(name) for name in names]


@pytest.mark.parametrize(("name", "bits", "pixels"), [("depth.mkv", 16, "gray16le"), ("high10.mkv", 10, "yuv420p10le")])
def test_one_warning_names_the_medium(name: str, bits: int, pixels: str, index: Path, tmp_path: Path) -> None:
    clips = dataset(index, tmp_path / "D", "default.mp4", name, name)
    with pytest.warns(UserWarning, match=LOST) as said:
        items = [clips[number] for number in (0, 1, 2, 1)]
    assert len(items) == len(clips) + 1
    [warning] = [str(one.message) for one in said]
    assert f"{name} have more than 8 bits ({bits}, {pixels})" in warning
    assert warning.startswith(str(tmp_path / "D"))


def test_each_dataset_warns_and_on_the_fly_as_well(index: Path, tmp_path: Path) -> None:
    one, other = (dataset(index, tmp_path / name, "depth.mkv") for name in "AB")
    planned = ClipDataset.from_index(index, {"policy": "uniform", "frames": 2, "filter": "frame_count == 5"})
    with pytest.warns(UserWarning, match=LOST) as said:
        _ = one[0], other[0], planned[0], one[0]
    assert len(said) == 3


@pytest.mark.parametrize("method", drawn("start methods", ["fork", "spawn"], seed=6))
def test_workers_warn_once_in_all_at_the_line_that_opened_the_dataset(method: str, index: Path, tmp_path: Path) -> None:
    dataset(index, tmp_path / "D", *["depth.mkv"] * 6)
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "from torch.utils.data import DataLoader\n"
        "from framedex import ClipDataset\n"
        "if __name__ == '__main__':\n"
        "    dataset = ClipDataset(sys.argv[1])\n"
        "    for _ in range(2):\n"
        "        loader = DataLoader(dataset, num_workers=2, batch_size=None, multiprocessing_context=sys.argv[2])\n"
        "        assert len(list(loader)) == 6\n"
    )
    command = [sys.executable, script, tmp_path / "D", method]
    said = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stderr
    [line] = [line for line in said.splitlines() if "more than 8 bits" in line]
    assert line.startswith(f"{script}:5: UserWarning: {tmp_path / 'D'}")


def test_a_loader_warns(index: Path, tmp_path: Path) -> None:
    clips = dataset(index, tmp_path / "D", "depth.mkv", "high10.mkv")
    with pytest.warns(UserWarning, match=LOST) as said:
        batches = list(ClipLoader(clips, batch_size=1, num_workers=0, size=(16, 16)))
    assert len(batches) == 2
    assert len(said) == 1


def test_eight_bits_and_packets_for_another_decoder_do_not_warn(index: Path, tmp_path: Path) -> None:
    clips = dataset(index, tmp_path / "D", "default.mp4")
    dataset(index, tmp_path / "E", "high10.mkv")
    movies = ClipDataset(tmp_path / "E", decode="movie")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "frames" in clips[0]
        assert "movie" in movies[0]


def test_audits_find_such_media_in_an_index_and_in_a_dataset(index: Path, tmp_path: Path) -> None:
    dataset(index, tmp_path / "D", "default.mp4", "depth.mkv", "high10.mkv")
    for audited in (index, tmp_path / "D"):
        answer = json.loads(run("audit", audited, "--check", "more_than_8_bits", "--json").stdout)
        [finding] = answer["findings"]
        found = [(Path(row["uri"]).name, row["bits"], row["pixel_format"]) for row in finding["examples"]]
        assert found == [("depth.mkv", 16, "gray16le"), ("h264_high10.mkv", 10, "yuv420p10le")]
    summary = json.loads(run("audit", index, "--json").stdout)["summary"]
    assert {row["pixel_format"]: row["bits"] for row in summary["codecs"]}["gray16le"] == 16
