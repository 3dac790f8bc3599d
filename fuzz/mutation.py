"""Mutation of scanner inputs by packets and NAL units, since random bytes seldom pass a header."""

from __future__ import annotations

import random
from collections.abc import Callable

START_CODE = b"\0\0\1"
LENGTH_BYTES, HEAD_BYTES, MAX_CHANGES = 4, 12, 6
Parts = list[bytes]


def split_chunks(data: bytes) -> Parts:
    """Return the byte strings that `join_chunks` joined. For other input, the result is arbitrary."""
    chunks, at = [], 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        chunks.append(data[at + 2 : end])
        at = end
    return chunks


def join_chunks(chunks: Parts) -> bytes:
    """Return byte strings of up to 65 535 bytes, each preceded by its length."""
    return b"".join(len(chunk).to_bytes(2, "big") + chunk for chunk in chunks)


def mutate_chunks(data: bytes, seed: int) -> bytes:
    """Return chunks of which some are swapped, repeated, dropped, cut, or changed at their beginning or inside."""
    source = random.Random(seed)
    chunks = split_chunks(data) or [b""]
    for _ in range(source.randint(1, MAX_CHANGES)):
        number = source.randrange(len(chunks))
        units, join = units_of(chunks[number])
        if units and source.random() < 0.5:
            donor, _ = units_of(source.choice(chunks))
            chunks[number] = join(change(units, donor or units, source))
        else:
            chunks = change(chunks, chunks, source) or [b""]
    return join_chunks([chunk[:0xFFFF] for chunk in chunks])


def units_of(packet: bytes) -> tuple[Parts, Callable[[Parts], bytes]]:
    """Return the NAL units or start code units of a packet, and a function that joins them.

    The list is empty if the packet has neither.
    """
    units, at = [], 0
    while at < len(packet):
        end = at + LENGTH_BYTES + int.from_bytes(packet[at : at + LENGTH_BYTES], "big")
        if end > len(packet):
            break
        units.append(packet[at + LENGTH_BYTES : end])
        at = end
    if units and at == len(packet):
        return units, lambda parts: b"".join(len(part).to_bytes(LENGTH_BYTES, "big") + part for part in parts)
    return packet.split(START_CODE) if START_CODE in packet else [], START_CODE.join


def change(parts: Parts, donor: Parts, source: random.Random) -> Parts:
    """Return the parts with one change. New parts come from the donor."""
    parts = parts.copy()
    here, there = source.randrange(len(parts)), source.randrange(len(parts))
    kind = source.randrange(7)
    if kind == 0:
        parts[here], parts[there] = parts[there], parts[here]
    elif kind == 1:
        parts.insert(here + 1, source.choice(donor))
    elif kind == 2:
        parts[here:here] = parts[min(here, there) : max(here, there) + 1]
    elif kind == 3:
        del parts[here]
    elif kind == 4:
        parts[here] = parts[here][: source.randint(0, len(parts[here]))]
    elif kind == 5:
        parts += parts[1:] * source.randint(1, 4)
    else:
        parts[here] = flip(parts[here], source)
    return parts


def flip(part: bytes, source: random.Random) -> bytes:
    """Return a part with one to three changes of a bit or a byte, most of them within its first HEAD_BYTES bytes."""
    content = bytearray(part)
    for _ in range(source.randint(1, 3)):
        if content:
            at = source.randrange(min(len(content), HEAD_BYTES if source.random() < 0.8 else len(content)))
            content[at] = content[at] ^ 1 << source.randrange(8) if source.random() < 0.7 else source.randrange(256)
    return bytes(content)
