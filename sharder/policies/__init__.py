"""Sampling policies: which frames make a clip. Pure functions of timestamps, in one registry, read from YAML."""

from framedex.sharder.filters import matches, parse_filter
from framedex.sharder.policies.ranges import is_empty
from framedex.sharder.policies.reading import PolicyFile, make_policy, read_policy
from framedex.sharder.policies.records import Missed, Policy, Sampled, Sampling, Track
from framedex.sharder.policies.registry import POLICIES
from framedex.sharder.splits import Split

__all__ = [
    "POLICIES",
    "Missed",
    "Policy",
    "PolicyFile",
    "Sampled",
    "Sampling",
    "Split",
    "Track",
    "is_empty",
    "make_policy",
    "matches",
    "parse_filter",
    "read_policy",
]
