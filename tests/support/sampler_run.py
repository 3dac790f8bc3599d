"""A training run over a dataset of numbers that tests can kill: `python -m tests.support.sampler_run JSON`."""

from __future__ import annotations

import itertools
import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from framedex import ClipSampler


class Numbers(torch.utils.data.Dataset[int]):
    """A dataset in which every clip is its number."""

    def __init__(self, count: int, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        time.sleep(self.seconds)
        return number


def checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write the delivered clips and the state of a run in one step, as a trainer writes its weights."""
    aside = path.with_suffix(".aside")
    aside.write_bytes(pickle.dumps(content))
    aside.rename(path)


def main(
    path: str, *, count: int, world: int, workers: int, batch: int, kind: str, pause: float, blocks: int | None = None
) -> None:
    """Deliver the rest of an epoch, with all ranks in step.

    Args:
        kind: "plain": the sampler is told what was delivered; "stateful": the data loader keeps the state.
    """
    numbers = Numbers(count, 0.001)
    known = pickle.loads(Path(path).read_bytes()) if Path(path).exists() else {"delivered": [], "states": None}
    samplers, loaders = [], []
    for rank in range(world):
        samplers.append(ClipSampler(numbers, shuffle=True, seed=7, rank=rank, world_size=world, blocks=blocks))
        options: dict[str, Any] = {"batch_size": batch, "sampler": samplers[-1], "num_workers": workers}
        if workers:
            options |= {"prefetch_factor": 4, "multiprocessing_context": "spawn"}
        loaders.append((StatefulDataLoader if kind == "stateful" else DataLoader)(numbers, **options))
        if known["states"] is not None:
            (loaders if kind == "stateful" else samplers)[-1].load_state_dict(known["states"])
    delivered = known["delivered"]
    for step, batches in enumerate(zip(*loaders, strict=True), 1):
        delivered = delivered + list(itertools.chain(*(batch.tolist() for batch in batches)))
        states = loaders[0].state_dict() if kind == "stateful" else samplers[-1].state_dict(delivered=step * batch)
        checkpoint(Path(path), {"delivered": delivered, "states": states})
        time.sleep(pause)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
