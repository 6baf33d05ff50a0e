"""Folders of shards of records, and an index of them (MDS, LitData): what both share.

Little-endian. A shard begins with a u32, N, the number of its samples, and N + 1 u32: the places in the file
where samples begin, and where the last one ends. A sample is a u32 for each column whose size varies, that
size, and then the cells, one after another. A shard may be packed in any way; it is unpacked as a whole, into
memory, and read there.

What neither format has words for stands in its index, as metadata of our own (:mod:`.index`): the schema, and
the column whose bytes say which of the optional fields a sample lacks.
"""

from __future__ import annotations

from . import arrays, pil
from .index import (
    INDEX,
    MAX_SHARD_BYTES,
    METADATA_KEY,
    ShardMetadata,
    count,
    index_head,
    optional_fields,
    read_index,
)
from .reader import Inner, ShardsReader
from .runs import Opened, Shards, numbers_at, records_of, table_of, wrong
from .writer import ShardsWriter

__all__ = [
    "INDEX",
    "MAX_SHARD_BYTES",
    "METADATA_KEY",
    "Inner",
    "Opened",
    "ShardMetadata",
    "Shards",
    "ShardsReader",
    "ShardsWriter",
    "arrays",
    "count",
    "index_head",
    "numbers_at",
    "optional_fields",
    "pil",
    "read_index",
    "records_of",
    "table_of",
    "wrong",
]
