"""What a stranger's index or dataset did, once: it emptied files, took all memory, hung, or ended the process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import framedex
from framedex import ClipDataset, ClipStream, Index
from framedex.errors import DecodeError, FormatError, FramedexError, OutputError, SourceError
from tests.support.datasets import run, write_clips
from tests.support.depth import rounds
from tests.support.manifests import make_earlier, rewrite_part
from tests.support.running import environment


def first_clip(place: Path) -> Any:
    """Return the first clip of a dataset, or of an index by a policy."""
    if place.name != "INDEX":
        return ClipDataset(place)[0]
    return ClipDataset.from_index(place, {"policy": "uniform", "frames": 2})[0]


def replaced(path: Path, column: str, values: pa.Array) -> None:
    """Write a file again with another column."""
    table = pq.read_table(path)
    place = table.column_names.index(column)
    rewrite_part(path, table.set_column(place, table.schema.field(column).with_type(values.type), values))


def test_a_lock_that_is_a_link_empties_nothing(own: Path, medium: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (own / "INDEX" / ".lock").unlink(missing_ok=True)
    (own / "INDEX" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OutputError, match="the lock file is a symbolic link"):
        framedex.index(medium("h264_vfr.mkv"), own / "INDEX", workers=0, progress=False)
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("name", ["videos", "frames"])
def test_a_table_that_is_a_link_is_not_written_to(
    name: str, own: Path, medium: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.move(own / "INDEX" / name, tmp_path / "docs")
    (tmp_path / "docs" / ".writing-mine").write_text("mine")
    (own / "INDEX" / name).symlink_to(tmp_path / "docs")
    before = sorted(os.listdir(tmp_path / "docs"))
    with pytest.raises(OutputError, match="a subfolder of the output is a symbolic link"):
        framedex.index(medium("h264_vfr.mkv"), own / "INDEX", workers=0, progress=False)
    assert sorted(os.listdir(tmp_path / "docs")) == before
    assert len(Index(own / "INDEX")) == 1


@pytest.mark.parametrize(
    "name",
    [
        "INDEX/index.json",
        "INDEX/listing.parquet",
        "INDEX/videos/part-000000.parquet",
        "D/dataset.json",
        "D/rows/media-000000.rows",
    ],
)
def test_pipes_and_devices_are_not_read(name: str, own: Path) -> None:
    for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        (own / name).unlink()
        make(own / name)
        with pytest.raises(FramedexError, match="not a regular file"):
            first_clip(own / name.split("/")[0])
    command = [sys.executable, "-m", "framedex", "audit", own / name.split("/")[0]]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == (0 if name.endswith(".rows") else 1)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_an_audit_reads_no_pipe_or_device(make: Callable[[Path], None], own: Path) -> None:
    part = own / "D/media/part-000000.parquet"
    part.unlink()
    make(part)
    command = [sys.executable, "-m", "framedex", "audit", own / "D"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["D/clips", "D/media", "D/recipes", "INDEX/videos", "INDEX/frames"])
def test_damaged_metadata_of_parquet_end_no_process(name: str, own: Path) -> None:
    """Flip bytes of the footer in a process of its own: pyarrow may end it instead of raising an error."""
    if name.startswith("D/"):  # single clips of later versions are not read from Parquet
        make_earlier(own / "D")
    script = (
        "import sys, random, framedex\n"
        "from pathlib import Path\n"
        "path, what = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "content, errors = path.read_bytes(), 0\n"
        "first = len(content) - 8 - int.from_bytes(content[-8:-4], 'little')\n"
        "for at in random.Random(5).sample(range(first, len(content) - 8), int(sys.argv[3])):\n"
        "    path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])\n"
        "    try:\n"
        "        if what.name == 'D':\n"
        "            framedex.ClipDataset(what)[0]\n"
        "        else:\n"
        "            framedex.ClipDataset.from_index(what, {'policy': 'uniform', 'frames': 2})[0]\n"
        "    except framedex.FramedexError:\n"
        "        errors += 1\n"
        "print(errors)"
    )
    path = own / name / "part-000000.parquet"
    command = [sys.executable, "-c", script, path, own / name.split("/")[0], str(rounds("flipped bytes of a footer"))]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5


def test_rows_are_counted_before_they_are_read(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own / "TARS" / "shards.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(path)] * 5000).combine_chunks(), path)
    monkeypatch.setattr("framedex.files.parquet_parts.usual_clip_bytes", lambda: 2_000_000)
    with pytest.raises(FormatError, match="of memory"):
        ClipDataset(own / "TARS")[0]


def test_a_stream_does_not_read_what_lies_between_far_ranges(own: Path) -> None:
    (tar,) = (own / "TARS" / "shards").glob("*.tar")
    recipes = own / "TARS" / "recipes" / "part-000000.parquet"
    table = pq.read_table(recipes)
    length = table["range_length"][0].as_py()
    assert len(length) == 1
    for name, value in (
        ("range_length", [length[0] - 10, 10]),
        ("range_offset", [table["range_offset"][0].as_py()[0], 1 << 31]),
    ):
        replaced(recipes, name, pa.array([value], table.schema.field(name).type))
    replaced(own / "TARS" / "shards.parquet", "size_bytes", pa.array([1 << 32], pa.int64()))
    os.truncate(tar, 1 << 32)
    with pytest.raises(DecodeError, match="too much memory"):
        next(iter(ClipStream(own / "TARS", clip_bytes=1 << 30)))


def test_aliases_of_aliases_in_a_policy_are_refused(own: Path, tmp_path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]"
        for before, after in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    (own / "D" / "policy.yaml").write_text("\n".join(lines))
    output = run("inspect", own / "D", "--sample", 1, "--out", tmp_path / "sheet.html", code=1).output
    assert "more than 10,000 values" in output
    policy = ["--policy", own / "D" / "policy.yaml"]
    output = run("shard", own / "INDEX", *policy, "--out", tmp_path / "E", code=1).output
    assert "more than 10,000 values" in output


@pytest.mark.parametrize("name", ["progress.jsonl", ".writing-job.json", "clips", "shards", "."])
def test_an_unfinished_dataset_of_links_is_not_written_to(name: str, own: Path, tmp_path: Path) -> None:
    mine, unfinished = tmp_path / "mine", own / "E.unfinished"
    (mine / ".writing-a").mkdir(parents=True)
    (mine / "part-000000.parquet").write_text("mine")
    (tmp_path / "precious").write_text("mine")
    if name == ".":
        unfinished.symlink_to(mine)
    else:
        unfinished.mkdir()
        (unfinished / name).symlink_to(mine if "." not in name else tmp_path / "precious")
    clips = [{"uri": "h264_default.mp4", "frames": [0]}]
    with pytest.raises(OutputError, match="a part of an unfinished output is a symbolic link"):
        framedex.shard(
            own / "INDEX", own / "E", clips=write_clips(tmp_path / "c.jsonl", clips), workers=0, progress=False
        )
    assert sorted(os.listdir(mine)) == [".writing-a", "part-000000.parquet"]
    assert (mine / "part-000000.parquet").read_text() == (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": {"column": "caption", "values": ["x"], "numbers": [10**9]}},
        {"clips_per_part": [(1 << 31) - 1] * 4},
        {"views": {"names": [f"v{number}" for number in range(20_000)], "missing": "mask"}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_header_cannot_ask_for_memory(changed: dict[str, Any], own: Path) -> None:
    path = own / "D" / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(FormatError, match="is damaged"):
        ClipDataset(own / "D")


@pytest.mark.parametrize("name", ["D/dataset.json", "INDEX/index.json"])
def test_a_header_that_is_nested_deeply_cannot_be_read(name: str, own: Path) -> None:
    (own / name).write_text("[" * 100_000)
    with pytest.raises(FormatError, match="cannot be read"):
        first_clip(own / name.split("/")[0])


def test_a_column_of_lists_where_texts_are_wanted_is_an_error(own: Path) -> None:
    header = json.loads((own / "D" / "dataset.json").read_text()) | {"columns": ["number"]}
    (own / "D" / "dataset.json").write_text(json.dumps(header))
    pq.write_table(pa.table({"number": [["a"]]}), own / "D" / "columns.parquet")
    with pytest.raises(FormatError, match="cannot be read"):
        ClipDataset(own / "D").column("number")


def test_objects_without_keys_are_an_error_of_the_listing(medium: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "list.jsonl").write_text(json.dumps({"uri": str(medium("h264_default.mp4")), "meta": {}}))
    with pytest.raises(SourceError, match="objects without keys"):
        framedex.index(tmp_path / "list.jsonl", tmp_path / "I", workers=0, progress=False)


def test_a_table_on_a_terminal_shows_the_beginning_of_long_texts(own: Path) -> None:
    begun = time.monotonic()
    output = run("audit", own / "INDEX", "--sql", "SELECT repeat(chr(1), 10000000) AS a").output
    assert len(output) < 1000
    assert time.monotonic() - begun < 30
    refused = run("audit", own / "INDEX", "--sql", "SELECT repeat('x', 60000000) AS a", code=1).output
    assert "a row of the result is too large to show" in refused


ANSWERS = {
    "drip": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" * 2,
    "headers": b"HTTP/1.1 200 OK\r\nX: ",
}


@contextlib.contextmanager
def endless(answer: str) -> Iterator[str]:
    """Serve an answer that goes on for ever, a few bytes at a time; yield the address."""
    ended = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(1 << 16)
            connection.sendall(ANSWERS[answer])
            while not ended.wait(0.1):
                connection.sendall(ANSWERS[answer] if answer == "continue" else b"x")

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v.mp4"
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_without_end_is_given_up(answer: str, tmp_path: Path) -> None:
    script = "import sys, framedex; framedex.index(sys.argv[1], sys.argv[2], workers=0, progress=False)"
    limits = environment(FRAMEDEX_STORAGE_TIMEOUT="1", FRAMEDEX_STORAGE_RETRIES="0")
    with endless(answer) as address:
        subprocess.run([sys.executable, "-c", script, address, tmp_path / "I"], env=limits, timeout=40, check=False)
    [row] = Index(tmp_path / "I").videos.to_pylist()
    assert (row["status"], row["error_kind"]) == ("failed", "unreadable")
