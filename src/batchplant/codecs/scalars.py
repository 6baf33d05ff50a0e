"""Decimals and UUIDs: their values to text, which is their cell, and back."""

from __future__ import annotations

import decimal
import operator
import uuid
from typing import Any

from ..errors import SchemaError
from ..schema import Decimal

# Wide enough for every decimal that a field can name; rounding raises an error.
_EXACT = decimal.Context(
    prec=200, Emin=-999, Emax=999, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow]
)


def decimal_text(field: Decimal, value: Any) -> str:
    """Return all digits of a number, without an exponent: ``-12.50`` for a scale of 2."""
    if isinstance(value, float):
        raise SchemaError(f"{value!r} is no exact decimal; give a Decimal, a whole number or text")
    try:
        number = decimal.Decimal(value if isinstance(value, decimal.Decimal | str) else operator.index(value))
        exact = number.quantize(decimal.Decimal(1).scaleb(-field.scale, _EXACT), context=_EXACT)
    except decimal.DecimalException:
        raise SchemaError(f"{value!r} does not fit {field} exactly") from None
    if not exact.is_finite() or len(exact.as_tuple().digits) > field.precision:
        raise SchemaError(f"{value!r} does not fit {field}")
    # Tables have no -0.
    return format(exact if exact else abs(exact), "f")


def decimal_value(field: Decimal, text: str) -> decimal.Decimal:
    # Checked, and 1000 becomes 1E+3 where the scale is -3.
    number = decimal.Decimal(decimal_text(field, text))
    return number.quantize(decimal.Decimal(1).scaleb(-field.scale, _EXACT), context=_EXACT)


def uuid_text(value: Any) -> str:
    """Return the text of a UUID, given as such, as text in any of its forms, or as its 16 bytes."""
    if isinstance(value, uuid.UUID):
        return str(value)
    return str(uuid.UUID(value) if isinstance(value, str) else uuid.UUID(bytes=bytes(memoryview(value))))
