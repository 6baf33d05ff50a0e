"""Apache Arrow IPC and Feather, columns as they lie in memory.

A file holds record batches of some thousand samples. In one that is not compressed, numbers, tensors, text,
bytes and images are used where they lie, without decoding anything; of compressed batches the columns that
are asked for are unpacked. Feather (version 2) is the same format under another name. A stream has no footer,
and its messages are walked through once. The folders that `save_to_disk` of Hugging Face's datasets leaves
hold streams, and are opened as they are.

What a field is stands in the metadata of its column, as in Parquet.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ..base.capabilities import Capabilities
from ..base.format import Format
from .reader import ArrowReader, sniff
from .writer import ArrowWriter

FORMAT = Format(
    name="arrow",
    title="Apache Arrow IPC, Feather",
    suffixes=(".arrow", ".feather", ".ipc", ".arrows"),
    spec="https://arrow.apache.org/docs/format/Columnar.html",
    reader=ArrowReader,
    writer=ArrowWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=None,
    extra="arrow",
    notes="uncompressed files are used in place; streams; folders of Hugging Face's save_to_disk",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("lz4", "zstd"),
        compressed="column",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("pyarrow", "pandas", "Polars", "DuckDB", "Hugging Face"),
    ),
)
