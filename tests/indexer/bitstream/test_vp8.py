"""The VP8 scanner on hand-written frame tags, on damaged packets, and on media encoded by the tests."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.vpx import parse_key_frame
from tests.exactness.test_av_corpus import check_random_access, read_packets
from tests.support import media
from tests.support.planned import BitstreamError, scan_packets


def frame(
    *, key: bool = False, shown: bool = True, size: tuple[int, int] = (176, 144), body: bytes = bytes(20)
) -> bytes:
    """Return a frame (RFC 6386 9.1) whose first partition is `body`."""
    tag = (not key) | 3 << 1 | shown << 4 | len(body) << 5
    sides = b"".join((side | 1 << 14).to_bytes(2, "little") for side in size)  # scaling bits, which decoders ignore
    return tag.to_bytes(3, "little") + (b"\x9d\x01\x2a" + sides if key else b"") + body


KEY, INTER, HIDDEN = frame(key=True), frame(), frame(shown=False)


scan = partial(scan_packets, "vp8")


def test_starts_are_key_frames_and_hidden_frames_are_skipped() -> None:
    pictures = scan(KEY, INTER, HIDDEN, INTER, frame(key=True, shown=False), INTER)
    assert np.flatnonzero(pictures.start).tolist() == [0, 4]
    assert np.flatnonzero(pictures.skipped).tolist() == [2, 4]
    assert not pictures.non_reference.any()
    assert not pictures.damaged.any()
    assert not pictures.varying_shape
    assert pictures.chroma_format == 1


@pytest.mark.parametrize("other", [frame(key=True, size=(176, 146)), frame(key=True, body=b"\x40" + bytes(9))])
def test_sizes_and_ranges_that_differ_are_seen(other: bytes) -> None:
    assert scan(KEY, INTER, other).varying_shape
    assert not scan(KEY, INTER, frame(key=True, body=b"\x3f" + bytes(9))).varying_shape


@pytest.mark.parametrize(
    ("body", "booleans"),
    [(b"\0\0", (0, 0)), (b"\x40\0", (0, 1)), (b"\x80\0", (1, 0)), (b"\xbf\x7f", (1, 0)), (b"\xbf\x80", (1, 1))],
)
def test_the_first_booleans_of_the_first_partition(body: bytes, booleans: tuple[int, int]) -> None:
    assert parse_key_frame(frame(key=True, body=body)) == (176, 144, *booleans)


@pytest.mark.parametrize(
    "damage",
    [b"\x11", INTER[:10], KEY[:20], KEY[:3] + b"\0" + KEY[4:], frame(key=True, size=(0, 8)), frame(key=True, body=b"")],
)
def test_damaged_packets_are_marked_and_the_rest_is_read(damage: bytes) -> None:
    pictures = scan(KEY, damage, KEY, INTER)
    assert pictures.damaged.tolist() == [False, True, False, False]
    assert np.flatnonzero(pictures.start).tolist() == [0, 2]
    assert not pictures.skipped.any()
    assert not pictures.varying_shape


def test_frames_before_the_first_key_frame_give_no_picture() -> None:
    pictures = scan(INTER, KEY[:20], INTER, KEY, INTER)
    assert pictures.skipped.tolist() == [True, True, True, False, False]
    assert pictures.damaged.tolist() == [True, True, True, False, False]


def test_empty_packets_are_refused_and_empty_streams_are_not() -> None:
    with pytest.raises(BitstreamError, match="packet 1 is empty") as caught:
        scan(KEY, b"")
    assert caught.value.kind == "zero_size"
    assert len(scan().start) == 0


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6))
def test_the_scanner_raises_nothing_but_bitstream_errors(packets: list[bytes]) -> None:
    with contextlib.suppress(BitstreamError):
        scan(KEY, *packets)


REAL_TIME = {"deadline": "realtime", "cpu-used": "8", "g": "12"}
RECIPES = {
    recipe.name: recipe
    for recipe in (
        media.Recipe(name="vp8_real_time.mkv", codec="libvpx", options=REAL_TIME),
        media.Recipe(name="vp8_resilient.webm", codec="libvpx", options={**REAL_TIME, "error-resilient": "partitions"}),
        media.Recipe(
            name="vp8_altref.webm",
            codec="libvpx",
            options={"deadline": "good", "cpu-used": "5", "g": "25", "auto-alt-ref": "1", "lag-in-frames": "16"},
        ),
    )
}


@pytest.mark.parametrize("name", RECIPES)
def test_random_access_equals_the_full_decode(name: str, media_folder: Path, rng: np.random.Generator) -> None:
    packets = read_packets(media.make(RECIPES[name], media_folder))
    truth = packets.full_decode()
    assert len(truth) == RECIPES[name].frames
    assert np.count_nonzero(packets.scan().start) >= 2
    assert check_random_access(packets, truth, rng, most=12) == 12
