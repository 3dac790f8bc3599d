"""What `--verify` and `--prove 4` cost a file of one minute and one of ten, beside indexing and a plain full decode.

Videos are encoded on the spot, 640x360 at 30 frames a second. Long ones repeat the packets of short ones. "decode"
reads every packet, decodes it in one thread and hashes its picture, as a proof does; "decode, md5" computes its MD5,
too, which `--verify` stores. Codecs that are not parsed are proven at every depth, so "auto" is all that they have.

usage: python -m benchmarks.proofs FOLDER [--rounds 3] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av

from benchmarks.environment import environment
from benchmarks.make_video import pictures, repeat
from framedex.core.pyav import open_encoder
from framedex.indexer.containers import opened_file
from framedex.indexer.probing.probe import ProbeTask, probe_medium
from framedex.indexer.proofs.full_decode import decode_all

WIDTH, HEIGHT, RATE, SECONDS, TIMES = 640, 360, 30, 60, 10
X265 = "log-level=none:keyint=250:open-gop="
MPEG = {"g": "15", "sc_threshold": "1000000000", "b": "1500000"}
CLOSED, B_2 = {"flags": "+cgop"}, {"bf": "2"}
# Name, encoder, its options, start points, whether there is a long one, too.
VIDEOS: dict[str, tuple[str, dict[str, str], str, bool]] = {
    "h264_closed": ("libx264", {"x264-params": "keyint=250:open-gop=0"}, "closed", True),
    "h264_open": ("libx264", {"x264-params": "keyint=60:min-keyint=60:scenecut=0:open-gop=1"}, "open", True),
    "hevc_closed": ("libx265", {"preset": "fast", "x265-params": f"{X265}0"}, "closed", False),
    "hevc_open": ("libx265", {"preset": "fast", "x265-params": f"{X265}1"}, "open", False),
    "vp9": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "g": "128", "b": "800k"}, "closed", False),
    "av1": ("libsvtav1", {"preset": "10", "crf": "40", "g": "160"}, "closed", False),
    "mpeg4.avi": ("mpeg4", MPEG, "closed", False),
    "mpeg4_b.avi": ("mpeg4", MPEG | CLOSED | B_2, "closed", False),
    "mpeg2.ts": ("mpeg2video", MPEG | CLOSED, "closed", False),
    "mpeg2_b.ts": ("mpeg2video", MPEG | CLOSED | B_2, "closed", False),
    "mpeg2_open.ts": ("mpeg2video", MPEG | B_2, "open", False),
    "wmv2.asf": ("wmv2", MPEG, "closed", False),
}


def make(name: str, folder: Path) -> Path:
    """Return the short video of a name; encode it if it is missing."""
    codec, options, _, _ = VIDEOS[name]
    path = folder / (name if "." in name else f"{name}.mp4")
    if not path.exists():
        aside = path.with_suffix(f".part{path.suffix}")
        with av.open(str(aside), "w") as out:
            stream = out.add_stream(codec, rate=RATE, options=options)
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            open_encoder(stream.codec_context)
            for picture in pictures(WIDTH, HEIGHT, SECONDS * RATE):
                out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            out.mux(stream.encode(None))
        aside.rename(path)
    return path


def make_long(name: str, folder: Path) -> Path:
    """Return the long video of a name; make it if it is missing."""
    path = folder / f"{name}_long.mp4"
    if not path.exists():
        repeat(make(name, folder), path, TIMES)
    return path


def contenders(path: Path) -> dict[str, Callable[[], None]]:
    """Return what is timed, by name. Each raises AssertionError if the file is not indexed as it should be."""

    def probe(**asked: Any) -> None:
        (medium,) = probe_medium(ProbeTask(path=str(path), **asked))
        assert medium.problem is None or medium.problem.status is None
        assert medium.problem is None
        assert (medium.proof is not None) == (is_proven or bool(asked.keys() & {"prove", "verify"}))

    with av.open(str(path)) as container:
        packets = sum(packet.size > 0 for packet in container.demux(video=0))

    def decode(*, hashed: bool) -> None:
        with opened_file(str(path)) as file:
            decoded = decode_all(file, 0, packets, hashed=hashed)
        assert decoded.came.all()

    is_proven = path.suffix != ".mp4"
    decodes = {"decode": lambda: decode(hashed=False), "decode, md5": lambda: decode(hashed=True)}
    if is_proven:
        return {"auto": probe, **decodes, "--verify": lambda: probe(verify=True)}
    return {
        "auto": probe,
        "auto, --prove 4": lambda: probe(prove=4),
        "packets": lambda: probe(depth="packets"),
        "packets, --prove 4": lambda: probe(depth="packets", prove=4),
        **decodes,
        "--verify": lambda: probe(verify=True),
    }


def timed(path: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of each contender, by the clock and of all its threads. All take turns."""
    found: dict[str, dict[str, list[float]]] = {"seconds": {}, "cpu_seconds": {}}
    for _ in range(rounds):
        for name, call in contenders(path).items():
            began, began_cpu = time.perf_counter(), time.process_time()
            call()
            found["seconds"].setdefault(name, []).append(time.perf_counter() - began)
            found["cpu_seconds"].setdefault(name, []).append(time.process_time() - began_cpu)
    return {
        kind: {name: round(statistics.median(taken), 4) for name, taken in by_name.items()}
        for kind, by_name in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="of short videos; long ones have one")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, (_, _, starts, has_long) in VIDEOS.items():
        for minutes in (SECONDS // 60, SECONDS // 60 * TIMES)[: 1 + has_long]:
            path = make(name, options.folder) if minutes == SECONDS // 60 else make_long(name, options.folder)
            rounds = options.rounds if minutes == SECONDS // 60 else 1
            row = {"video": name, "starts": starts, "minutes": minutes, "bytes": path.stat().st_size}
            rows.append(row | timed(path, rounds))
            print(json.dumps(rows[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
