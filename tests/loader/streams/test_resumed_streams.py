"""A stream that was stopped goes on with exactly the clips that were not delivered."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from framedex import ClipDataset, ClipStream
from framedex.errors import FramedexError
from framedex.sharder.reading import HeldBytes

RANKS, WORKERS, BATCH, STOP = 3, 2, 4, 3


def stream_of(path: Path, rank: int = 0, world_size: int = 1, **options: Any) -> ClipStream:
    options = {"shuffle": 6, "seed": 4, "uneven": "allow", "decode": "movie"} | options
    return ClipStream(path, rank=rank, world_size=world_size, **options)


def loader_of(stream: ClipStream, workers: int = WORKERS, **options: Any) -> DataLoader[Any]:
    return DataLoader(stream, batch_size=BATCH, collate_fn=list, num_workers=workers, **options)


def ids(batches: Any) -> list[str]:
    return [item["clip_id"] for batch in batches for item in batch]


def all_ids(path: Path) -> list[str]:
    dataset = ClipDataset(path)
    return sorted(dataset.clip(number).clip_id for number in range(len(dataset)))


def stopped(path: Path, epoch: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Run three ranks with two workers, and stop them in the middle; return what was delivered, and their states."""
    delivered: list[str] = []
    states = []
    for rank in range(RANKS):
        stream = stream_of(path, rank, RANKS)
        stream.set_epoch(epoch)
        loader = loader_of(stream)
        delivered += ids(itertools.islice(loader, STOP))
        states.append(json.loads(json.dumps(stream.state_dict(loader, batches=STOP))))
    return delivered, states


def test_three_ranks_with_two_workers_stop_and_go_on_with_each_clip_once(packed: Path) -> None:
    delivered, states = stopped(packed, epoch=2)
    assert len(delivered) == RANKS * STOP * BATCH
    assert states[0] == states[1] == states[2]
    for rank in range(RANKS):
        stream = stream_of(packed, rank, RANKS)
        stream.load_state_dict(states[0])
        assert stream.epoch == 2
        loader = loader_of(stream)
        batches = list(loader)
        delivered += ids(batches)
    assert sorted(delivered) == all_ids(packed)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 2), (2, 1), (4, 2), (5, 0)])
def test_other_numbers_of_ranks_and_workers_go_on(packed: Path, ranks: int, workers: int) -> None:
    delivered, states = stopped(packed, epoch=0)
    for rank in range(ranks):
        stream = stream_of(packed, rank, ranks)
        stream.load_state_dict(states[0])
        delivered += ids(loader_of(stream, workers))
    assert sorted(delivered) == all_ids(packed)


def test_the_rest_comes_in_the_order_of_an_unstopped_run(packed: Path) -> None:
    whole = ids([[item] for item in stream_of(packed)])
    stream = stream_of(packed)
    first = [item["clip_id"] for item in itertools.islice(stream, 17)]
    again = stream_of(packed)
    again.load_state_dict(stream.state_dict())
    rest = [item["clip_id"] for item in again]
    assert first + rest == whole
    assert [item["clip_id"] for item in again] == whole  # the epoch after it, which is the same without set_epoch


def test_stops_at_every_place_lose_nothing(packed: Path) -> None:
    expected, delivered, state, stops = all_ids(packed), [], None, 0
    while len(delivered) < len(expected):
        stream = stream_of(packed)
        if state is not None:
            stream.load_state_dict(state)
        delivered += [item["clip_id"] for item in itertools.islice(stream, 5)]
        state, stops = stream.state_dict(), stops + 1
    assert sorted(delivered) == expected
    assert stops > 10
    stream = stream_of(packed)
    assert state is not None
    stream.load_state_dict(state)
    assert list(stream) == []
    stream.set_epoch(1)
    assert sorted(item["clip_id"] for item in stream) == expected


def test_what_was_delivered_is_not_read_again(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = HeldBytes.read

    def counting(self: HeldBytes, *arguments: Any) -> Any:
        read.append(self.first_byte)
        return original(self, *arguments)

    monkeypatch.setattr(HeldBytes, "read", counting)
    stream = stream_of(packed)
    iterator = iter(stream)
    for _ in range(20):
        next(iterator)
    state, before = stream.state_dict(), len(read)
    again = stream_of(packed)
    again.load_state_dict(state)
    rest = len(list(again))
    assert before == 20
    assert len(read) - before == rest == len(ClipDataset(packed)) - 20


@pytest.mark.filterwarnings("ignore:.*set_vital")  # of torchdata
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_counts_itself(packed: Path, workers: int) -> None:
    def loader() -> StatefulDataLoader[Any]:
        return StatefulDataLoader(stream_of(packed), batch_size=BATCH, collate_fn=list, num_workers=workers)

    whole = ids(loader())
    one = loader()
    first = ids(itertools.islice(one, 5))
    other = loader()
    other.load_state_dict(one.state_dict())
    assert first + ids(other) == whole
    assert sorted(whole) == all_ids(packed)
    assert sorted(ids(other)) == all_ids(packed)  # the next epoch is a whole one


def test_persistent_workers_deliver_the_rest_and_then_whole_epochs(packed: Path) -> None:
    delivered, states = stopped(packed, epoch=1)
    rest = []
    for rank in range(RANKS):
        stream = stream_of(packed, rank, RANKS)
        stream.load_state_dict(states[0])
        loader = loader_of(stream, persistent_workers=True)
        for epoch in (1, 2):
            stream.set_epoch(epoch)
            rest.append(ids(loader))
    assert sorted(delivered + rest[0] + rest[2] + rest[4]) == all_ids(packed)
    assert sorted(rest[1] + rest[3] + rest[5]) == all_ids(packed)


def test_an_iteration_from_a_state_that_is_broken_off_begins_again(packed: Path) -> None:
    stream = stream_of(packed)
    loader = loader_of(stream)
    stream.load_state_dict(stream.state_dict(loader, batches=13))
    rest = ids(loader)
    assert 0 < len(rest) < len(all_ids(packed))
    assert sorted(ids(loader)) == all_ids(packed)  # the state was used
    again = stream_of(packed)
    other = loader_of(again, persistent_workers=True)
    again.load_state_dict(state_at(packed, 13))
    first = ids(itertools.islice(other, 1))
    assert ids(other) == rest
    assert set(first) <= set(rest)


def state_at(path: Path, batches: int) -> dict[str, Any]:
    """Return the state after some batches of one rank with two workers."""
    stream = stream_of(path)
    return stream.state_dict(loader_of(stream), batches=batches)


def test_a_state_that_running_workers_cannot_see_is_refused(packed: Path) -> None:
    stream = stream_of(packed)
    loader = loader_of(stream, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    stream.load_state_dict(stream.state_dict(loader, batches=1))
    with pytest.raises(FramedexError, match="after the workers had started"):
        list(loader)


def test_a_state_without_the_loader_is_refused_while_workers_deliver(packed: Path) -> None:
    stream = stream_of(packed)
    loader = loader_of(stream)
    next(iter(loader))
    with pytest.raises(FramedexError, match="only the loader can count") as caught:
        stream.state_dict()
    assert caught.value.remedy is not None
    assert "batches" in caught.value.remedy
    stream.set_epoch(1)
    assert stream.state_dict()["epoch"] == 1


def test_states_that_do_not_fit_are_refused(packed: Path, packed_images: Path) -> None:
    state = stream_of(packed).state_dict()
    wrong: list[tuple[Any, str]] = [
        (None, "not a state"),
        ({"epoch": 1}, "not a state"),
        (state | {"seed": 5}, "another seed"),
        (state | {"shuffle": 5}, "another shuffle"),
        (state | {"count": 5}, "another count"),
        (state | {"clips": 5}, "another clips"),
        (state | {"epoch": -1}, "not a state"),
        (state | {"stages": [{"world_size": 1, "workers": 1, "passed": [[1, 2]]}]}, "not a state"),
        (state | {"stages": [{"world_size": 0, "workers": 1, "passed": []}]}, "not a state"),
        (state | {"lane": {"world_size": 1, "workers": 1, "rank": 1, "worker": 0, "passed": 0}}, "not a state"),
        (stream_of(packed, uneven="pad").state_dict(), "another uneven"),
        (stream_of(packed_images).state_dict(), "another clips"),
    ]
    messages = []
    for content, _ in wrong:
        with pytest.raises(FramedexError) as caught:
            stream_of(packed).load_state_dict(content)
        messages.append(caught.value.what)
    assert [expected in message for (_, expected), message in zip(wrong, messages, strict=True)] == [True] * 12


def test_wrong_counts_and_loaders_are_refused(packed: Path) -> None:
    stream = stream_of(packed)
    loader = loader_of(stream)
    most = stream.batch_count(loader)
    with pytest.raises(FramedexError, match="batches is out of range") as caught:
        stream.state_dict(loader, batches=most + 1)
    assert caught.value.allowed == f"0 to {most}"
    with pytest.raises(FramedexError, match="is not this stream"):
        stream_of(packed).state_dict(loader, batches=1)
    with pytest.raises(FramedexError, match="both loader and batches"):
        stream.state_dict(batches=1)
    with pytest.raises(FramedexError, match="its delivery order is unknown"):
        stream.state_dict(loader_of(stream, in_order=False), batches=1)
