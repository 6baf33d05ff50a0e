"""Buffer of rows until they fill a row group (Parquet) or a record batch (Arrow IPC).

The end of a row group depends only on the rows, neither on batches nor on checkpoints: a checkpoint saves the
buffered rows instead of writing them early. So the same rows give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import _native
from ....codecs.arrow import plain_batch, pyarrow
from ....schema.columns import I64, U8, Columns, Ragged

if TYPE_CHECKING:
    import pyarrow as pa

# Limit of one array of texts or bytes; longer columns stay in several arrays.
MAX_ARRAY_BYTES = (1 << 31) - 1


class RowBuffer:
    """Record batches of one file, and the bytes of their cells."""

    def __init__(self, schema: pa.Schema) -> None:
        self.bytes = 0
        self.batches: list[pa.RecordBatch] = []
        # Batches and bytes that the last checkpoint saved.
        self.saved = self.saved_bytes = 0
        # Bytes of the rows that were taken last.
        self.taken_bytes = 0
        self._schema = schema

    def fill(self, batch: pa.RecordBatch, sizes: I64, limit: int) -> Iterator[pa.Table]:
        """Add rows of these sizes; yield a table whenever the rows have ``limit`` bytes."""
        ends = np.cumsum(sizes)
        start = done = 0
        while start < batch.num_rows:
            end = min(int(np.searchsorted(ends, done + limit - self.bytes)) + 1, batch.num_rows)
            self.add(batch.slice(start, end - start), int(ends[end - 1]) - done)
            start, done = end, int(ends[end - 1])
            if self.bytes >= limit:
                yield self.take()

    def add(self, batch: pa.RecordBatch, size: int) -> None:
        self.batches.append(batch)
        self.bytes += size

    def take(self) -> pa.Table:
        """Return all rows as a table and empty the buffer."""
        pa = pyarrow()
        batches, size = self.batches, self.bytes
        self.batches, self.bytes, self.saved, self.saved_bytes = [], 0, 0, 0
        self.taken_bytes = size
        if not batches or size > MAX_ARRAY_BYTES:
            return pa.Table.from_batches(batches, self._schema)
        # Pages end at the end of an array; and bits behind the last row of a slice belong to other rows.
        columns = [
            pa.concat_arrays([batch.column(number) for batch in batches])
            for number in range(len(self._schema))
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)


class SavedRows:
    """Buffered rows as checkpoints save them, in the folder of a writer.

    A row is saved once, unless earlier saved rows have been written since: then a second file replaces the
    first, which belongs to the last checkpoint until the next one is complete.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._turn = 0
        self._size = 0
        # Number of the buffer, bytes of cells, bytes in the file, their CRC-32C.
        self._parts: list[list[int]] = []

    def _path(self, turn: int) -> Path:
        return self._folder / f"pending-{turn % 2}"

    def save(self, buffers: Sequence[RowBuffer]) -> dict[str, Any]:
        """Save new rows of the buffers; return the state to restore them with."""
        turn, size, parts = self._turn, self._size, list(self._parts)
        if any(not buffers[number].saved for number, *_ in parts):
            turn, size, parts = 1 - turn, 0, []
        anew = not parts
        path = self._path(turn)
        with open(path, "wb" if anew else "r+b") as out:
            out.truncate(size)
            out.seek(size)
            for number, buffer in enumerate(buffers):
                start, start_bytes = (0, 0) if anew else (buffer.saved, buffer.saved_bytes)
                if start < len(buffer.batches):
                    data = self._stream(buffer.batches[start:])
                    out.write(data.data)
                    size += len(data)
                    parts.append([number, buffer.bytes - start_bytes, len(data), _native.crc32c(data)])
        # The state changes only once everything is written.
        self._turn, self._size, self._parts = turn, size, parts
        for buffer in buffers:
            buffer.saved, buffer.saved_bytes = len(buffer.batches), buffer.bytes
        return {"turn": turn, "parts": parts}

    def _stream(self, batches: Sequence[pa.RecordBatch]) -> U8:
        pa = pyarrow()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        return np.frombuffer(sink.getvalue(), np.uint8)

    def restore(self, state: dict[str, Any], buffers: Sequence[RowBuffer]) -> None:
        """Refill empty buffers; ValueError if the file is not the saved one."""
        self._turn = state["turn"]
        path = self._path(self._turn)
        for number, cell_bytes, size, checksum in state["parts"]:
            data = _read(path, self._size, size)
            if _native.crc32c(data) != checksum:
                raise ValueError(f"{path.name} does not match its checksum")
            buffer = buffers[number]
            with pyarrow().ipc.open_stream(data) as stream:
                buffer.batches += [plain_batch(batch, self._schema) for batch in stream]
            buffer.bytes += cell_bytes
            buffer.saved, buffer.saved_bytes = len(buffer.batches), buffer.bytes
            self._size += size
            self._parts.append([number, cell_bytes, size, checksum])


def _read(path: Path, start: int, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(min(size, max(0, os.fstat(file.fileno()).st_size - start)))
    except FileNotFoundError:
        raise ValueError(f"{path.name} is missing") from None


def row_sizes(columns: Columns) -> I64:
    """Bytes that the cells of each sample take in memory."""
    sizes = np.zeros(columns.rows, dtype=np.int64)
    for column in columns.values():
        if isinstance(column, Ragged):
            sizes += column.sizes.clip(0) + column.offsets.itemsize
        else:
            sizes += column.nbytes // max(1, len(column))
    return sizes
