"""Initial inputs for fuzz_parsers.py: headers, configuration records and cut packets of real media, and texts.

`python -m fuzz.seeds FOLDER [MEDIA…]`. Without media, it uses some recipes of the test suite, and the corpus if it
exists.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import av.error
from PIL import Image

from framedex.indexer.bitstream import h264_sets, hevc_sets, nal
from framedex.indexer.containers import open_container
from framedex.indexer.mp4 import boxes
from fuzz.fuzz_parsers import TARGETS
from fuzz.mutation import join_chunks
from tests.conftest import CORPUS
from tests.support import media

ROOT = Path(__file__).resolve().parents[1]
RECIPES = (
    "h264_b_pyramid.mkv",
    "h264_default.mp4",
    "h264_fragmented.mp4",
    "h264_mbaff.mp4",
    "hevc_open_gop.mkv",
    "hevc_temporal_layers.mp4",
)
PACKETS, PACKET_BYTES, UNIT_BYTES, HEADER_BYTES = 8, 160, 48, 3_000
TEXTS = {
    "requests": [
        '{"uri": "a.mp4", "frames": [0, 7, -1, 3]}\n'
        '{"uri": "b", "seconds": [0.5, 1e-3], "clip_id": "x", "l": 1}'
    ],
    "policy": [path.read_text(encoding="utf-8") for path in sorted((ROOT / "configs").glob("*.yaml"))],
    "list": ["# mine\na b.mp4\nc.mp4 3\nfile:///d.mp4 -1 0.5 2.25\n../e.mp4\n"],
    "listing_csv": ["uri,label,split\na.mp4,7,train\nb.mp4,8,val\n"],
    "listing_jsonl": ['{"uri": "a.mp4", "label": 7}\n{"uri": "b.mp4", "label": 8}\n'],
}  # fmt: skip


def seeds(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (target, input) pairs of one medium."""
    content = path.read_bytes()
    if path.suffix in (".mkv", ".webm"):
        yield "matroska_ending", content[:HEADER_BYTES]
    if content[4:8] == b"ftyp":
        header = without_media(path)
        yield "mp4_ending", header
        yield "sample_tables", header
    for suffix, container in ((".avi", "avi"), (".flv", "flv"), (".ts", "mpegts")):
        if path.suffix == suffix:
            yield f"{container}_ending", content[:HEADER_BYTES]
    with open_container(str(path)) as container:
        stream = next(iter(container.streams.video), None)
        codec = stream.codec_context.codec.canonical_name if stream else None
        if stream is None or f"{codec}_scanner" not in TARGETS:
            return
        record = stream.codec_context.extradata or b""
        packets = [bytes(packet) for packet, _ in zip(container.demux(stream), range(PACKETS), strict=False)]
    modules = {"h264": h264_sets, "hevc": hevc_sets}
    if codec not in modules:
        yield f"{codec}_scanner", join_chunks([record, *(packet[:PACKET_BYTES] for packet in packets)])
    elif record[:1] == b"\1":
        length_size, sets = modules[codec].parse_configuration(record)
        units = [cut_units(packet, length_size) for packet in packets if packet]
        yield (
            f"{codec}_scanner",
            join_chunks([record, *(nal.join_length_prefixed(unit, length_size) for unit in units)]),
        )
        yield f"{codec}_configuration", record
        yield "annex_b", b"\0\0\1".join(sets)
        yield "length_prefixed", bytes([length_size - 1]) + nal.join_length_prefixed(sets, length_size)
        if codec == "h264":
            yield from (("h264_sequence", unit) for unit in sets)
            yield from (("h264_headers", packet[:UNIT_BYTES]) for packet in packets)
        names = {"h264": ("sps", "pps", "sei"), "hevc": ("vps", "sps", "pps")}[codec]
        for unit in [*sets, *(part for parts in units for part in parts[:1])]:
            yield from ((f"{codec}_{name}", unit) for name in names)


def cut_units(packet: bytes, length_size: int) -> list[bytes]:
    """Return the beginnings of the NAL units of a packet."""
    spans, _ = nal.split_length_prefixed(packet, length_size)
    return [packet[start : min(end, start + UNIT_BYTES)] for start, end in spans]


def without_media(path: Path) -> bytes:
    """Return the boxes of an ISO BMFF file without the mdat boxes."""
    content = path.read_bytes()
    found = boxes.iter_boxes(lambda at, length: content[at : at + length], 0, len(content))
    return b"".join(
        (end - start + 8).to_bytes(4, "big") + kind + content[start:end]
        for kind, start, end in found
        if kind != b"mdat"
    )


def image_seeds() -> Iterator[tuple[str, bytes]]:
    """Yield (target, input) pairs of small images of every format and mode, and of a tar with them."""
    kinds = [("PNG", mode) for mode in ("RGB", "RGBA", "P", "L", "LA", "1", "I;16")]
    kinds += [("JPEG", "RGB"), ("JPEG", "L"), ("JPEG", "CMYK"), ("WEBP", "RGB"), ("WEBP", "RGBA")]
    exif = Image.Exif()
    exif[274] = 6  # orientation
    with io.BytesIO() as archive, tarfile.open(fileobj=archive, mode="w") as tar:
        for number, (kind, mode) in enumerate(kinds):
            file = io.BytesIO()
            Image.linear_gradient("L").resize((16, 12)).convert(mode).save(file, kind, exif=exif)
            yield from ((target, file.getvalue()) for target in ("image_rgb", "image_facts"))
            member = tarfile.TarInfo(f"folder/{number}.{kind.lower()}")
            member.size = file.tell()
            tar.addfile(member, io.BytesIO(file.getvalue()))
        yield "tar_members", archive.getvalue()


def write_seeds(folder: Path, paths: list[Path]) -> int:
    """Write every seed to a file that is named by its content. Return the number of seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {name: number for number, name in enumerate(TARGETS)}
    found = [(name, text.encode()) for name, texts in TEXTS.items() for text in texts]
    found += image_seeds()
    for path in paths:
        try:
            found += seeds(path)
        except (av.error.FFmpegError, OSError, ValueError, IndexError):
            continue  # the corpus holds broken media too
    for name, content in found:
        seed = bytes([numbers[name]]) + content
        (folder / hashlib.blake2b(seed, digest_size=8).hexdigest()).write_bytes(seed)
    return len(list(folder.iterdir()))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    recipes = target.parent / "media"
    os.makedirs(recipes, exist_ok=True)
    named = [Path(name) for name in sys.argv[2:]]
    kept = [path for path in sorted(CORPUS.glob("*")) if path.is_file() and path.stat().st_size < 1 << 22]
    print(write_seeds(target, named or [media.make(media.RECIPES[name], recipes) for name in RECIPES] + kept), "seeds")
