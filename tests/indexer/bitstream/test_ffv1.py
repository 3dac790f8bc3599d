"""FFV1: checksums of slices show whether a packet is as it was written; where they do not, it is decoded twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.exactness import try_folder
from framedex.indexer.bitstream.intra.ffv1 import Ffv1Scanner, has_right_checksums
from tests.support.bitstream_edits import Coded
from tests.support.media import Recipe, make, read_packets, rewrite

CHECKED = {"level": "3", "g": "1", "slices": "4"}
UNCHECKED = CHECKED | {"slicecrc": "0"}


def packets_of(folder: Path, options: dict[str, str]) -> list[bytes]:
    path = make(Recipe(name="made.mkv", codec="ffv1", options=options, frames=6), folder)
    return [packet.data for packet in read_packets(path)[1]]


def doubtful(packets: list[bytes]) -> bool:
    scanner = Ffv1Scanner(b"")
    for packet in packets:
        scanner.feed(packet)
    return scanner.finish().doubtful


@pytest.mark.parametrize("options", [CHECKED, CHECKED | {"coder": "rice"}, CHECKED | {"coder": "range_tab"}])
def test_each_byte_of_a_packet_is_covered_by_a_checksum(tmp_path: Path, options: dict[str, str]) -> None:
    packets = packets_of(tmp_path, options)
    assert not doubtful(packets)
    for packet in packets:
        for at in range(0, len(packet), 97):
            changed = packet[:at] + bytes([packet[at] ^ 4]) + packet[at + 1 :]
            assert not has_right_checksums(changed)
    assert doubtful([packets[0], packets[1][:-1]])


@pytest.mark.parametrize("options", [UNCHECKED, {"level": "1", "g": "1"}, CHECKED | {"g": "3"}])
def test_packets_without_checksums_and_gops_are_doubtful(tmp_path: Path, options: dict[str, str]) -> None:
    assert doubtful(packets_of(tmp_path, options))


@pytest.mark.parametrize("options", [CHECKED, UNCHECKED])
def test_a_slice_that_a_decoder_repairs_with_an_earlier_picture_is_damage(
    tmp_path: Path, options: dict[str, str]
) -> None:
    def change(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        data = bytearray(packets[4].data)
        data[1] ^= 1 << 3
        return [*packets[:4], replace(packets[4], data=bytes(data)), *packets[5:]]

    whole, folder = tmp_path / "whole", tmp_path / "changed"
    whole.mkdir()
    folder.mkdir()
    rewrite(make(Recipe(name="made.mkv", codec="ffv1", options=options, frames=8), whole), folder / "x.mkv", change)
    (tried,) = try_folder(folder)
    assert (tried.frames, tried.wrong) == (8, [])
    assert tried.exact == 7
