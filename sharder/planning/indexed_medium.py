"""Load a medium of an index with its packets, to plan clips. Packet headers that the index lacks are read on demand."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError, StaleError
from framedex.indexer.parts.index import Index
from framedex.indexer.parts.packets import Packets
from framedex.indexer.probing.packet_headers import UnreadHeaders, settled
from framedex.indexer.reach import drops_leading
from framedex.indexer.timeline import DAMAGED
from framedex.records.clip import NO_PTS, PAD, ClipAudioPlan, PlannedRecipe
from framedex.records.columns import values_of
from framedex.records.medium import OK, AudioPackets
from framedex.sharder.clips.clip import AudioOptions, ByteSource, Medium, PlannedClip, WantedClip
from framedex.sharder.decoding.audio import clip_interval, plan_clip_audio, plan_silence
from framedex.sharder.planning.planner import PACKETS_TOGETHER, Planner
from framedex.sharder.policies.sampling import Timeline
from framedex.sharder.reading import range_reader
from framedex.sharder.schema import MEDIA
from framedex.storage.places import OWN_STORE, Access
from framedex.storage.uris import medium_name

Row = dict[str, Any]

KEPT_OPEN = 16
PLANNED_TOGETHER = 64  # number of clips that are planned at once; more at once are hardly faster


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningOptions:
    """Options of planning.

    Attributes:
        access: The rule that says which sources may be read.
        keep_damaged: Whether clips may have frames of damaged GOPs.
        one_stream: The clips whose packets must decode correctly as a single stream in one decoder session. "all": all
            clips. "not addressable": only clips of media whose packets are not byte ranges of a file. "none": no clips.
            Clips without this requirement may consist of several runs, each with a decoder session of its own.
        audio: The options of the clips' audio. None if clips carry no audio.
    """

    access: Access = OWN_STORE
    keep_damaged: bool = False
    one_stream: Literal["all", "not addressable", "none"] = "none"
    audio: AudioOptions | None = None


DEFAULTS = PlanningOptions()


class IndexedMedium:
    """A usable medium of an index (a row of `videos`) with its packets, for planning clips.

    Attributes:
        video: The row of `videos`.
        medium: The medium.
        packets: All packets of the medium, with the flags that were read so far.
        audio_packets: All audio packets. None if clips carry no audio, or if the medium has no audio.
        planner: The planner of the medium's clips.
        timeline: The times of the medium's frames.

    Raises:
        StorageError: The source is in a store that may not be read.
    """

    def __init__(self, index: Index, video: Row, options: PlanningOptions = DEFAULTS) -> None:
        self.video, self._audio = video, options.audio
        self._one_stream = options.one_stream == "all" or (
            options.one_stream == "not addressable" and not video["byte_addressable"]
        )
        self.audio_packets = None if self._audio is None else index.audio(video["media_id"])
        self._audio_source: ByteSource | None = None
        self.medium = Medium(
            path=index.locate(video["uri"]),
            **{name: video[name] for name in MEDIA.names},
        )
        self._indexed = self.packets = index.packets(video["media_id"])
        self._shows_damage = False  # whether the headers that were read so far contain damage
        self._source = self.medium.source
        self._headers: UnreadHeaders | None = None
        self.planner = _planner(video, self.packets, keep_damaged=options.keep_damaged)
        self._coming: list[WantedClip] = []  # the clips of `prepare`, and the place of each in it, by its identity
        self._places: dict[int, int] = {}
        self._planned: dict[int, PlannedRecipe | Exception] = {}  # recipes of coming clips, by identity
        self._planned_with: Packets | None = None
        self._packets_of_clip = 1  # the number of packets of the last clip
        self.timeline = _timeline(video, self.planner)

    def clip(self, wanted: WantedClip) -> PlannedClip:
        """Plan a clip.

        Raises:
            PolicyError: The frames are not available.
            StaleError: Packet headers had to be read from the source, but the source has changed since it was indexed.
        """
        self.read_headers(wanted.frames)
        recipe = self._recipe(wanted)
        padded = wanted.frames == PAD
        pts = np.where(padded, NO_PTS, self.planner.pts[wanted.frames])
        tick = self.timeline.time_base
        first, stop = wanted.stretch or (None, None)
        return PlannedClip(
            clip_id=wanted.clip_id,
            medium=self.medium,
            frames=wanted.frames,
            pts=pts,
            seconds=np.where(padded, np.nan, pts * tick.numerator / tick.denominator),
            mask=wanted.mask,
            md5=self._md5(wanted.frames),
            columns=wanted.columns,
            stretch_first=first,
            stretch_stop=stop,
            anchor_frame=wanted.anchor_frame,
            **({} if wanted.multiview is None else values_of(wanted.multiview)),
            recipe=recipe,
            source=self._source,
            audio=None if self._audio is None else self._plan_audio(wanted.frames, self._audio),
            audio_source=self._audio_source,
        )

    def _recipe(self, wanted: WantedClip) -> PlannedRecipe:
        """Return the recipe of a clip. The next clips of `prepare` are planned with it if no headers were just read."""
        most = max(1, min(PLANNED_TOGETHER, PACKETS_TOGETHER // self._packets_of_clip))
        if self._planned_with is not self.packets:  # headers were read, which may change recipes
            self._planned, self._planned_with, most = {}, self.packets, 1
        if id(wanted) not in self._planned:
            place = self._places.get(id(wanted))
            together = [wanted] if place is None else self._coming[place : place + most]
            recipes = self.planner.plan_together([clip.frames for clip in together], one_stream=self._one_stream)
            self._planned = dict(zip(map(id, together), recipes, strict=True))
        found = self._planned.pop(id(wanted))
        if isinstance(found, Exception):
            raise found
        self._packets_of_clip = max(1, len(found.packet_size))
        return found

    def _plan_audio(self, frames: NDArray[np.int64], options: AudioOptions) -> ClipAudioPlan:
        """Return the plan of a clip's audio. The audio is silence if the medium has no audio.

        Raises:
            PolicyError: The audio is not available.
        """
        if self.video["audio_problem"] is not None:
            raise PolicyError(
                "the clip's audio is not available", found=self.video["audio_problem"], remedy="leave out --audio"
            )
        end_pts = int(self.planner.pts[0]) + self.timeline.duration_pts
        interval = clip_interval(self.planner.pts, end_pts, frames, self.timeline.time_base)
        facts = self.medium.audio
        if facts is None or self.audio_packets is None:
            return plan_silence(*interval, options)
        if self.audio_packets.offset is None:
            raise PolicyError(
                "the audio packets are not byte ranges of the file",
                remedy="pass --pack clips, which copies them into the dataset",
            )
        return plan_clip_audio(facts, self.audio_packets, *interval, options)

    def prepare(self, clips: list[WantedClip]) -> None:
        """Tell which clips are planned next, in order, so that several are planned at once.

        Read, in one pass over the source, the packet headers that are needed to plan them. Errors are not raised here,
        but later, when an affected clip is planned.
        """
        self._coming, self._planned = clips, {}
        self._places = {id(clip): place for place, clip in enumerate(clips)}
        if not self.packets.read.all():
            with contextlib.suppress(PolicyError, StaleError):
                self.read_headers(np.concatenate([clip.frames for clip in clips]))

    def read_headers(self, frames: NDArray[np.int64]) -> None:
        """Read the packet headers that the index skipped and that are needed to plan clips with the given frames.

        For each wanted frame, these are the headers from its random access point up to the packet of the frame. Damage
        in one header affects all packets of the GOP whose headers were read. Therefore, once any damage is found,
        headers that were read for earlier clips are forgotten, and the headers for the given frames are read as if no
        clip had been planned before. As a result, whether a clip is refused depends only on the frames of this clip.

        Raises:
            PolicyError: Frames do not exist, or the headers of pictures contradict the sample tables.
        """
        if self._indexed.read.all():
            return
        if not self._shows_damage:
            try:
                self._read(frames)
            except PolicyError:
                if not self._shows_damage:
                    raise
            if not self._shows_damage:
                return
        self._headers = None
        self._renew(self._indexed)
        self._read(frames)

    def _read(self, frames: NDArray[np.int64]) -> None:
        targets = self.planner.packet_of(frames[frames != PAD])
        ends = settled(self.packets.pts, targets, self.medium.reorder_depth)
        # The last wanted picture may have its second field in the next packet, so the header of the next packet is
        # read, too.
        end = max(ends.max(initial=0), targets.max(initial=0) + 2)
        if self.packets.read[:end].all():
            return
        if self._headers is None:
            self._headers = UnreadHeaders(
                self.packets,
                self.medium,
                self.medium,
                range_reader(self.medium.source),
                where=self.medium.path,
            )
        try:
            self._headers.read(targets)
            self._renew(self._headers.packets)
            while self._one_stream and self._headers.read_between(*self.planner.joined(frames)):
                self._renew(self._headers.packets)  # with the new headers, more runs may have to be joined
        finally:
            self._renew(self._headers.packets)

    @property
    def addressable(self) -> bool:
        """Whether the packets are byte ranges of a file."""
        return self.packets.offset is not None

    @property
    def is_spooled(self) -> bool:
        """Whether plans refer to a spool (a temporary copy of all packets) for the video, the audio, or both."""
        own = self.medium.source
        return self._source != own or (self._audio_source is not None and self._audio_source != own)

    def spooled(self, source: ByteSource) -> None:
        """Let later plans refer to a spool (a temporary copy of all packets) instead of the source.

        Args:
            source: The spool. It contains all packets, one after the other.
        """
        size = self.packets.size
        if self._audio_source is None and self._source is not source:
            self._audio_source = self._source  # audio packets are still read from the source
        self._source = source
        self._renew(replace(self.packets, offset=np.cumsum(size) - size))

    def audio_spooled(self, packets: AudioPackets, source: ByteSource) -> None:
        """Let later plans refer to a spool (a temporary copy of all packets) for the audio.

        Args:
            packets: All audio packets.
            source: The spool. It contains all audio packets one after the other.
        """
        self.audio_packets = replace(packets, offset=np.cumsum(packets.size) - packets.size)
        self._audio_source = source

    def _renew(self, packets: Packets) -> None:
        if packets is not self.packets:
            self.packets = packets
            self._shows_damage |= bool((packets.flags & DAMAGED).any())
            self.planner.renew(packets)

    def _md5(self, frames: NDArray[np.int64]) -> list[bytes | None] | None:
        """Return a list of the wanted frames' MD5 hashes, None for padding. Return None if the index has no hashes."""
        hashes = self.packets.md5
        if hashes is None:
            return None
        real = frames != PAD
        found: list[bytes | None] = [None] * len(frames)
        for place, packet in zip(np.flatnonzero(real), self.planner.packet_of(frames[real]).tolist(), strict=True):
            found[place] = hashes[packet]
        return found


class OpenMedia:
    """The media of an index, for planning clips. The most recently used media stay open.

    Args:
        index: The index.
        options: The options of planning.
        kept: The number of media that stay open. The packets of open media are in memory.
    """

    def __init__(self, index: Index, options: PlanningOptions = DEFAULTS, *, kept: int = KEPT_OPEN) -> None:
        self._index, self._options = index, options
        self.of = functools.lru_cache(kept)(self.open)

    def open(self, media_id: str) -> IndexedMedium:
        """Open a medium.

        Raises:
            PolicyError: The medium is not usable.
            StorageError: The source is in a store that may not be read.
        """
        video = self._index.video(media_id)
        if video["status"] != OK:
            raise PolicyError(f"the medium is {video['status']}: {video['error_message']}")
        return IndexedMedium(self._index, video, self._options)

    def timeline(self, media_id: str) -> Timeline:
        """Return the times of a medium's frames. Raises the errors of `open`."""
        return self.of(media_id).timeline


def timelines(index: Index) -> Callable[[str], Timeline]:
    """Return a function that takes a media_id and returns the times of all frames of the medium, even damaged frames.

    The sources are not read.
    """

    @functools.lru_cache(KEPT_OPEN)
    def timeline(media_id: str) -> Timeline:
        video = index.video(media_id)
        return _timeline(video, _planner(video, index.packets(media_id), keep_damaged=True))

    return timeline


def _planner(video: Row, packets: Packets, *, keep_damaged: bool) -> Planner:
    return Planner(
        packets,
        drop_leading=drops_leading(video["codec"]),
        keep_damaged=keep_damaged,
        hidden_unordered=bool(video["hidden_unordered"]),
    )


def _timeline(video: Row, planner: Planner) -> Timeline:
    return Timeline(
        pts=planner.pts,
        duration_pts=video["duration_pts"],
        time_base=Fraction(video["time_base_num"], video["time_base_den"]),
        starts=planner.start_frames(),
        name=video["media_id"],
        uri=medium_name(video["uri"], video["member"]),
    )
