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

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...data.writer import WriteOptions
from ...errors import OptionError
from ...schema import EVERY_KIND, Schema
from ...schema.columns import I64, U8, Columns, Ragged, as_bytes
from ..base.format import Capabilities, Format
from ..base.shards.reader import MAX_SHARD_BYTES, ShardMetadata, records_of
from ..base.shards.writer import ShardsWriter
from . import cells, layout
from .layout import check_hashes, digest, pack, sniff
from .reader import MdsReader

SHARD_BYTES = 1 << 26


class MdsWriter(ShardsWriter):
    """Writes folders of MDS.

    ``size_limit``: the most bytes of a shard before it is compressed, 64 MiB; so much is held in memory.
    ``compression``: none, ``zstd``, ``gz``, ``bz2``, ``br`` or ``snappy``, with a level as in ``zstd:7``.
    ``hashes``: hashes of every file in the index, such as ``sha1`` or ``xxh64``, which ``verify`` compares.
    """

    _title = "MDS"

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        size_limit: int = SHARD_BYTES,
        compression: str | None = None,
        hashes: Sequence[str] = (),
    ) -> None:
        if not 1 <= size_limit <= MAX_SHARD_BYTES:
            raise OptionError(f"size_limit is a number of bytes from 1 to 2**32 - 1, not {size_limit}")
        self._limit = size_limit
        self._compression = None if compression in (None, "none") else compression
        self._pack = None if self._compression is None else pack(self._compression)
        self._hashes = check_hashes(hashes)
        super().__init__(path, schema, options)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._columns = layout.columns_of(self.schema)
        self._flags = ShardMetadata.of(self.schema).missing
        self._first = 0
        if self.base is not None:
            self._continue(self.base)
        self._config = {
            "version": 2, "format": "mds", "compression": self._compression, "hashes": self._hashes,
            "size_limit": self._limit, "column_names": [name for name, _ in self._columns],
            "column_encodings": [column.text for _, column in self._columns],
            "column_sizes": [column.size for _, column in self._columns],
        }  # fmt: skip
        self._text = json.dumps(self._config, sort_keys=True).encode()
        self._begun, self._each = 8 + len(self._text), 4
        self._fixed = sum(column.size or 0 for _, column in self._columns)
        self._open_shards(state)

    def _continue(self, base: Any) -> None:
        assert isinstance(base, MdsReader)
        self._columns = base.columns
        if base.missing is None and self._flags is not None:
            raise self.cannot_append("its samples have no column that says what is missing")
        self._flags = base.missing
        names = [file.name for shard in base.index.shards for file in (shard.raw, shard.packed) if file]
        matches = (re.fullmatch(r"shard\.(\d{1,9})\.mds.*", name) for name in names)
        self._first = max((int(match[1]) for match in matches if match), default=-1) + 1

    # -- samples ---------------------------------------------------------------------------------------

    def _packed(self, columns: Columns) -> Ragged:
        stored = self._cells(columns, cells.packed)
        return records_of(stored, [column.size is None for _, column in self._columns])

    # -- shards ----------------------------------------------------------------------------------------

    def _between(self) -> bytes:
        return self._text

    def _raw_name(self, number: int) -> str:
        return f"shard.{self._first + number:05d}.mds"

    def _file_name(self, number: int) -> str:
        raw = self._raw_name(number)
        return raw if self._compression is None else f"{raw}.{self._compression.partition(':')[0]}"

    def _shard(self, number: int, head: list[U8], sizes: I64) -> tuple[U8, dict[str, Any]]:
        data = np.concatenate([*head, *self._records])
        entry: dict[str, Any] = {**self._config, "samples": len(sizes), "zip_data": None}
        entry["raw_data"] = self._described(self._raw_name(number), data)
        if self._pack is not None:
            data = as_bytes(self._pack(data.tobytes()))
            entry["zip_data"] = self._described(self._file_name(number), data)
        return data, entry

    def _described(self, name: str, data: U8) -> dict[str, Any]:
        return {
            "basename": name,
            "bytes": len(data),
            "hashes": {hash_name: digest(hash_name, data) for hash_name in self._hashes},
        }

    def _index(self, lines: list[str]) -> str:
        entries: list[str] = []
        note = ShardMetadata.of(self.schema).document
        if self.base is not None:
            assert isinstance(self.base, MdsReader)
            note = None if self.base.index.note is None else self.base.index.note.document
            entries = [json.dumps(entry, sort_keys=True) for entry in layout.read_entries(self.base.path)]
        return "".join(layout.document([*entries, *lines], note))


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
