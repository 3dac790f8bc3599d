"""Media that once silently gave wrong frames are now exact, or refused with a reason, at every depth."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from benchmarks.exactness import Tried, full_decode, try_folder
from framedex import index
from tests.support import made
from tests.support.depth import drawn
from tests.support.hazards import HAZARDS
from tests.support.media import encode
from tests.support.probed import probed

pytestmark = pytest.mark.xdist_group("hazards")

DEPTHS = get_args(get_type_hints(index)["depth"])

# Media whose decoders leave parts of pictures as they were in memory, or drop pictures: the number of held frames, and
# the reason why the others are not held.
DAMAGED = {
    "hevc_sps_changes_in_gop.mp4": (21, "2 of 3 GOPs are damaged"),
    "hevc_sps_changes_in_gop.mkv": (21, "2 of 3 GOPs are damaged"),
    "hevc_sps_changes_in_gop.ts": (46, "1 of 3 GOPs are damaged"),
    "hevc_vps_changes_in_gop.mp4": (21, "2 of 3 GOPs are damaged"),
    "hevc_vps_changes_in_gop.mkv": (21, "2 of 3 GOPs are damaged"),
    "hevc_vps_changes_in_gop.ts": (46, "1 of 3 GOPs are damaged"),
    "ffv1_lost_packet.mkv": (38, "1 of 5 GOPs are damaged"),
    "ffv1_lost_packet_checksums.mkv": (38, "1 of 5 GOPs are damaged"),
    "speedhq_flipped_bit.nut": (19, "1 of 20 GOPs are damaged"),
    "mpeg4_time_increment_in_doubt.mkv": (22, "1 of 3 GOPs are damaged"),
    "mpeg4_time_increment_in_doubt.mp4": (22, "1 of 3 GOPs are damaged"),
    "mjpeg_cut_off.avi": (18, "2 of 20 GOPs are damaged"),
    "jpegls_wrong_parameters.avi": (1, "11 of 12 GOPs are damaged"),
    "exr_cut_off.mov": (18, "2 of 20 GOPs are damaged"),
    "jpeg2000_changes.mkv": (5, "3 of 8 GOPs are damaged"),
    "jpeg2000_changes.mov": (4, "3 of 7 GOPs are damaged"),
    "magicyuv_cut_off.avi": (16, "2 of 18 GOPs are damaged"),
    "prores_cut_off.mov": (15, "2 of 17 GOPs are damaged"),
    "vp8_lost_packet_35.webm": (60, "1 of 3 GOPs are damaged"),
    "vp8_lost_packet_50.webm": (60, "1 of 3 GOPs are damaged"),
}
# Media whose edit does not change the pictures.
SAME_PICTURES = ("recovery", "before_idr", "jpegls_parameters", "vc2", "trailing_bytes")
# Media whose decoder returns pictures in another order than the headers say, and why they are refused at every depth.
REFUSED = {
    f"h264_references_reset{when}.{suffix}": "the decoder outputs packet"
    for when in ("", "_early")
    for suffix in ("mp4", "mkv")
}


@pytest.fixture(scope="module")
def folder() -> Path:
    """Return a folder of all hazards."""
    return made.media("hazards")


@pytest.fixture(scope="module", params=drawn("ways to index all hazards", [*DEPTHS, "verify"], seed=11))
def tried(folder: Path, request: pytest.FixtureRequest) -> dict[str, Tried]:
    """Return the outcome of each hazard at one depth, or with a proof of every frame."""
    asked = {"verify": True} if request.param == "verify" else {"depth": request.param}
    return {medium.uri: medium for medium in try_folder(folder, workers=0, oracle=made.truth("hazards"), **asked)}


def test_no_frame_of_a_hazard_is_another_one(tried: dict[str, Tried]) -> None:
    assert tried.keys() == HAZARDS.keys()
    assert {name: medium.wrong for name, medium in tried.items() if medium.wrong} == {}


def test_every_frame_of_a_hazard_is_exact_or_refused_with_a_reason(tried: dict[str, Tried]) -> None:
    indexed = {name: medium for name, medium in tried.items() if medium.status == "ok"}
    for name, medium in indexed.items():
        exact, reason = DAMAGED.get(name, (medium.frames, ""))
        assert (medium.exact, medium.reason.split("; ")[0]) == (exact, reason), name
        assert not medium.refused, name
        assert not medium.undecodable, name
    for name in tried.keys() - indexed.keys():  # at depth `tables`, which reads only what sample tables state
        assert tried[name].status == "refused"
        assert "--depth packets" in tried[name].reason or REFUSED[name] in tried[name].reason
    assert len(indexed) >= 5


def test_at_the_usual_depths_every_other_hazard_is_indexed(
    tried: dict[str, Tried], request: pytest.FixtureRequest
) -> None:
    depth = request.node.callspec.params["tried"]
    if depth != "tables":
        assert {name for name, medium in tried.items() if medium.status != "ok"} == set(REFUSED)


EDITED = [name for name in HAZARDS if not any(same in name for same in SAME_PICTURES)]


@pytest.mark.parametrize("name", drawn("many long cases", EDITED, seed=1))
def test_the_edit_of_a_hazard_changes_what_a_full_decode_presents(name: str, folder: Path, tmp_path: Path) -> None:
    recipe = HAZARDS[name]
    whole = tmp_path / recipe.name.replace(".ts", ".mp4")
    encode(recipe, whole)
    edited = [md5 for _, md5 in made.truth("hazards")[name, 0]]
    assert edited != [md5 for _, md5 in full_decode(whole, 0)]


@pytest.mark.parametrize(
    ("name", "starts"), [("h264_recovery_true.mkv", 3), ("h264_recovery_lies.mkv", 1), ("h264_recovery_lies_b.ts", 1)]
)
def test_recovery_points_are_starts_where_nothing_behind_them_refers_to_what_came_before(
    name: str, starts: int, folder: Path
) -> None:
    video, _ = probed(folder / name)
    assert video["keyframe_count"] == starts
