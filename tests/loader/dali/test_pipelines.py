"""Movies: a batch is decoded in parts."""

from __future__ import annotations

import pytest

from framedex.loader.dali import pipelines


@pytest.mark.parametrize("count", [1, 15, 16, 17, 22, 64, 65])
def test_parts_of_a_batch_are_all_of_it_and_alike(count: int) -> None:
    parts = [range(count)[part] for part in pipelines.even_parts(count, 16)]
    assert [number for part in parts for number in part] == list(range(count))
    lengths = [len(part) for part in parts]
    assert max(lengths) <= 16
    assert max(lengths) - min(lengths) <= 1
    assert len(lengths) == -(-count // 16)
