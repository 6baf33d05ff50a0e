"""Times, decimals and UUIDs to values and back.

The cell of a time is its count of units, and its text is ISO 8601. Its value is one of Python's ``datetime``,
``date``, ``time`` or ``timedelta`` if these hold it exactly; one of nanoseconds, or beyond their years, is a
``numpy.datetime64`` or ``timedelta64``. The cell of a decimal or UUID is its text.
"""

from __future__ import annotations

import datetime
import decimal
import operator
import uuid
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DecodeError, EncodeError, SchemaError
from ..schema import Decimal, Duration, Field, Time
from ..schema.columns import I64, AnyDType, Column, Ragged

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


Counted = Time | Duration

_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
NAT = -(2**63)


def dtype_of(field: Counted) -> AnyDType:
    """Return NumPy's type of the same counts."""
    spans = isinstance(field, Duration) or field.clock
    return np.dtype(f"{'timedelta64' if spans else 'datetime64'}[{field.unit}]")


# -- values ------------------------------------------------------------------------------------------------


def count_of(field: Counted, value: Any) -> int | None:
    """Return a value in units: a value of Python, NumPy or pandas, ISO text, or a number; None for NaT."""
    if isinstance(value, str):
        count: int | None = field.parse(value)
    elif isinstance(value, datetime.timedelta):
        count = _span(field, value)
    elif isinstance(value, datetime.date | datetime.time):
        count = _moment(field, value)
    elif isinstance(value, np.datetime64 | np.timedelta64):
        count = _numpy(field, value)
    elif isinstance(value, bool | np.bool_):
        raise SchemaError(f"a truth value does not fit {field}")
    else:
        count = operator.index(value.item() if isinstance(value, np.ndarray) else value)
    if count is not None and count not in field.counts:
        raise SchemaError(f"{value!r} is out of range for {field}")
    return count


def beyond(field: Counted, counts: I64) -> I64:
    """Return the rows whose counts are out of range, such as a time of day of 25 hours."""
    wrong = (counts < field.counts[0]) | (counts > field.counts[-1])
    return np.flatnonzero(wrong)


def unfit_rows(field: Field, column: Column, years: tuple[int, int] | None = None) -> list[int]:
    """Return the rows of a column whose counts are out of range, or not in these years."""
    if not isinstance(field, Counted):
        return []
    if isinstance(column, Ragged):
        rows = np.arange(len(column)) if column.valid is None else np.flatnonzero(column.valid)
        if (column.sizes[rows] != 8).any():
            raise EncodeError("a cell is not 8 bytes long")
        counts = np.ascontiguousarray(column.data[column.offsets[0] : column.offsets[-1]]).view(np.int64)
    else:
        rows, counts = np.arange(len(column)), column
    wrong = beyond(field, counts)
    # Nanoseconds do not reach beyond any of the years.
    if years is not None and isinstance(field, Time) and field.unit != "ns" and not field.clock:
        clock = "T00:00:00Z" if field.tz is not None else ""
        first, last = (field.parse(f"{year:04d}-01-01{clock}") for year in years)
        wrong = np.flatnonzero((counts < first) | (counts >= last))
    return [int(row) for row in rows[wrong]]


def _moment(field: Counted, value: datetime.date | datetime.time) -> int | None:
    # pandas' NaT is a datetime that differs from itself.
    if value != value:
        return None
    clock = isinstance(value, datetime.time)
    if isinstance(field, Duration) or field.clock != clock:
        raise SchemaError(f"{type(value).__name__} does not fit {field}")
    if isinstance(value, datetime.datetime) and value.tzinfo is not None and field.tz is not None:
        value = value.astimezone(datetime.UTC)
    # pandas' timestamps are finer than Python's, which only their text shows.
    return field.parse(value.isoformat())


def _span(field: Counted, value: datetime.timedelta) -> int | None:
    if value != value:
        return None
    if isinstance(field, Time):
        raise SchemaError(f"{type(value).__name__} does not fit {field}")
    nanoseconds = (value.days * 86_400 + value.seconds) * 10**9 + value.microseconds * 1000
    nanoseconds += int(getattr(value, "nanoseconds", 0))
    step = 10**9 * 86_400 // _PER_DAY[field.unit]
    if nanoseconds % step:
        raise SchemaError(f"{value!r} is finer than {field.unit}")
    return nanoseconds // step


def _numpy(field: Counted, value: Any) -> int | None:
    dtype = dtype_of(field)
    if np.isnat(value):
        return None
    if value.dtype.kind != dtype.kind:
        raise SchemaError(f"{value.dtype} does not fit {field}")
    converted = value.astype(dtype)
    # Both ways, so that neither a finer unit nor a number too large gets lost.
    if np.isnat(converted) or converted.astype(value.dtype) != value:
        raise SchemaError(f"{value!r} does not fit {field} exactly")
    return int(converted.astype(np.int64))


def value_of(field: Counted, count: int) -> Any:
    """Return the value of so many units."""
    try:
        if isinstance(field, Time) and field.unit == "D":
            return datetime.date.fromordinal(count + _EPOCH.toordinal())
        if field.unit != "ns":
            return _python_value(field, datetime.timedelta(microseconds=count * _MICROSECONDS[field.unit]))
    except (OverflowError, ValueError):
        pass
    if count not in field.counts:
        raise DecodeError(f"{count} {field.unit} is out of range for {field}")
    return np.int64(count).view(dtype_of(field))


def _python_value(field: Counted, span: datetime.timedelta) -> Any:
    if isinstance(field, Duration):
        return span
    if field.clock:
        if span.days:
            raise OverflowError
        return (_EPOCH + span).time()
    if field.tz is None:
        return _EPOCH + span
    return (_EPOCH.replace(tzinfo=datetime.UTC) + span).astimezone(field.zone)


# -- text --------------------------------------------------------------------------------------------------


def texts_of(field: Counted, counts: I64) -> npt.NDArray[np.bytes_]:
    """Return the ISO text of each; times with a zone are in UTC, with a Z."""
    if not len(counts):
        return np.zeros(0, dtype="S1")
    if isinstance(field, Duration):
        return np.array([_span_text(field, count) for count in counts.tolist()], dtype=np.bytes_)
    for row in beyond(field, counts)[:1].tolist():
        raise DecodeError(f"{counts[row]} {field.unit} is out of range for {field}", sample=row)
    if field.clock:
        dated = np.datetime_as_string(counts.view(f"M8[{field.unit}]")).astype(np.bytes_)
        return _cut(dated, len("1970-01-01T"))
    texts = np.datetime_as_string(counts.view(dtype_of(field))).astype(np.bytes_)
    return texts if field.tz is None else np.char.add(texts, b"Z")


def _cut(texts: npt.NDArray[np.bytes_], start: int) -> npt.NDArray[np.bytes_]:
    """Return texts of one length without their first letters."""
    letters = np.ascontiguousarray(texts).view("S1").reshape(len(texts), texts.dtype.itemsize)
    return np.ascontiguousarray(letters[:, start:]).view(f"S{letters.shape[1] - start}").reshape(-1)


def _span_text(field: Duration, count: int) -> str:
    per = _PER_DAY[field.unit] // 86_400
    seconds, part = divmod(abs(count), per)
    digits = f".{part:0{len(str(per)) - 1}d}".rstrip("0") if part else ""
    return f"{'-' if count < 0 else ''}PT{seconds}{digits}S"


def counts_of(field: Counted, texts: npt.NDArray[np.bytes_]) -> I64:
    """Return the counts of texts; an error's ``sample`` is the row."""
    if isinstance(field, Time) and not field.clock and len(texts):
        # NumPy parses exactly what it would write itself, and quickly.
        bare = texts if field.tz is None else np.char.rstrip(texts, b"Z")
        zoned = field.tz is None or bool(np.char.endswith(texts, b"Z").all())
        try:
            parsed = bare.astype(dtype_of(field)) if zoned else None
        except ValueError:
            parsed = None
        if parsed is not None and bool((np.datetime_as_string(parsed).astype(np.bytes_) == bare).all()):
            return parsed.view(np.int64)
    counts = np.empty(len(texts), dtype=np.int64)
    for row, text in enumerate(texts.tolist()):
        try:
            counts[row] = NAT if text in (b"NaT", b"NaTZ") else field.parse(text.decode("utf-8", "replace"))
        except SchemaError as error:
            raise DecodeError(error.message, sample=row) from None
    return counts
