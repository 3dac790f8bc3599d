"""Counts of what a verification found."""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass, field

from framedex.loader.verification.checked import Checked
from framedex.loader.verification.verify_gpu import CheckedOnGpu

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
