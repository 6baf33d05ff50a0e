"""NPY, one NumPy array per file.

``\\x93NUMPY``, version, header length, a Python literal {descr, fortran_order, shape}, then the values.
The first axis is the samples. A plain array is one field called ``data``; a structured array has a field
for each of its names. The file is mapped; rows in C order and native byte order are spans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..codecs import npy
from ..codecs.cells import encode_samples
from ..codecs.infer import infer_field
from ..data.arrays import Array, MemoryArray, RunArray
from ..data.reader import Reader
from ..data.writer import Writer
from ..errors import DamagedError, SchemaError, UnsafeError, located
from ..schema import Bool, Field, Float, Int, Schema, Tensor
from ..schema.columns import I64, Columns, as_bytes
from ..storage import MappedSource, Patch, open_source
from ..storage.spans import Spans
from .base.format import Capabilities, Format, Probe

PLAIN = "data"
SPEC = "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"


class NpyReader(Reader):
    """Reads .npy files. ``allow_pickle``: also object arrays, which can run code when they are loaded."""

    def __init__(self, path: str, *, allow_pickle: bool = False) -> None:
        self.path = path
        self._source = open_source(path)
        with located(path=path):
            head = npy.parse_header(self._source.view(0, min(self._source.size, 16384)).tobytes())
            self._objects: Columns | None = None
            if head.dtype.hasobject:
                self._objects = self._unpickle(allow_pickle)
                return
            start, size = head.start, self._source.size - head.start
            stored: Any
            if isinstance(self._source, MappedSource):
                stored = npy.view(head, self._source.view(start, size))
            else:
                stored = npy.stored(self._source, head, start, size)
            self._stored = stored if isinstance(stored, npy.StoredRows) else None
            # Of a file on a server one row, laid out as all are.
            self._values = stored if self._stored is None else np.empty((1, *head.shape[1:]), head.dtype)
            # A single value is one sample.
            self._values = self._values if head.shape else self._values.reshape(1)
            self._columns = npy.columns_of(self._values, "" if head.dtype.names else PLAIN)
            self.schema = Schema(
                (name, npy.field_of(column.dtype, column.shape[1:])) for name, column in self._columns.items()
            )
        self.length = len(self._values if self._stored is None else self._stored)
        self._head, self._start = head, head.start
        self._plain = not head.dtype.names
        self._fortran = head.fortran
        self._spannable = not head.fortran and (self._plain or self._values.ndim == 1)

    def _unpickle(self, allowed: bool) -> Columns:
        if not allowed:
            raise UnsafeError(
                "an object array is a pickle, and loading a pickle can run any code; "
                "open it with allow_pickle=True (--option allow_pickle=true) only if you trust its source"
            )
        try:
            values = list(np.load(self._source.file(), allow_pickle=True))
        # Pickles run code, which raises what it likes.
        except Exception as error:
            raise DamagedError(f"the pickle does not load: {type(error).__name__}: {error}") from None
        self.schema = Schema({PLAIN: infer_field(values)})
        self.length = len(values)
        return encode_samples(self.schema, [{PLAIN: value} for value in values])

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        if self._objects is not None:
            return Columns((name, self._objects[name]) for name in fields).take(indices)
        columns, stored = self._columns, self._stored or self._ahead()
        if stored is not None:
            columns = npy.columns_of(stored.take(indices), "" if stored.dtype.names else PLAIN)
            indices = np.arange(len(indices))
        return Columns((name, npy.rows(columns[name], indices, self.schema[name])) for name in fields)

    def _ahead(self) -> npy.StoredRows | None:
        """The rows as the source gives them, where it has some that were read ahead."""
        if not isinstance(self._source, MappedSource) or not self._source.buffers:
            return None
        stored = npy.stored(self._source, self._head, self._start, self._source.size - self._start)
        return stored if isinstance(stored, npy.StoredRows) else None

    def _array(self, field: str) -> Array | None:
        if self._objects is not None or field not in self.schema:
            return None
        column = self._columns[field]
        if not self._plain or self._fortran or column.dtype.kind in "SU":
            return MemoryArray(self.path, field, column) if self._stored is None else None
        shape = (self.length, *column.shape[1:])
        return RunArray(self.path, field, shape, column.dtype, self._source, self._start)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        cell = self.schema[field].cell
        if self._objects is not None or not self._spannable or cell is None:
            return None
        column = self._columns[field]
        if not column.dtype.isnative:
            return None
        stride = self._values.strides[0] if self.length else 0
        inside = column.__array_interface__["data"][0] - self._values.__array_interface__["data"][0]
        size = cell[0].itemsize * int(np.prod(cell[1]))
        starts = self._start + inside + indices * stride
        return Spans([self._source], starts, np.full(len(indices), size, dtype=np.int64))

    def facts(self) -> dict[str, object]:
        return (
            {}
            if self._objects is not None
            else {"order": "C" if self._values.flags.c_contiguous else "Fortran"}
        )

    def close(self) -> None:
        self._source.close()


class NpyWriter(Writer):
    """Writes one .npy: a plain array for a single field called ``data``, else a structured one."""

    appends = True

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        return None if field.cell is not None else "npy holds only cells of one fixed size; write npz instead"

    def remarks(self) -> list[str]:
        return [
            f"npy has no place for the class names of {name!r}; npz has"
            for name, field in self.schema.items()
            if isinstance(field, Int) and field.names
        ]

    def kept_schema(self) -> Schema:
        return Schema(
            (name, dataclasses.replace(field, names=None) if isinstance(field, Int) else field)
            for name, field in self.schema.items()
        )

    def _begin(self, state: dict[str, Any] | None) -> None:
        cells = {name: field.cell for name, field in self.schema.items() if field.cell is not None}
        self._rows = np.dtype([(name, *cell) for name, cell in cells.items()])
        self._dtype, self._shape = self._rows, ()
        if list(cells) == [PLAIN]:
            self._dtype, self._shape = self._rows[PLAIN].base, self._rows[PLAIN].shape
        if len(self._header(0)) > npy.MAX_HEADER_BYTES:
            raise SchemaError("the names take a longer header than NumPy reads; write npz", path=self.path)
        self._file = self.partial.spool("array")
        if self.base is not None:
            self._check_base()
        elif not self._file.size:
            self._file.write(self._header(0))

    def _check_base(self) -> None:
        """Only the number of rows in the header may change, and its length may not."""
        header = self._header(self.before)
        with open(self.path, "rb") as file:
            same = file.read(len(header)) == header
        if not same or self.end != len(header) + self.before * self._rows.itemsize:
            raise self.cannot_append("its header is not what NumPy writes for rows that go on; write it anew")

    def _header(self, samples: int) -> bytes:
        # NumPy pads the header so that its length does not depend on the number of rows.
        return npy.header_bytes(self._dtype, (samples, *self._shape))

    def _write(self, columns: Columns) -> None:
        rows = np.empty(columns.rows, dtype=self._rows)
        for name, column in columns.items():
            rows[name] = column
        self._file.write(as_bytes(rows))

    def _finish(self) -> str:
        header = self._header(self.before + self.written)
        assert len(header) == len(self._header(0))
        if self.base is not None:
            self.partial.spool("header").write(header)
        else:
            self._file.write_at(header, 0)
        return "array"

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        patches, moves = super()._changes(name)
        return [*patches, Patch("header", self.partial.name, 0)], moves


def sniff(probe: Probe) -> bool:
    return probe.head.startswith(npy.MAGIC)


FORMAT = Format(
    name="npy",
    title="NumPy array",
    suffixes=(".npy",),
    spec=SPEC,
    reader=NpyReader,
    writer=NpyWriter,
    sniff=sniff,
    kinds=(Int, Float, Bool, Tensor),
    notes="memory-mapped; structured arrays have several fields; object arrays only with allow_pickle",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        remote_ranges=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("NumPy", "JAX", "PyTorch"),
    ),
)
