"""Files from which single rows of a table are read at random."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from framedex.files.row_blocks import open_row_blocks, write_row_blocks

MOST = 1 << 24


def table(rows: int) -> pa.Table:
    """Return rows of many types, some of them null."""
    numbers = range(rows)
    return pa.table(
        {
            "name": [f"clip-{number}" for number in numbers],
            "frames": pa.array([[*range(number % 7)] for number in numbers], pa.list_(pa.int32())),
            "mask": pa.array([[True, None] if number % 2 else None for number in numbers], pa.list_(pa.bool_())),
            "seconds": pa.array([None if number % 3 else number / 7 for number in numbers], pa.float64()),
            "states": pa.array([[b"", b"\x00" * (number % 5)] for number in numbers], pa.list_(pa.binary())),
            "kind": pa.array(["video", "images"] * rows, pa.string())[:rows].dictionary_encode(),
        }
    )


def all_blocks(path: Path) -> list[pa.RecordBatch]:
    """Read a file."""
    blocks = open_row_blocks(path)
    return [blocks.block(number, MOST) for number in range(len(blocks.sizes))]


@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 1000])
def test_blocks_have_the_rows_of_the_table(tmp_path: Path, rows: int) -> None:
    whole = table(rows)
    plain = whole.set_column(5, "kind", whole["kind"].cast(pa.string()))
    write_row_blocks(tmp_path / "a.rows", whole, 32)
    blocks = open_row_blocks(tmp_path / "a.rows")
    assert (blocks.count, len(blocks.sizes)) == (rows, -(-rows // 32))
    for number in np.random.default_rng(1).permutation(len(blocks.sizes)).tolist():
        found = pa.Table.from_batches([blocks.block(number, MOST)])
        assert found.equals(plain.slice(32 * number, 32))


def test_equal_tables_have_equal_files(tmp_path: Path) -> None:
    whole = table(100)
    write_row_blocks(tmp_path / "a.rows", whole, 32)
    pieces = [whole.slice(at, 7) for at in range(0, 100, 7)]
    write_row_blocks(tmp_path / "b.rows", pa.concat_tables(pieces), 32)
    write_row_blocks(tmp_path / "c.rows", table(150).slice(0, 100), 32)
    assert (tmp_path / "a.rows").read_bytes() == (tmp_path / "b.rows").read_bytes()
    assert (tmp_path / "a.rows").read_bytes() == (tmp_path / "c.rows").read_bytes()


def test_damage_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.rows"
    write_row_blocks(path, table(70), 32)
    content = path.read_bytes()
    for at in np.random.default_rng(2).integers(8, len(content), 300).tolist():
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        with pytest.raises((ValueError, OSError, pa.ArrowException)):
            all_blocks(path)
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError):
            open_row_blocks(path)


def test_a_block_takes_no_more_memory_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a.rows"
    write_row_blocks(path, pa.table({"zeros": pa.array([[0] * 100_000], pa.list_(pa.int64()))}), 32)
    assert path.stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"block 0 takes .* of memory; 1.02 kB are allowed"):
        open_row_blocks(path).block(0, 1024)
