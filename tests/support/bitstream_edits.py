"""Edits of coded packets, for media that no encoder here writes: packets lost, truncated, or with a flipped bit."""

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
