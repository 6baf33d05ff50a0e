"""MDS, the shards of MosaicML Streaming: a folder with ``index.json`` and ``shard.00000.mds``, …

Little-endian. A shard is: u32 N; N + 1 u32 offsets from the start of the file, where each sample begins and
the last one ends; JSON that says again which columns there are; the samples. A sample is a u32 for each
column whose size varies, that size, and then the cells, one after another. A shard may be compressed as a
whole.

``index.json`` is ``{"version": 2, "shards": […]}``. Of each shard it says the columns (in order of name, with
their encodings and fixed sizes), how many samples there are, and the names, sizes and hashes of its files.

What MDS has no words for stands in the index under ``batchplant``, which Streaming passes over: the schema,
and the column, ``__missing__``, whose bytes say which of the optional fields a sample lacks.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ..base.capabilities import Capabilities
from ..base.format import Format
from .layout import sniff
from .reader import MdsReader
from .writer import MdsWriter

FORMAT = Format(
    name="mds",
    title="MDS (MosaicML Streaming)",
    suffixes=(".mds",),
    spec="https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html",
    reader=MdsReader,
    writer=MdsWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    notes="shards of 64 MiB and an index.json; pickled columns are read as bytes, and never unpickled",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("zstd", "gz", "bz2", "br", "snappy"),
        compressed="file",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        max_size="4 GiB a sample",
        ecosystem=("MosaicML Streaming", "LLM Foundry"),
    ),
)
