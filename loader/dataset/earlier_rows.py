"""Read single rows of datasets before version 3.10, which have no files for this: from row groups of Parquet files."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from framedex.files.parquet_parts import part_path, read_group
from framedex.sharder.schema import CLIPS_FOLDER, RECIPES_FOLDER
from framedex.storage.places import Place, parquet_file


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRows:
    """The rows of a part of `clips` or `media`, like `RowBlocks`.

    Attributes:
        files: The part of `clips` and of `recipes`, or of `media`.
        schema: The columns.
        count: The number of rows.
        rows: The number of rows of each block but the last.
    """

    files: list[pq.ParquetFile]
    schema: pa.Schema
    count: int
    rows: int

    def block(self, number: int, most_bytes: int) -> pa.RecordBatch:
        """Read a block, as `RowBlocks.block` does."""
        batches = []
        for file in self.files:
            group, first = divmod(number * self.rows, group_rows(file))
            table = read_group(file, group, most_bytes=most_bytes).combine_chunks()
            batches.append(table.to_batches()[0].slice(first, self.rows))
        if len(batches) == 1:
            return batches[0]
        if not batches[0]["clip_id"].equals(batches[1]["clip_id"]):
            raise ValueError("the tables clips and recipes are from different datasets")
        return pa.RecordBatch.from_arrays([batch.to_struct_array() for batch in batches], schema=self.schema)


def open_earlier_rows(dataset: Place, folder: str, number: int) -> EarlierRows:
    """Open a part of `clips` together with its part of `recipes`, or a part of `media`.

    Raises:
        ValueError: The row groups are not as framedex writes them.
        OSError, StorageError: A file cannot be read.
        pa.ArrowException: A file is damaged.
    """
    folders = (folder, RECIPES_FOLDER) if folder == CLIPS_FOLDER else (folder,)
    files = [parquet_file(part_path(dataset / one, number)) for one in folders]
    counts = {file.metadata.num_rows for file in files}
    if len(counts) > 1:
        raise ValueError("the tables clips and recipes have different numbers of rows")
    schema = files[0].schema_arrow.remove_metadata()
    if folder == CLIPS_FOLDER:
        if any(len(file.schema_arrow.get_all_field_indices("clip_id")) != 1 for file in files):
            raise ValueError("the tables clips and recipes do not have one column clip_id each")
        structs = [pa.struct(list(file.schema_arrow)) for file in files]
        schema = pa.schema([*zip(("clip", "recipe"), structs, strict=True)])
    return EarlierRows(files=files, schema=schema, count=counts.pop(), rows=min(map(group_rows, files)))


def group_rows(file: pq.ParquetFile) -> int:
    """Return the number of rows of each row group but the last. Raises ValueError if others have another number."""
    groups: list[int] = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    most: int = max([1, *groups])
    rows = sum(groups)
    if rows != file.metadata.num_rows or any(one != most for one in groups[:-1]):
        raise ValueError(f"{file.metadata.num_rows:,} rows in row groups of {groups[:10]} rows")
    return most
