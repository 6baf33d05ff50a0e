"""LitData, the optimized datasets of Lightning: a folder with ``index.json`` and ``chunk-0-0.bin``, …

Little-endian. A chunk is: u32 N; N + 1 u32 offsets from the start of the file, where each sample begins and
the last one ends; the samples. A sample is a u32 for each of its values, that size, and then the values, one
after another. A set of tokens (``TokensLoader``) has samples without sizes: they are the tokens.

``index.json`` is ``{"chunks": […], "config": {…}, "updated_at": "…"}``. Of each chunk it says the file, how
many samples and bytes it has, and how many tokens; for all of them how they are packed (Zstandard, of whole
chunks or inside of them), how each value is encoded, and which tree of dicts, lists and tuples they are in.
Samples that are dicts of texts, numbers, bytes and lists may be rows of an Arrow table at the end of a chunk.

What LitData has no words for stands in the index under ``batchplant``, which LitData passes over: the schema,
and the value, ``__missing__``, whose bytes say which of the optional fields a sample lacks.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ..base.format import Capabilities, Format
from .layout import sniff
from .reader import LitDataReader
from .writer import LitDataWriter

FORMAT = Format(
    name="litdata",
    title="LitData (Lightning)",
    suffixes=(".litdata",),
    spec="https://github.com/Lightning-AI/litData",
    reader=LitDataReader,
    writer=LitDataWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    notes="chunks of 64 MiB and an index.json; pickled values are refused, and never unpickled",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("zstd",),
        compressed="file",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        max_size="4 GiB a sample",
        ecosystem=("LitData", "PyTorch Lightning", "LitGPT"),
    ),
)
