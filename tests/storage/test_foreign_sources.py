"""An index or a dataset that a stranger wrote reaches no host and no file that its user did not choose."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

import framedex
from framedex import ClipDataset, ClipLoader, ClipStream, Index
from framedex.errors import FramedexError, StorageError
from framedex.storage.places import Access, Locations, store_of
from tests.support.datasets import run
from tests.support.manifests import rewrite_part
from tests.support.media import Medium
from tests.support.object_datasets import same, segments
from tests.support.s3 import Bucket
from tests.support.served import served
from tests.support.web import serving

NAMES = ("h264_open_gop.mp4", "h264_vfr.mp4")
FIRST = {"policy": "range", "start": 0, "stop": 0.2}


@dataclass(frozen=True)
class Foreign:
    """An index and a dataset on this disk whose media lie on a web server, and the requests that the server got."""

    index: Path
    dataset: Path
    packed: Path
    videos: Path
    address: str
    requests: list[str]


@pytest.fixture
def foreign(tmp_path: Path, medium: Medium, monkeypatch: pytest.MonkeyPatch) -> Iterator[Foreign]:
    """Media on a web server, without permission to read them."""
    videos = tmp_path / "www/v"
    videos.mkdir(parents=True)
    for name in NAMES:
        shutil.copy(medium(name), videos / name)
    requests: list[str] = []
    with serving(tmp_path / "www", etags=True, requests=requests) as address:
        run("index", *[f"{address}/v/{name}" for name in NAMES], "--out", tmp_path / "I")
        policy = segments(tmp_path)
        framedex.shard(tmp_path / "I", tmp_path / "D", policy=policy, workers=0, progress=False, allow_remote=True)
        run("shard", tmp_path / "I", "--policy", policy, "--pack", "clips", "--out", tmp_path / "P")
        monkeypatch.delenv("FRAMEDEX_ALLOW_REMOTE")
        requests.clear()
        yield Foreign(tmp_path / "I", tmp_path / "D", tmp_path / "P", videos, address, requests)


def refused(error: object, foreign: Foreign) -> None:
    """Check that an error counts the media of each host, and that no request was sent."""
    assert f"{foreign.address} (2 sources)" in str(error)
    assert "--allow-remote" in str(error)
    assert foreign.requests == []


def test_python_asks_before_the_first_request(foreign: Foreign, tmp_path: Path) -> None:
    policy, how = segments(tmp_path), {"workers": 0, "progress": False}
    calls: list[Any] = [
        lambda: ClipDataset(foreign.dataset),
        lambda: ClipDataset.from_index(foreign.index, policy),
        lambda: framedex.shard(foreign.index, tmp_path / "OUT", policy=policy, **how),
        lambda: framedex.shard(Index(foreign.index), tmp_path / "OUT", policy=policy, **how),
        lambda: framedex.verify(foreign.dataset, **how),
        lambda: framedex.audit(foreign.index, files=True),
        lambda: framedex.audit(foreign.dataset, files=True),
        lambda: framedex.audit(foreign.index, report=tmp_path / "index.html"),
        lambda: framedex.audit(foreign.dataset, report=tmp_path / "dataset.html"),
    ]
    kinds = []
    for call in calls:
        with pytest.raises(StorageError) as caught:
            call()
        refused(caught.value, foreign)
        kinds.append(caught.value.kind)
    assert kinds == ["foreign"] * len(calls)


def test_commands_ask_before_the_first_request(foreign: Foreign, tmp_path: Path) -> None:
    commands: list[list[object]] = [
        ["shard", foreign.index, "--policy", segments(tmp_path), "--out", tmp_path / "OUT"],
        ["verify", foreign.dataset],
        ["inspect", foreign.dataset, "--sample", 1, "--out", tmp_path / "sheet.html"],
        ["inspect", foreign.index, "--serve", "--no-open"],
        ["audit", foreign.index, "--files"],
        ["bench", foreign.dataset],
    ]
    for command in commands:
        refused(run(*command, code=1).output, foreign)
    with pytest.raises(StorageError) as caught, served(foreign.index):
        pass
    refused(caught.value, foreign)


def test_what_needs_no_source_asks_nothing(foreign: Foreign, tmp_path: Path) -> None:
    assert len(ClipDataset(foreign.packed)[0]["frames"]) == 8
    assert sum(1 for _ in ClipStream(foreign.packed)) == len(ClipDataset(foreign.packed))
    run("audit", foreign.index)
    run("audit", foreign.dataset)
    run("audit", foreign.index, "--policy", segments(tmp_path))
    assert foreign.requests == []


def test_permission_gives_the_same_clips(foreign: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("index", foreign.videos, "--out", tmp_path / "L")
    local = ClipDataset.from_index(tmp_path / "L", segments(tmp_path))
    same(ClipDataset(foreign.dataset, allow_remote=True), local, "allow_remote")
    same(ClipDataset.from_index(foreign.index, segments(tmp_path), allow_remote=True), local, "from_index")
    run("verify", foreign.dataset, "--allow-remote")
    run("audit", foreign.index, "--files", "--allow-remote")
    run(
        "shard",
        foreign.index,
        "--policy",
        segments(tmp_path),
        "--out",
        tmp_path / "OUT",
        "--allow-remote",
        "--workers",
        2,
    )
    monkeypatch.setenv("FRAMEDEX_ALLOW_REMOTE", "1")
    same(ClipDataset(foreign.dataset), local, "the environment")
    monkeypatch.setenv("FRAMEDEX_ALLOW_REMOTE", "yes")
    with pytest.raises(FramedexError, match="0 or 1"):
        ClipDataset(foreign.dataset)


def test_a_root_leads_to_the_sources_without_permission(foreign: Foreign, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="in another store"):
        ClipDataset(foreign.dataset, root={f"{foreign.address}/elsewhere": str(tmp_path)})
    assert foreign.requests == []
    for root in (f"{foreign.address}/v", {foreign.address: foreign.address}):
        assert len(ClipDataset(foreign.dataset, root=root)[0]["frames"]) == 8


def test_pickles_and_workers_keep_the_choice(foreign: Foreign) -> None:
    dataset = ClipDataset(foreign.dataset, allow_remote=True)
    assert len(pickle.loads(pickle.dumps(dataset))[0]["frames"]) == 8
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert len(list(loader)) == len(dataset)


def moved(dataset: Path, number: int, uri: str) -> Path:
    """Change the uri of one medium of a dataset."""
    part = dataset / "media/part-000000.parquet"
    table = pq.read_table(part)
    uris = table["uri"].to_pylist()
    uris[number] = uri
    field = table.schema.get_field_index("uri")
    rewrite_part(part, table.set_column(field, table.schema.field(field), pa.array(uris)))
    return dataset


@pytest.fixture
def mixed(foreign: Foreign, tmp_path: Path) -> ClipDataset:
    """A dataset of media on this disk, one of which is said to be on the web server."""
    run("index", foreign.videos, "--out", tmp_path / "LOCAL")
    run("shard", tmp_path / "LOCAL", "--policy", segments(tmp_path), "--out", tmp_path / "MIXED")
    return ClipDataset(moved(tmp_path / "MIXED", 1, f"{foreign.address}/v/{NAMES[1]}"))


def test_one_foreign_medium_ends_the_run_whatever_on_error_says(mixed: ClipDataset, foreign: Foreign) -> None:
    media = mixed.manifest.media_rows()
    own, other = [int((media == number).argmax()) for number in (0, 1)]
    assert len(mixed[own]["frames"]) == 8
    with pytest.raises(StorageError, match=r"\(1 source\)"):
        mixed[other]
    for on_error in ("raise", "skip", "replace"):
        loader = ClipLoader(mixed, batch_size=1, sampler=[own, other], output="numpy", num_workers=0, on_error=on_error)
        with pytest.raises(StorageError, match=r"\(1 source\)"):
            list(loader)
    assert "(1 source)" in run("verify", mixed.manifest.path, code=1).output
    assert foreign.requests == []


def test_tables_of_frames_lie_in_the_own_store(foreign: Foreign, tmp_path: Path) -> None:
    pq.write_table(pa.table({"state": list(range(1000))}), foreign.videos / "t.parquet")
    listing = tmp_path / "list.csv"
    rows = [f"{foreign.videos}/{name},{foreign.address}/v/t.parquet,0" for name in NAMES]
    listing.write_text("\n".join(["uri,frame_table,frame_row", *rows]), encoding="utf-8")
    run("index", listing, "--out", tmp_path / "L")
    dataset = ClipDataset.from_index(tmp_path / "L", segments(tmp_path), frame_columns=["state"])
    with pytest.raises(StorageError, match=r"\(1 source\)"):
        dataset[0]
    assert foreign.requests == []
    allowed = ClipDataset.from_index(tmp_path / "L", segments(tmp_path), frame_columns=["state"], allow_remote=True)
    assert allowed[0]["state"].tolist() == list(range(8))


def test_a_dataset_in_a_bucket_reads_no_file_of_this_machine(
    bucket: Bucket, medium: Medium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FRAMEDEX_ALLOW_REMOTE")
    videos = tmp_path / "v"
    videos.mkdir()
    shutil.copy(medium(NAMES[0]), videos)
    run("index", videos, "--out", tmp_path / "I")
    run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--out", tmp_path / "D")
    run("shard", tmp_path / "I", "--policy", segments(tmp_path), "--pack", "clips", "--out", tmp_path / "P")
    stored = {name: bucket.put_folder(tmp_path / name, name) for name in ("I", "D", "P")}
    for call in (
        lambda: ClipDataset(stored["D"]),
        lambda: ClipDataset.from_index(stored["I"], segments(tmp_path)),
    ):
        with pytest.raises(StorageError, match=r"this machine \(1 source\)"):
            call()
    local = ClipDataset(tmp_path / "D")
    same(ClipDataset(stored["D"], root=videos), local, "a root on this machine")
    same(ClipDataset(stored["P"]), local, "tars")
    here = bucket.put_folder(videos, "v")
    same(ClipDataset(stored["D"], root=here), local, "a root in the bucket")
    run("index", here, "--out", f"{bucket.uri}/OWN")
    same(ClipDataset.from_index(f"{bucket.uri}/OWN", segments(tmp_path)), local, "all in one bucket")


LOCAL, S3, HUB = "/data/D", "s3://own/D", "hf://datasets/me/it@0123/D"


@pytest.mark.parametrize(
    ("place", "recorded", "root", "uri", "allowed"),
    [
        (LOCAL, "/videos", None, "a.mp4", True),
        (LOCAL, "/videos", None, "/elsewhere/a.mp4", True),
        (LOCAL, "/videos", None, "HTTP://127.0.0.1/a.mp4", False),
        (LOCAL, "s3://own/v", None, "a.mp4", False),
        (LOCAL, "s3://own/v", "/videos", "a.mp4", True),
        (LOCAL, "s3://own/v", "/videos", "s3://own/v/a.mp4", False),
        (LOCAL, "s3://own/v", {"s3://own/v": "/videos"}, "a.mp4", True),
        (LOCAL, "/videos", {"/videos/a": "s3://own/a"}, "a/x.mp4", True),
        (LOCAL, "/videos", {"/videos/a": "s3://own/a"}, "s3://own/b/x.mp4", False),
        (S3, "s3://own/v", None, "a.mp4", True),
        (S3, "s3://own/v", None, "s3://own/w/a.mp4", True),
        (S3, "s3://own/v", None, "../../other/a.mp4", False),
        (S3, "s3://own/v", None, "%2e%2e/a.mp4", False),
        (S3, "s3://own/v", {"/old": "/mine"}, "/old/../secret.mp4", False),
        (S3, "s3://own/v", {"/old": "/mine"}, "/mine/../secret.mp4", False),
        (S3, "s3://own/v", {"/old": "/mine"}, "/old/a.mp4", True),
        (S3, "s3://own/v", {"s3://own/v": "/mine"}, "../secret.mp4", False),
        (S3, "s3://own/v", "https://host/mine", "..%2Fa.mp4", False),
        (S3, "s3://own/v", None, "s3://own-not/a.mp4", False),
        (S3, "s3://own/v", None, "/etc/passwd", False),
        (S3, "/videos", None, "a.mp4", False),
        (S3, "/videos", "/videos", "a.mp4", True),
        (S3, "/videos", "/videos", "../a.mp4", False),
        (S3, "/videos", "s3://other/v", "a.mp4", True),
        (S3, "/videos", "s3://other/v", "s3://other/w/a.mp4", False),
        (HUB, "hf://datasets/me/it@4567", None, "a.mp4", True),
        (HUB, "hf://datasets/me/it@4567", None, "hf://datasets/me/other@4567/a.mp4", False),
        ("https://Host/D", "https://host/v", None, "a.mp4", True),
        ("https://host/D", "http://host/v", None, "a.mp4", False),
        ("https://host/D", "https://host@evil/v", None, "a.mp4", False),
        ("https://host/D", "https://host:8443/v", None, "a.mp4", False),
    ],
)
def test_sources_lie_in_the_own_store_or_where_the_root_leads(
    place: str, recorded: str, root: Any, uri: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FRAMEDEX_ALLOW_REMOTE")
    locations = Locations(place, recorded, Access(root=root))
    assert locations.allows(uri) is allowed
    uris = pa.chunked_array([["a/b.mp4"] * 3, [uri]])
    counted = {store_of(locations.path(each)) for each in uris.to_pylist() if not locations.allows(each)}
    if counted:
        with pytest.raises(StorageError) as caught:
            locations.check(uris)
        assert all(store in str(caught.value) for store in counted)
    else:
        locations.check(uris)
    assert Locations(place, recorded, Access(root=root, allow_remote=True)).allows(uri)


@pytest.mark.parametrize("uri", ["S3://own/v/a.mp4", "s3://own/v/a.mp4"])
def test_a_scheme_in_capitals_is_the_scheme(uri: str) -> None:
    """Stores are chosen by the scheme: an unknown one must not be taken for another provider's."""
    assert Locations(S3, "S3://own/v", Access()).path(uri) == "s3://own/v/a.mp4"
    assert Locations(S3, "S3://own/v", Access()).path("a.mp4") == "s3://own/v/a.mp4"
