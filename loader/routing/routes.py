"""Chooses the decoder of a clip: a pure function of the manifest, the clip's bytes, and what the driver supports.

NVDEC through DALI returns wrong or stale pictures without an error for some streams, and breaks its pipeline on others.
So a clip goes there only if streams like it were shown to be decoded right. Everything else is decoded on the CPU.

Which clips the CPU decodes beside a GPU if its share is fixed: pure functions of a clip's place in the epoch.
"""

from collections.abc import Callable

from framedex.errors import FramedexError
from framedex.loader.arguments import Decode, Device
from framedex.loader.routing.driver import DriverSupport
from framedex.loader.routing.movie import Colour, coded_picture, colour_obstacle, is_deep, nvdec_record
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip
from framedex.sharder.reading import EncodedClip

# What was decoded right in 1 178 planned clips on one H200 (docs/exactness.md).
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
PROVEN_CONTAINERS = ("mp4", "matroska")  # where packets are length-prefixed
PROVEN_JPEGS = ("rgb24", None)  # colour; no format is recorded for images that framedex stored
MIN_SIZE = {"h264": 48, "hevc": 144, "vp9": 128}
GREATEST_SIZE = {"h264": 4096, "hevc": 8192, "vp9": 8192}
CHROMA_420 = 1
# The first byte of a VP9 frame of profiles 0 to 2 (VP9 6.2): frame_marker, profile, show_existing_frame, show_frame.
VP9_HEAD, VP9_PLAIN = 0b11_00_1_0_1_0, 0b10_00_0_0_1_0
VP9_PROFILE_3 = 0b00_11_0_0_0_0
VP9_INDEX, VP9_INDEX_MARKER = 0b111_00000, 0b110_00000  # the last byte of a superframe (VP9 annex B)


def gpu_obstacle(
    clip: Clip, packets: EncodedClip | None = None, caps: DriverSupport | None = None, *, colour: Colour = "close"
) -> str | None:
    """Return why a clip must not go to NVDEC, as `rule` or `rule: found`, or None if it may.

    Args:
        clip: the clip.
        packets: the clip's bytes. Without them, codecs for which they decide stay on the CPU.
        caps: what the device supports. None: it was not queried, and what one H200 supported counts.
        colour: how close colours must come (`colour_obstacle`).
    """
    for rule, found in RULES.items():
        found_here = found(clip)
        if found_here is not None:
            return f"{rule}: {found_here}" if found_here else rule
    medium = clip.medium
    if medium.codec == "vp9" and (packets is None or has_hidden_frames(packets)):
        return "hidden frames: not known without its packets" if packets is None else "hidden frames"
    lost = colour_obstacle(medium, colour)
    if lost is not None:
        return f"colour: {lost}"
    if caps is not None:
        coded = coded_picture(medium.codec, medium.extradata or b"")
        width, height = (medium.width, medium.height) if coded is None else (coded.width, coded.height)
        lack = caps.lack(medium.codec, CHROMA_420, 10 if is_deep(medium) else 8, width, height)
        if lack is not None:
            return f"driver: {lack}"
    return None


def nvjpeg_obstacle(clip: Clip) -> str | None:
    """Return why a clip of images must not go to nvJPEG, or None if it may."""
    medium = clip.medium
    if medium.codec != "mjpeg":
        return f"codec: {medium.codec}"
    if medium.pixel_format not in PROVEN_JPEGS:
        return f"pixels: {medium.pixel_format}"
    return "pictures of several sizes" if medium.varying_shape else None


def has_hidden_frames(packets: EncodedClip) -> bool:
    """Return whether any VP9 packet does not hold exactly one frame that is decoded and shown.

    DALI pairs decoded pictures with packets. Superframes (a hidden frame and a shown one), separate hidden frames, and
    frames that show an earlier frame again all make it return other frames.
    """
    if (packets.packet_first[1:] == packets.packet_first[:-1]).any():
        return True
    head, last = packets.payload[packets.packet_first[:-1]], packets.payload[packets.packet_first[1:] - 1]
    is_plain = (head & VP9_HEAD == VP9_PLAIN) & (head & VP9_PROFILE_3 != VP9_PROFILE_3)
    return not bool((is_plain & (last & VP9_INDEX != VP9_INDEX_MARKER)).all())


def _unproven_codec(clip: Clip) -> str | None:
    return None if clip.medium.codec in PROVEN_PROFILES else clip.medium.codec


def _unproven_container(clip: Clip) -> str | None:
    return None if clip.medium.container in PROVEN_CONTAINERS else clip.medium.container


def _unproven_profile(clip: Clip) -> str | None:
    medium = clip.medium
    if medium.profile in PROVEN_PROFILES[medium.codec] and medium.pixel_format in PROVEN_FORMATS[medium.codec]:
        return None
    return f"{medium.profile}, {medium.pixel_format}"


def _unproven_size(clip: Clip) -> str | None:
    medium = clip.medium
    sides, codec = (medium.width, medium.height), medium.codec
    if all(MIN_SIZE[codec] <= side <= GREATEST_SIZE[codec] for side in sides):
        return None
    return f"{medium.width}x{medium.height}"


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
        return "a configuration record that does not say how pictures are cropped"
    return None


def _open_start(clip: Clip) -> str | None:
    # In H.264, DALI counts only IDR pictures as starts. In HEVC, the first run may begin at a CRA picture. A CRA
    # picture that is spliced to the run before it continues that run's picture order count, which turns back when more
    # than half a cycle is cut out. (100 clips with short cuts were decoded right, but that is not all clips.)
    is_open = clip.recipe.run_open
    return "" if is_open.any() and (clip.medium.codec == "h264" or is_open[1:].any()) else None


# Each rule by name. It returns what excludes a clip from NVDEC, "" if the rule's name says enough, or None. Rules may
# rely on the rules before them.
RULES: dict[str, Callable[[Clip], str | None]] = {
    "images": lambda clip: "" if clip.medium.kind == IMAGES else None,
    "codec": _unproven_codec,
    "container": _unproven_container,
    "profile": _unproven_profile,
    "monochrome or not 4:2:0": lambda clip: "" if clip.medium.chroma_format != CHROMA_420 else None,
    "size": _unproven_size,
    # DALI 2.4 requests an empty picture buffer from NVDEC: CUDA_ERROR_INVALID_VALUE.
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
    """Return whether the CPU decodes the clip at a place of an epoch.

    Of any n consecutive clips, the CPU decodes n × share, give or take one.
    """
    return int((place + 1) * share) > int(place * share)


def fixed_share(device: Device, decode: Decode, cpu_share: Share, workers: int) -> float | None:
    """Return the share of clips that workers decode beside a GPU. None: each clip goes to whoever finishes it first.

    Raises:
        FramedexError: `cpu_share` is not possible.
    """
    if cpu_share is not None and not (isinstance(cpu_share, int | float) and 0 <= cpu_share <= 1):
        raise FramedexError("cpu_share is out of range", found=repr(cpu_share), allowed="0 to 1, or None")
    if device == "cpu" or decode == "cpu":
        return 1.0
    if decode == "gpu" or (cpu_share is None and not workers):
        return 0.0
    return cpu_share
