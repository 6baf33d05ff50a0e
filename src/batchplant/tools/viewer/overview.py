"""Statistics of a dataset for charts, and the filter behind each bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from ...codecs import scalars
from ...data.expressions import bind, col, parse
from ...data.reader import Reader
from ...errors import BatchplantError, OptionError, shortened
from ...jobs import stats
from ...jobs.stats import Copies, FieldStats, Numbers, Values
from ...order.keyed import key_of, uniform
from ...schema import Bool, Duration, Field, Float, Int, Text, Time
from ...schema.columns import I64, Masked, Ragged
from .. import Document
from ..doctor.examination import MIN_SAMPLES, mean_bytes
from .cells import Progress
from .render import is_map

# Samples that are read unless the user asks for all, fewer where they are large.
MAX_SAMPLES, MAX_BYTES = 2000, 64 << 20
# Values with their counts that the page gets, and distinct integers up to which each gets a bar.
MAX_VALUES, MAX_BARS = 500, 64
MAX_RESOLUTIONS = 2000
# Statistics of numbers that the page shows as they are.
NUMBERS = ("count", "min", "max", "mean", "std", "median", "nan", "infinite")
# Points of a map, of more samples some are drawn at random; and groups with a name.
MAX_POINTS, MAX_GROUPS = 8000, 24
# Letters of a value that a chart shows.
LABEL_LETTERS = 200


def collect_overview(
    reader: Reader, rows: I64 | None, *, exact: bool, progress: Progress, max_samples: int = MAX_SAMPLES
) -> Document:
    """Return statistics of the samples in ``rows`` (None: all), with sample numbers of the dataset."""
    selected = reader if rows is None else reader.subset(rows)
    report = stats.collect(
        selected, sample=None if exact else _sample_count(selected, max_samples), progress=progress
    )

    def numbers(positions: list[int]) -> list[int]:
        return positions if rows is None else rows[positions].tolist()

    schema = reader.schema
    return {
        "samples": report.samples,
        "looked_at": report.looked_at,
        "exact": report.looked_at == report.samples,
        "unreadable": report.unreadable,
        "problems": [
            {
                "message": problem.message,
                "field": problem.field,
                "sample": None if problem.sample is None else numbers([problem.sample])[0],
            }
            for problem in report.problems
        ],
        "bytes": report.bytes,
        "remarks": list(report.remarks),
        "copies": _copies(report.copies, numbers),
        "fields": [
            {"name": name, **_field(reader, name, field), "copies": _copies(field.copies, numbers)}
            for name, field in report.fields.items()
            if name in schema
        ],
    }


def _sample_count(reader: Reader, max_samples: int) -> int:
    sample_bytes = mean_bytes(reader)
    return max(1, min(max_samples, max(MIN_SAMPLES, int(MAX_BYTES / max(sample_bytes, 1)))))


def _copies(copies: Copies | None, numbers: Callable[[list[int]], list[int]]) -> Document | None:
    if copies is None:
        return None
    groups = [numbers(group) for group in copies.groups]
    return {"count": copies.count, "different": copies.different, "one_in": copies.one_in, "groups": groups}


def _field(reader: Reader, name: str, summary: FieldStats) -> Document:
    field = reader.schema[name]
    return {
        "kind": summary.kind,
        "type": summary.type,
        "count": summary.count,
        "missing": summary.missing,
        "missing_where": _checked(reader, f"{_named(name)} is null") if summary.missing else None,
        "unknown": summary.unknown,
        "bytes": summary.bytes,
        "numbers": {
            statistic: _numbers(reader, name, field, statistic, numbers)
            for statistic, numbers in summary.numbers.items()
            if numbers.count or numbers.nan or numbers.infinite
        },
        "values": {
            statistic: _values(reader, name, field, statistic, values)
            for statistic, values in summary.values.items()
            if _is_shown(field, statistic, values)
        },
        "resolutions": _resolutions(summary.values.get("resolutions")),
    }


def _is_shown(field: Field, statistic: str, values: Values) -> bool:
    """Return whether values get a bar each: classes do, scattered numbers do not."""
    if statistic != "values" or isinstance(field, Bool) or (isinstance(field, Int) and field.names):
        return True
    if isinstance(field, Text):
        return max(values.counts.values(), default=0) > 1
    return len(values.counts) <= MAX_BARS


def _numbers(reader: Reader, name: str, field: Field, statistic: str, numbers: Numbers) -> Document:
    edges, counts = numbers.histogram
    texts: list[str] | None = None
    if isinstance(field, Time | Duration) and statistic == "values":
        texts = _times(field, edges)
    wheres: list[str | None] = []
    # For integers, "below an edge" is below the next integer.
    if statistic == "values" and type(field) in (Int, Float, Time, Duration):
        ends: list[Any] = list(texts or (map(math.ceil, edges) if isinstance(field, Int) else edges))
        wheres = [_between(reader, name, field, ends, bin_number) for bin_number in range(len(counts))]
    return {
        **{name: getattr(numbers, name) for name in NUMBERS},
        "edges": edges,
        "texts": texts,
        "counts": counts,
        "wheres": wheres,
    }


def _times(field: Time | Duration, edges: list[float]) -> list[str]:
    texts = scalars.texts_of(field, np.array([math.ceil(edge) for edge in edges], dtype=np.int64))
    return [text.decode() for text in texts.tolist()]


def _between(reader: Reader, name: str, field: Field, ends: list[Any], bin_number: int) -> str | None:
    """Return the filter that selects a bin: without its upper edge, except for the last bin."""
    low, high, last = ends[bin_number], ends[bin_number + 1], bin_number == len(ends) - 2
    is_single = type(field) is Int and (high == low if last else high == low + 1)
    if is_single or low == high:
        return _checked(reader, str(col(name) == low))
    upper = col(name) <= high if last else col(name) < high
    return _checked(reader, str((col(name) >= low) & upper))


def _values(reader: Reader, name: str, field: Field, statistic: str, values: Values) -> Document:
    comparable = statistic == "values" and isinstance(field, Int | Bool | Text)
    items = []
    for value, count in list(values.counts.items())[:MAX_VALUES]:
        where = _checked(reader, str(col(name) == _compared(field, value))) if comparable else None
        items.append({"label": _label(value), "count": count, "where": where})
    return {"items": items, "different": len(values.counts), "exact": values.exact, "slack": values.slack}


def _label(value: Hashable) -> str:
    return ("false", "true")[value] if isinstance(value, bool) else shortened(str(value), LABEL_LETTERS)


def _compared(field: Field, value: Any) -> Any:
    """Return the value that a filter compares with: the number of a class with a long name."""
    if isinstance(field, Int) and field.names and isinstance(value, str) and len(value) > LABEL_LETTERS:
        return field.number(value)
    return value


def _resolutions(values: Values | None) -> list[list[int]]:
    if values is None:
        return []
    points = []
    for text, count in list(values.counts.items())[:MAX_RESOLUTIONS]:
        width, _, height = str(text).partition("×")
        points.append([int(width), int(height), count])
    return points


def _named(name: str) -> str:
    """Return a field as a filter names it."""
    return str(col(name) == 0).removesuffix(" == 0")


def _checked(reader: Reader, where: str) -> str | None:
    """Return the filter if it is valid for this dataset."""
    try:
        bind(parse(where), reader.schema)
    except BatchplantError:
        return None
    return where


# -- maps of embeddings --------------------------------------------------------------------------------


def map_of(reader: Reader, name: str, classes: str, rows: I64 | None) -> Document:
    """Return the points of an embedding in groups of one class."""
    if name not in reader.schema or not is_map(name, reader.schema[name]):
        raise OptionError(f"{name[:100]!r} is no field of embeddings")
    rows = np.arange(len(reader)) if rows is None else rows
    count = len(rows)
    if count > MAX_POINTS:
        drawn = np.argsort(uniform(key_of(0, 0, 11), np.arange(count)), kind="stable")[:MAX_POINTS]
        rows = np.sort(rows[drawn])
    field = reader.schema.get(classes)
    names = field.names if isinstance(field, Int) else None
    columns = reader.read(rows, [name, classes] if names else [name])
    points = np.asarray(columns[name], np.float64).reshape(len(rows), -1)[:, :2]
    codes = np.zeros(len(rows), np.int64)
    if names:
        column = columns[classes]
        codes = np.array(column.values if isinstance(column, Masked) else column, np.int64)
        if isinstance(column, Ragged) and column.valid is not None:
            codes[~column.valid] = -1
    finite = np.isfinite(points).all(axis=1)
    groups = []
    present, sizes = np.unique(codes[finite], return_counts=True)
    largest = present[np.argsort(-sizes, kind="stable")][:MAX_GROUPS]
    titles = {code: title for code, title in enumerate(names or (name,)) if code in largest}
    # Missing values, codes of no class, and the smallest classes are one group.
    for code, title in (*titles.items(), (-1, "others")):
        chosen = finite & (codes == code if code >= 0 else ~np.isin(codes, list(titles)))
        numbered = zip(points[chosen].tolist(), rows[chosen].tolist(), strict=True)
        if chosen.any():
            groups.append({"name": title, "points": [[*point, 1, sample] for point, sample in numbered]})
    return {"groups": groups, "samples": len(rows), "of": count, "odd": int((~finite).sum())}
