"""Draws videos of three shapes: one of a phone that is held upright, one that is wide, and a square one.

usage: python examples/shapes.py FOLDER     (5 s on one core)
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from videos import steady, write

MATRIX = 44  # the offset of the matrix in a track header, from the name of the box (ISO/IEC 14496-12, 8.3.2)
CLOCKWISE = (0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)  # the matrix by which players turn pictures upright


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    x264 = {"preset": "veryfast", "threads": "1", "g": "60"}
    times = steady(30)[:360]
    phone = folder / "phone.mp4"
    write(phone, "libx264", x264, (60, 160, 90), 30, times, width=240, height=426, turned=True)
    content = bytearray(phone.read_bytes())
    struct.pack_into(">9i", content, content.index(b"tkhd") + MATRIX, *CLOCKWISE)
    phone.write_bytes(content)
    write(folder / "film.mp4", "libx264", x264, (200, 90, 60), 30, times, width=426, height=240)
    write(folder / "square.mp4", "libx264", x264, (70, 90, 200), 30, times, width=312, height=312)


if __name__ == "__main__":
    main()
