"""Slices of MPEG-1 and MPEG-2: a picture whose slices do not lie in its rows is damaged."""

from __future__ import annotations

import numpy as np
import pytest

from framedex.indexer.bitstream.mpeg import mpeg12, mpeg12_slices

SEQUENCE = bytes.fromhex("000001b3 0b0090 13 ffffe018".replace(" ", ""))  # MPEG-1, 176×144
I_PICTURE = b"\0\0\1\0\0\x0f\xff\xf8"


def units(*codes: int) -> bytes:
    return b"".join(b"\0\0\1" + bytes([code]) + b"\xff" * 3 for code in codes)


@pytest.mark.parametrize(
    ("height", "progressive", "field", "rows"),
    [(144, True, False, 9), (145, True, False, 10), (144, False, False, 10), (1080, False, True, 34)],
)
def test_rows_of_macroblocks(height: int, progressive: bool, field: bool, rows: int) -> None:
    assert mpeg12_slices.macroblock_rows(height, progressive=progressive, field=field) == rows


def test_start_codes_are_found_in_order() -> None:
    assert mpeg12_slices.start_codes(SEQUENCE + I_PICTURE + units(1, 2)).tolist() == [0xB3, 0, 1, 2]
    assert mpeg12_slices.start_codes(b"\0\0\1").tolist() == mpeg12_slices.start_codes(b"").tolist() == []


@pytest.mark.parametrize(
    ("codes", "every_row", "fit"),
    [
        ([0, 1, 2, 3], True, True),
        ([0, 0xB5, 1, 1, 2, 3, 3], True, True),
        ([0xB3, 0, 0xB5, 1, 2, 3, 0, 1, 2, 3], True, True),
        ([0, 1], False, True),
        ([0, 1], True, False),
        ([0, 1, 3], True, False),
        ([0, 1, 3], False, True),
        ([0, 2, 3], False, False),
        ([0, 1, 3, 2], False, False),
        ([0, 1, 2, 3, 0x23], True, False),
        ([0, 1, 0x46], False, False),
        ([1, 2, 3], True, False),
        ([0, 1, 2, 3, 0, 1, 2], True, False),
        ([0], True, True),
        ([0xB7], True, True),
    ],
)
def test_slices_fit_into_three_rows(codes: list[int], every_row: bool, fit: bool) -> None:
    assert mpeg12_slices.slices_fit(np.array(codes, np.uint8), 3, every_row=every_row) is fit


@pytest.mark.parametrize(("codes", "damaged"), [([1, 9], False), ([1, 10], True), ([2], True), ([1, 5, 4], True)])
def test_a_picture_with_slices_elsewhere_is_damaged(codes: list[int], damaged: bool) -> None:
    scanner = mpeg12.Mpeg12Scanner(b"")
    scanner.feed(SEQUENCE + I_PICTURE + units(*codes))
    assert scanner.finish().damaged.tolist() == [damaged]
