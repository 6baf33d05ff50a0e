"""AnnData: single-cell matrices in HDF5 (``.h5ad``) or Zarr, read without anndata.

A sample is a row (a cell): ``X`` is dense, or a :class:`~batchplant.Sparse` row whose columns are named by
``var``; each column of ``obs`` is a field, categories an ``Int`` with names; ``obs_names`` is the index. Rows
of a CSR matrix are runs of two arrays: a batch reads the chunks that it touches, each once. A CSC matrix is
turned into rows once, in memory or in a file. The formats HDF5 and Zarr read all arrays, and bound what
damaged ones claim. :func:`save` writes ``.h5ad``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..codecs.cells import decode_texts
from ..codecs.sparse import SparseCells, rows_outside, unpack_rows
from ..data.arrays import MemoryArray
from ..data.concat import concat
from ..data.layout import Layout
from ..data.reader import Reader, open_reader
from ..errors import (
    DamagedError,
    DecodeError,
    FieldNameError,
    NotFoundError,
    OptionError,
    SchemaError,
    exceptions_as,
    located,
    needs,
    no_such,
    on_error,
)
from ..schema import Bool, Field, Float, Int, Schema, Sparse, Tensor, Text
from ..schema.columns import (
    I64,
    AnyArray,
    AnyDType,
    Column,
    Columns,
    Flags,
    Masked,
    Ragged,
    as_bytes,
    masked,
    starts_of,
)
from ..storage import NOTE_ERRORS, is_plain, parse_object, read_beside, tree, write_errors
from ..storage import join as path_join
from .base.format import Capabilities, Format, Probe
from .base.sink import Sink

# -- writing ------------------------------------------------------------------------------------------
# Writing AnnData in HDF5, as anndata 0.8 and later read it; without anndata.

INDEX = "_index"
NAMES = "obs_names"
# Numbers in a chunk of a CSR matrix.
CHUNK_VALUES = 1 << 16


def save(path: str | os.PathLike[str], source: Reader | str, *, compression: str | None = None) -> None:
    """Write samples as AnnData in HDF5; a file of that name is replaced when the new one is complete.

    ``X``, ``layers.NAME``: matrices, by rows where they are Sparse; ``obsm.NAME``: arrays; ``obs_names``:
    texts; all other fields are columns of obs, which are held in memory. Missing floats become NaN.
    compression: of the matrices: gzip, lzf or None.

    Raises: SchemaError for fields that AnnData has no place for.
    """
    path = os.fspath(path)
    if compression not in (None, "gzip", "lzf"):
        raise OptionError(f"compression is gzip, lzf or None, not {compression!r}", path=path)
    with needs("AnnData in HDF5 needs h5py", "anndata"):
        import h5py
    reader = source if isinstance(source, Reader) else open_reader(os.fspath(source))
    draft = Path(path).with_name(f".{Path(path).name}.{secrets.token_hex(8)}")
    try:
        with write_errors(path):
            draft.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(Sink(draft)) as sink, h5py.File(sink, "w", libver="v110") as file:
                _File(file, h5py.string_dtype(), compression).write(reader, sink.check)
            sink.check()
            os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
        if reader is not source:
            reader.close()


class _File:
    """A file that is written: elements and their encodings."""

    def __init__(self, file: Any, text: Any, compression: str | None) -> None:
        self._file, self._text, self._compression = file, text, compression

    def write(self, reader: Reader, check: Callable[[], None]) -> None:
        """Write all samples; ``check`` raises the error of a write that failed."""
        schema, rows = reader.schema, len(reader)
        with located(path=reader.path):
            matrices, names = _matrices(schema)
            frame = [name for name in schema if name not in matrices]
            for name in frame:
                _check_column(name, schema[name])
        encoded(self._file, "anndata", "0.1.0")
        for group in ("layers", "obsm", "obsp", "varm", "varp", "uns"):
            encoded(self._file.create_group(group), "dict", "0.1.0")
        outputs = {name: self._output(name, schema[name], rows) for name in matrices}
        parts: list[Columns] = []
        for run in reader._scan_runs(tuple(schema)):
            columns = masked(schema, reader.read(range(run.start, run.end)))
            for name, output in outputs.items():
                with located(path=reader.path, field=name):
                    output(columns.pop(name), run.start)
                check()
            parts.append(columns)
        for name in outputs:
            outputs[name](None, rows)
        columns = Columns.concat(parts or [masked(schema, reader.read(range(0), frame))])
        index = _texts_of(columns.pop(NAMES)) if NAMES in columns else [str(row) for row in range(rows)]
        obs = self._frame("obs", index, list(columns))
        for name, column in columns.items():
            with located(path=reader.path, field=name):
                self._column(obs, name, schema[name], column)
        self._frame("var", names, [])
        check()

    def _output(self, name: str, field: Field, rows: int) -> Callable[[Column | None, int], None]:
        """Return a function that writes rows of a matrix from a row on; the last call gives none."""
        where = name.replace(".", "/", 1)
        if isinstance(field, Tensor):
            shape = (rows, *map(int, filter(None, field.shape)))
            array = self._array(self._file, where, np.empty(0, field.dtype), shape=shape)

            def fill(column: Column | None, start: int) -> None:
                if column is not None:
                    array[start : start + len(column)] = column

            return fill
        assert isinstance(field, Sparse)
        group = encoded(self._file.create_group(where), "csr_matrix", "0.1.0")
        group.attrs["shape"] = np.array([rows, *field.shape])
        options = {"maxshape": (None,), "chunks": (CHUNK_VALUES,), "compression": self._compression}
        arrays = [
            group.create_dataset(part, (0,), dtype, track_times=False, **options)
            for part, dtype in (("indices", field.item["index"]), ("data", field.item["value"]))
        ]
        ends = [np.zeros(1, np.int64)]

        def append(column: Column | None, start: int) -> None:
            if column is None:
                group.create_dataset("indptr", data=np.concatenate(ends), track_times=False)
                return
            assert isinstance(column, Ragged)
            (offsets, *values), bad = unpack_rows(field, column)
            for row, reason in bad.items():
                raise DecodeError(reason, sample=start + row)
            first = int(ends[-1][-1])
            ends.append(offsets[1:] + first)
            for array, part in zip(arrays, values, strict=True):
                array.resize(first + len(part), axis=0)
                array[first:] = part

        return append

    def _array(self, group: Any, name: str, values: Any, **options: Any) -> Any:
        if isinstance(values, list):
            dataset = group.create_dataset(name, data=values, dtype=self._text, track_times=False)
            return encoded(dataset, "string-array", "0.2.0")
        if "shape" in options:
            options |= {"dtype": values.dtype, "compression": self._compression}
            dataset = group.create_dataset(name, track_times=False, **options)
        else:
            dataset = group.create_dataset(name, data=values, track_times=False)
        return encoded(dataset, "array", "0.2.0")

    def _frame(self, name: str, index: list[str], columns: list[str]) -> Any:
        group = encoded(self._file.create_group(name), "dataframe", "0.2.0")
        group.attrs[INDEX] = INDEX
        group.attrs["column-order"] = np.array(columns, dtype=self._text)
        self._array(group, INDEX, index)
        return group

    def _column(self, group: Any, name: str, field: Field, column: Column) -> None:
        """Write a column of obs."""
        valid = None if not isinstance(column, Ragged) or column.valid is None else column.valid
        if isinstance(field, Text):
            values: Any = _texts_of(column)
        else:
            values = column.values if isinstance(column, Masked) else np.asarray(column)
        if isinstance(field, Int) and field.names:
            inner = encoded(group.create_group(name), "categorical", "0.2.0")
            inner.attrs["ordered"] = False
            codes = values if valid is None else np.where(valid, values, -1)
            if len(codes) and not -1 <= codes.min() <= codes.max() < len(field.names):
                raise SchemaError(f"a value is none of its {len(field.names)} classes")
            self._array(inner, "codes", codes.astype(np.min_scalar_type(-len(field.names))))
            self._array(inner, "categories", list(field.names))
        elif field.optional and not isinstance(field, Float):
            kind = {Int: "integer", Bool: "boolean", Text: "string-array"}
            kinds = next(kind for base, kind in kind.items() if isinstance(field, base))
            inner = encoded(group.create_group(name), f"nullable-{kinds}", "0.1.0")
            self._array(inner, "values", values)
            self._array(inner, "mask", np.zeros(len(values), np.bool_) if valid is None else ~valid)
        else:
            self._array(group, name, values)


def encoded(thing: Any, kind: str, version: str) -> Any:
    """Give a group or an array the attributes of its encoding; return it."""
    thing.attrs["encoding-type"], thing.attrs["encoding-version"] = kind, version
    return thing


def _matrices(schema: Mapping[str, Field]) -> tuple[list[str], list[str]]:
    """Return the fields that are matrices, and the names of the columns of X."""
    result, width, names = [], None, None
    for name, field in schema.items():
        kind = "X" if name == "X" else name.partition(".")[0]
        if kind not in ("X", "layers", "obsm"):
            continue
        cell = field.cell if isinstance(field, Tensor) else None
        shape = field.shape if isinstance(field, Sparse) else () if cell is None else cell[1]
        unfit = cell is not None and cell[0].kind not in "biuf"
        if unfit or not shape or (isinstance(field, Sparse) if kind == "obsm" else len(shape) > 1):
            raise SchemaError(f"{field} is no matrix of AnnData", field=name)
        if kind != "obsm":
            columns = int(shape[0] or 0)
            if width is not None and columns != width:
                raise SchemaError(f"it has {columns} columns, and others have {width}", field=name)
            width, names = columns, names or (field.names if isinstance(field, Sparse) else None)
        if field.optional:
            raise SchemaError("rows of a matrix are not missing in AnnData", field=name)
        result.append(name)
    if "X" not in schema:
        raise SchemaError(f"AnnData has a matrix X, and the fields are {', '.join(schema)}")
    return result, list(names or map(str, range(width or 0)))


def _check_column(name: str, field: Field) -> None:
    """Raise SchemaError for a field that is no column of obs."""
    if name in (INDEX, "") or "/" in name or (name == NAMES and (field.optional or field.kind != "text")):
        raise SchemaError("no column of AnnData can be called so", field=name)
    if field.kind not in ("int", "float", "bool", "text"):
        raise SchemaError(
            f"AnnData has no place for {field}: leave it out with select, or call it obsm.{name}", field=name
        )


def _texts_of(column: Column) -> list[str]:
    assert isinstance(column, Ragged)
    texts = decode_texts(column)
    if texts is None:
        raise DecodeError("a text is not UTF-8")
    if any("\0" in text for text in texts if text):
        raise SchemaError("a text has NUL in it, which HDF5 does not hold")
    return [text or "" for text in texts]


# -- reading ------------------------------------------------------------------------------------------

__all__ = ["join", "save"]

# Values of a contiguous matrix that are one block to a quasi-random order.
BLOCK_VALUES = 1 << 20
# Values of a matrix by columns that are turned into rows at a time.
TURNED_VALUES = 1 << 22
SPARSE = ("csr_matrix", "csc_matrix")


class _Store:
    """Groups of an HDF5 file or a Zarr store, as readers of the format."""

    def __init__(self, path: str, cache: int | None) -> None:
        self.path, self._cache = path, cache
        self.is_zarr = not tree.is_file(path)
        self._opened: list[Reader] = []

    def open(self, group: str, fields: Sequence[str] | None = None) -> Reader:
        """Return a reader of the arrays in a group."""
        options: dict[str, Any] = {"cache": self._cache, "fields": fields, "decode": False}
        if self.is_zarr:
            reader = open_reader(path_join(self.path, group), format="zarr", **options)
        else:
            reader = open_reader(self.path, format="hdf5", group=group or "/", **options)
        self._opened.append(reader)
        return reader

    def attributes(self, group: str) -> Mapping[str, Any]:
        """Return the attributes of a group."""
        if not self.is_zarr:
            return self.open(group).attributes[""]
        for name, key in ((".zattrs", None), ("zarr.json", "attributes")):
            text = read_beside(path_join(self.path, group, name))
            if text is not None:
                where = path_join(self.path, group, name)
                with exceptions_as(DamagedError, "its attributes are damaged", *NOTE_ERRORS, path=where):
                    document = parse_object(text)
                    found = document if key is None else document.get(key)
                    return found if isinstance(found, dict) else {}
        return {}

    def close(self) -> None:
        for reader in self._opened:
            reader.close()

    def columns(self, group: str) -> tuple[Reader, str]:
        """Return a reader of the arrays of a data frame, and the name of its index."""
        if not self.is_zarr:
            reader = self.open(group)
            # Attributes are texts, which take a process of their own to read.
            index = INDEX if INDEX in reader.schema else str(reader.attributes[""].get(INDEX))
            return reader, index
        attributes = self.attributes(group)
        index, order = str(attributes.get(INDEX)), attributes.get("column-order")
        if not isinstance(order, list) or not all(is_plain(name) for name in (index, *map(str, order))):
            if not attributes and not tree.exists(self.path):
                raise NotFoundError("no such file or folder")
            raise DamagedError(f"the attributes of {group} name no columns")
        names = []
        for name in [index, *order]:
            kind = str(self.attributes(f"{group}/{name}").get("encoding-type"))
            if kind == "categorical":
                names.append(f"{name}.codes")
            elif kind.startswith("nullable"):
                names += [f"{name}.values", f"{name}.mask"]
            else:
                names.append(name)
        return self.open(group, names), index


class _Frame:
    """Columns of ``obs`` or ``var``."""

    def __init__(self, store: _Store, axis: str, names: Mapping[str, Sequence[str | None]]) -> None:
        self.reader, self.index = store.columns(axis)
        self.fields: dict[str, Field] = {}
        self._arrays: dict[str, tuple[str, str | None]] = {}
        # New codes of those that are stored, by column.
        self._codes: dict[str, AnyArray] = {}
        for array, field in self.reader.schema.items():
            name, _, part = array.rpartition(".")
            if array == self.index:
                continue
            if part == "codes" and isinstance(field, Int):
                own = _texts(store.open(f"{axis}/{name}", ["categories"]), "categories")
                new = tuple(category for category in names.get(name, own) if category is not None)
                places = {category: place for place, category in enumerate(new)}
                if not set(own) <= set(new) or len(places) < len(new):
                    raise DamagedError(f"categories of {name!r} are repeated, or not among {len(new)}")
                self._codes[name] = np.array([places[category] for category in own], np.int32)
                codes = np.asarray(self.reader.read(range(len(self.reader)), [array])[array])
                missing = None in names.get(name, ()) or bool((codes < 0).any())
                self._arrays[name] = array, None
                self.fields[name] = Int("int32", new, optional=missing)
            elif part == "values" and f"{name}.mask" in self.reader.schema:
                self._arrays[name] = array, f"{name}.mask"
                self.fields[name] = dataclasses.replace(field, optional=True)
            elif part != "mask" or f"{name}.values" not in self.reader.schema:
                self._arrays[array], self.fields[array] = (array, None), field

    def read(self, name: str, rows: I64) -> Column:
        """Return cells of a column."""
        array, mask = self._arrays[name]
        column = self.reader.read(rows, [array])[array]
        if mask is not None:
            return _with_gaps(column, ~np.asarray(self.reader.read(rows, [mask])[mask], np.bool_))
        if name not in self._codes:
            return column
        codes, own = np.asarray(column), self._codes[name]
        if (codes >= len(own)).any() or (codes < -1).any():
            raise DamagedError("a code is none of a category", sample=int(rows[np.argmax(codes >= len(own))]))
        values = np.append(own, np.int32(0))[codes]
        return _with_gaps(values, codes >= 0) if self.fields[name].optional else values


def _with_gaps(column: Column, valid: Flags) -> Ragged:
    """Return cells, some of which are missing."""
    if isinstance(column, Ragged):
        return Ragged(column.data, column.offsets, None, valid)
    return Ragged(as_bytes(column[valid]), starts_of(valid * column.itemsize), None, valid)


def _texts(reader: Reader, name: str) -> list[str]:
    """Return all texts of an array; those of numbers where it has such."""
    return [str(sample[name]) for sample in reader.select([name])]


class _Matrix:
    """Rows of a dense or sparse matrix; ``columns``: its place in the file of each column, or -1."""

    def __init__(
        self, store: _Store, path: str, shape: tuple[int, int], memory: int, scratch: str | None
    ) -> None:
        self._path, self._shape = path, shape
        kind = self._kind(store)
        self._dense: Reader | None = None
        if kind == "array":
            group, _, self._name = path.rpartition("/")
            self._dense = store.open(group, [self._name])
            [field] = self._dense.schema.values()
            if not isinstance(field, Tensor) or (len(self._dense), *field.shape) != shape:
                raise DamagedError(f"it is no matrix of {shape[0]}×{shape[1]}")
            self.dtype = field.dtype
            return
        reader = store.open(path, ["data", "indices"])
        parts = [reader.array(name) for name in ("data", "indices", "indptr")]
        self._data, self._indices, indptr = parts
        if any(part.ndim != 1 for part in parts) or parts[1].dtype.kind not in "iu":
            raise DamagedError("data, indices and indptr are no arrays of one axis")
        self.dtype = self._data.dtype.name
        rows = shape[kind == SPARSE[1]]
        if indptr.shape != (rows + 1,) or indptr.dtype.kind not in "iu":
            raise DamagedError(f"indptr has {indptr.shape[0]} values, and {rows + 1} are needed")
        self._indptr = np.asarray(indptr).astype(np.int64)
        ends = self._indptr[[0, -1]].tolist()
        if ends != [0, len(reader)] or (np.diff(self._indptr) < 0).any():
            raise DamagedError(f"indptr does not divide {len(reader)} values into rows")
        if kind == SPARSE[1]:
            self._transpose(memory, scratch)

    def _kind(self, store: _Store) -> str:
        """Return the encoding, by its structure where that says enough."""
        if not store.is_zarr:
            try:
                indptr = store.open(self._path, ["indptr"])
            except OptionError:
                return "array"
            if self._shape[0] != self._shape[1]:
                return SPARSE[len(indptr) != self._shape[0] + 1 and len(indptr) == self._shape[1] + 1]
        kind = store.attributes(self._path).get("encoding-type")
        if kind not in ("array", *SPARSE):
            raise SchemaError(f"its encoding-type {kind!r} is none of array, {', '.join(SPARSE)}")
        return str(kind)

    def _transpose(self, memory: int, scratch: str | None) -> None:
        """Turn columns into rows, in memory or, where that is too little, in a file."""
        count, (rows, columns) = len(self._data), self._shape
        index = np.dtype(np.int32 if columns <= 1 << 31 else np.int64)
        needed = count * (self._data.dtype.itemsize + index.itemsize)
        if needed > memory and scratch is None:
            raise OptionError(
                f"it is stored by columns (CSC), and turning it into rows takes {needed:,} bytes: allow them "
                f"in memory with memory={needed}, or in a file with scratch=FOLDER; or store it as CSR"
            )
        where = None if needed <= memory else scratch
        if where is not None and not os.path.isdir(where):
            raise OptionError(f"scratch is a folder, and {where} is none")
        warnings.warn(
            f"{self._path} is stored by columns (CSC): it is turned into rows in {where or 'memory'}",
            stacklevel=6,
        )
        parts = [slice(start, start + TURNED_VALUES) for start in range(0, count, TURNED_VALUES)]
        counts = np.zeros(rows, np.int64)
        for part in parts:
            row_of = np.asarray(self._indices[part]).astype(np.int64)
            if not 0 <= row_of.min() <= row_of.max() < rows:
                raise DamagedError(f"an index is none of {rows} rows")
            counts += np.bincount(row_of, minlength=rows)
        starts = starts_of(counts)
        data, indices = _empty(count, self._data.dtype, where), _empty(count, index, where)
        ends = starts[:-1].copy()
        for part in parts:
            row_of = np.asarray(self._indices[part]).astype(np.int64)
            order = np.argsort(row_of, kind="stable")
            row_of = row_of[order]
            chosen, firsts, sizes = np.unique(row_of, return_index=True, return_counts=True)
            places = ends[row_of] + np.arange(len(row_of)) - np.repeat(firsts, sizes)
            ends[chosen] += sizes
            data[places] = np.asarray(self._data[part])[order]
            values = np.arange(part.start, part.start + len(row_of))
            indices[places] = np.searchsorted(self._indptr, values[order], "right") - 1
        self._data = MemoryArray(self._data.path, "data", data)
        self._indices = MemoryArray(self._data.path, "indices", indices)
        self._indptr = starts

    def blocks(self) -> I64 | None:
        """Return the chunk that each row begins in."""
        if self._dense is not None:
            return self._dense.blocks()
        return self._indptr[:-1] // max(self._data.chunks[0], BLOCK_VALUES // 8)

    def read(self, field: Field, rows: I64, columns: I64 | None) -> Column:
        """Return rows; ``columns``: for each column in the file its place among those of the field, or -1."""
        if self._dense is not None:
            dense = np.asarray(self._dense.read(rows, [self._name])[self._name])
            if columns is None:
                return dense
            assert isinstance(field, Tensor)
            chosen = np.zeros((len(rows), *map(int, filter(None, field.shape))), dense.dtype)
            chosen[:, columns[columns >= 0]] = dense[:, columns >= 0]
            return chosen
        assert isinstance(field, Sparse)
        starts, counts = self._indptr[rows], self._indptr[rows + 1] - self._indptr[rows]
        indices = self._indices.read_runs(starts, counts)
        values = self._data.read_runs(starts, counts)
        outside = rows_outside(indices, starts_of(counts), self._shape[1])
        if outside:
            raise DamagedError(f"a column is none of {self._shape[1]}", sample=int(rows[outside[0]]))
        if columns is not None:
            indices = columns[indices]
            kept = indices >= 0
            counts = np.diff(starts_of(kept.astype(np.int64))[starts_of(counts)])
            indices, values = indices[kept], values[kept]
        return SparseCells(field, counts, indices, values)


def _empty(count: int, dtype: AnyDType, folder: str | None) -> AnyArray:
    """Return an array in memory, or in a file without a name in this folder."""
    if folder is None or not count:
        return np.empty(count, dtype)
    with write_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            # A full disk would end the process where a page of it is written.
            os.posix_fallocate(file.fileno(), 0, count * dtype.itemsize)
        return np.memmap(file, dtype, "w+", shape=(count,))


class AnnDataReader(Reader):
    """Reads AnnData. ``axis``: what a sample is, a row of obs or one of var (without matrices); ``obs``: only
    these columns; ``layers``, ``obsm``: names of matrices to read besides X; ``genes``: only these columns of
    X and layers, by name, in this order; ``outer``: those that are not there are zeros; ``categories``:
    categories of columns of obs, in this order, and None where a value may be missing; ``memory``: bytes that
    turning a CSC matrix into rows may take; ``scratch``: a folder for such rows where it is more; ``cache``:
    bytes of unpacked chunks kept.
    """

    def __init__(
        self, path: str, *, axis: str = "obs", obs: Iterable[str] | None = None, layers: Iterable[str] = (),
        obsm: Iterable[str] = (), genes: Iterable[str] | None = None, outer: bool = False,
        categories: Mapping[str, Sequence[str | None]] | None = None, memory: int = 2 << 30,
        scratch: str | None = None, cache: int | None = None,
    ) -> None:  # fmt: skip
        if axis not in ("obs", "var"):
            raise OptionError(f"axis is obs or var, not {axis!r}", path=path)
        # A single name is a list of one.
        obs, genes = ([names] if isinstance(names, str) else names for names in (obs, genes))
        layers, obsm = ((names,) if isinstance(names, str) else tuple(names) for names in (layers, obsm))
        self.path, self._axis = path, axis
        self._store = _Store(path, cache)
        with on_error(self.close), located(path=path):
            self._matrices: dict[str, _Matrix] = {}
            self._obsm: dict[str, Reader] = {}
            self._frame = _Frame(self._store, axis, categories or {})
            self.length = len(self._frame.reader)
            fields: dict[str, Field] = {}
            if axis == "obs":
                fields = self._open(layers, obsm, genes, outer, (memory, scratch))
            chosen = Schema(self._frame.fields).select(self._frame.fields if obs is None else obs)
            overlap = set(chosen) & {*fields, f"{axis}_names"}
            if overlap:
                raise SchemaError(
                    f"columns of {axis} are called {', '.join(overlap)}: leave them out with obs=[…]"
                )
            self.schema = Schema({**fields, **chosen, f"{axis}_names": Text()})

    def _open(
        self, layers: Sequence[str], obsm: Sequence[str], genes: Iterable[str] | None, outer: bool,
        room: tuple[int, str | None],
    ) -> dict[str, Field]:  # fmt: skip
        """Open the matrices; return their fields."""
        var, index = self._store.columns("var")
        own = tuple(_texts(var, index))
        names, self._columns = own, None
        if genes is not None:
            names, places = tuple(genes), {name: place for place, name in enumerate(own)}
            if len(set(names)) < len(names):
                raise OptionError("genes has a name twice")
            missing = [name for name in names if name not in places]
            if missing and not outer:
                raise FieldNameError(no_such("gene", missing[0], own))
            self._columns = np.full(len(own), -1, np.int64)
            for place, name in enumerate(names):
                if name in places:
                    self._columns[places[name]] = place
        fields: dict[str, Field] = {}
        for name in ("X", *(f"layers.{layer}" for layer in layers)):
            with located(field=name):
                matrix = _Matrix(self._store, name.replace(".", "/", 1), (self.length, len(own)), *room)
            self._matrices[name] = matrix
            dense = Tensor(matrix.dtype, (len(names),))
            fields[name] = dense if matrix._dense is not None else Sparse(len(names), matrix.dtype, names)
        self._obsm = {f"obsm.{name}": self._store.open("obsm", [name]) for name in obsm}
        for name, reader in self._obsm.items():
            fields[name] = reader.schema[name.partition(".")[2]]
            if len(reader) != self.length:
                raise DamagedError(f"it has {len(reader)} rows for {self.length} samples", field=name)
        return fields

    @property
    def var_names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        field = self.schema["X"]
        if isinstance(field, Sparse):
            return field.names or ()
        reader, index = self._store.columns("var")
        names = tuple(_texts(reader, index))
        if self._columns is None:
            return names
        places = np.flatnonzero(self._columns >= 0)
        return tuple(names[place] for place in places[np.argsort(self._columns[places])].tolist())

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns.read(fields, lambda name: self._read_field(name, indices), self.path)

    def _read_field(self, name: str, rows: I64) -> Column:
        if name in self._matrices:
            return self._matrices[name].read(self.schema[name], rows, self._columns)
        if name in self._obsm:
            inner = name.partition(".")[2]
            return self._obsm[name].read(rows, [inner])[inner]
        if name == f"{self._axis}_names":
            return self._frame.reader.read(rows, [self._frame.index])[self._frame.index]
        return self._frame.read(name, rows)

    def _layout(self) -> Layout:
        # Blocks are the chunks of X in which rows begin.
        return Layout(blocks=self._matrices["X"].blocks if "X" in self._matrices else None)

    def close(self) -> None:
        self._store.close()


def join(paths: Iterable[str | os.PathLike[str]], how: str = "inner", **options: Any) -> Reader:
    """Return the samples of several files as one dataset, columns of X joined by their names.

    how: ``inner``, the columns that all files have, in the order of the first; or ``outer``, all columns:
    those that a file lacks are zeros there. Categories of a column of obs are those of all files; columns of
    obs that not all files have are left out. options: those of the reader.

    Raises: OptionError where no file is given, or ``how`` is something else.
    """
    if how not in ("inner", "outer"):
        raise OptionError(f"how is inner or outer, not {how!r}")
    readers = [AnnDataReader(os.fspath(path), **options) for path in paths]
    if not readers:
        raise OptionError("there is no file to join")
    genes = list(dict.fromkeys(name for reader in readers for name in reader.var_names))
    if how == "inner":
        common = set(genes).intersection(*(reader.var_names for reader in readers))
        genes = [name for name in genes if name in common]
    frames = [reader._frame.fields for reader in readers]
    obs = [name for name in options.pop("obs", None) or frames[0] if all(name in frame for frame in frames)]
    categories = {
        name: [
            *dict.fromkeys(category for frame in frames for category in frame[name].names or ()),
            *([None] if any(frame[name].optional for frame in frames) else []),
        ]
        for name in obs
        if isinstance(frames[0][name], Int) and frames[0][name].names
    }
    for reader in readers:
        reader.close()
    options |= {"genes": genes, "outer": how == "outer", "categories": categories, "obs": obs}
    return concat([AnnDataReader(reader.path, **options) for reader in readers])


def sniff(probe: Probe) -> bool:
    """Return whether a file of HDF5 is called ``.h5ad``; its content would have to be read to tell."""
    return probe.path.lower().endswith(".h5ad") and probe.head[:8] == b"\x89HDF\r\n\x1a\n"


FORMAT = Format(
    name="anndata",
    title="AnnData",
    suffixes=(".h5ad",),
    spec="https://anndata.readthedocs.io/en/latest/fileformat-prose.html",
    reader=AnnDataReader,
    sniff=sniff,
    kinds=(Sparse, Tensor, Int, Float, Bool, Text),
    optional=True,
    extra="anndata",
    notes='`.h5ad`, and `.zarr` with format="anndata"; rows of CSR matrices are read out of their chunks',
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        remote_ranges=True,
        splittable=True,
        ecosystem=("anndata", "scanpy"),
    ),
)
