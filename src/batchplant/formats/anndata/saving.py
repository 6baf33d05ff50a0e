"""Writing AnnData in HDF5, as anndata 0.8 and later read it; without anndata."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...codecs.cells import decode_texts
from ...codecs.sparse import unpack_rows
from ...data.reader import Reader, open_reader
from ...errors import DecodeError, OptionError, SchemaError, located, needs
from ...schema import Bool, Field, Float, Int, Sparse, Tensor, Text
from ...schema.columns import Column, Columns, Masked, Ragged, masked
from ...storage import write_errors
from ..base.sink import Sink

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
