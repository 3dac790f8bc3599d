"""Samples of packed datasets, read with standard tools: `tarfile` reads the tars, and PyAV decodes whole files."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av

from tests.support.planes import picture_md5

Sample = dict[str, bytes]


def tars(dataset: Path) -> list[Path]:
    """Return the tars of a dataset, in order."""
    return sorted((dataset / "shards").glob("*.tar"))


def samples(dataset: Path) -> Iterator[tuple[str, Sample]]:
    """Yield (key, {suffix: content}) of every sample, read with Python's `tarfile`."""
    for path in tars(dataset):
        with tarfile.open(path) as tar:
            key, sample = "", Sample()
            for member in tar:
                name, _, suffix = member.name.partition(".")
                if name != key and sample:
                    yield key, sample
                    sample = {}
                key = name
                file = tar.extractfile(member)
                assert file is not None
                sample[suffix] = file.read()
            yield key, sample


def described(dataset: Path) -> dict[str, tuple[dict[str, Any], Sample]]:
    """Return the JSON and the files of every sample, by clip_id."""
    found = {}
    for _, sample in samples(dataset):
        content = json.loads(sample["json"])
        found[content["clip_id"]] = content, sample
    return found


def file_of(sample: Sample) -> bytes:
    """Return a sample's tiny file."""
    (content,) = [content for suffix, content in sample.items() if suffix in ("mp4", "mkv", "mov", "avi")]
    return content


def one_go(content: bytes) -> list[tuple[float, str]]:
    """Decode a whole file in order; return (seconds, MD5) of every frame that a player shows."""
    with av.open(io.BytesIO(content)) as container:
        return [(float(frame.time or 0), picture_md5(frame)) for frame in container.decode(video=0)]
