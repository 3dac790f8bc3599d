"""Cut clips into tiny files. A tiny file has headers and a copy of the clip's packets, so any player can open it."""

import collections
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from framedex.errors import UncuttableError
from framedex.indexer.bitstream.nal import START_CODE, join_length_prefixed, split_annex_b
from framedex.indexer.schema import IN_NO_FILE
from framedex.records.clip import NO_PTS, PAD, PlannedRecipe
from framedex.records.medium import VIDEO
from framedex.sharder.clips.clip import Clip, Medium, PlannedClip
from framedex.sharder.clips.samples import FileRanges, Member, Piece
from framedex.sharder.packing import mp4
from framedex.sharder.reading import SourceFiles

# Codecs for which `mp4.movie_header` writes the headers of the file, and packets are copied directly from the source.
# For all other codecs, libavformat writes the whole file.
OWN_HEADERS = frozenset({"h264", "hevc", "av1", "vp9"})
NAL_CODECS = frozenset({"h264", "hevc"})
LENGTH_SIZE = 4
DROP_AT_CHANGES = frozenset({"mpeg1video", "mpeg2video"})  # codecs whose decoders drop a picture at a size change
# Codecs that are stored in MOV: Matroska would change their packets, or lose properties that their decoders need.
MOV_CODECS = frozenset({"prores", "dnxhd", "qtrle", "png", "rpza", "svq1", "svq3", "cinepak", "h263", "gif"})
AVI_CODECS = frozenset({"wmv1", "wmv2", "flv1", "msmpeg4v2"})  # codecs that libavformat's Matroska muxer rejects
MATROSKA_TICKS = 1000  # time base of Matroska files in units per second
# Limit of the time between two packets in units of the timescale. An MP4 has unsigned 32-bit fields for this time, and
# signed 32-bit fields for the offsets between decoding and presentation times.
MAX_STEP = 1 << 31
OPEN_MEDIA = 16  # number of media whose tracks are kept; each track may keep a file open


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFile:
    """A tiny file that holds one clip.

    Attributes:
        clip: The clip, with byte ranges that point into the tiny file. `clip.medium` describes the file's stream.
        member: The content of the file, as a member of a tar.
        frames: int64 [wanted], the index of each wanted frame in a decoder's output for the file, -1 for padding.
        seconds: float64 [wanted], the presentation time of each wanted frame in the file, NaN for padding.
        unshown: The number of packets for which a decoder does not output a frame.
        real_times: Whether the file has the timestamps of the source, shifted to begin at 0. Otherwise the timestamps
            are presentation ranks, and the file plays at 30 frames per second.
    """

    clip: Clip
    member: Member
    frames: NDArray[np.int64]
    seconds: NDArray[np.float64]
    unshown: int
    real_times: bool


@dataclass(slots=True, kw_only=True)
class Track:
    """Properties that the tiny files of all clips of a medium share.

    Attributes:
        packed: The medium with the properties of the stream in its tiny files.
        rewritten: Whether start codes (Annex B) in packets are replaced by length prefixes.
        configuration: The decoder configuration record in the sample entry.
        template: The source stream, which libavformat's muxers copy. None if `mp4.movie_header` writes the headers.
    """

    packed: Medium
    rewritten: bool = False
    configuration: bytes = b""
    template: mp4.Template | None = None


class ClipFiles:
    """Cuts clips of any number of media into tiny files. Raises StaleError and UncuttableError."""

    def __init__(self) -> None:
        self._sources = SourceFiles()
        self._tracks: collections.OrderedDict[str, Track] = collections.OrderedDict()

    def cut(self, clip: PlannedClip) -> ClipFile:
        """Cut a clip into a tiny file. The clip must have been planned with `one_stream`."""
        recipe, medium = clip.recipe, clip.medium
        _check_cuttable(clip)
        track = self._track(medium)
        if track.template is None:
            if track.rewritten:
                contents = [_length_prefixed(packet) for packet in self._packets(clip)]
                packets: list[Piece] = list(contents)
                size = np.array([len(packet) for packet in contents], np.int64)
            else:
                packets, size = list(_copied(clip)), _sizes(clip)
            times, real = packet_times(recipe, medium, medium.time_base_den)
            header = file_header(track, size, recipe.packet_rank, _sync(clip), times, "pass --pack images")
            member = Member(suffix="mp4", pieces=[header, *packets])
            offset, length = np.array([len(header)]), np.array([size.sum()])
        else:
            suffix = _suffix(medium.codec)
            contents = list(self._packets(clip))
            if suffix == "avi":  # AVI stores a frame rate, but no timestamps
                times, real = _rank_times(recipe, mp4.TIMESCALE), False
            else:
                times, real = packet_times(recipe, medium, MATROSKA_TICKS if suffix == "mkv" else medium.time_base_den)
            content, offset, size = _muxed(suffix, track.template, contents, times, _sync(clip).tolist())
            member, length = Member(suffix=suffix, pieces=[content]), size
        packed = replace(
            recipe,
            range_offset=offset.astype(np.int64),
            range_length=length.astype(np.int64),
            packet_size=size.astype(np.int32),
            run_state=np.zeros_like(recipe.run_state),
            range_path=None,
            range_crc32=None,
            packet_order=None,
        )
        return ClipFile(
            clip=replace(clip, medium=track.packed, recipe=packed),
            member=member,
            frames=output_places(recipe),
            seconds=shown_seconds(recipe, times),
            unshown=_count_unshown(recipe),
            real_times=real,
        )

    def _packets(self, clip: Clip) -> Iterator[bytes]:
        """Yield the contents of a clip's packets.

        The first packet of each run begins with the state (parameter sets) that the decoder needs.
        """
        encoded = self._sources.read(clip)
        for first, end in itertools.pairwise(encoded.packet_first.tolist()):
            yield encoded.payload[first:end].tobytes()

    def _track(self, medium: Medium) -> Track:
        """Return the track of a medium. The tracks of the OPEN_MEDIA most recently used media are cached."""
        found = self._tracks.get(medium.media_id)
        if found is None:
            found = self._tracks[medium.media_id] = _track_of(medium)
            if len(self._tracks) > OPEN_MEDIA:
                _, oldest = self._tracks.popitem(last=False)
                if oldest.template is not None:
                    oldest.template.close()
        self._tracks.move_to_end(medium.media_id)
        return found


def copies_ranges(medium: Medium) -> bool:
    """Return whether the tiny files of a medium's clips consist only of headers and byte ranges of the source."""
    return medium.kind == VIDEO and medium.codec in OWN_HEADERS and not _is_rewritten(medium)


def _is_rewritten(medium: Medium) -> bool:
    """Return whether a medium's packets have start codes (Annex B), so that an MP4 needs length prefixes instead."""
    extradata = medium.extradata or b""
    return medium.codec in NAL_CODECS and (not extradata or extradata.startswith((START_CODE, b"\0" + START_CODE)))


def _track_of(medium: Medium) -> Track:
    codec, rewritten = medium.codec, _is_rewritten(medium)
    inband = medium.inband_parameter_sets or len(medium.states) > 1
    packed = replace(medium, states=[b""], inband_parameter_sets=inband, container="mp4")
    if codec not in OWN_HEADERS:
        container = {"mov": "mp4", "mkv": "matroska", "avi": "avi"}[_suffix(codec)]
        return Track(packed=replace(packed, container=container), template=mp4.Template(medium))
    if codec in NAL_CODECS and not rewritten:
        return Track(packed=packed, configuration=medium.extradata or b"")
    template = mp4.Template(medium)
    try:
        configuration = mp4.configuration_record(template, mp4.SAMPLE_ENTRIES[codec].configuration)
    except ValueError as error:
        raise UncuttableError(
            "the stream cannot be stored in a tiny file", where=medium.path, found=error, remedy="pass --pack images"
        ) from error
    finally:
        template.close()
    if rewritten:
        packed = replace(packed, extradata=configuration, codec_tag=mp4.SAMPLE_ENTRIES[codec].entry.decode())
    return Track(packed=packed, rewritten=rewritten, configuration=configuration)


def _length_prefixed(packet: bytes) -> bytes:
    return join_length_prefixed((packet[start:end] for start, end in split_annex_b(packet)), LENGTH_SIZE)


def _sizes(clip: Clip) -> NDArray[np.int64]:
    """Return int64 [packets]: the size of each packet in bytes. The first packet of a run includes its state."""
    size = clip.recipe.packet_size.astype(np.int64)
    size[clip.recipe.run_first] += [len(clip.medium.states[state]) for state in clip.recipe.run_state.tolist()]
    return size


def _copied(clip: Clip) -> Iterator[Piece]:
    """Yield the pieces that make up a clip's packets: the state before each run, and byte ranges of the source.

    Contiguous ranges are joined.
    """
    recipe = clip.recipe
    begins = np.append(0, np.cumsum(recipe.packet_size))[recipe.run_first].tolist()
    states = dict(zip(begins, (clip.medium.states[state] for state in recipe.run_state.tolist()), strict=True))
    at = 0  # number of payload bytes before the current range
    ranges: list[tuple[int, int]] = []
    for offset, length in zip(recipe.range_offset.tolist(), recipe.range_length.tolist(), strict=True):
        if state := states.get(at):
            if ranges:
                yield FileRanges(source=clip.source, ranges=ranges)
            yield state
            ranges = []
        if ranges and sum(ranges[-1]) == offset:
            ranges[-1] = ranges[-1][0], ranges[-1][1] + length
        else:
            ranges.append((offset, length))
        at += length
    yield FileRanges(source=clip.source, ranges=ranges)


def _check_cuttable(clip: PlannedClip) -> None:
    """Raise UncuttableError if other players would show a clip's tiny file differently from framedex."""
    what = None
    if clip.medium.codec in IN_NO_FILE:
        what = f"{clip.medium.codec} cannot be stored in a tiny file"
    elif clip.medium.codec in DROP_AT_CHANGES and clip.medium.varying_shape:
        what = "the picture size changes within the medium, and decoders drop a picture at each change"
    elif clip.medium.codec in NAL_CODECS and _count_unshown(clip.recipe):
        # FFmpeg 5 does not output the last frames of a file with packets that are decoded but not shown.
        what = "the clip needs pictures that decoders do not show"
    if what is not None:
        raise UncuttableError(what, where=clip.medium.path, remedy="pass --pack images, or choose later frames")


def _suffix(codec: str) -> str:
    return "mov" if codec in MOV_CODECS else "avi" if codec in AVI_CODECS else "mkv"


def _rank_times(recipe: PlannedRecipe, timescale: int) -> mp4.SampleTimes:
    ranks = recipe.packet_rank.astype(np.int64) * timescale // mp4.TIMESCALE
    return mp4.SampleTimes(packet_time=ranks, timescale=timescale, last=timescale // mp4.TIMESCALE)


def packet_times(recipe: PlannedRecipe, medium: Medium, timescale: int) -> tuple[mp4.SampleTimes, bool]:
    """Return the presentation times of packets, and whether they are the timestamps of the source.

    If the source's timestamps do not ascend with the presentation ranks, the ranks are used as times.
    """
    tick = Fraction(medium.time_base_num, medium.time_base_den)
    time = _real_times(recipe, tick * timescale)
    if time is None:
        return _rank_times(recipe, timescale if timescale == MATROSKA_TICKS else mp4.TIMESCALE), False
    # The last frame gets the median duration of the clip's packets, but at most the mean frame duration of the medium,
    # because the packets' durations are too long if the clip skips frames.
    mean = float(medium.duration_pts * tick * timescale / medium.frame_count)
    usual = float(np.median(np.diff(np.sort(time)))) if len(time) > 1 else mean
    last = max(1, round(min(usual, mean) if mean > 0 else usual))
    return mp4.SampleTimes(packet_time=time, timescale=timescale, last=last), True


def _real_times(recipe: PlannedRecipe, tick: Fraction) -> NDArray[np.int64] | None:
    """Return the timestamps of packets, shifted to begin at 0, or None if they do not ascend with the ranks.

    A packet without a timestamp gets the time of the previous packet plus 1. So does a packet that is not shown and has
    the timestamp of a shown packet.

    Args:
        recipe: The recipe of the clip.
        tick: The length of one unit of the packets' timestamps, in time units of the result.

    Returns:
        int64 [packets], or None.
    """
    pts, shown = recipe.packet_pts, recipe.packet_shown
    known = (pts != NO_PTS) & (shown | ~np.isin(pts, pts[shown]))
    if not known[shown].all() or not shown.any():
        return None
    first = int(pts[known].min())
    time = np.rint((pts - first) * float(tick)).astype(np.int64) if tick.denominator > 1 else (pts - first) * int(tick)
    for number in np.flatnonzero(~known).tolist():
        time[number] = time[number - 1] + 1 if number else -1
    by_rank = np.argsort(recipe.packet_rank)
    seen = time[by_rank[known[by_rank]]]
    steps = np.diff(np.sort(time))
    if (np.diff(seen) <= 0).any() or (steps <= 0).any() or steps.max(initial=0) >= MAX_STEP:
        return None
    moved: NDArray[np.int64] = time - time.min()
    return moved


def file_header(
    track: Track,
    size: NDArray[np.int64],
    rank: NDArray[np.int32],
    sync: NDArray[np.int64],
    times: mp4.SampleTimes,
    remedy: str,
) -> bytes:
    """Return the bytes of an MP4 up to its first packet. Raises UncuttableError.

    Args:
        track: The properties of the stream.
        size: int64 [packets], the size of each packet in bytes.
        rank: int32 [packets], the presentation rank of each packet.
        sync: int64 [starts], the indices of the sync samples in decode order.
        times: The presentation times of the packets.
        remedy: The remedy that the error message suggests.
    """
    medium = track.packed
    aspect = Fraction(medium.sample_aspect_ratio or 1).limit_denominator(1 << 15)
    full_range = medium.color_range == "full"
    points = (medium.color_primaries, medium.color_transfer, medium.color_matrix)
    stated = full_range or any(point != mp4.UNSPECIFIED for point in points)
    try:
        return mp4.movie_header(
            codec=medium.codec,
            width=medium.width,
            height=medium.height,
            configuration=track.configuration,
            packet_size=size,
            packet_rank=rank,
            sync=sync,
            times=times,
            inband=medium.inband_parameter_sets,
            aspect=aspect.as_integer_ratio() if 0 < aspect != 1 else None,
            colour=(*points, full_range) if stated else None,
        )
    except ValueError as error:
        raise UncuttableError(str(error), where=medium.path, remedy=remedy) from error


def _sync(clip: PlannedClip) -> NDArray[np.int64]:
    """Return int64 [starts]: the indices of the sync samples (packets where a player may start), in decode order."""
    first, start = clip.recipe.run_first.astype(np.int64), clip.recipe.packet_start
    # If the medium has several decoder states, a random access point within a run may need a state that is stored only
    # at the start of the run. Then only the starts of runs are sync samples.
    return np.union1d(first, np.flatnonzero(start)) if len(clip.medium.states) == 1 else first


def _muxed(
    suffix: str, template: mp4.Template, packets: list[bytes], times: mp4.SampleTimes, sync: list[int]
) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """Mux packets into a file.

    Returns:
        The content of the file, and the offset and the length of each packet in it (two arrays, int64 [packets]).
    """
    where, remedy = template.path, "pass --pack images"
    try:
        content = mp4.mux(suffix, template, packets, times, sync)
    except ValueError as error:
        raise UncuttableError(
            "the stream cannot be stored in a tiny file", where=where, found=error, remedy=remedy
        ) from error
    offset, at = [], 0
    for packet in packets:
        at = content.find(packet, at)
        if at < 0:
            raise UncuttableError("the muxer does not store the packets unchanged", where=where, remedy=remedy)
        offset.append(at)
        at += len(packet)
    return content, np.array(offset, np.int64), np.array([len(packet) for packet in packets], np.int64)


def output_places(recipe: PlannedRecipe) -> NDArray[np.int64]:
    """Return int64 [wanted]: the index of each wanted frame in a decoder's output, -1 for padding."""
    shown = np.empty(len(recipe.packet_rank), np.int64)
    shown[recipe.packet_rank] = recipe.packet_shown
    return np.where(recipe.position == PAD, PAD, (np.cumsum(shown) - 1)[recipe.position])


def _count_unshown(recipe: PlannedRecipe) -> int:
    return int(np.count_nonzero(~recipe.packet_shown))


def shown_seconds(recipe: PlannedRecipe, times: mp4.SampleTimes) -> NDArray[np.float64]:
    by_rank = np.empty(len(recipe.packet_rank), np.float64)
    by_rank[recipe.packet_rank] = times.packet_time / times.timescale
    return np.where(recipe.position == PAD, np.nan, by_rank[recipe.position])
