"""Rewrites sequence parameter sets into the form that is best for NVDEC through DALI: full range, and no cropping.

- Full range, so that DALI does not expand the range and clips little. DALI 2.4 looks only at `video_full_range_flag`.
  It uses BT.601 whatever the matrix is.
- No cropping, so that DALI finds the decoder that it set up for the movie before. It stores decoders by the size of the
  shown picture, and looks for them by the size of the coded picture (`NVDECCache` in its frames_decoder_gpu.cc).
  Setting up a decoder takes as long as decoding a hundred small pictures. The shown part of a picture (`CodedPicture`)
  is cut out after decoding.

FFmpeg's h264_metadata and hevc_metadata filters write these fields. They add video usability information if there is
none, and change nothing else.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import av.error
import numpy as np
from av.bitstream import BitStreamFilterContext

from framedex.indexer.bitstream import h264, h264_sets, hevc, hevc_sets
from framedex.indexer.bitstream.h264_sets import parse_sequence
from framedex.indexer.bitstream.nal import join_annex_b, split_annex_b, split_length_prefixed
from framedex.indexer.containers.opening import packet_with
from framedex.sharder.reading.sources import EncodedClip

CACHED_RECORDS = 4096  # of a few hundred bytes each
SCANNERS = {"h264": h264.H264Scanner, "hevc": hevc.HevcScanner}
# Options of the filters. 0 means no cropping on that side.
WRITTEN = "video_full_range_flag=1:crop_left=0:crop_right=0:crop_top=0:crop_bottom=0"
SEQUENCE_SET = {"h264": h264_sets.SPS, "hevc": hevc_sets.SPS}
# The parameter sets that the filter must read, up to the sequence parameter set.
FILTERED = {"h264": (h264_sets.SPS,), "hevc": (hevc_sets.VPS, hevc_sets.SPS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedPicture:
    """A stream's coded picture, and the part of it that is shown. Sizes are in pixels.

    Attributes:
        width: width of the coded picture.
        height: height of the coded picture.
        left: where the shown part begins, from the left.
        top: where the shown part begins, from the top.
        shown_width: width of the shown part.
        shown_height: height of the shown part.
    """

    width: int
    height: int
    left: int
    top: int
    shown_width: int
    shown_height: int


@functools.lru_cache(maxsize=CACHED_RECORDS)
def coded_picture(codec: str, record: bytes) -> CodedPicture | None:
    """Return the coded picture that a record's sequences describe. None: they differ, or cannot be read."""
    if codec not in SCANNERS:
        return None
    try:
        units = [record[start:end] for start, end in _unit_spans(codec, record)]
        found = {
            _picture(codec, unit)
            for unit in units
            if unit and SCANNERS[codec].unit_type(unit[0]) == SEQUENCE_SET[codec]
        }
    except ValueError:
        return None
    return found.pop() if len(found) == 1 else None


def _picture(codec: str, unit: bytes) -> CodedPicture:
    """Return the picture that an SPS describes. Raises ValueError."""
    if codec == "h264":
        sequence = parse_sequence(unit)
        return CodedPicture(
            width=sequence.coded_width,
            height=sequence.coded_height,
            left=sequence.left,
            top=sequence.top,
            shown_width=sequence.width,
            shown_height=sequence.height,
        )
    _, sps = hevc_sets.parse_sps(unit)
    left, right, top, bottom = sps.window
    return CodedPicture(
        width=sps.width,
        height=sps.height,
        left=left,
        top=top,
        shown_width=sps.width - left - right,
        shown_height=sps.height - top - bottom,
    )


@functools.lru_cache(maxsize=CACHED_RECORDS)
def nvdec_record(codec: str, record: bytes) -> bytes | None:
    """Return a decoder configuration record (avcC, hvcC) with the rewritten sets. None: they cannot be rewritten."""
    sets = nvdec_sets(codec, record)
    if not sets:
        return None
    written = bytearray(record)
    for start, end in reversed(_unit_spans(codec, record)):
        unit = sets.get(record[start:end])
        if unit is not None:
            written[start - 2 : end] = len(unit).to_bytes(2, "big") + unit
    return bytes(written)


@functools.lru_cache(maxsize=CACHED_RECORDS)
def nvdec_sets(codec: str, record: bytes) -> Mapping[bytes, bytes]:
    """Return the rewritten set for each of a record's sequence parameter sets, or nothing if the filter refuses one."""
    if codec not in SCANNERS:
        return {}
    try:
        units = [record[start:end] for start, end in _unit_spans(codec, record)]
        before = [unit for unit in units if unit and SCANNERS[codec].unit_type(unit[0]) in FILTERED[codec]]
        packets = BitStreamFilterContext(f"{codec}_metadata={WRITTEN}", codec).filter(packet_with(join_annex_b(before)))
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


def nvdec_packets(codec: str, record: bytes, encoded: EncodedClip) -> EncodedClip | None:
    """Return length-prefixed packets in which repeated sequence parameter sets are rewritten as well.

    Returns:
        The packets. None: they hold a set that the record does not have, or they cannot be parsed.
    """
    sets = {old.rstrip(b"\0"): new for old, new in nvdec_sets(codec, record).items()}
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
