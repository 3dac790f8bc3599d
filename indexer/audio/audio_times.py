"""Positions of audio packets on the medium's own sample grid: counted durations, checked against stated times.

Pure numpy.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from framedex.records.clip import NO_PTS

TOLERANCE_SECONDS = Fraction(2, 1000)  # timestamps of remuxed audio carry the rounding of where they came from
TOLERANCE_TICKS = 2
PACKETS_PER_GAP = 10
FREE_GAPS = 10


class AudioProblem(ValueError):  # noqa: N818 - it says what was found, as a reason for having no audio
    """The reason why the audio of a medium is not available sample by sample."""


def positions(pts: NDArray[np.int64], samples: NDArray[np.int64], time_base: Fraction, rate: int) -> NDArray[np.int64]:
    """Return int64 [packets]: the position of each packet's first decoded sample, sample n being at n / rate seconds.

    Positions are the timestamps if the time base counts samples or whole packets, and each packet either follows the
    one before it exactly or leaves a gap that is larger than rounding explains. Otherwise samples are counted. Then
    only a timestamp that is more than 2 ticks and 2 ms after the count makes a gap, unless the timestamp after it
    contradicts it. A packet without samples has the position of the next packet with samples.

    Args:
        pts: int64 [packets], in `time_base`, NO_PTS where missing.
        samples: int64 [packets], how many samples each packet decodes to.
        time_base: in seconds.
        rate: in Hz.

    Raises:
        AudioProblem: if timestamps turn back, are too irregular, or are missing.
    """
    giving = np.flatnonzero(samples > 0)
    if not len(giving):
        raise AudioProblem("no packet decodes to a sample")
    found = _positions(pts[giving], samples[giving], time_base * rate, rate, giving)
    return found[np.minimum(np.searchsorted(giving, np.arange(len(pts))), len(giving) - 1)]


def _positions(
    pts: NDArray[np.int64], samples: NDArray[np.int64], tick: Fraction, rate: int, numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the positions of packets that all hold samples. tick: the time base in samples."""
    stated = pts != NO_PTS
    if not stated[0]:
        raise AudioProblem("the first audio packet has no timestamp")
    if int(np.abs(pts[stated]).max()) * tick >= 1 << 52:
        raise AudioProblem("timestamps of the audio are absurd")
    counted = np.cumsum(samples) - samples
    if tick.denominator == 1 and stated.all() and not (samples[:-1] % tick.numerator).any():
        exact = pts * tick.numerator
        steps = np.diff(exact) - samples[:-1]
        # A smaller step is no gap: Matroska's first Opus packet begins between two milliseconds (RFC 9559 5.1.4.1.25,
        # CodecDelay), all others on one. MP4 files made from Matroska have its milliseconds, in samples.
        if ((steps == 0) | (steps > float(TOLERANCE_SECONDS * rate))).all():
            _check_gaps(int(np.count_nonzero(steps)), len(pts))
            return exact
    # The distance of stated times from counted ones, in samples; a missing one is that of the packet before.
    late = np.where(stated, pts, 0) * float(tick) - counted
    late = late[np.maximum.accumulate(np.where(stated, np.arange(len(pts)), 0))]
    tolerance = max(TOLERANCE_TICKS * float(tick), float(TOLERANCE_SECONDS * rate), 1.0)
    late = _without_outliers(late, tolerance)
    start = np.zeros(len(pts), np.int64)
    first, gaps = 0, 0
    while first < len(pts):
        wrong = np.flatnonzero(np.abs(late[first:] - late[first]) > tolerance)
        end = first + int(wrong[0]) if len(wrong) else len(pts)
        start[first:end] = _first_position(late[first:end], float(tick))
        if first and start[first] < start[first - 1]:
            raise AudioProblem(
                f"timestamps turn back by {(start[first - 1] - start[first]) / rate:.4f} s "
                f"at audio packet {numbers[first]}"
            )
        gaps += first > 0
        _check_gaps(gaps, len(pts))
        first = end
    return counted + start


def _without_outliers(late: NDArray[np.float64], tolerance: float) -> NDArray[np.float64]:
    """Return the distances of stated times from counted ones, with single packets that stand out corrected.

    Such a packet differs from the one before it, while the packet after it does not, and gets the distance of the one
    before. libavformat states such times in Ogg, for Vorbis whose block size changes at the beginning of a page.
    """
    if len(late) < 3:
        return late
    out = (np.abs(late[1:-1] - late[:-2]) > tolerance) & (np.abs(late[2:] - late[:-2]) <= tolerance)
    cleaned = late.copy()
    cleaned[1:-1][out] = late[:-2][out]
    return cleaned


def _check_gaps(gaps: int, packets: int) -> None:
    if gaps > FREE_GAPS + packets // PACKETS_PER_GAP:
        raise AudioProblem(f"timestamps are irregular: {gaps} gaps or more between {packets} audio packets")


def _first_position(late: NDArray[np.float64], tick: float) -> int:
    """Return the first packet's position, as near to its stated time as the rounding of all others to ticks allows."""
    low, high = float(late.max()) - tick / 2, float(late.min()) + tick / 2
    return round(min(max(float(late[0]), low), high) if low <= high + 1e-6 else float(late[0]))


def presented(
    sample: NDArray[np.int64],
    samples: NDArray[np.int64],
    skip: dict[int, tuple[int, int]],
    discarded: NDArray[np.bool_],
    multiplier: int = 1,
) -> tuple[int, int]:
    """Return the half-open interval of samples that a full decode presents, as libavcodec trims packets.

    Args:
        sample: int64 [packets], positions.
        samples: int64 [packets], how many samples packets hold.
        skip: by packet number, how many samples are dropped from there on, and at the packet's end.
        discarded: bool [packets], cut away by an edit list; their samples count towards those that are dropped.
        multiplier: factor of the samples that are dropped from a packet on.

    Raises:
        AudioProblem: if samples in between are cut away, or all of them.
    """
    pieces: list[tuple[int, int, int]] = []
    waiting = 0
    special = set(skip) | set(np.flatnonzero(discarded).tolist())
    trimmed = np.zeros(len(sample), np.bool_)
    for number in range(len(sample)):
        if not waiting and not special:
            break
        if not waiting and number not in special:
            continue
        special.discard(number)
        begin, end = skip.get(number, (0, 0))
        waiting = begin * multiplier or waiting
        count = int(samples[number])
        trimmed[number] = True
        cut = min(waiting, count)
        waiting -= cut
        if not discarded[number] and cut < count:
            left = count - cut - (end if end <= count - cut else 0)
            pieces.append((number, int(sample[number]) + cut, int(sample[number]) + cut + left))
    whole = np.flatnonzero(~trimmed & (samples > 0))
    kept = {number: (begin, end) for number, begin, end in pieces if end > begin}
    numbers = np.union1d(whole, np.array(list(kept), np.int64)).astype(np.int64)
    if not len(numbers):
        raise AudioProblem("the container cuts all samples away")
    first, last = int(numbers[0]), int(numbers[-1])
    for number, (begin, end) in kept.items():
        full = int(sample[number]), int(sample[number] + samples[number])
        if (number > first and begin != full[0]) or (number < last and end != full[1]):
            raise AudioProblem(f"samples of audio packet {number} are cut away in between")
    inner = np.setdiff1d(np.flatnonzero(samples[first:last] > 0) + first, numbers)
    if len(inner):
        raise AudioProblem(f"audio packet {inner[0]} is cut away in between")
    begin = kept[first][0] if first in kept else int(sample[first])
    return begin, kept[last][1] if last in kept else int(sample[last] + samples[last])
