"""Image files made for tests, some with hazards; tars and listings of images; and indexes of all of these."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import framedex
from framedex import Index
from tests.support.datasets import run

Row = dict[str, Any]


def indexed(out: Path, *sources: object, **options: Any) -> tuple[Any, Index]:
    """Index sources in this process; return the report and the index."""
    report = framedex.index([str(source) for source in sources], out, workers=0, progress=False, **options)
    return report, Index(out)


def rows(index: Index) -> dict[str, Row]:
    """Return the rows of `videos` by URI, or by URI/MEMBER where a row has a member."""
    found = index.videos.to_pylist()
    return {row["uri"] if row["member"] is None else f"{row['uri']}/{row['member']}": row for row in found}


def listing(index: Path) -> dict[str, Row]:
    """Return the rows of a listing by the names of its media, as `rows` gives them."""
    named = {row["media_id"]: name for name, row in rows(Index(index)).items()}
    return {named[row["media_id"]]: row for row in Index(index).listing.to_pylist()}


def medium_id(uri: str, member: str | None = None) -> str:
    """Return the name of a medium as docs/format.md defines it."""
    name = uri if member is None else f"{uri}\0{member}"
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def planned(out: Path, source: Path, *options: object) -> dict[str, Any]:
    """Return what a dry run says that it would do."""
    return dict(json.loads(run("index", source, "--out", out, "--dry-run", "--json", *options).output))


def only(tmp_path: Path, *sources: object, **options: Any) -> tuple[Row, Any]:
    """Index sources that form one medium; return its row and its packets."""
    _, index = indexed(tmp_path / "INDEX", *sources, **options)
    (row,) = index.videos.to_pylist()
    return row, index.packets(row["media_id"])


def encoded(
    number: int = 0, kind: str = "PNG", *, mode: str = "RGB", size: tuple[int, int] = (32, 24), **save: Any
) -> bytes:
    """Return an image file whose pixels are drawn from its number.

    Args:
        size: (width, height).
        save: options of Pillow's `Image.save`.
    """
    width, height = size
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **save)
    return file.getvalue()


def grey16(values: np.ndarray[Any, np.dtype[np.uint16]]) -> bytes:
    """Return a PNG with 16 bits per sample."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a PNG chunk with its CRC."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int = 100_000, height: int = 100_000) -> bytes:
    """Return a small PNG that claims to be huge."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files into a folder, creating it if needed; return the folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def write_rows(path: Path, listed: list[dict[str, Any]]) -> Path:
    """Write a listing as a CSV file with one line per row; return its path."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)
    return path


def sequence(folder: Path, count: int = 3, kind: str = "PNG", **how: Any) -> Path:
    """Write images named frame0, frame1 and so on into a folder; return the folder."""
    return write(folder, {f"frame{number}.{kind.lower()}": encoded(number, kind, **how) for number in range(count)})


def tar_of(path: Path, files: Iterable[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> Path:
    """Write a tar; return its path."""
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path
