"""Any value in tables and headers of an index or dataset gives right frames, or an error for whoever must act."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import ClipDataset, ClipLoader
from framedex.core.limits import check_room, machine_bytes
from framedex.errors import DecodeError, FormatError, FramedexError, StaleError
from tests.sharder.decoding.test_clip_audio import FILMS, make
from tests.support.datasets import run, shard_clips
from tests.support.depth import DEPTH, drawn
from tests.support.images import sequence
from tests.support.manifests import rewrite_part, write_rows

FRAMES = {"h264_b_pyramid.mkv": [9, 2, -1, 30, 2], "aac.mp4": [3, 4, 5], "shots": [1, 0, 2]}
NUMBERS = [None, -1, -5, 0, 77, 2**31 - 1, -(2**31)]
LONG_NUMBERS = [*NUMBERS, 2**62, -(2**63), 2**63 - 1]
TEXTS = [None, "", "zz", "\0", "../../etc/passwd", "a" * 5000, "h264_cuvid", "pcm_s16le"]
POLICY = {"policy": "frames", "frames": [9, 2, 30, 2]}


@pytest.fixture(scope="module")
def made(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an index and two datasets of it: D refers to its media, TARS contains its clips."""
    top = tmp_path_factory.mktemp("tampered")
    videos = top / "videos"
    videos.mkdir()
    shutil.copy(medium("h264_b_pyramid.mkv"), videos)
    make(FILMS["aac.mp4"], videos / "aac.mp4")
    sequence(videos / "shots")
    run("index", videos, "--out", top / "INDEX")
    clips = [{"uri": uri, "frames": frames, "clip_id": uri} for uri, frames in FRAMES.items()]
    shard_clips(top / "INDEX", top / "D", clips, "--audio")
    shard_clips(top / "INDEX", top / "TARS", clips, "--audio", "--pack", "clips")
    return top


def elements(kind: pa.DataType) -> list[Any]:
    """Return hostile values of a type."""
    if pa.types.is_integer(kind):
        return LONG_NUMBERS if kind == pa.int64() else NUMBERS
    if pa.types.is_floating(kind):
        return [None, float("nan"), float("inf"), -1e300]
    if pa.types.is_boolean(kind):
        return [None, True, False]
    if pa.types.is_string(kind):
        return TEXTS
    return [None, b"\0" * 16] if pa.types.is_fixed_size_binary(kind) else [None, b"", b"\0" * 16]


def hostile(kind: pa.DataType, value: Any) -> Iterator[Any]:
    """Yield the values that a column might contain instead of `value`."""
    if not pa.types.is_list(kind):
        yield from elements(kind)
        return
    yield from (None, [])
    for element in elements(kind.value_type):
        yield [element]
        if value:
            yield [*value[:-1], element]
    if value:
        yield from (value * 2, value[:-1])


def rewrite(path: Path, table: pa.Table, column: str, value: Any, row: int) -> None:
    """Write a table with a different value in one row of a column."""
    place = table.schema.get_field_index(column)
    values = table[column].to_pylist()
    values[row] = value
    kind = table.schema.field(column).type
    if pa.types.is_list(kind):
        kind = pa.list_(kind.value_type)
    changed = table.set_column(place, pa.field(column, kind), pa.array(values, kind))
    rewrite_part(path, changed)


def tampered(path: Path) -> Iterator[tuple[str, int, Any]]:
    """Write each hostile value into a table, yield its (column, row, value); restore the table at the end."""
    table = pq.read_table(path)
    for number, column in enumerate(table.schema):
        values = table[column.name].to_pylist()
        for row in drawn("rows of a table whose cells are changed", range(len(values)), seed=number):
            value = values[row]
            for change in drawn("hostile values of each cell", hostile(column.type, value), seed=number + row):
                rewrite(path, table, column.name, change, row)
                yield column.name, row, change
        rewrite_part(path, table)


def loaded(dataset: ClipDataset, number: int) -> dict[str, Any]:
    item = dataset[number]
    return {name: item[name] for name in ("frames", "audio") if name in item}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


# No other column can confirm these: other values of the right kind are another dataset, not a damaged one.
FREE = {
    "range_offset",  # of video, whose bytes have no checksum
    "audio_channels",  # of silence
    "audio_count",
    "audio_codec",
    "rotation_degrees",  # another quarter turn, by which frames are turned
}


@pytest.mark.parametrize(("name", "folder"), [("D", "clips"), ("D", "recipes"), ("D", "media"), ("TARS", "recipes")])
def test_no_column_of_a_manifest_leads_to_other_errors_or_frames(
    name: str, folder: str, made: Path, tmp_path: Path
) -> None:
    right = [loaded(ClipDataset(made / name), number) for number in range(len(FRAMES))]
    dataset = Path(shutil.copytree(made / name, tmp_path / name))
    refused, wrong = 0, []
    for column, row, change in tampered(dataset / folder / "part-000000.parquet"):
        try:
            if not same(loaded(ClipDataset(dataset), row), right[row]):  # each clip has its own medium
                wrong.append((column, row, change, "other frames"))
        except FramedexError:
            refused += 1
        except Exception as error:  # the point of this test
            wrong.append((column, row, change, repr(error)))
    assert refused > (100 if DEPTH == "full" else 10)
    assert [case for case in wrong if case[0] not in FREE or case[3] != "other frames"] == []


@pytest.mark.parametrize("folder", ["videos", "frames"])
def test_no_column_of_an_index_leads_to_other_errors(folder: str, made: Path, tmp_path: Path) -> None:
    """Other timestamps, flags and offsets are another index, which clips follow. So frames are not compared here."""
    index = Path(shutil.copytree(made / "INDEX", tmp_path / "INDEX"))
    refused, wrong = 0, []
    for column, row, change in tampered(index / folder / "part-000000.parquet"):
        try:
            dataset = ClipDataset.from_index(index, POLICY, audio=True)
            dataset.clip(len(dataset) - 1)  # planned with this index; the manifest's test checks what reading returns
        except FramedexError:
            refused += 1
        except Exception as error:  # the point of this test
            wrong.append((column, row, change, repr(error)))
    assert refused > (50 if DEPTH == "full" else 5)
    assert wrong == []


KEYS = ("root", "clips_per_part", "media_per_part", "generation", "images", "index_ffmpeg", "ffmpeg")
VALUES = [None, 5, -5, "zz", "\0", [], [-5], [2**70], [1.5], [True], ["zz"], [[]], {}, {"size": 3}, True]
HEADERS: list[tuple[str, Any]] = [
    (key, value)
    for number, key in enumerate(KEYS)
    for value in drawn("hostile values of each key", VALUES, seed=number)
]


@pytest.mark.parametrize("name", ["D", "INDEX"])
def test_no_key_of_a_header_leads_to_other_errors(name: str, made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / name, tmp_path / name))
    header = folder / ("index.json" if name == "INDEX" else "dataset.json")
    content = json.loads(header.read_text())
    refused, wrong = 0, []
    for key, value in HEADERS:
        header.write_text(json.dumps(content | {key: value}))
        try:
            dataset = ClipDataset(folder) if name == "D" else ClipDataset.from_index(folder, POLICY)
            for number in range(len(dataset)):
                dataset[number]
        except FramedexError:
            refused += 1
        except Exception as error:  # the point of this test
            wrong.append((key, value, repr(error)))
    assert refused > (20 if DEPTH == "full" else 4)
    assert wrong == []


@pytest.mark.parametrize(
    ("folder", "column", "value", "found"),
    [
        ("media", "color_range", "zz", "'zz'"),
        ("media", "width", -5, "-5"),
        ("media", "width", 60_000_000, "6"),
        ("recipes", "run_state", [0, 77], "77"),
        ("clips", "media_row", 9, "9"),
    ],
)
def test_an_error_names_the_file_the_row_and_the_column(
    folder: str, column: str, value: Any, found: str, made: Path, tmp_path: Path
) -> None:
    dataset = Path(shutil.copytree(made / "D", tmp_path / "D"))
    path = dataset / folder / "part-000000.parquet"
    rewrite(path, pq.read_table(path), column, value, 0)
    with pytest.raises(FormatError) as error:
        ClipDataset(dataset)[0]
    rows = dataset / f"rows/{'media' if folder == 'media' else 'clips'}-000000.rows"
    assert error.value.where == f"{rows}, row 0, column {column}"
    assert str(error.value.found).startswith(found)
    assert error.value.allowed is not None
    assert error.value.remedy is not None


@pytest.mark.parametrize("has_order", [True, False])
def test_ranks_that_were_swapped_are_seen(has_order: bool, made: Path, tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(made / "D", tmp_path / "D"))
    path = dataset / "recipes" / "part-000000.parquet"
    table = pq.read_table(path)
    ranks, position = table["packet_rank"][0].as_py(), table["position"][0].as_py()
    right, refused = ClipDataset(made / "D")[0]["frames"], 0
    if not has_order:  # as in datasets of before version 3.7, whose ranks only the decoder checks
        rewrite(path, table, "packet_order", None, 0)
        table = pq.read_table(path)
    for rank in range(len(ranks) - 1):
        swapped = [{rank: rank + 1, rank + 1: rank}.get(value, value) for value in ranks]
        rewrite(path, table, "packet_rank", swapped, 0)
        try:
            assert np.array_equal(ClipDataset(dataset)[0]["frames"], right), rank
            assert not {rank, rank + 1} & set(position), rank
        except FramedexError:
            refused += 1
    assert refused > 5


def test_a_tampered_clip_is_skipped_without_workers_too(made: Path, tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(made / "D", tmp_path / "D"))
    path = dataset / "recipes" / "part-000000.parquet"
    rewrite(path, pq.read_table(path), "run_state", [77], 1)
    loader = ClipLoader(ClipDataset(dataset), batch_size=3, on_error="skip", output="numpy", collate="list")
    assert [name for batch in loader for name in batch["clip_id"]] == ["h264_b_pyramid.mkv", "shots"]
    assert "column run_state" in loader.report.faults[0].message


@pytest.mark.parametrize(
    ("width", "said"), [(100, "a picture of 176 × 144 in a medium of 100 × 144"), (1_500_000, "the decoder fails")]
)
def test_pictures_of_another_size_than_the_media_say_are_refused_before_memory_is_taken(
    width: int, said: str, made: Path, tmp_path: Path
) -> None:
    dataset = Path(shutil.copytree(made / "D", tmp_path / "D"))
    path = dataset / "media" / "part-000000.parquet"
    rewrite(path, pq.read_table(path), "width", width, 0)
    with pytest.raises(DecodeError, match=said):
        ClipDataset(dataset)[0]


def test_what_needs_more_memory_than_there_is_is_refused() -> None:
    check_room(machine_bytes(), "all of it", where="here")
    with pytest.raises(DecodeError, match="5,000,000 frames of 60000 × 60000"):
        check_room(5_000_000 * 60_000**2 * 3, "5,000,000 frames of 60000 × 60000", where="here")


def test_a_missing_column_and_one_of_another_type_are_named(made: Path, tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(made / "D", tmp_path / "D"))
    path = dataset / "recipes" / "part-000000.parquet"
    table = pq.read_table(path)
    for changed in (table.drop_columns(["position"]), table.set_column(
        table.schema.get_field_index("position"), "position", pa.array(["zz"] * len(table))
    )):  # fmt: skip
        rewrite_part(path, changed)
        with pytest.raises(FormatError, match="position"):
            ClipDataset(dataset)[0]


@pytest.mark.parametrize("names", [["clip"], ["clip", "clip"], ["clip", "other"], ["recipe", "recipe"]])
def test_rows_with_other_columns_are_refused(names: list[str], made: Path, tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(made / "D", tmp_path / "D"))
    clips = pq.read_table(dataset / "clips/part-000000.parquet").combine_chunks().to_struct_array().combine_chunks()
    write_rows(dataset / "rows/clips-000000.rows", pa.table([clips] * len(names), names))
    with pytest.raises(FormatError, match="of structs"):
        ClipDataset(dataset)[0]


def test_an_audit_finds_that_a_file_of_rows_is_missing(made: Path, tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(made / "D", tmp_path / "D"))
    (dataset / "rows/media-000000.rows").unlink()
    assert "a file of rows is missing" in run("audit", dataset, code=1).output


@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("table", ["clips", "media"])
def test_rows_that_were_cut_short_are_named(table: str, share: float, made: Path, tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(made / "D", tmp_path / "D"))
    path = dataset / f"rows/{table}-000000.rows"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(FormatError, match="cannot be read"):
        ClipDataset(dataset)[0]


@pytest.mark.parametrize("folder", ["videos", "frames"])
def test_parts_of_an_index_that_were_cut_short_are_named(folder: str, made: Path, tmp_path: Path) -> None:
    index = Path(shutil.copytree(made / "INDEX", tmp_path / "INDEX"))
    path = index / folder / "part-000000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FormatError, match="a part of the index is damaged"):
        ClipDataset.from_index(index, POLICY)[0]


def test_bytes_flipped_within_a_part_are_an_error_of_the_dataset(made: Path, tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(made / "D", tmp_path / "D"))
    path = dataset / "rows/clips-000000.rows"
    content = path.read_bytes()
    right, refused = ClipDataset(made / "D")[0]["frames"], 0
    for at in range(0, len(content), max(1, len(content) // 150)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            assert np.array_equal(ClipDataset(dataset)[0]["frames"], right), at
        except FramedexError:
            refused += 1
    assert refused > 5


def test_a_tar_exchanged_for_another_of_its_size_and_time_is_stale(made: Path, tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(made / "TARS", tmp_path / "TARS"))
    (tar,) = (dataset / "shards").glob("*.tar")
    status, content = tar.stat(), tar.read_bytes()
    tar.write_bytes(content[::-1])
    os.utime(tar, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert tar.stat().st_size == status.st_size
    with pytest.raises(StaleError):
        ClipDataset(dataset)[0]
