"""Numbers for people have few digits, no exponent, and the unit that fits."""

from __future__ import annotations

import pytest

from framedex.core.words import duration_text, number_text, rate_text, size_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1, "1"), (25.0, "25"), (29.97, "30"), (14.925, "14.9"), (0.0666, "0.0666"), (999.6, "1,000"),
        (9.996, "10"), (1000, "1,000"), (1234567, "1,234,567"), (-0.5, "-0.5"), (0.00012345, "0.000123"),
        (1e-9, "1e-09"), (float("nan"), "nan"), (float("inf"), "inf"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (25, 25, "25 fps"), (24.9, 25, "25 fps"), (14.9254, 30.303, "14.9–30.3 fps"), (500, 1000, "500–1,000 fps"),
        (0.1, 120, "0.1–120 fps"), (999.7, 1e6, "1,000–1,000,000 fps"), (29.97, 29.97, "30 fps"),
    ],
)  # fmt: skip
def test_rates_are_a_number_or_a_range(low: float, high: float, text: str) -> None:
    assert rate_text(low, high) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.08, "0.08 s"), (2, "2 s"), (23.966, "23.97 s"), (59.994, "59.99 s"), (60, "1 min"),
        (250, "4.2 min"), (3599, "60 min"), (10080, "2.8 h"), (360_000, "100 h"), (86_400 * 400, "9,600 h"),
    ],
)  # fmt: skip
def test_durations_have_a_unit_that_fits(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (144_292, "144 kB"), (999_600, "1 MB"),
        (1_536_000, "1.54 MB"), (2_000_000_000, "2 GB"), (5e15, "5,000 TB"),
    ],
)  # fmt: skip
def test_sizes_have_a_unit_that_fits(size_bytes: float, text: str) -> None:
    assert size_text(size_bytes) == text
