"""Clips of one stream joined into one movie: each clip's frames are in the stated places; others are not joined."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex import ClipDataset, Index
from framedex.loader.routing.movie import (
    CodedPicture,
    GpuMovie,
    MovieStream,
    begins_with_idr,
    gpu_movie,
    groups,
    movie_feed,
)
from tests.support.counted import some
from tests.support.datasets import shard_clips
from tests.support.reading import encoded_clip, encoded_of
from tests.support.shown_planes import planes_md5

NAMES = ("h264_default.mp4", "h264_cropped.mp4", "hevc_closed.mp4", "hevc_main10.mov")
WANTED = ([25, 3], [20], [7, 8, 9, 28], [0], [29, 2, 29])


@pytest.mark.parametrize("name", NAMES)
def test_frames_of_joined_clips_are_those_of_a_full_decode(
    name: str, index: Index, medium: Callable[[str], Path], tmp_path: Path
) -> None:
    with av.open(str(medium(name))) as container:
        frames = [plain(frame) for frame in container.decode(video=0)]
    truth = [planes_md5(frame, None) for frame in frames]
    clips = [{"uri": name, "clip_id": f"{name}-{n}", "frames": wanted} for n, wanted in enumerate(WANTED)]
    dataset = ClipDataset(shard_clips(index.path, tmp_path / "D", clips))
    movies, wanted, expected = [], [], []
    for clip in some(map(dataset.clip, range(len(dataset))), len(WANTED)):
        movie = gpu_movie(clip, encoded_clip(dataset, clip))
        assert movie is not None
        unique, place = np.unique(clip.recipe.position[clip.recipe.position >= 0], return_index=True)
        movies.append(movie)
        wanted.append(unique.astype(np.int32))
        expected.append([truth[number] for number in clip.frames[place].tolist()])
    together = groups(movies, [None] * len(movies))
    assert sorted(number for group in together for number in group) == list(range(len(WANTED)))
    assert max(map(len, together)) > 1
    for group in together:
        feed = movie_feed([movies[number] for number in group], [wanted[number] for number in group])
        assert (np.diff(feed["wanted"]) > 0).all()
        with av.open(io.BytesIO(feed["movie"].tobytes())) as container:
            decoded = [plain(frame) for frame in container.decode(video=0)]
        assert len(decoded) == sum(len(movies[number].packet_size) for number in group)
        shown = movies[group[0]].stream.picture
        found = [planes_md5(decoded[number], shown) for number in feed["wanted"].tolist()]
        assert found == [md5 for number in group for md5 in expected[number]]
        assert feed["start"].tolist() == [shown.top, shown.left]
        assert feed["shape"].tolist() == [frames[0].height, frames[0].width]


def plain(frame: av.VideoFrame) -> av.VideoFrame:
    """Return a picture with its format renamed so that it does not state a range."""
    return frame.reformat(format=frame.format.name.replace("j", ""))


PICTURE = CodedPicture(width=64, height=64, left=0, top=0, shown_width=64, shown_height=64)
STREAMS = [
    MovieStream(codec="h264", configuration=name, picture=PICTURE, correction=bytes(48)) for name in (b"a", b"b")
]


@st.composite
def movies(draw: st.DrawFn) -> list[tuple[GpuMovie, int]]:
    """Draw movies of two streams, with one more property that the movies of a group must have in common."""
    made = []
    for _ in range(draw(st.integers(0, 20))):
        count = draw(st.integers(1, 6))
        movie = GpuMovie(
            stream=draw(st.sampled_from(STREAMS)),
            payload=np.zeros(0, np.uint8),
            packet_size=np.ones(count, np.int64),
            packet_rank=np.arange(count),
            run_first=np.zeros(1, np.int64),
            can_follow=draw(st.booleans()),
        )
        made.append((movie, draw(st.integers(0, 1))))
    return made


@given(movies(), st.integers(1, 20))
def test_groups_are_of_one_kind_and_no_longer_than_allowed(given_movies: list[tuple[GpuMovie, int]], most: int) -> None:
    listed = [movie for movie, _ in given_movies]
    kinds = [kind for _, kind in given_movies]
    found = groups(listed, kinds, most_packets=most)
    assert sorted(number for group in found for number in group) == list(range(len(listed)))
    for group in found:
        assert group == sorted(group)
        assert len({(listed[number].stream, kinds[number]) for number in group}) == 1
        assert all(listed[number].can_follow for number in group[1:])
        assert len(group) == 1 or sum(len(listed[number].packet_size) for number in group) <= most


@pytest.mark.parametrize(
    ("head", "follows"),
    [
        (bytes([19 << 1, 1, 0x80]), True),  # IDR_W_RADL, the first slice of its picture
        (bytes([20 << 1, 1, 0x80]), True),  # IDR_N_LP
        (bytes([20 << 1, 1, 0xC0]), False),  # with no_output_of_prior_pics_flag
        (bytes([21 << 1, 1, 0x80]), False),  # CRA
        (bytes([1 << 1, 1, 0x80]), False),  # a trailing picture
        (bytes([35 << 1, 1, 0x50]), False),  # only an access unit delimiter
    ],
)
def test_of_hevc_plain_idr_pictures_may_follow(head: bytes, follows: bool) -> None:
    delimiter = bytes([35 << 1, 1, 0x50])
    packet = b"".join(len(unit).to_bytes(4, "big") + unit for unit in (delimiter, head + bytes(8)))
    encoded = encoded_of([packet])
    record = bytes(21) + bytes([0b11, 0])  # lengths of four bytes, no parameter sets
    assert begins_with_idr(b"\1" + record[1:], encoded) == follows


def test_clips_with_an_open_start_follow_no_other() -> None:
    movie = GpuMovie(
        stream=STREAMS[0],
        payload=np.zeros(0, np.uint8),
        packet_size=np.ones(2, np.int64),
        packet_rank=np.arange(2),
        run_first=np.zeros(1, np.int64),
        can_follow=True,
    )
    opened = replace(movie, can_follow=False)
    assert groups([movie, opened, movie, movie], [None] * 4) == [[0], [1, 2, 3]]
