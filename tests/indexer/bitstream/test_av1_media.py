"""The AV1 scanner's start points and droppable units hold when encoded media are decoded by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from framedex.indexer.bitstream.av1 import split_obus
from tests.exactness.test_av_corpus import Packets, check_random_access, read_packets
from tests.support import media

SVT = {"preset": "12", "g": "12", "svtav1-params": "keyint=12"}
RECIPES = {
    recipe.name: recipe
    for recipe in (
        media.Recipe(name="av1_default.mp4", codec="libsvtav1", options=SVT, frames=40),
        media.Recipe(name="av1_10bit.mkv", codec="libsvtav1", options=SVT, pix_fmt="yuv420p10le", frames=26),
        media.Recipe(name="av1_low_delay.mp4", codec="libsvtav1", options={**SVT, "svtav1-params": "pred-struct=1"}),
        media.Recipe(name="av1_grain.mkv", codec="libsvtav1", options={**SVT, "svtav1-params": "film-grain=20"}),
    )
}


@pytest.mark.parametrize("name", RECIPES)
def test_random_access_equals_the_full_decode(name: str, media_folder: Path, rng: np.random.Generator) -> None:
    packets = read_packets(media.make(RECIPES[name], media_folder))
    assert np.count_nonzero(packets.scan().start) >= 2
    truth = packets.full_decode()
    assert len(truth) == RECIPES[name].frames
    assert check_random_access(packets, truth, rng, most=12) == 12


def _strip_later_headers(packets: Packets) -> Packets:
    """Return the packets without the sequence headers of all packets but the first."""
    data = packets.data[:1]
    for packet in packets.data[1:]:
        kept = bytearray()
        at = 0
        for kind, _, _, end in split_obus(packet):
            kept += b"" if kind == 1 else packet[at:end]
            at = end
        data.append(bytes(kept))
    return replace(packets, data=data)


def test_starts_decode_with_the_state_they_are_given(media_folder: Path, rng: np.random.Generator) -> None:
    packets = _strip_later_headers(read_packets(media.make(RECIPES["av1_default.mp4"], media_folder)))
    pictures = packets.scan()
    assert len(pictures.states) == 2
    assert np.count_nonzero(pictures.state) == np.count_nonzero(pictures.start) - 1
    truth = packets.full_decode()
    assert len(truth) == 40
    check_random_access(packets, truth, rng, most=12)


def test_droppable_units_are_found_and_all_of_them_can_go_at_once(media_folder: Path) -> None:
    packets = read_packets(media.make(RECIPES["av1_default.mp4"], media_folder))
    truth, pictures = packets.full_decode(), packets.scan()
    needed = np.flatnonzero(~pictures.non_reference).tolist()
    assert len(needed) < 0.9 * len(packets.data)
    assert dict(packets.decode(needed)) == {number: truth[number] for number in needed if number in truth}
