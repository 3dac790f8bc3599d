"""The policies by name."""

from __future__ import annotations

from framedex.sharder.policies.by_number import FramesPolicy, KeyframesPolicy, StridePolicy
from framedex.sharder.policies.by_row import PerRowPolicy
from framedex.sharder.policies.by_time import FpsPolicy, SecondsPolicy, SegmentsPolicy
from framedex.sharder.policies.spread import RandomPolicy, UniformPolicy
from framedex.sharder.policies.terms import Terms
from framedex.sharder.policies.windows import WindowsPolicy

POLICIES: dict[str, type[Terms]] = {
    "fps": FpsPolicy,
    "segments": SegmentsPolicy,
    "stride": StridePolicy,
    "frames": FramesPolicy,
    "seconds": SecondsPolicy,
    "keyframes": KeyframesPolicy,
    "windows": WindowsPolicy,
    "random": RandomPolicy,
    "uniform": UniformPolicy,
    "per_row": PerRowPolicy,
}
