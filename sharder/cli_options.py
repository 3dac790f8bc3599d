"""Options of `framedex shard`: their types, and groups of them that are passed as one record."""

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
    """A duration, exactly as it is written."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Return the seconds that `2`, `0.5` or `1/3` means."""
        text = str(value).strip()
        if not re.fullmatch(r"\d{1,6}(\.\d{1,9})?|\d{1,6}/[1-9]\d{0,5}", text) or not Fraction(text):
            self.fail(f"{value!r} is no duration; write 2, 0.5 or 1/3", param, ctx)
        return Fraction(text)


class PolicyType(FileType):
    """A policy as `find_policy` takes it: a file, which may be an object, or text."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of what a uri names, and any other text unchanged: `find_policy` reads it."""
        return super().convert(value, param, ctx) if is_uri(value) else value


DURATION, POLICY = Seconds(), PolicyType()
SCALED = "With --pack images or --encode"

IMAGE_OPTIONS = (
    click.option(
        "--image-format",
        type=click.Choice(list(FORMATS)),
        default="jpeg",
        show_default=True,
        help="With --pack images: the format of stored frames.",
    ),
    click.option(
        "--quality",
        type=click.IntRange(1, 100),
        default=90,
        show_default=True,
        help="With --pack images: the quality of JPEG and WebP.",
    ),
    click.option(
        "--encode",
        type=click.Choice(ENCODE_CODECS),
        help="With --pack clips: decode each clip, scale the frames that it wants, and encode them alone, as one "
        "closed GOP. Frames lose a little; decoding costs exactly the wanted frames.  "
        "[default: packets are copied]",
    ),
    click.option(
        "--crf",
        type=click.IntRange(1, max(MAX_CRF.values())),
        help="With --encode: the constant rate factor. A lower one gives better pictures and more bytes.  "
        f"[default: {', '.join(f'{crf} for {codec}' for codec, crf in DEFAULT_CRF.items())}]",
    ),
    click.option("--short-side", type=click.IntRange(1), help=f"{SCALED}: greatest length of the shorter side."),
    click.option("--box", type=click.IntRange(1), help=f"{SCALED}: greatest length of the longer side."),
    click.option("--size", type=FRAME_SIZE, metavar="HxW", help=f"{SCALED}: exact height and width."),
)
AUDIO_OPTIONS = (
    click.option(
        "--audio",
        is_flag=True,
        help="Store the sound of each clip, from its first frame's time to its last frame's end.",
    ),
    click.option(
        "--audio-rate",
        type=click.IntRange(1000, 768_000),
        metavar="HZ",
        help="With --audio: resample to this rate.  [default: the source's]",
    ),
    click.option(
        "--audio-channels",
        type=click.IntRange(1, 8),
        help="With --audio: mix to this many channels.  [default: the source's]",
    ),
    click.option(
        "--audio-seconds",
        type=DURATION,
        metavar="SECONDS",
        help="With --audio: length of the sound, from each clip's first frame on.  [default: the clip's]",
    ),
    click.option(
        "--audio-format",
        type=click.Choice(AUDIO_FORMATS),
        default="flac",
        show_default=True,
        help="With --audio and --pack: the format of stored sound.",
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
        why="PNG loses nothing",
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
    """Add to a command the options for storing frames.

    The command receives them as `images`, an ImageOptions, and `encode`, an EncodeOptions or None. IMAGE_RULES must be
    used with them.
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
    """Add to a command the options for the clips' audio.

    The command receives them as `audio`, which is None without audio, and `audio_format`. AUDIO_RULES must be used with
    them.
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
