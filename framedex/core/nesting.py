"""How deeply the user's columns may be nested: what reads and writes them recurses, and ends at some depth in a crash."""

from __future__ import annotations

import re

import pyarrow as pa

# Levels. Parquet's reader takes a schema of 100, and a list is up to three of them; orjson stops at 254, and pyarrow's reader of
# JSON overflows its stack further down.
MOST_NESTED = 32
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def json_depth(text: str) -> int:
    """Return how deeply a JSON text is nested, an object or list of plain values being 1. Of what is no JSON, something."""
    depth = deepest = 0
    if text.count("[") + text.count("{") <= MOST_NESTED:  # not worth a closer look
        return text.count("[") + text.count("{")
    for token in _TOKENS.finditer(text):
        if token[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in "]}":
            depth -= 1
    return deepest


def type_depth(kind: pa.DataType) -> int:
    """Return how deeply values of a type are nested, 0 for plain ones."""
    depth, kinds = 0, [kind]
    while kinds := [kind.field(number).type for kind in kinds for number in range(kind.num_fields)]:
        depth += 1
    return depth
