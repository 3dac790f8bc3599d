"""Edits of coded packets, for media that no encoder here writes: packets lost, cut off, or with other bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Coded:
    """One packet.

    Attributes:
        pts, dts: timestamps in the stream's time base.
    """

    data: bytes
    pts: int | None
    dts: int | None
    key: bool


Edit = Callable[[bytes, list[Coded]], list[Coded]]  # (configuration, packets) → packets


def without(*numbers: int) -> Edit:
    """Remove the packets with these numbers."""
    return lambda configuration, packets: [packet for n, packet in enumerate(packets) if n not in numbers]


def cut_off(*numbers: int) -> Edit:
    """Shorten the packets with these numbers to two thirds of their bytes."""

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        return [
            replace(packet, data=packet.data[: len(packet.data) * 2 // 3]) if number in numbers else packet
            for number, packet in enumerate(packets)
        ]

    return edit


def with_flipped_bit(number: int, byte: int, bit: int = 0) -> Edit:
    """Flip one bit of one byte in a packet; bit 0 is the lowest."""

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        data = bytearray(packets[number].data)
        data[byte] ^= 1 << bit
        return [*packets[:number], replace(packets[number], data=bytes(data)), *packets[number + 1 :]]

    return edit


def with_trailing(count: int) -> Edit:
    """Append bytes to every key frame but the first."""

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        return [
            replace(packet, data=packet.data + bytes(range(1, count + 1))) if number and packet.key else packet
            for number, packet in enumerate(packets)
        ]

    return edit


def with_prefix(prefix: bytes, *numbers: int) -> Edit:
    """Put bytes in front of the packets with these numbers."""
    return lambda configuration, packets: [
        replace(packet, data=prefix + packet.data) if number in numbers else packet
        for number, packet in enumerate(packets)
    ]


def replaced_by(data: bytes, *numbers: int) -> Edit:
    """Replace the bytes of the packets with these numbers."""
    return lambda configuration, packets: [
        replace(packet, data=data) if number in numbers else packet for number, packet in enumerate(packets)
    ]


def groups(packets: list[Coded]) -> list[list[Coded]]:
    """Return the packets of each group, which a key frame begins."""
    found: list[list[Coded]] = []
    for packet in packets:
        if packet.key or not found:
            found.append([])
        found[-1].append(packet)
    return found


def alternating(others: Callable[[], list[Coded]]) -> Edit:
    """Take every second group of packets from another stream with groups of the same sizes."""

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        both = zip(groups(packets), groups(others()), strict=True)
        chosen = [packet for number, pair in enumerate(both) for packet in pair[number % 2]]
        return [
            replace(other, pts=packet.pts, dts=packet.dts, key=packet.key)
            for packet, other in zip(packets, chosen, strict=True)
        ]

    return edit
