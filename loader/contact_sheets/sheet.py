"""The content of a contact sheet, and the sheet as an HTML page without scripts and external resources.

The records of clips and pictures in this module are independent of the output format. `sheet_pictures` uses them to
draw PNG pictures and WebP animations.
"""

import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

from framedex.core.column_rules import OBJECT_BYTES
from framedex.core.words import SAME_RATE, counted, duration_text, number_text, rate_text, size_text
from framedex.errors import DecodeError, FormatError, FramedexError, printable
from framedex.html.document import Document, drawing, element, folded, jpeg_uri, markup, titled
from framedex.loader.clip_dataset import ClipDataset
from framedex.loader.order.order import sample_of
from framedex.loader.pixels.framing import MAX_SCALED_SIDE, Framing, Rotation, picture_sizes
from framedex.loader.pixels.options import PixelOptions
from framedex.records.clip import PAD
from framedex.sharder.clips.clip import Clip, Medium
from framedex.sharder.clips.clip_source import StoredShapes
from framedex.sharder.decoding.video import Size
from framedex.sharder.policies.reading import changed_settings
from framedex.sharder.reading import EncodedClip
from framedex.sharder.schema import FAILURES_NAME, POLICY_NAME
from framedex.storage.places import OWN_STORE, Access, Place, small_text

SHOWN = Framing(long_side=1)  # a framing that keeps the proportions that players show


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnails:
    """How pictures are turned and scaled for a sheet or page. They keep the proportions that players show.

    Attributes:
        longest_side: The maximum length of the longer side in pixels. If None, it is not limited.
        rotation: "apply" turns pictures upright, and "stored" leaves them as they are stored.
    """

    longest_side: int | None = None
    rotation: Rotation = "apply"

    def size(self, medium: Medium, *, max_pixels: float = math.inf) -> Size:
        """Return the (height, width) of a medium's thumbnails, which are not larger than its pictures.

        Args:
            medium: The medium.
            max_pixels: The maximum number of pixels.
        """
        heights, widths = picture_sizes(SHOWN, StoredShapes.of(medium, 1), self.rotation)
        height, width = int(heights[0]), int(widths[0])
        longest = MAX_SCALED_SIDE if self.longest_side is None else self.longest_side
        scale = min(1.0, longest / max(height, width), math.sqrt(max_pixels / (height * width)))
        return max(1, round(height * scale)), max(1, round(width * scale))

    def pictures(self, clip: Clip, encoded: EncodedClip, size: Size) -> NDArray[np.uint8]:
        """Decode a clip's frames at a size. Return uint8 [F, h, w, 3]. Raises DecodeError."""
        pixels = PixelOptions.of(size, rotation=self.rotation)
        return pixels.decoded(clip, encoded, pixels.cutout(clip.medium, len(clip.frames), pixels.draw(clip, 0)))


def jpeg(picture: NDArray[np.uint8], quality: int) -> bytes:
    """Return a picture as a JPEG file.

    Args:
        picture: uint8 [h, w, 3], the picture in RGB.
        quality: The JPEG quality, 1 to 100.
    """
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(file, "JPEG", quality=quality)
    return file.getvalue()


def png(picture: NDArray[np.uint8]) -> bytes:
    """Return a picture, uint8 [h, w, 3], as a PNG file, which is lossless."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(file, "PNG", compress_level=1)  # fast, slightly larger files
    return file.getvalue()


def reduced(picture: NDArray[np.uint8], longest_side: int) -> NDArray[np.uint8]:
    """Scale a picture, uint8 [h, w, 3], down so that its longer side has at most `longest_side` pixels."""
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.thumbnail((longest_side, longest_side))
    return np.asarray(image)


LONGEST_TEXT = 2000  # maximum number of characters shown of a value of a user's column
WAVE_COLUMNS = 600  # width of a waveform. Each column shows the minimum and the maximum of its samples


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFrame:
    """A frame of a clip, which may be padding. Padding is a repeated frame, or constant (black).

    Attributes:
        frame_index: The number of the frame in its medium. None for constant padding.
        seconds: The time of the frame. None for constant padding.
        gap_seconds: The time since the previous frame of the clip. None if unknown.
        padding: Whether the frame is padding.
        picture: uint8 [h, w, 3], the picture. None for constant padding, or if the clip was not decoded.
    """

    frame_index: int | None
    seconds: float | None
    gap_seconds: float | None
    padding: bool
    picture: NDArray[np.uint8] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waveform:
    """The outline of a clip's audio.

    Attributes:
        low: float32 [columns], the minimum of all channels' samples in each column, -1…1.
        high: float32 [columns], the maximum of all channels' samples in each column, -1…1.
        text: A text with the number of channels, the sample rate and the duration.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownClip:
    """The content of a contact sheet for one clip.

    Attributes:
        clip_id: The name of the clip.
        uri: The uri of the clip's source.
        columns: (name, value) of each user's column, `label` first.
        facts: (name, text) of the descriptions of the view, the source, the clip and the decoding cost.
        size: (height, width) of the pictures.
        magnified: The factor by which pictures are enlarged on the sheet.
        frames: The frames of the clip, including padding.
        audio: The outline of the clip's audio. None if it has no audio.
        error: The reason why the clip could not be decoded. None if it was decoded.
        damaged: Whether the reason is damage that the decoder met.
    """

    clip_id: str
    uri: str
    columns: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    size: Size
    magnified: int
    frames: list[ShownFrame]
    audio: Waveform | None
    error: str | None
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The heading of a contact sheet, which describes the dataset.

    Attributes:
        name: The name of the dataset.
        shown: The number of clips on the sheet. None for the page of `framedex inspect --serve`.
        clips: The number of clips of the dataset.
        media: The number of media of the dataset.
        failures: (kind, count) of the clips that could not be made.
        policy: The policy of the dataset as YAML.
        settings: The settings of the policy that differ from their defaults, in one line.
    """

    name: str
    shown: int | None
    clips: int
    media: int
    failures: list[tuple[str, int]]
    policy: str
    settings: str

    def counts(self) -> str:
        """Return one line of text with the numbers of clips, media and clips that could not be made."""
        clips = counted(self.clips, "clip")
        parts = [clips if self.shown is None else f"{self.shown:,} of {clips}", counted(self.media, "medium", "media")]
        if self.failures:
            kinds = ", ".join(f"{count:,} {printable(kind)}" for kind, count in self.failures)
            total = sum(count for _, count in self.failures)
            parts.append(f"{counted(total, 'clip')} could not be loaded ({kinds})")
        return " · ".join(parts)


class Inspector:
    """A reader of a dataset that returns the content of contact sheets.

    Args:
        path: The dataset.
        thumbnails: How pictures are turned and scaled.
        access: The rules for which sources may be read.

    Raises:
        FormatError: The dataset does not exist or is damaged.
    """

    def __init__(self, path: Place, thumbnails: Thumbnails, *, access: Access = OWN_STORE) -> None:
        self.dataset = ClipDataset(
            path, rotation=thumbnails.rotation, root=access.root, allow_remote=access.allow_remote
        )
        self._thumbnails = thumbnails

    def find(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of the clips with these names. The name of a multi-view clip stands for all of its views.

        Raises:
            FramedexError: A clip does not exist.
        """
        return list(dict.fromkeys(number for name in names for number in self.dataset.manifest.find_all(name)))

    def sample(self, size: int, seed: int) -> list[int]:
        """Choose clips at random, and return their numbers. All views of a chosen clip are included."""
        chosen = sample_of(len(self.dataset), size=size, seed=seed)
        views = self.dataset.origin.views()
        if views is None:
            return [int(number) for number in chosen]
        items = dict.fromkeys(views.item[chosen].tolist())
        return [number for item in items for number in np.flatnonzero(views.item == item).tolist()]

    def outline(self, number: int) -> ShownClip:
        """Return the content for a clip without pictures and audio. Nothing is decoded."""
        clip = self.dataset.clip(number)
        return self._shown(clip, frames=shown_frames(clip, [None] * len(clip.mask)))

    def show(self, number: int) -> ShownClip:
        """Return the content for a clip with its pictures, or with the reason why the clip cannot be decoded."""
        clip = self.dataset.clip(number)
        try:
            item = self.dataset.resized(self._thumbnails.size(clip.medium))[number]
        except FramedexError as reason:
            shown = self._shown(clip, frames=[], error="\n".join(map(printable, reason.text().splitlines())))
            return replace(shown, damaged=isinstance(reason, DecodeError))
        audio = waveform(item["audio"], item["audio_rate"]) if has_audio(item) else None
        return self._shown(clip, frames=shown_frames(clip, item["frames"]), audio=audio)

    def _shown(
        self, clip: Clip, *, frames: list[ShownFrame], audio: Waveform | None = None, error: str | None = None
    ) -> ShownClip:
        size = self._thumbnails.size(clip.medium)
        return ShownClip(
            clip_id=printable(clip.clip_id),
            uri=printable(clip.medium.name),
            columns=shown_columns(clip.columns),
            facts=clip_facts(clip, self._thumbnails.rotation),
            size=size,
            magnified=max(1, (self._thumbnails.longest_side or 0) // max(size)),
            frames=frames,
            audio=audio,
            error=error,
        )


def heading_of(dataset: ClipDataset, shown: int | None) -> Heading:
    """Return the heading of a sheet. `shown` is the number of clips on the sheet. Raises FormatError."""
    path = dataset.manifest.path
    try:
        failures = dataset.manifest.header.layout.read(path, FAILURES_NAME, ["kind"], row_bytes=OBJECT_BYTES)
        if failures is None:
            raise FileNotFoundError(f"no {FAILURES_NAME}")
        kinds = failures["kind"].to_pylist()
        policy = small_text(path / POLICY_NAME)
        settings = changed_settings(policy)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise FormatError("a part of the dataset is missing or damaged", where=str(path), found=error) from error
    return Heading(
        name=printable(path.name),
        shown=shown,
        clips=len(dataset),
        media=dataset.manifest.media_count,
        failures=sorted(Counter(kinds).items()),
        policy="\n".join(map(printable, policy.splitlines())),
        settings=printable(settings),
    )


def has_audio(item: dict[str, Any]) -> bool:
    """Return whether an item of a dataset has decoded audio, and not only a user's column with the name `audio`."""
    return "audio_rate" in item and isinstance(item.get("audio"), np.ndarray) and item["audio"].ndim == 2


def shown_frames(clip: Clip, pictures: Iterable[NDArray[np.uint8] | None]) -> list[ShownFrame]:
    """Return the frames of a clip with their times and pictures.

    Args:
        clip: The clip.
        pictures: The picture of each frame, uint8 [h, w, 3], or None if the frame was not decoded.
    """
    gaps = np.diff(clip.seconds, prepend=np.nan)
    rows = zip(clip.frames.tolist(), clip.seconds.tolist(), gaps.tolist(), clip.mask.tolist(), pictures, strict=True)
    return [
        ShownFrame(
            frame_index=None if frame == PAD else frame,
            seconds=None if np.isnan(seconds) else seconds,
            gap_seconds=None if np.isnan(gap) else gap,
            padding=not real,
            picture=None if frame == PAD else picture,
        )
        for frame, seconds, gap, real, picture in rows
    ]


def clip_facts(clip: Clip, rotation: Rotation) -> list[tuple[str, str]]:
    """Return (name, text) of the descriptions of a clip's view, source, frames and decoding cost."""
    view = [] if clip.multiview_id is None else [("view", view_text(clip))]
    return [*view, ("source", source_text(clip.medium, rotation)), ("clip", clip_text(clip)), ("cost", cost_text(clip))]


def shown_columns(columns: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) of each user's column, `label` first and the others in the dataset's order."""
    ordered = sorted(columns.items(), key=lambda pair: pair[0] != "label")
    return [(printable(name), value_text(value)) for name, value in ordered]


def value_text(value: Any) -> str:
    """Return a value of a user's column as one line of text. A very long text is cut."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > LONGEST_TEXT:
        return f"{printable(text[:LONGEST_TEXT])}… ({len(text):,} characters)"
    return printable(text)


def source_text(medium: Medium, rotation: Rotation) -> str:
    """Return a description of the medium of a clip. `rotation` is whether its pictures are turned."""
    seconds = medium.duration_pts * medium.time_base_num / medium.time_base_den
    parts = [medium.codec, f"{medium.width} × {medium.height}", counted(medium.frame_count, "frame")]
    if medium.frame_count > 1 and seconds > 0:
        parts += [duration_text(seconds), f"{number_text(medium.frame_count / seconds, digits=4)} fps on average"]
    if medium.rotation_degrees:
        turn = turn_text(medium.rotation_degrees)
        parts.append(f"turned {turn}" if rotation == "apply" else f"not turned {turn}, as players do")
    if medium.sample_aspect_ratio not in (None, 0, 1):
        parts.append(f"pixels {pixel_shape_text(medium.sample_aspect_ratio)}")
    return " · ".join(parts)


def turn_text(degrees: int) -> str:
    """Return a rotation as a text, such as "90° clockwise"."""
    return f"{abs(degrees)}° {'clockwise' if degrees < 0 else 'counterclockwise'}"


def pixel_shape_text(aspect: float) -> str:
    """Return the width of a pixel divided by its height as a text, such as "1.333 times as wide as high"."""
    return f"{number_text(aspect, digits=4)} times as wide as high"


def view_text(clip: Clip) -> str:
    """Return a text with the name of a clip's view and the distance of its frames from the requested times."""
    away = np.zeros(0) if clip.view_away_seconds is None else clip.view_away_seconds
    away = away[~np.isnan(away)]
    parts = [printable(clip.view_name or ""), f"of {printable(clip.multiview_id or '')}"]
    if len(away):
        parts.append(f"frames at most {number_text(1000 * float(np.abs(away).max()))} ms from the wanted times")
    return " · ".join(parts)


def clip_text(clip: Clip) -> str:
    """Return a text with the number of frames of a clip, their times and their rate."""
    parts = [counted(len(clip.mask), "frame")]
    padded = int((~clip.mask).sum())
    if padded:
        parts[0] += f", {padded:,} of them padding"
    seconds = clip.seconds[clip.mask]
    if len(seconds):
        span = f"{seconds.min():,.3f} to {seconds.max():,.3f} s"
        parts.append(span if len(seconds) > 1 else f"{seconds[0]:,.3f} s")
    gaps = np.diff(np.where(clip.mask, clip.seconds, np.nan))
    if (gaps > 0).any():
        rates = 1 / gaps[gaps > 0]
        same = rates.max() <= SAME_RATE * rates.min()
        parts.append(rate_text(*(2 * [float(np.median(rates))] if same else [rates.min(), rates.max()])))
    if clip.recipe.damaged:
        parts.append("frames of damaged GOPs")
    return " · ".join(parts)


def cost_text(clip: Clip) -> str:
    """Return a text with the number of frames that are decoded and of bytes that are read for a clip."""
    recipe = clip.recipe
    decoded, wanted = len(recipe.packet_rank), len(np.unique(recipe.position[recipe.position != PAD]))
    each = f"{counted(decoded, 'frame')} decoded for {wanted:,} wanted ({decoded / max(1, wanted):.1f} each)"
    size = size_text(int(recipe.packet_size.sum()))
    return f"{each} · {counted(len(recipe.run_first), 'run')} · {size} in {counted(len(recipe.range_offset), 'range')}"


def waveform(samples: NDArray[np.float32], rate: float) -> Waveform:
    """Return the outline of audio samples, float32 [channels, samples]. `rate` is the sample rate in Hz."""
    channels, count = samples.shape
    text = f"{counted(channels, 'channel')} · {rate:,g} Hz · {count / rate:,.3f} s"
    if not samples.size:
        return Waveform(low=np.zeros(0, np.float32), high=np.zeros(0, np.float32), text=text)
    first = np.unique(np.linspace(0, count, WAVE_COLUMNS, endpoint=False).astype(np.int64))
    finite = np.nan_to_num(samples, posinf=1, neginf=-1).clip(-1, 1)
    low = np.minimum.reduceat(finite.min(axis=0), first)
    high = np.maximum.reduceat(finite.max(axis=0), first)
    return Waveform(low=low, high=high, text=text)


FALLBACK_SECONDS = 0.1  # duration for which each frame is shown if no frame of the clip is later than the one before


def begins(frames: Sequence[ShownFrame]) -> NDArray[np.float64]:
    """Return float64 [F + 1], the times at which a player shows each frame, and the end of the last frame.

    The times are in seconds, and the first one is 0. A frame is shown until the time of the next frame. If that time
    is not later, or is unknown, the frame is shown for the median duration of the other frames.
    """
    gaps = np.array([frame.gap_seconds or 0.0 for frame in frames[1:]])
    usual = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else FALLBACK_SECONDS
    lengths = np.append(np.where(gaps > 0, gaps, usual), usual) if frames else np.zeros(0)
    return np.concatenate([[0.0], np.cumsum(lengths)])


def ascends(frames: Sequence[ShownFrame]) -> bool:
    """Return whether each frame is later than the one before. Padding is not compared."""
    return all(frame.padding or (frame.gap_seconds or 0.0) > 0 for frame in frames[1:])


JPEG_QUALITY = 82
WAVE_HEIGHT = 48


def html_sheet(heading: Heading, clips: Iterable[ShownClip], columns: int | None) -> bytes:
    """Return a contact sheet as an HTML page.

    Args:
        heading: The heading of the sheet.
        clips: The clips to show.
        columns: The maximum number of frames per line. If None, lines are as long as the window allows.
    """
    articles, names, widest = [], [], 0
    for number, clip in enumerate(clips, 1):
        articles.append(markup(_article(clip, number)))
        names.append((clip.uri, clip.clip_id))
        widest = max(widest, clip.size[1] * clip.magnified)
    style = (files("framedex.loader.contact_sheets") / "sheet.css").read_text(encoding="utf-8")
    if columns:  # 6.5rem is the minimum width of figures in sheet.css, and .5rem the gap between them
        width = f"calc({columns} * max({widest}px, 6.5rem) + {columns - 1} * .5rem)"
        style += f"ol.frames {{ max-width: {width}; }}\n"
    entries = [
        element("li", element("a", element("bdi", uri), href=f"#clip-{n}"), " ", element("bdi", clip_id, class_="soft"))
        for n, (uri, clip_id) in enumerate(names, 1)
    ]
    contents = element("nav", folded("Clips", element("ol", *entries)), aria_label="Clips")
    header = titled(
        "framedex contact sheet",
        heading.name,
        element("p", heading.counts(), class_="soft"),
        beside=[
            element("p", element("bdi", heading.settings), class_="soft"),
            folded("All settings of the policy", element("pre", heading.policy)),
            contents if len(names) > 1 else None,
        ],
    )
    return Document(title=f"{heading.name}: contact sheet", style=style, before=[header], main=articles).content()


def _article(clip: ShownClip, number: int) -> Element:
    facts = element("dl")
    for kind, pairs in (("mine", clip.columns), ("soft", clip.facts)):
        for name, value in pairs:
            facts.append(element("dt", element("bdi", name)))
            facts.append(element("dd", element("bdi", value), class_=kind))
    if clip.error is None:
        body = element("ol", *[element("li", _figure(clip, frame)) for frame in clip.frames], class_="frames")
    else:
        body = element("div", element("strong", "Not decoded"), element("pre", clip.error), class_="error")
    return element(
        "article",
        element("h2", element("bdi", clip.uri), id=f"clip-{number}-name"),
        element("p", element("bdi", clip.clip_id), class_="soft"),
        facts,
        body,
        None if clip.audio is None else _sound(clip.audio),
        id=f"clip-{number}",
        aria_labelledby=f"clip-{number}-name",
    )


def _figure(clip: ShownClip, frame: ShownFrame) -> Element:
    height, width = (side * clip.magnified for side in clip.size)
    picture = element("span", class_="picture" + " padded" * frame.padding + " magnified" * (clip.magnified > 1))
    if frame.picture is not None:
        alt = f"frame {frame.frame_index}{', padding' * frame.padding}"
        uri = jpeg_uri(jpeg(frame.picture, JPEG_QUALITY))
        picture.append(element("img", src=uri, width=width, height=height, alt=alt))
    if frame.padding:
        lines = "".join(f"M{x} {height}l{height} {-height}" for x in range(-height, width, 10))
        hatch = element("path", d=lines, class_="hatch")
        picture.append(drawing(hatch, size=(width, height), label=None, width=width, height=height))
        picture.append(element("b", element("span", "padding")))
    caption = element("figcaption")
    if frame.frame_index is not None:
        caption.append(element("span", f"#{frame.frame_index}", class_="number"))
    if frame.seconds is not None:
        caption.append(element("span", f"{frame.seconds:,.3f} s", class_="time"))
    if frame.gap_seconds is not None:
        gap = f"{frame.gap_seconds:+,.3f} s"
        caption.append(element("span", gap, class_="soft gap", title="since the previous frame"))
    return element("figure", picture, caption)


def _sound(audio: Waveform) -> Element:
    middle = WAVE_HEIGHT / 2
    lines = "".join(
        f"M{x + 0.5} {middle - high * middle:.1f}V{max(middle - low * middle, middle - high * middle + 1):.1f}"
        for x, (low, high) in enumerate(zip(audio.low.tolist(), audio.high.tolist(), strict=True))
    )
    strip = drawing(
        element("path", d=lines, class_="wave"),
        size=(max(1, len(audio.low)), WAVE_HEIGHT),
        label="waveform",
        preserveAspectRatio="none",
    )
    return element("figure", strip, element("figcaption", element("span", f"audio · {audio.text}")), class_="sound")
