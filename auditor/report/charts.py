"""Histograms and timelines as inline SVG.

Pure: returns elements for numbers. The page's style sheet sets the colours.
"""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from framedex.auditor.report.histograms import Histogram, round_step
from framedex.auditor.report.timelines import NOT_KNOWN, OPEN, ClipsTimeline, FramesTimeline
from framedex.core.words import number_text
from framedex.html.document import drawing, element

WIDTH, HEIGHT = 360, 176  # of a histogram, in its own units
LEFT, RIGHT, TOP, BOTTOM = 38, 350, 12, 134
ZERO_ROOM = 26  # for the bar of zeros, left of a logarithmic axis
ROW = 18  # of a chart with horizontal bars
BAR_END = 306
LABEL_CHARACTERS = 20
CHARACTER = 6.4  # approximate width
LONG, LONG_LEFT, LONG_RIGHT = 1000, 58, 988  # of a timeline


def histogram(shown: Histogram) -> Element:
    """Return a chart with bars on an axis of numbers, or with a horizontal bar for each value or name."""
    return _standing(shown) if shown.is_binned else _lying(shown)


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


def _standing(shown: Histogram) -> Element:
    of = shown.counted.of
    highest = max([shown.zeros, *(bar.count for bar in shown.bars)])
    step = round_step(highest / 4, whole=True)
    top = np.ceil(highest / step) * step

    def height_of(count: float) -> float:
        return float((BOTTOM - TOP) * count / top)

    parts = [element("path", d=f"M{LEFT} {BOTTOM}H{RIGHT}", class_="axis")]
    for value in np.arange(step, top + step / 2, step).tolist():
        y = BOTTOM - height_of(value)
        parts.append(element("path", d=f"M{LEFT} {_at(y)}H{RIGHT}", class_="grid"))
        parts.append(_text(LEFT - 5, y + 3.5, short_count(value), "end"))
    parts.append(_text(LEFT - 5, BOTTOM + 3.5, "0", "end"))
    left = LEFT + (ZERO_ROOM if shown.zeros else 0)
    edges = _edges(shown)
    places = _places(edges, left, logarithmic=shown.logarithmic)
    if shown.zeros:
        height = height_of(shown.zeros)
        title = f"0: {shown.zeros:,} {of}"
        parts.append(_rect(LEFT + 4, BOTTOM - max(height, 1), ZERO_ROOM - 10, max(height, 1), title, "bar"))
        parts.append(_text(LEFT + 4 + (ZERO_ROOM - 10) / 2, BOTTOM + 14, "0", "middle"))
    for bar, begin, end in zip(shown.bars, places[:-1], places[1:], strict=True):
        if bar.count:
            height = max(height_of(bar.count), 1)
            title = f"{bar.label}: {bar.count:,} {of}"
            parts.append(_rect(begin + 0.75, BOTTOM - height, max(end - begin - 1.5, 1), height, title, "bar"))
    zero = [LEFT + 4 + (ZERO_ROOM - 10) / 2] if shown.zeros else []
    parts += _ticks(edges, places, logarithmic=shown.logarithmic, taken=zero)
    axis = shown.counted.axis + (" (logarithmic)" if shown.logarithmic else "")
    parts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 8, axis, "middle name"))
    return drawing(*parts, size=(WIDTH, HEIGHT), label=alt_text(shown), class_="chart")


def _edges(shown: Histogram) -> list[float]:
    lows = [bar.low for bar in shown.bars if bar.low is not None]
    return [*lows, float(shown.bars[-1].high or 0)]


def _places(edges: Sequence[float], left: float, *, logarithmic: bool) -> list[float]:
    values = np.log10(edges) if logarithmic else np.array(edges)
    return [float(place) for place in left + (values - values[0]) / (values[-1] - values[0]) * (RIGHT - left)]


def _ticks(
    edges: Sequence[float], places: Sequence[float], *, logarithmic: bool, taken: Sequence[float]
) -> list[Element]:
    """Return the labels of an axis that fit. On a logarithmic axis, powers of ten come first.

    Args:
        edges: The numbers at the edges of the bars.
        places: The positions of the edges.
        logarithmic: Whether the axis is logarithmic.
        taken: The positions of other labels.
    """
    wanted = list(range(len(edges)))
    if not logarithmic:
        room = 14 + 5.5 * max(len(f"{edge:,g}") for edge in edges)
        wanted = wanted[:: max(1, int(np.ceil(room / (places[1] - places[0]))))]
    else:
        first_digits = [f"{edge:e}"[:3] for edge in edges]
        wanted = [n for digits in ("1.0", "2.0", "5.0") for n in wanted if first_digits[n] == digits]
        wanted = wanted if len(wanted) > 1 else list(range(len(edges)))
    taken = list(taken)
    parts = []
    for n in wanted:
        room = 4.5 * len(f"{edges[n]:,g}") + 14
        if not logarithmic or all(abs(places[n] - place) > room for place in taken):
            taken.append(places[n])
            parts.append(element("path", d=f"M{_at(places[n])} {BOTTOM}v4", class_="axis"))
            parts.append(_text(places[n], BOTTOM + 14, f"{edges[n]:,g}", "middle"))
    return parts


def short_count(value: float) -> str:
    """Return a count as a short text."""
    for unit, each in (("M", 1e6), ("k", 1e3)):
        if value >= 10 * each or (value >= each and value % each == 0):
            return f"{value / each:g}{unit}"
    return f"{value:g}"


def _lying(shown: Histogram) -> Element:
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
    """Return a chart of frames over time: sizes and start points above, the time since the previous frame below."""
    begin, end = float(shown.seconds[0]), float(shown.seconds[-1]) + max(shown.median_gap, 1e-3)
    x = LONG_LEFT + (shown.seconds - begin) / (end - begin) * (LONG_RIGHT - LONG_LEFT)
    tick = max(0.6, min(7.0, 0.7 * (LONG_RIGHT - LONG_LEFT) / len(x)))
    parts = [
        _text(LONG_LEFT - 8, 18, "bytes", "end name"),
        _text(LONG_LEFT, 18, "a frame; heights are square roots", "name"),
        *_long_gaps(shown, x),
        *_sizes(shown, x, tick),
        *_starts(shown, x + tick / 2),
        *_gaps(shown, x),
        *_seconds_axis(begin, end, 322),
    ]
    facts = shown.as_json()
    label = (
        f"{facts['shown']:,} frames of {shown.uri} from {begin:.3f} to {facts['end_seconds']:.3f} seconds:"
        f" {facts['start_points']:,} start points, {facts['open_start_points']:,} of them open;"
        f" longest time between two frames {facts['longest_gap_seconds']:.3f} seconds"
    )
    return drawing(*parts, size=(LONG, 350), label=label, class_="timeline")


SIZES_TOP, SIZES_BOTTOM = 30, 176
GAPS_TOP, GAPS_BOTTOM = 236, 316


def _long_gaps(shown: FramesTimeline, x: NDArray[np.float64]) -> list[Element]:
    found = []
    for place in np.flatnonzero(shown.long_gaps).tolist():
        if place:
            title = f"{shown.gap_seconds[place]:.3f} s without a frame"
            width = max(x[place] - x[place - 1], 1)
            found.append(_rect(x[place - 1], SIZES_TOP, width, GAPS_BOTTOM - SIZES_TOP, title, "gap"))
    return found


def _sizes(shown: FramesTimeline, x: NDArray[np.float64], tick: float) -> list[Element]:
    """Return the sizes of the frames as bars, with one path for each kind of frame."""
    roots = np.sqrt(shown.size_bytes / max(int(shown.size_bytes.max()), 1))
    heights = np.maximum(roots * (SIZES_BOTTOM - SIZES_TOP), 1.5)
    kinds = np.where(shown.is_damaged, 2, np.where(shown.is_start, 1, 0))
    parts = [element("path", d=f"M{LONG_LEFT} {SIZES_BOTTOM}H{LONG_RIGHT}", class_="axis")]
    for kind, class_ in enumerate(("frame", "start", "harmed")):
        chosen = kinds == kind
        lines = "".join(
            f"M{place:.1f} {SIZES_BOTTOM}v{-height:.1f}"
            for place, height in zip((x[chosen] + tick / 2).tolist(), heights[chosen].tolist(), strict=True)
        )
        if lines:
            parts.append(element("path", d=lines, stroke_width=_at(max(tick, 1.6 * (kind == 1))), class_=class_))
    parts += [
        _text(LONG_LEFT - 8, SIZES_BOTTOM - height * (SIZES_BOTTOM - SIZES_TOP) + 4, _bytes(share), "end")
        for share, height in ((int(shown.size_bytes.max()), 1.0), (int(shown.size_bytes.max()) // 4, 0.5))
    ]
    return parts


def _bytes(size: int) -> str:
    for unit, each in (("M", 1e6), ("k", 1e3)):
        if size >= each:
            return f"{number_text(size / each)}{unit}"
    return str(size)


def _starts(shown: FramesTimeline, x: NDArray[np.float64]) -> list[Element]:
    """Return a mark below each start point: filled if it is closed, hollow if it is open, a line if unknown."""
    paths = {"closed": "", "open": "", "unknown": ""}
    for place in np.flatnonzero(shown.is_start).tolist():
        at, kind = f"{x[place]:.1f}", int(shown.start[place])
        if kind == NOT_KNOWN:
            paths["unknown"] += f"M{at} {SIZES_BOTTOM + 4}v11"
        else:
            paths["open" if kind == OPEN else "closed"] += f"M{at} {SIZES_BOTTOM + 4}l-5 11h10z"
    return [element("path", d=path, class_=f"mark {class_}") for class_, path in paths.items() if path]


def _gaps(shown: FramesTimeline, x: NDArray[np.float64]) -> list[Element]:
    """Return the time since the previous frame as a line with steps."""
    known = np.isfinite(shown.gap_seconds)
    parts = [
        element("path", d=f"M{LONG_LEFT} {GAPS_BOTTOM}H{LONG_RIGHT}", class_="axis"),
        _text(LONG_LEFT - 8, GAPS_TOP - 14, "ms", "end name"),
        _text(LONG_LEFT, GAPS_TOP - 14, "since the frame before", "name"),
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
    levels = {longest} if shown.median_gap > 0.7 * longest else {longest, shown.median_gap}
    for level in sorted(levels):
        height = GAPS_BOTTOM - level / top * (GAPS_BOTTOM - GAPS_TOP)
        parts.append(element("path", d=f"M{LONG_LEFT} {_at(height)}H{LONG_RIGHT}", class_="grid"))
        parts.append(_text(LONG_LEFT - 8, height + 4, f"{1000 * level:.4g}", "end"))
    parts.append(element("path", d=steps, class_="steps"))
    return parts


def _seconds_axis(begin: float, end: float, y: float) -> list[Element]:
    step = round_step((end - begin) / 12)
    parts = []
    for value in np.arange(np.ceil(begin / step), np.floor(end / step) + 1).tolist():
        x = LONG_LEFT + (value * step - begin) / (end - begin) * (LONG_RIGHT - LONG_LEFT)
        parts.append(element("path", d=f"M{_at(x)} {_at(y - 6)}v5", class_="axis"))
        parts.append(_text(x, y + 11, f"{value * step:,.6g} s", "middle"))
    return parts


LANE = 20


def clips_timeline(shown: ClipsTimeline) -> Element:
    """Return a chart of clips over time: a band from the first to the last frame, with a line per frame.

    Clips that overlap are placed below each other.
    """
    begin, end = shown.begin_seconds, max(shown.end_seconds, shown.begin_seconds + 1e-3)

    def at(seconds: float) -> float:
        return LONG_LEFT + (seconds - begin) / (end - begin) * (LONG_RIGHT - LONG_LEFT)

    bottom = 12 + LANE * (1 + max((clip.lane for clip in shown.clips), default=0))
    parts = [
        _rect(LONG_LEFT, 6, LONG_RIGHT - LONG_LEFT, bottom - 6, f"{shown.uri}: {begin:.3f} to {end:.3f} s", "medium")
    ]
    for clip in shown.clips:
        y = 10 + clip.lane * LANE
        first, last = float(clip.seconds[0]), float(clip.seconds[-1])
        title = f"{clip.clip_id}: {len(clip.seconds)} frames from {first:.3f} to {last:.3f} s"
        parts.append(_rect(at(first) - 1, y, max(at(last) - at(first), 1) + 2, LANE - 6, title, "clip"))
        strokes = "".join(f"M{at(seconds):.1f} {y}v{LANE - 6}" for seconds in clip.seconds.tolist())
        parts.append(element("path", d=strokes, class_="taken"))
    parts += _seconds_axis(begin, end, bottom + 8)
    label = f"{len(shown.clips)} clips of {shown.uri} between {begin:.3f} and {end:.3f} seconds"
    return drawing(*parts, size=(LONG, bottom + 28), label=label, class_="timeline")
