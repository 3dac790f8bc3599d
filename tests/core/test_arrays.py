"""Arrow arrays become numpy arrays, without pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from framedex.core.column_rules import as_numpy

TYPES = [pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string()]


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("values", [[], [1, 0, 1, 1, 0, 0, 1, 0, 1], [1]], ids=len)
def test_values_and_types_are_those_of_to_numpy(kind: pa.DataType, values: list[int]) -> None:
    convert = {pa.string(): str, pa.bool_(): bool}.get(kind, int)
    given: list[Any] = list(map(convert, values))
    array = pa.array(given, kind)
    for part in (array, array[1:], array[:-1]):
        expected = part.to_numpy(zero_copy_only=False)
        found = as_numpy(part)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_pandas_is_not_imported() -> None:
    script = """
import sys
import numpy as np
import pyarrow as pa
from framedex.core.column_rules import as_numpy
for kind in (pa.int64(), pa.float64()):
    numbers = np.arange(3, dtype=kind.to_pandas_dtype())
    as_numpy(pa.Array.from_buffers(kind, 3, [None, pa.py_buffer(numbers)]))
as_numpy(pa.Array.from_buffers(pa.bool_(), 3, [None, pa.py_buffer(b"\\x05")]))
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
