"""What the NVIDIA driver says its video decoder supports, queried through libcuda and libnvcuvid (NVDECODE API)."""

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

LIBRARIES = ("libcuda.so.1", "libnvcuvid.so.1")  # the driver's libraries, by their ABI names
CODECS = {"h264": 4, "hevc": 8, "vp8": 9, "vp9": 10, "av1": 11}  # cudaVideoCodec
CHROMA_FORMATS = (0, 1, 2, 3)  # cudaVideoChromaFormat, numbered as chroma_format_idc
DEPTHS = (8, 10, 12)
SUCCESS = 0  # CUDA_SUCCESS
MACROBLOCK = 256  # pixels

Format = tuple[str, int, int]  # codec, chroma_format_idc, bits


class DecodeCaps(ctypes.Structure):
    """CUVIDDECODECAPS of cuviddec.h: the request, and the driver's answer."""

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
    """The sizes of coded pictures that a decoder accepts.

    Attributes:
        least_width: in pixels.
        least_height: in pixels.
        most_width: in pixels.
        most_height: in pixels.
        most_macroblocks: width × height / MACROBLOCK, at most.
        engines: how many of the device's engines decode such pictures.
    """

    least_width: int
    least_height: int
    most_width: int
    most_height: int
    most_macroblocks: int
    engines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSupport:
    """What a device decodes.

    Attributes:
        limits: limits by (codec, chroma_format_idc, bits).
        reason: why nothing is known, else None.
    """

    limits: Mapping[Format, DecoderLimits] = field(default_factory=dict)
    reason: str | None = None

    def lack(self, codec: str, chroma_format: int, bits: int, width: int, height: int) -> str | None:
        """Return why the device does not decode such pictures, or None if it does."""
        if self.reason is not None:
            return self.reason
        limits = self.limits.get((codec, chroma_format, bits))
        if limits is None:
            return f"this device has no decoder for {codec} of {bits} bits, chroma format {chroma_format}"
        if not (
            limits.least_width <= width <= limits.most_width
            and limits.least_height <= height <= limits.most_height
            and width * height // MACROBLOCK <= limits.most_macroblocks
        ):
            return (
                f"{width}x{height}: this device decodes {codec} from {limits.least_width}x{limits.least_height} to "
                f"{limits.most_width}x{limits.most_height}, {limits.most_macroblocks} macroblocks"
            )
        return None


@functools.lru_cache
def driver_support(device_id: int = 0) -> DriverSupport:
    """Ask the driver what a device decodes. The device's number is that of CUDA.

    Returns:
        The limits, or the reason why there is no usable driver or device.
    """
    try:
        cuda, cuvid = (ctypes.CDLL(name) for name in LIBRARIES)
    except OSError as error:
        return DriverSupport(reason=f"no NVIDIA video driver: {error}")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for call, arguments in (
        (cuda.cuInit, (0,)),
        (cuda.cuDeviceGet, (ctypes.byref(device), device_id)),
    ):
        if (code := call(*arguments)) != SUCCESS:
            return DriverSupport(reason=f"CUDA device {device_id}: {call.__name__} returns {code}")
    if (code := cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)) != SUCCESS:
        return DriverSupport(reason=f"CUDA device {device_id}: no context, error {code}")
    try:
        if (code := cuda.cuCtxPushCurrent_v2(context)) != SUCCESS:
            return DriverSupport(reason=f"CUDA device {device_id}: its context cannot be used, error {code}")
        try:
            return DriverSupport(limits=_ask_all(cuvid))
        finally:
            cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)


def _ask_all(cuvid: ctypes.CDLL) -> dict[Format, DecoderLimits]:
    found = {}
    for codec, number in CODECS.items():
        for chroma_format in CHROMA_FORMATS:
            for bits in DEPTHS:
                caps = DecodeCaps(codec=number, chroma_format=chroma_format, bits_minus_8=bits - 8)
                limits = limits_of(caps) if cuvid.cuvidGetDecoderCaps(ctypes.byref(caps)) == SUCCESS else None
                if limits is not None:
                    found[codec, chroma_format, bits] = limits
    return found


def limits_of(caps: DecodeCaps) -> DecoderLimits | None:
    """Return the limits in a driver's answer, or None if it does not support such pictures."""
    if not caps.is_supported:
        return None
    return DecoderLimits(
        least_width=caps.least_width,
        least_height=caps.least_height,
        most_width=caps.most_width,
        most_height=caps.most_height,
        most_macroblocks=caps.most_macroblocks,
        engines=caps.engines,
    )
