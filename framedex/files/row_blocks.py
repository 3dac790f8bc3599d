"""Files from which single rows of a table are read at random (docs/decisions/0005-rows-at-random.md).

A file consists of blocks of rows. A block is an Arrow record batch, compressed as one zstd frame. The layout, with
little-endian numbers:

- MAGIC.
- The blocks.
- The end: the schema as an Arrow message, and for each block uint32 [3], its compressed size, its size, and the CRC-32
  of its compressed bytes.
- The tail (`TAIL`): the size of the schema, the number of blocks, the number of rows of each block but the last, the
  number of all rows, the CRC-32 of the end, and MAGIC.
"""

import functools
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.words import size_text
from framedex.files.outputs import write_aside
from framedex.storage.places import Place, Stored, open_regular
from framedex.storage.reader import ObjectFile

MAGIC = b"FDXROWS1"
TAIL = struct.Struct("<IIIII8s")
CODEC = pa.Codec("zstd", 9)
HEADER_FIELD, COMPRESSION_FIELD = 2, 3  # the numbers of the fields Message.header and RecordBatch.compression
FRAME_BYTES = 1 << 16  # number of bytes by which a zstd frame may be larger than its content
MAX_END_BYTES = 16 << 20
FIRST_BYTES = 16 << 10  # number of bytes at the end of a file that are read first, in which most ends are

Read = Callable[[int, int], bytes]  # (offset, number of bytes) → these bytes of a file, or fewer at its end


def write_row_blocks(path: Path, table: pa.Table, rows: int) -> None:
    """Write a table into a file. The metadata of its schema are not written.

    Args:
        path: The path of the file.
        table: The table.
        rows: The number of rows of each block.
    """
    schema = pa.schema([pa.field(one.name, plain_type(one.type), one.nullable) for one in table.schema])
    parts, sizes = [MAGIC], []
    for batch in table.replace_schema_metadata(None).cast(schema).combine_chunks().to_batches(max_chunksize=rows):
        # A slice keeps bits of its neighbours, so equal rows would have different bytes. What `take` returns does not.
        content = batch.take(pa.array(np.arange(len(batch)))).serialize()
        block = CODEC.compress(content, asbytes=True)
        parts.append(block)
        sizes.append((len(block), content.size, zlib.crc32(block)))
    message = schema.serialize().to_pybytes()
    end = message + np.array(sizes, "<u4").tobytes()
    tail = TAIL.pack(len(message), len(sizes), rows, len(table), zlib.crc32(end), MAGIC)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, b"".join([*parts, end, tail]))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without dictionary encoding, also of the values in lists and structs. Nulls become booleans.

    (pyarrow 26 does not take rows of lists of nulls.)
    """
    if pa.types.is_null(kind):
        return pa.bool_()
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(plain_type(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(plain_type(kind.value_type))
    return pa.list_(plain_type(kind.value_type)) if pa.types.is_list(kind) else kind


# Tests for types whose values take as much memory as their bytes in a file. Values of other types can share memory.
PLAIN = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_temporal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)
NESTED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_struct, pa.types.is_map)


def check_type(kind: pa.DataType) -> None:
    """Raise ValueError for a type that files of rows do not have, because its values can share memory.

    Examples are views, run-end encoding, unions and dictionaries.
    """
    if isinstance(kind, pa.BaseExtensionType):
        check_type(kind.storage_type)
    elif any(is_nested(kind) for is_nested in NESTED):
        for number in range(kind.num_fields):
            check_type(kind.field(number).type)
    elif not any(is_plain(kind) for is_plain in PLAIN):
        raise ValueError(f"a column of the type {kind} in a file of rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlocks:
    """The blocks of a file, without their rows.

    Attributes:
        read: A callable that reads the file.
        schema: The columns.
        count: The number of rows.
        rows: The number of rows of each block but the last.
        begin: int64 [blocks + 1], the offset of each block in the file, and the end of the last one.
        sizes: uint32 [blocks, 2], the size of each block in memory, and its CRC-32.
    """

    read: Read
    schema: pa.Schema
    count: int
    rows: int
    begin: NDArray[np.int64]
    sizes: NDArray[np.uint32]

    def block(self, number: int, most_bytes: int) -> pa.RecordBatch:
        """Read a block.

        Args:
            number: The number of the block.
            most_bytes: The maximum size of the block in memory.

        Raises:
            ValueError: The block is damaged, or is larger.
            OSError, StorageError: The file cannot be read.
            pa.ArrowException: The block is damaged.
        """
        begin, end = self.begin[number : number + 2].tolist()
        size, checksum = self.sizes[number].tolist()
        if max(size, end - begin - FRAME_BYTES) > most_bytes:
            raise ValueError(f"block {number} takes {size_text(size)} of memory; {size_text(most_bytes)} are allowed")
        content = self.read(begin, end - begin)
        if len(content) != end - begin or zlib.crc32(content) != checksum:
            raise ValueError(f"block {number} is damaged: its checksum is wrong")
        message = CODEC.decompress(content, size)
        if _has_compressed_buffers(message):
            raise ValueError(f"block {number} has compressed buffers, whose size is not known")
        batch = pa.ipc.read_record_batch(message, self.schema)
        batch.validate(full=True)
        expected = min(self.rows, self.count - number * self.rows)
        if len(batch) != expected:
            raise ValueError(f"block {number} has {len(batch)} rows instead of {expected}")
        return batch


def open_row_blocks(where: Place) -> RowBlocks:
    """Read the end of a file.

    Raises:
        ValueError: The file is damaged, or is not a file of blocks of rows.
        OSError, StorageError: The file cannot be read.
        pa.ArrowException: The schema is damaged.
    """
    read, size = _reader(where)
    first = max(0, size - FIRST_BYTES)
    last = read(first, size - first)
    if len(last) < TAIL.size or last[-len(MAGIC) :] != MAGIC:
        raise ValueError("it is not a file of blocks of rows, or it is incomplete")
    schema_bytes, blocks, rows, count, checksum, _ = TAIL.unpack(last[-TAIL.size :])
    end_bytes = schema_bytes + 12 * blocks
    stop = size - TAIL.size
    if end_bytes > MAX_END_BYTES:
        raise ValueError(f"its end takes {size_text(end_bytes)}; {size_text(MAX_END_BYTES)} are allowed")
    if stop - end_bytes < len(MAGIC) or rows < 1 or blocks != -(-count // rows):
        raise ValueError(f"its end is damaged: {blocks:,} blocks of {rows:,} rows for {count:,} rows")
    at = stop - end_bytes - first
    end = last[at : -TAIL.size] if at >= 0 else read(stop - end_bytes, end_bytes)
    if zlib.crc32(end) != checksum:
        raise ValueError("its end is damaged: its checksum is wrong")
    table = np.frombuffer(end, "<u4", offset=schema_bytes).reshape(blocks, 3)
    begin = len(MAGIC) + np.concatenate([[0], np.cumsum(table[:, 0], dtype=np.int64)])
    if begin[-1] != stop - end_bytes:
        raise ValueError("its end is damaged: the sizes of its blocks are wrong")
    schema = _schema_of(end[:schema_bytes])
    return RowBlocks(read=read, schema=schema, count=count, rows=rows, begin=begin, sizes=table[:, 1:].copy())


@functools.lru_cache(8)
def _schema_of(message: bytes) -> pa.Schema:
    """Return the schema of an Arrow message. The files of a table have the same, which is large in memory."""
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    for field in schema:
        check_type(field.type)
    return schema


def _has_compressed_buffers(message: pa.Buffer) -> bool:
    """Return whether Arrow would decompress buffers of a record batch: the field `compression` of its metadata.

    The metadata are a flatbuffer (Arrow's Message.fbs). A table in it begins with the distance of its list of fields.
    The list has, after two sizes, the place of each field in the table, which is 0 if the table lacks the field.
    """
    data = pa.ipc.read_message(message).metadata.to_pybytes()

    def number(at: int, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(data[at : at + size], "little", signed=signed)

    def place(table: int, field: int) -> int:
        fields = table - number(table, 4, signed=True)
        at = 4 + 2 * field
        return number(fields + at, 2) if at < number(fields, 2) else 0

    table = number(0, 4)
    header = table + place(table, HEADER_FIELD)
    return place(header + number(header, 4), COMPRESSION_FIELD) != 0


def _reader(where: Place) -> tuple[Read, int]:
    """Return a callable that reads a file, and the size of the file in bytes.

    A local file is opened for each call, so that any number of files can be in use.
    """

    def read(offset: int, length: int) -> bytes:
        if not isinstance(where, Stored):
            with open_regular(where) as file:
                return _read_at(file, offset, length)
        return _read_at(stored, offset, length)

    if isinstance(where, Stored):
        stored = where.open()
        return read, stored.seek(0, os.SEEK_END)
    return read, os.stat(where).st_size


def _read_at(file: BinaryIO | ObjectFile, offset: int, length: int) -> bytes:
    file.seek(offset)
    found = bytearray()
    while len(found) < length and (more := file.read(length - len(found))):
        found += more
    return bytes(found)
