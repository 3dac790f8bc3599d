"""The hash of a decoded picture is that of its native planes, as an independent reference reads them."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from framedex.indexer import containers
from tests.support.counted import some
from tests.support.media import full_decode
from tests.support.planes import native_planes, picture_md5

FORMATS = ["gray", "gray12le", "monow", "pal8", "rgb24", "rgba", "yuyv422", "nv12", "p010le", "yuv411p", "yuv422p10le"]


def test_pictures_of_all_recipes_have_the_hash_of_the_reference(all_media: Path) -> None:
    for path in some(all_media.iterdir(), 30):
        picture = next(full_decode(path))
        assert containers.picture_md5(picture) == picture_md5(picture), path.name


@pytest.mark.parametrize("name", [*FORMATS, "gbrp10le", "yuva420p"])
@pytest.mark.parametrize("size", [(64, 48), (35, 17), (1, 1)])
def test_noise_of_any_layout_has_the_hash_of_the_reference(
    name: str, size: tuple[int, int], rng: np.random.Generator
) -> None:
    picture = av.VideoFrame(*size, name)
    for plane in some(picture.planes):
        plane.update(rng.integers(0, 256, plane.buffer_size, np.uint8).tobytes())
    assert containers.picture_md5(picture) == picture_md5(picture)
    for ours, theirs in zip(some(native_planes(picture)), containers.native_planes(picture), strict=True):
        assert np.array_equal(ours, theirs)
