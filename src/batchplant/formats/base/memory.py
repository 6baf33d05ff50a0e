"""Datasets in memory: dicts of columns, lists of samples, arrays, tensors, data frames, Arrow tables, and
datasets of Hugging Face's library.

Arrays stay where they are; a read copies the rows that are asked for, as from a file.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...codecs import npy
from ...codecs.arrow import from_arrow, is_file_struct, pyarrow, schema_of
from ...codecs.arrow.infer import has_gaps, is_whole_list
from ...codecs.cells import encode_samples
from ...codecs.infer import infer_field, infer_image
from ...data.reader import Reader
from ...errors import BatchplantError, DamagedError, OptionError, SchemaError, located
from ...schema import Audio, Bool, Bytes, Field, Float, Image, Int, Schema, Video
from ...schema.columns import I64, AnyArray, Column, Columns, Ragged
from .records import GivenSchema, given_schema
from .tables import TableReader

# In place of a path: no file has this name.
PATH = "<memory>"
# Cells looked at to tell whether bytes are images.
LOOK_AT = 32
# Rows of an Arrow table that are decoded at a time.
UNIT_ROWS = 65536
# The same where a table has paths of files, whose bytes are read with it.
EMBEDDED_ROWS = 64
# The field of values that have no name.
PLAIN = "data"

Values = AnyArray | list[Any]


class ValuesReader(Reader):
    """Samples whose columns are arrays, or lists of plain values."""

    # What was given, in words; the names of what stands beside the columns.
    kind: str
    beside: list[str]
    # Whether a text in place of an image or a sound is the path of one.
    takes_paths: bool = False
    _values: dict[str, Values]

    def _infer(
        self, objects: list[Any], fields: Iterable[str] | None, overrides: Mapping[str, Field]
    ) -> None:
        """Take these objects as columns. ``given``: the kinds of some fields; values tell those of others."""
        try:
            self.kind, kinds, self.beside = as_columns(objects)
            chosen = list(kinds) if fields is None else Schema(dict.fromkeys(kinds, Bytes())).select(fields)
            self._values = {name: kinds[name] for name in chosen}
            lengths = {name: len(values) for name, values in self._values.items()}
            if len(set(lengths.values())) > 1:
                lengths_text = ", ".join(f"{name} {length}" for name, length in lengths.items())
                raise SchemaError(
                    f"the columns differ in length ({lengths_text}); choose equal ones with fields=[…]"
                )
            self.length = next(iter(lengths.values()), 0)
            Schema(dict.fromkeys(self._values, Bytes())).select(overrides)
            is_known = [
                name in overrides or isinstance(value, np.ndarray) for name, value in self._values.items()
            ]
            if not self.length and not any(is_known):
                raise SchemaError("it holds no samples, so its fields cannot be told")
            self.schema = Schema((name, self._infer_one(name, overrides.get(name))) for name in self._values)
        except BatchplantError:
            raise
        # Objects of any class may be in it.
        except Exception as error:
            raise DamagedError(f"it cannot be read: {type(error).__name__}: {error}") from None

    def _infer_one(self, name: str, override: Field | None) -> Field:
        values = self._values[name]
        if override is not None:
            if isinstance(values, np.ndarray) and override.cell != (values.dtype, values.shape[1:]):
                self._values[name] = list(values)
            return override
        with located(field=name):
            if isinstance(values, np.ndarray):
                return npy.field_of(values.dtype, values.shape[1:])
            field = infer_field(values)
        if type(field) in (Int, Float, Bool) and field.cell is not None:
            self._values[name] = np.array(values, dtype=field.cell[0])
        elif isinstance(field, Bytes):
            present = [value for value in values if value is not None]
            sampled = np.unique(np.linspace(0, len(present) - 1, LOOK_AT).astype(int))
            image = infer_image(Ragged.from_cells([present[row] for row in sampled]))
            if image is not None:
                return dataclasses.replace(image, optional=field.optional)
        return field

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns((name, self._column(name, indices)) for name in fields)

    def _column(self, name: str, indices: I64) -> Column:
        field, values = self.schema[name], self._values[name]
        try:
            if isinstance(values, np.ndarray):
                return npy.rows(values, indices, field)
            chosen = [{name: values[row]} for row in indices.tolist()]
            if isinstance(field, Image | Audio | Video) and not self.takes_paths:
                # To a writer's user a text means a file to read; here it is none.
                for row, value in enumerate(chosen):
                    if isinstance(value[name], str | os.PathLike):
                        raise DamagedError(f"a {type(value[name]).__name__} is no {field.kind}", sample=row)
            return encode_samples(Schema({name: field}), chosen)[name]
        except BatchplantError as error:
            sample = None if error.sample is None else int(indices[error.sample])
            raise DamagedError(error.message, path=self.path, sample=sample, field=name) from None

    def facts(self) -> dict[str, Any]:
        return {"holds": self.kind} | ({"besides": ", ".join(self.beside)} if self.beside else {})

    def close(self) -> None:
        self._values = {}


class MemoryReader(ValuesReader):
    """A dict of columns, a list of samples, an array, tensors, a data frame.

    ``fields``: only these. ``schema``: the kinds of some fields, where the values do not tell them: arrays of
    pixels, or paths of files, that are images.
    """

    format = "memory"
    takes_paths = True

    def __init__(
        self, data: Any, *, fields: Iterable[str] | None = None, schema: GivenSchema | None = None
    ) -> None:
        self.path = PATH
        with located(path=PATH):
            self._infer([_plain(data)], fields, given_schema(schema or {}))
            if self.beside:
                raise SchemaError(f"{', '.join(self.beside)}: one value is no column; leave it out")


class MemoryTable(TableReader):
    """An Arrow table or a dataset of Hugging Face's library, decoded where its layout is not ours.

    ``fields``: only these columns.
    """

    format = "memory"
    unit_name, unit_names = "record batch", "record batches"

    def __init__(self, data: Any, *, fields: Iterable[str] | None = None) -> None:
        self.path = PATH
        arrow = pyarrow()
        self._embed: Callable[[Any], Any] | None = None
        if is_hugging_face(data):
            table, self._embed = _table_of(data)
        else:
            table = data if isinstance(data, arrow.Table) else arrow.table(data)
        arrow_schema = table.schema
        nulls = {name for name in arrow_schema.names if table.column(name).null_count}
        gaps = {
            field.name
            for field in arrow_schema
            if is_whole_list(field.type) and has_gaps(table.column(field.name))
        }
        with located(path=PATH):
            first = table.slice(0, 16)
            first = first if self._embed is None else self._embed(first)
            self.schema = schema_of(arrow_schema, first, nulls=nulls, gaps=gaps)
            self.schema = self.schema.select(self._names(fields))
        rows = UNIT_ROWS if self._embed is None else EMBEDDED_ROWS
        self._batches = table.to_batches(max_chunksize=rows)
        self._set_units([batch.num_rows for batch in self._batches])

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        batch = self._batches[unit]
        if self._embed is not None:
            table = pyarrow().Table.from_batches([batch]).select(list(fields))
            batch = self._embed(table).combine_chunks().to_batches()[0]
        return from_arrow(self.schema, fields, batch)


def memory_reader(data: Any) -> type[MemoryReader] | type[MemoryTable]:
    """The reader for data in memory; a frame of pandas has both faces, and pandas' own is nearer to it."""
    if isinstance(data, Mapping) and data and all(map(is_hugging_face, data.values())):
        raise OptionError(f"it has several splits: open one of {', '.join(map(str, data))}")
    arrow = hasattr(data, "__arrow_c_stream__") and not hasattr(data, "iloc")
    return MemoryTable if arrow or is_hugging_face(data) else MemoryReader


def is_hugging_face(data: Any) -> bool:
    """Return whether this is a dataset of Hugging Face's library."""
    return all(hasattr(data, name) for name in ("features", "with_format", "data"))


def _table_of(data: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return the Arrow table of a dataset, and a function that reads files of which it has only the path."""
    table = data.with_format("arrow")[:]
    # The metadata of the file may be those of more columns, or none.
    table = table.replace_schema_metadata(data.features.arrow_schema.metadata)
    paths = any(
        is_file_struct(column.type) and pyarrow().compute.struct_field(column, "bytes").null_count
        for column in table.columns
    )
    if not paths:
        return table, None
    from datasets.table import embed_table_storage

    return table, embed_table_storage


def is_data(source: Any) -> bool:
    """True if this is data, and not paths of it."""
    if isinstance(source, list | tuple):
        return bool(source) and not all(isinstance(item, str | os.PathLike) for item in source)
    marks = ("__array__", "__arrow_c_stream__", "iloc")
    return (
        isinstance(source, Mapping)
        or _is_tensors(source)
        or is_hugging_face(source)
        or any(hasattr(source, mark) for mark in marks)
    )


def _plain(nested: Any) -> Any:
    """The same with arrays for tensors, which share their memory where the CPU holds it."""
    if "torch" not in sys.modules:
        return nested
    if isinstance(nested, sys.modules["torch"].Tensor):
        return _array(nested)
    if _is_tensors(nested):
        # Its columns have numbers for names.
        return {str(number): _array(tensor) for number, tensor in enumerate(nested.tensors)}
    if isinstance(nested, Mapping):
        return {name: _value(_plain(value)) for name, value in nested.items()}
    if isinstance(nested, list | tuple) and not hasattr(nested, "_fields"):
        return type(nested)(_value(_plain(value)) for value in nested)
    return nested


def _is_tensors(value: Any) -> bool:
    """True if it is a TensorDataset, or the like."""
    return isinstance(getattr(value, "tensors", None), tuple)


def _value(value: Any) -> Any:
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _array(tensor: Any) -> Any:
    try:
        return tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    except TypeError:
        raise SchemaError(f"NumPy has no {tensor.dtype}: convert it, as with .float()") from None


# -- objects ------------------------------------------------------------------------------------------
# Python objects that are datasets: their columns.


def as_columns(objects: Sequence[Any]) -> tuple[str, dict[str, Values], list[str]]:
    """Return (a description, the columns, the names of values beside them that are no columns)."""
    if len(objects) != 1:
        listed = bool(objects) and all(isinstance(element, list) for element in objects)
        rows = [row for rows_of_object in objects for row in rows_of_object] if listed else list(objects)
        return _columns_of_rows(f"{len(objects)} pickles", rows)
    [obj] = objects
    if hasattr(obj, "iloc") and hasattr(obj, "columns"):
        names = [str(name) for name in obj.columns]
        return (
            "a DataFrame",
            _by_name(names, [_series_values(obj.iloc[:, position]) for position in range(len(names))]),
            [],
        )
    if isinstance(obj, Mapping):
        names = [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in obj]
        columns = _by_name(names, [_column_of(value) for value in obj.values()])
        usable = {name: values for name, values in columns.items() if values is not None}
        if usable:
            return "a dict of columns", usable, [name for name in columns if name not in usable]
        return _columns_of_rows("one sample", [obj])
    values = _column_of(obj)
    if isinstance(values, np.ndarray) and values.dtype.names:
        return "a structured array", {name: values[name] for name in values.dtype.names}, []
    if isinstance(values, np.ndarray):
        return "an array", {PLAIN: values}, []
    if values is None:
        raise SchemaError(
            f"an object of type {type(obj).__name__} is not a dataset; pass a dict of columns, a list of "
            "dicts, a DataFrame or an array"
        )
    return _columns_of_rows("a list", values)


def _by_name(names: list[str], columns: list[Any]) -> dict[str, Any]:
    if len(set(names)) < len(names):
        raise SchemaError(f"two columns have one name: {', '.join(names)}")
    return dict(zip(names, columns, strict=True))


def _column_of(obj: Any) -> Values | None:
    """Return a column; None for a single value."""
    if isinstance(obj, list | tuple | range):
        return list(obj)
    if hasattr(obj, "to_numpy") and hasattr(obj, "isna"):
        return _series_values(obj)
    if hasattr(obj, "__array__") and not isinstance(obj, np.generic):
        # A mapped array stays one.
        array = obj if isinstance(obj, np.ndarray) else np.asarray(obj)
        if array.ndim:
            return list(array) if array.dtype.hasobject and not array.dtype.names else array
    return None


def _series_values(series: Any) -> Values:
    """Return a column of pandas: NaN and NaT stay in a column of numbers, else they become None."""
    if getattr(series.dtype, "tz", None) is not None:
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    if isinstance(series.dtype, np.dtype) and not series.dtype.hasobject:
        return np.asarray(series.to_numpy())
    missing = series.isna().to_numpy()
    # Columns of pandas' own kinds (text, nullable numbers, categories) as the values they stand for.
    values = series.to_numpy(dtype=object)
    return [None if is_missing else value for is_missing, value in zip(missing, values, strict=True)]


def _columns_of_rows(kind: str, rows: list[Any]) -> tuple[str, dict[str, Values], list[str]]:
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        columns = [[row.get(name) for row in rows] for name in names]
        return f"{kind} of dicts", _by_name([str(name) for name in names], columns), []
    if rows and all(isinstance(row, tuple) and row for row in rows) and len({len(row) for row in rows}) == 1:
        fields = getattr(rows[0], "_fields", range(len(rows[0])))
        columns = [list(column) for column in zip(*rows, strict=True)]
        return f"{kind} of tuples", _by_name([str(name) for name in fields], columns), []
    return f"{kind} of values", {PLAIN: rows}, []
