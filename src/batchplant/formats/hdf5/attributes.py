"""Attributes as HDF5 has them: values of its types, the names of axes as labels and dimension scales."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

AXES = "_ARRAY_DIMENSIONS"
# These are of the type of the values that they stand among.
TYPED = ("_FillValue", "missing_value")


def write_attributes(thing: Any, values: Mapping[str, Any]) -> None:
    """Give a group or a dataset these attributes."""
    shape, dtype = getattr(thing, "shape", None), getattr(thing, "dtype", None)
    for key, value in values.items():
        if key == AXES and shape is not None and _name_each(value, len(shape)):
            for axis, name in zip(thing.dims, value, strict=True):
                axis.label = name
        elif key in TYPED and dtype is not None and dtype.kind in "iuf" and _fits(value, dtype):
            thing.attrs[key] = np.asarray(value, dtype)
        else:
            thing.attrs[key] = attribute(value)


def attach_axes(file: Any, names: Sequence[str]) -> None:
    """A field that is called like an axis of others, and has a number for each place on it, is its scale."""
    found = {name: file[name] for name in names if hasattr(file.get(name), "dims")}
    scales = {name: one for name, one in found.items() if one.ndim == 1 and one.dims[0].label == name}
    for name, one in scales.items():
        if one.dtype.kind in "iuf":
            one.make_scale(name)
    for name, one in found.items():
        for number, axis in enumerate(one.dims):
            scale = scales.get(axis.label)
            if scale is None or name == axis.label or scale.dtype.kind not in "iuf":
                continue
            if scale.shape[0] == one.shape[number]:
                axis.attach_scale(scale)


def _name_each(value: Any, axes: int) -> bool:
    good = isinstance(value, list | tuple) and len(value) == axes
    return good and all(isinstance(one, str) for one in value)


def _fits(value: Any, dtype: np.dtype[Any]) -> bool:
    one = np.asarray(value)
    return one.dtype.kind in "iuf" and (dtype.kind == "f" or bool((one.astype(dtype) == one).all()))


def attribute(value: Any) -> Any:
    """Convert a value to one that HDF5 can hold: numbers, texts, arrays of one kind; else its JSON."""
    if isinstance(value, list | tuple):
        kinds = {type(one) for one in value}
        if not value or kinds == {str} or kinds <= {int, float, bool}:
            return list(value)
    elif not isinstance(value, dict | None):
        return value
    return json.dumps(value, ensure_ascii=False)
