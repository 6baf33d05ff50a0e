"""What a dataset holds, for charts: the statistics of some samples or all, and the filter behind each bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from ...codecs import times
from ...data.expressions import bind, col, parse
from ...data.reader import Reader
from ...errors import BatchplantError, shortened
from ...jobs import stats
from ...jobs.stats import Copies, FieldStats, Numbers, Values
from ...schema import Bool, Duration, Field, Float, Int, Text, Time
from ...schema.columns import I64
from ..doctor import sampling

Progress = Callable[[int, int], None]

# Looked at unless all are asked for: so many samples, fewer where they are large.
SAMPLE, SAMPLE_BYTES = 2000, 64 << 20
# Values with their counts that the page gets, and whole numbers that are shown one by one.
VALUES, CLASSES = 500, 64
POINTS = 2000
# Characters of a value that a chart shows.
LABEL_CHARACTERS = 200


def overview(reader: Reader, rows: I64 | None, *, exact: bool, told: Progress) -> dict[str, Any]:
    """Statistics of the samples that a filter left (``rows``; None: all); their numbers are the dataset's."""
    chosen = reader if rows is None else reader.subset(rows)
    found = stats.collect(chosen, sample=None if exact else _affordable(chosen), progress=told)

    def numbers(some: list[int]) -> list[int]:
        return some if rows is None else rows[some].tolist()

    schema = reader.schema
    return {
        "samples": found.samples,
        "looked_at": found.looked_at,
        "exact": found.looked_at == found.samples,
        "unreadable": found.unreadable,
        "problems": [
            {"message": one.message, "field": one.field,
             "sample": None if one.sample is None else numbers([one.sample])[0]}
            for one in found.problems
        ],
        "bytes": found.bytes,
        "remarks": list(found.remarks),
        "copies": _copies(found.copies, numbers),
        "fields": [
            {"name": name, **_field(reader, name, one), "copies": _copies(one.copies, numbers)}
            for name, one in found.fields.items() if name in schema
        ],
    }  # fmt: skip


def _affordable(reader: Reader) -> int:
    each = sampling.mean_bytes(reader)
    return max(1, min(SAMPLE, max(sampling.FEWEST, int(SAMPLE_BYTES / max(each, 1)))))


def _copies(found: Copies | None, numbers: Callable[[list[int]], list[int]]) -> dict[str, Any] | None:
    if found is None:
        return None
    groups = [numbers(group) for group in found.groups]
    return {
        "count": found.count, "different": found.different, "one_in": found.one_in, "groups": groups
    }  # fmt: skip


def _field(reader: Reader, name: str, found: FieldStats) -> dict[str, Any]:
    field = reader.schema[name]
    return {
        "kind": found.kind,
        "type": found.type,
        "count": found.count,
        "missing": found.missing,
        "missing_where": _checked(reader, f"{_named(name)} is null") if found.missing else None,
        "unknown": found.unknown,
        "bytes": found.bytes,
        "numbers": {
            what: _numbers(reader, name, field, what, one)
            for what, one in found.numbers.items() if one.count or one.nan or one.infinite
        },
        "values": {
            what: _values(reader, name, field, what, one)
            for what, one in found.values.items() if _is_shown(field, what, one)
        },
        "resolutions": _resolutions(found.values.get("resolutions")),
    }  # fmt: skip


def _is_shown(field: Field, what: str, found: Values) -> bool:
    """Whether values are worth a bar each: classes are, numbers that are all over the place are not."""
    if what != "values" or isinstance(field, Bool) or (isinstance(field, Int) and field.names):
        return True
    if isinstance(field, Text):
        return max(found.counts.values(), default=0) > 1
    return len(found.counts) <= CLASSES


def _numbers(reader: Reader, name: str, field: Field, what: str, found: Numbers) -> dict[str, Any]:
    edges, counts = found.histogram
    texts: list[str] | None = None
    if isinstance(field, Time | Duration) and what == "values":
        texts = _times(field, edges)
    wheres: list[str | None] = []
    # Of whole numbers, those below an edge are those below the next whole number.
    if what == "values" and type(field) in (Int, Float, Time, Duration):
        ends: list[Any] = list(texts or (map(math.ceil, edges) if isinstance(field, Int) else edges))
        wheres = [_between(reader, name, field, ends, at) for at in range(len(counts))]
    return {
        "count": found.count, "min": found.min, "max": found.max, "mean": found.mean, "std": found.std,
        "median": found.median, "nan": found.nan, "infinite": found.infinite,
        "edges": edges, "texts": texts, "counts": counts, "wheres": wheres,
    }  # fmt: skip


def _times(field: Time | Duration, edges: list[float]) -> list[str]:
    found = times.texts_of(field, np.array([math.ceil(one) for one in edges], dtype=np.int64))
    return [text.decode() for text in found.tolist()]


def _between(reader: Reader, name: str, field: Field, ends: list[Any], at: int) -> str | None:
    """The filter that leaves one bin: up to its end, and with it where it is the last."""
    low, high, last = ends[at], ends[at + 1], at == len(ends) - 2
    one = type(field) is Int and (high == low if last else high == low + 1)
    if one or low == high:
        return _checked(reader, str(col(name) == low))
    upper = col(name) <= high if last else col(name) < high
    return _checked(reader, str((col(name) >= low) & upper))


def _values(reader: Reader, name: str, field: Field, what: str, found: Values) -> dict[str, Any]:
    comparable = what == "values" and isinstance(field, Int | Bool | Text)
    items = []
    for value, count in list(found.counts.items())[:VALUES]:
        where = _checked(reader, str(col(name) == _compared(field, value))) if comparable else None
        items.append({"label": _label(value), "count": count, "where": where})
    return {"items": items, "different": len(found.counts), "exact": found.exact, "slack": found.slack}


def _label(value: Hashable) -> str:
    return ("false", "true")[value] if isinstance(value, bool) else shortened(str(value), LABEL_CHARACTERS)


def _compared(field: Field, value: Any) -> Any:
    """What a filter compares with: a class with a long name by its number."""
    if isinstance(field, Int) and field.names and isinstance(value, str) and len(value) > LABEL_CHARACTERS:
        return field.number(value)
    return value


def _resolutions(found: Values | None) -> list[list[int]]:
    if found is None:
        return []
    points = []
    for text, count in list(found.counts.items())[:POINTS]:
        width, _, height = str(text).partition("×")
        points.append([int(width), int(height), count])
    return points


def _named(name: str) -> str:
    """A field as a filter names it."""
    return str(col(name) == 0).removesuffix(" == 0")


def _checked(reader: Reader, where: str) -> str | None:
    """The filter, where it can be used on this dataset."""
    try:
        bind(parse(where), reader.schema)
    except BatchplantError:
        return None
    return where
