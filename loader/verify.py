"""The Python function `framedex.verify`, which corresponds to the command `framedex verify`.

`VerifyReport` counts the results.
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
    """The results of a verification.

    Attributes:
        clips: The number of clips that were checked.
        frames: The number of frames of these clips, including repeated and padded frames.
        verdicts: The number of clips with each verdict.
        wrong: The clips whose verdict is neither "exact" nor "nearest".
        decoders: With decode="gpu", the number of clips that each decoder decoded.
        undecided: The number of frames that cannot be distinguished from another picture. With decode="gpu", these are
            frames whose neighbours show the same picture. In encoded clips, these are frames to which another picture
            of the source is equally similar.
        worst_psnr: With decode="gpu", the lowest PSNR in dB between a frame of the GPU and the same frame of the CPU.
            Infinite if no frame differs.
        source_psnr: For encoded clips, the lowest PSNR in dB between a frame and the same frame of the source. Infinite
            if no frame was compared.
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
        """Count the result for one clip."""
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
        """The number of clips for which framedex itself failed (a bug)."""
        return self.verdicts["internal_error"]

    @property
    def failed(self) -> int:
        """The number of wrong clips, without the clips for which framedex itself failed."""
        return len(self.wrong) - self.internal

    @property
    def is_exact(self) -> bool:
        """Whether at least one clip was checked, and every checked clip is "exact" or "nearest"."""
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
        dataset: A dataset that `framedex.shard` wrote.
        sample: The number of clips to check, chosen at random. If None, all clips are checked.
        seed: The seed of this random choice.
        root: The new location of the sources, if they moved.
        allow_remote: Whether sources may be in another store than the dataset, as for ClipDataset.
        decode: The decoder that is verified. With "cpu", every frame is compared bit for bit. With "gpu", clips are
            decoded as by a loader with a GPU, and each frame must be more similar to the CPU's picture of this frame
            than to the CPU's pictures of the neighbouring frames.
        workers: The number of processes that decode. If None, one per core. If 0, this process decodes, and
            `timeout_seconds` has no effect.
        timeout_seconds: The time limit for each source. If None, there is no limit.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The number of clips with each verdict, and the clips that are wrong.

    Raises:
        FramedexError: An argument is wrong, there is no dataset, or decode="gpu" is given and there is no GPU.
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
