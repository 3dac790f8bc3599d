"""Media that decoders still parse but that no encoder wrote: packets and units of small streams, changed.

Changes are those of editors, networks and broken muxers: packets and units are lost, doubled, moved, spliced,
relabelled or inserted, and tables list them wrongly. A number determines a mutant.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import av
import av.error

from fuzz.mutation import START_CODE, units_of
from tests.support.bitstream_edits import Coded
from tests.support.media import Recipe, make, read_packets

FRAMES = 40
MOST_CHANGES = 2
HEADER_BYTES = 4  # of a packet without units: frame type, temporal id and the like lie there
Packets = list[Coded]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A codec of mutants.

    Attributes:
        recipes: streams that are changed; they give parameter sets and packets to each other.
        suffixes: containers that mutants are written to.
        units: how packets are divided: "nal", "start codes", or "" where whole packets are changed alone.
    """

    recipes: tuple[Recipe, ...]
    suffixes: tuple[str, ...]
    units: str = ""


def _x264(text: str) -> dict[str, str]:
    return {"preset": "veryfast", "x264-params": f"threads=1:{text}"}


def _x265(text: str) -> dict[str, str]:
    return {"preset": "ultrafast", "x265-params": f"log-level=none:pools=1:frame-threads=1:{text}"}


def _recipes(
    name: str, codec: str, *options: dict[str, str], suffix: str = "mkv", **facts: object
) -> tuple[Recipe, ...]:
    return tuple(
        Recipe(name=f"{name}_{number}.{suffix}", codec=codec, options=given, frames=FRAMES, **facts)  # type: ignore[arg-type]
        for number, given in enumerate(options)
    )


MPEG = ("mkv", "ts", "mpg")
GOP_8, GOP_10_B = {"g": "8"}, {"g": "10", "bf": "2"}
VP8 = {"g": "12", "cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "12"}
VP9 = {"g": "12", "cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "16"}
RESILIENT_VP9 = {"g": "10", "cpu-used": "8", "error-resilient": "1"}
H264 = (
    _x264("keyint=12:bframes=3:b-pyramid=normal:b-adapt=0"),
    _x264("keyint=10:bframes=0:ref=3"),
    _x264("keyint=10:min-keyint=10:open-gop=1:bframes=2:b-adapt=0:scenecut=0"),
    _x264("keyint=40:intra-refresh=1"),
)
HEVC = (
    _x265("keyint=12:min-keyint=12:bframes=3:b-adapt=0:open-gop=0"),
    _x265("keyint=12:min-keyint=12:bframes=4:b-adapt=0:open-gop=1"),
    _x265("keyint=10:temporal-layers=3:open-gop=0"),
)
KINDS = {
    "h264": Kind(recipes=_recipes("h264", "libx264", *H264), suffixes=("mp4", "mkv", "mov", "ts", "flv"), units="nal"),
    "hevc": Kind(recipes=_recipes("hevc", "libx265", *HEVC), suffixes=("mp4", "mkv", "ts"), units="nal"),
    "av1": Kind(recipes=_recipes("av1", "libsvtav1", {"preset": "10", "g": "16"}), suffixes=("mp4", "mkv", "ivf")),
    "vp9": Kind(recipes=_recipes("vp9", "libvpx-vp9", VP9, RESILIENT_VP9), suffixes=("mkv", "webm", "mp4", "ivf")),
    "vp8": Kind(recipes=_recipes("vp8", "libvpx", VP8), suffixes=("mkv", "webm", "ivf")),
    "mpeg1": Kind(recipes=_recipes("mpeg1", "mpeg1video", GOP_10_B, GOP_8), suffixes=MPEG, units="start codes"),
    "mpeg2": Kind(recipes=_recipes("mpeg2", "mpeg2video", GOP_10_B, GOP_8), suffixes=MPEG, units="start codes"),
    "mpeg4": Kind(
        recipes=_recipes("mpeg4", "mpeg4", GOP_10_B, GOP_8), suffixes=("mp4", "mkv", "avi"), units="start codes"
    ),
    "h263": Kind(recipes=_recipes("h263", "h263", GOP_8, suffix="mov"), suffixes=("mov", "avi", "mp4")),
    "flv1": Kind(recipes=_recipes("flv1", "flv", GOP_8, suffix="flv"), suffixes=("flv", "avi")),
    "msmpeg4v3": Kind(recipes=_recipes("msmpeg4v3", "msmpeg4", GOP_8), suffixes=("avi", "mkv")),
    "wmv2": Kind(recipes=_recipes("wmv2", "wmv2", GOP_8, suffix="avi"), suffixes=("asf", "avi")),
    "ffv1": Kind(
        recipes=_recipes("ffv1", "ffv1", {"g": "6", "level": "3"}, {"g": "1"}), suffixes=("mkv", "avi", "mov")
    ),
    "mjpeg": Kind(recipes=_recipes("mjpeg", "mjpeg", {}, pix_fmt="yuvj420p"), suffixes=("mkv", "avi", "mov")),
    "prores": Kind(recipes=_recipes("prores", "prores_ks", {}, pix_fmt="yuv422p10le"), suffixes=("mov", "mkv")),
}


class Factory:
    """Makes mutants of streams that it encodes once.

    Args:
        folder: where encoded streams lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[str, tuple[bytes, Packets]] = {}

    def make(self, number: int, folder: Path) -> tuple[Path, list[str]] | None:
        """Write the mutant of a number. Return its file and its changes, or None if no container takes it."""
        source = random.Random(number)
        name = list(KINDS)[number % len(KINDS)]
        kind = KINDS[name]
        recipe = source.choice(kind.recipes)
        packets = list(self._read(recipe)[1])
        donor = self._read(source.choice(kind.recipes))
        changes = []
        for _ in range(source.randint(1, MOST_CHANGES)):
            change = source.choice(_changes(kind.units))
            packets = change(packets, donor, source)
            changes.append(change.__name__.strip("_"))
        path = folder / f"{number:06d}_{name}.{source.choice(kind.suffixes)}"
        slots = source.random() < 0.5
        if not packets or not _write(self._folder / recipe.name, path, _timed(packets, self._read(recipe)[1], slots)):
            path.unlink(missing_ok=True)
            return None
        if path.suffix in (".mp4", ".mov") and source.random() < 0.3:
            changes.append(_table(path, source))
        return path, [recipe.name, *changes, "times of slots" if slots else "times of packets"]

    def _read(self, recipe: Recipe) -> tuple[bytes, Packets]:
        path = self._folder / recipe.name
        if recipe.name not in self._streams:
            if not path.exists():
                make(recipe, self._folder)
            self._streams[recipe.name] = read_packets(path)
        return self._streams[recipe.name]


def _timed(packets: Packets, original: Packets, slots: bool) -> Packets:
    """Return packets with increasing decoding times: those of their places, or their own, moved where they collide."""
    step = max(1, (original[-1].dts or 0) // max(1, len(original) - 1))
    timed, last = [], None
    for place, packet in enumerate(packets):
        if slots:
            beyond = max(0, place - len(original) + 1)
            slot = original[min(place, len(original) - 1)]
            pts, dts = (None if time is None else time + beyond * step for time in (slot.pts, slot.dts))
        else:
            pts, dts = packet.pts, packet.dts
        if dts is None:
            dts = pts
        if dts is not None and last is not None and dts <= last:
            dts = last + 1
        if pts is not None and dts is not None:
            pts = max(pts, dts)
        last = dts
        timed.append(replace(packet, pts=pts, dts=dts))
    return timed


def _write(template: Path, path: Path, packets: Packets) -> bool:
    """Write packets into a file. Return False if its container does not take them."""
    try:
        with av.open(str(template)) as given, av.open(str(path), "w") as out:
            video = given.streams.video[0]
            stream = out.add_stream_from_template(video, opaque=True)  # not every decoder has an encoder
            for coded in packets:
                packet = av.Packet(coded.data)
                packet.pts, packet.dts, packet.is_keyframe = coded.pts, coded.dts, coded.key
                packet.time_base, packet.stream = video.time_base, stream
                out.mux(packet)
    except (av.error.FFmpegError, ValueError):
        return False
    return True


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


def _in_units(edit: Callable[[list[bytes], list[bytes], random.Random], list[bytes]]) -> Change:
    """Return a change of the units of one packet."""

    def change(packets: Packets, donor: Donor, source: random.Random) -> Packets:
        at = source.randrange(len(packets))
        units, join = units_of(packets[at].data)
        others, _ = units_of(source.choice(donor[1]).data)
        changed = edit(units, others, source) if units else []
        data = join(changed) if changed else packets[at].data
        return [*packets[:at], replace(packets[at], data=data or packets[at].data), *packets[at + 1 :]]

    change.__name__ = edit.__name__
    return change


def _relabel_unit(units: list[bytes], others: list[bytes], source: random.Random) -> list[bytes]:
    """Change type, importance or layer of a unit: a bit of its first two bytes but the highest."""
    here = source.randrange(len(units))
    data = bytearray(units[here])
    if data:
        at = source.randrange(min(2, len(data)))
        data[at] ^= 1 << source.randrange(7 if at == 0 else 8)
    return [*units[:here], bytes(data), *units[here + 1 :]]


def _drop_unit(units: list[bytes], others: list[bytes], source: random.Random) -> list[bytes]:
    here = source.randrange(len(units))
    return units[:here] + units[here + 1 :]


def _double_unit(units: list[bytes], others: list[bytes], source: random.Random) -> list[bytes]:
    here = source.randrange(len(units))
    return units[: here + 1] + units[here:]


def _insert_unit(units: list[bytes], others: list[bytes], source: random.Random) -> list[bytes]:
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


def _changes(units: str) -> list[Change]:
    """Return the changes that a codec's packets can take."""
    plain: list[Change] = [
        _drop, _double, _swap, _move, _begin_late, _end_early, _splice_own, _splice_other, _relabel_key, _move_time,
    ]  # fmt: skip
    if units in ("nal", "start codes"):
        inside = [_in_units(edit) for edit in (_relabel_unit, _relabel_unit, _drop_unit, _double_unit, _insert_unit)]
        return plain + inside + ([_other_sets] if units == "nal" else [])
    return [*plain, _header_bit, _header_bit]


def _table(path: Path, source: random.Random) -> str:
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
