"""Edits of JPEG, JPEG-LS and PNG packets that insert segments or remove tables and palettes."""

from __future__ import annotations

import io
import struct
from dataclasses import replace

from PIL import Image

from tests.support.bitstream_edits import Coded, Edit

SOS, DQT, COM, LSE = 0xDA, 0xDB, 0xFE, 0xF8  # JPEG markers
THRESHOLDS = bytes([1]) + struct.pack(
    ">5H", 255, 3, 7, 21, 64
)  # MAXVAL, T1 to T3, RESET: the default values (T.87 C.2.4.1.1)
WRONG_THRESHOLDS = bytes([1]) + struct.pack(">5H", 255, 5, 9, 30, 100)  # valid only if the encoder uses them, too


def segments(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return the segments of a JPEG picture before its scan as (marker, payload), and the rest of its data."""
    found, at = [], 2
    while data[at + 1] != SOS:
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((data[at + 1], data[at + 4 : at + 2 + size]))
        at += 2 + size
    return found, data[at:]


def jpeg(found: list[tuple[int, bytes]], rest: bytes) -> bytes:
    """Return a JPEG picture made of these segments and the rest of its data."""
    written = (bytes([0xFF, marker]) + (len(payload) + 2).to_bytes(2, "big") + payload for marker, payload in found)
    return b"\xff\xd8" + b"".join(written) + rest


def with_segment(marker: int, payload: bytes, *numbers: int) -> Edit:
    """Insert a segment into the JPEG pictures with these numbers.

    It becomes the first segment, or the last one before the scan if it defines coding parameters (LSE).
    """

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        edited = list(packets)
        for number in numbers:
            found, rest = segments(packets[number].data)
            own = [(marker, payload)]
            edited[number] = replace(packets[number], data=jpeg(found + own if marker == LSE else own + found, rest))
        return edited

    return edit


def chroma_tables_seldom(configuration: bytes, packets: list[Coded]) -> list[Coded]:
    """Give chroma its own quantisation table. Only pictures 0 and 10 contain it, with different values."""

    def changed(number: int, marker: int, payload: bytes) -> bytes:
        if 0xC0 <= marker <= 0xC1:  # all components except the first use table 1
            return payload[:6] + b"".join(payload[at : at + 2] + bytes([at > 6]) for at in range(6, len(payload), 3))
        if marker != DQT:
            return payload
        luma = payload[:65]
        chroma = bytes(min(255, value * (1 if number < 10 else 3)) for value in luma[1:])
        return luma + b"\1" + chroma if number in (0, 10) else luma

    edited = []
    for number, packet in enumerate(packets):
        found, rest = segments(packet.data)
        changes = [(marker, changed(number, marker, payload)) for marker, payload in found]
        edited.append(replace(packet, data=jpeg(changes, rest)))
    return edited


def palette_once(configuration: bytes, packets: list[Coded]) -> list[Coded]:
    """Convert PNG pictures to indexed colours, and keep the palette in the first one only."""
    pictures = [Image.open(io.BytesIO(packet.data)).convert("RGB") for packet in packets]
    palette = pictures[0].quantize(64)
    edited = []
    for number, (packet, picture) in enumerate(zip(packets, pictures, strict=True)):
        file = io.BytesIO()
        picture.quantize(palette=palette).save(file, "PNG")
        edited.append(replace(packet, data=file.getvalue() if not number else _without_palette(file.getvalue())))
    return edited


def _without_palette(data: bytes) -> bytes:
    kept, at = data[:8], 8
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        kept += b"" if data[at + 4 : at + 8] == b"PLTE" else data[at:end]
        at = end
    return kept
