"""RGB by compiled code is that of libswscale, sample by sample; what it does not do is left to libswscale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from framedex.sharder.decoding import compiled_rgb, rgb

SIZES = ((64, 32), (16, 16), (98, 50), (130, 18), (340, 256), (1920, 1088))  # width, height
LIMITED, FULL = 1, 2
ROOT = Path(__file__).resolve().parents[3]


def noise(width: int, height: int, pixel_format: str = "yuv420p", seed: int = 0) -> av.VideoFrame:
    """Return a picture of random samples."""
    picture = av.VideoFrame(width, height, pixel_format)
    random = np.random.default_rng(seed)
    for plane in picture.planes:
        plane.update(random.integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
    return picture


def by_libswscale(picture: av.VideoFrame, matrix: int, color_range: int) -> NDArray[np.uint8]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rgb, "_compiled", lambda: None)
        return rgb.RgbConverter(matrix, color_range).rows(picture, picture.height, picture.width)


@pytest.mark.parametrize("matrix", sorted(compiled_rgb.CHROMA))
@pytest.mark.parametrize(
    ("pixel_format", "color_range"),
    [("yuv420p", 0), ("yuv420p", LIMITED), ("yuv420p", FULL), ("yuvj420p", FULL), ("yuvj420p", LIMITED)],
)
def test_samples_are_those_of_libswscale(matrix: int, pixel_format: str, color_range: int) -> None:
    for seed, (width, height) in enumerate(SIZES):
        picture = noise(width, height, pixel_format, seed)
        assert compiled_rgb.takes(picture, matrix)
        found = compiled_rgb.rows(picture, matrix, color_range)
        assert (found == by_libswscale(picture, matrix, color_range)).all(), (width, height)


def test_extreme_samples_are_clipped_as_libswscale_clips_them() -> None:
    picture = av.VideoFrame(32, 32, "yuv420p")
    for number, plane in enumerate(picture.planes):
        columns = np.arange(plane.line_size) // (2, 4, 8)[number] % 2
        plane.update(np.tile((columns * 255).astype(np.uint8), plane.height).tobytes())
    for color_range in (LIMITED, FULL):
        found = compiled_rgb.rows(picture, 9, color_range)
        assert {0, 255} <= set(found.ravel().tolist())
        assert (found == by_libswscale(picture, 9, color_range)).all()


def test_the_first_picture_of_a_kind_is_compared_and_later_ones_are_converted_by_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = []
    plain = compiled_rgb.rows
    monkeypatch.setattr(compiled_rgb, "rows", lambda *given: compiled.append(given[0].width) or plain(*given))
    converter, pictures = rgb.RgbConverter(1, LIMITED), [noise(64, 32, seed=seed) for seed in range(3)]
    expected = [by_libswscale(picture, 1, LIMITED) for picture in pictures]
    slow: list[int] = []
    scaled = converter._scaled
    monkeypatch.setattr(converter, "_scaled", lambda *given: slow.append(1) or scaled(*given))
    found = [converter.rows(picture, 32, 64).copy() for picture in pictures]
    assert all(map(np.array_equal, found, expected))
    assert (len(compiled), len(slow)) == (3, 1)


@pytest.mark.parametrize(("width", "height"), [(130, 4), (4, 2)])  # libswscale interpolates so few rows in another way
def test_where_samples_differ_libswscale_converts(width: int, height: int) -> None:
    converter, picture = rgb.RgbConverter(1, LIMITED), noise(width, height)
    expected = by_libswscale(picture, 1, LIMITED)
    assert not np.array_equal(compiled_rgb.rows(picture, 1, LIMITED), expected)
    for _ in range(3):
        assert np.array_equal(converter.rows(picture, height, width), expected)


@pytest.mark.parametrize(
    ("width", "height", "pixel_format"), [(63, 32, "yuv420p"), (64, 31, "yuv420p"), (64, 32, "yuv422p")]
)
def test_other_pictures_are_not_taken(width: int, height: int, pixel_format: str) -> None:
    assert not compiled_rgb.takes(noise(width, height, pixel_format), 1)


def test_an_unknown_matrix_is_not_taken() -> None:
    assert not compiled_rgb.takes(noise(64, 32), 8)


WITHOUT = """
import logging
import sys
import av
import numpy as np
logging.basicConfig(level=logging.WARNING)
from framedex.sharder.decoding import rgb
rgb.COMPILED_FROM = 0
picture = av.VideoFrame.from_ndarray(np.full((48, 32), 90, np.uint8), format="yuv420p")
print(rgb.RgbConverter(1, 1).rows(picture, 32, 32).shape, "numba" in sys.modules)
"""


@pytest.mark.parametrize(
    ("numba", "warning"),
    [
        ("raise ModuleNotFoundError(name='numba')", ""),
        ("raise ImportError('Numba needs NumPy 1.0 or less')", "Numba needs NumPy 1.0 or less"),
    ],
)
def test_without_numba_libswscale_converts(numba: str, warning: str, tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text(numba)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, text=True
    )
    assert done.stdout == "(32, 96) False\n", done.stderr
    assert warning in done.stderr
    assert bool(done.stderr) == bool(warning)


def test_where_numba_has_no_folder_for_compiled_code_libswscale_converts(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text(
        "int32 = int\ndef njit(**options):\n    raise RuntimeError('cannot cache function')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, text=True
    )
    assert done.stdout == "(32, 96) True\n", done.stderr
    assert "converted more slowly" in done.stderr
    assert "cannot cache function" in done.stderr


def test_scaled_pictures_do_not_import_numba() -> None:
    script = WITHOUT.replace("rows(picture, 32, 32)", "rows(picture, 16, 16)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "(16, 48) False\n", done.stderr


def test_numba_is_imported_when_it_has_as_much_to_save_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(rgb, "_compiled", lambda: asked.append(rgb._pixels))
    monkeypatch.setattr(rgb, "_pixels", 0)
    monkeypatch.setattr(rgb, "COMPILED_FROM", 5 * 64 * 32)
    converter = rgb.RgbConverter(1, LIMITED)
    for seed in range(8):
        converter.rows(noise(64, 32, seed=seed), 32, 64)
        converter.rows(noise(64, 32, seed=seed), 16, 32)  # of another size, which compiled code does not convert
    assert asked == [5 * 64 * 32, 6 * 64 * 32, 7 * 64 * 32]
