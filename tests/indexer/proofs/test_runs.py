"""A proof finds each lie about a real stream, and nothing in a clean one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from framedex.indexer.containers import opened_file, picture_print
from framedex.indexer.facts import MediumFacts
from framedex.indexer.proofs.full_decode import decode_all
from framedex.indexer.proofs.runs import (
    Stream,
    demuxed_packets,
    differing,
    differing_samples,
    prints_of_runs,
    shapes_of,
    stream_of,
)
from framedex.indexer.reach import drops_leading
from framedex.indexer.timeline import CLOSED, NON_REFERENCE, START, USED_SHIFT
from tests.support.probed import facts_of

CLEAN = (
    "h264_default.mp4",
    "h264_open_gop.mkv",
    "h264_intra_refresh.mp4",
    "h264_mbaff.mp4",
    "h264_all_intra.mp4",
    "hevc_open_gop.mp4",
    "hevc_temporal_layers.mp4",
    "hevc_radl.mp4",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    path: Path
    medium: MediumFacts
    flags: NDArray[np.int32]
    stream: Stream


@pytest.fixture
def indexed(medium: Callable[[str], Path]) -> Callable[[str], Indexed]:
    def probe(name: str) -> Indexed:
        path = medium(name)
        (found,) = facts_of(path, depth="packets")
        packets, coding, described = found.packets, found.coding, found.stream
        assert packets is not None
        assert coding is not None
        assert described is not None
        flags = packets.flags if packets.slots is None else packets.flags | packets.slots << USED_SHIFT
        flags = flags.astype(np.int32)
        starts = int(np.count_nonzero(flags & START))
        state = np.zeros(starts, np.int32) if packets.start_state is None else packets.start_state
        stream = stream_of(
            described, coding.states, state, packets.pts, flags, where=str(path), ordered=not coding.hidden_unordered
        )
        return Indexed(path=path, medium=found, flags=flags, stream=stream)

    return probe


def proved(indexed: Indexed, flags: NDArray[np.int32], stream: Stream | None = None) -> list[int]:
    """Return the packets that differ if the index said these flags."""
    shapes = shapes_of(flags, drop_leading=drops_leading(indexed.stream.coded.codec))
    with opened_file(str(indexed.path)) as file:
        decoded = decode_all(file, indexed.medium.stream_index, len(flags))
        prints = prints_of_runs(stream or indexed.stream, shapes, demuxed_packets(file, 0))
    return np.flatnonzero(differing(shapes, prints, decoded.prints)).tolist()


@pytest.mark.parametrize("name", CLEAN)
def test_in_a_clean_stream_nothing_differs(name: str, indexed: Callable[[str], Indexed]) -> None:
    found = indexed(name)
    assert proved(found, found.flags) == []


def test_a_picture_that_others_need_and_the_index_drops_makes_those_differ(
    indexed: Callable[[str], Indexed],
) -> None:
    found = indexed("h264_default.mp4")
    flags = found.flags.copy()
    needed = int(np.flatnonzero((flags & (START | NON_REFERENCE)) == 0)[1])
    flags[needed] |= NON_REFERENCE
    wrong = proved(found, flags)
    following = int(np.flatnonzero((flags & START) != 0)[1])
    assert wrong
    assert all(needed < packet < following for packet in wrong)


def test_a_picture_that_is_no_start_point_makes_what_follows_differ(indexed: Callable[[str], Indexed]) -> None:
    found = indexed("h264_one_gop.mp4")
    flags = found.flags.copy()
    flags[40] |= CLOSED
    flags[40] &= ~NON_REFERENCE
    wrong = proved(found, flags)
    assert 40 in wrong
    assert min(wrong) >= 40


def test_a_state_that_a_decoder_is_not_given_makes_its_frames_differ(indexed: Callable[[str], Indexed]) -> None:
    found = indexed("h264_default.mp4")
    blind = replace(found.stream, coded=replace(found.medium.stream, extradata=None))  # type: ignore[type-var]
    starts = np.flatnonzero(found.flags & START).tolist()
    assert set(starts[1:]) <= set(proved(found, found.flags, blind))


def test_pictures_in_another_order_than_planned_differ(indexed: Callable[[str], Indexed]) -> None:
    found = indexed("h264_default.mp4")
    turned = replace(found.stream, place=found.stream.place[::-1].copy())
    assert proved(found, found.flags, turned)
    assert proved(found, found.flags, replace(turned, ordered=False)) == []


@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_sampled_frame_behind_a_false_start_point_differs(number: int, indexed: Callable[[str], Indexed]) -> None:
    found = indexed("h264_one_gop.mp4")
    flags = found.flags.copy()
    flags[40] |= CLOSED
    packets = [*np.flatnonzero((flags[40:] & NON_REFERENCE) == 0) + 40]
    target = np.array([int(packets[number])])
    with opened_file(str(found.path)) as file:
        assert not differing_samples(found.stream, found.flags, target, lambda _: demuxed_packets(file, 0)).any()
        wrong = differing_samples(found.stream, flags, target, lambda _: demuxed_packets(file, 0))
    assert np.flatnonzero(wrong).tolist() == target.tolist()


def test_a_sampled_frame_whose_packet_does_not_come_differs(indexed: Callable[[str], Indexed]) -> None:
    found = indexed("h264_default.mp4")
    target = np.array([25])
    with opened_file(str(found.path)) as file:
        packets = [one for one in demuxed_packets(file, 0) if one[0] != 25]
    assert np.flatnonzero(differing_samples(found.stream, found.flags, target, lambda _: packets)).tolist() == [25]


def test_pictures_have_the_same_hash_only_with_the_same_format_size_and_pixels() -> None:
    def picture(width: int, level: int, form: str = "gray") -> av.VideoFrame:
        return av.VideoFrame.from_ndarray(np.full((16, width), level, np.uint8), format=form)

    assert picture_print(picture(16, 7)) == picture_print(picture(16, 7))
    assert picture_print(picture(16, 7)) != picture_print(picture(16, 8))
    assert picture_print(picture(16, 7)) != picture_print(picture(32, 7))
    wide = av.VideoFrame.from_ndarray(np.full((16, 16), 7, np.uint16), format="gray16le")
    assert picture_print(picture(16, 7)) != picture_print(wide)


@pytest.mark.parametrize("name", [*CLEAN, "h264_vfr.mkv", "h264_fragmented.mp4", "hevc_main10.mov"])
@pytest.mark.parametrize("depth", ["auto", "packets"])
def test_a_clean_medium_is_proved_at_every_depth(name: str, depth: str, medium: Callable[[str], Path]) -> None:
    (asked,) = facts_of(medium(name), depth=depth, prove=4)
    (plain,) = facts_of(medium(name), depth=depth)
    assert asked.proof is not None
    assert (asked.proof.proof, asked.proof.first_difference) == ("sampled", None)
    assert asked.timeline == plain.timeline  # the same depth
    (whole,) = facts_of(medium(name), verify=True)
    assert whole.proof is not None
    assert (whole.proof.proof, whole.proof.first_difference, whole.proof.not_reproducible_gop_count) == (
        "every_frame",
        None,
        0,
    )
