"""Coverage-guided fuzzing (atheris) of everything that reads bytes or text from outside.

    python -m fuzz.seeds SEEDS
    python -m fuzz.fuzz_parsers -max_total_time=120 -rss_limit_mb=2048 -timeout=10 CORPUS SEEDS

The options are libFuzzer's. The first byte of an input selects the parser in TARGETS, which reads the rest. The results
of scanners are checked (invariants.py). The run stops with a `crash-…`, `oom-…` or `timeout-…` file if the parser
raises an exception that it does not declare, or takes too much memory or time. `python -m fuzz.fuzz_parsers FILE` runs
such a file again.

Atheris itself keeps some 10 KB per run, which count as memory: beyond 150 000 runs, -rss_limit_mb=2048 is too little.
If an `oom-…` file needs little memory when it runs again, Atheris itself used the rest.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["framedex"]):
    from framedex.errors import MediaError, PolicyError, SourceError
    from framedex.indexer.bitstream import h264_sets, hevc_sets, nal
    from framedex.indexer.bitstream.base import BitstreamError, Scanner
    from framedex.indexer.mp4 import boxes
    from framedex.indexer.mp4.boxes import Read, TruncatedError, UntrustedTables
    from framedex.indexer.mp4.sample_tables import read_layout, read_sample_table
    from framedex.indexer.probing import image_facts, packet_headers, probe
    from framedex.indexer.probing.every_packet import SCANNERS
    from framedex.indexer.sources import discover, members
    from framedex.indexer.sources.named_medium import SIDECARS
    from framedex.sharder.policies import reading
    from framedex.sharder.selection import explicit_clips as requests
    from fuzz.invariants import check_pictures
from fuzz.mutation import mutate_chunks, split_chunks

Parser = Callable[[bytes], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A parser, and the exceptions that it may raise."""

    parse: Parser
    declared: tuple[type[Exception], ...]


@functools.cache
def scratch() -> Path:
    """Return a folder for the parsers that read files."""
    return Path(tempfile.mkdtemp(prefix="framedex-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))


def file_parser(name: str, parse: Callable[[Path], object], *declared: type[Exception]) -> Target:
    """Return a target that reads a file with this name."""

    def run(data: bytes) -> object:
        path = scratch() / name
        path.write_bytes(data)
        return parse(path)

    return Target(parse=run, declared=declared)


def scanner(make: Callable[[bytes], Scanner]) -> Target:
    """Return a target that reads chunks: the configuration record, then packets."""

    def scan(data: bytes) -> None:
        configuration, *packets = split_chunks(data) or [b""]
        scanning = make(configuration)
        for packet in packets:
            if packet:  # the prober passes on no empty ones
                scanning.feed(packet)
        if fed := sum(map(bool, packets)):
            check_pictures(scanning.finish(), fed, data)

    return Target(parse=scan, declared=(BitstreamError,))


def bytes_parser(parse: Parser, *declared: type[Exception]) -> Target:
    """Return a target that reads bytes without changes."""
    return Target(parse=parse, declared=declared)


def ending_parser(parse: Callable[[Read, int], str | None]) -> Parser:
    """Return a parser of bytes, made from a parser of a file."""
    return lambda data: parse(lambda offset, length: data[offset : offset + length], len(data))


def read_tables(data: bytes) -> None:
    """Read everything that sample tables contain about every track. A refused track does not hide the others."""
    layout = read_layout(lambda offset, length: data[offset : offset + length], len(data))
    probe.describe_plain(layout.movie)
    for track_id in layout.movie.tracks:
        with contextlib.suppress(UntrustedTables, TruncatedError):
            read_sample_table(layout, track_id)


def condense_h264(data: bytes) -> bytes:
    """Read the headers of one packet."""
    return packet_headers.condense(
        lambda offset, length: data[offset : offset + length],
        0,
        len(data),
        1 + data[0] % 4,
        packet_headers.IS_SLICE["h264"],
    )


def read_tar_file(path: Path) -> None:
    """Read the positions of the images and videos in a tar, and check that they lie within it."""
    content = path.read_bytes()
    size = len(content)
    found = members.read_tar(lambda at, length: content[at : at + length], size, sidecars=SIDECARS)
    for image in found.images:
        assert 0 <= image.offset <= size
        assert image.size >= 0
    for video in found.videos:
        assert 0 <= video.part.offset <= video.part.offset + video.part.size_bytes <= size
        json.loads(video.sidecars or "null")


# Add new parsers at the end: the order determines the meaning of inputs that are kept.
TARGETS: dict[str, Target] = {
    "sample_tables": bytes_parser(read_tables, UntrustedTables, TruncatedError),
    **{f"{name}_ending": bytes_parser(ending_parser(parse)) for name, parse in boxes.ENDINGS.items()},
    **{f"{codec}_scanner": scanner(make) for codec, make in SCANNERS.items()},
    "h264_headers": bytes_parser(lambda data: condense_h264(data), BitstreamError),
    "h264_sequence": bytes_parser(h264_sets.parse_sps, ValueError),
    "h264_configuration": bytes_parser(h264_sets.parse_configuration, ValueError),
    "hevc_configuration": bytes_parser(hevc_sets.parse_configuration, ValueError),
    "h264_sps": bytes_parser(h264_sets.parse_sps, ValueError),
    "h264_pps": bytes_parser(h264_sets.parse_pps, ValueError),
    "h264_sei": bytes_parser(nal.sei_payloads),
    "hevc_sps": bytes_parser(hevc_sets.parse_sps, ValueError),
    "hevc_pps": bytes_parser(hevc_sets.parse_pps, ValueError),
    "hevc_vps": bytes_parser(hevc_sets.parse_vps, ValueError),
    "length_prefixed": bytes_parser(lambda data: nal.split_length_prefixed(data[1:], 1 + (data[0] & 3)), ValueError),
    "annex_b": bytes_parser(nal.split_annex_b),
    "requests": file_parser("clips.jsonl", requests.ExplicitClips, PolicyError),
    "policy": file_parser("policy.yaml", reading.read_policy, PolicyError),
    "list": file_parser("list.txt", lambda path: discover.discover([f"@{path}"]), SourceError),
    "listing_csv": file_parser("listing.csv", lambda path: discover.discover([str(path)]), SourceError),
    "listing_jsonl": file_parser("listing.jsonl", lambda path: discover.discover([str(path)]), SourceError),
    "image_rgb": bytes_parser(image_facts.rgb_of, OSError, ValueError),
    "image_facts": bytes_parser(image_facts.facts_of, image_facts.BrokenImageError, MediaError),
    "tar_members": file_parser("images.tar", read_tar_file, MediaError),
}


def target_name(data: bytes) -> str:
    """Return the name in TARGETS that an input selects."""
    return list(TARGETS)[data[0] % len(TARGETS)]


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Return a mutation of an input with a limited size.

    Half of the inputs of scanners change by packets, others by bytes.
    """
    if len(data) > 2 and seed % 2 and target_name(data).endswith("_scanner"):
        return (data[:1] + mutate_chunks(data[1:], seed))[:most]
    changed: bytes = atheris.Mutate(data, most)
    return changed


def run_one(data: bytes) -> None:
    """Run the parser that an input selects. Raises any exception that the parser does not declare."""
    if len(data) < 2:
        return
    target = TARGETS[target_name(data)]
    with contextlib.suppress(*target.declared):
        target.parse(data[1:])


if __name__ == "__main__":
    scratch()
    atheris.Setup(sys.argv, run_one, custom_mutator=mutate)
    atheris.Fuzz()
