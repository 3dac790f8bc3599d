"""The policies by name, and the JSON Schema of a policy's file, which editors use to complete and check it."""

from __future__ import annotations

import inspect

from framedex.sharder.configuration.json_schema import Json, definitions
from framedex.sharder.policies.by_number import FramesPolicy, KeyframesPolicy, StridePolicy
from framedex.sharder.policies.by_row import PerRowPolicy
from framedex.sharder.policies.by_time import FpsPolicy, SecondsPolicy, SegmentsPolicy
from framedex.sharder.policies.spread import RandomPolicy, UniformPolicy
from framedex.sharder.policies.terms import Terms
from framedex.sharder.policies.windows import AroundPolicy, WindowsPolicy

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
    "around": AroundPolicy,
    "per_row": PerRowPolicy,
}


def policy_schema() -> Json:
    """Return the schema of a policy's file.

    Everything that `make_policy` accepts is valid by the schema; the reverse does not hold.
    """
    found = definitions([Terms, *POLICIES.values()])
    shared = {name: {"$ref": f"#/$defs/Terms/properties/{name}"} for name in found["Terms"]["properties"]}
    for name, cls in POLICIES.items():
        found[cls.__name__]["properties"] |= {"policy": {"const": name}, **shared}
    kinds = [{"const": name, "description": inspect.getdoc(cls)} for name, cls in POLICIES.items()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A policy of framedex",
        "description": "Which frames make a clip; see docs/policies.md.",
        "type": "object",
        "required": ["policy"],
        "properties": {"policy": {"description": "how frames are chosen", "oneOf": kinds}},
        "allOf": [
            {
                "if": {"properties": {"policy": {"const": name}}, "required": ["policy"]},
                "then": {"$ref": f"#/$defs/{cls.__name__}"},
            }
            for name, cls in POLICIES.items()
        ],
        "$defs": found,
    }
