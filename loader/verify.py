"""`framedex.verify`: the Python function for the command `framedex verify`.

Counts of what a verification found.
"""

import collections
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from framedex.core.printing import progress_bar
from framedex.core.words import check_choices
from framedex.execution.engines import processes
from framedex.loader.verification.truth import Checked
from framedex.loader.verification.verify import verify as verify_on_cpu
from framedex.loader.verification.verify_gpu import CheckedOnGpu, verify_on_gpu
from framedex.storage.places import Access, Place, place

RIGHT = ("exact", "nearest")


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What a verification found.

    Attributes:
        clips: how many were checked.
        frames: how many frames these clips have, repeats and padding included.
        verdicts: how many clips have each verdict.
        wrong: the clips that are neither exact nor nearest.
        decoders: with decode="gpu", how many clips each decoder took.
        undecided: how many frames cannot be told from another picture: with decode="gpu", because no neighbour differs
            from them, and of encoded clips, because another picture of the source is as near to them.
        worst_psnr: with decode="gpu", the PSNR in dB of the frame that differs most from the CPU's. Infinite where none
            differs.
        source_psnr: of encoded clips, the PSNR in dB of the frame that differs most from the source's. Infinite where
            none was compared.
    """

    clips: int = 0
    frames: int = 0
    verdicts: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[Checked] = field(default_factory=list)
    decoders: collections.Counter[str] = field(default_factory=collections.Counter)
    undecided: int = 0
    worst_psnr: float = math.inf
    source_psnr: float = math.inf

    def count(self, checked: Checked) -> None:
        """Add the verdict on one clip."""
        self.clips += 1
        self.frames += len(checked.frames)
        self.verdicts[checked.verdict] += 1
        if checked.verdict not in RIGHT:
            self.wrong.append(checked)
        self.undecided += checked.undecided
        self.source_psnr = min(self.source_psnr, math.inf if checked.source_psnr is None else checked.source_psnr)
        if isinstance(checked, CheckedOnGpu):
            self.decoders[checked.decoder] += 1
            self.worst_psnr = min(self.worst_psnr, checked.worst_psnr or math.inf)

    @property
    def internal(self) -> int:
        """Number of clips at which framedex itself failed."""
        return self.verdicts["internal_error"]

    @property
    def failed(self) -> int:
        """Number of clips that are not exact, without internal errors."""
        return len(self.wrong) - self.internal

    @property
    def is_exact(self) -> bool:
        """Whether clips were checked and all of them are exact, or nearest where a GPU decoded or framedex encoded."""
        return self.clips > 0 and not self.wrong


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
