"""The choice of a decoder (NVDEC, nvJPEG or the CPU) for a clip.

It depends on the manifest, the clip's packets and the limits of the GPU driver. For some streams, NVDEC through DALI
returns wrong or stale pictures without an error. For others, the DALI pipeline fails and must be built again. So NVDEC
decodes a clip only if its format was tested and decoded correctly. The CPU decodes all other clips.
"""

from collections.abc import Callable

from framedex.errors import FramedexError
from framedex.loader.arguments import Decode, Device
from framedex.loader.routing.driver import DriverSupport
from framedex.loader.routing.movie import Colour, coded_picture, colour_obstacle, is_deep, nvdec_record
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip
from framedex.sharder.reading import EncodedClip

# The formats of 1 178 clips that one H200 decoded correctly (docs/exactness.md).
PROVEN_PROFILES = {
    "h264": ("Constrained Baseline", "Baseline", "Main", "High"),
    "hevc": ("Main", "Main 10"),
    "vp9": ("Profile 0", "Profile 2"),
}
PROVEN_FORMATS = {
    "h264": ("yuv420p", "yuvj420p"),
    "hevc": ("yuv420p", "yuvj420p", "yuv420p10le"),
    "vp9": ("yuv420p", "yuv420p10le"),
}
PROVEN_CONTAINERS = ("mp4", "matroska")  # containers with length-prefixed packets
# Pixel formats that nvJPEG decodes. None stands for the images that framedex encoded itself. They are in colour, and
# no pixel format is recorded for them.
PROVEN_JPEGS = ("rgb24", None)
MIN_SIZE = {"h264": 48, "hevc": 144, "vp9": 128}
GREATEST_SIZE = {"h264": 4096, "hevc": 8192, "vp9": 8192}
CHROMA_420 = 1
# Mask and value of a shown frame in the first byte of a VP9 frame of profiles 0 to 2 (VP9 6.2). The fields are
# frame_marker, profile, show_existing_frame, frame_type, show_frame and error_resilient_mode.
VP9_HEAD, VP9_PLAIN = 0b11_00_1_0_1_0, 0b10_00_0_0_1_0
VP9_PROFILE_3 = 0b00_11_0_0_0_0
# Mask and value of the marker in the last byte of a superframe (VP9 annex B).
VP9_INDEX, VP9_INDEX_MARKER = 0b111_00000, 0b110_00000


def gpu_obstacle(
    clip: Clip, packets: EncodedClip | None = None, caps: DriverSupport | None = None, *, colour: Colour = "close"
) -> str | None:
    """Return the reason why NVDEC must not decode a clip, as `rule` or `rule: found`, or None if NVDEC may decode it.

    Args:
        clip: The clip.
        packets: The clip's packets. They are needed only for VP9, whose hidden frames are not in the manifest. If None,
            VP9 clips are not decoded on NVDEC.
        caps: The limits of the device. If None, only the formats tested on an H200 are checked.
        colour: The required accuracy of colours (`colour_obstacle`).
    """
    for rule, check in RULES.items():
        found = check(clip)
        if found is not None:
            return f"{rule}: {found}" if found else rule
    medium = clip.medium
    if medium.codec == "vp9" and (packets is None or has_hidden_frames(packets)):
        return "hidden frames: not known without its packets" if packets is None else "hidden frames"
    if (lost := colour_obstacle(medium, colour)) is not None:
        return f"colour: {lost}"
    if caps is not None:
        coded = coded_picture(medium.codec, medium.extradata or b"")
        width, height = (medium.width, medium.height) if coded is None else (coded.width, coded.height)
        if (lack := caps.lack(medium.codec, CHROMA_420, 10 if is_deep(medium) else 8, width, height)) is not None:
            return f"driver: {lack}"
    return None


def nvjpeg_obstacle(clip: Clip) -> str | None:
    """Return the reason why nvJPEG must not decode a clip of images, or None if nvJPEG may decode it."""
    medium = clip.medium
    if medium.codec != "mjpeg":
        return f"codec: {medium.codec}"
    if medium.pixel_format not in PROVEN_JPEGS:
        return f"pixels: {medium.pixel_format}"
    return "pictures of several sizes" if medium.varying_shape else None


def has_hidden_frames(packets: EncodedClip) -> bool:
    """Return whether any VP9 packet does not contain exactly one coded frame that is shown.

    DALI assigns one decoded picture to each packet. It returns wrong frames after a superframe (a hidden frame and a
    shown frame in one packet), after a packet with only a hidden frame, and after a packet that shows an earlier frame
    again.
    """
    if (packets.packet_first[1:] == packets.packet_first[:-1]).any():
        return True
    head, last = packets.payload[packets.packet_first[:-1]], packets.payload[packets.packet_first[1:] - 1]
    is_plain = (head & VP9_HEAD == VP9_PLAIN) & (head & VP9_PROFILE_3 != VP9_PROFILE_3)
    return not bool((is_plain & (last & VP9_INDEX != VP9_INDEX_MARKER)).all())


def _unproven_profile(clip: Clip) -> str | None:
    medium = clip.medium
    is_proven = medium.profile in PROVEN_PROFILES[medium.codec] and medium.pixel_format in PROVEN_FORMATS[medium.codec]
    return None if is_proven else f"{medium.profile}, {medium.pixel_format}"


def _unproven_size(clip: Clip) -> str | None:
    medium = clip.medium
    least, most = MIN_SIZE[medium.codec], GREATEST_SIZE[medium.codec]
    is_proven = least <= medium.width <= most and least <= medium.height <= most
    return None if is_proven else f"{medium.width}x{medium.height}"


def _changing_sets(clip: Clip) -> str | None:
    medium = clip.medium
    return "" if medium.inband_parameter_sets or medium.varying_shape or len(medium.states) > 1 else None


def _fixed_header(clip: Clip) -> str | None:
    medium, record = clip.medium, clip.medium.extradata or b""
    if medium.codec == "vp9":
        return None
    if nvdec_record(medium.codec, record) is None:
        return "a configuration record that no filter can rewrite"
    coded = coded_picture(medium.codec, record)
    if coded is None or (coded.shown_width, coded.shown_height) != (medium.width, medium.height):
        return "a configuration record with another or unknown cropping"
    return None


def _open_start(clip: Clip) -> str | None:
    # In H.264, DALI accepts only IDR pictures as random access points. In HEVC, the first run may begin at a CRA
    # picture, but later runs must not. The picture order count of a later CRA picture is derived from the run before
    # it, and becomes wrong if more than half a cycle of the count lies between the runs. (100 clips with shorter
    # distances were decoded correctly. Longer distances were not tested.)
    is_open = clip.recipe.run_open
    return "" if is_open.any() and (clip.medium.codec == "h264" or is_open[1:].any()) else None


# The rules by name. A rule returns None for a clip that NVDEC may decode. Otherwise it returns the value that was not
# tested, or "" if the rule's name says everything. A rule may assume that the rules above it returned None.
RULES: dict[str, Callable[[Clip], str | None]] = {
    "images": lambda clip: "" if clip.medium.kind == IMAGES else None,
    "codec": lambda clip: None if clip.medium.codec in PROVEN_PROFILES else clip.medium.codec,
    "container": lambda clip: None if clip.medium.container in PROVEN_CONTAINERS else clip.medium.container,
    "profile": _unproven_profile,
    "monochrome or not 4:2:0": lambda clip: "" if clip.medium.chroma_format != CHROMA_420 else None,
    "size": _unproven_size,
    # For such streams, DALI 2.4 requests a picture buffer of size 0, and NVDEC returns CUDA_ERROR_INVALID_VALUE.
    "no reference frames": lambda clip: "" if clip.medium.max_ref_frames == 0 else None,
    "hidden pictures out of order": lambda clip: "" if clip.medium.hidden_unordered else None,
    "field-coded pictures": lambda clip: "" if clip.medium.field_coded else None,
    "changing parameter sets": _changing_sets,
    "a damaged GOP": lambda clip: "" if clip.recipe.damaged else None,
    "start codes inside length-prefixed units": lambda clip: "" if clip.medium.inner_start_codes else None,
    "an open start point": _open_start,
    "header": _fixed_header,
}


Share = float | None


def is_on_cpu(place: int, share: float) -> bool:
    """Return whether the CPU decodes the clip at a given place of an epoch, if the CPU decodes a fixed share of clips.

    Of any n consecutive clips, the CPU decodes n × share, rounded up or down.
    """
    return int((place + 1) * share) > int(place * share)


def fixed_share(device: Device, decode: Decode, cpu_share: Share, workers: int) -> float | None:
    """Return the share of clips that workers decode on the CPU, or None if `Balance` decides for each clip.

    Raises:
        FramedexError: `cpu_share` is out of range.
    """
    if cpu_share is not None and not (isinstance(cpu_share, int | float) and 0 <= cpu_share <= 1):
        raise FramedexError("cpu_share is out of range", found=repr(cpu_share), allowed="0 to 1, or None")
    if device == "cpu" or decode == "cpu":
        return 1.0
    return 0.0 if decode == "gpu" or (cpu_share is None and not workers) else cpu_share
