"""Datasets of encoded clips, written through the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from framedex.sharder.packing.encoders import ENCODERS
from tests.support.datasets import run, write_clips

CODECS = ("h264", "hevc", "av1")  # those of --encode
Pixels = NDArray[np.uint8]


def encode_clips(
    index: Path, out: Path, clips: list[dict[str, Any]], *arguments: object, codec: str = "h264", code: int = 0
) -> Path:
    """Encode explicit clips of an index into a dataset; return its path.

    Args:
        arguments: Further options of the command.
        code: The expected exit code.
    """
    path = write_clips(out.with_suffix(".jsonl"), clips)
    words = ("shard", index, "--clips", path, "--out", out, "--pack", "clips", "--encode", codec)
    run(*words, *arguments, code=code)
    return out


def change_encoder(monkeypatch: pytest.MonkeyPatch, codec: str, **changes: str) -> None:
    """Let a codec have another encoder, or its encoder other options."""
    monkeypatch.setitem(ENCODERS, codec, replace(ENCODERS[codec], **changes))


def psnr(found: Pixels, expected: Pixels) -> float:
    """Return the PSNR of pictures in dB."""
    away = found.astype(float) - expected
    return float(10 * np.log10(255**2 / max(1e-6, (away**2).mean())))
