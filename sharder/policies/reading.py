"""Read and check policies in YAML files, and generate the JSON Schema of such files for editors."""

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
    """Return the JSON Schema of policy files.

    Every document that `make_policy` accepts is valid according to the schema. The reverse is not true: `make_policy`
    refuses some documents that are valid according to the schema.
    """
    found = definitions([Policy, *POLICIES.values()])
    shared = {name: {"$ref": f"#/$defs/Policy/properties/{name}"} for name in found["Policy"]["properties"]}
    for name, cls in POLICIES.items():
        found[cls.__name__]["properties"] |= {"policy": {"const": name}, **shared}
    kinds = [{"const": name, "description": inspect.getdoc(cls)} for name, cls in POLICIES.items()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A policy of framedex",
        "description": "The rule that selects the frames of clips; see docs/policies.md.",
        "type": "object",
        "required": ["policy"],
        "properties": {"policy": {"description": "the kind of the policy", "oneOf": kinds}},
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
    """The parsed content of a policy file.

    Attributes:
        policy: The policy.
        filter: The condition that rows of the index and the listing must meet to be sampled. None if all are sampled.
        resolved: The document as YAML values, including all defaults. `make_policy` reads an equal policy from these
            values. The key `range` is present only if the file has it, because `range: null` has a meaning of its own:
            whole videos are sampled on purpose.
    """

    policy: Policy
    filter: pc.Expression | None = field(compare=False)  # expressions have no `==`; `resolved` contains the text
    resolved: dict[str, Any]


PolicyLike = str | Path | Mapping[str, object] | PolicyFile
SHIPPED_NAME = re.compile(r"[\w-]+")
SHIPPED = Path(str(resources.files("framedex"))) / "configs"


def find_policy(said: PolicyLike) -> PolicyFile:
    """Return the policy that an argument of a function or command specifies.

    Args:
        said: The path of a YAML file, the name of a policy that framedex includes ("fps"), a mapping, or YAML text
            ("{policy: fps, fps: 2, frames: 8}"). If a text is both the path of a file and the name of an included
            policy, the file is read.

    Raises:
        PolicyError: The policy does not exist or is not valid.
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
            "this is neither an existing file nor the name of a policy that framedex includes",
            found=said,
            allowed=", ".join(shipped),
            remedy=did_you_mean(said, shipped),
        )
    return read_policy(shipped[said])


def with_seed(said: PolicyLike, seed: int | None) -> PolicyFile:
    """Return the policy that `find_policy` finds. If `seed` is given, it replaces the policy's seed."""
    found = find_policy(said)
    return found if seed is None else make_policy(found.resolved | {"seed": seed}, where="policy")


def _inline(said: str) -> Mapping[str, object] | None:
    """Return the mapping in a YAML text, or None if the text is not a YAML mapping (for example, if it is a path).

    Raises:
        PolicyError: The text looks like a mapping and is not valid YAML.
    """
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
    """Read and check a policy file. Raises PolicyError."""
    try:
        content = _yaml_content(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise PolicyError("the policy cannot be read", where=str(path), found=error) from error
    return make_policy(content, where=str(path))


def make_policy(content: object, *, where: str) -> PolicyFile:
    """Check a parsed policy document and return its content. Raises PolicyError.

    Args:
        content: The parsed document.
        where: The location of the document, for errors.
    """
    if not isinstance(content, Mapping):
        raise PolicyError(
            "a policy must be a mapping", where=where, found=type(content).__name__, allowed="policy: fps …"
        )
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


MAX_VALUES = 10_000  # maximum number of values in a policy file; policies from papers have about fifty


def changed_settings(text: str) -> str:
    """Return the settings of a dataset's policy that differ from the defaults, as one line of YAML.

    All settings are returned for explicit clips, and for policies that this version of framedex does not support.

    Args:
        text: The content of the dataset's policy.yaml.

    Raises:
        ValueError, yaml.YAMLError: The text is not valid YAML, or has too many values.
    """
    content = _yaml_content(text)
    try:
        found = {"policy": content["policy"]} | make_policy(content, where="policy").policy.changed()
    except (PolicyError, KeyError, TypeError):
        found = without_nulls(content)
    line = yaml.safe_dump(found, sort_keys=False, allow_unicode=True, default_flow_style=True, width=10**9)
    return line.strip().removeprefix("{").removesuffix("}")


def _yaml_content(text: str) -> Any:
    """Parse a YAML text.

    Raises:
        yaml.YAMLError: The text is not valid YAML.
        ValueError: The text has more than MAX_VALUES values.
    """
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    # With nested aliases, a short text can contain billions of values.
    if node is not None and _values_in(node, {}) > MAX_VALUES:
        raise ValueError(f"the document has more than {MAX_VALUES:,} values")
    return yaml.safe_load(text)


def _values_in(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values in a YAML node after all aliases are expanded. `known` caches the number by node."""
    if id(node) not in known:
        known[id(node)] = MAX_VALUES + 1  # a collection that contains itself counts as too large
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        inner = [] if isinstance(node, yaml.ScalarNode) else parts
        known[id(node)] = 1 + sum(_values_in(part, known) for part in inner)
    return known[id(node)]


def without_nulls(value: Any) -> Any:
    """Return a YAML value without the mapping keys whose values are null, at all levels."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value
