"""Apache Parquet, columns in row groups.

A row group keeps some thousand samples, column by column, packed; the footer at the end of the file says
where. Only the columns that are asked for are read. Reading in a quasi-random order decodes each row group
once; in a random order, of more than the cache holds, a sample costs the pages that it is in. A folder of
files is one dataset, and folders called NAME=VALUE in it are fields.

What a field is stands in the metadata of its column; see the guide for how fields are stored, and for what
the types of other programs become. Images are bytes, or Hugging Face's struct of bytes and path.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ..base.format import Capabilities, Format
from .reader import ParquetReader, sniff
from .writer import ParquetWriter

FORMAT = Format(
    name="parquet",
    title="Apache Parquet",
    suffixes=(".parquet", ".pq"),
    spec="https://parquet.apache.org/docs/file-format/",
    reader=ParquetReader,
    writer=ParquetWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=None,
    extra="arrow",
    notes="only the columns asked for are read; folders with partitions; zstd by default",
    can=Capabilities(
        random_access=True,
        compression=("snappy", "gzip", "brotli", "lz4", "zstd"),
        compressed="page",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("pyarrow", "pandas", "Polars", "DuckDB", "Spark", "Hugging Face"),
    ),
)
