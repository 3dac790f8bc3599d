"""Changes of JPEG, JPEG-LS and PNG packets: segments put in, tables and palettes left out."""

from __future__ import annotations

import io
import struct
from dataclasses import replace

from PIL import Image

from tests.support.bitstream_edits import Coded, Edit

SOS, DQT, COM, LSE = 0xDA, 0xDB, 0xFE, 0xF8  # JPEG markers
THRESHOLDS = bytes([1]) + struct.pack(
    ">5H", 255, 3, 7, 21, 64
)  # MAXVAL, T1 to T3, RESET (T.87 C.2.4.1.1): the usual ones
WRONG_THRESHOLDS = bytes([1]) + struct.pack(">5H", 255, 5, 9, 30, 100)  # of which an encoder would have to know


def segments(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return the (marker, payload) of a JPEG picture's segments up to its scan, and the rest."""
    found, at = [], 2
    while data[at + 1] != SOS:
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((data[at + 1], data[at + 4 : at + 2 + size]))
        at += 2 + size
    return found, data[at:]


def jpeg(found: list[tuple[int, bytes]], rest: bytes) -> bytes:
    """Return a JPEG picture of such segments."""
    written = (bytes([0xFF, marker]) + (len(payload) + 2).to_bytes(2, "big") + payload for marker, payload in found)
    return b"\xff\xd8" + b"".join(written) + rest


def with_segment(marker: int, payload: bytes, *numbers: int) -> Edit:
    """Put a segment into some JPEG pictures, before all others; into their end, where it defines coding parameters."""

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        edited = list(packets)
        for number in numbers:
            found, rest = segments(packets[number].data)
            own = [(marker, payload)]
            edited[number] = replace(packets[number], data=jpeg(found + own if marker == LSE else own + found, rest))
        return edited

    return edit


def chroma_tables_seldom(configuration: bytes, packets: list[Coded]) -> list[Coded]:
    """Give chroma a quantisation table of its own, which pictures 0 and 10 alone bring, each another one."""

    def changed(number: int, marker: int, payload: bytes) -> bytes:
        if 0xC0 <= marker <= 0xC1:  # of its components, all but the first use table 1
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
    """Give PNG pictures indexed colours, and the palette to the first one alone."""
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
