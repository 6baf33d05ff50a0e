"""Writing LitData."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

import numpy as np

from ...data.writer import WriteOptions
from ...errors import OptionError, SchemaError
from ...schema import Schema, Tensor
from ...schema.columns import I64, U8, Columns, Ragged
from ..base.shards.reader import MAX_SHARD_BYTES, METADATA_KEY, ShardMetadata, records_of
from ..base.shards.writer import ShardsWriter
from . import cells, layout
from .layout import BATCH_SAMPLES, LEVELS, TOKENS, TREES, pack, packed_chunk
from .reader import LitDataReader

CHUNK_BYTES = 1 << 26


class LitDataWriter(ShardsWriter):
    """Writes folders of LitData; samples are dicts of the fields.

    ``chunk_bytes``: the most bytes of the samples of a chunk, 64 MiB; so much is held in memory.
    ``compression``: none or ``zstd``, with a level as in ``zstd:7``. ``compression_level``: what is packed by
    itself: a ``chunk``, which older versions of LitData read, too, a ``batch`` of 256 samples, or each
    ``sample``.
    ``tokens``: write the one field, an array with one axis, for LitData's ``TokensLoader``.
    """

    _title = "LitData"

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        compression: str | None = None,
        compression_level: str = "chunk",
        tokens: bool = False,
    ) -> None:
        if not 1 <= chunk_bytes <= MAX_SHARD_BYTES:
            raise OptionError(f"chunk_bytes is a number of bytes from 1 to 2**32 - 1, not {chunk_bytes}")
        if compression_level not in LEVELS:
            raise OptionError(f"compression_level is one of {', '.join(LEVELS)}, not {compression_level!r}")
        self._limit = chunk_bytes
        self._compression = None if compression in (None, "none") else compression
        self._pack = None if self._compression is None else pack(self._compression)
        self._level = compression_level
        self._tokens = tokens
        super().__init__(path, schema, options)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._columns = layout.columns_of(self.schema)
        self._flags = ShardMetadata.of(self.schema).missing
        self._first = 0
        if self._tokens:
            self._check_tokens()
        if self.base is not None:
            self._continue(self.base)
        self._open_shards(state)

    def _check_tokens(self) -> None:
        field = next(iter(self.schema.values()))
        array = isinstance(field, Tensor) and len(field.shape) == 1 and not field.optional
        if len(self._columns) != 1 or not array or self._columns[0][1].form != "flat":
            raise SchemaError(
                "tokens=True is for datasets with one field, an array with one axis: choose it with --fields",
                path=self.path, field=next(iter(self.schema)),
            )  # fmt: skip

    def _continue(self, base: Any) -> None:
        """Write on as what is there was written: LitData has one compression for all chunks."""
        assert isinstance(base, LitDataReader)
        index = base.index
        pickled = next((name for name, column in base.columns if column.form == "pickle"), None)
        if pickled is not None:
            raise self.cannot_append(f"its field {pickled!r} holds pickles")
        if base.columns != index.columns:
            raise self.cannot_append("its chunks are Arrow tables, and hold more keys than its first sample")
        if base.missing is None and self._flags is not None:
            raise self.cannot_append("its samples have no value that says what is missing")
        algorithm, present = (
            compression and compression.partition(":")[0]
            for compression in (self._compression, index.compression)
        )
        if algorithm not in (None, present):
            raise self.cannot_append("its chunks are not packed, and LitData packs all of them or none")
        self._columns, self._flags, self._tokens = base.columns, base.missing, index.bare
        if present is not None:
            self._pack = self._pack or pack(str(index.compression))
        self._compression, self._level = index.compression, index.level
        names = (re.search(r"chunk-\d+-(\d{1,9})\D", chunk.name) for chunk in index.chunks)
        self._first = max((int(name[1]) for name in names if name), default=-1) + 1

    # -- samples ---------------------------------------------------------------------------------------

    def _packed(self, columns: Columns) -> Ragged:
        values = self._cells(columns, cells.packed)
        return values[0] if self._tokens else records_of(values, [True] * len(values))

    # -- chunks ----------------------------------------------------------------------------------------

    def _file_name(self, number: int) -> str:
        packed = f".{self._compression}" if self._compression is not None and self._level == "chunk" else ""
        return f"chunk-0-{self._first + number}{packed}.bin"

    def _shard(self, number: int, head: list[U8], sizes: I64) -> tuple[U8, dict[str, Any]]:
        records = np.concatenate(self._records)
        unpacked = data = np.concatenate([*head, records])
        if self._pack is not None:
            data = packed_chunk(self._level, self._pack, head, records, sizes)
        tokens = len(records) // np.dtype(str(self._columns[0][1].dtype)).itemsize if self._tokens else None
        entry = {
            "filename": self._file_name(number), "chunk_size": len(sizes), "dim": tokens,
            "chunk_bytes": len(unpacked if self._level == "chunk" else data), "crc": zlib.crc32(data.data),
        }  # fmt: skip
        return data, entry

    def _index(self, lines: list[str]) -> str:
        entries = [json.loads(line) for line in lines]
        # So that the index changes whenever the bytes do.
        sums = [entry.pop("crc") for entry in entries]
        if self.base is not None:
            assert isinstance(self.base, LitDataReader)
            document = dict(self.base.index.document)
            document["chunks"] = [*document["chunks"], *entries]
            return layout.document(document, sums)
        inside = self._level if self._compression is not None and self._level != "chunk" else None
        config = {
            "chunk_bytes": self._limit, "chunk_size": None, "compression": self._compression,
            "compression_level": inside, "ipc_compression": None,
            "compression_batch_size": BATCH_SAMPLES if inside == "batch" else None,
            "data_format": [column.text for _, column in self._columns],
            "data_spec": layout.spec_of(None if self._tokens else [name for name, _ in self._columns]),
            "types": None, "encryption": None, "item_loader": TOKENS if self._tokens else TREES,
        }  # fmt: skip
        return layout.document(
            {"chunks": entries, "config": config, METADATA_KEY: ShardMetadata.of(self.schema).document}, sums
        )
