"""Options of `framedex shard`: types of option values, and groups of options that become one record."""

import functools
import re
from fractions import Fraction
from typing import Any

import click

from framedex.options import FRAME_SIZE, Command, FileType, OptionRule, together
from framedex.sharder.clips.clip import AudioOptions
from framedex.sharder.decoding.video import Size
from framedex.sharder.packing.pack import AUDIO_FORMATS
from framedex.sharder.packing.pack_options import (
    DEFAULT_CRF,
    ENCODE_CODECS,
    FORMATS,
    MAX_CRF,
    EncodeCodec,
    EncodeOptions,
    ImageFormat,
    ImageOptions,
)
from framedex.storage.uris import is_uri


class Seconds(click.ParamType[Fraction]):
    """The type of an option that is a duration in seconds. The value is converted to an exact fraction."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Parse a duration such as `2`, `0.5` or `1/3`."""
        text = str(value).strip()
        if not re.fullmatch(r"\d{1,6}(\.\d{1,9})?|\d{1,6}/[1-9]\d{0,5}", text) or not Fraction(text):
            self.fail(f"{value!r} is not a duration; write 2, 0.5 or 1/3", param, ctx)
        return Fraction(text)


class PolicyType(FileType):
    """The type of an option that is a policy: a file, a uri, the name of an included policy, or YAML text."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a uri to the path of the file. Return any other text unchanged."""
        return super().convert(value, param, ctx) if is_uri(value) else value


DURATION, POLICY = Seconds(), PolicyType()
SCALED = "With --pack images or --encode"

IMAGE_OPTIONS = (
    click.option(
        "--image-format",
        type=click.Choice(list(FORMATS)),
        default="jpeg",
        show_default=True,
        help="With --pack images: the format of the stored images.",
    ),
    click.option(
        "--quality",
        type=click.IntRange(1, 100),
        default=90,
        show_default=True,
        help="With --pack images: the quality of JPEG and WebP, from 1 to 100.",
    ),
    click.option(
        "--encode",
        type=click.Choice(ENCODE_CODECS),
        help="With --pack clips: decode each clip, scale its wanted frames, and encode only these frames as one closed "
        "GOP. This loses some quality, but the loader then decodes no other frames.  "
        "[default: packets are copied]",
    ),
    click.option(
        "--crf",
        type=click.IntRange(1, max(MAX_CRF.values())),
        help="With --encode: the constant rate factor. A lower value gives better quality and larger files.  "
        f"[default: {', '.join(f'{crf} for {codec}' for codec, crf in DEFAULT_CRF.items())}]",
    ),
    click.option(
        "--short-side", type=click.IntRange(1), help=f"{SCALED}: maximum length of the shorter side in pixels."
    ),
    click.option("--box", type=click.IntRange(1), help=f"{SCALED}: maximum length of the longer side in pixels."),
    click.option("--size", type=FRAME_SIZE, metavar="HxW", help=f"{SCALED}: exact height and width in pixels."),
)
AUDIO_OPTIONS = (
    click.option(
        "--audio",
        is_flag=True,
        help="Add audio to each clip, from the time of its first frame to the end of its last frame.",
    ),
    click.option(
        "--audio-rate",
        type=click.IntRange(1000, 768_000),
        metavar="HZ",
        help="With --audio: the sample rate.  [default: the rate of the source]",
    ),
    click.option(
        "--audio-channels",
        type=click.IntRange(1, 8),
        help="With --audio: the number of channels.  [default: the channels of the source]",
    ),
    click.option(
        "--audio-seconds",
        type=DURATION,
        metavar="SECONDS",
        help="With --audio: the duration of the audio, from the first frame of each clip on.  "
        "[default: the duration of the clip]",
    ),
    click.option(
        "--audio-format",
        type=click.Choice(AUDIO_FORMATS),
        default="flac",
        show_default=True,
        help="With --audio and --pack: the format of the audio files.",
    ),
)

IMAGE_RULES = (
    OptionRule(
        options=["image_format", "quality"], when=lambda values: values["pack"] == "images", needs="--pack images"
    ),
    OptionRule(options=["encode"], when=lambda values: values["pack"] == "clips", needs="--pack clips"),
    OptionRule(options=["crf"], when=lambda values: values["encode"] is not None, needs="--encode"),
    OptionRule(
        options=["short_side", "box", "size"],
        when=lambda values: values["pack"] == "images" or values["encode"] is not None,
        needs="--pack images or --encode",
    ),
    OptionRule(
        options=["quality"],
        when=lambda values: values["image_format"] != "png",
        beside="--image-format png",
        why="PNG is lossless",
    ),
)
AUDIO_RULES = (
    OptionRule(
        options=["audio_rate", "audio_channels", "audio_seconds", "audio_format"],
        when=lambda values: values["audio"],
        needs="--audio",
    ),
    OptionRule(options=["audio_format"], when=lambda values: values["pack"] is not None, needs="--pack"),
)


def image_options(command: Command) -> Command:
    """Add the options for images and encoded clips to a command.

    The command gets two arguments: `images`, an ImageOptions, and `encode`, an EncodeOptions or None. Its rules must
    include IMAGE_RULES.
    """

    @functools.wraps(command)
    def with_images(
        *,
        image_format: ImageFormat,
        quality: int,
        encode: EncodeCodec | None,
        crf: int | None,
        short_side: int | None,
        box: int | None,
        size: Size | None,
        **others: Any,
    ) -> None:
        scaled: dict[str, Any] = {"short_side": short_side, "box": box, "size": size}
        images = ImageOptions(format=image_format, quality=quality, **scaled)
        encoding = None if encode is None else EncodeOptions(codec=encode, crf=crf, **scaled)
        command(images=images, encode=encoding, **others)

    return together(*IMAGE_OPTIONS)(with_images)


def audio_options(command: Command) -> Command:
    """Add the options for the clips' audio to a command.

    The command gets two arguments: `audio`, an AudioOptions or None, and `audio_format`. Its rules must include
    AUDIO_RULES.
    """

    @functools.wraps(command)
    def with_audio(
        *,
        audio: bool,
        audio_rate: int | None,
        audio_channels: int | None,
        audio_seconds: Fraction | None,
        **others: Any,
    ) -> None:
        asked = AudioOptions(rate=audio_rate, channels=audio_channels, seconds=audio_seconds) if audio else None
        command(audio=asked, **others)

    return together(*AUDIO_OPTIONS)(with_audio)
