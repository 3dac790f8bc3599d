"""ClipSampler draws clips by weights and by classes: with the right rates, and never a clip of weight 0."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex import ClipSampler
from framedex.errors import FramedexError
from framedex.loader.order.sampler import drawn_order, weights_of


class Clips:
    """A dataset with columns."""

    def __init__(self, **columns: list[Any]) -> None:
        self._columns = {name: np.array(values) for name, values in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def column(self, name: str) -> Any:
        """Return a column."""
        return self._columns[name]

    def places(self, kind: str) -> Any:
        """Return the medium of each clip."""
        return np.arange(len(self)) // 10


def test_clips_are_drawn_as_often_as_their_weights_say() -> None:
    weights = np.array([0, 1, 2, 0, 7, 0])
    drawn = list(ClipSampler(range(6), weights=weights, length=100_000, seed=1))
    shares = np.bincount(drawn, minlength=6) / len(drawn)
    assert np.abs(shares - weights / 10).max() < 0.01
    assert set(drawn) == {1, 2, 4}


@given(
    weights=st.lists(st.sampled_from([0.0, 5e-324, 1e-12, 0.3, 1.0, 1e300]), min_size=1, max_size=30).filter(any),
    length=st.integers(1, 200),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_clip_of_weight_zero_is_never_drawn(weights: list[float], length: int, seed: int) -> None:
    found = weights_of(range(len(weights)), weights, None)
    assert found is not None
    drawn = drawn_order(found, length, seed=seed, epoch=0)
    assert len(drawn) == length
    assert (np.array(weights)[drawn] > 0).all()


def test_every_class_is_drawn_equally_often_and_its_clips_by_weight() -> None:
    label = np.array(["walk"] * 90 + ["run"] * 9 + ["fall"])
    drawn = np.array(list(ClipSampler(Clips(label=label.tolist()), balance="label", length=60_000)))
    counts = Counter(label[drawn].tolist())
    assert all(abs(count / 60_000 - 1 / 3) < 0.01 for count in counts.values())
    assert set(counts) == {"walk", "run", "fall"}
    weights = np.where(np.arange(100) < 45, 3.0, 1.0)
    both = list(ClipSampler(Clips(label=label.tolist()), balance="label", weights=weights, length=60_000))
    walks = [clip for clip in both if clip < 90]
    assert abs(len(walks) / 60_000 - 1 / 3) < 0.01
    assert abs(np.mean(np.array(walks) < 45) - 0.75) < 0.02


def test_a_column_and_its_array_draw_the_same_clips_in_an_epoch_of_their_number() -> None:
    clips = Clips(quality=[1, 5, 0, 2], label=[3, 3, 9, 3])
    by_name, by_array = ClipSampler(clips, weights="quality"), ClipSampler(range(4), weights=[1, 5, 0, 2])
    assert list(by_name) == list(by_array)
    assert (len(by_name), by_name.epoch) == (4, 0)
    assert list(ClipSampler(clips, balance="label")) == list(ClipSampler(range(4), balance=[3, 3, 9, 3]))
    epochs = [list(ClipSampler(range(4), weights=[1, 1, 1, 1], length=50)) for _ in range(2)]
    assert epochs[0] == epochs[1]
    sampler = ClipSampler(range(4), weights=[1, 1, 1, 1], length=50)
    assert list(sampler) != list(sampler), "each epoch has other draws"


def test_drawn_clips_can_be_read_block_by_block() -> None:
    clips = Clips(weight=np.linspace(0, 1, 1000).tolist())
    plain = list(ClipSampler(clips, weights="weight", length=2000))
    blocked = list(ClipSampler(clips, weights="weight", length=2000, blocks="medium", window=4))
    assert sorted(plain) == sorted(blocked), "the same draws, in another order"
    media = np.array(blocked) // 10
    spans = [np.ptp(np.flatnonzero(media == medium)) for medium in set(media.tolist())]
    assert max(spans) < 200
    assert ClipSampler(clips, weights="weight", blocks="medium").state_dict()["locality"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [1, -2, 3]}, "below 0.*-2.0 for clip 1"),
        ({"weights": [1, float("nan"), float("nan")]}, "nan for clip 1, 2 such clips"),
        ({"weights": [1, float("inf"), 1]}, "inf for clip 1"),
        ({"weights": [0, 0, 0]}, "no clip has a weight above 0"),
        ({"weights": [1, 2]}, "2 values.*3 values"),
        ({"weights": [[1, 2, 3]]}, r"shape \(1, 3\)"),
        ({"weights": ["a", "b", "c"]}, "number for each clip"),
        ({"weights": [1, "a", 3]}, "'a' for clip 1.*finite numbers"),
        ({"weights": [1, None, 3]}, "None for clip 1.*exclude clips without a number by where="),
        ({"weights": [1, [2], 3]}, "inhomogeneous.*an array of 3 values"),
        ({"weights": 3}, "found: +3\n.*3 values"),
        ({"weights": np.ma.masked_equal([1, 2, 3], 2)}, "a masked value for clip 1"),
        ({"weights": "quality"}, "no method column"),
        ({"balance": ["a", "b"]}, "value for each clip"),
        ({"balance": np.array(["a", None, "b"], object)}, "no value for clip 1, 1 such"),
        ({"balance": [1.0, float("nan"), 2.0]}, "no value for clip 1"),
        ({"balance": ["a", "a", "b"], "weights": [1, 1, 0]}, "no such clip for 'b'"),
        ({"balance": np.array([[1], [2], None], object)}, "no value for clip 2"),
        ({"length": 5}, "give weights or balance"),
        ({"weights": [1, 1, 1], "length": 0}, "length is out of range"),
    ],
)
def test_wrong_weights_are_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FramedexError) as raised:
        ClipSampler(range(3), **arguments)
    assert raised.match(f"(?s){message}")


def test_a_column_of_weights_with_nulls_names_the_first_one() -> None:
    with pytest.raises(
        FramedexError, match=r"weights must have one number for each clip(.|\n)*nan for clip 1, 2 such clips"
    ):
        ClipSampler(Clips(weight=[1, float("nan"), float("nan"), 2]), weights="weight")
    assert len(ClipSampler(Clips(weight=[1, 2]), weights=np.array([1, 2], object))) == 2


def test_a_state_of_other_weights_is_refused() -> None:
    state = ClipSampler(range(4), weights=[1, 2, 3, 4]).state_dict()
    for other, message in (
        (ClipSampler(range(4), weights=[1, 2, 3, 5]), "another weights"),
        (ClipSampler(range(4), weights=[1, 2, 3, 4], length=9), "another length"),
        (ClipSampler(range(4)), "unknown keys: length, weights"),
    ):
        with pytest.raises(FramedexError, match=message):
            other.load_state_dict(state)
    with pytest.raises(FramedexError, match="a state without length, weights"):
        ClipSampler(range(4), weights=[1, 2, 3, 4]).load_state_dict(ClipSampler(range(4)).state_dict())
    ClipSampler(range(4), weights=[2, 4, 6, 8]).load_state_dict(state)  # the same relative to each other
