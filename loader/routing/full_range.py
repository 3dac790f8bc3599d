"""Making a stream's header say that it has full range, so that DALI does not expand its range and clips little.

DALI 2.4 looks at `video_full_range_flag` alone: whatever the matrix, BT.601 follows. FFmpeg's h264_metadata and
hevc_metadata filters write the flag, and video usability information where there is none; all else stays.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import replace

import av.error
import numpy as np
from av.bitstream import BitStreamFilterContext

from framedex.indexer.bitstream.h26x import h264, h264_sets, hevc, hevc_sets
from framedex.indexer.bitstream.h26x.nal import join_annex_b, split_annex_b, split_length_prefixed
from framedex.indexer.containers.opening import packet_with
from framedex.sharder.reading.sources import EncodedClip

CACHED_RECORDS = 4096  # of some hundred bytes each
SCANNERS = {"h264": h264.H264Scanner, "hevc": hevc.HevcScanner}
SEQUENCE_SET = {"h264": h264_sets.SPS, "hevc": hevc_sets.SPS}
# What the filter must have read before a sequence parameter set.
FILTERED = {"h264": (h264_sets.SPS,), "hevc": (hevc_sets.VPS, hevc_sets.SPS)}


@functools.lru_cache(maxsize=CACHED_RECORDS)
def full_range_record(codec: str, record: bytes) -> bytes | None:
    """Return a decoder configuration record (avcC, hvcC) whose sequences have full range; None where none can be made."""
    sets = full_range_sets(codec, record)
    if not sets:
        return None
    written = bytearray(record)
    for start, end in reversed(_unit_spans(codec, record)):
        unit = sets.get(record[start:end])
        if unit is not None:
            written[start - 2 : end] = len(unit).to_bytes(2, "big") + unit
    return bytes(written)


@functools.lru_cache(maxsize=CACHED_RECORDS)
def full_range_sets(codec: str, record: bytes) -> Mapping[bytes, bytes]:
    """Return a record's sequence parameter sets, and what stands in for each; nothing where the filter refuses one."""
    if codec not in SCANNERS:
        return {}
    try:
        units = [record[start:end] for start, end in _unit_spans(codec, record)]
        before = [unit for unit in units if unit and SCANNERS[codec].unit_type(unit[0]) in FILTERED[codec]]
        packets = BitStreamFilterContext(f"{codec}_metadata=video_full_range_flag=1", codec).filter(
            packet_with(join_annex_b(before))
        )
    except (av.error.FFmpegError, ValueError):
        return {}
    written = b"".join(bytes(packet) for packet in packets)
    after = [written[start:end] for start, end in split_annex_b(written)]
    if [unit[0] for unit in before] != [unit[0] for unit in after]:
        return {}
    return {
        old: new
        for old, new in zip(before, after, strict=True)
        if SCANNERS[codec].unit_type(old[0]) == SEQUENCE_SET[codec]
    }


def full_range_packets(codec: str, record: bytes, encoded: EncodedClip) -> EncodedClip | None:
    """Return length-prefixed packets whose own sequence parameter sets, repeated ones, have full range as well.

    None where packets hold one that the record does not, or cannot be taken apart.
    """
    sets = {old.rstrip(b"\0"): new for old, new in full_range_sets(codec, record).items()}
    length_size, unit_type = SCANNERS[codec].parse_configuration(record)[0], SCANNERS[codec].unit_type
    data, first = encoded.payload.tobytes(), encoded.packet_first.tolist()
    pieces: list[bytes] = []
    size = np.diff(encoded.packet_first)
    done = 0
    for packet, (begin, end) in enumerate(itertools.pairwise(first)):
        try:
            spans, has_inner = split_length_prefixed(data[begin:end], length_size)
        except ValueError:
            return None
        if has_inner:
            return None
        for start, stop in spans:
            if unit_type(data[begin + start]) != SEQUENCE_SET[codec]:
                continue
            unit = sets.get(data[begin + start : begin + stop].rstrip(b"\0"))
            if unit is None:
                return None
            pieces += [data[done : begin + start - length_size], len(unit).to_bytes(length_size, "big"), unit]
            done = begin + stop
            size[packet] += len(unit) - (stop - start)
    if not pieces:
        return encoded
    payload = np.frombuffer(b"".join([*pieces, data[done:]]), np.uint8)
    return replace(encoded, payload=payload, packet_first=np.concatenate([[0], np.cumsum(size)]))


def _unit_spans(codec: str, record: bytes) -> list[tuple[int, int]]:
    """Return (start, end) of each NAL unit in a record (ISO/IEC 14496-15 5.3.3.1, 8.3.3.1). Raises ValueError."""
    SCANNERS[codec].parse_configuration(record)
    spans = []
    at, groups = (5, 2) if codec == "h264" else (23, record[22])
    for group in range(groups):
        if codec == "h264":
            count, at = record[at] & (0x1F if group == 0 else 0xFF), at + 1
        else:
            count, at = int.from_bytes(record[at + 1 : at + 3], "big"), at + 3
        for _ in range(count):
            end = at + 2 + int.from_bytes(record[at : at + 2], "big")
            spans.append((at + 2, end))
            at = end
    return spans
