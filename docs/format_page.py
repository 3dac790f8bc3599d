"""docs/format.md: the tables of an index and of a dataset, from their schemas."""

from __future__ import annotations

import pyarrow as pa

from docs.results import NOTE
from framedex.indexer import schema as index_schema
from framedex.records import medium
from framedex.sharder import schema as dataset_schema
from framedex.sharder.writing.whole import ROWS_AT_ONCE


def table(schema: pa.Schema) -> str:
    """Return a schema as a Markdown table."""
    lines = ["| column | type | null | unit | meaning |", "| --- | --- | --- | --- | --- |"]
    for field in schema:
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        null = "yes" if field.nullable else ""
        doc = metadata.get("doc", "").replace("|", "\\|")
        kind = str(field.type).replace("list<element: ", "list<").replace(" not null", "")
        lines.append(f"| `{field.name}` | `{kind}` | {null} | {metadata.get('unit', '')} | {doc} |")
    return "\n".join(lines)


def format_page() -> str:
    """Return the content of docs/format.md."""
    return f"""{NOTE}
# File formats

Both formats are directories of Parquet files that any Parquet reader opens. A part becomes visible by rename, so a
reader never sees half of one. Footers carry the schema version and the versions of the libraries that wrote them;
readers accept every minor version of their own major one.

## The index

    INDEX/
      index.json                 format, schema version, generation, and the root that uris are relative to
      listing.parquet            who was listed, with the user's own columns
      videos/part-000000.parquet a row a medium, failures included
      frames/part-000000.parquet a row a medium: its packets; row n belongs to row n of the videos part

A medium that is probed again gets a row in a later part, and that one counts. Schema version:
{index_schema.SCHEMA_VERSION}.

### videos

{table(index_schema.VIDEOS)}

### frames

Lists are in decode order, one element a packet, stored as differences (`DELTA_BINARY_PACKED`) in row groups of about
{index_schema.FRAMES_PER_ROW_GROUP:,} packets.

{table(index_schema.FRAMES)}

Frames are numbered from 0 in presentation order: packets without the bits *hidden*, *skipped* and *continues*, \
sorted by
`pts`, equal ones in decode order.

### listing

{table(index_schema.LISTING)}

## The dataset

    DATASET/
      dataset.json                format, schema version, root, generation of the index, clips in each part; written \
last
      policy.yaml                 the policy as resolved, defaults included
      clips/part-000000.parquet   what is wanted
      recipes/part-000000.parquet how to get it; row n belongs to row n of the clips part
      media/part-000000.parquet   the sources, once each
      shards/clips-000000.tar     with --pack: samples, see docs/shards.md; an index for DALI beside each (.idx)
      shards.parquet              with --pack: the tars
      failures.parquet            clips that cannot be made, and why
      fields.parquet              one row per clip: what every clip has, from version 3.5 on
      columns.parquet             one row per clip: the user's columns of single values, from version 3.5 on

A dataset is self-contained: loading needs it and the sources, not the index. Parts have
{dataset_schema.CLIPS_PER_PART:,} clips in row groups of {dataset_schema.CLIPS_PER_ROW_GROUP}, so that one clip is one
small read. Schema version: {dataset_schema.SCHEMA_VERSION}.

### clips

{table(dataset_schema.CLIPS)}

### recipes

A part leaves out the nullable columns of which none of its rows has a value.

{table(dataset_schema.RECIPES)}

A clip's packets lie in its ranges one after the other, in decode order. Each run is decoded by a session of its own
(or after a flush), and preceded by the one of the medium's `states` that `run_state` names. Where a clip
has a `shard`, ranges point into that tar, and its medium is described as its packets lie there.

Readers check what they read, and raise a FormatError with the file, the row and the column: types of columns, values \
(the rules of the
records in `framedex/records`), lengths of lists that belong together, ranges within their file, and \
ranks: those of a run are
a permutation of its packets' numbers, wanted frames have them in their own order (of images, each has one), and none \
is reordered further
than `media.reorder_depth`. Two packets of a run that swapped their ranks within that show when the clip is decoded, \
as pictures come in the
order of their ranks. What no column shows: a `position` that names another packet between the same neighbours, and \
ranges that lead to other
bytes of the same length which decode. `framedex verify` shows them, by `clips.md5` where the index has hashes, else \
by the source.
A picture has at most {medium.MAX_PIXELS:,} pixels, a decoder holds back at most {medium.MAX_REORDERED} \
pictures, and a clip's
frames must fit into the machine's memory.

### media

The columns of the index's `videos` that decoding needs: \
{", ".join(f"`{name}`" for name in dataset_schema.MEDIA.names)}.

### failures

{table(dataset_schema.FAILURES)}

### shards

{table(dataset_schema.SHARDS)}

### fields and columns

Both repeat what `clips` and `media` hold, in row groups of {ROWS_AT_ONCE:,} clips: a column of a million clips is one
read. In `dataset.json`, `columns` names the columns of columns.parquet, and `labels` has the numbers of a column's
values (`framedex shard --labels`). Datasets of earlier versions lack these files, and their columns are read from the
parts.

{table(dataset_schema.FIELDS)}
"""
