"""Functions that read a single value of a binary column of a Parquet file, or find the byte ranges of such values.

Reading keeps at most one row group of the column in memory. A value is a byte range of the file only if the column is
not compressed. pyarrow gives the position of a column's pages, but not the positions of the values. This module
computes them from the page headers, the definition levels, and the length that precedes each value. The formats are
specified in Apache Parquet's Encodings.md and parquet.thrift, and in Thrift's compact protocol.
"""

import functools
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from framedex.core.limits import machine_bytes
from framedex.errors import StorageError
from framedex.files.parquet_parts import read_group
from framedex.storage.objects import ByteRange
from framedex.storage.places import FOOTER_BYTES, Place, Stored, state_of
from framedex.storage.reader import ObjectFile, ObjectReader, Read


def cell_name(column: str, row: int) -> str:
    """Return the name of a value within a Parquet file, such as `video/12` for row 12 of the column `video`."""
    return f"{column}/{row}"


def cell_of(name: str) -> tuple[str, int]:
    """Return (column, row) for a name that `cell_name` returned. Raises ValueError for other texts."""
    column, _, row = name.rpartition("/")
    return column, int(row)


def leaf_of(field: pa.Field) -> str | None:
    """Return the path of the Parquet column with the bytes, or None if the column has no bytes.

    The bytes are the values of a binary column, or the field `bytes` of a column of structs.
    """
    kind = field.type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return f"{field.name}.bytes" if is_binary(kind.field("bytes").type) else None
    return field.name if is_binary(kind) else None


def is_binary(kind: pa.DataType) -> bool:
    """Return whether a type is a binary type of variable length."""
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view())


def read_cell(where: Place, name: str, *, tag: str | None = None) -> memoryview:
    """Read a value of a binary column.

    Args:
        where: The Parquet file.
        name: The name of the value, as `cell_name` returns it.
        tag: The tag (`Facts.tag`) that the file must have if it is in object storage. If None, any tag is accepted.

    Raises:
        ValueError: The file is not a Parquet file, or does not have the value.
        StorageError: A request failed, or the object has another tag.
        OSError: The file cannot be read.
    """
    column, row = cell_of(name)
    state = tag if isinstance(where, Stored) else state_of(where)
    file = _opened(where, state)
    first = 0
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if row < first + rows:
            value = _column(where, state, column, number)[row - first]
            if value.is_valid and isinstance(value, pa.StructScalar):
                value = value["bytes"]
            if not value.is_valid:
                raise ValueError(f"{name} is null")
            return memoryview(value.as_buffer())
        first += rows
    raise ValueError(f"row {row} does not exist; the file has {first} rows")


@functools.lru_cache(maxsize=1)
def _opened(where: Place, state: str | None) -> pq.ParquetFile:
    """Open a Parquet file. The last opened file is cached.

    Args:
        where: The file.
        state: The tag of an object, or the result of `state_of` for a local file. It is a part of the cache key.
    """
    if not isinstance(where, Stored):
        return pq.ParquetFile(where)
    reader = ObjectReader.from_end(where.uri, FOOTER_BYTES)
    if state is not None and reader.facts.tag != state:
        raise StorageError("the object was replaced", kind="changed", where=where.uri, found=reader.facts.tag)
    return pq.ParquetFile(ObjectFile(reader))


@functools.lru_cache(maxsize=1)
def _column(where: Place, state: str | None, column: str, row_group: int) -> Any:
    """Return the values of a column in one row group. The last result is cached."""
    file = _opened(where, state)
    index = file.schema_arrow.get_field_index(column)
    leaf = leaf_of(file.schema_arrow.field(index)) if index >= 0 else None
    if leaf is None:
        raise ValueError(f"the file has no binary column {column}")
    # The result may have several chunks, since an Arrow array has at most 2 GiB. The limit is the whole memory of the
    # machine, since a row group of videos may be large.
    return read_group(file, row_group, [leaf], most_bytes=machine_bytes(), threads=True)[column]


HEADER_BYTES = 16 << 10  # maximum size of a page header; its statistics may have two values of some kilobytes
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3  # values of PageType in parquet.thrift
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8  # values of Encoding in parquet.thrift
MAX_NESTED = 16  # maximum nesting depth of a page header; valid headers have 3 levels


class ScatteredError(ValueError):
    """The values of a column are not byte ranges of the file: they are compressed, encoded, or in lists."""


def value_ranges(read: Read, chunk: pq.ColumnChunkMetaData, column: pq.ColumnSchema) -> list[ByteRange | None]:
    """Return the byte range of each value of a column in a row group. The byte range of a null is None.

    Args:
        read: The function that reads byte ranges of the file.
        chunk: The metadata of the column in the row group.
        column: The metadata of the column in the schema.

    Raises:
        ScatteredError: The values are not byte ranges of the file.
        ValueError: The pages are damaged.
    """
    if chunk.compression != "UNCOMPRESSED":
        raise ScatteredError(f"pages are compressed ({chunk.compression.lower()})")
    if column.max_repetition_level:
        raise ScatteredError("values are in lists")
    found: list[ByteRange | None] = []
    entries: list[ByteRange] = []
    for header, page in _pages(read, chunk):
        kind = header.get(1)
        if kind == DICTIONARY_PAGE:
            entries = list(_plain(read, page.start, page.stop, _field(header, 7, 1)))
        elif kind in (DATA_PAGE, DATA_PAGE_V2):
            found += _page_values(read, header, page, column.max_definition_level, entries, chunk.num_values)
            if len(found) > chunk.num_values:
                raise ValueError("the pages of a column have more values than the metadata of the column")
    if len(found) != chunk.num_values:
        raise ValueError(f"the pages of a column have {len(found)} of {chunk.num_values} values")
    return found


def _pages(read: Read, chunk: pq.ColumnChunkMetaData) -> Iterator[tuple[dict[int, Any], range]]:
    """Yield, for each page, field number → value of the page header, and the byte range of the page's content."""
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        begin = min(begin, chunk.dictionary_page_offset)
    end = begin + chunk.total_compressed_size
    while begin < end:
        head = read(begin, min(HEADER_BYTES, end - begin))
        try:
            header, length = _Compact(head).struct()
        except (IndexError, struct.error) as error:
            raise ValueError(f"the page header at byte {begin} is damaged") from error
        size = _field(header, 3)
        page = range(begin + length, begin + length + size)
        if size < 0 or page.stop > end:
            raise ValueError(f"the page at byte {begin} extends beyond the end of its column")
        yield header, page
        begin = page.stop


def _field(header: dict[int, Any], *numbers: int) -> int:
    """Return a number in a page header.

    Args:
        header: Field number → value.
        numbers: The path to the number: the field number of a struct in the header, then of a field in this struct, and
            so on.

    Raises:
        ValueError: The header does not have the field.
    """
    value: Any = header
    for number in numbers:
        value = value.get(number) if isinstance(value, dict) else None
    if not isinstance(value, int):
        raise ValueError(f"a page header does not have the field {'.'.join(map(str, numbers))}")
    return value


def _page_values(
    read: Read, header: dict[int, Any], page: range, most: int, entries: list[ByteRange], most_values: int
) -> list[ByteRange | None]:
    """Return the byte ranges of the values of a data page. The byte range of a null is None.

    Args:
        read: The function that reads byte ranges of the file.
        header: The page header, as field number → value.
        page: The byte range of the page's content in the file.
        most: The definition level of values that are not null, which is the maximum level.
        entries: The byte ranges of the values in the dictionary page. Empty if the column has no dictionary.
        most_values: The number of values of the column in the row group.
    """
    at = page.start
    if header[1] == DATA_PAGE:
        count, encoding = _field(header, 5, 1), _field(header, 5, 2)
        length = 0
        if most:
            if _field(header, 5, 3) != RLE:
                raise ScatteredError("levels are not in the encoding RLE")
            length = int.from_bytes(read(at, 4), "little")
            at += 4
    else:
        count, encoding = _field(header, 8, 1), _field(header, 8, 4)
        at += _field(header, 8, 6)  # skip the repetition levels
        length = _field(header, 8, 5)
    if not 0 <= count <= most_values:
        raise ValueError(f"the page at byte {page.start} has more values than its column")
    if not 0 <= length <= page.stop - at:
        raise ValueError(f"the levels of the page at byte {page.start} are longer than the page")
    there = np.ones(count, np.bool_)
    if most:
        there = _hybrid(read(at, length), most.bit_length(), count) == most
    at += length
    wanted = int(there.sum())
    if encoding == PLAIN:
        places = list(_plain(read, at, page.stop, wanted))
    elif encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY):
        data = read(at, page.stop - at)
        if wanted and not data:
            raise ValueError(f"the page at byte {page.start} is too short")
        numbers = _hybrid(data[1:], data[0], wanted) if wanted else np.zeros(0, np.int64)
        if len(numbers) and numbers.max() >= len(entries):
            raise ValueError(f"the page at byte {page.start} refers to values that are not in the dictionary")
        places = [entries[number] for number in numbers.tolist()]
    else:
        raise ScatteredError(f"values have encoding {encoding}, not plain")
    given = iter(places)
    return [next(given) if here else None for here in there.tolist()]


def _plain(read: Read, at: int, end: int, count: int) -> Iterator[ByteRange]:
    """Yield the byte ranges of values in the encoding PLAIN: each value follows four bytes that contain its length."""
    for _ in range(count):
        length = int.from_bytes(read(at, 4), "little")
        at += 4
        if at + length > end:
            raise ValueError(f"the value at byte {at} extends beyond the end of its page")
        yield ByteRange(offset=at, size_bytes=length)
        at += length


def _hybrid(data: bytes, width: int, count: int) -> NDArray[np.int64]:
    """Decode numbers in Parquet's hybrid of run-length encoding and bit packing, as int64 [count].

    Args:
        data: The encoded numbers.
        width: The number of bits per encoded number.
        count: How many numbers to decode.

    Raises:
        ValueError: The data is damaged.
    """
    if width > 32:
        raise ValueError(f"encoded numbers have {width} bits; at most 32 are allowed")
    parts: list[NDArray[np.int64]] = []
    at, left = 0, count
    size = (width + 7) // 8
    while left > 0:
        header, at = _varint(data, at)
        if header & 1:
            number = (header >> 1) * 8
            packed = np.frombuffer(data, np.uint8)[at : at + (header >> 1) * width]
            bits = np.unpackbits(packed, bitorder="little")
            whole = len(bits) // width if width else number
            values = bits[: whole * width].reshape(whole, width).astype(np.int64) @ (1 << np.arange(width))
            at += (header >> 1) * width
        else:
            number = header >> 1
            values = np.full(min(number, left), int.from_bytes(data[at : at + size], "little"), np.int64)
            at += size
        if not len(values):
            raise ValueError("a run of encoded numbers is empty")
        parts.append(values[:left])
        left -= len(parts[-1])
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode an unsigned number of variable length. Return (number, position after its last byte).

    Raises:
        ValueError: The data ends within the number, or the number has more than 64 bits.
    """
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number of variable length is incomplete")


class _Compact:
    """A decoder of structs in Thrift's compact protocol.

    Raises:
        IndexError, struct.error, ValueError: The data is damaged.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self, depth: int = 0) -> tuple[dict[int, Any], int]:
        """Decode a struct. Return (field number → value, position after the struct's last byte)."""
        if depth > MAX_NESTED:
            raise ValueError("a page header is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            # The upper four bits are the difference between this field's number and the previous field's number. If
            # they are 0, the field number itself follows.
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            fields[number] = self._value(head & 15, depth)
        return fields, self._at

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return struct.unpack("<d", self._bytes(8))[0]
        if kind == 8:
            return self._bytes(self._number())
        if kind in (9, 10):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._number()
            return [self._value(head & 15, depth + 1) for _ in range(min(count, len(self._data)))]
        if kind == 12:
            return self.struct(depth + 1)[0]
        raise ValueError(f"a page header has a field of type {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._data):
            raise IndexError
        return self._data[self._at - count : self._at]

    def _number(self) -> int:
        value, self._at = _varint(self._data, self._at)
        return value

    def _zigzag(self) -> int:
        value = self._number()
        return value >> 1 ^ -(value & 1)
