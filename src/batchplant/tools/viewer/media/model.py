"""The tensors of a model as a list: what each is, without reading its values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ....data.reader import Reader
from ....data.tensors import shape_of, size_of, text_of
from ....errors import BatchplantError
from ....schema.columns import I64

# Tensors that are read together.
STEP = 2048
SORTS = ("name", "dtype", "parameters", "bytes")


def tensors(reader: Reader, numbers: I64, told: Callable[[int, int], None]) -> list[dict[str, Any]]:
    """Name, dtype, shape, parameters and bytes of these tensors."""
    found = []
    for at in range(0, len(numbers), STEP):
        told(at, len(numbers))
        part = numbers[at : at + STEP]
        columns = reader.read(part, ["name", "dtype", "shape"])
        for row, sample in enumerate(part.tolist()):
            found.append({"sample": sample, **_one(columns, row)})
    return found


def _one(columns: Any, row: int) -> dict[str, Any]:
    try:
        name, dtype = text_of(columns["name"], row), text_of(columns["dtype"], row)
        shape = shape_of(columns["shape"], row)
        return {
            "name": name, "dtype": dtype, "shape": list(shape), "parameters": math.prod(shape),
            "bytes": size_of(dtype, shape),
        }  # fmt: skip
    except BatchplantError as error:
        return {"name": "", "dtype": "", "shape": [], "parameters": 0, "bytes": 0, "error": error.message}


def chosen(
    found: list[dict[str, Any]], search: str, sort: str, down: bool, start: int, count: int
) -> dict[str, Any]:
    """Those with this text in their name, some of them; parameters and bytes of all of those."""
    lower = search.lower()
    fitting = [one for one in found if lower in one["name"].lower()] if lower else found
    if sort in SORTS:
        fitting = sorted(fitting, key=lambda one: one[sort], reverse=down)
    dtypes, counts = np.unique([one["dtype"] for one in fitting], return_counts=True)
    return {
        "tensors": fitting[start : start + count], "count": len(fitting), "of": len(found),
        "parameters": sum(one["parameters"] for one in fitting),
        "bytes": sum(one["bytes"] for one in fitting),
        "dtypes": dict(zip(dtypes.tolist(), counts.tolist(), strict=True)),
    }  # fmt: skip
