"""An animated sheet shows every place of every clip, for its own time, and no other picture."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from framedex import Index
from framedex.errors import OutputError
from framedex.loader.contact_sheets import sheet, sheet_pictures
from tests.support.datasets import run, shard_clips
from tests.support.media import read_barcode

SIZE = (144, 176)  # of the pictures


def frame(number: int | None, gap: float | None) -> sheet.ShownFrame:
    return sheet.ShownFrame(frame_index=number, seconds=None, gap_seconds=gap, padding=number is None, picture=None)


def opened(file: bytes) -> tuple[list[Image.Image], list[int]]:
    """Return the pictures of an animation, and how long each is shown in milliseconds."""
    image = Image.open(io.BytesIO(file))
    pictures, durations = [], []
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        pictures.append(image.convert("RGB"))
        durations.append(image.info["duration"])
    return pictures, durations


def shown_frame(picture: Image.Image, heading: sheet.Heading, place: int) -> int:
    """Return the number of the frame that the clip at a place of the first line shows."""
    left = sheet_pictures.MARGIN + place * (SIZE[1] + sheet_pictures.GAP)
    top = sheet_pictures.heading_block(heading, picture.width).height + sheet_pictures.NAME
    return read_barcode(np.asarray(picture)[top : top + SIZE[0], left : left + SIZE[1]])


@pytest.fixture(scope="module")
def inspector(index: Index, tmp_path_factory: pytest.TempPathFactory) -> sheet.Inspector:
    clips = [
        {"uri": "h264_default.mp4", "frames": [9, 12, 30], "clip_id": "ascending"},
        {"uri": "h264_default.mp4", "frames": [20, 5, 6, 8, -1], "clip_id": "jumping"},
    ]
    out = shard_clips(index.path, tmp_path_factory.mktemp("animated") / "D", clips)
    return sheet.Inspector(out, sheet.Thumbnails(longest_side=176))


def test_each_frame_is_shown_for_its_own_time(inspector: sheet.Inspector) -> None:
    heading = sheet.heading_of(inspector.dataset, 1)
    pictures, durations = opened(sheet_pictures.webp_sheet(heading, [inspector.show(0)], None))
    assert [shown_frame(picture, heading, 0) for picture in pictures] == [9, 12, 30]
    assert durations == [120, 720, sheet_pictures.REST_MS]


def test_clips_play_at_the_same_time_and_rest_at_their_end(inspector: sheet.Inspector) -> None:
    heading = sheet.heading_of(inspector.dataset, 2)
    pictures, durations = opened(sheet_pictures.webp_sheet(heading, [inspector.show(0), inspector.show(1)], 2))
    first = [shown_frame(picture, heading, 0) for picture in pictures]
    second = [shown_frame(picture, heading, 1) for picture in pictures[:4]]
    # Of the second clip, the gaps are -0.6 (as long as the median of the others, 0.06), 0.04, 0.08 and unknown.
    starts = np.cumsum([0, *durations[:-1]]).tolist()
    assert starts == [0, 60, 100, 120, 180, 240, 840]
    assert first == [9, 9, 9, 12, 12, 12, 30]
    assert second == [20, 5, 6, 6]
    assert shown_frame(pictures[4], heading, 1) == 8


def test_no_place_is_left_out_however_dense_frames_are(inspector: sheet.Inspector) -> None:
    clip = inspector.show(0)
    dense = [replace(one, gap_seconds=None if number == 0 else 0.001) for number, one in enumerate(clip.frames * 5)]
    pictures, durations = opened(
        sheet_pictures.webp_sheet(sheet.heading_of(inspector.dataset, 1), [replace(clip, frames=dense)], None)
    )
    assert len(pictures) == 15
    assert durations[:-1] == [20] * 14


def test_clips_without_frames_and_no_clips_are_sheets(inspector: sheet.Inspector) -> None:
    clip = inspector.show(0)
    pictures, _ = opened(
        sheet_pictures.webp_sheet(
            sheet.heading_of(inspector.dataset, 1), [replace(clip, frames=[], error="x: gone\nmore")], None
        )
    )
    assert len(pictures) == 1
    assert len(opened(sheet_pictures.webp_sheet(sheet.heading_of(inspector.dataset, 0), [], None))[0]) == 1


def test_an_animation_that_is_too_large_is_refused(inspector: sheet.Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheet_pictures, "MAX_WEBP_PIXELS", 300_000)
    with pytest.raises(OutputError, match="too large for an animation"):
        sheet_pictures.webp_sheet(sheet.heading_of(inspector.dataset, 1), [inspector.show(0)], None)


def test_an_animation_that_is_too_large_is_refused_before_anything_is_decoded(
    inspector: sheet.Inspector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decoded: list[int] = []
    monkeypatch.setattr(sheet.Inspector, "show", lambda _, number: decoded.append(number))
    monkeypatch.setattr(sheet_pictures, "MAX_WEBP_PIXELS", 300_000)
    ask = ("inspect", inspector.dataset.manifest.path, "--sample", 2, "--out", tmp_path / "sheet.webp")
    assert "too large for an animation" in run(*ask, code=1).output
    assert (decoded, list(tmp_path.iterdir())) == ([], [])


def test_an_outline_has_the_layout_of_the_clip(inspector: sheet.Inspector) -> None:
    for number in (0, 1):
        outline, shown = inspector.outline(number), inspector.show(number)
        without = [replace(frame, picture=None) for frame in shown.frames]
        assert outline == replace(shown, frames=without, audio=None)


def test_the_command_writes_an_animation(inspector: sheet.Inspector, tmp_path: Path) -> None:
    out = tmp_path / "sheet.webp"
    run("inspect", inspector.dataset.manifest.path, "--sample", 2, "--size", 64, "--columns", 1, "--out", out)
    pictures, _ = opened(out.read_bytes())
    assert len(pictures) == 7


def test_places_last_until_the_next_one() -> None:
    frames = [frame(0, None), frame(1, 0.5), frame(2, 0.25), frame(9, 0.25), frame(3, -1.0), frame(None, None)]
    assert sheet.begins(frames).tolist() == [0, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]
    assert not sheet.ascends(frames)
    assert sheet.ascends([*frames[:4], frame(None, None)])
    assert sheet.begins([frame(0, None)]).tolist() == [0, sheet.FALLBACK_SECONDS]
    assert sheet.begins([]).tolist() == [0]
