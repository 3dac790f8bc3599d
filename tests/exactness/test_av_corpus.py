"""AV1, VP9 and VP8: a frame decoded alone from its planned start is bit-identical to that of a full decode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.codec.context import CodecContext

from tests.support.planes import picture_md5
from tests.support.planned import scan_packets

DECODERS = {"av1": "libdav1d"}
# Numbers of presented frames, of start points, of packets that may be dropped, and of packets that present nothing.
CORPUS = {
    "av1.ivf": (75, 3, 2, 0),
    "av1.obu": (75, 3, 18, 0),
    "av1_aom.mp4": (75, 3, 2, 0),
    "av1_aom_10bit.mkv": (50, 2, 0, 0),
    "av1_aom_grain.mp4": (75, 3, 2, 0),
    "av1_aom_lowdelay.mp4": (75, 3, 0, 0),
    "av1_svt.mp4": (75, 3, 18, 0),
    "av1_svt.webm": (75, 3, 18, 0),
    "av1_svt_fwdkey.mkv": (75, 1, 17, 0),
    "vp8_altref.webm": (75, 2, 0, 4),
    "vp8_noalt.mkv": (75, 3, 0, 0),
    "vp9.ivf": (75, 3, 0, 0),
    "vp9.mp4": (75, 3, 0, 0),
    "vp9_altref.webm": (75, 2, 0, 0),
    "vp9_noalt.webm": (75, 3, 0, 0),
    "vp9_p2_10bit.webm": (50, 2, 0, 0),
    "vp9_size_change.webm": (60, 4, 0, 0),
}


@dataclass(frozen=True, kw_only=True)
class Packets:
    """The packets of a file's video stream in decode order, and the parameters for its decoder."""

    codec: str
    extradata: bytes | None
    reorder_depth: int
    data: list[bytes]

    def scan(self) -> Any:
        """Return the result of scanning the packets."""
        codec = "av1" if self.codec == "libdav1d" else self.codec
        return scan_packets(codec, *self.data, configuration=self.extradata or b"")

    def decode(self, numbers: list[int], state: bytes = b"") -> Iterator[tuple[int, str]]:
        """Yield (packet number, md5) of every picture that a new decoder outputs for these packets."""
        context = CodecContext.create(DECODERS.get(self.codec, self.codec), "r")
        assert isinstance(context, av.VideoCodecContext)
        context.extradata, context.reorder_depth, context.thread_count = self.extradata, self.reorder_depth, 1
        for number in numbers:
            data = state + self.data[number] if number == numbers[0] else self.data[number]
            packet = av.Packet(len(data))
            packet.update(data)  # type: ignore[arg-type]
            packet.pts = number
            for frame in context.decode(packet):
                yield int(frame.pts or 0), picture_md5(frame)
        for frame in context.decode(None):
            yield int(frame.pts or 0), picture_md5(frame)

    def full_decode(self) -> dict[int, str]:
        """Return the md5 of each picture by packet number, from one decoder that decodes all packets."""
        pictures = list(self.decode(list(range(len(self.data)))))
        assert len(dict(pictures)) == len(pictures)
        return dict(pictures)


def read_packets(path: Path) -> Packets:
    """Demux a file's first video stream."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        return Packets(
            codec=context.name,
            extradata=context.extradata,
            reorder_depth=context.reorder_depth,
            data=[bytes(packet) for packet in container.demux(stream) if packet.size],
        )


def planned(pictures: Any, target: int) -> list[int]:
    """Return the packets from the start point at or before a target up to it, without other non-reference packets."""
    begin = int(np.flatnonzero(pictures.start[: target + 1])[-1])
    return [number for number in range(begin, target + 1) if number == target or not pictures.non_reference[number]]


def check_random_access(packets: Packets, truth: dict[int, str], rng: np.random.Generator, most: int = 10_000) -> int:
    """Decode frames in shuffled order, each with a new decoder, and compare them with the truth.

    Args:
        truth: the md5 of each picture by packet number.
        most: the maximum number of frames.

    Returns:
        The number of frames decoded.
    """
    pictures = packets.scan()
    assert np.flatnonzero(~pictures.skipped).tolist() == sorted(truth)
    targets = rng.permutation(np.flatnonzero(~pictures.skipped)).tolist()[:most]
    for target in targets:
        numbers = planned(pictures, target)
        state = pictures.states[pictures.state[numbers[0]]]
        found = list(packets.decode(numbers, state))
        assert [number for number, _ in found] == [number for number in numbers if number in truth]
        assert all(md5 == truth[number] for number, md5 in found), target
    return len(targets)


@pytest.mark.slow
def test_every_undamaged_file_of_these_codecs_is_checked(corpus: Path) -> None:
    files = json.loads((corpus / "manifest.json").read_text(encoding="utf-8"))["files"]
    names = {
        name
        for name, facts in files.items()
        if "damaged" not in facts["tags"]
        and any(stream["codec"] in ("libdav1d", "av1", "vp9", "vp8") for stream in facts.get("streams", {}).values())
    }
    assert names == set(CORPUS)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPUS)
def test_random_access_equals_the_full_decode(name: str, corpus: Path, rng: np.random.Generator) -> None:
    facts = json.loads((corpus / "manifest.json").read_text(encoding="utf-8"))["files"][name]
    truth = {number: md5 for _, _, _, number, md5, _ in facts["streams"]["0"]["frames"]}
    packets = read_packets(corpus / name)
    pictures = packets.scan()
    counted = (
        len(truth),
        *(int(np.count_nonzero(column)) for column in (pictures.start, pictures.non_reference, pictures.skipped)),
    )
    assert counted == CORPUS[name]
    assert check_random_access(packets, truth, rng) == len(truth)
