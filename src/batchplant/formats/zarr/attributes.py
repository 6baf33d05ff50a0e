"""Attributes of arrays: the names of their axes and the value that means none, as xarray keeps them.

Zarr 2 has the names in the attribute ``_ARRAY_DIMENSIONS``, and takes the fill value for the missing one.
Zarr 3 has ``dimension_names`` beside the attributes, and a ``_FillValue`` of floats in base64.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.arrays import Part
from ..base.arrays.packed import from_text

AXES, MISSING = "_ARRAY_DIMENSIONS", "_FillValue"


def attributes_v2(found: Mapping[str, Any], array: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of an array of Zarr 2; ``array``: its metadata."""
    fill = array.get("fill_value")
    if AXES not in found or MISSING in found or fill is None or isinstance(fill, bool):
        return dict(found)
    value = from_text(fill) if isinstance(fill, str) else fill
    return {**found, MISSING: value} if isinstance(value, int | float) else dict(found)


def attributes_v3(document: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of an array of Zarr 3."""
    said, names = document.get("attributes"), document.get("dimension_names")
    result = dict(said) if isinstance(said, dict) else {}
    if isinstance(names, list) and any(names) and all(isinstance(name, str | None) for name in names):
        result.setdefault(AXES, [name or "" for name in names])
    if isinstance(result.get(MISSING), str) and (value := from_text(result[MISSING])) is not None:
        result[MISSING] = value
    return result


def axes_of(part: Part) -> list[str] | None:
    """The names of an array's axes, where its attributes have one for each."""
    found = part.attributes.get(AXES)
    if not isinstance(found, list | tuple) or len(found) != len(part.counted):
        return None
    return list(found) if all(isinstance(one, str) for one in found) else None


def written_v2(part: Part) -> tuple[dict[str, Any], Any]:
    """The attributes of an array that is written, and its fill value."""
    said = dict(part.attributes)
    if axes_of(part) is None:
        return said, _usual(part.dtype)
    value = said.pop(MISSING, None)
    # None: no value means that there is none.
    good = isinstance(value, int | float) and part.dtype.kind in "iuf"
    return said, (_json(value) if good else None)


def written_v3(part: Part) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of an array that is written, and what else its document has."""
    said, names = dict(part.attributes), axes_of(part)
    if names is not None:
        del said[AXES]
        value = said.get(MISSING)
        if part.dtype.kind == "f" and isinstance(value, int | float):
            said[MISSING] = base64.b64encode(struct.pack("<d", value)).decode()
    # A name that is empty is none.
    beside = {} if names is None else {"dimension_names": [name or None for name in names]}
    return said, {"fill_value": _usual(part.dtype), **beside}


def _usual(dtype: np.dtype[Any]) -> Any:
    return {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(dtype.kind, 0)


def _json(value: float) -> Any:
    """JSON has no numbers that are not finite."""
    if isinstance(value, int) or np.isfinite(value):
        return value
    return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
