"""Packets scanned in bulk give the same pictures and the same errors as packets fed one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from framedex.indexer.bitstream import h264, hevc, nal
from framedex.indexer.bitstream.base import HEADER_BYTES, BitstreamError
from framedex.indexer.probing.by_packets import PIECE_BYTES, pieces
from tests.support.depth import EXAMPLES
from tests.support.media import RECIPES
from tests.support.planned import demux

NalScannerType = type[h264.H264Scanner] | type[hevc.HevcScanner]
SCANNERS: dict[str, NalScannerType] = {"h264": h264.H264Scanner, "hevc": hevc.HevcScanner}


def together(packets: list[bytes], gap: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one array with all packets, each after `gap` zero bytes, and their offsets and sizes."""
    size = np.array([len(packet) for packet in packets], np.int64)
    offset = np.cumsum(size + gap) - size
    data = b"".join(b"\0" * gap + packet for packet in packets)
    return np.frombuffer(data, np.uint8), offset, size


def outcome(scan: Callable[[], Any]) -> dict[str, Any]:
    """Return the fields of a scanner's result, with arrays as lists, or its error."""
    try:
        pictures = scan()
    except BitstreamError as error:
        return {"error": (error.kind, str(error), error.damaged)}
    fields = {field.name: getattr(pictures, field.name) for field in dataclasses.fields(pictures)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}


def one_by_one(make: NalScannerType, configuration: bytes, packets: list[bytes]) -> dict[str, Any]:
    def scan() -> Any:
        scanner = make(configuration)
        for packet in packets:
            scanner.feed(packet)
        return scanner.finish()

    return outcome(scan)


def in_step(make: NalScannerType, configuration: bytes, packets: list[bytes], pieces: int, gap: int) -> dict[str, Any]:
    def scan() -> Any:
        scanner = make(configuration)
        for part in np.array_split(np.arange(len(packets)), pieces):
            if len(part):
                scanner.feed_many(*together(packets[part[0] : part[-1] + 1], gap))
        return scanner.finish()

    return outcome(scan)


def read_packets(path: Path) -> tuple[str, bytes, list[bytes]]:
    stream = demux(path)
    return stream.codec, stream.extradata, list(stream.packets)


def assert_same(make: NalScannerType, configuration: bytes, packets: list[bytes]) -> None:
    truth = one_by_one(make, configuration, packets)
    for count, gap in ((1, 0), (3, 5)):
        assert in_step(make, configuration, packets, count, gap) == truth


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe(name: str, medium: Callable[[str], Path]) -> None:
    codec, configuration, packets = read_packets(medium(name))
    assert_same(SCANNERS[codec], configuration, packets)
    assert "error" not in one_by_one(SCANNERS[codec], configuration, packets)


@pytest.mark.slow
def test_every_medium_of_the_corpus(corpus: Path) -> None:
    compared = 0
    for path in sorted(corpus.iterdir()):
        try:
            codec, configuration, packets = read_packets(path)
        except (av.error.FFmpegError, IndexError, UnicodeDecodeError, ValueError):
            continue
        if codec in SCANNERS:
            assert_same(SCANNERS[codec], configuration, packets)
            compared += 1
    assert compared >= 60


def prefixed(nals: list[bytes], length_size: int) -> bytes:
    return b"".join(len(nal).to_bytes(length_size, "big") + nal for nal in nals)


@pytest.mark.parametrize("name", ["h264_default.mp4", "h264_slices.mov", "hevc_open_gop.mp4"])
@settings(max_examples=3 * EXAMPLES // 2)
@given(data=st.data())
def test_changed_packets(name: str, medium: Callable[[str], Path], data: st.DataObject) -> None:
    """Insert, cut and duplicate units, add start codes and emulation prevention, and break the tiling of lengths."""
    codec, configuration, packets = read_packets(medium(name))
    h264 = codec == "h264"
    nal_types = [1, 2, 5, 6, 6, 7, 8, 9, 12, 20] if h264 else [0, 1, 8, 19, 21, 32, 33, 34, 35, 36, 37, 39]
    headers = [bytes([0x60 | kind]) for kind in nal_types] if h264 else [bytes([kind << 1, 1]) for kind in nal_types]
    texts = st.lists(
        st.sampled_from([b"\0", b"\0\0", b"\0\0\1", b"\0\0\3", b"\x80", b"\5", b"\1", b"abc", b"x" * 70]), max_size=6
    )
    units = st.builds(lambda header, parts: header + b"".join(parts), st.sampled_from(headers), texts)
    sets = list(SCANNERS[codec].parse_configuration(configuration)[1])
    units = st.one_of(units, st.just(b""), st.sampled_from(sets), st.sampled_from(sets).map(lambda nal: nal + b"\0\1"))
    for _ in range(data.draw(st.integers(1, 8))):
        number = data.draw(st.integers(0, len(packets) - 1))
        packet = packets[number] or b"\0"
        match data.draw(st.sampled_from(["before", "after", "cut", "byte", "inside", "whole", "many"])):
            case "before":
                packet = prefixed(data.draw(st.lists(units, max_size=3)), 4) + packet
            case "after":
                packet = packet + prefixed(data.draw(st.lists(units, max_size=3)), 4)
            case "cut":
                packet = packet[: data.draw(st.integers(1, len(packet)))]
            case "byte":
                at = data.draw(st.integers(0, min(80, len(packet) - 1)))
                packet = packet[:at] + bytes([data.draw(st.integers(0, 255))]) + packet[at + 1 :]
            case "inside":
                at = data.draw(st.integers(0, max(0, min(80, len(packet) - 4))))
                packet = packet[:at] + data.draw(st.sampled_from([b"\0\0\1", b"\0\0\3"])) + packet[at + 3 :]
            case "whole":
                packet = prefixed(data.draw(st.lists(units, min_size=1, max_size=4)), 4)
            case "many":
                packet = prefixed([headers[0] + b"x"] * data.draw(st.integers(60, 70)), 4) + packet
        packets[number] = packet
    assert_same(SCANNERS[codec], configuration, packets)


UNITS = st.lists(
    st.sampled_from([b"", b"a", b"\0\0", b"\0\0\1", b"\0\0\3", b"\1\0", b"\3", b"\0\0\1\0\0\3", b"q" * 80]), max_size=8
)


@settings(max_examples=3 * EXAMPLES)
@given(st.lists(st.tuples(UNITS, st.binary(max_size=3)), min_size=12, max_size=30), st.sampled_from([1, 2, 3, 4]))
@example([([b"a"] * 70, b"")] * 20, 4)
def test_units_are_those_that_are_found_one_by_one(made: list[tuple[list[bytes], bytes]], length_size: int) -> None:
    packets = [prefixed(nals, length_size) + rest for nals, rest in made]
    packets = [packet for packet in packets if packet]
    assume(packets)
    data, offset, size = together(packets, 2)
    units = nal.split_nal_units(data, offset, size, length_size)
    assume(not (units.unread | units.damaged).all())
    heads, length = nal.heads_of(data, units.start, units.end, units.escapes)
    for number, packet in enumerate(packets):
        if units.unread[number]:
            continue
        try:
            spans, inner = nal.split_length_prefixed(packet, length_size)
        except ValueError:
            assert units.damaged[number]
            continue
        assert not inner
        assert not units.damaged[number]
        mine = np.flatnonzero(units.packet == number)
        found = zip(units.start[mine] - offset[number], units.end[mine] - offset[number], strict=True)
        assert list(found) == spans
        for row, (start, end) in zip(mine, spans, strict=True):
            assert heads[row, : length[row]].tobytes() == nal.unescape(packet[start : min(end, start + HEADER_BYTES)])
            assert not heads[row, length[row] :].any()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, PIECE_BYTES // 3)), min_size=1, max_size=40), st.randoms())
def test_pieces_cover_every_packet_once_and_are_bounded(spans: list[tuple[int, int]], random: Any) -> None:
    size = np.array([length for _, length in spans], np.int64)
    offset = np.cumsum(size + [gap for gap, _ in spans]) - size
    order = np.arange(len(spans))
    if random.random() < 0.5:
        random.shuffle(order)
    offset, size = offset[order], size[order]
    found = list(pieces(offset, size))
    assert [number for first, last in found for number in range(first, last)] == list(range(len(spans)))
    for first, last in found:
        assert (offset[first + 1 : last] >= (offset + size)[first : last - 1]).all()
        assert offset[last - 1] + size[last - 1] - offset[first] <= PIECE_BYTES


def test_distinct_values_are_told_apart(rng: np.random.Generator) -> None:
    keys = np.repeat(rng.integers(0, 5, 40), rng.integers(0, 4, 40)).astype(np.int64)
    values, which = nal.distinct(keys)
    assert values[which].tolist() == keys.tolist()
    assert [column.tolist() for column in nal.distinct(keys[:0])] == [[], []]
