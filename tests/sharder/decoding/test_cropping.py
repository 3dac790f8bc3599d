"""Parts that are cut out before conversion have the samples of a conversion of the whole picture."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest

from framedex.sharder.decoding import compiled_rgb, rgb
from framedex.sharder.decoding.cutout import Cropper
from tests.sharder.decoding.test_compiled_rgb import by_libswscale, noise

FORMATS = [
    "yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv440p", "yuv411p", "yuv410p", "nv12", "gray", "yuva420p",
    "yuv420p10le", "yuv422p10le", "yuv444p12le", "gray10le", "gray16le", "p010le",
]  # fmt: skip
WHOLE = ["rgb24", "gbrp", "pal8", "bgra", "yuyv422"]


def parts(width: int, height: int) -> list[tuple[slice, slice]]:
    """Return the corners, the middle and single pixels of a picture, and parts at odd places."""
    rng = np.random.default_rng(width)
    found = [(slice(0, 1), slice(0, 1)), (slice(height - 1, height), slice(width - 1, width))]
    for _ in range(12):
        top, left = int(rng.integers(0, height - 8)), int(rng.integers(0, width - 8))
        found.append((slice(top, top + int(rng.integers(1, 9))), slice(left, left + int(rng.integers(1, 9)))))
    return found


@pytest.mark.parametrize("pixel_format", FORMATS + WHOLE)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_parts_are_those_of_the_whole_picture(
    pixel_format: str, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr("framedex.sharder.decoding.rgb._compiled", lambda: None)
    cropper, fewer = Cropper(), 0
    for width, height in ((352, 288), (324, 172), (322, 174), (321, 173)):
        picture = noise(width, height, pixel_format)
        expected = by_libswscale(picture, 1, 1)[:, : 3 * width].reshape(height, width, 3)
        for rows, columns in parts(width, height):
            cut, (top, left) = cropper.part(picture, (rows, columns))
            fewer += cut.height * cut.width < height * width
            converted = rgb.RgbConverter(1, 1).rows(cut, cut.height, cut.width)[:, : 3 * cut.width]
            shown = converted.reshape(cut.height, cut.width, 3)[
                rows.start - top.start : rows.stop - top.start, columns.start - left.start : columns.stop - left.start
            ]
            assert np.array_equal(shown, expected[rows, columns]), (width, rows, columns)
    assert (fewer > 20) == (pixel_format not in WHOLE)


def interlaced(picture: av.VideoFrame) -> av.VideoFrame:
    """Return a picture that says that it consists of two fields."""
    graph = av.filter.Graph()
    graph.link_nodes(
        graph.add_buffer(width=picture.width, height=picture.height, format=picture.format, time_base=Fraction(1, 25)),
        graph.add("setfield", "tff"),
        graph.add("buffersink"),
    ).configure()
    graph.push(picture)
    found = graph.pull()
    assert isinstance(found, av.VideoFrame)
    assert found.interlaced_frame
    return found


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p", "yuv420p10le", "yuv410p"])
def test_parts_of_two_fields_are_those_of_the_whole_picture(pixel_format: str) -> None:
    cropper, fewer = Cropper(), 0
    for width, height in ((352, 288), (720, 486), (320, 260), (320, 256)):
        picture = interlaced(noise(width, height, pixel_format))
        expected = rgb.RgbConverter(1, 1).rows(picture, height, width)[:, : 3 * width].reshape(height, width, 3)
        expected = expected.copy()
        for rows, columns in parts(width, height):
            cut, (top, left) = cropper.part(picture, (rows, columns))
            fewer += cut.height < height
            converted = rgb.RgbConverter(1, 1).rows(cut, cut.height, cut.width)[:, : 3 * cut.width]
            shown = converted.reshape(cut.height, cut.width, 3)[
                rows.start - top.start : rows.stop - top.start, columns.start - left.start : columns.stop - left.start
            ]
            assert np.array_equal(shown, expected[rows, columns]), (width, rows, columns)
    assert fewer > 20


@pytest.mark.parametrize("fields", [1, 2])
@pytest.mark.parametrize("pixel_format", FORMATS + WHOLE)
def test_exact_parts_have_the_inner_samples_of_the_whole_picture(pixel_format: str, fields: int) -> None:
    cut = 0
    for width, height in ((352, 288), (322, 174), (321, 173)):
        picture = noise(width, height, pixel_format)
        picture = interlaced(picture) if fields == 2 else picture
        expected = rgb.RgbConverter(1, 1).picture(picture)
        for top, left, bottom, right in ((0, 0, 64, 48), (16, 8, 80, 40), (34, 50, 62, 98), (100, 200, height, width)):
            part = slice(top, bottom), slice(left, right)
            found = Cropper().exact(picture, part)
            if found is None:
                continue
            cut += 1
            shown = rgb.RgbConverter(1, 1).picture(found)
            assert shown.shape == (bottom - top, right - left, 3)
            assert np.array_equal(shown[8:-8, 8:-8], expected[part][8:-8, 8:-8]), (width, part)
    assert cut == 0 if pixel_format in WHOLE else cut >= 2


def test_a_large_part_is_the_picture_itself() -> None:
    picture = noise(320, 240)
    assert Cropper().part(picture, (slice(0, 220), slice(4, 310)))[0] is picture


def test_compiled_code_does_not_take_pictures_that_are_stored_upside_down() -> None:
    graph = av.filter.Graph()
    upright = noise(64, 32)
    graph.link_nodes(
        graph.add_buffer(width=64, height=32, format=upright.format, time_base=Fraction(1, 25)),
        graph.add("vflip"),
        graph.add("buffersink"),
    ).configure()
    graph.push(upright)
    turned = graph.pull()
    assert turned.planes[0].line_size < 0
    converter = rgb.RgbConverter(1, 1)
    expected = by_libswscale(upright, 1, 1), by_libswscale(turned, 1, 1)
    for _ in range(2):
        assert np.array_equal(converter.rows(upright, 32, 64), expected[0])
        assert np.array_equal(converter.rows(turned, 32, 64)[:, :192], expected[1][:, :192])
    assert compiled_rgb.takes(upright, 1)
    assert not compiled_rgb.takes(turned, 1)
