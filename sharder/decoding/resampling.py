"""Mixing of channels and conversion of the sample rate, in pure numpy.

A sample has the same value in every clip that contains it.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError

HALF = math.sqrt(0.5)  # 3 dB: ITU-R BS.775 table 2 attenuates channels that are mixed into left and right by this
LEFT = {"FL": 1.0, "FC": HALF, "BL": HALF, "SL": HALF, "BC": 0.5}
RIGHT = {"FR": 1.0, "FC": HALF, "BR": HALF, "SR": HALF, "BC": 0.5}
# Channel orders by FFmpeg's names.
LAYOUTS = {
    name: channels.split()
    for name, channels in {
        "2.1": "FL FR LFE", "3.0": "FL FR FC", "3.0(back)": "FL FR BC", "3.1": "FL FR FC LFE", "4.0": "FL FR FC BC",
        "4.1": "FL FR FC LFE BC", "quad": "FL FR BL BR", "quad(side)": "FL FR SL SR", "5.0": "FL FR FC BL BR",
        "5.0(side)": "FL FR FC SL SR", "5.1": "FL FR FC LFE BL BR", "5.1(side)": "FL FR FC LFE SL SR",
        "6.0": "FL FR FC BC SL SR", "6.1": "FL FR FC LFE BC SL SR", "7.0": "FL FR FC BL BR SL SR",
        "7.1": "FL FR FC LFE BL BR SL SR",
    }.items()
}  # fmt: skip
STOPBAND_DB = 100.0
PASSBAND = 0.91  # of the lower Nyquist frequency; the filter falls from there on and is fully down at that frequency


def mix_matrix(layout: str, source: int, channels: int) -> NDArray[np.float64]:
    """Return float64 [channels, source]: the weight of each of the medium's channels in each wanted channel.

    - The same number of channels: unchanged.
    - To one channel: the mean of all.
    - From one channel: a copy in each.
    - From surround to two: ITU-R BS.775, by the layout's name. Front channels are whole, centre and surrounds 3 dB
        down, and a single back channel 6 dB down. Low-frequency effects are dropped. The result is not scaled down, so
        the sum can pass 1.

    Raises:
        PolicyError: Any other combination.
    """
    if channels == source:
        return np.eye(source)
    if channels == 1:
        return np.full((1, source), 1 / source)
    if source == 1:
        return np.ones((channels, 1))
    names = LAYOUTS.get(layout, [])
    if channels == 2 and len(names) == source:
        return np.array([[side.get(name, 0.0) for name in names] for side in (LEFT, RIGHT)])
    raise PolicyError(
        f"no rule mixes {source} channels ({layout}) to {channels}",
        allowed="1 channel, the medium's own number, or 2 of a known layout",
    )


def remix(samples: NDArray[np.float32], layout: str, channels: int) -> NDArray[np.float32]:
    """Return float32 [channels, samples] of float32 [source channels, samples], by `mix_matrix`. Raises PolicyError."""
    matrix = mix_matrix(layout, len(samples), channels)
    return samples if len(samples) == channels else (matrix @ samples.astype(np.float64)).astype(np.float32)


def margin(rate: int, out_rate: int) -> int:
    """Return how many samples at `rate` resampling needs before and after the wanted ones."""
    return 0 if rate == out_rate else _half_taps(rate, out_rate) + 1


def resample(
    samples: NDArray[np.float32],
    mask: NDArray[np.bool_],
    first_sample: int,
    rate: int,
    out_rate: int,
    begin: int,
    count: int,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return float32 [channels, count] and bool [count]: samples begin, begin + 1, … of the grid k / out_rate.

    The filter is a Kaiser-windowed sinc, down by `STOPBAND_DB` from the lower Nyquist frequency on. A sample has the
    same value in every clip that contains it, except for rounding in the 53rd bit of sums.

    Args:
        samples: float32 [channels, n] from `first_sample` of the grid k / rate on, with `margin` more on both sides
            than wanted.
        mask: bool [n], whether each of them is presented. An output sample is presented if the source sample under it
            is; otherwise it is zero.
        first_sample: Number of the first source sample on the grid k / rate.
        rate: Of the source, in Hz.
        out_rate: Of the output, in Hz.
        begin: Number of the first output sample on the grid k / out_rate.
        count: Number of output samples.

    Raises:
        ValueError: The margin is missing.
    """
    if rate == out_rate:
        here = slice(begin - first_sample, begin - first_sample + count)
        if here.start < 0 or here.stop > len(mask):
            raise ValueError(f"samples {begin} to {begin + count} of {first_sample} to {first_sample + len(mask)}")
        return samples[:, here], mask[here]
    divisor = math.gcd(rate, out_rate)
    up, down = out_rate // divisor, rate // divisor
    half = _half_taps(rate, out_rate)
    bank = _filter_bank(rate, out_rate)
    out, out_mask = np.zeros((len(samples), count), np.float32), np.zeros(count, np.bool_)
    if not count:
        return out, out_mask
    under = (np.arange(begin, begin + count, dtype=np.int64) * down) // up - first_sample
    if under[0] - half + 1 < 0 or under[-1] + half >= len(mask):
        raise ValueError(f"resampling needs {half} samples on both sides of {under[0]} to {under[-1]}, of {len(mask)}")
    out_mask[:] = mask[under]
    windows = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), 2 * half, axis=1)
    for number in range(min(up, count)):
        # Every up-th output sample lies at the same place between two source samples, and thus uses the same filter.
        taps = bank[(begin + number) * down % up]
        start, stop = int(under[number]) - half + 1, int(under[number + (count - 1 - number) // up * up]) - half + 2
        out[:, number::up] = windows[:, start:stop:down] @ taps
    out[:, ~out_mask] = 0
    return out, out_mask


TEMPORARIES = 9  # arrays of the size of a filter bank, while it is made


def filter_bytes(rate: int, out_rate: int) -> int:
    """Return the memory, in bytes, in which the filters that resample from one rate to another are made."""
    up = out_rate // math.gcd(rate, out_rate)
    return 0 if rate == out_rate else up * 2 * _half_taps(rate, out_rate) * 8 * TEMPORARIES


def _half_taps(rate: int, out_rate: int) -> int:
    """Return half the length of the filter in source samples: Kaiser's formula for the transition band."""
    transition = (1 - PASSBAND) * 0.5 * min(1.0, out_rate / rate)  # of the source rate
    return math.ceil((STOPBAND_DB - 7.95) / (2.285 * 2 * math.pi * transition) / 2)


@functools.lru_cache(maxsize=4)
def _filter_bank(rate: int, out_rate: int) -> NDArray[np.float64]:
    """Return float64 [phases, taps]: the filter for each place of an output sample between two source samples.

    Tap t stands for the source sample t - half + 1 after the one under the output sample.
    """
    half, up = _half_taps(rate, out_rate), out_rate // math.gcd(rate, out_rate)
    distance = np.arange(up)[:, None] / up - (np.arange(2 * half) - half + 1)[None, :]
    cutoff = 0.5 * (1 + PASSBAND) * min(1.0, out_rate / rate)  # of the source's Nyquist frequency, mid-transition
    beta = 0.1102 * (STOPBAND_DB - 8.7)
    window = np.i0(beta * np.sqrt(np.clip(1 - (distance / half) ** 2, 0, None))) / np.i0(beta)
    bank: NDArray[np.float64] = cutoff * np.sinc(cutoff * distance) * window
    bank /= bank.sum(axis=1, keepdims=True)  # a constant keeps its value
    bank.flags.writeable = False
    return bank
