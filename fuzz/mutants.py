"""Media that decoders still parse but that no encoder wrote: packets and units of small streams, changed.

Changes are those of editors, networks and broken muxers: packets and units are lost, doubled, moved, spliced,
relabelled or inserted, and tables list them wrongly. A kind of stream and a number determine a mutant.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import av
import av.error

from fuzz.changes import Packets, change_table, changes_of
from fuzz.kinds import KINDS
from tests.support.media import Recipe, make, read_packets

MAX_CHANGES = 2


class Factory:
    """Makes mutants of streams that it encodes once.

    Args:
        folder: where encoded streams lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[str, tuple[bytes, Packets]] = {}

    def make(self, name: str, number: int, folder: Path) -> tuple[Path, list[str]] | None:
        """Write a mutant. Return its file and its changes, or None if its container does not take it.

        Args:
            name: of its kind in KINDS.
            number: which mutant of the kind.
            folder: where it is written to.
        """
        source = random.Random(number)
        kind = KINDS[name]
        recipe = source.choice(kind.recipes)
        packets = list(self._read(recipe)[1])
        donor = self._read(source.choice(kind.recipes))
        changes = []
        for _ in range(source.randint(1, MAX_CHANGES)):
            change = source.choice(changes_of(kind.units))
            packets = change(packets, donor, source)
            changes.append(change.__name__.strip("_"))
        path = folder / f"{number:06d}_{name}.{source.choice(kind.suffixes)}"
        slots = source.random() < 0.5
        if not packets or not _write(self._folder / recipe.name, path, _timed(packets, self._read(recipe)[1], slots)):
            path.unlink(missing_ok=True)
            return None
        if path.suffix in (".mp4", ".mov", ".3gp") and source.random() < 0.3:
            changes.append(change_table(path, source))
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
