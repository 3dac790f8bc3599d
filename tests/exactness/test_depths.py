"""Depth `tables` gives the same index and the same plans as depth `packets`, and reads very few bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import pytest

from framedex import Index, index
from framedex.indexer.containers import opened_file
from framedex.indexer.mp4 import boxes, sample_tables
from framedex.indexer.probing import by_tables, probe
from tests.support.counted import some
from tests.support.flags import DAMAGED, START, presentation_order
from tests.support.media import RECIPES
from tests.support.probed import probed
from tests.support.reading import indexed_medium

TRUSTED = [name for name in RECIPES if name.endswith((".mp4", ".mov"))]
# Recipes whose tables are not sufficient, with the reasons.
UNTRUSTED = {
    "h264_all_intra.mp4": "the tables do not list sync samples",
    "h264_single.mp4": "the tables do not list sync samples",
    "h264_intra_refresh.mp4": "as a sync sample, but its picture contradicts this",
    "h264_open_gop.mp4": "every packet must be read to find pictures after a recovery point that need earlier pictures",
}


def build(folder: Path, out: Path, depth: Literal["auto", "packets"]) -> Index:
    index(folder, out, root=folder, depth=depth, workers=0, follow_symlinks=True, progress=False)
    return Index(out)


def usable(index: Index) -> dict[str, dict[str, Any]]:
    return {row["uri"]: row for row in index.videos.to_pylist() if row["status"] == "ok"}


def compare(auto: Index, packets: Index, damaged: frozenset[str] = frozenset()) -> list[str]:
    """Compare all media that `auto` read from tables with those of depth `packets`.

    Args:
        damaged: media with damage that only reading every packet shows. Only their pts, offsets and sizes are compared.

    Returns:
        The uris of the media compared in full.
    """
    found = []
    rows = usable(packets)
    for uri, row in usable(auto).items():
        if row["depth"] != "tables":
            continue
        one, other = auto.packets(row["media_id"]), packets.packets(rows[uri]["media_id"])
        assert rows[uri]["depth"] == "packets"
        assert one.offset is not None
        assert other.offset is not None
        assert one.pts.tolist() == other.pts.tolist(), uri
        assert one.offset.tolist() == other.offset.tolist(), uri
        assert one.size.tolist() == other.size.tolist(), uri
        if uri in damaged:
            continue
        assert np.flatnonzero(one.flags & START).tolist() == np.flatnonzero(other.flags & START).tolist(), uri
        assert presentation_order(one.pts, one.flags).tolist() == presentation_order(other.pts, other.flags).tolist()
        assert other.read.all()
        assert (
            one.flags[one.read & (one.flags & START == 0)] == other.flags[one.read & (one.flags & START == 0)]
        ).all()
        assert one.state.tolist() == other.state.tolist(), uri
        for name in row.keys() - {"depth", "non_reference_share", "field_coded", "probed_by"}:
            assert row[name] == rows[uri][name], (uri, name)
        found.append(uri)
    return found


def compare_plans(auto: Index, packets: Index, uris: list[str], rng: np.random.Generator) -> int:
    """Compare the plans of random frames, one at a time and several together. Return the number of plans."""
    compared = 0
    for uri in uris:
        media = [indexed_medium(one, uri, keep_damaged=True) for one in (auto, packets)]
        count = len(media[1].planner.pts)
        wanted = [np.array([frame]) for frame in rng.permutation(count)[:15]]
        wanted += [rng.integers(0, count, 6) for _ in range(5)]
        for frames in wanted:
            media[0].read_headers(frames)
            one, other = (medium.planner.plan(frames) for medium in media)
            for name in some([field.name for field in fields(one)]):
                assert np.array_equal(getattr(one, name), getattr(other, name)), (uri, frames, name)
            compared += 1
    return compared


@pytest.fixture(scope="module")
def indexes(all_media: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Index, Index]:
    out = tmp_path_factory.mktemp("depths")
    return build(all_media, out / "AUTO", "auto"), build(all_media, out / "PACKETS", "packets")


def test_tables_say_what_packets_say(indexes: tuple[Index, Index]) -> None:
    assert sorted(compare(*indexes)) == sorted(set(TRUSTED) - UNTRUSTED.keys())


def test_plans_from_both_depths_are_identical(indexes: tuple[Index, Index], rng: np.random.Generator) -> None:
    uris = [uri for uri in TRUSTED if uri not in UNTRUSTED]
    assert compare_plans(*indexes, uris, rng) >= 15 * len(uris)


@pytest.mark.slow
def test_both_depths_agree_over_the_corpus(corpus: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    auto, packets = build(corpus, tmp_path / "AUTO", "auto"), build(corpus, tmp_path / "PACKETS", "packets")
    damaged = {
        uri
        for uri, row in usable(packets).items()
        if row["damaged_gop_count"]  # the tables do not show this damage
    }
    for uri in damaged:
        assert (packets.packets(usable(packets)[uri]["media_id"]).flags & DAMAGED).any()
    uris = compare(auto, packets, frozenset(damaged))
    assert len(uris) >= 40
    compare_plans(auto, packets, uris, rng)


@pytest.mark.parametrize("name", UNTRUSTED)
def test_tables_that_do_not_tell_all_are_refused_on_demand(name: str, medium: Callable[[str], Path]) -> None:
    video, _ = probed(medium(name), depth="tables")
    assert (video["status"], video["error_kind"]) == ("refused", "untrusted_tables")
    assert UNTRUSTED[name] in video["error_message"]
    video, _ = probed(medium(name), depth="auto")
    assert (video["status"], video["depth"]) == ("ok", "packets")


def test_matroska_has_no_tables(medium: Callable[[str], Path]) -> None:
    video, _ = probed(medium("h264_vfr.mkv"), depth="tables")
    assert (video["status"], video["error_kind"]) == ("refused", "untrusted_tables")


def test_what_is_not_read_is_null(medium: Callable[[str], Path]) -> None:
    video, frames = probed(medium("h264_default.mp4"))
    assert video["depth"] == "tables"
    assert video["non_reference_share"] is None
    assert frames["flags"].mask.any()
    assert not frames["flags"].mask[0]


def test_bytes_read_do_not_grow_with_the_bit_rate(tmp_path: Path) -> None:
    """The same pictures, encoded with two quantisers so that one file is over 20 times as large as the other."""
    from tests.support.media import Recipe as MediaRecipe
    from tests.support.media import encode

    read: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for name, quantiser in (("low.mp4", "45"), ("high.mp4", "1")):
        recipe = MediaRecipe(name=name, options={"qp": quantiser, "g": "25", "preset": "ultrafast"}, size=(640, 480))
        encode(recipe, tmp_path / name)
        sizes[name] = (tmp_path / name).stat().st_size
        count = 0

        with av.open(str(tmp_path / name)) as container:
            described = probe.describe_stream(container.streams.video[0])
        with opened_file(str(tmp_path / name)) as file:

            def counted(offset: int, length: int, file: Any = file) -> bytes:
                nonlocal count
                data = file.read(offset, length)
                count += len(data)
                return data

            layout = sample_tables.read_layout(counted, sizes[name])
            by_tables.tabulate(counted, layout, 1, described, file)
        read[name] = count
    assert sizes["high.mp4"] > 20 * sizes["low.mp4"]
    first_packets = 2  # these are read in full, to find out how units are packed
    assert read["high.mp4"] - read["low.mp4"] < sizes["high.mp4"] * first_packets / recipe.frames * 3


def test_samples_that_share_a_timestamp_are_not_trusted(medium: Callable[[str], Path], corpus: Path) -> None:
    content = (corpus / "dup_pts.mp4").read_bytes()

    def read(offset: int, length: int) -> bytes:
        return content[offset : offset + length]

    with av.open(str(corpus / "dup_pts.mp4")) as container:
        described = probe.describe_stream(container.streams.video[0])
    with pytest.raises(boxes.UntrustedTables):
        by_tables.tabulate(read, sample_tables.read_layout(read, len(content)), 1, described, None)
