"""How a driver's answers are interpreted, and what is reported on a machine without a driver."""

from __future__ import annotations

import ctypes
import ctypes.util
import pickle

import pytest

from framedex.loader.routing.driver import DecodeCaps, DecoderLimits, DriverSupport, driver_support, limits_of
from tests.support.outcomes import A_GPU

HEVC = DecoderLimits(
    least_width=144, least_height=144, most_width=8192, most_height=8192, most_macroblocks=262144, engines=7
)


def test_an_answer_is_read_where_the_header_has_it() -> None:
    assert ctypes.sizeof(DecodeCaps) == 88
    answer = bytearray(88)
    answer[0:4] = (8).to_bytes(4, "little")
    answer[24:26] = bytes([1, 7])  # bIsSupported, nNumNVDECs
    for at, value, size in ((28, 8192, 4), (32, 8192, 4), (36, 262144, 4), (40, 144, 2), (42, 144, 2)):
        answer[at : at + size] = value.to_bytes(size, "little")
    assert limits_of(DecodeCaps.from_buffer(answer)) == HEVC
    answer[24] = 0
    assert limits_of(DecodeCaps.from_buffer(answer)) is None


def test_what_a_device_lacks_is_said() -> None:
    support = DriverSupport(limits={("hevc", 1, 10): HEVC})
    assert support.lack("hevc", 1, 10, 1280, 720) is None
    assert support.lack("hevc", 1, 10, 144, 144) is None
    assert "no decoder for av1" in str(support.lack("av1", 1, 8, 1280, 720))
    assert "no decoder for hevc of 8 bits" in str(support.lack("hevc", 1, 8, 1280, 720))
    assert str(support.lack("hevc", 1, 10, 128, 720)).startswith("128x720")
    assert str(support.lack("hevc", 1, 10, 8193, 720)).startswith("8193x720")
    few = DriverSupport(
        limits={
            ("hevc", 1, 10): DecoderLimits(
                **{f: getattr(HEVC, f) for f in DecoderLimits.__slots__} | {"most_macroblocks": 10}
            )
        }
    )
    assert "10 macroblocks" in str(few.lack("hevc", 1, 10, 1280, 720))
    assert pickle.loads(pickle.dumps(support)) == support


def test_without_a_driver_nothing_is_supported_and_the_reason_is_said() -> None:
    if ctypes.util.find_library("nvcuvid"):
        pytest.skip(A_GPU)
    support = driver_support(0)
    assert support.limits == {}
    assert "no NVIDIA video driver" in str(support.reason)
    assert support.lack("h264", 1, 8, 1280, 720) == support.reason
