"""Sources of every kind become the same list of media."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framedex.errors import SourceError
from framedex.indexer.discover import default_root, discover, relative_uri


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("cats/a 1.mp4", "cats/b.MKV", "dogs/deep/c.mov", "dogs/notes.txt", "dogs/d[1].mp4"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path


def uris(tree: Path, *sources: object, **options: object) -> list[str]:
    found = discover([str(source) for source in sources], **options)  # type: ignore[arg-type]
    return [relative_uri(item.path, str(tree)) for item in found]


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
        found = discover([source])
        assert [relative_uri(item.path, str(tree)) for item in found] == [
            "cats/a 1.mp4",
            "cats/b.MKV",
            "dogs/deep/c.mov",
        ]
        assert [item.columns for item in found] == [{}, {"label": 3}, {"label": -1, "start": 0.5, "end": 2.25}]


def test_a_dali_list_may_name_a_video_many_times(tree: Path) -> None:
    (tree / "list.txt").write_text("cats/b.MKV 1 0 5\ncats/b.MKV 2 5 9\ncats/b.MKV 2 5 9\n")
    assert [item.columns["label"] for item in discover([f"@{tree}/list.txt"])] == [1, 2]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_listings_bring_the_users_columns(tree: Path, kind: str) -> None:
    path = tree / f"listing.{kind}"
    if kind == "csv":
        path.write_text("uri,label,split\ncats/a 1.mp4,7,train\ndogs/deep/c.mov,8,val\n")
    elif kind == "jsonl":
        path.write_text(
            '{"uri": "cats/a 1.mp4", "label": 7, "split": "train"}\n{"uri": "dogs/deep/c.mov", "label": 8, "split": "val"}\n'
        )
    else:
        pq.write_table(
            pa.table({"uri": ["cats/a 1.mp4", "dogs/deep/c.mov"], "label": [7, 8], "split": ["train", "val"]}), path
        )
    found = discover([str(path)])
    assert [item.columns for item in found] == [{"label": 7, "split": "train"}, {"label": 8, "split": "val"}]
    assert [item.spelled for item in found] == ["cats/a 1.mp4", "dogs/deep/c.mov"]


def test_paths_in_lists_are_relative_to_the_root_where_one_is_given(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("lists") / "list.txt"
    elsewhere.write_text("cats/b.MKV\n")
    assert uris(tree, f"@{elsewhere}", root=str(tree)) == ["cats/b.MKV"]


def test_labels_come_from_folder_names(tree: Path) -> None:
    labels = [item.columns["label"] for item in discover([str(tree)], label_from_parent=True)]
    assert labels == ["cats", "cats", "dogs", "deep"]


def test_the_default_root_is_the_deepest_common_folder(tree: Path) -> None:
    assert default_root([str(tree / "cats"), str(tree / "dogs/deep/c.mov")]) == str(tree)
    assert default_root([str(tree / "cats")]) == str(tree / "cats")
    assert default_root([f"{tree}/dogs/*.mov"]) == str(tree / "dogs")
    assert default_root([f"@{tree}/list.txt"]) == str(tree)


def test_a_path_outside_the_root_stays_absolute(tree: Path) -> None:
    assert relative_uri(str(tree / "cats/b.MKV"), str(tree / "dogs")) == str(tree / "cats/b.MKV")
    assert relative_uri(str(tree / "..data.mp4"), str(tree)) == "..data.mp4"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda tree: [str(tree / "nothing*.mp4")], "matches nothing"),
        (lambda tree: ["@" + str(tree / "missing.txt")], "cannot be read"),
        (lambda tree: [str((tree / "bad.csv").write_text("path\nx\n") and tree / "bad.csv")], "no uri column"),
        (lambda tree: [str((tree / "bad.jsonl").write_text("{") and tree / "bad.jsonl")], "cannot be read"),
        (lambda tree: [str((tree / "bad.csv").write_text("uri,pts\nx,1\n") and tree / "bad.csv")], "reserved name"),
        (lambda tree: [str((tree / "empty").mkdir() or tree / "empty")], "holds no video"),
    ],
)
def test_sources_that_make_no_sense_are_errors(tree: Path, make: object, says: str) -> None:
    with pytest.raises(SourceError) as refused:
        discover(make(tree))  # type: ignore[operator]
    assert says in str(refused.value)


def test_two_labels_for_one_medium_are_an_error(tree: Path) -> None:
    (tree / "l.csv").write_text("uri,label\ncats/b.MKV,1\n")
    with pytest.raises(SourceError, match="two labels"):
        discover([str(tree / "l.csv")], label_from_parent=True)
