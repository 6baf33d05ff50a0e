"""Iceberg: Parquet files, manifests that list them, and a metadata file for every state of the table.

The package pyiceberg reads and writes the metadata; the rows are read from the files themselves, row group by
row group. A table that we write has its catalog, an SQLite file, in its own folder.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ...storage import join, tree
from ..base.format import Capabilities, Format, Probe
from .reader import IcebergReader
from .table import METADATA, SCHEME
from .upkeep import IcebergUpkeep
from .writer import IcebergWriter


def sniff(probe: Probe) -> bool:
    if f"{METADATA}/" not in probe.names:
        return False
    return any(name.endswith(".metadata.json") for name in tree.names(join(probe.path, METADATA)))


FORMAT = Format(
    name="iceberg",
    title="Apache Iceberg",
    suffixes=(".iceberg",),
    spec="https://iceberg.apache.org/spec/",
    reader=IcebergReader,
    writer=IcebergWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    extra="iceberg",
    scheme=SCHEME,
    upkeep=IcebergUpkeep,
    notes="any snapshot or time; append and overwrite as one transaction; any pyiceberg catalog",
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
        ecosystem=("Spark", "Trino", "Flink", "pyiceberg", "DuckDB"),
    ),
)
