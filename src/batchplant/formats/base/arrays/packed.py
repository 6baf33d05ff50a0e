"""Numbers that stand for others: scale_factor, add_offset, _FillValue and missing_value, as NetCDF has them.

They are read as they are stored, with a warning, unless ``decode`` says what to do: True gives the values
that they stand for, NaN where one is missing; False leaves them as they are.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
import struct
import types
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from ....data.reader import Reader
from ....errors import SchemaError, located
from ....schema import Field, Float, Int, Schema, Tensor
from ....schema.columns import AnyArray, AnyDType, Column, Columns, Ragged, as_bytes

SCALE, OFFSET, FILLS, UNSIGNED = "scale_factor", "add_offset", ("_FillValue", "missing_value"), "_Unsigned"
NAMES = (SCALE, OFFSET, *FILLS, UNSIGNED)
# Whole numbers up to here are exact as float64.
MAX_EXACT_INT = 2**53


@dataclasses.dataclass(frozen=True)
class Rule:
    """Meaning of stored numbers: ``stored * scale + offset``, or nothing where they are in ``fills``."""

    stored: AnyDType
    dtype: AnyDType
    scale: float | None
    offset: float | None
    fills: tuple[Any, ...]

    def decode(self, stored: AnyArray) -> AnyArray:
        stored = stored.view(self.stored)
        missing = np.isin(stored, self.fills) if self.fills else np.zeros(stored.shape, dtype=np.bool_)
        wide = self.stored.kind in "iu" and self.stored.itemsize == 8
        if wide and self.scale is None and self.offset is None and not missing.all():
            valid = stored[~missing]
            if int(valid.max()) > MAX_EXACT_INT or int(valid.min()) < -MAX_EXACT_INT:
                raise SchemaError("whole numbers beyond 2**53 do not fit beside NaN; decode=False reads them")
        numbers = stored.astype(self.dtype)
        if self.scale is not None:
            numbers *= self.dtype.type(self.scale)
        if self.offset is not None:
            numbers += self.dtype.type(self.offset)
        numbers[missing] = np.nan
        return numbers

    def summary(self) -> str:
        parts = [f"{SCALE} {self.scale:g}"] if self.scale is not None else []
        parts += [f"{OFFSET} {self.offset:g}"] if self.offset is not None else []
        parts += [f"missing: {', '.join(map(str, self.fills))}"] if self.fills else []
        return ", ".join(parts) or "unsigned"


def rule_of(field: Field, attributes: Mapping[str, Any]) -> Rule | None:
    """Return the rule in the attributes of a field; None if there is none."""
    if not isinstance(field, Int | Float | Tensor) or not any(name in attributes for name in NAMES):
        return None
    stored = np.dtype(field.dtype)
    if stored.kind not in "iuf" or (isinstance(field, Int) and field.names):
        return None
    if stored.kind == "i" and str(attributes.get(UNSIGNED)).lower() == "true":
        stored = np.dtype(f"u{stored.itemsize}")
    scale, offset = (_number(attributes.get(name)) for name in (SCALE, OFFSET))
    fills = tuple(dict.fromkeys(fill for name in FILLS for fill in _fills(attributes.get(name), stored)))
    # NaN is missing as it is, and 1 and 0 change nothing.
    scale, offset = (None if scale == 1 else scale), (None if offset == 0 else offset)
    if scale is None and offset is None and not fills and stored == field.dtype:
        return None
    small = stored.itemsize <= (2 if stored.kind in "iu" else 4)
    return Rule(stored, np.dtype(np.float32 if small else np.float64), scale, offset, fills)


def _number(value: Any) -> float | None:
    number = value[0] if isinstance(value, list) and len(value) == 1 else value
    good = isinstance(number, int | float) and not isinstance(number, bool)
    return float(number) if good and math.isfinite(number) else None


def _fills(value: Any, stored: AnyDType) -> list[Any]:
    """The values that mean that there is none, as stored."""
    fills = []
    for fill in value if isinstance(value, list) else [value]:
        if isinstance(fill, str):
            fill = from_text(fill)
        if fill is None or isinstance(fill, bool) or not isinstance(fill, int | float) or fill != fill:
            continue
        if stored.kind == "u" and fill < 0:
            # Stored with a sign that it does not have.
            fill += 2 ** (8 * stored.itemsize)
        try:
            fills.append(np.array(fill).astype(stored).item() if stored.kind == "f" else _whole(fill, stored))
        except (OverflowError, ValueError):
            continue
    return [fill for fill in fills if fill is not None]


def _whole(number: float, stored: AnyDType) -> int | None:
    about = np.iinfo(stored)
    return int(number) if float(number).is_integer() and about.min <= number <= about.max else None


def from_text(text: str) -> float | None:
    """A number as text, or as xarray packs it in Zarr 3."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        data = base64.b64decode(text, validate=True)
        return float(struct.unpack("<d", data)[0]) if len(data) == 8 else None
    except (binascii.Error, ValueError):
        return None


class PackedReader(Reader):
    """A reader whose attributes may say what its numbers stand for; open, it calls :meth:`_unpack`."""

    _rules: Mapping[str, Rule] = types.MappingProxyType({})

    def _said(self) -> Mapping[str, Mapping[str, Any]]:
        """The attributes of the fields, as far as they are known without much work."""
        return self.attributes

    def _unpack(self, decode: bool | None) -> None:
        self._rules = {}
        if decode is False:
            return
        attributes, fields = self._said(), dict(self.schema)
        every = {name: rule_of(field, attributes.get(name, {})) for name, field in fields.items()}
        rules = {name: rule for name, rule in every.items() if rule is not None}
        if decode:
            self._rules = rules
            self.schema = Schema({name: _decoded(field, rules.get(name)) for name, field in fields.items()})
        elif rules:
            examples = "; ".join(f"{name} ({rule.summary()})" for name, rule in list(rules.items())[:5])
            warnings.warn(
                f"{self.path}: numbers are read as stored, but stand for others: {examples}; decode=True "
                "gives those, decode=False leaves them and says nothing",
                stacklevel=2,
            )

    def _unpacked(self, columns: Columns) -> Columns:
        for name in self._rules.keys() & columns.keys():
            with located(path=self.path, field=name):
                columns[name] = _decode(self._rules[name], columns[name])
        return columns

    def _without_rules(self, attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Attributes without what has been applied."""
        remaining = {
            name: {key: value for key, value in values.items() if name not in self._rules or key not in NAMES}
            for name, values in attributes.items()
        }
        return {name: values for name, values in remaining.items() if values}


def _decoded(field: Field, rule: Rule | None) -> Field:
    if rule is None:
        return field
    if isinstance(field, Tensor):
        return dataclasses.replace(field, dtype=rule.dtype.name)
    return Float(rule.dtype.name, optional=field.optional)


def _decode(rule: Rule, column: Column) -> Column:
    if not isinstance(column, Ragged):
        return rule.decode(np.ascontiguousarray(column))
    packed = column.take(slice(None))
    values = rule.decode(packed.data.view(rule.stored))
    wider = rule.dtype.itemsize
    return Ragged(as_bytes(values), packed.offsets // rule.stored.itemsize * wider, None, packed.valid)
