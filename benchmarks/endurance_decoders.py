"""Provoke DALI's random "Failed to create video decoder".

Decoders are created and dropped, get many shapes, run in parallel, run short of memory, and are fed from buffers that
do not live long enough.

DALI's message says that a movie in memory could not be opened, whatever the reason: its bytes were no longer there, its
codec has no decoder, or NVDEC had no room. Each function counts the errors by their first words, and counts the wrong
pictures.
"""

from __future__ import annotations

import collections
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.endurance_media import command, make_dataset, shows, wrong_clips
from framedex import ClipDataset, ClipLoader
from framedex.loader.batches.faults import ClipRequest, Fetched
from framedex.loader.batches.fetch import Fetcher, FetchOptions
from framedex.loader.dali.proxy import NO_MOVIE
from framedex.loader.routing.balance import ClipCost
from framedex.loader.routing.movie import MovieFeed, movie_feed
from tests.support.media import Recipe, make

REPORTED = "Failed to create video decoder"
SHAPES = ((176, 144), (256, 144), (320, 240), (144, 256), (416, 240), (640, 360), (642, 362), (720, 480), (194, 146))
CODECS: dict[str, dict[str, str]] = {
    "libx264": {"preset": "ultrafast", "g": "20"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:pools=1:keyint=20:open-gop=0"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "lag-in-frames": "0", "g": "20"},
}


@dataclass(slots=True)
class Count:
    """How often something was tried, failed with an error, and gave wrong pictures."""

    tried: int = 0
    wrong: int = 0
    errors: collections.Counter[str] = field(default_factory=collections.Counter)

    def attempt(self, work: Callable[[], bool]) -> None:
        """Run `work`, which returns whether its pictures were right, and count the outcome."""
        self.tried += 1
        try:
            self.wrong += not work()
        except Exception as error:  # what is counted here
            self.errors[first_words(error)] += 1

    def facts(self) -> dict[str, Any]:
        """Return the counts in a form that JSON accepts."""
        reported = sum(count for words, count in self.errors.items() if REPORTED in words)
        return {
            "tried": self.tried,
            "wrong": self.wrong,
            "errors": sum(self.errors.values()),
            "reported_error": reported,
            "messages": dict(self.errors.most_common(12)),
        }


def first_words(error: BaseException) -> str:
    """Return the most informative line of an error: one with the reported words, or one that names the failure."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    for known in (REPORTED, "Assert on", "CUDA", "rror in", "failed"):
        for line in lines:
            if known in line:
                return line[:200]
    return lines[0][:200]


def movies_of(home: Path, *, codecs: Sequence[str] = ("libx264", "libx265")) -> list[Fetched]:
    """Return one clip for NVDEC of every shape and codec, with frames 3, 0, 17."""
    media, frames = home / "shapes", [3, 0, 17]
    media.mkdir(parents=True, exist_ok=True)
    names = []
    for codec in codecs:
        for width, height in SHAPES:
            recipe = Recipe(
                name=f"{codec}_{width}x{height}.mp4",
                codec=codec,
                options=CODECS[codec],
                frames=24,
                size=(width, height),
            )
            make(recipe, media)
            names.append(recipe.name)
    stored = home / "SHAPES"
    if not (stored / "dataset.json").exists():
        lines = [json.dumps({"uri": name, "clip_id": name, "frames": frames}) + "\n" for name in names]
        (home / "shapes.jsonl").write_text("".join(lines), encoding="utf-8")
        command("index", media, "--out", home / "SHAPES-INDEX")
        command("shard", home / "SHAPES-INDEX", "--clips", home / "shapes.jsonl", "--out", stored)
    dataset = ClipDataset(stored)
    fetch = Fetcher(dataset, FetchOptions(pixels=[dataset.pixels]))
    found = [fetch(ClipRequest(number=number, on_gpu=True)) for number in range(len(names))]
    return [clip for clip in found if isinstance(clip, Fetched) and clip.movie is not None]


def is_right(decoded: NDArray[np.uint8], clip: Fetched) -> bool:
    """Return whether the distinct frames that NVDEC decoded from a movie are the requested ones."""
    return shows(decoded, np.unique(clip.item["frame_index"]).tolist())


def decoder(batch_size: int) -> Any:
    """Return a decoder like the one that ClipLoader creates."""
    from framedex.loader.dali.pipelines import MovieDecoder

    return MovieDecoder(scaled=False, batch_size=batch_size, device_id=0)


def feed_of(clip: Fetched) -> MovieFeed:
    """Return the DALI inputs of a clip that is decoded alone."""
    assert clip.movie is not None  # every clip of `movies_of` has one
    return movie_feed([clip.movie.packets], [clip.movie.wanted])


def decodes(made: Any, clips: Sequence[Fetched]) -> bool:
    """Run one batch; return whether all pictures are right."""
    parts = made.run([feed_of(clip) for clip in clips], [None] * len(clips))
    outputs = [np.asarray(part[number]) for part in (part.as_cpu() for part in parts) for number in range(len(part))]
    return all(is_right(frames, clip) for frames, clip in zip(outputs, clips, strict=True))


def remade_loaders(home: Path, count: int) -> dict[str, Any]:
    """Create a ClipLoader, take one batch from it and drop it, `count` times."""
    dataset, counted = ClipDataset(make_dataset(home, clips=96)), Count()
    kept_on_cpu = 0
    for number in range(count):

        def one(number: int = number) -> bool:
            nonlocal kept_on_cpu
            numbers = np.random.default_rng(number).permutation(len(dataset))[:8].tolist()
            loader = ClipLoader(dataset, sampler=numbers, batch_size=8, device="gpu", collate="list")
            right = all(not wrong_clips(batch) for batch in loader)
            kept_on_cpu += sum(loader.report.retried.values())
            loader.close()
            return right

        counted.attempt(one)
    return counted.facts() | {"retried_by_the_loader": kept_on_cpu}


def remade_decoders(home: Path, count: int) -> dict[str, Any]:
    """Create a new pipeline for every batch, and drop it."""
    clips, counted = movies_of(home), Count()
    for number in range(count):
        some = [clips[(number * 5 + place) % len(clips)] for place in range(4)]
        counted.attempt(partial(decodes, decoder(4), some))
        if number % 20 == 0:
            gc.collect()
    return counted.facts()


def many_shapes(home: Path, count: int) -> dict[str, Any]:
    """Feed one pipeline streams of changing shape and codec: first one stream per batch, then mixed batches."""
    found = {}
    for name, codecs in {"h264_hevc": ("libx264", "libx265"), "with_vp9": tuple(CODECS)}.items():
        clips, one, mixed = movies_of(home / name, codecs=codecs), Count(), Count()
        single, several = decoder(1), decoder(8)
        rng = np.random.default_rng(0)
        for place in rng.integers(0, len(clips), count).tolist():
            one.attempt(partial(decodes, single, [clips[place]]))
        for _ in range(count // 4):
            some = [clips[place] for place in rng.integers(0, len(clips), 8).tolist()]
            mixed.attempt(partial(decodes, several, some))
        found[name] = {"movies": len(clips), "one_a_batch": one.facts(), "mixed_batches": mixed.facts()}
    return found


def parallel_decoders(home: Path, threads: int, count: int) -> dict[str, Any]:
    """Run `threads` pipelines at once, each in its own thread, on batches of 16 movies."""
    clips = movies_of(home)
    counts = [Count() for _ in range(threads)]

    def work(number: int) -> None:
        made, rng = decoder(16), np.random.default_rng(number)
        for _ in range(count):
            some = [clips[place] for place in rng.integers(0, len(clips), 16).tolist()]
            counts[number].attempt(partial(decodes, made, some))

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    began = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    whole = Count(tried=sum(one.tried for one in counts), wrong=sum(one.wrong for one in counts))
    for one in counts:
        whole.errors += one.errors
    return {"threads": threads, "seconds": round(time.perf_counter() - began, 2)} | whole.facts()


def low_memory(home: Path, left_mib: Sequence[int]) -> dict[str, Any]:
    """Decode while little GPU memory is free, and again while all of it is free, through the same pipeline."""
    import torch

    clips, found = movies_of(home), {}
    for left in left_mib:
        made, starved, after = decoder(16), Count(), Count()
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        room = torch.empty(max(0, free - (left << 20)), dtype=torch.uint8, device="cuda")
        for number in range(5):
            some = [clips[(number + place) % len(clips)] for place in range(16)]
            starved.attempt(partial(decodes, made, some))
        del room
        torch.cuda.empty_cache()
        for number in range(5):
            some = [clips[(number + place) % len(clips)] for place in range(16)]
            after.attempt(partial(decodes, made, some))
        found[f"{left}_mib_left"] = {"meanwhile": starved.facts(), "afterwards": after.facts()}
    return found


def movie_pipeline(*, no_copy: bool, batch_size: int, gpu: bool) -> Any:
    """Return a pipeline that decodes movies, as users write it by hand.

    Args:
        gpu: decode on NVDEC; otherwise decode VP9 on the CPU.
    """
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=batch_size, num_threads=4, device_id=0 if gpu else None, prefetch_queue_depth=1)
    def pipeline() -> Any:
        movie = fn.external_source(name="movie", dtype=types.UINT8, ndim=1, no_copy=no_copy)
        wanted = fn.external_source(name="wanted", dtype=types.INT32, ndim=1)
        return fn.decoders.video(movie, device="mixed" if gpu else "cpu", frames=wanted)

    built = pipeline()
    built.build()
    return built


# What happens to the buffers between feeding and running.
FATES = ("kept", "overwritten", "freed")


def fed_from_buffers(home: Path, count: int, *, gpu: bool) -> dict[str, Any]:
    """Feed movies with and without no_copy, from buffers that are kept, overwritten, or freed and then reused."""
    clips = movies_of(home, codecs=("libx264", "libx265") if gpu else ("libvpx-vp9",))
    movies = [(feed_of(clip), clip) for clip in clips] if gpu else list(plain_movies(home))
    found = {}
    for no_copy in (False, True):
        for short_clip in FATES:
            counted = Count()
            made: Any = None
            for number in range(count):
                some = [movies[(3 * number + place) % len(movies)] for place in range(4)]

                def one(
                    some: list[tuple[MovieFeed, Any]] = some, short_clip: str = short_clip, no_copy: bool = no_copy
                ) -> bool:
                    nonlocal made
                    made = made or movie_pipeline(no_copy=no_copy, batch_size=4, gpu=gpu)
                    return fed_once(made, some, short_clip)

                errors = sum(counted.errors.values())
                counted.attempt(one)
                if sum(counted.errors.values()) > errors:
                    made = None  # DALI declares it invalid
            found[f"no_copy={no_copy}, {short_clip}"] = counted.facts()
    return found


def fed_once(made: Any, some: list[tuple[MovieFeed, Any]], short_clip: str) -> bool:
    """Feed one batch, apply `short_clip` to the buffers and run; return whether the pictures are right."""
    buffers = [movie["movie"].copy() for movie, _ in some]
    made.feed_input("movie", buffers)
    made.feed_input("wanted", [movie["wanted"] for movie, _ in some])
    others: list[NDArray[np.uint8]] = []
    if short_clip == "overwritten":
        for buffer in buffers:
            buffer[:] = 7
    elif short_clip == "freed":
        sizes = [len(buffer) for buffer in buffers]
        del buffers
        others = [np.full(size, 7, np.uint8) for size in sizes for _ in range(4)]
    (output,) = made.run()
    pictures = output.as_cpu() if hasattr(output, "as_cpu") else output
    right = all(is_right(np.asarray(pictures[number]), clip) for number, (_, clip) in enumerate(some))
    del others
    return right


def plain_movies(home: Path) -> Iterator[tuple[MovieFeed, Fetched]]:
    """Yield movies that DALI decodes on a CPU (whole VP9 files), each with the frames requested from it."""
    for path in sorted((home / "shapes").glob("libvpx-vp9_*")):
        wanted = np.array([0, 3, 17], np.int32)
        movie = NO_MOVIE | {"movie": np.fromfile(path, np.uint8), "wanted": wanted}
        cost = ClipCost(codec="vp9", cpu=0.0, gpu=0.0)
        yield movie, Fetched(number=0, item={"frame_index": wanted}, cost=cost, stored=(1, 1), size=(1, 1))
