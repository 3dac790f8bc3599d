"""The sample tables in the `stbl` box of a track (ISO/IEC 14496-12 8.5 to 8.7). Pure functions of bytes and numpy.

Each function takes the bytes of the moov, the track and the number of samples, and returns columns. Its cost depends on
the entries that the tables hold, not on the numbers that they claim. It raises UntrustedTables if tables are malformed,
or if demuxers read them in ways of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.mp4.boxes import UntrustedTables
from framedex.indexer.mp4.fragments import MAX_SAMPLE_BYTES
from framedex.indexer.mp4.tracks import Track, entry_table

MAX_SAMPLES = 100_000_000
FREE_SAMPLES = 1 << 20  # samples that may be claimed without bytes of their own in the tables
MAX_DELTA = (1 << 32) - 1 - 480_000  # libavformat reads longer durations as negative
MAX_COMPOSITION = 1 << 28
MAX_OFFSET = 1 << 60


def sample_sizes(data: bytes, track: Track, size_bytes: int) -> NDArray[np.int64]:
    """Return int64 [samples] from stsz or stz2 (8.7.3)."""
    names = [name for name in (b"stsz", b"stz2") if name in track.tables]
    if len(names) != 1:
        raise UntrustedTables(f"the track has {len(names)} boxes of sample sizes")
    start, end = track.tables[names[0]]
    if end - start < 12:
        raise UntrustedTables(f"{names[0].decode()} has {end - start} bytes, too few")
    constant, count = (int.from_bytes(data[at : at + 4], "big") for at in (start + 4, start + 8))
    bits = 32
    if names[0] == b"stz2":
        bits, constant = constant & 0xFF, 0
        if bits not in (4, 8, 16):
            raise UntrustedTables(f"stz2 has sizes of {bits} bits")
    if constant:
        if count * constant > size_bytes or count > max(FREE_SAMPLES, len(data)):
            raise UntrustedTables(f"stsz claims {count} samples of {constant} bytes in a file of {size_bytes}")
        return np.full(count, constant, np.int64)
    if (count * bits + 7) // 8 > end - start - 12:
        raise UntrustedTables(f"{names[0].decode()} claims {count} samples, its {end - start} bytes hold less")
    if count > MAX_SAMPLES:
        raise UntrustedTables(f"the track has {count} samples, more than {MAX_SAMPLES}")
    if bits == 4:
        pairs = np.frombuffer(data, np.uint8, (count + 1) // 2, start + 12)
        return np.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1)[:count].astype(np.int64)
    sizes = np.frombuffer(data, f">u{bits // 8}", count, start + 12).astype(np.int64)
    if count and sizes.max() > MAX_SAMPLE_BYTES:
        raise UntrustedTables(f"a sample has {sizes.max()} bytes")
    return sizes


def sample_offsets(data: bytes, track: Track, size: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the offset and the sample entry of each sample, from the chunks (8.7.4, 8.7.5)."""
    names = [name for name in (b"stco", b"co64") if name in track.tables]
    count = len(size)
    if len(names) != 1 or b"stsc" not in track.tables:
        if not names and not count:
            return size, np.zeros(0, np.int32)
        raise UntrustedTables(f"the track has {len(names)} boxes of chunk offsets and {count} samples")
    wide = names[0] == b"co64"
    chunk_offset = entry_table(data, track.tables[names[0]], 1, names[0].decode(), ">u8" if wide else ">u4")[:, 0]
    chunks = len(chunk_offset)
    if chunks and int(chunk_offset.max()) >= MAX_OFFSET:
        raise UntrustedTables(f"a chunk begins at byte {chunk_offset.max()}")
    runs = entry_table(data, track.tables[b"stsc"], 3, "stsc").astype(np.int64)
    first, samples, entry = runs[:, 0], runs[:, 1], runs[:, 2]
    if not count and not chunks:
        return size, np.zeros(0, np.int32)
    if not len(runs) or first[0] != 1 or first[-1] > chunks or not (np.diff(first) > 0).all():
        raise UntrustedTables(f"stsc does not list the {chunks} chunks in order")
    if samples.min() < 1 or entry.min() < 1 or entry.max() > 1 << 16:
        raise UntrustedTables("stsc has a chunk without samples or without a sample entry")
    run_chunks = np.diff(first, append=chunks + 1)
    if int((run_chunks * samples).sum()) != count:
        raise UntrustedTables(f"the chunks hold {int((run_chunks * samples).sum())} samples, the sizes are of {count}")
    chunk_samples = np.repeat(samples, run_chunks)
    before = np.cumsum(size) - size
    chunk_first = np.cumsum(chunk_samples) - chunk_samples
    base = chunk_offset.astype(np.int64) - before[chunk_first]
    return before + np.repeat(base, chunk_samples), np.repeat(entry - 1, run_chunks * samples).astype(np.int32)


def _expand(counts: NDArray[np.int64], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return at most `count` values: each value repeated as often as `counts` says."""
    ends = np.minimum(np.cumsum(counts), count)
    return np.repeat(values, np.diff(ends, prepend=0))


def sample_durations(data: bytes, track: Track, count: int) -> NDArray[np.int64]:
    """Return int64 [samples] from stts (8.6.1.2)."""
    if b"stts" not in track.tables:
        if count:
            raise UntrustedTables("the track has no stts box")
        return np.zeros(0, np.int64)
    runs = entry_table(data, track.tables[b"stts"], 2, "stts").astype(np.int64)
    if len(runs) and runs[:, 1].max() > MAX_DELTA:
        raise UntrustedTables(f"stts has a duration of {runs[:, 1].max()}, which may stand for a negative one")
    durations = _expand(runs[:, 0], runs[:, 1], count)
    if len(durations) < count:
        raise UntrustedTables(f"stts has durations of {len(durations)} samples, there are {count}")
    return durations


def _composition_runs(data: bytes, track: Track) -> NDArray[np.int64]:
    """Return int64 [runs, 2]: counts and offsets of ctts (8.6.1.3), signed in both versions as in QuickTime."""
    if b"ctts" not in track.tables:
        return np.zeros((0, 2), np.int64)
    runs = entry_table(data, track.tables[b"ctts"], 2, "ctts", ">i4").astype(np.int64)
    if len(runs) and (np.abs(runs[:, 1]).max() >= MAX_COMPOSITION or runs[:, 0].min() < 1):
        raise UntrustedTables("ctts has an absurd offset, or one of no samples")
    return runs


def composition_offsets(data: bytes, track: Track, count: int) -> NDArray[np.int64] | None:
    """Return int64 [samples] from ctts (8.6.1.3), or None if it is missing or empty."""
    runs = _composition_runs(data, track)
    if not len(runs):
        return None
    offsets = _expand(runs[:, 0], runs[:, 1], count)
    if len(offsets) < count:
        raise UntrustedTables(f"ctts has offsets of {len(offsets)} samples, there are {count}")
    return offsets


def decode_shift(data: bytes, track: Track) -> int:
    """Return by how much decode times move down for negative offsets; libavformat ignores the last two runs of ctts."""
    offsets = _composition_runs(data, track)[:-2, 1]
    return max(0, -int(offsets.min())) if len(offsets) else 0


def sync_samples(data: bytes, track: Track, count: int) -> NDArray[np.bool_]:
    """Return bool [samples] from stss (8.6.2), QuickTime's stps and sample groups `rap ` (10.4)."""
    sync = np.zeros(count, np.bool_)
    if b"stss" not in track.tables:
        sync[:] = True
        return sync
    for name in (b"stss", b"stps"):
        if name not in track.tables:
            continue
        numbers = entry_table(data, track.tables[name], 1, name.decode())[:, 0].astype(np.int64)
        if name == b"stss" and not len(numbers) and count:
            raise UntrustedTables("stss names no sample, so that only the pictures can tell")
        if len(numbers) and (numbers[0] < 1 or not (np.diff(numbers) > 0).all()):
            raise UntrustedTables(f"{name.decode()} does not name samples in order")
        sync[numbers[numbers <= count] - 1] = True
    for start, end in track.groups:
        if data[start + 4 : start + 8] == b"rap ":
            span = (start + 4 + 4 * (data[start] == 1), end)
            runs = entry_table(data, span, 2, "sbgp").astype(np.int64)
            if len(runs) and runs[:, 0].min() < 1:
                raise UntrustedTables("sbgp has a run of no samples")
            grouped = _expand(runs[:, 0], runs[:, 1], count)
            sync[: len(grouped)] |= grouped > 0
    return sync
