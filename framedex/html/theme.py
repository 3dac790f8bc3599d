"""The theme of every page: colours for light, dark and print, and the shared style sheet (theme.css)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour in each scheme, as `#rrggbb`.

    Attributes:
        light: On a light background.
        dark: On a dark background, for browsers that prefer it.
        paper: In print.
    """

    light: str
    dark: str
    paper: str


# Text has a contrast of at least 4.5 : 1 with its background, and drawings 3 : 1 (tests/html/test_theme.py).
COLOURS = {
    "ink": Colour("#1d2126", "#e4e7eb", "#000000"),  # text
    "soft": Colour("#57606b", "#a0a9b5", "#444444"),  # less important text
    "line": Colour("#dde1e6", "#343a42", "#bbbbbb"),  # between parts
    "ground": Colour("#ffffff", "#16191d", "#ffffff"),
    "raised": Colour("#f5f6f8", "#1f2328", "#f3f3f3"),  # the background of boxes
    "link": Colour("#0a5bb0", "#7db7f5", "#000000"),
    "error": Colour("#a1201b", "#ff9d94", "#a1201b"),
    "error-ground": Colour("#fdf0ef", "#351f1e", "#ffffff"),
    "warning": Colour("#7a4f00", "#efbd5f", "#7a4f00"),
    "warning-ground": Colour("#fdf5e3", "#33290f", "#ffffff"),
    "note": Colour("#40566f", "#a9bfd8", "#40566f"),
    "note-ground": Colour("#eef2f7", "#212a35", "#ffffff"),
    "bar": Colour("#3d6fb4", "#6fa0e0", "#3d6fb4"),  # of a chart
    "bar-rest": Colour("#97a3b3", "#5d6875", "#97a3b3"),
    "axis": Colour("#6b7480", "#8a95a2", "#555555"),
    "grid": Colour("#e6e9ed", "#2b3037", "#dddddd"),
    "start": Colour("#b8430f", "#ff9a63", "#b8430f"),  # a start point
    "gap": Colour("#f6dfb5", "#4c3d1c", "#f6dfb5"),  # time without a frame
    "hatch": Colour("#aab2bd", "#59626e", "#aab2bd"),  # over padding
}
USED = re.compile(r"var\(--([a-z-]+)\)")
DEFINED = re.compile(r"--([a-z-]+):")


def rgb(name: str) -> tuple[int, int, int]:
    """Return a colour of the light scheme as red, green and blue, each 0 to 255, for pictures."""
    red, green, blue = bytes.fromhex(COLOURS[name].light.removeprefix("#"))
    return red, green, blue


def stylesheet(own: str) -> str:
    """Return the style sheet of a page: the theme with the colours that the page uses, then the page's own rules.

    Args:
        own: The page's own rules. They use the colours of the theme: `var(--ink)`.

    Raises:
        ValueError: A rule uses a variable that neither the theme nor the page defines.
    """
    rules = (files("framedex.html") / "theme.css").read_text(encoding="utf-8") + own
    used, defined = set(USED.findall(rules)), set(DEFINED.findall(rules))
    if unknown := used - defined - set(COLOURS):
        raise ValueError(f"no such variable: {', '.join(sorted(unknown))}")
    return _variables([name for name in COLOURS if name in used]) + rules


def _variables(names: list[str]) -> str:
    """Return the rules that define colours in each scheme."""

    def block(scheme: str) -> str:
        values = " ".join(f"--{name}: {getattr(COLOURS[name], scheme)};" for name in names)
        return f":root {{ {values} }}"

    return (
        f"{block('light')}\n"
        f"@media (prefers-color-scheme: dark) {{ {block('dark')} }}\n"
        f"@media print {{ {block('paper')} }}\n"
    )
