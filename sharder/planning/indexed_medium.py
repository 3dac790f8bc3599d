"""One medium of an index, ready for planning clips. Further packet headers are read if plans need them."""

import contextlib
import functools
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
from framedex.records.clip import NO_PTS, PAD, ClipAudioPlan
from framedex.records.columns import values_of
from framedex.records.medium import OK, AudioPackets
from framedex.sharder.clips.clip import AudioOptions, ByteSource, Clip, Medium, WantedClip
from framedex.sharder.decoding.audio import clip_interval, plan_clip_audio, plan_silence
from framedex.sharder.planning.planner import Planner
from framedex.sharder.policies.sampling import Timeline
from framedex.sharder.reading import range_reader
from framedex.sharder.schema import MEDIA
from framedex.storage.places import OWN_STORE, Access
from framedex.storage.uris import medium_name

Row = dict[str, Any]

KEPT_OPEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningOptions:
    """How clips are planned.

    Attributes:
        access: Which sources may be read.
        keep_damaged: Plan frames of damaged GOPs, too.
        one_stream: Which clips are planned so that a decoder that takes a clip's packets as one stream gives the same
            frames: all, those of media whose packets are not byte ranges of a file, or none.
        audio: The clips' audio; None for no audio.
    """

    access: Access = OWN_STORE
    keep_damaged: bool = False
    one_stream: Literal["all", "not addressable", "none"] = "none"
    audio: AudioOptions | None = None


DEFAULTS = PlanningOptions()


class IndexedMedium:
    """A usable row of `videos` with its packets, ready for planning clips.

    Raises:
        StorageError: The source must not be read.
    """

    def __init__(self, index: Index, video: Row, options: PlanningOptions = DEFAULTS) -> None:
        self.video, self._audio = video, options.audio
        self._one_stream = options.one_stream == "all" or (
            options.one_stream == "not addressable" and not video["byte_addressable"]
        )
        self._audio_packets = None if self._audio is None else index.audio(video["media_id"])
        self._audio_source: ByteSource | None = None
        self.medium = Medium(
            path=index.locate(video["uri"]),
            **{name: video[name] for name in MEDIA.names},
        )
        self._indexed = self._packets = index.packets(video["media_id"])
        self._shows_damage = False  # among the headers read so far
        self._source = self.medium.source
        self._headers: UnreadHeaders | None = None
        self.planner = _planner(video, self._packets, keep_damaged=options.keep_damaged)
        self.timeline = _timeline(video, self.planner)

    def clip(self, wanted: WantedClip) -> Clip:
        """Plan a clip.

        Raises:
            PolicyError: The frames are not available.
            StaleError: The source has to be read and is not what was indexed.
        """
        self.read_headers(wanted.frames)
        recipe = self.planner.plan(wanted.frames, one_stream=self._one_stream)
        padded = wanted.frames == PAD
        pts = np.where(padded, NO_PTS, self.planner.pts[wanted.frames])
        tick = self.timeline.time_base
        first, stop = wanted.stretch or (None, None)
        return Clip(
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

    def _plan_audio(self, frames: NDArray[np.int64], options: AudioOptions) -> ClipAudioPlan:
        """Return the plan of a clip's audio, silence if the medium has none. Raises PolicyError if this fails."""
        if self.video["audio_problem"] is not None:
            raise PolicyError(
                "the clip's audio is not available", found=self.video["audio_problem"], remedy="leave out --audio"
            )
        end_pts = int(self.planner.pts[0]) + self.timeline.duration_pts
        interval = clip_interval(self.planner.pts, end_pts, frames, self.timeline.time_base)
        facts = self.medium.audio
        if facts is None or self._audio_packets is None:
            return plan_silence(*interval, options)
        if self._audio_packets.offset is None:
            raise PolicyError(
                "the audio's packets are not byte ranges of their file",
                remedy="pass --pack clips, which copies them into the dataset",
            )
        return plan_clip_audio(facts, self._audio_packets, *interval, options)

    def prepare(self, clips: list[WantedClip]) -> None:
        """Read in one pass what planning some clips needs.

        Errors are raised later, when the affected clip is planned.
        """
        if not self._packets.read.all():
            with contextlib.suppress(PolicyError, StaleError):
                self.read_headers(np.concatenate([clip.frames for clip in clips]))

    def read_headers(self, frames: NDArray[np.int64]) -> None:
        """Read the packet headers that the index skipped, between the start points and the last targets of some frames.

        Damage applies to all of a GOP that is read. As soon as damage is found, a clip's headers are read as if it were
        the first clip: whether it is refused must depend on its own frames alone.

        Raises:
            PolicyError: Frames do not exist, or the pictures contradict the sample tables.
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
        self._forget()
        self._read(frames)

    def _forget(self) -> None:
        """Return to the state of the index, without headers that were read later."""
        self._headers = None
        self._renew(self._indexed)

    def _read(self, frames: NDArray[np.int64]) -> None:
        targets = self.planner.packet_of(frames[frames != PAD])
        ends = settled(self._packets.pts, targets, self.medium.reorder_depth)
        # Read beyond the second field of the last one, too, if it has one.
        end = max(ends.max(initial=0), targets.max(initial=0) + 2)
        if self._packets.read[:end].all():
            return
        if self._headers is None:
            self._headers = UnreadHeaders(
                self._packets,
                self.medium,
                self.medium,
                range_reader(self.medium.source),
                where=self.medium.path,
            )
        try:
            self._headers.read(targets)
            self._renew(self._headers.packets)
            while self._one_stream and self._headers.read_between(*self.planner.joined(frames)):
                self._renew(self._headers.packets)  # the new headers may join runs further
        finally:
            self._renew(self._headers.packets)

    @property
    def addressable(self) -> bool:
        """Whether the packets are byte ranges of a file."""
        return self._packets.offset is not None

    @property
    def is_spooled(self) -> bool:
        """Whether clips are planned with a file of this process, instead of the source or in addition to it."""
        own = self.medium.source
        return self._source != own or (self._audio_source is not None and self._audio_source != own)

    @property
    def packets(self) -> Packets:
        """All packets, with the flags read so far."""
        return self._packets

    def spooled(self, source: ByteSource) -> None:
        """Plan from now on with a file that holds all packets, one after the other, instead of the source."""
        size = self._packets.size
        if self._audio_source is None and self._source is not source:
            self._audio_source = self._source  # the audio packets stay in the source
        self._source = source
        self._renew(replace(self._packets, offset=np.cumsum(size) - size))

    @property
    def audio_packets(self) -> AudioPackets | None:
        """All audio packets; None if clips carry no audio or the medium has none."""
        return self._audio_packets

    def audio_spooled(self, source: ByteSource) -> None:
        """Plan from now on with a file that holds all audio packets, one after the other."""
        assert self._audio_packets is not None  # otherwise there is nothing to spool
        size = self._audio_packets.size
        self._audio_packets = replace(self._audio_packets, offset=np.cumsum(size) - size)
        self._audio_source = source

    def _renew(self, packets: Packets) -> None:
        if packets is not self._packets:
            self._packets = packets
            self._shows_damage |= bool((packets.flags & DAMAGED).any())
            self.planner.renew(packets)

    def _md5(self, frames: NDArray[np.int64]) -> list[bytes | None] | None:
        """Return the hashes of wanted frames, None for padding; None as a whole if the index has no hashes."""
        hashes = self._packets.md5
        if hashes is None:
            return None
        real = frames != PAD
        found: list[bytes | None] = [None] * len(frames)
        for place, packet in zip(np.flatnonzero(real), self.planner.packet_of(frames[real]).tolist(), strict=True):
            found[place] = hashes[packet]
        return found


class OpenMedia:
    """The media of an index, ready for planning clips. The last ones that were used stay open.

    Args:
        kept: How many stay open. Their packets are in memory.
    """

    def __init__(self, index: Index, options: PlanningOptions = DEFAULTS, *, kept: int = KEPT_OPEN) -> None:
        self._index, self._options = index, options
        self.of = functools.lru_cache(kept)(self.open)

    def open(self, media_id: str) -> IndexedMedium:
        """Open a medium. Raises PolicyError if it is not usable, and StorageError."""
        video = self._index.video(media_id)
        if video["status"] != OK:
            raise PolicyError(f"the medium is {video['status']}: {video['error_message']}")
        return IndexedMedium(self._index, video, self._options)

    def timeline(self, media_id: str) -> Timeline:
        """Return the frames' times of a medium. Raises as `open`."""
        return self.of(media_id).timeline


def timeline(index: Index, media_id: str) -> Timeline:
    """Return the frames' times of a medium, damaged frames included. Does not read the source."""
    video = index.video(media_id)
    return _timeline(video, _planner(video, index.packets(media_id), keep_damaged=True))


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
