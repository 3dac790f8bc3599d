"""The queries and the data of the charts in a report, which show distributions of durations, rates, costs and so on."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framedex.auditor.tables.database import Database
from framedex.auditor.tables.subject import Kind

Form = Literal["numbers", "values", "names"]
MAX_VALUES = 12  # maximum number of bars for values or names. Rarer values or names are counted together
MAX_BINS = 16  # maximum number of bins. Narrower bars would be hard to point at
COMMON = 0.8  # values get one bar each if the most frequent ones have at least this share of all values
DECADES = 2  # the axis is logarithmic if the values span more decades than this
FINE = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # lower edges of the bins in a decade, if there are at most three decades
COARSE = (1.0, 2.0, 5.0)  # lower edges of the bins in a decade, if there are more decades
STEPS = (1.0, 2.0, 2.5, 5.0)  # widths of bins on a linear axis, up to a power of ten
DIGITS = 1e-9  # relative difference that is regarded as a rounding error


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The definition of a chart.

    Attributes:
        name: The name of the chart.
        title: The title of the chart.
        form: `numbers` if numbers are counted in bins, `values` if each of few distinct numbers has a bar, and `names`
            if each distinct text has a bar.
        axis: The label of the axis, which is the quantity with its unit.
        of: What is counted, `media` or `clips`.
        sql: The query. The column `v` has the values. If `form` is `names`, the column `n` has the count of each value.
        needs: An optional column, as `view.column`, that the chart needs. None if it needs no optional column.
    """

    name: str
    title: str
    form: Form
    axis: str
    of: str
    sql: str
    needs: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a chart.

    Attributes:
        label: The label of the bar.
        count: The number of media or clips.
        low, high: The half-open interval of a bin. None if the bar counts a single value or name.
    """

    label: str
    count: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The data of a chart.

    Attributes:
        counted: The definition of the chart.
        bars: The bars.
        total: The number of all media or clips in the chart.
        logarithmic: Whether the numeric axis is logarithmic.
        zeros: The number of values that are 0, if the axis is logarithmic.
        others: The number of distinct values or names without a bar.
        other_count: The number of media or clips with these values or names.
        least, median, greatest: The minimum, median and maximum of all values. None for names.
    """

    counted: Counted
    bars: list[Bar]
    total: int
    logarithmic: bool = False
    zeros: int = 0
    others: int = 0
    other_count: int = 0
    least: float | None = None
    median: float | None = None
    greatest: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the histogram as JSON values."""
        facts = asdict(self)
        del facts["counted"]
        return {"title": self.counted.title, "axis": self.counted.axis, "of": self.counted.of} | facts


def _numbers(name: str, title: str, axis: str, query: str, *, of: str = "media", form: Form = "numbers") -> Counted:
    return Counted(name=name, title=title, form=form, axis=axis, of=of, sql=f"SELECT {query}")


def _names(name: str, title: str, value: str, view: str, *, of: str = "media", needs: str | None = None) -> Counted:
    sql = f"SELECT {value} AS v, count(*) AS n FROM {view} GROUP BY 1 ORDER BY n DESC, v"
    return Counted(name=name, title=title, form="names", axis="", of=of, sql=sql, needs=needs)


_of_clips = functools.partial(_numbers, of="clips")

SIZE = "width || ' × ' || height"
USABLE = "videos WHERE status = 'ok'"
VIDEOS = f"{USABLE} AND kind = 'video'"
TIMED = f"{VIDEOS} AND pts_source <> 'counted'"  # counted timestamps have no unit
RATE, GOP = "average frames per second", "packets from one random access point to the next"
SPAN, COST = "seconds from a clip's first frame to its last", "decoded packets per wanted frame"
COSTLY = "clips WHERE kind = 'video' AND distinct_frames > 0"
CHARTS: dict[Kind, tuple[Counted, ...]] = {
    "index": (
        _numbers("durations", "Durations", "seconds", f"duration_seconds AS v FROM {TIMED}"),
        _numbers("frame_rates", "Frame rates", RATE, f"round(frame_rate, 2) AS v FROM {TIMED}", form="values"),
        _numbers("gops", "Mean GOP lengths", GOP, f"mean_gop AS v FROM {VIDEOS}"),
        _numbers("longest_gops", "Longest GOPs", "packets of a medium's longest GOP", f"max_gop AS v FROM {VIDEOS}"),
        _numbers(
            "decode_cost", "Decode cost", "packets needed for one random frame", f"seek_packets AS v FROM {VIDEOS}"
        ),
        _numbers(
            "bit_rates",
            "Bit rates",
            "Mbit/s of the video stream",
            f"bit_rate / 1e6 AS v FROM {TIMED} AND frame_count > 1",
        ),
        _names("picture_sizes", "Picture sizes", SIZE, USABLE),
        _names("codecs", "Codecs", "codec", USABLE),
        _numbers("file_sizes", "File sizes", "megabytes", f"size_bytes / 1e6 AS v FROM {USABLE}"),
    ),
    "dataset": (
        _of_clips("clip_lengths", "Clip lengths", "frames per clip", "wanted_frames AS v FROM clips", form="values"),
        _of_clips("spans", "Spans", SPAN, "end_seconds - begin_seconds AS v FROM clips WHERE pts_source <> 'counted'"),
        _of_clips(
            "padding",
            "Padding",
            "percent of a clip's frames",
            "100 * padded_frames / wanted_frames AS v FROM clips WHERE wanted_frames > 0",
        ),
        _of_clips("decode_cost", "Decode cost", COST, f"decoded_packets / distinct_frames AS v FROM {COSTLY}"),
        _of_clips("bytes", "Bytes read", "megabytes per clip", "bytes_read / 1e6 AS v FROM clips"),
        _numbers(
            "clips_per_video",
            "Clips per video",
            "clips of one medium",
            "count(*) AS v FROM clips GROUP BY media_id",
            form="values",
        ),
        _names("picture_sizes", "Picture sizes", SIZE, "clips", of="clips"),
        _names("splits", "Splits", "CAST(split AS VARCHAR)", "clips", needs="clips.split", of="clips"),
        _names("labels", "Labels", "CAST(label AS VARCHAR)", "clips", needs="clips.label", of="clips"),
    ),
}


def histograms(db: Database) -> list[Histogram]:
    """Query the data of all charts of an index or a dataset, and return the charts that are not empty."""
    made = []
    for counted in CHARTS[db.audited.kind]:
        if counted.needs is not None:
            view, column = counted.needs.split(".")
            if column not in db.columns(view):
                continue
        answer = db.arrow(counted.sql).read_all()
        if counted.form == "names":
            found = of_names(counted, answer["v"].to_pylist(), answer["n"].to_pylist())
        else:
            values = answer["v"].drop_null().to_numpy().astype(np.float64)
            found = of_numbers(counted, values[np.isfinite(values)])
        if found.total:
            made.append(found)
    return made


def of_names(counted: Counted, names: Sequence[str | None], counts: Sequence[int]) -> Histogram:
    """Return a histogram with one bar per name, in the given order. Only the first MAX_VALUES names have a bar."""
    bars = [Bar(label="(none)" if name is None else name, count=n) for name, n in zip(names, counts, strict=True)]
    rest = bars[MAX_VALUES:]
    return Histogram(
        counted=counted,
        bars=bars[:MAX_VALUES],
        total=sum(counts),
        others=len(rest),
        other_count=sum(bar.count for bar in rest),
    )


def of_numbers(counted: Counted, values: NDArray[np.float64]) -> Histogram:
    """Return a histogram of finite numbers, float64 [n]."""
    if not len(values):
        return Histogram(counted=counted, bars=[], total=0)
    values = round_values(values)
    facts: dict[str, Any] = {
        "counted": counted,
        "total": len(values),
        "least": float(values.min()),
        "median": float(np.median(values)),
        "greatest": float(values.max()),
    }
    distinct, counts = np.unique(values, return_counts=True)
    shown = np.arange(len(distinct))
    if len(distinct) > MAX_VALUES:
        shown = np.sort(np.argsort(-counts, kind="stable")[: MAX_VALUES - 1])  # one bar counts the others
    shown_count = int(counts[shown].sum())
    if len(distinct) == 1 or (counted.form == "values" and shown_count >= COMMON * len(values)):
        pairs = zip(distinct[shown].tolist(), counts[shown].tolist(), strict=True)
        bars = [Bar(label=f"{v:,.9g}", count=n) for v, n in pairs]
        return Histogram(bars=bars, others=len(distinct) - len(shown), other_count=len(values) - shown_count, **facts)
    positive = distinct[distinct > 0]
    is_logarithmic = distinct[0] >= 0 and len(positive) > 1 and positive[-1] > 10**DECADES * positive[0]
    edges = logarithmic_edges(positive[0], positive[-1]) if is_logarithmic else linear_edges(values)
    inside = values[values > 0] if is_logarithmic else values
    # Each bin includes its lower edge. The last edge is above all values, so every value is in a bin.
    in_bins = np.bincount(np.searchsorted(edges, inside, side="right") - 1, minlength=len(edges) - 1)
    bars = [
        Bar(label=f"{low:,.9g} – {high:,.9g}", count=count, low=low, high=high)
        for (low, high), count in zip(itertools.pairwise(edges.tolist()), in_bins.tolist(), strict=True)
    ]
    return Histogram(bars=bars, logarithmic=bool(is_logarithmic), zeros=len(values) - len(inside), **facts)


def round_values(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round numbers to nine significant digits. Numbers close to 0 become 0.

    A number is close to 0 if its magnitude is less than 1e-9, or less than 1e-9 times the greatest magnitude.
    """
    least = DIGITS * max(1.0, float(np.abs(values).max()))
    distinct, places = np.unique(values, return_inverse=True)  # so that each distinct value is formatted only once
    rounded = np.array([float(f"{value:.9g}") for value in distinct.tolist()])[places]
    return np.where(np.abs(rounded) < least, 0.0, rounded)


def linear_edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64 [bins + 1], evenly spaced round numbers as edges of bins. The last edge is above all values.

    If all values are integers, the edges are integers as well.
    """
    low, high = float(values.min()), float(values.max())
    whole = bool((values == np.round(values)).all())
    step = round_step((high - low) / (MAX_BINS - 1), whole=whole)
    first, last = np.floor(low / step), np.floor(high / step) + 1
    return _rounded(np.arange(first, last + 1) * step)


def logarithmic_edges(low: float, high: float) -> NDArray[np.float64]:
    """Return float64 [bins + 1], the edges of bins on a logarithmic axis. The last edge is above `high`.

    The edges are round numbers, three or six per decade.
    """
    decades = np.log10(high / low)
    mantissas = FINE if decades <= 3 else COARSE
    powers = np.arange(np.floor(np.log10(low)) - 1, np.ceil(np.log10(high)) + 2)
    edges = _rounded((10.0 ** powers[:, None] * np.array(mantissas)).ravel())
    first = int(np.searchsorted(edges, low, side="right")) - 1
    last = int(np.searchsorted(edges, high, side="right"))
    return edges[first : last + 1]


def _rounded(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([float(f"{edge:.12g}") for edge in edges])


def round_step(least: float, *, whole: bool = False) -> float:
    """Return the smallest round number (1, 2, 2.5 or 5 times a power of ten) that is at least `least`.

    Args:
        least: The lower bound.
        whole: Whether the result must be an integer.
    """
    least = max(least, 1.0) if whole else least
    power = 10.0 ** np.floor(np.log10(least))
    steps = [float(f"{scale * step:.9g}") for scale in (power, 10 * power) for step in STEPS]
    return next(step for step in steps if step >= least and (not whole or step == round(step)))
