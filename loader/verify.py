"""`framedex.verify`: the Python function for the command `framedex verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from framedex.core.hints import check_choices
from framedex.core.progress import progress_bar
from framedex.execution.choice import processes
from framedex.loader.verification.report import VerifyReport
from framedex.loader.verification.verify import verify as verify_on_cpu
from framedex.loader.verification.verify_gpu import verify_on_gpu
from framedex.storage.locations import Access
from framedex.storage.places import Place, place


def verify(
    dataset: str | Place,
    *,
    sample: int | None = None,
    seed: int = 0,
    root: str | Path | None = None,
    allow_remote: bool = False,
    decode: Literal["cpu", "gpu"] = "cpu",
    workers: int | None = None,
    timeout_seconds: float | None = 3600.0,
    progress: bool = True,
) -> VerifyReport:
    """Compare clips, decoded from their byte ranges, with a full decode of their sources, as `framedex verify` does.

    Args:
        dataset: what `framedex.shard` wrote.
        sample: how many clips are checked, chosen at random. None: all clips.
        seed: the seed of that choice.
        root: where the sources are now, if they moved.
        allow_remote: whether sources may lie in another store than the dataset: as for ClipDataset.
        decode: "cpu" compares every frame bit for bit. "gpu" decodes clips as a loader with a GPU does: each frame must
            be nearer to the CPU's picture of it than to those of its neighbours.
        workers: processes that decode. None: one per core. 0: this process, without `timeout_seconds`.
        timeout_seconds: time limit for each source. None: no limit.
        progress: show a progress bar on a terminal.

    Returns:
        How many clips have which verdict, and the clips that are wrong.

    Raises:
        FramedexError: an argument is wrong, there is no dataset, or decode="gpu" finds no GPU.
    """
    check_choices(decode=(decode, ("cpu", "gpu")))
    report = VerifyReport()
    with progress_bar("clip", shown=progress) as show:
        for checked in (verify_on_cpu if decode == "cpu" else verify_on_gpu)(
            place(dataset),
            access=Access(root=root, allow_remote=allow_remote),
            sample=sample,
            seed=seed,
            workers=processes(workers),
            timeout_seconds=timeout_seconds,
            on_progress=show,
        ):
            report.count(checked)
    return report
