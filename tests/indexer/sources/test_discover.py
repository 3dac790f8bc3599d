"""Sources of every kind become the same list of media."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex import Index, index
from framedex.errors import SourceError
from framedex.indexer.sources.discover import Search, default_root, discover
from framedex.storage.uris import relative
from tests.support.datasets import run


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("cats/a 1.mp4", "cats/b.MKV", "dogs/deep/c.mov", "dogs/notes.txt", "dogs/d[1].mp4"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path


def uris(tree: Path, *sources: object, **options: object) -> list[str]:
    found = discover([str(source) for source in sources], Search(**options)).listed  # type: ignore[arg-type]
    return [relative(item.path, str(tree)) for item in found]


def test_a_folder_is_searched_recursively_for_videos_in_sorted_order(tree: Path) -> None:
    assert uris(tree, tree) == ["cats/a 1.mp4", "cats/b.MKV", "dogs/d[1].mp4", "dogs/deep/c.mov"]


def test_files_and_globs_keep_the_order_given_without_repeats(tree: Path) -> None:
    assert uris(tree, tree / "dogs/d[1].mp4", tree / "cats/*", tree) == [
        "dogs/d[1].mp4", "cats/a 1.mp4", "cats/b.MKV", "dogs/deep/c.mov",
    ]  # fmt: skip


def test_a_recursive_glob(tree: Path) -> None:
    assert uris(tree, f"{tree}/**/*.mov") == ["dogs/deep/c.mov"]


def test_a_list_holds_paths_and_dali_lines(tree: Path) -> None:
    (tree / "list.txt").write_text("# mine\ncats/a 1.mp4\ncats/b.MKV 3\n\ndogs/deep/c.mov -1 0.5 2.25\n")
    for source in (f"@{tree}/list.txt", str(tree / "list.txt")):
        found = discover([source]).listed
        assert [relative(item.path, str(tree)) for item in found] == [
            "cats/a 1.mp4",
            "cats/b.MKV",
            "dogs/deep/c.mov",
        ]
        assert [item.columns for item in found] == [{}, {"label": 3}, {"label": -1, "start": 0.5, "end": 2.25}]


def test_a_dali_list_may_name_a_video_many_times(tree: Path) -> None:
    (tree / "list.txt").write_text("cats/b.MKV 1 0 5\ncats/b.MKV 2 5 9\ncats/b.MKV 2 5 9\n")
    assert [item.columns["label"] for item in discover([f"@{tree}/list.txt"]).listed] == [1, 2]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_listings_bring_the_users_columns(tree: Path, kind: str) -> None:
    path = tree / f"listing.{kind}"
    if kind == "csv":
        path.write_text("uri,label,split\ncats/a 1.mp4,7,train\ndogs/deep/c.mov,8,val\n")
    elif kind == "jsonl":
        path.write_text(
            '{"uri": "cats/a 1.mp4", "label": 7, "split": "train"}\n'
            '{"uri": "dogs/deep/c.mov", "label": 8, "split": "val"}\n'
        )
    else:
        pq.write_table(
            pa.table({"uri": ["cats/a 1.mp4", "dogs/deep/c.mov"], "label": [7, 8], "split": ["train", "val"]}), path
        )
    found = discover([str(path)]).listed
    assert [item.columns for item in found] == [{"label": 7, "split": "train"}, {"label": 8, "split": "val"}]
    assert [item.spelled for item in found] == ["cats/a 1.mp4", "dogs/deep/c.mov"]


def test_paths_in_lists_are_relative_to_the_root_where_one_is_given(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("lists") / "list.txt"
    elsewhere.write_text("cats/b.MKV\n")
    assert uris(tree, f"@{elsewhere}", root=str(tree)) == ["cats/b.MKV"]


def test_labels_come_from_folder_names(tree: Path) -> None:
    labels = [item.columns["label"] for item in discover([str(tree)], Search(label_from_parent=True)).listed]
    assert labels == ["cats", "cats", "dogs", "deep"]


def test_the_default_root_is_the_deepest_common_folder(tree: Path) -> None:
    assert default_root([str(tree / "cats"), str(tree / "dogs/deep/c.mov")]) == str(tree)
    assert default_root([str(tree / "cats")]) == str(tree / "cats")
    assert default_root([f"{tree}/dogs/*.mov"]) == str(tree / "dogs")
    assert default_root([f"@{tree}/list.txt"]) == str(tree)


def test_a_path_outside_the_root_stays_absolute(tree: Path) -> None:
    assert relative(str(tree / "cats/b.MKV"), str(tree / "dogs")) == str(tree / "cats/b.MKV")
    assert relative(str(tree / "..data.mp4"), str(tree)) == "..data.mp4"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda tree: [str(tree / "nothing*.mp4")], "no file or folder matches"),
        (lambda tree: ["@" + str(tree / "missing.txt")], "cannot be read"),
        (lambda tree: [str((tree / "bad.csv").write_text("path\nx\n") and tree / "bad.csv")], "no uri column"),
        (lambda tree: [str((tree / "bad.jsonl").write_text("{") and tree / "bad.jsonl")], "cannot be read"),
        (lambda tree: [str((tree / "bad.csv").write_bytes(b"uri,\xff\nx,1\n") and tree / "bad.csv")], "cannot be read"),
        (
            lambda tree: [str((tree / "bad.csv").write_text("uri,uri\nx,y\n") and tree / "bad.csv")],
            "have the same name",
        ),
        (lambda tree: [str((tree / "bad.csv").write_text("uri,pts\nx,1\n") and tree / "bad.csv")], "reserved name"),
        (lambda tree: [str((tree / "empty").mkdir() or tree / "empty")], "neither videos nor images"),
    ],
)
def test_sources_that_make_no_sense_are_errors(tree: Path, make: object, says: str) -> None:
    with pytest.raises(SourceError) as refused:
        discover(make(tree))  # type: ignore[operator]
    assert says in str(refused.value)


def test_two_labels_for_one_medium_are_an_error(tree: Path) -> None:
    (tree / "l.csv").write_text("uri,label\ncats/b.MKV,1\n")
    with pytest.raises(SourceError, match="has two labels"):
        discover([str(tree / "l.csv")], Search(label_from_parent=True))


@pytest.fixture
def linked(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tree with links of every kind; `outside` contains secret.mp4 and more/deep.mp4."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "more").mkdir()
    for name in ("secret.mp4", "more/deep.mp4"):
        (outside / name).write_bytes(b"x")
    (tree / "inner.mp4").symlink_to(tree / "cats/b.MKV")
    (tree / "outer.mp4").symlink_to(outside / "secret.mp4")
    (tree / "chain.mp4").symlink_to(tree / "outer.mp4")
    (tree / "nowhere.mp4").symlink_to(tree / "gone.mp4")
    (tree / "gone_outside.mp4").symlink_to(outside / "gone.mp4")
    (tree / "folder").symlink_to(outside)
    (tree / "dogs/loop").symlink_to(tree)
    (outside / "back").symlink_to(tree)
    return tree


def errors(tree: Path, *sources: object, **options: object) -> dict[str, str | None]:
    found = discover([str(source) for source in sources], Search(**options)).listed  # type: ignore[arg-type]
    return {relative(item.path, str(tree)): item.error and item.error.kind for item in found}


PLAIN = dict.fromkeys(["cats/a 1.mp4", "cats/b.MKV", "dogs/d[1].mp4", "dogs/deep/c.mov", "inner.mp4", "nowhere.mp4"])
OUT = {"outer.mp4": "symlink", "chain.mp4": "symlink", "gone_outside.mp4": "missing"}


def test_links_lead_out_of_a_searched_folder_only_where_allowed(linked: Path) -> None:
    assert errors(linked, linked) == PLAIN | OUT
    followed = dict.fromkeys(["folder/secret.mp4", "folder/more/deep.mp4"])
    assert errors(linked, linked, follow_symlinks=True) == PLAIN | dict.fromkeys(OUT) | followed


def test_a_root_may_itself_be_a_link(linked: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("links") / "root"
    root.symlink_to(linked)
    assert errors(root, root) == PLAIN | OUT


@pytest.mark.parametrize("pattern", ["*.mp4", "**/*.mp4", "**"])
def test_links_lead_out_of_a_globs_folder_only_where_allowed(linked: Path, pattern: str) -> None:
    found = errors(linked, f"{linked}/{pattern}")
    assert {uri: kind for uri, kind in found.items() if kind} == OUT
    assert not any(uri.startswith(("folder/", "dogs/loop")) for uri in found)
    assert set(errors(linked, f"{linked}/{pattern}", follow_symlinks=True).values()) == {None}


def test_a_glob_does_not_reach_through_a_linked_folder(linked: Path) -> None:
    assert errors(linked, f"{linked}/*/secret.mp4") == {"folder/secret.mp4": "symlink"}


def test_a_list_leads_out_of_its_folder_only_by_names_and_not_by_links(linked: Path) -> None:
    outside = os.path.realpath(linked / "folder")
    lines = ["cats/b.MKV", "inner.mp4", "outer.mp4", "folder/secret.mp4 7", f"{outside}/more/deep.mp4"]
    (linked / "list.txt").write_text("\n".join(lines))
    refused = {"outer.mp4": "symlink", "folder/secret.mp4": "symlink"}
    expected = {"cats/b.MKV": None, "inner.mp4": None, f"{outside}/more/deep.mp4": None} | refused
    assert errors(linked, f"@{linked}/list.txt") == expected
    assert errors(linked, f"@{linked}/list.txt", root=str(linked)) == expected
    (linked / "list.csv").write_text("uri\n" + "\n".join(line.removesuffix(" 7") for line in lines) + "\n")
    assert errors(linked, linked / "list.csv") == expected


def test_a_file_named_itself_may_be_a_link(linked: Path) -> None:
    assert errors(linked, linked / "outer.mp4") == {"outer.mp4": None}
    assert errors(linked, linked, linked / "outer.mp4") == PLAIN | OUT | {"outer.mp4": None}


def test_links_in_circles_end(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d", "e", "f"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.mp4").touch()
        for other in ("a", "b", "c", "d", "e", "f"):
            (tmp_path / name / f"to_{other}").symlink_to(tmp_path / other)
    expected = [f"{name}/x.mp4" for name in "abcdef"]
    assert uris(tmp_path, tmp_path, follow_symlinks=True) == expected
    assert uris(tmp_path, f"{tmp_path}/**/*.mp4", follow_symlinks=True) == expected


def test_a_link_out_is_a_refused_row_and_its_target_is_not_opened(
    tmp_path: Path, medium: Callable[[str], Path]
) -> None:
    videos, out = tmp_path / "videos", tmp_path / "INDEX"
    videos.mkdir()
    target = Path(shutil.copy(medium("h264_single.mp4"), tmp_path / "target.mp4"))
    os.utime(target, ns=(1, 10**18))  # any read updates an access time that is before the modification time
    (videos / "link.mp4").symlink_to(target)
    for _ in range(2):
        result = run("index", videos, "--out", out, code=3)
        assert "refused: link.mp4: a link leads out of" in result.output
        assert f"to {target}; --follow-symlinks allows such links (symlink)" in result.output
    assert target.stat().st_atime_ns == 1
    assert len(list(out.glob("videos/*"))) == 1, "the second run had nothing to write"
    run("index", videos, "--out", out, "--follow-symlinks")
    assert Index(out).videos["status"].to_pylist() == ["ok"]
    run("index", videos, "--out", out, code=3)
    assert Index(out).videos["error_kind"].to_pylist() == ["symlink"]


def test_a_name_that_is_not_utf8_is_a_row_and_not_the_end(tmp_path: Path, medium: Callable[[str], Path]) -> None:
    videos, out = tmp_path / "videos", tmp_path / "INDEX"
    videos.mkdir()
    shutil.copy(medium("h264_single.mp4"), videos / "good.mp4")
    shutil.copy(medium("h264_single.mp4"), os.path.join(os.fsencode(videos), b"caf\xe9.mp4"))
    report = index(videos, out, workers=0, progress=False)
    assert (report.ok, report.failed) == (1, 1)
    rows = {row["uri"]: (row["status"], row["error_kind"]) for row in Index(out).videos.to_pylist()}
    assert rows == {"good.mp4": ("ok", None), "caf\\xe9.mp4": ("failed", "file_name")}
    named = index(os.fsdecode(os.fsencode(videos) + b"/caf\xe9.mp4"), tmp_path / "OTHER", workers=0, progress=False)
    assert [problem["uri"] for problem in named.problems] == ["caf\\xe9.mp4"]
    (row,) = Index(tmp_path / "OTHER").videos.to_pylist()
    assert (row["uri"], row["member"], row["error_kind"]) == ("caf\\xe9.mp4", None, "file_name")


def test_what_no_file_name_or_label_can_be_is_a_row(tree: Path) -> None:
    (tree / "list.txt").write_text("a\0b.mp4\nc.mp4 " + "1" * 5000)
    zero, long = discover([f"@{tree}/list.txt"]).listed
    assert zero.error is not None
    assert (zero.error.kind, long.columns) == ("file_name", {})
