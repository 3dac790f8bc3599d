"""Encoders: the same pictures give the same bytes, whatever lay in memory before, and colours come back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from framedex import EncodeOptions
from framedex.errors import UncuttableError
from framedex.sharder.packing.encoders import ENCODERS, MATRIX, colour_of, encode, encoder_version, planes_of
from tests.support.depth import drawn
from tests.support.encoded import CODECS
from tests.support.pictures import rgb_of

Pictures = list[NDArray[np.uint8]]


def noise(count: int, height: int, width: int) -> Pictures:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (height, width, 3), np.uint8) for _ in range(count)]


def moving(count: int, height: int, width: int) -> Pictures:
    """Return pictures of one texture that moves."""
    texture = np.random.default_rng(1).integers(0, 256, (height // 8 + 4, width // 8 + 9, 3), np.uint8)
    large = np.kron(texture, np.ones((8, 8, 1), np.uint8))
    return [np.ascontiguousarray(large[number : number + height, 3 * number :][:, :width]) for number in range(count)]


@pytest.mark.parametrize(
    "codec, size, draw",
    drawn(
        "many long cases",
        itertools.product(CODECS, [(96, 96), (130, 98), (144, 256)], [noise, moving]),
        seed=1,
    ),
)
def test_the_same_pictures_give_the_same_bytes(codec: Any, size: tuple[int, int], draw: object) -> None:
    assert callable(draw)
    pictures = draw(16, *size)
    litter, found = [], set()
    for number in range(6):
        litter.append(bytes([37 * number]) * (50_000 + 31_777 * number))  # memory that encoders get has other content
        stream = encode(pictures, size, EncodeOptions(codec=codec))
        found.add((stream.configuration, b"".join(stream.packets), tuple(stream.rank.tolist())))
        litter = litter[-3:]
    assert len(found) == 1


@pytest.mark.parametrize("codec", CODECS)
def test_one_configuration_record_holds_for_clips_of_any_length(codec: Any) -> None:
    pictures, options = noise(40, 96, 128), EncodeOptions(codec=codec)
    records = {encode(pictures[:count], (96, 128), options).configuration for count in (1, 2, 5, 16, 40)}
    assert len(records) == 1


@pytest.mark.parametrize("codec", CODECS)
def test_clips_shorter_than_the_reordering_are_encoded_every_time(codec: Any) -> None:
    """x265 takes decoding times of one or two frames from memory that it did not set; muxers refuse some of them."""
    pictures, options, litter = noise(2, 96, 128), EncodeOptions(codec=codec), []
    counts = []
    for number in range(60):
        litter.append(bytes([number]) * (3000 + 777 * number))
        litter = litter[-4:]
        counts.append(len(encode(pictures[: 1 + number % 2], (96, 128), options).packets))
    assert counts == [1, 2] * 30


@pytest.mark.parametrize("codec", CODECS)
def test_a_lower_crf_takes_more_bytes(codec: Any) -> None:
    pictures = moving(8, 144, 256)
    sizes = [
        sum(map(len, encode(pictures, (144, 256), EncodeOptions(codec=codec, crf=crf)).packets)) for crf in (12, 24, 40)
    ]
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize("codec", CODECS)
def test_the_version_of_the_encoder_is_known_and_takes_no_place_in_clips(codec: Any) -> None:
    options = EncodeOptions(codec=codec)
    assert encoder_version(options).startswith(ENCODERS[codec].name)
    stream = encode(noise(1, 128, 128), (128, 128), options)
    assert b"x26" not in stream.configuration + b"".join(stream.packets)


@pytest.mark.parametrize("codec", CODECS)
def test_a_size_below_the_least_is_refused(codec: Any) -> None:
    least = ENCODERS[codec].least_side
    assert len(encode(noise(1, least, 200), (least, 200), EncodeOptions(codec=codec)).packets) == 1
    with pytest.raises(UncuttableError, match=f"{least} pixels or more"):
        encode(noise(1, least - 2, 200), (least - 2, 200), EncodeOptions(codec=codec))


def test_code_points_that_encoders_do_not_know_become_unspecified() -> None:
    points = [0, 1, 2, 3, 9, 12, 18, 22, 255]
    assert [colour_of(point, 1).primaries for point in points] == [2, 1, 2, 3, 9, 12, 2, 2, 2]
    assert [colour_of(1, point).transfer for point in points] == [2, 1, 2, 3, 9, 12, 18, 2, 2]


def test_every_flat_colour_comes_back_from_its_planes_within_two_levels() -> None:
    import av

    levels = (0, 1, 51, 102, 127, 128, 153, 204, 254, 255)
    worst = 0
    for colour in itertools.product(levels, repeat=3):
        picture = np.full((4, 4, 3), colour, np.uint8)
        frame = av.VideoFrame.from_ndarray(planes_of(picture), format="yuv420p")
        back = rgb_of(frame, MATRIX, 1)
        worst = max(worst, int(np.abs(back.astype(int) - picture).max()))
    assert 0 < worst <= 2
