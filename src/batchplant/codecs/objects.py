"""Which Python objects are datasets, and what their columns are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import SchemaError

PLAIN = "data"

Values = npt.NDArray[Any] | list[Any]


def as_columns(objects: Sequence[Any]) -> tuple[str, dict[str, Values], list[str]]:
    """(what it is, its columns, the names of what stands beside them and is no column)."""
    if len(objects) != 1:
        listed = bool(objects) and all(isinstance(one, list) for one in objects)
        rows = [row for one in objects for row in one] if listed else list(objects)
        return _of_rows(f"{len(objects)} pickles", rows)
    [found] = objects
    if hasattr(found, "iloc") and hasattr(found, "columns"):
        names = [str(name) for name in found.columns]
        return "a DataFrame", _named(names, [_series(found.iloc[:, at]) for at in range(len(names))]), []
    if isinstance(found, Mapping):
        names = [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in found]
        columns = _named(names, [_values(one) for one in found.values()])
        held = {name: values for name, values in columns.items() if values is not None}
        if held:
            return "a dict of columns", held, [name for name in columns if name not in held]
        return _of_rows("one sample", [found])
    values = _values(found)
    if isinstance(values, np.ndarray) and values.dtype.names:
        return "a structured array", {name: values[name] for name in values.dtype.names}, []
    if isinstance(values, np.ndarray):
        return "an array", {PLAIN: values}, []
    if values is None:
        raise SchemaError(
            f"an object of type {type(found).__name__} is not a dataset; pass a dict of columns, a list of "
            "dicts, a DataFrame or an array"
        )
    return _of_rows("a list", values)


def _named(names: list[str], columns: list[Any]) -> dict[str, Any]:
    if len(set(names)) < len(names):
        raise SchemaError(f"two columns have one name: {', '.join(names)}")
    return dict(zip(names, columns, strict=True))


def _values(found: Any) -> Values | None:
    """A column; None for what is a single value."""
    if isinstance(found, list | tuple | range):
        return list(found)
    if hasattr(found, "to_numpy") and hasattr(found, "isna"):
        return _series(found)
    if hasattr(found, "__array__") and not isinstance(found, np.generic):
        # A mapped array stays one.
        array = found if isinstance(found, np.ndarray) else np.asarray(found)
        if array.ndim:
            return list(array) if array.dtype.hasobject and not array.dtype.names else array
    return None


def _series(found: Any) -> Values:
    """A column of pandas: NaN and NaT are numbers where the column is one of numbers, else None."""
    if getattr(found.dtype, "tz", None) is not None:
        found = found.dt.tz_convert("UTC").dt.tz_localize(None)
    if isinstance(found.dtype, np.dtype) and not found.dtype.hasobject:
        return np.asarray(found.to_numpy())
    missing = found.isna().to_numpy()
    # Columns of pandas' own kinds (text, nullable numbers, categories) as the values they stand for.
    values = found.to_numpy(dtype=object)
    return [None if gone else value for gone, value in zip(missing, values, strict=True)]


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
