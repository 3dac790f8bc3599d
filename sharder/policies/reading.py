"""Read a policy from a YAML file, check it, and describe such files by a JSON Schema for editors."""

import inspect
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import yaml

from framedex.core.words import did_you_mean
from framedex.errors import PolicyError
from framedex.sharder.configuration.filters import parse_filter
from framedex.sharder.configuration.parameters import Json, definitions, located, record, shown
from framedex.sharder.policies import by_time, spread
from framedex.sharder.policies.policy import Policy

POLICIES: dict[str, type[Policy]] = {
    "fps": by_time.FpsPolicy,
    "segments": by_time.SegmentsPolicy,
    "stride": by_time.StridePolicy,
    "frames": by_time.FramesPolicy,
    "seconds": by_time.SecondsPolicy,
    "keyframes": by_time.KeyframesPolicy,
    "windows": by_time.WindowsPolicy,
    "random": spread.RandomPolicy,
    "uniform": spread.UniformPolicy,
    "around": by_time.AroundPolicy,
    "per_row": by_time.PerRowPolicy,
}


def policy_schema() -> Json:
    """Return the schema of a policy's file.

    Everything that `make_policy` accepts is valid by the schema; the reverse does not hold.
    """
    found = definitions([Policy, *POLICIES.values()])
    shared = {name: {"$ref": f"#/$defs/Policy/properties/{name}"} for name in found["Policy"]["properties"]}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """The content of a policy's file.

    Attributes:
        policy: The policy.
        filter: Which rows of the index and the listing are sampled; None for all.
        resolved: The file as plain values with all defaults. Reading them gives an equal record. The key `range` is
            there only if the file has it, because an empty one means whole videos.
    """

    policy: Policy
    filter: pc.Expression | None = field(compare=False)  # `==` of expressions is an expression; resolved holds its text
    resolved: dict[str, Any]


PolicyLike = str | Path | Mapping[str, object] | PolicyFile
SHIPPED_NAME = re.compile(r"[\w-]+")
SHIPPED = Path(str(resources.files("framedex"))) / "configs"


def find_policy(said: PolicyLike) -> PolicyFile:
    """Return the policy that a value refers to.

    Args:
        said: A YAML file, the name of a policy that comes with framedex ("fps"), or a policy itself: a mapping, or its
            YAML ("{policy: fps, fps: 2, frames: 8}"). A file of that name takes precedence over a policy that comes
            with framedex.

    Raises:
        PolicyError: There is no such policy, or it is not valid.
    """
    if isinstance(said, PolicyFile):
        return said
    if isinstance(said, Mapping):
        return make_policy(said, where="policy")
    if isinstance(said, Path):
        return read_policy(said)
    if (inline := _inline(said)) is not None:
        return make_policy(inline, where="policy")
    if os.path.exists(said) or not SHIPPED_NAME.fullmatch(said):
        return read_policy(Path(said))
    shipped = {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}
    if said not in shipped:
        raise PolicyError(
            "there is no such file, and no policy of this name comes with framedex",
            found=said,
            allowed=", ".join(shipped),
            remedy=did_you_mean(said, shipped),
        )
    return read_policy(shipped[said])


def with_seed(said: PolicyLike, seed: int | None) -> PolicyFile:
    """Return the policy that a value refers to, with another seed if one is given. Raises PolicyError."""
    found = find_policy(said)
    return found if seed is None else make_policy(found.resolved | {"seed": seed}, where="policy")


def _inline(said: str) -> Mapping[str, object] | None:
    """Return the mapping that a text means as YAML, or None if it is another text, for instance a path."""
    if ":" not in said:
        return None
    try:
        content = _yaml_content(said)
    except (ValueError, yaml.YAMLError, RecursionError):
        if "\n" in said or said.lstrip().startswith("{"):
            raise PolicyError("the policy is not valid YAML", where="policy", found=shown(said)) from None
        return None
    return content if isinstance(content, Mapping) else None


def read_policy(path: Path) -> PolicyFile:
    """Return the checked content of a policy's YAML file. Raises PolicyError."""
    try:
        content = _yaml_content(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise PolicyError("the policy cannot be read", where=str(path), found=error) from error
    return make_policy(content, where=str(path))


def make_policy(content: object, *, where: str) -> PolicyFile:
    """Return the checked content of a parsed policy document. Raises PolicyError."""
    if not isinstance(content, Mapping):
        raise PolicyError("a policy is a mapping", where=where, found=type(content).__name__, allowed="policy: fps …")
    name = content.get("policy")
    if not isinstance(name, str) or name not in POLICIES:
        remedy = did_you_mean(name, POLICIES) if isinstance(name, str) else None
        raise PolicyError("unknown policy", where=where, found=shown(name), allowed=", ".join(POLICIES), remedy=remedy)
    policy = record(POLICIES[name], {key: value for key, value in content.items() if key != "policy"}, where)
    resolved = {"policy": name} | policy.plain()
    if "range" not in content:
        del resolved["range"]
    try:
        filter_ = None if policy.filter is None else parse_filter(policy.filter)
    except PolicyError as error:
        raise located(error, where) from error
    return PolicyFile(policy=policy, filter=filter_, resolved=resolved)


MAX_VALUES = 10_000  # the policies of papers have some fifty


def changed_settings(text: str) -> str:
    """Return the settings of a dataset's policy that differ from the defaults, as one line of YAML.

    For a policy that this version does not know, and for explicit clips, return all settings.

    Args:
        text: The content of the dataset's policy.yaml.

    Raises:
        ValueError, yaml.YAMLError: It is not YAML.
    """
    content = _yaml_content(text)
    try:
        found = {"policy": content["policy"]} | make_policy(content, where="policy").policy.changed()
    except (PolicyError, KeyError, TypeError):
        found = without_nulls(content)
    line = yaml.safe_dump(found, sort_keys=False, allow_unicode=True, default_flow_style=True, width=10**9)
    return line.strip().removeprefix("{").removesuffix("}")


def _yaml_content(text: str) -> Any:
    """Return the content of a YAML text. Raises ValueError or yaml.YAMLError, also for too many values."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    # Aliases of aliases let a short text stand for billions of values.
    if node is not None and _values_in(node, {}) > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES:,} values")
    return yaml.safe_load(text)


def _values_in(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values of YAML with all aliases written out. `known` caches that number by node."""
    if id(node) not in known:
        known[id(node)] = MAX_VALUES + 1  # in case a collection contains itself
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        inner = [] if isinstance(node, yaml.ScalarNode) else parts
        known[id(node)] = 1 + sum(_values_in(part, known) for part in inner)
    return known[id(node)]


def without_nulls(value: Any) -> Any:
    """Return a YAML value without the keys that are null."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value
