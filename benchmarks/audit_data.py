"""Synthetic indexes for audits: plausible videos of many kinds, some with each fault. The output is reproducible."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.files.outputs import first_packets, write_json_aside
from framedex.files.parquet_parts import PartWriter, part_path, table_of, write_part
from framedex.indexer.parts.part_pairs import VIDEOS_A_ROW_GROUP, PartPairs
from framedex.indexer.runs.merging import MEDIA_A_PART
from framedex.indexer.schema import FORMAT, FRAMES, HEADER, LISTING_NAME, SCHEMA_VERSION, VIDEOS
from framedex.indexer.sources.discover import media_id
from framedex.indexer.timeline import CLOSED, NON_REFERENCE, OPEN, START, summarise

Row = dict[str, Any]

LABELS = ("juggle", "dance", "cook", "climb", "sew")
LABEL_SHARES = (0.5, 0.25, 0.15, 0.08, 0.02)
CODECS = (
    ("h264", "High", "yuv420p", 0.7),
    ("hevc", "Main 10", "yuv420p10le", 0.15),
    ("vp9", "Profile 0", "yuv420p", 0.15),
)
SIZES = ((1280, 720), (1920, 1080), (640, 360), (3840, 2160))
RATES = ((24_000, 1001), (25, 1), (30_000, 1001), (30, 1), (50, 1), (60, 1))
TICKS = 90_000
MINI_GOP = np.array([3, 1, 0, 2])  # three B-frames; one of them is a reference for the others


def write_index(out: Path, videos: int, *, seconds: float = 30.0, seed: int = 0) -> None:
    """Write an index of synthetic videos, with a listing that gives each video a label.

    Args:
        videos: the number of videos.
        seconds: the mean length of the videos.
    """
    out.mkdir(parents=True)
    write_json_aside(
        out / HEADER, {"format": FORMAT, "schema_version": SCHEMA_VERSION, "root": "/videos", "generation": 1}
    )
    parts = PartPairs(out)
    draw = np.random.default_rng(seed)
    listing = []
    for number in range(videos):
        video, frames, label = synthetic_media(number, draw, seconds)
        parts.add([(video, frames | {"media_id": video["media_id"]})])
        listing.append({"media_id": video["media_id"], "listing_row": 0, "listed_uri": video["uri"], "label": label})
    parts.flush()
    write_part(out / LISTING_NAME, pa.Table.from_pylist(listing), version=SCHEMA_VERSION)


def synthetic_media(number: int, draw: np.random.Generator, seconds: float) -> tuple[Row, Row, str]:
    """Return the rows of `videos` and `frames` for a medium, and its label. About one medium in ten has a fault."""
    label = str(draw.choice(LABELS, p=LABEL_SHARES))
    fault = int(draw.integers(0, 100))
    uri = f"{label}/{number:07d}.{'mkv' if draw.random() < 0.2 else 'mp4'}"
    identity: Row = {"media_id": media_id(uri), "kind": "video", "uri": uri, "stream_index": 0, "probed_by": "0.1.0"}
    if fault == 0:
        failed = {
            "status": "failed",
            "error_kind": "not_media",
            "error_message": "not a video, or damaged at its start",
        }
        return identity | failed | {"size_bytes": 40_000}, {"pts": [], "size": [], "flags": []}, label
    rate = RATES[int(draw.integers(0, len(RATES)))]
    count = max(8, int(draw.gamma(4, seconds / 4) * rate[0] / rate[1]))
    pts, flags = _timeline(draw, count, rate, fault)
    size = _sizes(draw, flags)
    video = identity | _facts(draw, fault) | {"size_bytes": int(size.sum() * 1.01) + 4096}
    gap = int(np.median(np.diff(np.sort(pts))))
    video |= asdict(summarise(pts, flags, last_duration=gap, time_base_seconds=1 / TICKS))
    video |= {"packet_count": count, "packet_bytes": int(size.sum()), "first_packets": first_packets(size)}
    length = video["duration_pts"] / TICKS
    video |= {
        "stated_frames": count,
        "stated_duration_seconds": length + 9 * (fault == 1),
        "stated_rate": rate[0] / rate[1],
    }
    if video["audio_codec"]:
        video |= {"audio_start_seconds": 0.4 * (fault == 2), "audio_duration_seconds": length}
    video["fingerprint"] = f"{number - (fault == 3):032x}"  # fault 3 makes the video a copy of the previous one
    offset = np.cumsum(np.append(4096, size[:-1])).astype(np.int64)
    return video, {"pts": pts, "size": size, "flags": flags, "offset": offset}, label


def _timeline(
    draw: np.random.Generator, count: int, rate: tuple[int, int], fault: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return pts int64 [packets] and flags int32 [packets], in decode order."""
    step = TICKS * rate[1] / rate[0]
    gaps = np.full(count, step)
    if fault in range(10, 18):  # varying frame rate, as from a phone
        gaps *= draw.uniform(0.7, 1.5, count)
    if fault == 4 and count > 20:
        gaps[draw.integers(10, count - 5)] += 3 * TICKS
    times = np.rint(np.cumsum(gaps) - gaps[0]).astype(np.int64)
    groups = np.arange(1, count - (count - 1) % 4).reshape(-1, 4)[:, MINI_GOP].ravel()
    order = np.concatenate([[0], groups, np.arange(len(groups) + 1, count)])
    gop = int(rate[0] / rate[1] * (20 if fault == 5 else draw.choice([1, 2, 4])))
    flags = np.where(np.arange(count) % 4 > 1, NON_REFERENCE, 0).astype(np.int32)
    flags[::gop] = OPEN if fault in (6, 7) else CLOSED
    flags[0] = CLOSED
    return times[order], flags


def _sizes(draw: np.random.Generator, flags: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return packet sizes, int64 [packets]. Start points are about ten times as large as other packets."""
    scale = draw.lognormal(8, 0.7)
    size = draw.gamma(2, scale / 2, len(flags))
    size *= np.where(flags & START, 10, np.where(flags & NON_REFERENCE, 0.5, 1))
    return size.astype(np.int64) + 40


def _facts(draw: np.random.Generator, fault: int) -> Row:
    codec = CODECS[int(draw.choice(len(CODECS), p=[share for *_, share in CODECS]))]
    width, height = SIZES[int(draw.choice(len(SIZES), p=[0.45, 0.35, 0.15, 0.05]))]
    hd = height >= 720
    return {
        "status": "ok",
        "container": "mp4",
        "depth": "packets",
        "hashed": False,
        "codec": codec[0],
        "profile": codec[1],
        "pixel_format": codec[2],
        "width": width,
        "height": height,
        "rotation_degrees": 90 if fault == 8 else 0,
        "color_range": "limited",
        "color_matrix": 5 if fault == 9 and hd else 1,
        "color_primaries": 9 if fault == 18 else 1,
        "color_transfer": 16 if fault == 18 else 1,
        "time_base_num": 1,
        "time_base_den": TICKS,
        "pts_source": "container",
        "states": [b""],
        "reorder_depth": 2,
        "inband_parameter_sets": False,
        "inner_start_codes": False,
        "varying_shape": False,
        "chroma_format": 1,
        "field_coded": False,
        "hidden_unordered": False,
        "byte_addressable": True,
        "mtime_ns": 1_700_000_000_000_000_000,
        "audio_codec": "aac" if draw.random() < 0.8 else None,
        "audio_rate": 48_000,
        "audio_channels": 2,
    }


def write_many_videos(out: Path, videos: int, *, kinds: int = 2000, seed: int = 0) -> None:
    """Write an index of very many videos without packets: the rows of a few videos, repeated under other names.

    The parts are divided like those of a compacted index. The parts of `frames` hold no packets.

    Args:
        kinds: the number of different videos.
    """
    out.mkdir(parents=True)
    write_json_aside(
        out / HEADER, {"format": FORMAT, "schema_version": SCHEMA_VERSION, "root": "/videos", "generation": 1}
    )
    draw = np.random.default_rng(seed)
    base = table_of([synthetic_media(number, draw, 20.0)[0] for number in range(kinds)], VIDEOS)
    names = {name: VIDEOS.get_field_index(name) for name in ("media_id", "uri", "fingerprint", "first_packets")}
    for part, first in enumerate(range(0, videos, MEDIA_A_PART)):
        numbers = np.arange(first, min(first + MEDIA_A_PART, videos))
        table = base.take(pa.array(numbers % kinds))
        own = {
            "media_id": [f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" for number in numbers.tolist()],
            "uri": [f"folder{number // 1000:04d}/video_{number:08d}.mp4" for number in numbers.tolist()],
            "fingerprint": [f"{number - (number % 500 == 1):032x}" for number in numbers.tolist()],
            "first_packets": [f"{number:016x}" for number in numbers.tolist()],
        }
        for name, values in own.items():
            table = table.set_column(names[name], VIDEOS.field(name), pa.array(values))
        writer = PartWriter(part_path(out / "videos", part), VIDEOS, version=SCHEMA_VERSION)
        for group in range(0, len(table), VIDEOS_A_ROW_GROUP):
            writer.write(table.slice(group, VIDEOS_A_ROW_GROUP))
        writer.commit()
        packets = [{"media_id": name, "pts": [], "size": [], "flags": []} for name in own["media_id"]]
        write_part(part_path(out / "frames", part), table_of(packets, FRAMES), version=SCHEMA_VERSION)
