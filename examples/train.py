"""Train a tiny 3D CNN on clips, on the CPU or a GPU.

The run may be killed at any moment and then continues where it was.

Without --dataset, it makes small videos of a bar that moves to the left or to the right, with the number of each frame
in its pixels, and plans clips while it loads them: different frames each epoch. Every frame is checked. With --dataset
DATASET (from `framedex shard`), the column --label contains the class of each clip: its name, or its number from 0 on.

By hand: python examples/train.py --out train-out; kill it, and run the same command again.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from framedex import ClipDataset, ClipLoader, ClipSampler
from framedex.indexer.runs.build import build_index
from framedex.indexer.runs.work import IndexOptions

HEIGHT, WIDTH, CELL, BITS = 64, 96, 12, 8  # of the generated videos, and of the frame number in their top rows
VIDEOS, FRAMES = 8, 60
POLICY = {"policy": "windows", "frames": 8, "step": 6, "jitter_frames": 2, "last": "drop"}
MEAN, STD = (0.5,) * 3, (0.25,) * 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("train-out"), help="holds checkpoint.pt and seen.jsonl")
    parser.add_argument("--dataset", type=Path, help="default: videos that are made")
    parser.add_argument("--label", default="label", help="the column with the class of each clip")
    parser.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), help="scale to; videos that are made stay")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=1, metavar="STEPS")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    train(options)


def train(options: argparse.Namespace) -> None:
    """Train until the last epoch, from the last checkpoint if there is one."""
    made = options.dataset is None
    if made:
        dataset, classes = ClipDataset.from_index(index_of_made_videos(options.out), POLICY), 2
    else:
        dataset = ClipDataset(options.dataset, size=tuple(options.size) if options.size else None)
        dataset, classes = numbered(dataset, options.label)
    loader = ClipLoader(
        dataset,
        batch_size=options.batch_size,
        sampler=ClipSampler(dataset, shuffle=True, seed=0),
        device=options.device,
        normalize=(MEAN, STD),
        layout="FCHW",
        num_workers=options.workers,
    )
    torch.manual_seed(0)
    device = "cuda" if options.device == "gpu" else "cpu"
    model = small_network(classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = Run(options.out, model, optimizer, loader)
    while (epoch := loader.state_dict()["epoch"]) < options.epochs:
        dataset.set_epoch(epoch)  # draws new random values, also in the workers
        right = count = 0
        for batch in loader:
            labels = batch[options.label].to(device)
            scores = model(batch["frames"].transpose(1, 2))  # [N, F, C, H, W] → [N, C, F, H, W]
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if made:
                check_frames(batch)
            right, count = right + int((scores.argmax(1) == labels).sum()), count + len(labels)
            run.done(epoch, batch, save_every=options.save_every)
        run.save()
        print(f"epoch {epoch}: {count} clips, loss {float(loss.detach()):.3f}, {right} right", flush=True)


def numbered(dataset: ClipDataset, label: str) -> tuple[ClipDataset, int]:
    """Return a dataset whose column has numbers of classes, and how many classes there are."""
    values = dataset.column(label)
    if values.dtype.kind in "iu":
        return dataset, int(values.max()) + 1
    dataset = ClipDataset(dataset.origin.path, size=dataset.size, labels=label)
    return dataset, len(dataset.classes)


def small_network(classes: int) -> nn.Module:
    """Return a 3D CNN for float32 [N, 3, F, H, W]."""
    return nn.Sequential(
        nn.Conv3d(3, 8, 3, stride=(1, 2, 2), padding=1),
        nn.ReLU(),
        nn.Conv3d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(16, classes),
    )


class Run:
    """The checkpoint of a run, and its record of the clips that the model saw.

    seen.jsonl has one line per step. Lines after the checkpoint are about steps that the saved model never took, so
    they are removed.
    """

    def __init__(self, out: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: ClipLoader) -> None:
        self._checkpoint, self._record = out / "checkpoint.pt", out / "seen.jsonl"
        self._model, self._optimizer, self._loader = model, optimizer, loader
        self._step = 0
        if self._checkpoint.exists():
            state = torch.load(self._checkpoint)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            loader.load_state_dict(state["loader"])
            self._step = state["step"]
            print(f"going on behind step {self._step}", flush=True)
        lines = self._record.read_bytes().splitlines(keepends=True) if self._record.exists() else []
        write_aside(self._record, b"".join(lines[: self._step]))

    def done(self, epoch: int, batch: Mapping[str, Any], *, save_every: int) -> None:
        """Record a step, and save if it is time."""
        self._step += 1
        with open(self._record, "a", encoding="utf-8") as record:
            clips = [
                [name, frames.tolist()] for name, frames in zip(batch["clip_id"], batch["frame_index"], strict=True)
            ]
            record.write(json.dumps({"epoch": epoch, "clips": clips}) + "\n")
        if self._step % save_every == 0:
            self.save()

    def save(self) -> None:
        """Write the checkpoint, completely or not at all."""
        aside = self._checkpoint.with_suffix(".writing")
        torch.save(
            {
                "model": self._model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "loader": self._loader.state_dict(),
                "step": self._step,
            },
            aside,
        )
        os.replace(aside, self._checkpoint)


def write_aside(path: Path, content: bytes) -> None:
    """Write a file, completely or not at all."""
    aside = path.with_suffix(".writing")
    aside.write_bytes(content)
    os.replace(aside, path)


def index_of_made_videos(out: Path) -> Path:
    """Make videos and index them, unless an earlier run did so. Return the index."""
    videos, index = out / "videos", out / "INDEX"
    listing = out / "videos.jsonl"
    if not listing.exists():
        videos.mkdir(exist_ok=True)
        for number in range(VIDEOS):
            make_video(videos / f"{number}.mp4", label=number % 2, first=7 * number)
        rows = [{"uri": str((videos / f"{number}.mp4").absolute()), "label": number % 2} for number in range(VIDEOS)]
        write_aside(listing, "".join(json.dumps(row) + "\n" for row in rows).encode())
    report = build_index(IndexOptions(sources=[str(listing)], out=index, workers=1))
    if report.problems:
        raise SystemExit(f"the videos cannot be indexed: {report.problems}")
    return index


def make_video(path: Path, *, label: int, first: int) -> None:
    """Encode a bar that moves to the left (label 0) or to the right (1)."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=25, options={"preset": "veryfast", "g": "20"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(picture(number, first + (4 * number if label else -4 * number)))
            frame.pts, frame.time_base = number, Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def picture(number: int, place: int) -> NDArray[np.uint8]:
    """Return uint8 [H, W, 3]: the number of a frame in black and white cells, and a bar below it."""
    frame = np.full((HEIGHT, WIDTH, 3), 60, np.uint8)
    for bit in range(BITS):
        frame[:CELL, bit * CELL : (bit + 1) * CELL] = 235 if number >> bit & 1 else 16
    frame[CELL + 4 :, (place + np.arange(10)) % WIDTH] = 235
    return frame


def check_frames(batch: Mapping[str, Any]) -> None:
    """Exit if a frame is not the one that was requested."""
    frames: Tensor = batch["frames"]  # float [N, F, 3, H, W], black below zero and white above
    middles = torch.arange(BITS) * CELL + CELL // 2
    bits = (frames[:, :, 1, CELL // 2, :][..., middles] > 0).cpu()
    shown = (bits * 2 ** torch.arange(BITS)).sum(-1)
    if not torch.equal(shown, torch.as_tensor(batch["frame_index"])):
        raise SystemExit(f"other frames than those asked for: {shown.tolist()}, not {batch['frame_index'].tolist()}")


if __name__ == "__main__":
    main()
