"""Queries of the video formats that an NVIDIA GPU decodes, through libcuda and libnvcuvid (NVDECODE API)."""

import ctypes
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

LIBRARIES = ("libcuda.so.1", "libnvcuvid.so.1")  # the driver's libraries, with their ABI versions
CODECS = {"h264": 4, "hevc": 8, "vp8": 9, "vp9": 10, "av1": 11}  # cudaVideoCodec
DEPTHS = (8, 10, 12)
SUCCESS = 0  # CUDA_SUCCESS
BLOCKING_SYNC = 4  # CU_CTX_SCHED_BLOCKING_SYNC
MACROBLOCK = 256  # the number of pixels of a macroblock, 16 × 16. The driver limits pictures in macroblocks

Format = tuple[str, int, int]  # codec, chroma_format_idc, bits


class DecodeCaps(ctypes.Structure):
    """The structure CUVIDDECODECAPS of cuviddec.h. The caller fills in the format, and the driver its limits."""

    _fields_ = (
        ("codec", ctypes.c_int),
        ("chroma_format", ctypes.c_int),
        ("bits_minus_8", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 3),
        ("is_supported", ctypes.c_ubyte),
        ("engines", ctypes.c_ubyte),
        ("output_formats", ctypes.c_ushort),
        ("most_width", ctypes.c_uint),
        ("most_height", ctypes.c_uint),
        ("most_macroblocks", ctypes.c_uint),
        ("least_width", ctypes.c_ushort),
        ("least_height", ctypes.c_ushort),
        ("histogram", ctypes.c_ubyte * 4),
        ("reserved_too", ctypes.c_uint * 10),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLimits:
    """The minimum and maximum size of the coded pictures that a hardware decoder accepts.

    Attributes:
        least_width, least_height, most_width, most_height: The bounds in pixels.
        most_macroblocks: The maximum of width × height / MACROBLOCK.
        engines: The number of NVDEC engines of the device that decode this format.
    """

    least_width: int
    least_height: int
    most_width: int
    most_height: int
    most_macroblocks: int
    engines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSupport:
    """The formats that a device decodes.

    Attributes:
        limits: The limits of each supported format, by (codec, chroma_format_idc, bits).
        reason: The reason why the limits could not be queried. None if they are known.
    """

    limits: Mapping[Format, DecoderLimits] = field(default_factory=dict)
    reason: str | None = None

    def lack(self, codec: str, chroma_format: int, bits: int, width: int, height: int) -> str | None:
        """Return the reason why the device cannot decode pictures of this format and size, or None if it can."""
        if self.reason is not None:
            return self.reason
        limits = self.limits.get((codec, chroma_format, bits))
        if limits is None:
            return f"this device has no decoder for {codec} of {bits} bits, chroma format {chroma_format}"
        fits = limits.least_width <= width <= limits.most_width and limits.least_height <= height <= limits.most_height
        if fits and width * height // MACROBLOCK <= limits.most_macroblocks:
            return None
        return (
            f"{width}x{height}: this device decodes {codec} from {limits.least_width}x{limits.least_height} to "
            f"{limits.most_width}x{limits.most_height}, {limits.most_macroblocks} macroblocks"
        )


@functools.lru_cache
def driver_support(device_id: int = 0) -> DriverSupport:
    """Query the formats that a device decodes from the driver.

    Args:
        device_id: The CUDA ordinal of the device.

    Returns:
        The formats and their limits, or the reason why the driver or the device cannot be used.
    """
    try:
        cuda, cuvid = (ctypes.CDLL(name) for name in LIBRARIES)
    except OSError as error:
        return DriverSupport(reason=f"no NVIDIA video driver: {error}")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for call, arguments in (
        (cuda.cuInit, (0,)),
        (cuda.cuDeviceGet, (ctypes.byref(device), device_id)),
        (cuda.cuDevicePrimaryCtxRetain, (ctypes.byref(context), device)),
    ):
        if (code := call(*arguments)) != SUCCESS:
            return DriverSupport(reason=f"CUDA device {device_id}: {call.__name__} returns {code}")
    try:
        if (code := cuda.cuCtxPushCurrent_v2(context)) != SUCCESS:
            return DriverSupport(reason=f"CUDA device {device_id}: its context cannot be used, error {code}")
        try:
            limits = {}
            # The enumeration cudaVideoChromaFormat has the same values as chroma_format_idc: 0 to 3.
            for codec, chroma_format, bits in itertools.product(CODECS, range(4), DEPTHS):
                caps = DecodeCaps(codec=CODECS[codec], chroma_format=chroma_format, bits_minus_8=bits - 8)
                answer = cuvid.cuvidGetDecoderCaps(ctypes.byref(caps))
                if answer == SUCCESS and (own := limits_of(caps)) is not None:
                    limits[codec, chroma_format, bits] = own
            return DriverSupport(limits=limits)
        finally:
            cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)


def sleep_while_waiting(device_id: int) -> None:
    """Let threads of this process sleep while they wait for a device. By default, CUDA lets them spin.

    This must be called before the process uses the device. If the driver refuses, threads spin.
    """
    try:
        cuda = ctypes.CDLL(LIBRARIES[0])
    except OSError:
        return  # without a driver, the first use of the device raises an error
    device = ctypes.c_int()
    if cuda.cuInit(0) == SUCCESS and cuda.cuDeviceGet(ctypes.byref(device), device_id) == SUCCESS:
        cuda.cuDevicePrimaryCtxSetFlags_v2(device, BLOCKING_SYNC)


def limits_of(caps: DecodeCaps) -> DecoderLimits | None:
    """Return the limits that the driver has filled in, or None if the driver does not support the format."""
    limits = {field.name: getattr(caps, field.name) for field in fields(DecoderLimits)}
    return DecoderLimits(**limits) if caps.is_supported else None
