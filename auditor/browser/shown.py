"""The clips and media on the page of `framedex inspect --serve`, and the address of the page.

Clips of a dataset are shown as ClipDataset returns them. For a medium of an index, the page shows frames that are
spread evenly over the medium, or consecutive frames. A request is refused unless it contains the token of the address
and comes from the page itself.
"""

import hmac
import io
import secrets
import threading
import wave
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.core.words import counted, duration_text, number_text, rate_text, size_text
from framedex.errors import FramedexError, printable
from framedex.indexer.parts.index import Index
from framedex.indexer.schema import NO_VIDEO
from framedex.loader.clip_dataset import ClipDataset
from framedex.loader.contact_sheets import sheet
from framedex.records.medium import OK, REFUSED
from framedex.sharder.clips.clip import Clip, WantedClip
from framedex.sharder.decoding.video import Size
from framedex.sharder.planning.indexed_medium import IndexedMedium, PlanningOptions
from framedex.sharder.planning.steps import Spools
from framedex.sharder.reading import SourceFiles
from framedex.storage.places import Access, Place

MAX_CLIP_BYTES = 512 << 20  # limit in bytes for the pictures of a clip. Larger pictures are scaled down


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """The audio of a clip.

    Attributes:
        samples: float32 [channels, samples], with values from -1 to 1.
        rate: The sample rate in Hz.
    """

    samples: NDArray[np.float32]
    rate: int

    def wav(self) -> bytes:
        """Return the audio as a WAV file with 16 bits per sample."""
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(len(self.samples))
            writer.setsampwidth(2)
            writer.setframerate(self.rate)
            finite = np.nan_to_num(self.samples, posinf=1, neginf=-1).clip(-1, 1)
            writer.writeframes(np.ascontiguousarray((finite * 32767).round().astype("<i2").T).tobytes())
        return file.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A decoded clip.

    Attributes:
        clip: The clip.
        pictures: uint8 [F, h, w, 3], the frames. Constant padding is black.
        frames: The metadata of each frame.
        sound: The audio of the clip. None if it has no audio.
        full: (height, width) of the pictures before they were scaled down.
    """

    clip: Clip
    pictures: NDArray[np.uint8]
    frames: list[sheet.ShownFrame]
    sound: Sound | None
    full: Size

    @property
    def size_bytes(self) -> int:
        """The memory of the pictures and the audio in bytes."""
        return self.pictures.nbytes + (0 if self.sound is None else self.sound.samples.nbytes)

    def poster(self) -> NDArray[np.uint8] | None:
        """Return the first picture that is not constant padding, or None if there is none."""
        return next((frame.picture for frame in self.frames if frame.picture is not None), None)

    def as_json(self) -> dict[str, Any]:
        """Return the properties that the page needs to play the clip, as JSON values."""
        height, width = self.pictures.shape[1:3]
        times = sheet.begins(self.frames).tolist()
        return {
            "width": width,
            "height": height,
            "scaled": None if (height, width) == self.full else f"{self.full[1]} × {self.full[0]}",
            "sound": None if self.sound is None else self.sound.samples.shape[1] / self.sound.rate,
            "begins": times[:-1],
            "duration": times[-1],
            "ascending": sheet.ascends(self.frames),
            "frames": [
                {"frame": f.frame_index, "seconds": f.seconds, "gap": f.gap_seconds, "padding": f.padding}
                for f in self.frames
            ],
        }


def facts_of(pairs: list[tuple[str, str]]) -> list[list[str]]:
    """Return (name, text) pairs in which control characters are escaped."""
    return [[printable(name), printable(text)] for name, text in pairs]


SPREAD = 16  # number of frames shown if they are spread evenly over a medium
CONSECUTIVE = 64  # number of frames shown if they are consecutive
MAX_COPIED_BYTES = 1 << 30  # maximum size in bytes of a medium whose packets must all be demuxed


class Media:
    """The media of an index. The key of a medium is its media_id. Thread-safe.

    Args:
        place: The index.
        access: The rules for which sources may be read.
        thumbnails: How pictures are turned and scaled.
        folder: A folder for copies of packets that are not byte ranges of their file.
    """

    spans = True  # whether the user can choose a range of frames

    def __init__(self, place: Place, thumbnails: sheet.Thumbnails, *, access: Access, folder: str) -> None:
        self._index = Index(place, access=access)
        self._index.check_locations()
        self._thumbnails = thumbnails
        self._sources, self._lock = SourceFiles(), threading.Lock()
        self._spools = Spools(Path(folder), needed=True, settle=lambda: None)

    def first_column(self) -> str:
        """Return the column that is preselected for filters."""
        return "uri"

    def card(self, key: Any) -> dict[str, Any]:
        """Return the content of a medium's entry in the list. Raises FramedexError if the medium's row is damaged."""
        video = self._video(key)
        state = video["status"]
        if state == REFUSED and video["error_kind"] == NO_VIDEO:
            state = "without video"  # the word of the audit
        error = None if video["status"] == OK else f"{state}: {video['error_message']}"
        seconds = _seconds_of(video)
        parts = [
            video["codec"],
            f"{video['width']} × {video['height']}" if video["width"] else None,
            counted(video["frame_count"], "frame") if video["frame_count"] else None,
            duration_text(seconds) if seconds else None,
            size_text(video["size_bytes"]) if video["size_bytes"] else None,
        ]
        return {
            "key": video["media_id"],
            "name": printable(video["uri"] if video["member"] is None else f"{video['uri']} · {video['member']}"),
            "source": video["media_id"],
            "text": " · ".join(part for part in parts if part),
            "columns": [],
            "error": None if error is None else printable(error, lines=True),
        }

    def describe(self, key: Any) -> dict[str, Any]:
        """Return the metadata of a medium that the player shows. Raises FramedexError."""
        video = self._video(key)
        names = ("container", "pixel_format", "color_space", "color_range", "field_order", "pts_source")
        facts = [(name.replace("_", " "), str(video[name])) for name in names if video.get(name) is not None]
        card = self.card(key)
        shape = _shape_facts(video) if video["status"] == OK else []
        return card | {
            "facts": facts_of([("medium", card["text"]), *shape, *facts]),
            "count": video["frame_count"] or 0,
        }

    def show(self, key: Any, first: int | None) -> Shown:
        """Decode frames of a medium.

        Args:
            key: The media_id.
            first: The number of the first of CONSECUTIVE consecutive frames. If None, SPREAD frames are spread evenly
                over the medium.

        Raises:
            FramedexError: The medium is unusable, does not have the frame, or cannot be read.
        """
        video = self._video(key)
        if video["status"] != OK:
            raise FramedexError(f"the medium is {video['status']}", found=video["error_message"])
        with self._lock:  # only one thread at a time may use an index and spools
            medium = IndexedMedium(self._index, video, PlanningOptions(keep_damaged=True))
            if not medium.addressable:
                size_bytes = video["member_bytes"] or video["size_bytes"] or 0
                if size_bytes > MAX_COPIED_BYTES:
                    raise FramedexError(
                        "the packets are not byte ranges of the file, which is too large to copy them",
                        where=medium.medium.path,
                        found=size_text(size_bytes),
                        allowed=f"up to {size_text(MAX_COPIED_BYTES)}",
                        remedy="pack clips of the medium into a dataset (framedex shard --pack), and open the dataset",
                    )
                self._spools.make_addressable(medium)
            count = len(medium.timeline.pts)
            if first is None:
                name, frames = "frames of the whole", np.unique((np.arange(SPREAD) * 2 + 1) * count // (2 * SPREAD))
            elif first < count:
                name, frames = f"frames from {first} on", np.arange(first, min(count, first + CONSECUTIVE))
            else:
                raise FramedexError("the medium has no such frame", found=first, allowed=f"0 to {count - 1}")
            mask = np.ones(len(frames), np.bool_)
            clip = medium.clip(WantedClip(clip_id=name, frames=frames, mask=mask, columns={}))
            encoded = self._sources.read(clip)
        size = self._thumbnails.size(clip.medium, max_pixels=MAX_CLIP_BYTES / 3 / len(frames))
        pictures = self._thumbnails.pictures(clip, encoded, size)
        return Shown(
            clip=clip,
            pictures=pictures,
            frames=sheet.shown_frames(clip, pictures),
            sound=None,
            full=sheet.Thumbnails(rotation=self._thumbnails.rotation).size(clip.medium),
        )

    def _video(self, key: Any) -> dict[str, Any]:
        try:
            with self._lock:
                return self._index.video(str(key))
        except KeyError:
            raise FramedexError("the index has no such medium", found=str(key)[:80]) from None


def _seconds_of(video: dict[str, Any]) -> float | None:
    """Return the duration of a medium. None if it has none."""
    if not video["duration_pts"] or not video["time_base_den"]:
        return None
    return float(video["duration_pts"] * video["time_base_num"] / video["time_base_den"])


def _shape_facts(video: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) of the frame rate of a medium, and of its rotation and pixel shape, which players apply."""
    seconds, turned, aspect = _seconds_of(video), video["rotation_degrees"] or 0, video["sample_aspect_ratio"] or 1.0
    facts = []
    if seconds and video["frame_count"] > 1:
        rate = f"{number_text(video['frame_count'] / seconds, digits=4)} fps"
        if video["is_vfr"] and video["min_gap_seconds"]:
            rate += f" on average, {rate_text(1 / video['max_gap_seconds'], 1 / video['min_gap_seconds'])}"
        facts.append(("rate", rate))
    facts.append(("rotation", sheet.turn_text(turned) if turned else "none"))
    return [*facts, ("pixel shape", "square" if aspect == 1 else sheet.pixel_shape_text(aspect))]


HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
TOKEN_BYTES = 32
MAX_DIGITS = 18  # maximum number of digits of a number in a request, so that it fits into int64
OWN_SITE = ("same-origin", "none")  # values of Sec-Fetch-Site for requests of the page and of the address bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of the server, and the rules for which requests are accepted.

    Attributes:
        port: The port.
        token: A secret with which the path of each request must begin. It excludes other users of this machine.
    """

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES), repr=False)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def resource(self, path: str) -> str | None:
        """Return the part of a request's path that follows the token, or None if the token is wrong."""
        token, slash, rest = path.removeprefix("/").partition("/")
        right = hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())
        return rest if right and slash and path.startswith("/") else None

    def refusal(self, *, host: str | None, origin: str | None, site: str | None) -> str | None:
        """Return the reason why a request is refused, or None if it is accepted.

        Pages of other sites can send requests to this machine, also under a host name of their own (DNS rebinding).
        Such requests have another host or another origin in their headers.

        Args:
            host: The header Host.
            origin: The header Origin, which web browsers send with POST requests.
            site: The header Sec-Fetch-Site.
        """
        hosts = {f"{name}:{self.port}" for name in NAMES}
        if host is None or host.lower() not in hosts:
            return f"the host must be {' or '.join(sorted(hosts))}; a tunnel must not change the port"
        foreign_origin = origin is not None and origin.lower() not in {f"http://{host}" for host in hosts}
        if foreign_origin or (site is not None and site.lower() not in OWN_SITE):
            return "this request comes from another site"
        return None


def whole_number(text: str) -> int | None:
    """Parse a nonnegative integer. Return None if the text is not such a number, or has more than MAX_DIGITS digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


COLUMNS_OF_A_CARD = 4  # maximum number of user's columns in an entry of the list. The player shows all columns


class Clips:
    """The clips of a dataset. The key of a clip is its number. Thread-safe.

    Args:
        place: The dataset.
        access: The rules for which sources may be read.
        thumbnails: How pictures are turned and scaled.
    """

    spans = False  # whether the user can choose a range of frames

    def __init__(self, place: Place, thumbnails: sheet.Thumbnails, *, access: Access) -> None:
        self._dataset = ClipDataset(
            place, rotation=thumbnails.rotation, root=access.root, allow_remote=access.allow_remote
        )
        self._thumbnails = thumbnails

    def heading(self) -> sheet.Heading:
        """Return the heading that describes the dataset. Raises FormatError."""
        return sheet.heading_of(self._dataset, None)

    def first_column(self) -> str:
        """Return the column that is preselected for filters: `label`, else the first user's column, else `uri`."""
        own = self._dataset.columns
        return "label" if "label" in own else own[0] if own else "uri"

    def card(self, key: Any) -> dict[str, Any]:
        """Return the content of a clip's entry in the list. Raises FramedexError if the clip's row is damaged."""
        clip = self._clip(key)
        return {
            "key": str(key),
            "name": printable(clip.medium.name),
            "source": printable(clip.clip_id),
            "text": sheet.clip_text(clip),
            "columns": sheet.shown_columns(clip.columns)[:COLUMNS_OF_A_CARD],
            "error": None,
        }

    def describe(self, key: Any) -> dict[str, Any]:
        """Return the metadata of a clip that the player shows. Raises FramedexError."""
        clip = self._clip(key)
        facts = facts_of(sheet.clip_facts(clip, self._thumbnails.rotation))
        return self.card(key) | {"columns": sheet.shown_columns(clip.columns), "facts": facts}

    def show(self, key: Any, first: int | None) -> Shown:
        """Decode a clip. `first` is not used, since clips are shown as a whole. Raises FramedexError."""
        number = self._number(key)
        clip = self._dataset.clip(number)
        size = self._thumbnails.size(clip.medium, max_pixels=MAX_CLIP_BYTES / 3 / max(1, len(clip.mask)))
        item = self._dataset.resized(size)[number]
        return Shown(
            clip=clip,
            pictures=item["frames"],
            frames=sheet.shown_frames(clip, item["frames"]),
            sound=Sound(samples=item["audio"], rate=int(item["audio_rate"])) if sheet.has_audio(item) else None,
            full=sheet.Thumbnails(rotation=self._thumbnails.rotation).size(clip.medium),
        )

    def _clip(self, key: Any) -> Clip:
        return self._dataset.clip(self._number(key))

    def _number(self, key: Any) -> int:
        """Return a key as a clip number. Raises FramedexError if there is no such clip."""
        number = whole_number(str(key))
        if number is None or number >= len(self._dataset):
            raise FramedexError("there is no such clip", found=str(key)[:80], allowed=f"0 to {len(self._dataset) - 1}")
        return number
