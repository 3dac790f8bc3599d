"""The VP9 scanner reads headers written field by field, superframes, damaged packets, and media encoded on the spot."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex.indexer.bitstream.vpx import FrameHeaders, split_superframe
from tests.exactness.test_av_corpus import check_random_access, read_packets
from tests.support import media
from tests.support.planned import BitstreamError, scan_packets

RGB = 7


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Fields of an uncompressed header. `found` is the number of the reference that gives the size; 3: none."""

    profile: int = 0
    existing: bool = False
    key: bool = False
    shown: bool = True
    resilient: bool = False
    intra_only: bool = False
    high_depth: bool = False
    space: int = 2
    subsampling: tuple[int, int] = (1, 0)
    size: tuple[int, int] = (176, 144)
    found: int = 0

    def write(self) -> bytes:
        """Return the frame, written as section 6.2 specifies."""
        text = f"10{self.profile & 1}{self.profile >> 1}" + "0" * (self.profile == 3)
        if self.existing:
            return _bytes(text + "1101")
        text += f"0{not self.key:b}{self.shown:b}{self.resilient:b}"
        size = "".join(f"{side - 1:016b}" for side in self.size)
        if self.key:
            return _bytes(text + f"{0x498342:024b}" + self._color_config() + size)
        text += "" if self.shown else f"{self.intra_only:b}"
        text += "" if self.resilient else "01"
        if self.is_intra_only:
            colour = self._color_config() if self.profile else ""
            return _bytes(text + f"{0x498342:024b}" + colour + "00010010" + size)
        text += "00100010" + "001001010010"
        return _bytes(text + "0" * self.found + ("1" if self.found < 3 else size))

    @property
    def is_intra_only(self) -> bool:
        return self.intra_only and not self.shown and not self.key

    def _color_config(self) -> str:
        text = f"{self.high_depth:b}" if self.profile >= 2 else ""
        text += f"{self.space:03b}"
        odd = self.profile % 2 == 1
        if self.space == RGB:
            return text + "0" * odd
        return text + "1" + (f"{self.subsampling[0]}{self.subsampling[1]}0" if odd else "")


def _bytes(text: str) -> bytes:
    text += "1" * 24
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


def superframe(*frames: bytes, size_bytes: int = 2) -> bytes:
    """Return frames followed by an index (Annex B)."""
    marker = bytes([0xC0 | size_bytes - 1 << 3 | len(frames) - 1])
    sizes = b"".join(len(frame).to_bytes(size_bytes, "little") for frame in frames)
    return b"".join(frames) + marker + sizes + marker


KEY, INTER, SHOW = Frame(key=True).write(), Frame().write(), Frame(existing=True).write()
HIDDEN = Frame(shown=False).write()


scan = partial(scan_packets, "vp9")


frames = st.builds(
    Frame,
    profile=st.integers(0, 3),
    existing=st.booleans(),
    key=st.booleans(),
    shown=st.booleans(),
    resilient=st.booleans(),
    intra_only=st.booleans(),
    high_depth=st.booleans(),
    space=st.sampled_from([1, 2, RGB]),
    subsampling=st.sampled_from([(1, 0), (0, 0), (0, 1)]),
    size=st.tuples(st.integers(1, 65536), st.integers(1, 65536)),
    found=st.integers(0, 3),
)


@given(st.lists(frames, min_size=1, max_size=10))
def test_headers_give_the_fields_that_were_written(written: list[Frame]) -> None:
    headers = FrameHeaders([frame.write()[:16] for frame in written])
    assert not headers.damaged.any()
    assert headers.key.tolist() == [frame.key and not frame.existing for frame in written]
    assert headers.shown.tolist() == [frame.existing or frame.shown for frame in written]
    sized = [f for f in written if not f.existing and (f.key or f.is_intra_only or f.found == 3)]
    assert headers.sizes.tolist() == [(f.size[0] - 1 << 16) + f.size[1] - 1 for f in sized]
    assert headers.has_format.tolist() == [
        not f.existing and (f.key or (f.is_intra_only and f.profile > 0)) for f in written
    ]


@pytest.mark.parametrize("size_bytes", [1, 2, 3, 4])
def test_superframes_are_split_by_their_index(size_bytes: int) -> None:
    data = superframe(HIDDEN, INTER, SHOW, size_bytes=size_bytes)
    assert [data[start:end] for start, end in split_superframe(data)] == [HIDDEN, INTER, SHOW]


def test_a_last_byte_like_a_marker_is_no_index_of_its_own() -> None:
    for tail in (b"\xc1", b"\xc0\1\0\xc1"):
        data = INTER + tail
        assert split_superframe(data) == [(0, len(data))]


def test_starts_are_packets_that_begin_with_a_key_frame() -> None:
    packets = [
        KEY,
        INTER,
        superframe(HIDDEN, INTER),
        SHOW,
        Frame(shown=False, intra_only=True).write(),
        superframe(Frame(key=True, shown=False).write(), SHOW),
        superframe(HIDDEN, KEY),
        HIDDEN,
    ]
    pictures = scan(*packets)
    assert np.flatnonzero(pictures.start).tolist() == [0, 5]
    assert np.flatnonzero(pictures.skipped).tolist() == [4, 7]
    assert not pictures.non_reference.any()
    assert not pictures.damaged.any()
    assert not pictures.varying_shape


def test_packets_with_several_shown_frames_are_refused() -> None:
    with pytest.raises(BitstreamError, match="packet 1 holds 2 frames that are output") as caught:
        scan(KEY, superframe(INTER, INTER))
    assert caught.value.kind == "packing"


@pytest.mark.parametrize(
    "other",
    [
        Frame(key=True, size=(178, 144)),
        Frame(found=3, size=(88, 72)),
        Frame(shown=False, intra_only=True, size=(88, 72)),
        Frame(key=True, profile=1),
        Frame(key=True, profile=2),
        Frame(key=True, space=1),
    ],
)
def test_sizes_and_formats_that_differ_are_seen(other: Frame) -> None:
    assert scan(KEY, INTER, other.write()).varying_shape
    assert not scan(KEY, INTER, Frame(found=3).write(), KEY).varying_shape


@pytest.mark.parametrize(
    ("frame", "chroma"),
    [
        (Frame(key=True), 1),
        (Frame(key=True, profile=2), 1),
        (Frame(key=True, profile=1), 2),
        (Frame(key=True, profile=3, subsampling=(0, 0)), 3),
        (Frame(key=True, profile=1, space=RGB), 3),
        (Frame(key=True, profile=1, subsampling=(0, 1)), None),
    ],
)
def test_the_chroma_format_is_that_of_the_key_frames(frame: Frame, chroma: int | None) -> None:
    assert scan(frame.write()).chroma_format == chroma


@pytest.mark.parametrize(
    "damage",
    [KEY[:6], b"\0", b"\x40" + KEY[1:], KEY[:2] + b"\0" + KEY[3:], b"\xc1\xff\xff\xc1", superframe(INTER, b"")],
)
def test_damaged_packets_are_marked_and_the_rest_is_read(damage: bytes) -> None:
    pictures = scan(KEY, damage, KEY, INTER)
    assert pictures.damaged.tolist() == [False, True, False, False]
    assert np.flatnonzero(pictures.start).tolist() == [0, 2]
    assert not pictures.skipped.any()


def test_empty_packets_are_refused_and_empty_streams_are_not() -> None:
    with pytest.raises(BitstreamError, match="empty"):
        scan(b"")
    assert len(scan().start) == 0


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
def test_the_scanner_raises_nothing_but_bitstream_errors(packets: list[bytes]) -> None:
    with contextlib.suppress(BitstreamError):
        scan(KEY, *packets, *(packet + b"\xc0\1\xc0" for packet in packets))


VPX = {"deadline": "realtime", "cpu-used": "8", "g": "12"}
ALTREF = {"deadline": "good", "cpu-used": "5", "g": "25", "auto-alt-ref": "1", "lag-in-frames": "16"}
RECIPES = {
    recipe.name: recipe
    for recipe in (
        media.Recipe(name="vp9_real_time.mkv", codec="libvpx-vp9", options=VPX),
        media.Recipe(name="vp9_altref.mp4", codec="libvpx-vp9", options=ALTREF),
        media.Recipe(name="vp9_444.webm", codec="libvpx-vp9", options=VPX, pix_fmt="yuv444p", frames=26),
        media.Recipe(name="vp9_frame_parallel.webm", codec="libvpx-vp9", options={**ALTREF, "frame-parallel": "1"}),
    )
}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_random_access_equals_the_full_decode(
    name: str, split: bool, media_folder: Path, rng: np.random.Generator
) -> None:
    """With `split`, each hidden frame is in its own packet."""
    packets = read_packets(media.make(RECIPES[name], media_folder))
    if split:
        parts = [data[start:end] for data in packets.data for start, end in split_superframe(data)]
        packets = replace(packets, data=parts)
    truth = packets.full_decode()
    assert len(truth) == RECIPES[name].frames
    assert np.count_nonzero(packets.scan().start) >= 2
    assert check_random_access(packets, truth, rng, most=12) == 12


def test_frames_before_the_first_key_frame_are_damaged_and_give_no_picture_before_an_intra_frame() -> None:
    intra = Frame(intra_only=True, shown=False).write()
    pictures = scan(INTER, superframe(intra, INTER), INTER, KEY, INTER)
    assert pictures.skipped.tolist() == [True, False, False, False, False]
    assert pictures.damaged.tolist() == [True, True, True, False, False]
