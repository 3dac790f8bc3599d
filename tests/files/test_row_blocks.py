"""Files from which single rows of a table are read at random."""

from __future__ import annotations

import struct
import zlib
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


def one_block(path: Path, message: pa.Buffer, schema: pa.Schema, rows: int) -> None:
    """Write a file of one block, whatever its message is."""
    block = pa.Codec("zstd").compress(message, asbytes=True)
    kept = schema.serialize().to_pybytes()
    end = kept + struct.pack("<III", len(block), message.size, zlib.crc32(block))
    tail = struct.pack("<IIIII8s", len(kept), 1, rows, rows, zlib.crc32(end), b"FDXROWS1")
    path.write_bytes(b"FDXROWS1" + block + end + tail)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_buffers_that_would_be_decompressed_are_refused(codec: str, tmp_path: Path) -> None:
    batch = pa.record_batch({"zeros": np.zeros(10_000_000, np.int64)})
    for compression, match in ((codec, "compressed buffers"), (None, "memory")):
        written = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(written, batch.schema, options=options) as stream:
            stream.write_batch(batch)
        reader = pa.ipc.MessageReader.open_stream(written.getvalue())
        reader.read_next_message()
        one_block(tmp_path / "a.rows", reader.read_next_message().serialize(), batch.schema, len(batch))
        with pytest.raises(ValueError, match=match):
            open_row_blocks(tmp_path / "a.rows").block(0, MOST)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.list_(pa.string_view()),
        pa.list_view(pa.int64()),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.struct([("a", pa.dictionary(pa.int32(), pa.string()))]),
        pa.sparse_union([pa.field("a", pa.int32())]),
    ],
    ids=str,
)
def test_types_whose_values_share_memory_are_refused(kind: pa.DataType, tmp_path: Path) -> None:
    batch = pa.record_batch({"number": [1]})
    one_block(tmp_path / "a.rows", batch.serialize(), pa.schema([("column", kind)]), 1)
    with pytest.raises(ValueError, match="a column of the type"):
        open_row_blocks(tmp_path / "a.rows")


def test_what_is_larger_than_allowed_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.rows"
    kept = pa.schema([("a", pa.int64())]).serialize().to_pybytes()
    end = kept + struct.pack("<III", 800_000_000, 100, 0)
    with open(path, "wb") as file:  # a sparse file
        file.seek(len(b"FDXROWS1") + 800_000_000)
        file.write(end + struct.pack("<IIIII8s", len(kept), 1, 1, 1, zlib.crc32(end), b"FDXROWS1"))
    with pytest.raises(ValueError, match="of memory"):
        open_row_blocks(path).block(0, MOST)
    with open(path, "r+b") as file:
        file.seek(-28, 2)
        file.write(struct.pack("<I", 700_000_000))
    with pytest.raises(ValueError, match="its end takes 700 MB"):
        open_row_blocks(path)


def test_rows_of_unusual_types_are_written_and_read(tmp_path: Path) -> None:
    columns = {
        "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
        "nothing": pa.nulls(2),
        "nothings": pa.array([[None], None], pa.list_(pa.null())),
        "time": pa.array([1, None], pa.timestamp("us", "UTC")),
        "nested": pa.array([[{"a": ["x"]}], []], pa.list_(pa.struct([("a", pa.list_(pa.string()))]))),
    }
    write_row_blocks(tmp_path / "a.rows", pa.table(columns), 1)
    found = pa.Table.from_batches(all_blocks(tmp_path / "a.rows"))
    assert found.to_pylist() == pa.table(columns).to_pylist()
