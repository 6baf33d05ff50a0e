"""Lance: a folder of columns in fragments, and a manifest for each version of the table.

The package pylance reads and writes it: rows in any order, of any version, of other stores. Fields that lie
in blob columns are read out of the data files themselves, byte range by byte range, where the blobs lie in
them; so are those that the writer stores. What our fields are stands in the metadata of the table's columns.

The footers of data files and the lists of deleted rows are checked before pylance sees them. Beyond those it
allocates what the pages claim, and ends the process where it cannot: compare the checksums of files that may
be damaged before opening them.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ..base.format import Capabilities, Format, Probe
from .reader import DATA, VERSIONS, LanceReader
from .upkeep import LanceUpkeep
from .writer import LanceWriter


def sniff(probe: Probe) -> bool:
    return f"{VERSIONS}/" in probe.names and (f"{DATA}/" in probe.names or "_transactions/" in probe.names)


FORMAT = Format(
    name="lance",
    title="Lance",
    suffixes=(".lance",),
    spec="https://lance.org/format/",
    reader=LanceReader,
    writer=LanceWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    extra="lance",
    upkeep=LanceUpkeep,
    notes="any version, tag or time; append and overwrite as one transaction; blobs by byte range",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        concurrent_writers=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("pylance", "LanceDB", "DuckDB", "Ray", "Spark"),
    ),
)
