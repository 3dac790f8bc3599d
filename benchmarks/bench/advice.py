"""Advice on a loader's speed: its bound on a machine, and changes that would help, from a measurement alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framedex.bench.measure import BenchOptions, BenchResult

Bound = Literal["this process", "NVDEC", "reading", "cores", "workers", "making batches"]
BUSY = 0.8  # the share of the time from which on a stage counts as busy
MANY_DECODED = 3.0  # frames decoded for each wanted one; images, which are larger than video, pay from here on


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The bound of the speed, and changes that would help.

    Attributes:
        bound: the part that is busy most of the time. "this process": without workers, it does all work. "cores": all
            cores are busy. "workers": all workers are busy and cores are not. "making batches": none of them is busy,
            so time goes into stacking, copying and transforming, or into waiting for the GPU.
        reason: the measurement that shows this.
        changes: the changes, the most helpful first.
    """

    bound: Bound
    reason: str
    changes: list[str]


def advice(result: BenchResult, options: BenchOptions, cores: int) -> Advice:
    """Find the bound of the measured speed, and changes that would help.

    Args:
        result: the measurement.
        options: the options of the measurement.
        cores: cores of the machine.
    """
    bound, reason = _find_bound(result, options, cores)
    return Advice(bound=bound, reason=reason, changes=_list_changes(bound, result, options, cores))


def _find_bound(result: BenchResult, options: BenchOptions, cores: int) -> tuple[Bound, str]:
    nvdec, busy_cores, seconds = result.load.nvdec_percent, result.load.cpu_cores, sum(result.seconds)
    if nvdec is not None and nvdec >= 100 * BUSY:
        return "NVDEC", f"it is busy for {nvdec:.0f} % of the time"
    if not options.workers:
        return "this process", "it reads and decodes one clip after the other"
    reading = result.stages.get("workers reading", 0.0)
    working = reading + result.stages.get("workers decoding", 0.0)
    busy = working / (seconds * options.workers) if seconds else 0.0
    if busy >= BUSY and reading > working / 2:
        return "reading", f"workers read for {reading / working:.0%} of their time"
    if busy_cores is not None and busy_cores >= BUSY * cores:
        return "cores", f"{busy_cores:.1f} of {cores} cores are busy"
    if busy >= BUSY:
        return "workers", f"each of {options.workers} is busy for {min(busy, 1):.0%} of the time, and cores are idle"
    return "making batches", f"workers are busy for {busy:.0%} of the time"


def _list_changes(bound: Bound, result: BenchResult, options: BenchOptions, cores: int) -> list[str]:
    decoded = result.cost.decoded_frames / max(1, result.cost.wanted_frames)
    stored = f"framedex shard --pack images, because {decoded:.1f} frames are decoded for each wanted one"
    fewer = [stored] if decoded >= MANY_DECODED else []
    scaled = ["a size to which frames are scaled (--size)"] if options.size is None else []
    on_gpu = ["a GPU (--device cuda)"] if options.device == "cpu" else []
    more = min(cores, 2 * options.workers)
    workers = [f"more workers (--workers {more})"] if more > options.workers else []
    if bound == "this process":
        return [f"workers (--workers {cores})", *fewer, *scaled]
    if bound == "NVDEC":
        shared = ["workers that decode as well (--decode auto)"] if options.decode == "gpu" else []
        return [*shared, *workers, *fewer]
    if bound == "reading":
        return ["framedex shard --pack needed, on a local disk or in the same region", *workers]
    if bound == "cores":
        return [*on_gpu, *fewer, *scaled]
    if bound == "workers":
        return [*workers, *on_gpu, *fewer, *scaled]
    return [*scaled, "larger batches", "fewer workers, if the trainer needs cores"]
