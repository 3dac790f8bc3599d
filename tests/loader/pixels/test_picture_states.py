"""States of loaders record how pictures are turned and scaled, and continue in the same way or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framedex import ClipDataset, ClipLoader, ClipSampler, ClipStream, ConcatClips, FramedexError, Framing, Index
from tests.support.datasets import shard_clips

FRAMING = Framing(sizes=[(32, 48), (48, 32)], resize="crop")


@pytest.fixture(scope="module")
def stored(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states") / "D"
    return shard_clips(index.path, folder, [{"uri": "h264_default.mp4", "frames": [n, n + 3]} for n in range(9)])


def loader_of(stored: Path, **options: Any) -> ClipLoader:
    dataset = ClipDataset(stored, **options)
    return ClipLoader(dataset, batch_size=2, sampler=ClipSampler(dataset, shuffle=True), output="numpy")


def test_a_state_has_rotation_aspect_and_sizes(stored: Path) -> None:
    assert loader_of(stored).state_dict()["pictures"] == [{"rotation": "apply", "aspect": "stored", "sizes": None}]
    state = loader_of(stored, framing=FRAMING).state_dict()
    assert state["pictures"] == [{"rotation": "apply", "aspect": "display", "sizes": [[32, 48], [48, 32]]}]
    stretched = loader_of(stored, rotation="stored", size=(16, 16)).state_dict()
    assert stretched["pictures"] == [{"rotation": "stored", "aspect": "stored", "sizes": None}]
    joined = ConcatClips([ClipDataset(stored, framing=FRAMING), ClipDataset(stored), ClipDataset(stored, size=(8, 8))])
    facts = ClipLoader(joined, output="numpy").state_dict()["pictures"]
    assert [one["sizes"] for one in facts] == [[[32, 48], [48, 32]], None, None]
    alike = ConcatClips([ClipDataset(stored), ClipDataset(stored, size=(8, 8))])
    assert len(ClipLoader(alike, output="numpy").state_dict()["pictures"]) == 1


def test_a_sampler_continues_from_the_state_of_a_loader(stored: Path) -> None:
    loader = loader_of(stored, rotation="stored")
    next(iter(loader))
    sampler = ClipSampler(ClipDataset(stored), shuffle=True)
    sampler.load_state_dict(loader.state_dict())
    assert len(list(sampler)) == 7
    loader.load_state_dict(sampler.state_dict())


OTHERS = [{"rotation": "stored"}, {"framing": Framing(sizes=[(32, 48)], resize="crop")}, {"framing": None}]


@pytest.mark.parametrize("other", OTHERS)
def test_a_loader_with_other_pictures_does_not_resume(stored: Path, other: dict[str, Any]) -> None:
    first = loader_of(stored, framing=FRAMING)
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    expected = [batch["clip_id"] for batch in batches]
    assert len(expected) == 4
    with pytest.raises(FramedexError, match=r"(?s)turned or scaled in another way\n  found: +rotation='apply'"):
        loader_of(stored, **{"framing": FRAMING} | other).load_state_dict(state)
    second = loader_of(stored, framing=FRAMING)
    second.load_state_dict(state)
    assert [batch["clip_id"] for batch in second] == expected


def test_a_state_without_pictures_stands_for_stored_ones(stored: Path) -> None:
    first = loader_of(stored, rotation="stored", framing=Framing(short_side=40, aspect="stored"))
    old = {name: value for name, value in first.state_dict().items() if name != "pictures"}
    first.load_state_dict(old)
    with pytest.raises(FramedexError) as error:
        loader_of(stored, framing=Framing(short_side=40)).load_state_dict(old)
    text = error.value.text()
    assert "found:   rotation='stored', aspect='stored', sizes=None (assumed: a state" in text
    assert "allowed: rotation='apply', aspect='display', sizes=None" in text
    assert "aspect and sizes are arguments of Framing" in text


@pytest.mark.parametrize("state", [None, [], {"pictures": 3}, {"pictures": [3]}, {}])
def test_a_malformed_state_is_an_error(stored: Path, state: object) -> None:
    with pytest.raises(FramedexError):
        loader_of(stored).load_state_dict(state)  # type: ignore[arg-type]


def test_a_stream_resumes_with_the_same_pictures_alone(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_default.mp4", "frames": [n, n + 3]} for n in range(9)]
    packed = shard_clips(index.path, tmp_path / "D", clips, "--pack", "clips")
    first = ClipStream(packed, shuffle=4, framing=FRAMING)
    items = iter(first)
    next(items)
    state = first.state_dict()
    expected = [item["clip_id"] for item in items]
    for other in OTHERS:
        with pytest.raises(FramedexError, match="turned or scaled in another way"):
            ClipStream(packed, shuffle=4, **{"framing": FRAMING} | other).load_state_dict(state)
    old = {name: value for name, value in state.items() if name != "pictures"}
    with pytest.raises(FramedexError, match="assumed: a state of a sampler or an earlier version"):
        ClipStream(packed, shuffle=4, framing=FRAMING).load_state_dict(old)
    second = ClipStream(packed, shuffle=4, framing=FRAMING)
    second.load_state_dict(state)
    assert [item["clip_id"] for item in second] == expected
    plain = ClipStream(packed, shuffle=4, rotation="stored")
    plain.load_state_dict(old)
    assert [item["clip_id"] for item in plain] == expected
