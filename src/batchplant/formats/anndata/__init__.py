"""AnnData: single-cell matrices in HDF5 (``.h5ad``) or Zarr, read without anndata.

A sample is a row (a cell): ``X`` is dense, or a :class:`~batchplant.Sparse` row whose columns are named by
``var``; each column of ``obs`` is a field, categories an ``Int`` with names; ``obs_names`` is the index. Rows
of a CSR matrix are runs of two arrays: a batch reads the chunks that it touches, each once. A CSC matrix is
turned into rows once, in memory or in a file. The formats HDF5 and Zarr read all arrays, and bound what
damaged ones claim. :func:`save` writes ``.h5ad``.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...codecs.sparse import SparseCells, rows_outside
from ...data.arrays import MemoryArray
from ...data.concat import concat
from ...data.layout import Layout
from ...data.reader import Reader, open_reader
from ...errors import (
    DamagedError,
    FieldNameError,
    NotFoundError,
    OptionError,
    SchemaError,
    exceptions_as,
    located,
    no_such,
    on_error,
)
from ...schema import Bool, Field, Float, Int, Schema, Sparse, Tensor, Text
from ...schema.columns import I64, AnyArray, AnyDType, Column, Columns, Flags, Ragged, as_bytes, starts_of
from ...storage import NOTE_ERRORS, is_plain, parse_object, read_beside, tree, write_errors
from ...storage import join as path_join
from ..base.format import Capabilities, Format, Probe
from .saving import INDEX, save

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
