"""Delta Lake: a folder of Parquet files, and in ``_delta_log`` what every transaction added and removed.

The package deltalake reads the log and writes to it. The rows are read from the files themselves, row group
by row group. What our fields are stands in the metadata of the table's columns.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ..base.format import Capabilities, Format, Probe
from .reader import LOG, DeltaReader
from .upkeep import DeltaUpkeep
from .writer import DeltaWriter


def sniff(probe: Probe) -> bool:
    return f"{LOG}/" in probe.names


FORMAT = Format(
    name="delta",
    title="Delta Lake",
    suffixes=(".delta",),
    spec="https://github.com/delta-io/delta/blob/master/PROTOCOL.md",
    reader=DeltaReader,
    writer=DeltaWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    extra="delta",
    upkeep=DeltaUpkeep,
    notes="any version or time; append and overwrite as one transaction; read row group by row group",
    can=Capabilities(
        random_access=True,
        compression=("snappy", "gzip", "brotli", "lz4", "zstd"),
        compressed="page",
        column_pruning=True,
        concurrent_writers=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("Spark", "deltalake", "Polars", "DuckDB", "Trino"),
    ),
)
