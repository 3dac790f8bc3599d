"""The command `framedex bench`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Any

import click

from framedex.bench.advice import Advice, advice
from framedex.bench.compare import PeerResult
from framedex.bench.measure import BenchOptions, BenchResult
from framedex.bench.measure import bench as bench_dataset
from framedex.bench.peers import PEERS
from framedex.core.printing import echo, json_text
from framedex.core.words import size_text
from framedex.errors import FramedexError
from framedex.loader.arguments import Decode, Device, placed
from framedex.options import (
    FRAME_SIZE,
    OptionRule,
    RuledCommand,
    access_options,
    dataset_argument,
    json_option,
    max_failures_option,
    seed_option,
    time_limit_option,
    workers_option,
)
from framedex.storage.places import Access, Place

EXAMPLE = """\b
Example:
  framedex bench DATASET --clips 128 --batch-size 16 --size 224x224
  framedex bench DATASET --device gpu --size 224x224 --workers 16 --compare
"""

RULES = (
    OptionRule(options=["decode", "gpu"], when=lambda values: values["device"][0] == "gpu", needs="--device gpu"),
    OptionRule(
        options=["compare"], when=lambda values: not values["peers"], beside="--peer", why="that names what to run"
    ),
    OptionRule(
        options=["limit"], when=lambda values: values["compare"] or values["peers"], needs="--compare or --peer"
    ),
)


def _read_device(context: click.Context, parameter: click.Parameter, value: str) -> tuple[Device, int | None]:
    """Return the device that a value names, and the number of the GPU if the value has one."""
    try:
        device, number = placed(value, 0)
        return device, number if ":" in value else None
    except FramedexError as error:
        raise click.BadParameter(f"{error.what}: {error.found}; say {error.allowed}") from error


@click.command("bench", epilog=EXAMPLE, cls=RuledCommand, rules=RULES)
@dataset_argument()
@click.option("--batch-size", type=click.IntRange(1), default=8, show_default=True, help="Clips per batch.")
@click.option("--clips", type=click.IntRange(1), help="Load this many clips, chosen at random.  [default: all]")
@click.option(
    "--device",
    callback=_read_device,
    default="cpu",
    show_default=True,
    metavar="[cpu|gpu|cuda|cuda:N]",
    help="Where frames are delivered.",
)
@click.option(
    "--decode",
    type=click.Choice(["gpu", "auto", "cpu"]),
    default="auto",
    show_default=True,
    help="With --device gpu: which decoder is used.",
)
@click.option(
    "--gpu", type=click.IntRange(0), help="With --device gpu: number of the GPU.  [default: that of --device, else 0]"
)
@click.option("--size", type=FRAME_SIZE, metavar="HxW", help="Scale to this height and width.")
@workers_option("Processes of the loader, and of each peer.")
@seed_option("the choice of clips, and of their order")
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True, help="Measured passes over the clips.")
@click.option(
    "--warm-up", type=click.IntRange(0), default=1, show_default=True, help="Passes before the measured ones."
)
@access_options()
@click.option("--compare", is_flag=True, help="Run other loaders that are installed on the same clips.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    type=click.Choice(list(PEERS)),
    help="Instead of --compare: run only this loader. May be repeated.",
)
@time_limit_option("--limit", seconds=300.0, help_text="With --compare or --peer: longest time for one of them.")
@max_failures_option("clips that fail")
@json_option()
def bench(
    dataset: Place,
    device: tuple[Device, int | None],
    gpu: int | None,
    decode: Decode,
    access: Access,
    compare: bool,
    peers: tuple[str, ...],
    limit: float,
    max_failures: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how fast a dataset loads here: clips per second, what is read and decoded for them, where the time goes,
    what bounds the speed, and what would help.

    --compare runs what is installed of torchcodec, SPDL, decord, PyNvVideoCodec, OpenCV and DALI on the same clips, by
    the frame numbers of the index and with the same number of workers, and checks that they return the same pictures.
    Each runs in a process of its own; if one fails, the reason is shown.

    Exit codes: 0 done, 1 failed, 2 usage, 3 done but more clips failed than --max-failures.
    """
    if device[1] is not None and gpu is not None:
        raise click.UsageError("name the GPU by --device cuda:N or by --gpu N, not by both")
    how = BenchOptions(device=device[0], gpu=device[1] or gpu or 0, decode=decode, **options)
    names = list(peers) or (list(PEERS) if compare else [])

    def show(peer: PeerResult) -> None:
        echo(f"measured {peer.name}", err=True)

    result, found = bench_dataset(
        dataset, how, access=access, peers=names, limit_seconds=limit, on_peer=show if sys.stderr.isatty() else None
    )
    advised = advice(result, how, os.cpu_count() or 1)
    echo(json_text(as_facts(result, found, advised)) if as_json else as_text(result, found, advised))
    if sum(result.failures.values()) > max_failures * len(result.seconds):
        sys.exit(3)


def as_facts(result: BenchResult, peers: list[PeerResult], advised: Advice) -> dict[str, Any]:
    """Return a measurement as a dict for JSON."""
    return asdict(result) | {
        "clips_a_second": result.clips_a_second,
        "frames_a_second": result.frames_a_second,
        "advice": asdict(advised),
        "peers": [asdict(peer) | _relation(result, peer) for peer in peers],
    }


def _relation(result: BenchResult, peer: PeerResult) -> dict[str, Any]:
    """Return a peer's clips per second and how many times as fast framedex is. Both are None for an unfinished peer."""
    if not peer.seconds or not peer.clips:
        return {"clips_a_second": None, "framedex_is_faster_by": None}
    rate = peer.clips / peer.seconds
    return {"clips_a_second": rate, "framedex_is_faster_by": result.clips_a_second / rate}


def as_text(result: BenchResult, peers: list[PeerResult], advised: Advice) -> str:
    """Return a measurement as text for people."""
    cost, load = result.cost, result.load
    each = cost.decoded_frames / max(1, cost.wanted_frames)
    first = f" (the first one, with starting: {result.first_seconds:.4g})" if result.first_seconds else ""
    nvdec = f"no figure: {load.measured_by}"
    if load.nvdec_percent is not None:
        nvdec = f"{load.nvdec_percent:.0f} % busy, {load.nvdec_peak:.0f} % at most ({load.measured_by})"
    rows = {
        "clips a second": f"{result.clips_a_second:.4g}",
        "frames a second": f"{result.frames_a_second:.4g}",
        "seconds an epoch": f"{result.median_seconds:.4g}{first}",
        "decoded frames": f"{each:.1f} for each wanted one ({cost.decoded_frames:,} for {cost.wanted_frames:,})",
        "bytes read": f"{size_text(cost.bytes)}, {size_text(cost.bytes // max(1, cost.clips))} a clip",
        "CPU": "unknown" if load.cpu_cores is None else f"{load.cpu_cores:.1f} of {os.cpu_count()} cores busy",
        "NVDEC": nvdec,
        "decoded by": _list_amounts(result.decoded, "{:,} clips"),
        "time went into": _list_amounts(result.stages, "{:.2f} s"),
        "failures": _list_amounts(result.failures, "{:,}"),
        "bound by": f"{advised.bound}: {advised.reason}",
        "would help": "; ".join(advised.changes) or "nothing that this measurement shows",
    }
    size = f"{cost.clips:,} clips of {cost.frames:,} frames in {result.batches:,} batches"
    lines = [size, *(f"  {name:<17}{value}" for name, value in rows.items())]
    return "\n".join([*lines, *(_peer_line(result, peer) for peer in peers)])


def _list_amounts(values: dict[str, Any], form: str) -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in values.items()) or "none"


def _peer_line(result: BenchResult, peer: PeerResult) -> str:
    title = f"{peer.name} {peer.version}" if peer.version else peer.name
    rate, faster = _relation(result, peer).values()
    if rate is None:
        progress = f", after {peer.clips} clips" if peer.clips else ""
        return f"{title}: did not run: {peer.reason}{progress}"
    same = f"{peer.different:,} of {peer.compared:,} frames compared are other pictures"
    return f"{title}: {rate:.4g} clips a second; framedex is {faster:.2f} times as fast; {same}"
