"""Python objects that are datasets: their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..schema.columns import AnyArray

PLAIN = "data"

Values = AnyArray | list[Any]


def as_columns(objects: Sequence[Any]) -> tuple[str, dict[str, Values], list[str]]:
    """Return (a description, the columns, the names of values beside them that are no columns)."""
    if len(objects) != 1:
        listed = bool(objects) and all(isinstance(element, list) for element in objects)
        rows = [row for rows_of_object in objects for row in rows_of_object] if listed else list(objects)
        return _of_rows(f"{len(objects)} pickles", rows)
    [obj] = objects
    if hasattr(obj, "iloc") and hasattr(obj, "columns"):
        names = [str(name) for name in obj.columns]
        return (
            "a DataFrame",
            _named(names, [_series(obj.iloc[:, position]) for position in range(len(names))]),
            [],
        )
    if isinstance(obj, Mapping):
        names = [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in obj]
        columns = _named(names, [_values(value) for value in obj.values()])
        usable = {name: values for name, values in columns.items() if values is not None}
        if usable:
            return "a dict of columns", usable, [name for name in columns if name not in usable]
        return _of_rows("one sample", [obj])
    values = _values(obj)
    if isinstance(values, np.ndarray) and values.dtype.names:
        return "a structured array", {name: values[name] for name in values.dtype.names}, []
    if isinstance(values, np.ndarray):
        return "an array", {PLAIN: values}, []
    if values is None:
        raise SchemaError(
            f"an object of type {type(obj).__name__} is not a dataset; pass a dict of columns, a list of "
            "dicts, a DataFrame or an array"
        )
    return _of_rows("a list", values)


def _named(names: list[str], columns: list[Any]) -> dict[str, Any]:
    if len(set(names)) < len(names):
        raise SchemaError(f"two columns have one name: {', '.join(names)}")
    return dict(zip(names, columns, strict=True))


def _values(obj: Any) -> Values | None:
    """Return a column; None for a single value."""
    if isinstance(obj, list | tuple | range):
        return list(obj)
    if hasattr(obj, "to_numpy") and hasattr(obj, "isna"):
        return _series(obj)
    if hasattr(obj, "__array__") and not isinstance(obj, np.generic):
        # A mapped array stays one.
        array = obj if isinstance(obj, np.ndarray) else np.asarray(obj)
        if array.ndim:
            return list(array) if array.dtype.hasobject and not array.dtype.names else array
    return None


def _series(series: Any) -> Values:
    """Return a column of pandas: NaN and NaT stay in a column of numbers, else they become None."""
    if getattr(series.dtype, "tz", None) is not None:
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    if isinstance(series.dtype, np.dtype) and not series.dtype.hasobject:
        return np.asarray(series.to_numpy())
    missing = series.isna().to_numpy()
    # Columns of pandas' own kinds (text, nullable numbers, categories) as the values they stand for.
    values = series.to_numpy(dtype=object)
    return [None if is_missing else value for is_missing, value in zip(missing, values, strict=True)]


def _of_rows(kind: str, rows: list[Any]) -> tuple[str, dict[str, Values], list[str]]:
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        columns = [[row.get(name) for row in rows] for name in names]
        return f"{kind} of dicts", _named([str(name) for name in names], columns), []
    if rows and all(isinstance(row, tuple) and row for row in rows) and len({len(row) for row in rows}) == 1:
        fields = getattr(rows[0], "_fields", range(len(rows[0])))
        columns = [list(column) for column in zip(*rows, strict=True)]
        return f"{kind} of tuples", _named([str(name) for name in fields], columns), []
    return f"{kind} of values", {PLAIN: rows}, []
