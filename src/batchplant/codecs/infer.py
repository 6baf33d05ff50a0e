"""Field kinds of plain Python values, for formats that declare none."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..schema import Bool, Bytes, Decimal, Duration, Field, Float, Image, Int, Json, Tensor, Text, Time, Uuid
from ..schema.columns import Ragged
from .media import image


def infer_field(values: Iterable[Any]) -> Field:
    """Return the narrowest kind that holds all of them; a None makes it optional."""
    all_values = list(values)
    non_null = [value for value in all_values if value is not None]
    field = _kind(non_null)
    return dataclasses.replace(field, optional=True) if len(non_null) < len(all_values) else field


def infer_image(cells: Ragged) -> Image | None:
    """Return the field of these encoded images; None if one of the cells is not an image."""
    headers = image.probe(cells)
    encodings = {image.ENCODINGS[code] for code in headers[:, 0]}
    if not encodings or "" in encodings:
        return None
    mode = decoded_mode(mode or "RGB" for mode in image.modes(cells))
    return Image(encodings.pop() if len(encodings) == 1 else None, mode)


def decoded_mode(modes: Iterable[str]) -> str | None:
    """Return the mode that images of these modes decode to; None if they have none in common."""
    # Palettes and one-bit images are looked up; grayscale among colour decodes to RGB.
    decoded = {{"P": "RGB", "1": "L"}.get(mode, mode) for mode in modes} - {""}
    return decoded.pop() if len(decoded) == 1 else "RGB" if decoded <= {"L", "RGB"} else None


def infer_mask(field: Image, cells: Ragged) -> Image:
    """Return the field as one of masks, in the mode that these cells have."""
    modes = set(image.modes(cells)) - {""}
    mode = modes.pop() if len(modes) == 1 else "P" if modes <= {"P", "L", "1"} else None
    # The mode of a mask of colours is not fixed.
    return dataclasses.replace(field, mask=True, mode={"1": "L", "RGB": None}.get(mode or "", mode))


def _kind(values: Sequence[Any]) -> Field:
    def all_are(*kinds: type) -> bool:
        return all(isinstance(value, kinds) for value in values)

    if not values:
        return Json()
    if all_are(bool, np.bool_):
        return Bool()
    if all_are(int, np.integer) and not any(isinstance(value, bool) for value in values):
        if all(-(2**63) <= value < 2**63 for value in values):
            return Int()
        return Int("uint64") if all(0 <= value < 2**64 for value in values) else Json()
    if all_are(int, float, np.integer, np.floating) and not any(isinstance(v, bool) for v in values):
        return Float()
    if all_are(str):
        return Text()
    if all_are(bytes, bytearray, memoryview):
        return Bytes()
    if all_are(np.ndarray):
        return _array_kind(values)
    if all_are(bool, int, float, str, list, tuple, dict, type(None)):
        return Json()
    if all_are(uuid.UUID):
        return Uuid()
    if all_are(decimal.Decimal):
        return _decimal_kind(values)
    if (time := _time_kind(values)) is not None:
        return time
    raise SchemaError(f"values of type {type(values[0]).__name__} have no field kind")


def _time_kind(values: Sequence[Any]) -> Field | None:
    """Return the kind of points in time, dates, times of day or durations."""
    kinds = set(map(type, values))
    if kinds == {datetime.date}:
        return Time("D")
    if kinds == {datetime.time} and all(value.tzinfo is None for value in values):
        return Time("us", clock=True)
    if kinds == {datetime.timedelta}:
        return Duration("us")
    if kinds == {datetime.datetime}:
        zones = {value.tzinfo for value in values}
        if None not in zones:
            # The points in time are the same in any zone.
            return Time("us", "UTC")
        return Time("us") if len(zones) == 1 else None
    return None


def _decimal_kind(values: Sequence[decimal.Decimal]) -> Field:
    if not all(value.is_finite() for value in values):
        raise SchemaError("a decimal that is no number has no field kind")
    parts = [value.as_tuple() for value in values]
    scale = max(0, *(-int(part.exponent) for part in parts))
    integer_digits = max(len(part.digits) + int(part.exponent) for part in parts)
    return Decimal(max(integer_digits, 1) + scale, scale)


def _array_kind(arrays: Sequence[Any]) -> Field:
    dtypes = {array.dtype.newbyteorder("=") for array in arrays}
    ranks = {array.ndim for array in arrays}
    if len(dtypes) != 1 or len(ranks) != 1:
        raise SchemaError("arrays of differing dtypes or ranks have no field kind")
    sizes = [{array.shape[axis] for array in arrays} for axis in range(ranks.pop())]
    return Tensor(dtypes.pop().name, tuple(size.pop() if len(size) == 1 else None for size in sizes))
