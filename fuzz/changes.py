"""Changes of coded streams as editors, networks and broken muxers make them."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from framedex.indexer.bitstream.av1 import split_obus
from fuzz.mutation import START_CODE, units_of
from tests.support.bitstream_edits import Coded

HEADER_BYTES = 4  # of a packet without units: frame type, temporal id and the like lie there
Packets = list[Coded]
Donor = tuple[bytes, Packets]
Change = Callable[[Packets, Donor, random.Random], Packets]


def _drop(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    at, count = source.randrange(len(packets)), source.choice((1, 1, 1, 2, 5))
    return packets[:at] + packets[at + count :] or packets


def _double(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    at = source.randrange(len(packets))
    return packets[: at + 1] + packets[at:]


def _swap(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    at = source.randrange(len(packets) - 1) if len(packets) > 1 else 0
    return packets[:at] + packets[at : at + 2][::-1] + packets[at + 2 :]


def _move(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    rest = packets.copy()
    moved = rest.pop(source.randrange(len(rest)))
    rest.insert(source.randrange(len(rest) + 1), moved)
    return rest


def _begin_late(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    return packets[source.randrange(len(packets)) :]


def _end_early(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    return packets[: source.randint(1, len(packets))]


def _splice_own(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    """Put a GOP after another one, once more or in another order."""
    keys = [number for number, packet in enumerate(packets) if packet.key] or [0]
    begin, at = source.choice(keys), source.choice([*keys, len(packets)])
    end = next((key for key in keys if key > begin), len(packets))
    return packets[:at] + packets[begin:end] + packets[at:]


def _splice_other(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    """Go on with another encode's packets from one of its keyframes."""
    keys = [number for number, packet in enumerate(donor[1]) if packet.key] or [0]
    return packets[: source.randint(1, len(packets))] + donor[1][source.choice(keys) :]


def _relabel_key(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    """Change the container's mark of a keyframe."""
    at = source.randrange(len(packets))
    return [*packets[:at], replace(packets[at], key=not packets[at].key), *packets[at + 1 :]]


def _move_time(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    """Exchange the presentation times of two packets."""
    here, there = source.randrange(len(packets)), source.randrange(len(packets))
    changed = packets.copy()
    changed[here] = replace(packets[here], pts=packets[there].pts)
    changed[there] = replace(packets[there], pts=packets[here].pts)
    return changed


def _header_bit(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    """Flip a bit at the beginning of a packet."""
    at = source.randrange(len(packets))
    data = bytearray(packets[at].data)
    data[source.randrange(min(len(data), HEADER_BYTES))] ^= 1 << source.randrange(8)
    return [*packets[:at], replace(packets[at], data=bytes(data)), *packets[at + 1 :]]


Units = list[bytes]
Split = Callable[[bytes], tuple[Units, Callable[[Units], bytes]]]


def obus_of(packet: bytes) -> tuple[Units, Callable[[Units], bytes]]:
    """Return the OBUs of a packet of AV1, and a function that joins them. The list is empty if they do not tile it."""
    edges = [0]
    try:
        edges += [end for _, _, _, end in split_obus(packet)]
    except ValueError:
        return [], b"".join
    return [packet[start:end] for start, end in itertools.pairwise(edges)], b"".join


def _in_units(edit: Callable[[Units, Units, random.Random], Units], split: Split) -> Change:
    """Return a change of the units of one packet."""

    def change(packets: Packets, donor: Donor, source: random.Random) -> Packets:
        at = source.randrange(len(packets))
        units, join = split(packets[at].data)
        others, _ = split(source.choice(donor[1]).data)
        changed = edit(units, others, source) if units else []
        data = join(changed) if changed else packets[at].data
        return [*packets[:at], replace(packets[at], data=data or packets[at].data), *packets[at + 1 :]]

    change.__name__ = edit.__name__
    return change


def _relabel_unit(units: Units, others: Units, source: random.Random) -> Units:
    """Change type, importance or layer of a unit: a bit of its first two bytes but the highest."""
    here = source.randrange(len(units))
    data = bytearray(units[here])
    if data:
        at = source.randrange(min(2, len(data)))
        data[at] ^= 1 << source.randrange(7 if at == 0 else 8)
    return [*units[:here], bytes(data), *units[here + 1 :]]


def _drop_unit(units: Units, others: Units, source: random.Random) -> Units:
    here = source.randrange(len(units))
    return units[:here] + units[here + 1 :]


def _double_unit(units: Units, others: Units, source: random.Random) -> Units:
    here = source.randrange(len(units))
    return units[: here + 1] + units[here:]


def _insert_unit(units: Units, others: Units, source: random.Random) -> Units:
    """Insert a delimiter, an end of sequence or stream, or a unit of another packet."""
    small = [
        b"\x09\xf0",
        b"\x0a",
        b"\x0b",
        b"\x06\x05\x01\x00\x80",
        b"\x46\x01\x50",
        b"\x48\x01",
        b"\x4a\x01",
        b"\xb7",
        b"\xb8\0\x08\0",
    ]
    here = source.randint(0, len(units))
    return [*units[:here], source.choice(small + others), *units[here:]]


def _insert_obu(units: Units, others: Units, source: random.Random) -> Units:
    """Insert a temporal delimiter, padding, metadata, an empty OBU without meaning, or an OBU of another packet."""
    small = [b"\x12\0", b"\x7a\x02\xff\x80", b"\x2a\x03\x04\0\x80", b"\x4a\0"]
    here = source.randint(0, len(units))
    return [*units[:here], source.choice(small + others), *units[here:]]


def _other_sets(packets: Packets, donor: Donor, source: random.Random) -> Packets:
    """Insert another encode's configuration in front of a packet."""
    at = source.randrange(len(packets))
    sets = donor[0] if START_CODE in donor[0] else _length_prefixed(donor[0])
    return [*packets[:at], replace(packets[at], data=sets + packets[at].data), *packets[at + 1 :]]


def _length_prefixed(configuration: bytes) -> bytes:
    """Return the parameter sets of an H.264 or HEVC configuration record, each after its length in four bytes."""
    found, at = b"", 6 if configuration[:1] == b"\x01" and len(configuration) < 200 else 23
    while at + 2 < len(configuration):
        size = int.from_bytes(configuration[at : at + 2], "big")
        if not 0 < size <= len(configuration) - at - 2:
            at += 1
            continue
        found += struct.pack(">I", size) + configuration[at + 2 : at + 2 + size]
        at += 2 + size
    return found


def changes_of(units: str) -> list[Change]:
    """Return the changes that a codec's packets can take."""
    plain: list[Change] = [
        _drop, _double, _swap, _move, _begin_late, _end_early, _splice_own, _splice_other, _relabel_key, _move_time,
    ]  # fmt: skip
    if units in ("nal", "start codes"):
        edits = (_relabel_unit, _relabel_unit, _drop_unit, _double_unit, _insert_unit)
        inside = [_in_units(edit, units_of) for edit in edits]
        return plain + inside + ([_other_sets] if units == "nal" else [])
    if units == "obu":
        edits = (_relabel_unit, _relabel_unit, _drop_unit, _double_unit, _insert_obu)
        return [*plain, *(_in_units(edit, obus_of) for edit in edits), _header_bit]
    return [*plain, _header_bit, _header_bit]


def change_table(path: Path, source: random.Random) -> str:
    """Change an entry of a sample table or of the edit list. Return what was changed."""
    content = bytearray(path.read_bytes())
    names = [name for name in (b"stss", b"ctts", b"elst", b"stsc", b"stts") if name in content]
    name = source.choice(names)
    at = content.rfind(name)
    size = int.from_bytes(content[at - 4 : at], "big")
    entry = source.randrange(at + 8, max(at + 9, at - 4 + size))
    content[entry] ^= 1 << source.randrange(3)
    path.write_bytes(content)
    return f"{name.decode()} at {entry - at}"
