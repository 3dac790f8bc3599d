"""Samples that the `moof` boxes of fragmented MP4 files list (ISO/IEC 14496-12 8.8).

The samples equal those that libavformat reads. All functions here are pure functions of bytes.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.mp4.boxes import Box, UntrustedTables, child_boxes
from framedex.indexer.mp4.tracks import MAX_TIME, Layout, Samples, Track, TrackDefaults

MAX_SAMPLE_BYTES = 0x3FFFFFFF  # largest sample size that libavformat's index can store
# A file may claim this number of samples even if its headers and tables have fewer bytes. Larger numbers count as an
# attack if they exceed the number of bytes.
FREE_SAMPLES = 1 << 20
BASE_OFFSET, BASE_IS_MOOF = 1, 0x20000  # flags of tfhd (8.8.7)
# tfhd flag → field of TrackDefaults that the tfhd box overrides
OVERRIDES = {2: "description", 8: "duration", 0x10: "size", 0x20: "flags"}
DATA_OFFSET, FIRST_FLAGS, SAMPLE_FIELDS = 1, 4, (0x100, 0x200, 0x400, 0x800)  # flags of trun (8.8.8)
OWN_SIZE, OWN_FLAGS = 0x200, 0x400  # trun flags: each row states the size, or the flags, of its sample
NOT_SYNC = 0x01010000  # bits that no sync sample sets: sample_is_non_sync_sample, and sample_depends_on with value 1


@dataclass(frozen=True, slots=True)
class _Run:
    """The content of one trun box (8.8.8): a run of consecutive samples, with one row of fields for each sample.

    Attributes:
        data: the payload of the moof box that holds the trun box.
        start: the offset in `data` at which the rows of the trun box begin.
        count: the number of samples.
        flags: the flags of the trun box.
        first_flags: the sample flags of the first sample. None if the box does not state them.
        offset: the offset in the file at which the data of the first sample begins.
        defaults: the values of fields that the rows do not state.
    """

    data: bytes
    start: int
    count: int
    flags: int
    first_flags: int | None
    offset: int
    defaults: TrackDefaults

    def rows(self) -> tuple[list[int], NDArray[np.uint32]]:
        """Return the indices in `SAMPLE_FIELDS` of the fields that rows state, and their values [samples, fields]."""
        chosen = [number for number, bit in enumerate(SAMPLE_FIELDS) if self.flags & bit]
        stated = np.frombuffer(self.data, ">u4", self.count * len(chosen), self.start)
        return chosen, stated.reshape(self.count, len(chosen))


class _Collector:
    """A reader of moof boxes in file order. It collects the runs of one track."""

    def __init__(self, layout: Layout, track: Track) -> None:
        self.layout, self.track = layout, track
        self.runs: list[_Run] = []
        self.run_moofs: list[int] = []
        self.samples = 0
        self.chains: list[tuple[int, int]] = []  # (index of a chain's first run, decode time of the chain)

    def add_moof(self, number: int, start: int, data: bytes) -> None:
        """Add fragment `number`, whose moof box begins at byte `start` of the file and has the payload `data`."""
        last: _Run | None = None
        seen = set()
        for kind, first, end in child_boxes(data, 0, len(data)):
            if kind != b"traf":
                continue
            boxes = child_boxes(data, first, end)
            if not boxes or boxes[0][0] != b"tfhd":
                raise UntrustedTables(f"a traf box in the moof at byte {start} does not begin with a tfhd box")
            track_id, flags, base, defaults = self._header(data[boxes[0][1] : boxes[0][2]])
            if track_id in seen:
                raise UntrustedTables(f"the moof at byte {start} has two traf boxes for track {track_id}")
            seen.add(track_id)
            if not flags & BASE_OFFSET:
                base = start if last is None or flags & BASE_IS_MOOF else _end_of(last)
            runs = _add_runs(data, boxes[1:], base, defaults, start)
            last = next((run for run in reversed(runs) if run.count), last)
            if track_id == self.track.track_id:
                self._keep(number, data, boxes[1:], runs, start)

    def _header(self, payload: bytes) -> tuple[int, int, int, TrackDefaults]:
        """Return the track ID, flags, base data offset and sample defaults of a tfhd box (8.8.7)."""
        try:
            word, track_id = struct.unpack_from(">II", payload)
            flags, at, base = word & 0xFFFFFF, 8, 0
            if flags & BASE_OFFSET:
                (base,) = struct.unpack_from(">Q", payload, at)
                at += 8
            names = [name for bit, name in OVERRIDES.items() if flags & bit]
            stated = dict(zip(names, struct.unpack_from(f">{len(names)}I", payload, at), strict=True))
        except struct.error:
            raise UntrustedTables(f"a tfhd box has only {len(payload)} bytes, fewer than its fields need") from None
        movie = self.layout.movie
        if track_id not in movie.defaults or track_id not in movie.tracks:
            raise UntrustedTables(f"a fragment belongs to track {track_id}, which has no trak or no trex box in moov")
        if base >= MAX_TIME:
            raise UntrustedTables(f"a tfhd box states an implausible base data offset, {base}")
        return track_id, flags, base, replace(movie.defaults[track_id], **stated)

    def _keep(self, number: int, data: bytes, boxes: Sequence[Box], runs: list[_Run], start: int) -> None:
        kinds = [kind for kind, _, _ in boxes]
        if b"senc" in kinds:
            raise UntrustedTables("the track is encrypted")
        if b"tfdt" in kinds:
            at = kinds.index(b"tfdt")
            if kinds.count(b"tfdt") > 1 or b"trun" in kinds[:at]:
                raise UntrustedTables(f"a traf in the moof at byte {start} has two tfdt boxes, or one after a trun box")
            self.chains.append((len(self.runs), _decode_time(data[boxes[at][1] : boxes[at][2]])))
        elif self.layout.has_sidx:
            raise UntrustedTables(
                f"a traf in the moof at byte {start} has no tfdt; demuxers may use sidx times instead"
            )
        kept = [run for run in runs if run.count]
        self.samples += sum(run.count for run in kept)
        self.runs += kept
        self.run_moofs += [number] * len(kept)
        if self.samples > self.layout.size_bytes:
            raise UntrustedTables(f"the fragments claim {self.samples} samples, but the file has fewer bytes")


def read_fragments(layout: Layout, track: Track, *, start_time: int, last_time: int | None) -> tuple[Samples, int]:
    """Return the samples of one track in all fragments, and a timestamp shift.

    The shift is the result of `Samples.shift_needed` for the first fragment that has samples of the track.

    Args:
        layout: the boxes of the file.
        track: the track whose samples are returned.
        start_time: the decode time at the end of the samples in the moov. It is the time of the first sample in
            fragments, unless a tfdt box precedes this sample.
        last_time: the decode time of the last sample in the moov. None if the moov has no samples.

    Raises:
        UntrustedTables: if the fragments are malformed, or it is uncertain how demuxers interpret them.
    """
    collector = _Collector(layout, track)
    for number, (start, data) in enumerate(layout.moofs):
        collector.add_moof(number, start, data)
    header_bytes = sum(len(data) for _, data in layout.moofs)
    if collector.samples > max(FREE_SAMPLES, header_bytes):
        raise UntrustedTables(f"{header_bytes} bytes of fragment headers claim {collector.samples} samples")
    runs = collector.runs
    counts = np.array([run.count for run in runs], np.int64)
    firsts = np.cumsum(counts) - counts
    table = _rows(runs, firsts, collector.samples)
    duration, size, composition = table[:, 0], table[:, 1], table[:, 3].astype(np.int32).astype(np.int64)
    if len(size) and (size.min() < 1 or size.max() > MAX_SAMPLE_BYTES):
        raise UntrustedTables("a fragment has a sample without data, or a sample of 1 GiB or more")
    run_of = np.repeat(np.arange(len(runs)), counts)
    into = np.cumsum(size) - size
    offset = np.array([run.offset for run in runs], np.int64)[run_of] + into - into[firsts][run_of]
    time = _decode_times(collector.chains, firsts, duration, start_time)
    before = np.full(len(runs), np.iinfo(np.int64).min if last_time is None else last_time)
    before[1:] = time[firsts[1:] - 1]
    in_first = int(counts[np.array(collector.run_moofs) == collector.run_moofs[0]].sum()) if runs else 0
    samples = Samples(
        offset=offset,
        size=size,
        time=time,
        composition=composition,
        duration=duration,
        sync=(table[:, 2] & NOT_SYNC) == 0,
        hidden=time <= before[run_of],  # True up to the decode time of the preceding run's last sample
        entry=np.array([run.defaults.description - 1 for run in runs], np.int64)[run_of].astype(np.int32),
    )
    return samples, samples.shift_needed(in_first)


def _add_runs(data: bytes, boxes: Sequence[Box], base: int, defaults: TrackDefaults, start: int) -> list[_Run]:
    """Return the runs of one traf box.

    Args:
        data: the payload of the moof box.
        boxes: (type, payload start, payload end) of each box in the traf box, except tfhd.
        base: the offset in the file to which data offsets are relative.
        defaults: the values of fields that the rows of trun boxes do not state.
        start: the offset of the moof box in the file, for error messages.
    """
    runs: list[_Run] = []
    for kind, at, end in boxes:
        if kind != b"trun":
            continue
        if end - at < 8:
            raise UntrustedTables(f"a trun in the moof at byte {start} has only {end - at} bytes, but needs at least 8")
        word, count = struct.unpack_from(">II", data, at)
        flags, rows = word & 0xFFFFFF, at + 8
        head = 4 * (bool(flags & DATA_OFFSET) + bool(flags & FIRST_FLAGS))
        width = 4 * sum(bool(flags & bit) for bit in SAMPLE_FIELDS)
        if rows + head + count * width > end:
            raise UntrustedTables(f"a trun in the moof at byte {start} claims {count} samples, but holds fewer rows")
        offset, first_flags = base, None
        if flags & DATA_OFFSET:
            offset += struct.unpack_from(">i", data, rows)[0]
            rows += 4
        elif runs:
            raise UntrustedTables(f"a second trun in the moof at byte {start} states no data offset")
        if flags & FIRST_FLAGS:
            (first_flags,) = struct.unpack_from(">I", data, rows)
            rows += 4
        if offset < 0:
            raise UntrustedTables(
                f"a trun in the moof at byte {start} states a data offset before the file's beginning"
            )
        runs.append(_Run(data, rows, count, flags, first_flags, offset, defaults))
    return runs


def _rows(runs: list[_Run], firsts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Return int64 [samples, 4]: duration, size, flags and composition offset of each sample.

    Composition offsets are read as unsigned integers. The caller converts them to signed integers.
    """
    table = np.zeros((total, 4), np.int64)
    for run, first in zip(runs, firsts.tolist(), strict=True):
        part = table[first : first + run.count]
        chosen, stated = run.rows()
        if len(chosen) < 4:
            part[:, :3] = (run.defaults.duration, run.defaults.size, run.defaults.flags)
        if chosen:
            part[:, chosen] = stated
        if run.first_flags is not None and not run.flags & OWN_FLAGS:
            part[0, 2] = run.first_flags
    return table


def _decode_times(
    chains: list[tuple[int, int]], firsts: NDArray[np.int64], duration: NDArray[np.int64], start_time: int
) -> NDArray[np.int64]:
    """Return the decode times of samples, int64 [samples].

    A chain consists of the runs from one tfdt box up to the next one. The first sample of a chain has the time that the
    tfdt box states. Each later sample of the chain follows at the end of the preceding one.
    """
    before = np.cumsum(duration) - duration
    starts = np.append(firsts, len(duration))
    chain_first = starts[np.array([0] + [run for run, _ in chains], np.int64)]
    chain_time = np.array([start_time] + [time for _, time in chains], np.int64)
    lengths = np.diff(chain_first, append=len(duration))
    if not len(duration):
        return before
    base = np.repeat(chain_time - before[np.minimum(chain_first, len(before) - 1)], lengths)
    times: NDArray[np.int64] = before + base
    return times


def _end_of(run: _Run) -> int:
    """Return the offset in the file at which the data of a run ends."""
    if not run.flags & OWN_SIZE:
        return run.offset + run.count * run.defaults.size
    chosen, rows = run.rows()
    return run.offset + int(rows[:, chosen.index(SAMPLE_FIELDS.index(OWN_SIZE))].sum(dtype=np.int64))


def _decode_time(payload: bytes) -> int:
    """Return the baseMediaDecodeTime of a tfdt box (8.8.12)."""
    length = 8 if payload[:1] != b"\0" else 4
    if len(payload) < 4 + length:
        raise UntrustedTables(f"a tfdt box has only {len(payload)} bytes, but needs {4 + length}")
    time = int.from_bytes(payload[4 : 4 + length], "big")
    if time >= MAX_TIME:
        raise UntrustedTables(f"a tfdt box states an implausible decode time, {time}")
    return time
