"""Write media of codecs that are not on NVDEC's route today, for `python -m benchmarks.gpu_agreement FOLDER --force`.

10-bit VP9 is written by the ffmpeg command, because PyAV's libvpx supports only 8 bits.

usage: python -m benchmarks.gpu_candidates FOLDER
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.media import Recipe, make

VP9 = {"deadline": "realtime", "cpu-used": "8", "g": "20", "crf": "30", "b": "0"}
SHOWN = VP9 | {"auto-alt-ref": "0", "lag-in-frames": "0"}
# Alternate references are requested, but libvpx creates none for 50 such frames. Media called hidden contain no
# superframe.
HIDDEN = VP9 | {"deadline": "good", "auto-alt-ref": "1", "lag-in-frames": "16"}
SVT = {"preset": "10", "svtav1-params": "keyint=20:lookahead=0:pred-struct=1"}

CANDIDATES = (
    Recipe(name="vp9_shown.webm", codec="libvpx-vp9", options=SHOWN),
    Recipe(name="vp9_shown.mp4", codec="libvpx-vp9", options=SHOWN),
    Recipe(name="vp9_shown_320x240.webm", codec="libvpx-vp9", options=SHOWN, size=(320, 240)),
    Recipe(name="vp9_shown_odd.webm", codec="libvpx-vp9", options=SHOWN, size=(194, 130)),
    Recipe(name="vp9_shown_128.webm", codec="libvpx-vp9", options=SHOWN, size=(160, 128)),
    Recipe(name="vp9_hidden.webm", codec="libvpx-vp9", options=HIDDEN),
    Recipe(name="vp9_hidden.mp4", codec="libvpx-vp9", options=HIDDEN),
    Recipe(name="vp9_bt709.webm", codec="libvpx-vp9", options=SHOWN, bt709=True),
    Recipe(name="av1_low_delay.mp4", codec="libsvtav1", options=SVT),
    Recipe(name="av1_low_delay_10bit.mp4", codec="libsvtav1", options=SVT, pix_fmt="yuv420p10le"),
    Recipe(name="av1_hidden.mp4", codec="libsvtav1", options={"preset": "10", "svtav1-params": "keyint=20"}),
)


def deepen(source: Path, target: Path) -> Path:
    """Write 10-bit VP9 from an 8-bit source, without hidden frames."""
    options = [word for key, value in (SHOWN | {"profile:v": "2", "b:v": "0"}).items() for word in (f"-{key}", value)]
    command = ["ffmpeg", "-v", "error", "-y", "-i", str(source), "-c:v", "libvpx-vp9", "-pix_fmt", "yuv420p10le"]
    subprocess.run([*command, *options, str(target)], check=True)
    return target


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for recipe in CANDIDATES:
        print(make(recipe, folder))
    for name in ("vp9_shown_10bit.webm", "vp9_shown_10bit.mp4"):
        print(deepen(folder / "vp9_shown.webm", folder / name))


if __name__ == "__main__":
    main()
