"""Plots for pages, as SVG files that follow the reader's light or dark theme."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

LABELS, WIDTH, ROW, TOP, BOTTOM, LETTER = 210, 760, 17, 44, 30, 6  # in units of the drawing
COLOURS = ("#d1495b", "#2e86ab", "#7cb518", "#f4a259", "#8e6bbf", "#6b7280")
STYLE = """<style>
text { font: 11px system-ui, sans-serif; fill: #24292f }
line { stroke: #d0d7de; stroke-width: 1 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } line { stroke: #444c56 } }
</style>"""


def dot_plot(title: str, unit: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Return an SVG of one row of dots for each entry, on a logarithmic scale. The first series is drawn largest.

    Args:
        title: what the plot shows, for readers who do not see it.
        unit: what the scale counts.
        rows: each row's label and its values by series. Values are greater than 0.
    """
    series = list(dict.fromkeys(name for _, values in rows for name in values))
    every = [value for _, values in rows for value in values.values()]
    low, high = math.log10(min(every)), math.log10(max(every))
    height = TOP + ROW * len(rows) + BOTTOM

    def x(value: float) -> float:
        return round(LABELS + 10 + (math.log10(value) - low) / (high - low) * (WIDTH - LABELS - 30), 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">']
    parts += [f"<title>{escape(title)}</title>", STYLE]
    for tick in _ticks(min(every), max(every)):
        parts.append(f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{TOP - 6}" y2="{height - BOTTOM}"/>')
        parts.append(f'<text x="{x(tick)}" y="{height - BOTTOM + 14}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{WIDTH - 20}" y="{height - 3}" text-anchor="end">{escape(unit)}</text>')
    left = 15
    for number, name in enumerate(series):
        parts.append(_dot(left, 14, number) + f'<text x="{left + 10}" y="18">{escape(name)}</text>')
        left += 36 + LETTER * len(name)
    for place, (label, values) in enumerate(rows):
        y = TOP + ROW * place + ROW / 2
        parts.append(f'<line x1="{LABELS}" x2="{WIDTH - 20}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LABELS - 6}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
        for number in reversed(range(len(series))):  # the first one lies on top
            if series[number] in values:
                parts.append(_dot(x(values[series[number]]), y, number))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _dot(x: float, y: float, number: int) -> str:
    return f'<circle cx="{x}" cy="{y}" r="{3.5 if number else 5}" fill="{COLOURS[number]}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """Return round values between two others: 1, 2 and 5 times powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for power in powers for value in (10**power, 2 * 10**power, 5 * 10**power) if low <= value <= high]
