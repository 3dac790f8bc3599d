"""Histograms and timelines as inline SVG. Colours are set by the style sheet of the page (page.css)."""

import itertools
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from framedex.auditor.report.histograms import Histogram, round_step
from framedex.auditor.report.timelines import CLOSED, NOT_KNOWN, OPEN, ClipsTimeline, FramesTimeline
from framedex.core.words import counted, number_text
from framedex.html.document import drawing, element

# All lengths are in SVG user units. The page scales drawings to the available width.
WIDTH, HEIGHT = 360, 176  # size of a histogram
LEFT, RIGHT, TOP, BOTTOM = 38, 350, 12, 134  # edges of the area of a histogram's bars
ZERO_ROOM = 26  # width for the bar of zeros, which is drawn to the left of a logarithmic axis
ROW = 18  # height of a horizontal bar including the gap below it
BAR_END = 306  # right end of the longest horizontal bar. Counts are written to the right of the bars
LABEL_CHARACTERS = 20  # maximum number of characters of the label of a horizontal bar
CHARACTER = 6.4  # assumed mean width of a character, since the web browser chooses the font
LONG, LONG_LEFT, LONG_RIGHT = 1000, 58, 988  # width of a timeline, and the left and right edge of its axes


def histogram(shown: Histogram) -> Element:
    """Return a chart with vertical bars on a numeric axis, or with a horizontal bar for each value or name."""
    has_axis_of_numbers = any(bar.low is not None for bar in shown.bars)
    return _vertical(shown) if has_axis_of_numbers else _horizontal(shown)


def alt_text(shown: Histogram) -> str:
    """Return a description of a chart in one sentence, for screen readers."""
    highest = max(shown.bars, key=lambda bar: bar.count)
    parts = [f"{shown.counted.title} of {shown.total:,} {shown.counted.of}"]
    if shown.least is not None:
        facts = [number_text(value or 0.0) for value in (shown.least, shown.greatest, shown.median)]
        parts.append(f"from {facts[0]} to {facts[1]}, median {facts[2]}")
    parts.append(f"most, {highest.count:,}, at {highest.label}")
    return "; ".join(parts)


def _text(x: float, y: float, text: str, class_: str = "") -> Element:
    return element("text", text, x=_at(x), y=_at(y), class_=class_ or None)


def _at(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _rect(x: float, y: float, width: float, height: float, title: str, class_: str) -> Element:
    return element(
        "rect", element("title", title), x=_at(x), y=_at(y), width=_at(width), height=_at(height), class_=class_
    )


def _path(d: str, class_: str) -> Element:
    return element("path", d=d, class_=class_)


def _vertical(shown: Histogram) -> Element:
    """Return a chart with vertical bars on a numeric axis."""
    highest = max([shown.zeros, *(bar.count for bar in shown.bars)])
    step = round_step(highest / 4, whole=True)
    top = np.ceil(highest / step) * step

    def height_of(count: float) -> float:
        return float((BOTTOM - TOP) * count / top)

    def bar_of(label: str, count: int, left: float, width: float) -> Element:
        height = max(height_of(count), 1)  # so that rare values are visible
        return _rect(left, BOTTOM - height, width, height, f"{label}: {count:,} {shown.counted.of}", "bar")

    parts = [_path(f"M{LEFT} {BOTTOM}H{RIGHT}", "axis")]
    for value in np.arange(step, top + step / 2, step).tolist():
        y = BOTTOM - height_of(value)
        parts += [_path(f"M{LEFT} {_at(y)}H{RIGHT}", "grid"), _text(LEFT - 5, y + 3.5, _short_count(value), "end")]
    parts.append(_text(LEFT - 5, BOTTOM + 3.5, "0", "end"))
    left = LEFT + (ZERO_ROOM if shown.zeros else 0)
    zero = LEFT + 4 + (ZERO_ROOM - 10) / 2
    if shown.zeros:
        parts += [bar_of("0", shown.zeros, LEFT + 4, ZERO_ROOM - 10), _text(zero, BOTTOM + 14, "0", "middle")]
    edges = [*(bar.low or 0.0 for bar in shown.bars), shown.bars[-1].high or 0.0]
    values = np.log10(edges) if shown.logarithmic else np.array(edges)
    places = (left + (values - values[0]) / (values[-1] - values[0]) * (RIGHT - left)).tolist()
    for bar, (begin, end) in zip(shown.bars, itertools.pairwise(places), strict=True):
        if bar.count:
            parts.append(bar_of(bar.label, bar.count, begin + 0.75, max(end - begin - 1.5, 1)))
    parts += _ticks(edges, places, logarithmic=shown.logarithmic, taken=[zero] * bool(shown.zeros))
    axis = shown.counted.axis + (" (logarithmic)" if shown.logarithmic else "")
    parts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 8, axis, "middle name"))
    return drawing(*parts, size=(WIDTH, HEIGHT), label=alt_text(shown), class_="chart")


def _ticks(edges: Sequence[float], places: Sequence[float], *, logarithmic: bool, taken: list[float]) -> list[Element]:
    """Return as many ticks and labels of an axis as fit. On a logarithmic axis, powers of ten have priority.

    Args:
        edges: The numbers at the edges of the bars.
        places: The x coordinates of the edges.
        logarithmic: Whether the axis is logarithmic.
        taken: The x coordinates of labels that already exist.
    """
    wanted = list(range(len(edges)))
    if not logarithmic:  # equal distances
        room = 14 + 5.5 * max(len(f"{edge:,g}") for edge in edges)
        wanted = wanted[:: max(1, int(np.ceil(room / (places[1] - places[0]))))]
    else:
        first_digits = [f"{edge:e}"[:3] for edge in edges]
        round_ones = [n for digits in ("1.0", "2.0", "5.0") for n in wanted if first_digits[n] == digits]
        wanted = round_ones if len(round_ones) > 1 else wanted
    parts = []
    for n in wanted:
        x, label = places[n], f"{edges[n]:,g}"
        if not logarithmic or all(abs(x - other) > 4.5 * len(label) + 14 for other in taken):
            taken = [*taken, x]
            parts += [_path(f"M{_at(x)} {BOTTOM}v4", "axis"), _text(x, BOTTOM + 14, label, "middle")]
    return parts


def _short_count(value: float) -> str:
    """Return a count as a short text, such as 20k."""
    for unit, each in (("M", 1e6), ("k", 1e3)):
        if value >= 10 * each or (value >= each and value % each == 0):
            return f"{value / each:g}{unit}"
    return f"{value:g}"


def _horizontal(shown: Histogram) -> Element:
    """Return a chart with one horizontal bar per row."""
    rows = [(bar.label, bar.count, "bar") for bar in shown.bars]
    if shown.others:
        rows.append((f"{shown.others:,} others", shown.other_count, "bar rest"))
    highest = max(count for _, count, _ in rows)
    left = 10 + CHARACTER * min(max(len(label) for label, _, _ in rows), LABEL_CHARACTERS)
    parts = []
    for place, (label, count, class_) in enumerate(rows):
        y = place * ROW + 4
        length = max((BAR_END - left) * count / highest, 1)
        cut = label if len(label) <= LABEL_CHARACTERS else label[: LABEL_CHARACTERS - 1] + "…"
        parts.append(_text(left - 6, y + 11, cut, "end"))
        parts.append(_rect(left, y + 1, length, ROW - 5, f"{label}: {count:,} {shown.counted.of}", class_))
        parts.append(_text(left + length + 5, y + 11, f"{count:,}", "count"))
    height = len(rows) * ROW + 8
    if shown.counted.axis:
        height += 18
        parts.append(_text(left, height - 6, shown.counted.axis, "name"))
    return drawing(*parts, size=(WIDTH, height), label=alt_text(shown), class_="chart")


def frames_timeline(shown: FramesTimeline) -> Element:
    """Return a chart of frames over time.

    The upper part shows the sizes of frames and the random access points. The lower part shows the time between frames.
    """
    begin, end = float(shown.seconds[0]), float(shown.seconds[-1]) + max(shown.median_gap, 1e-3)
    x = LONG_LEFT + (shown.seconds - begin) / (end - begin) * (LONG_RIGHT - LONG_LEFT)
    tick = max(0.6, min(7.0, 0.7 * (LONG_RIGHT - LONG_LEFT) / len(x)))  # the width of a frame's bar
    parts = [
        _text(LONG_LEFT - 8, 18, "bytes", "end name"),
        _text(LONG_LEFT, 18, "per frame (square-root scale)", "name"),
        *_long_gaps(shown, x),
        *_sizes(shown, x, tick),
        *_starts(shown, x + tick / 2),
        *_gaps(shown, x),
        *_seconds_axis(begin, end, 322),
    ]
    facts = shown.as_json()
    label = (
        f"{facts['shown']:,} frames of {shown.uri} from {begin:,.3f} to {facts['end_seconds']:,.3f} seconds:"
        f" {facts['start_points']:,} random access points, {facts['open_start_points']:,} of them open;"
        f" longest time between two frames {facts['longest_gap_seconds']:,.3f} seconds"
    )
    return drawing(*parts, size=(LONG, 350), label=label, class_="timeline")


SIZES_TOP, SIZES_BOTTOM = 30, 176
GAPS_TOP, GAPS_BOTTOM = 236, 316


def _long_gaps(shown: FramesTimeline, x: NDArray[np.float64]) -> list[Element]:
    """Return a band for each long gap between two frames of the timeline."""
    found = []
    for place in np.flatnonzero(shown.long_gaps[1:]).tolist():
        title = f"{shown.gap_seconds[place + 1]:,.3f} s without a frame"
        width = max(x[place + 1] - x[place], 1)
        found.append(_rect(x[place], SIZES_TOP, width, GAPS_BOTTOM - SIZES_TOP, title, "gap"))
    return found


def _sizes(shown: FramesTimeline, x: NDArray[np.float64], tick: float) -> list[Element]:
    """Return bars for the sizes of the frames, as one SVG path for each kind of frame."""
    roots = np.sqrt(shown.size_bytes / max(int(shown.size_bytes.max()), 1))
    heights = np.maximum(roots * (SIZES_BOTTOM - SIZES_TOP), 1.5)
    kinds = np.where(shown.is_damaged, 2, np.where(shown.is_start, 1, 0))
    parts = [_path(f"M{LONG_LEFT} {SIZES_BOTTOM}H{LONG_RIGHT}", "axis")]
    for kind, class_ in enumerate(("frame", "start", "harmed")):
        chosen = kinds == kind
        pairs = zip((x[chosen] + tick / 2).tolist(), heights[chosen].tolist(), strict=True)
        lines = "".join(f"M{place:.1f} {SIZES_BOTTOM}v{-height:.1f}" for place, height in pairs)
        if lines:
            parts.append(element("path", d=lines, stroke_width=_at(max(tick, 1.6 * (kind == 1))), class_=class_))
    largest = int(shown.size_bytes.max())
    for size, height in ((largest, 1.0), (largest // 4, 0.5)):  # heights are proportional to square roots of sizes
        scaled = next(
            (f"{number_text(size / n)}{unit}" for unit, n in (("M", 1e6), ("k", 1e3)) if size >= n), str(size)
        )
        parts.append(_text(LONG_LEFT - 8, SIZES_BOTTOM - height * (SIZES_BOTTOM - SIZES_TOP) + 4, scaled, "end"))
    return parts


def _starts(shown: FramesTimeline, x: NDArray[np.float64]) -> list[Element]:
    """Return marks below random access points, which are filled if closed, hollow if open, and lines if unknown."""
    marks = []
    for class_, kind in (("closed", CLOSED), ("open", OPEN), ("unknown", NOT_KNOWN)):
        shape = "v11" if kind == NOT_KNOWN else "l-5 11h10z"  # a line or a triangle
        places = x[shown.is_start & (shown.start == kind)].tolist()
        if places:
            path = "".join(f"M{place:.1f} {SIZES_BOTTOM + 4}{shape}" for place in places)
            marks.append(_path(path, f"mark {class_}"))
    return marks


def _gaps(shown: FramesTimeline, x: NDArray[np.float64]) -> list[Element]:
    """Return a step line of the time since the previous frame."""
    known = np.isfinite(shown.gap_seconds)
    parts = [
        _path(f"M{LONG_LEFT} {GAPS_BOTTOM}H{LONG_RIGHT}", "axis"),
        _text(LONG_LEFT - 8, GAPS_TOP - 14, "ms", "end name"),
        _text(LONG_LEFT, GAPS_TOP - 14, "since the previous frame", "name"),
    ]
    if not known.any():
        return parts
    gaps = np.maximum(shown.gap_seconds[known], 0)
    longest = float(gaps.max())
    top = longest * 1.08 or 1.0
    y = GAPS_BOTTOM - gaps / top * (GAPS_BOTTOM - GAPS_TOP)
    steps = "".join(
        f"{'H' if n else 'M'}{place:.1f}{'V' if n else ' '}{height:.1f}"
        for n, (place, height) in enumerate(zip(x[known].tolist(), y.tolist(), strict=True))
    )
    # Label the longest and the median gap, but only the longest if both labels would overlap.
    levels = {longest} if shown.median_gap > 0.7 * longest else {longest, shown.median_gap}
    for level in sorted(levels):
        height = GAPS_BOTTOM - level / top * (GAPS_BOTTOM - GAPS_TOP)
        parts.append(_path(f"M{LONG_LEFT} {_at(height)}H{LONG_RIGHT}", "grid"))
        parts.append(_text(LONG_LEFT - 8, height + 4, number_text(1000 * level, digits=4), "end"))
    return [*parts, _path(steps, "steps")]


def _seconds_axis(begin: float, end: float, y: float) -> list[Element]:
    step = round_step((end - begin) / 12)
    parts = []
    for value in np.arange(np.ceil(begin / step), np.floor(end / step) + 1).tolist():
        x = LONG_LEFT + (value * step - begin) / (end - begin) * (LONG_RIGHT - LONG_LEFT)
        parts += [_path(f"M{_at(x)} {_at(y - 6)}v5", "axis"), _text(x, y + 11, f"{value * step:,.6g} s", "middle")]
    return parts


LANE = 20  # height of a row of clips including the gap below it


def clips_timeline(shown: ClipsTimeline) -> Element:
    """Return a chart of clips over time. A clip is a band from its first to its last frame, with a line for each frame.

    Clips that overlap in time are drawn in different rows.
    """
    begin, end = shown.begin_seconds, max(shown.end_seconds, shown.begin_seconds + 1e-3)

    def at(seconds: float) -> float:
        return LONG_LEFT + (seconds - begin) / (end - begin) * (LONG_RIGHT - LONG_LEFT)

    bottom = 12 + LANE * (1 + max((clip.lane for clip in shown.clips), default=0))
    title = f"{shown.uri}: {begin:,.3f} to {end:,.3f} s"
    parts = [_rect(LONG_LEFT, 6, LONG_RIGHT - LONG_LEFT, bottom - 6, title, "medium")]
    for clip in shown.clips:
        y = 10 + clip.lane * LANE
        first, last = float(clip.seconds[0]), float(clip.seconds[-1])
        title = f"{clip.clip_id}: {counted(len(clip.seconds), 'frame')} from {first:,.3f} to {last:,.3f} s"
        parts.append(_rect(at(first) - 1, y, max(at(last) - at(first), 1) + 2, LANE - 6, title, "clip"))
        strokes = "".join(f"M{at(seconds):.1f} {y}v{LANE - 6}" for seconds in clip.seconds.tolist())
        parts.append(_path(strokes, "taken"))
    parts += _seconds_axis(begin, end, bottom + 8)
    label = f"{counted(len(shown.clips), 'clip')} of {shown.uri} between {begin:,.3f} and {end:,.3f} seconds"
    return drawing(*parts, size=(LONG, bottom + 28), label=label, class_="timeline")
