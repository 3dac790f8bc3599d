"""Tars: equal samples give equal bytes, `tar` reads them, and their indexes equal those of DALI's own tool."""

from __future__ import annotations

import os
import subprocess
import tarfile
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framedex.errors import StaleError
from framedex.files.outputs import fingerprint
from framedex.sharder.clips.clip import ByteSource
from framedex.sharder.clips.samples import FileRanges, Member
from framedex.sharder.packing import tars
from framedex.sharder.reading import SourceFiles


def source(path: Path) -> ByteSource:
    """Return a byte source that records the file's current size, time and fingerprint."""
    status = path.stat()
    with open(path, "rb") as file:
        mark = fingerprint(file.fileno(), status.st_size)
    return ByteSource(path=str(path), size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, fingerprint=mark)


def write(path: Path, samples: list[list[Member]]) -> Path:
    tar = tars.Tar(path, SourceFiles())
    for number, members in enumerate(samples):
        tar.add(f"{number:09d}", members)
        tar.settle()
    tar.close()
    return path


@pytest.fixture
def samples(tmp_path: Path) -> list[list[Member]]:
    """Samples of bytes and file ranges, including empty ones and ones of uneven length."""
    file = tmp_path / "source"
    file.write_bytes(os.urandom(100_000))
    here = source(file)
    return [
        [
            Member(suffix="mp4", pieces=[b"head", FileRanges(source=here, ranges=[(number, 1000 * number)])]),
            Member(suffix="json", pieces=[b"{}" * number]),
        ]
        for number in range(40)
    ]


def test_tar_lists_and_extracts_what_was_written(samples: list[list[Member]], tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples)
    listed = subprocess.run(["tar", "-tf", path], check=True, capture_output=True, text=True)
    assert listed.stderr == ""
    assert listed.stdout.split() == [f"{n:09d}.{suffix}" for n in range(40) for suffix in ("mp4", "json")]
    subprocess.run(["tar", "-xf", path, "-C", tmp_path], check=True)
    content = (tmp_path / "source").read_bytes()
    for number in range(40):
        assert (tmp_path / f"{number:09d}.mp4").read_bytes() == b"head" + content[number : number + 1000 * number]
        assert (tmp_path / f"{number:09d}.json").read_bytes() == b"{}" * number


def test_headers_hold_nothing_of_the_machine_or_the_moment(samples: list[list[Member]], tmp_path: Path) -> None:
    first = write(tmp_path / "a.tar", samples).read_bytes()
    assert write(tmp_path / "b.tar", samples).read_bytes() == first
    with tarfile.open(tmp_path / "a.tar") as tar:
        facts = {(i.mtime, i.uid, i.gid, i.uname, i.gname, i.mode) for i in tar}
    assert facts == {(0, 0, 0, "", "", 0o644)}


def test_the_index_is_the_one_that_dalis_tool_makes(samples: list[list[Member]], tmp_path: Path) -> None:
    from wds2idx import IndexCreator

    path = write(tmp_path / "a.tar", samples)
    with IndexCreator(str(path), str(tmp_path / "theirs"), verbose=False) as creator:
        creator.create_index()
    assert tars.index_path(path).read_text() == (tmp_path / "theirs").read_text()


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=3), min_size=1, max_size=6), st.integers(1, 9))
def test_offsets_point_at_contents_and_sizes_are_foretold(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], buffer: int
) -> None:
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tars, "BUFFER_BYTES", buffer * 100)
        tar, total, places = tars.Tar(path, SourceFiles()), 0, []
        for number, lengths in enumerate(sizes):
            members = [Member(suffix=f"{n}", pieces=[os.urandom(length)]) for n, length in enumerate(lengths)]
            places += list(zip(tar.add(f"{number}", members), members, strict=True))
            total += tars.sample_bytes(members)
            assert tar.size == total
            tar.settle()
            assert tar.size == total
        tar.close()
    content = path.read_bytes()
    assert len(content) == total + len(tars.TAR_END)
    for offset, member in places:
        assert content[offset : offset + len(member)] == b"".join(map(bytes, member.pieces))  # type: ignore[arg-type]


@pytest.mark.parametrize("buffer", [700, 1 << 20])
def test_a_sample_whose_source_ends_early_leaves_no_trace(tmp_path: Path, buffer: int) -> None:
    file = tmp_path / "source"
    file.write_bytes(b"x" * 5000)
    good = [Member(suffix="a", pieces=[b"good"])]
    gone = [Member(suffix="a", pieces=[b"y" * 2000, FileRanges(source=source(file), ranges=[(4000, 2000)])])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tars, "BUFFER_BYTES", buffer)
        tar = tars.Tar(tmp_path / "a.tar", SourceFiles())
        tar.add(f"{0:09d}", good)
        tar.settle()
        tar.add(f"{1:09d}", gone)
        with pytest.raises(StaleError, match="no bytes at 5000"):
            tar.settle()
        tar.add(f"{1:09d}", good)
        tar.settle()
        tar.close()
    assert write(tmp_path / "b.tar", [good, good]).read_bytes() == (tmp_path / "a.tar").read_bytes()


def test_an_interrupt_of_the_waiting_leaves_a_tar_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = [Member(suffix="a", pieces=[b"x" * 1000])]
    tar = tars.Tar(tmp_path / "a.tar", SourceFiles())
    tar.add(f"{0:09d}", member)
    with monkeypatch.context() as patch:
        patch.setattr(Future, "exception", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tar.settle()
    tar.add(f"{1:09d}", member)
    tar.settle()
    tar.settle()
    tar.close()
    assert write(tmp_path / "b.tar", [member, member]).read_bytes() == (tmp_path / "a.tar").read_bytes()


def test_a_tar_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    tar = tars.Tar(tmp_path / "a.tar", SourceFiles())
    tar.add("0", [Member(suffix="a", pieces=[b"x"])])
    assert not (tmp_path / "a.tar").exists()
    tar.abandon()
    assert not list(tmp_path.iterdir())
