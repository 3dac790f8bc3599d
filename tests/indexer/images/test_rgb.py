"""Images as RGB: every file mode returns the written pixels; images without a conversion rule are refused."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from framedex.indexer.probing.image_facts import resize_rgb, rgb_md5, rgb_of
from tests.support.images import chunk


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def pixels(rng: np.random.Generator) -> NDArray[np.uint8]:
    return rng.integers(0, 256, (17, 23, 3), np.uint8)


def test_lossless_pixels_are_those_written(pixels: NDArray[np.uint8]) -> None:
    image = Image.fromarray(pixels)
    assert (rgb_of(encoded(image, "PNG")) == pixels).all()
    assert (rgb_of(encoded(image, "WEBP", lossless=True)) == pixels).all()


def test_jpeg_is_what_pillow_and_ffmpeg_make_of_it() -> None:
    import av

    rows, columns = np.mgrid[0:64, 0:96]
    smooth = np.stack([rows * 2 + 40, columns + 60, 200 - rows], axis=-1).astype(np.uint8)
    data = encoded(Image.fromarray(smooth), "JPEG", quality=95)
    found = rgb_of(data)
    assert (found == np.asarray(Image.open(io.BytesIO(data)))).all()
    with av.open(io.BytesIO(data)) as container:
        other = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert np.abs(found.astype(int) - other.astype(int)).mean() < 1.5


def test_grey_palette_and_alpha_become_rgb(pixels: NDArray[np.uint8]) -> None:
    grey = pixels[:, :, 0]
    assert (rgb_of(encoded(Image.fromarray(grey), "PNG")) == grey[:, :, None]).all()
    with_alpha = np.dstack([pixels, grey])
    assert (rgb_of(encoded(Image.fromarray(with_alpha), "PNG")) == pixels).all()
    few = Image.fromarray(pixels // 128 * 128).quantize(8)
    assert (rgb_of(encoded(few, "PNG")) == pixels // 128 * 128).all()


def test_sixteen_bits_keep_the_high_eight(rng: np.random.Generator) -> None:
    deep = rng.integers(0, 1 << 16, (9, 11), np.uint16)
    assert (rgb_of(encoded(Image.fromarray(deep), "PNG")) == (deep >> 8)[:, :, None]).all()


def test_sixteen_bit_rgb_keeps_the_high_eight(rng: np.random.Generator) -> None:
    deep = rng.integers(0, 1 << 16, (5, 7, 3), np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)

    header = struct.pack(">IIBBBBB", 7, 5, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert (rgb_of(data) == deep >> 8).all()


def test_what_has_no_rule_is_refused(pixels: NDArray[np.uint8]) -> None:
    with pytest.raises(ValueError, match="CMYK"):
        rgb_of(encoded(Image.fromarray(pixels).convert("CMYK"), "JPEG"))
    other = Image.fromarray(255 - pixels)
    for kind in ("WEBP", "PNG"):
        animated = encoded(Image.fromarray(pixels), kind, save_all=True, append_images=[other], duration=100)
        with pytest.raises(ValueError, match="animation"):
            rgb_of(animated)


def test_broken_data_is_an_os_error(pixels: NDArray[np.uint8], rng: np.random.Generator) -> None:
    for kind in ("PNG", "JPEG", "WEBP"):
        whole = encoded(Image.fromarray(pixels), kind)
        for end in [0, 4, *rng.integers(5, len(whole) * 3 // 4, 20).tolist()]:
            with pytest.raises((OSError, ValueError)):
                rgb_of(whole[:end])


def test_a_photograph_with_previews_behind_it_is_its_first_picture(pixels: NDArray[np.uint8]) -> None:
    first, second = Image.fromarray(pixels), Image.fromarray(255 - pixels)
    together = encoded(first, "MPO", save_all=True, append_images=[second], quality=90)
    assert (rgb_of(together) == rgb_of(encoded(first, "JPEG", quality=90))).all()


def test_transparent_colours_are_colours(pixels: NDArray[np.uint8]) -> None:
    few = Image.fromarray(pixels).quantize(8)
    for transparency in (3, bytes(range(8))):
        assert (rgb_of(encoded(few, "PNG", transparency=transparency)) == np.asarray(few.convert("RGB"))).all()
    assert (rgb_of(encoded(Image.fromarray(pixels), "PNG", transparency=(1, 2, 3))) == pixels).all()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_whatever_pillow_raises_for_changed_bytes_is_an_os_error(
    pixels: NDArray[np.uint8], rng: np.random.Generator, kind: str
) -> None:
    whole = np.frombuffer(encoded(Image.fromarray(pixels).quantize(8).convert("RGB"), kind), np.uint8)
    for _ in range(500):
        changed = whole.copy()
        changed[rng.integers(0, len(whole), 3)] = rng.integers(0, 256, 3)
        with contextlib.suppress(OSError, ValueError):
            assert rgb_of(changed.tobytes()).dtype == np.uint8


def test_a_palette_that_is_missing_is_an_os_error() -> None:
    header = struct.pack(">IIBBBBB", 1, 1, 8, 3, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    with pytest.raises(OSError, match="not a whole image"):
        rgb_of(data)


def test_a_reduction_does_not_alias() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    small = resize_rgb(stripes, 16, 16)
    assert np.abs(small.astype(int) - 127).max() <= 16
    assert resize_rgb(stripes, 64, 64) is stripes


def test_hashes_tell_size_and_pixels(pixels: NDArray[np.uint8]) -> None:
    assert rgb_md5(pixels) == rgb_md5(pixels.copy())
    assert rgb_md5(pixels) != rgb_md5(pixels[:, ::-1])
    assert rgb_md5(pixels[:4, :6]) != rgb_md5(np.ascontiguousarray(pixels[:4, :6]).reshape(6, 4, 3))
