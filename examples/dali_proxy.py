"""Use torch's DataLoader with worker processes, and one DALI pipeline in the main process that decodes for all workers.

`dataset.with_proxy(server.proxy)` is a map-style dataset. Its workers read and check clips and pass what NVDEC decodes
to DALI Proxy. What must not go to NVDEC they decode themselves, and send it as raw frames through the same call, since
every sample of a batch must pass it. Only the main process uses the GPU, so there is one CUDA context for any number of
workers.

The proxy cannot be pickled, so the workers must be forked. They start with the first `iter(loader)`, before anything
else in the process has threads that hold locks. CUDA may be initialised earlier, since workers never use it.

By hand: python examples/dali_proxy.py DATASET [--size 224 224] [--workers 4]. It needs a CUDA build of torch and DALI.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from nvidia.dali import fn
from nvidia.dali.plugin.pytorch.experimental import proxy as dali_proxy

from framedex import ClipDataset, ClipSampler
from framedex.loader.dali.pipelines import clip_pipeline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), default=(224, 224))
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    size = tuple(options.size)
    dataset = ClipDataset(options.dataset, size=size)
    pipeline = clip_pipeline(
        batch_size=options.batch_size,
        size=size,
        transform=lambda frames: fn.flip(frames),
    )
    sampler = ClipSampler(dataset, shuffle=True)
    with dali_proxy.DALIServer(pipeline) as server:
        loader = dali_proxy.DataLoader(
            server,
            dataset.with_proxy(server.proxy),
            batch_size=options.batch_size,
            sampler=sampler,
            num_workers=options.workers,
            multiprocessing_context="fork",
            persistent_workers=options.epochs > 1,
        )
        for epoch in range(options.epochs):
            begun, clips = time.perf_counter(), 0
            for batch in loader:
                frames = batch["frames"]  # uint8 [N, F, H, W, 3] on the GPU
                clips += len(batch["clip_id"])
            seconds = time.perf_counter() - begun
            print(
                f"epoch {epoch}: {clips} clips in {seconds:.2f} s, "
                f"the last batch {tuple(frames.shape)} on {frames.device}"
            )


if __name__ == "__main__":
    main()
