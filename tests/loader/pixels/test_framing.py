"""Framing → scaled sizes and windows: rules, draws, and what is refused. No clip is read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from framedex import Framing, SmartResize
from framedex.errors import FramedexError
from framedex.loader.pixels.framing import Draw, cutout_of, delivered_sizes
from framedex.sharder.decoding.cutout import Cutout, Window
from tests.support.turned import cut

FULL_HD, VGA, TALL = (1080, 1920), (480, 640), (1280, 720)
THREE = [(480, 832), (832, 480), (624, 624)]


def framed(framing: Framing, size: tuple[int, int], *, clip: str = "clip", epoch: int = 0, seed: int = 0) -> Cutout:
    return cutout_of(framing, size, 16, Draw(seed=seed, epoch=epoch, name=clip))


@pytest.mark.parametrize(
    ("framing", "size", "scaled", "corner", "shown"),
    [
        (Framing(), VGA, (480, 640), (0, 0), (480, 640)),
        (Framing(size=(224, 224)), FULL_HD, (224, 224), (0, 0), (224, 224)),
        (Framing(size=(224, 224), resize="fit"), FULL_HD, (126, 224), (-49, 0), (224, 224)),
        (Framing(size=(224, 224), resize="fit"), TALL, (224, 126), (0, -49), (224, 224)),
        (Framing(size=(225, 224), resize="fit"), FULL_HD, (126, 224), (-49, 0), (225, 224)),
        (Framing(size=(224, 224), resize="crop"), FULL_HD, (224, 398), (0, 87), (224, 224)),
        (Framing(size=(224, 224), resize="crop"), TALL, (398, 224), (87, 0), (224, 224)),
        (Framing(short_side=256), FULL_HD, (256, 455), (0, 0), (256, 455)),  # 455.1, as in torchvision
        (Framing(short_side=256), (480, 854), (256, 455), (0, 0), (256, 455)),  # 455.5
        (Framing(short_side=256), TALL, (455, 256), (0, 0), (455, 256)),
        (Framing(long_side=320), FULL_HD, (180, 320), (0, 0), (180, 320)),
        (Framing(long_side=10), (1, 400), (1, 10), (0, 0), (1, 10)),
        (Framing(short_side=256, crop=(224, 224)), FULL_HD, (256, 455), (16, 116), (224, 224)),  # 115.5 to even
        (Framing(crop=(100, 200)), VGA, (480, 640), (190, 220), (100, 200)),
        (Framing(smart_resize=SmartResize(factor=28)), VGA, (476, 644), (0, 0), (476, 644)),
        (Framing(sizes=THREE, resize="crop"), FULL_HD, (480, 853), (0, 10), (480, 832)),  # 10.5 to even
        (Framing(sizes=THREE, resize="fit"), TALL, (832, 468), (0, -6), (832, 480)),
        (Framing(sizes=THREE, resize="crop"), (500, 600), (624, 749), (0, 62), (624, 624)),
        (Framing(sizes=THREE), (100, 100), (624, 624), (0, 0), (624, 624)),
    ],
)
def test_frames_are_scaled_and_cut_as_documented(
    framing: Framing,
    size: tuple[int, int],
    scaled: tuple[int, int],
    corner: tuple[int, int],
    shown: tuple[int, int],
) -> None:
    cutout = framed(framing, size)
    assert (cutout.scaled, cutout.size, cutout.windows) == (scaled, shown, (Window(*corner),))
    assert not cutout.is_stacked
    one = [np.array([value]) for value in (*size, 16)]
    assert [int(side[0]) for side in delivered_sizes(framing, one[0], one[1], one[2])] == list(shown)


@given(height=st.integers(100, 3000), width=st.integers(100, 3000))
def test_each_picture_gets_the_size_with_the_nearest_proportions(height: int, width: int) -> None:
    cutout = framed(Framing(sizes=[*THREE, (1248, 1248)], resize="crop"), (height, width))
    ratios = [abs(np.log((height / width) / (size[0] / size[1]))) for size in THREE]
    assert cutout.size == THREE[int(np.argmin(ratios))]
    one = [np.array([value]) for value in (height, width, 81)]
    sides = delivered_sizes(Framing(sizes=THREE), one[0], one[1], one[2])
    assert (int(sides[0][0]), int(sides[1][0])) == cutout.size


def test_several_crops_lie_along_the_longer_side_or_in_the_corners() -> None:
    wide, tall = (framed(Framing(short_side=8, crop=(8, 8), position="three"), size) for size in ((8, 15), (20, 8)))
    assert [window[:2] for window in wide.windows] == [(0, 0), (0, 4), (0, 7)]  # 3.5 to even
    assert [window[:2] for window in tall.windows] == [(0, 0), (6, 0), (12, 0)]
    five, ten = (framed(Framing(crop=(2, 4), position=name), (6, 10)) for name in ("five", "ten"))  # type: ignore[arg-type]
    assert [window[:2] for window in five.windows] == [(0, 0), (0, 6), (4, 0), (4, 6), (2, 3)]
    assert ten.windows[:5] == five.windows
    assert [cutout.leading for cutout in (wide, five, ten)] == [(3,), (5,), (10,)]


def test_ten_crops_are_five_of_the_picture_and_five_of_its_mirror_image() -> None:
    picture = np.arange(6 * 10 * 3, dtype=np.uint8).reshape(1, 6, 10, 3)
    ten, five = (framed(Framing(crop=(2, 4), position=name), (6, 10)) for name in ("ten", "five"))  # type: ignore[arg-type]
    expected = np.concatenate([cut(picture, five), cut(np.flip(picture, 2), five)])
    assert np.array_equal(cut(picture, ten), expected)


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    out=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    top=st.integers(-50, 50),
    left=st.integers(-50, 50),
    is_flipped=st.booleans(),
)
def test_windows_show_zeros_beyond_the_frame(
    height: int, width: int, out: tuple[int, int], top: int, left: int, is_flipped: bool
) -> None:
    frames = np.random.default_rng(0).integers(1, 255, (2, height, width, 3)).astype(np.uint8)
    around = np.pad(frames, ((0, 0), (100, 100), (100, 100), (0, 0)))
    expected = around[:, 100 + top : 100 + top + out[0], 100 + left : 100 + left + out[1]]
    cutout = Cutout(scaled=(height, width), size=out, windows=(Window(top, left, is_flipped),))
    assert np.array_equal(cut(frames, cutout), expected[:, :, ::-1] if is_flipped else expected)
    assert cutout.stands_out == (not expected.all())


@given(
    size=st.tuples(st.integers(1, 2000), st.integers(1, 2000)),
    out=st.tuples(st.integers(1, 500), st.integers(1, 500)),
    resize=st.sampled_from(["fit", "crop"]),
)
def test_fit_shows_the_whole_frame_and_crop_fills_the_size(
    size: tuple[int, int], out: tuple[int, int], resize: Any
) -> None:
    assume(max(out[0] / size[0], out[1] / size[1]) * max(size) < 32_000)
    cutout = framed(Framing(size=out, resize=resize), size)
    smaller = [full <= own for full, own in zip(cutout.scaled, out, strict=True)]
    same = [full == own for full, own in zip(cutout.scaled, out, strict=True)]
    assert any(same)
    assert (
        all(smaller) if resize == "fit" else all(not less or equal for less, equal in zip(smaller, same, strict=True))
    )
    exact = [full * own / of for full, own, of in zip(size[::-1], cutout.scaled, size, strict=True)]
    assert abs(exact[0] - cutout.scaled[1]) <= max(1, 0.51 * size[1] / size[0]) or 1 in cutout.scaled


def test_draws_depend_on_the_seed_the_epoch_and_the_clip_alone() -> None:
    framing = Framing(short_side=(256, 320), crop=(224, 224), position="random", flip=0.5)
    same = [framed(framing, FULL_HD, clip="a", epoch=3, seed=7) for _ in range(2)]
    others = [
        framed(framing, FULL_HD, clip="b", epoch=3, seed=7),
        framed(framing, FULL_HD, clip="a", epoch=4, seed=7),
        framed(framing, FULL_HD, clip="a", epoch=3, seed=8),
    ]
    assert same[0] == same[1]
    assert len({same[0], *others}) == 4
    assert same[0] == Cutout(scaled=(302, 536), size=(224, 224), windows=(Window(26, 100, True),))  # in all versions


def test_every_place_and_side_is_drawn_about_as_often() -> None:
    framing = Framing(short_side=(4, 6), crop=(4, 4), position="random", flip=0.25)
    drawn = [framed(framing, (8, 8), clip=str(number)) for number in range(3000)]
    sides = Counter(cutout.scaled for cutout in drawn)
    assert sides.keys() == {(4, 4), (5, 5), (6, 6)}
    assert min(sides.values()) > 900
    places = Counter(cutout.windows[0][:2] for cutout in drawn if cutout.scaled == (6, 6))
    assert len(places) == 9
    assert min(places.values()) > 70
    assert 650 < sum(cutout.windows[0].is_flipped for cutout in drawn) < 850


def test_mirroring_does_not_move_the_crop() -> None:
    framings = [Framing(crop=(10, 10), position="random", flip=flip) for flip in (0.0, 1.0)]
    plain, mirrored = (framed(framing, VGA).windows[0] for framing in framings)
    assert (plain[:2], plain.is_flipped, mirrored.is_flipped) == (mirrored[:2], False, True)


def test_random_resized_crops_have_areas_and_proportions_as_wanted() -> None:
    framing = Framing(size=(112, 112), scale=(0.08, 0.5))
    found = [framed(framing, VGA, clip=str(number)) for number in range(500)]
    corners, parts = np.array([cutout.part for cutout in found]).transpose(1, 0, 2)
    assert (corners >= 0).all()
    assert (corners + parts <= VGA).all()
    shares = parts.prod(axis=1) / (480 * 640)
    ratios = parts[:, 1] / parts[:, 0]
    assert 0.078 < shares.min() < 0.1
    assert 0.45 < shares.max() < 0.51
    assert 0.74 < ratios.min() < 0.78
    assert 1.28 < ratios.max() < 1.35
    assert len({tuple(corner) for corner in corners.tolist()}) > 400
    assert {(cutout.scaled, cutout.windows) for cutout in found} == {((112, 112), (Window(0, 0),))}
    assert not any(cutout.stands_out for cutout in found)


def test_where_no_random_part_fits_the_middle_is_taken() -> None:
    cutout = framed(Framing(size=(8, 8), scale=(0.9, 1.0), ratio=(1.0, 1.0)), (100, 1000))
    assert cutout.part == ((0, 450), (100, 100))


@given(
    shown=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    aspect=st.sampled_from([0.5, 1.0, 4 / 3, 2.0]),
    turns=st.integers(0, 3),
    share=st.tuples(*[st.floats(0, 1)] * 4),
)
def test_parts_of_stored_pictures_have_even_bounds_near_the_shown_part(
    shown: tuple[int, int], aspect: float, turns: int, share: tuple[float, float, float, float]
) -> None:
    begins = [int(one * (side - 1)) for one, side in zip(share[:2], shown, strict=True)]
    sides = [1 + int(one * (side - begin - 1)) for one, side, begin in zip(share[2:], shown, begins, strict=True)]
    cutout = Cutout(scaled=(8, 8), size=(8, 8), part=(tuple(begins), tuple(sides)))  # type: ignore[arg-type]
    lying = shown[::-1] if turns % 2 else shown
    stored = (lying[0], max(1, round(lying[1] / aspect)))
    found = cutout.of_stored(shown, stored, turns)
    assert found.part is not None
    picture = np.zeros(shown, np.uint8)
    picture[begins[0] : begins[0] + sides[0], begins[1] : begins[1] + sides[1]] = 1
    rows, columns = np.nonzero(np.rot90(picture, -turns))
    exact = [(rows.min(), rows.max() + 1), (columns.min(), columns.max() + 1)]
    for (begin, end), of, side, at, length in zip(exact, lying, stored, *found.part, strict=True):
        assert length >= 1
        assert 0 <= at <= at + length <= side
        assert at % 2 == 0
        assert (at + length) % 2 == 0 or at + length == side
        assert abs(at - begin * side / of) <= 1.01 or side - begin * side / of < 2
        assert abs(at + length - end * side / of) <= 3
    if stored == lying:
        assert found.of_stored(stored, stored, 0).part == found.part  # for pictures of the medium's own size


def test_a_crop_larger_than_the_frame_says_what_to_do() -> None:
    with pytest.raises(FramedexError, match="the crop is larger than the frame") as raised:
        framed(Framing(crop=(224, 224)), (144, 400))
    assert "a frame of 400 × 144" in str(raised.value.found)
    assert "short_side" in str(raised.value.remedy)


def test_frames_are_not_scaled_beyond_measure() -> None:
    for framing in (Framing(short_side=40_000, crop=(4, 4)), Framing(size=(60_000, 1), resize="crop")):
        with pytest.raises(FramedexError, match=r"scaled to too many pixels\n.*of 160 × 120"):
            cutout_of(framing, (120, 160), 4, Draw(seed=0, epoch=0, name="a"))


def test_a_description_has_what_differs_from_the_defaults() -> None:
    framing = Framing(short_side=256, crop=(224, 224), position="random", flip=0.5)
    assert repr(framing) == "Framing(short_side=256, crop=(224, 224), position='random', flip=0.5)"
    assert eval(repr(framing)) == framing
    assert repr(Framing()) == "Framing()"


def test_lists_are_as_good_as_tuples() -> None:
    lists = Framing(short_side=[256, 320], crop=[224, 224])  # type: ignore[arg-type]
    assert lists == Framing(short_side=(256, 320), crop=(224, 224))
    assert framed(Framing(size=[8, 8]), VGA).is_whole  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": (224,)},
        {"sizes": []},
        {"sizes": (224, 224)},
        {"sizes": [(224, 224), None]},
        {"sizes": [(224, 224), (0, 1)]},
        {"sizes": [(8, 8)], "size": (8, 8)},
        {"sizes": [(8, 8)], "crop": (8, 8)},
        {"aspect": "player"},
        {"size": 224},
        {"size": (0, 224)},
        {"crop": (224.0, 224)},
        {"size": (224, 224), "short_side": 256},
        {"long_side": 3, "short_side": 3},
        {"short_side": 0},
        {"short_side": (256,)},
        {"short_side": (320, 256), "crop": (224, 224)},
        {"short_side": (256, 320)},
        {"short_side": True},
        {"long_side": 1.5},
        {"smart_resize": 28},
        {"resize": "fit"},
        {"resize": "squash", "size": (2, 2)},
        {"size": (8, 8), "resize": "fit", "crop": (4, 4)},
        {"position": "random"},
        {"position": "left", "crop": (2, 2)},
        {"scale": (0.1, 1.0)},
        {"scale": (0.1, 1.5), "size": (8, 8)},
        {"scale": (0.0, 1.0), "size": (8, 8)},
        {"scale": 0.5, "size": (8, 8)},
        {"ratio": (1.0, 2.0), "size": (8, 8)},
        {"ratio": (1.0, float("inf")), "size": (8, 8), "scale": (0.1, 1.0)},
        {"short_side": (5,), "crop": (4, 4)},
        {"flip": 1.5},
        {"flip": "yes"},
    ],
)
def test_wrong_values_and_contradictions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FramedexError):
        Framing(**wrong)
