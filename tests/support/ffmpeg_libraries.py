"""FFmpeg's shared libraries for torchcodec on machines without them: those of PyAV's wheel, under their usual names.

usage: python -m tests.support.ffmpeg_libraries FOLDER

Makes links in FOLDER and prints what LD_LIBRARY_PATH must begin with. Prints nothing if the machine has its own
libraries.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import sys
from pathlib import Path

import av

# libavcodec-d61378e8.so.63.1.102 is libavcodec.so.63: wheels add a digest to the names of bundled libraries.
BROUGHT = re.compile(r"(lib(?:av|sw)[a-z]+)-[0-9a-f]+\.so\.(\d+)\..*")


def links(folder: Path) -> list[Path]:
    """Make the links; return the folders that LD_LIBRARY_PATH needs."""
    brought = Path(av.__file__).parents[1] / "av.libs"
    folder.mkdir(parents=True, exist_ok=True)
    for library in brought.iterdir():
        if match := BROUGHT.fullmatch(library.name):
            link = folder / f"{match[1]}.so.{match[2]}"
            link.unlink(missing_ok=True)
            link.symlink_to(library)
    return [folder.absolute(), brought]


if __name__ == "__main__":
    own = os.environ.get("LD_LIBRARY_PATH")
    folders = [] if ctypes.util.find_library("avcodec") else [str(path) for path in links(Path(sys.argv[1]))]
    print(":".join(folders + [own] * bool(own)))
