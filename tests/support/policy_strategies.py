"""Hypothesis strategies for policy documents and for the videos that they sample."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import strategies as st

from tests.support.policies import timeline

# Gaps between frames: after a gap of zero, a frame has the same pts as the one before.
GAPS = st.lists(st.integers(0, 200), min_size=1, max_size=60).filter(any)
VIDEOS = st.builds(timeline, GAPS, every_start=st.integers(1, 9))
RATES = st.fractions(Fraction(1, 5), 40, max_denominator=1001).map(str)
TIMES = st.fractions(0, 20, max_denominator=1001)
DISTANCES = st.lists(st.fractions(-3, 3, max_denominator=1001).map(str), min_size=1, max_size=5)
LENGTHS = st.integers(1, 9)
ENDS = st.fixed_dictionaries(
    {},
    optional={
        "choose": st.sampled_from(["nearest", "previous", "next"]),
        "last": st.sampled_from(["pad", "partial", "drop"]),
        "short": st.sampled_from(["skip", "pad"]),
        "pad": st.sampled_from(["none", "constant", "edge", "ends", "reflect_101", "reflect_1001"]),
    },
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_clips": st.integers(1, 5),
        "max_seconds": st.fractions(Fraction(1, 100), 40, max_denominator=1001).map(str),
    },
)
TERMS = st.builds(lambda ends, limits: ends | limits, ENDS, LIMITS)
SEGMENT = st.fixed_dictionaries({"fps": RATES, "frames": st.integers(1, 4)}, optional={"offset": TIMES.map(str)})
ROUNDINGS = st.sampled_from(["half_up", "half_even", "down"])
SPREADS = st.sampled_from(["centres", "ends", "starts"])
# Bounds between which some multiple lies.
BOUNDS = st.builds(
    lambda multiple, least, more: {"multiple": multiple, "least_frames": least, "max_frames": least + multiple + more},
    *(st.integers(1, 5), st.integers(1, 9), st.integers(0, 9)),
).flatmap(lambda bounds: st.sets(st.sampled_from(sorted(bounds))).map(lambda names: {n: bounds[n] for n in names}))
AT_RATE = st.fixed_dictionaries({"fps": RATES}, optional={"frames": LENGTHS, "start_seconds": TIMES.map(str)})
OWN = {
    "fps": st.one_of(
        AT_RATE,
        st.builds(
            lambda own, bounds: own | bounds,
            st.fixed_dictionaries({"fps": RATES}, optional={"start_seconds": TIMES.map(str)}),
            BOUNDS,
        ),
    ),
    "segments": st.fixed_dictionaries(
        {"segments": st.lists(SEGMENT, min_size=1, max_size=3)},
        optional={"every_seconds": st.integers(1, 4), "start_seconds": TIMES.map(str)},
    ),
    "stride": st.fixed_dictionaries({"stride": LENGTHS}, optional={"frames": LENGTHS, "start": st.integers(0, 70)}),
    "frames": st.fixed_dictionaries({"frames": st.lists(st.integers(0, 70), min_size=1, max_size=8)}),
    "seconds": st.fixed_dictionaries({"seconds": st.lists(TIMES.map(str), min_size=1, max_size=8)}),
    "keyframes": st.fixed_dictionaries({}, optional={"every": LENGTHS, "frames": LENGTHS}),
    "windows": st.one_of(
        st.fixed_dictionaries(
            {"frames": LENGTHS}, optional={"stride": LENGTHS, "step": LENGTHS, "start": st.integers(0, 70)}
        ),
        st.fixed_dictionaries(
            {"frames": LENGTHS, "fps": RATES}, optional={"step_seconds": RATES, "start_seconds": TIMES.map(str)}
        ),
    ),
    "around": st.one_of(
        st.fixed_dictionaries({"seconds": DISTANCES}, optional={"every": LENGTHS}),
        st.fixed_dictionaries(
            {"frames": st.lists(st.integers(-20, 20), min_size=1, max_size=5)}, optional={"every": LENGTHS}
        ),
    ),
    "uniform": st.one_of(
        st.fixed_dictionaries(
            {"frames": LENGTHS}, optional={"by": st.sampled_from(["time", "number"]), "spread": SPREADS}
        ),
        st.fixed_dictionaries(
            {
                "frames": LENGTHS,
                "by": st.just("number"),
                "spread": st.just("ends"),
                "rounding": ROUNDINGS,
            }
        ),
        st.builds(
            lambda own, bounds: own | bounds,
            st.fixed_dictionaries(
                {"fps": RATES}, optional={"by": st.sampled_from(["time", "number"]), "spread": SPREADS}
            ),
            BOUNDS,
        ),
        st.fixed_dictionaries({"clips": LENGTHS, "frames": LENGTHS, "fps": RATES}, optional={"spread": SPREADS}),
        st.fixed_dictionaries({"clips": LENGTHS, "frames": LENGTHS, "stride": LENGTHS}, optional={"spread": SPREADS}),
        st.fixed_dictionaries(
            {"clips": LENGTHS, "frames": LENGTHS, "stride": LENGTHS, "spread": st.just("ends"), "rounding": ROUNDINGS}
        ),
    ),
}
WAYS = st.one_of(
    st.fixed_dictionaries({"fps": RATES}, optional={"frames": LENGTHS}),
    st.fixed_dictionaries({"stride": LENGTHS}, optional={"frames": LENGTHS}),
    st.fixed_dictionaries({"uniform": LENGTHS}),
)
