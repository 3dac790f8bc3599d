"""What ClipLoader may be told, and how it says that it was told something else."""

from __future__ import annotations

from typing import Literal

from framedex.errors import FramedexError

Device = Literal["cpu", "gpu"]
Decode = Literal["auto", "gpu", "cpu"]
Last = Literal["partial", "drop", "pad"]
Output = Literal["torch", "numpy"]


def check_choices(**choices: tuple[str, tuple[str, ...]]) -> None:
    """Raise FramedexError for an argument, name=(value, allowed), that is none of those allowed."""
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise FramedexError(f"unknown {name}", found=repr(value), allowed=", ".join(map(repr, allowed)))


def check_counts(**counts: tuple[int, int]) -> None:
    """Raise FramedexError for an argument, name=(value, least), that is no whole number from there on."""
    for name, (value, least) in counts.items():
        if type(value) is not int or value < least:
            raise FramedexError(f"{name} is out of range", found=repr(value), allowed=f"{least} or more")


def check_together(device: Device, decode: Decode, output: Output) -> None:
    """Raise FramedexError for arguments that contradict each other."""
    if device == "cpu" and decode == "gpu":
        raise FramedexError("decode='gpu' leaves frames on the GPU", remedy="device='gpu', or decode='cpu'")
    if device == "gpu" and output == "numpy":
        raise FramedexError("frames on a GPU are torch tensors", remedy="output='torch', or device='cpu'")
