"""Columns as batches: arrays, (values, offsets), lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..codecs.cells import decode_cell
from ..codecs.text import numbers_of
from ..errors import DataError, DecodeError
from ..ops.values import ragged_values
from ..schema import Field, List
from ..schema.columns import Column, Masked, Ragged
from .images import Failures
from .planning import spec_of


def as_values(field: Field, column: Column, *, copy: bool) -> tuple[Any, Failures]:
    """A column as a batch: an array, (values, offsets), or a list where cells are no numbers.

    Arrays belong to the batch and can be written to.
    """
    if isinstance(column, Masked):
        try:
            column = column.values
        except DecodeError as error:
            return None, {error.sample or 0: error}
    if not isinstance(column, Ragged):
        return column.copy() if copy or not column.flags.writeable else column, {}
    spec = spec_of(field)
    failures: Failures = {}
    if spec.dtype is None:
        cells = []
        for row in range(len(column)):
            try:
                value = decode_cell(field, column, row)
                cells.append(value.copy() if isinstance(value, np.ndarray) else value)
            except DataError as error:
                failures[row] = error
        return cells, failures
    if isinstance(field, List):
        try:
            column = numbers_of(field, column)
        except DecodeError as error:
            return None, {error.sample or 0: error}
    rest = tuple(size for size in spec.shape[1:] if size is not None)
    width = spec.dtype.itemsize * int(np.prod(rest))
    for row in np.flatnonzero(column.sizes % width).tolist():
        failures[row] = DecodeError(f"{column.sizes[row]} bytes are not {field}")
    if failures:
        return None, failures
    values, offsets = ragged_values(column, spec.dtype, rest)
    return (values.copy() if copy or not values.flags.writeable else values, offsets), {}
