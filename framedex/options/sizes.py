"""Sizes on the command line: numbers of bytes with a unit, and heights and widths of frames."""

from __future__ import annotations

import re
from typing import Any

import click


class ByteCount(click.ParamType[int]):
    """A number of bytes with a decimal or binary unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes that `512MB`, `1.5GiB` or `100000` means."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", str(value).strip().lower())
        found = float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " ") if match else 0
        if found < 1:
            self.fail(f"{value!r} is no size; write 512MB, 1.5GiB or 100000", param, ctx)
        return int(found)


class FrameSize(click.ParamType[tuple[int, int]]):
    """Height and width of a frame, each of one to five digits."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return the (height, width) that `224x320` means."""
        match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is no height and width; write 224x320", param, ctx)
        return int(match[1]), int(match[2])


BYTE_COUNT, FRAME_SIZE = ByteCount(), FrameSize()
