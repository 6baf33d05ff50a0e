"""What ops learn from a field: means and deviations, what is in the middle, what is most frequent."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.cells import decode_cell
from ..data.reader import Reader
from ..errors import OptionError, no_such
from ..schema import Field, Image, Text
from ..schema.columns import Column, Masked, Ragged, dense_of
from .each import Threads

# So many images tell their mean.
SAMPLES = 10_000
# Read at a time.
ROWS, IMAGES = 4096, 64
# Values that a median is of, evenly spread; distinct values of which one is most frequent.
MOST_VALUES, MOST_DISTINCT = 1 << 24, 1_000_000

F64 = npt.NDArray[np.float64]


def field_of(reader: Reader, name: str) -> Field:
    if name not in reader.schema:
        raise OptionError(no_such("field", name, reader.schema), path=reader.path)
    return reader.schema[name]


class Moments:
    """Count, mean and sum of squared distances from it, of columns of numbers; parts can be added."""

    def __init__(self) -> None:
        self.count: Any = 0
        self.mean: Any = 0.0
        self.apart: Any = 0.0

    def add(self, values: Any) -> None:
        """Rows of numbers (n, columns); NaN does not count."""
        values = values.astype(np.float64)
        there = ~np.isnan(values)
        count = there.sum(axis=0)
        safe = np.maximum(count, 1)
        mean = np.where(there, values, 0).sum(axis=0) / safe
        apart = np.square(np.where(there, values - mean, 0)).sum(axis=0)
        self.merge(count, mean, apart)

    def merge(self, count: Any, mean: Any, apart: Any) -> None:
        total = np.maximum(self.count + count, 1)
        between = mean - self.mean
        self.apart = self.apart + apart + between**2 * self.count * count / total
        self.mean = self.mean + between * count / total
        self.count = self.count + count

    def found(self, path: str | None, field: str) -> tuple[F64, F64]:
        if not np.all(self.count):
            raise OptionError("there are no values to find a mean in", path=path, field=field)
        std = np.sqrt(self.apart / self.count)
        # What never varies stays as it is.
        return np.atleast_1d(self.mean), np.atleast_1d(np.where(std == 0, 1.0, std))


def moments(reader: Reader, name: str, *, each: bool = True, samples: int = SAMPLES) -> tuple[F64, F64]:
    """Mean and standard deviation of a field: of every channel of images, of every number of the last axis
    of arrays (one for all without ``each``), or of a number."""
    field = field_of(reader, name)
    made = Moments()
    if isinstance(field, Image):
        if samples < 1:
            raise OptionError(f"samples is a number from 1 on, not {samples}")
        _add_images(made, reader, name, field, samples)
        return made.found(reader.path, name)
    dense = dense_of(field)
    if dense is None or dense[0].kind not in "biuf":
        raise OptionError(f"a mean is of images, numbers, or arrays of one shape, not of {field}", field=name)
    width = dense[1][-1] if each and dense[1] else 1
    for values in _numbers(reader, name):
        if len(values):
            made.add(values.reshape(-1, width))
    return made.found(reader.path, name)


def _add_images(made: Moments, reader: Reader, name: str, field: Image, samples: int) -> None:
    as_loaded = Image(mode=field.mode or "RGB")
    total = len(reader)
    if not total:
        return
    numbers = np.unique(np.linspace(0, total - 1, min(samples, total)).astype(np.int64))
    threads = Threads()
    try:
        for start in range(0, len(numbers), IMAGES):
            column = reader.read(numbers[start : start + IMAGES], [name])[name]
            assert isinstance(column, Ragged)

            def one(row: int, column: Ragged = column) -> tuple[Any, Any, Any] | None:
                pixels = decode_cell(as_loaded, column, row)
                if pixels is None:
                    return None
                levels = pixels.reshape(-1, pixels.shape[2] if pixels.ndim == 3 else 1)
                # Exact, and without an array of floats: how often each level is there.
                counts = np.stack([np.bincount(one, minlength=256) for one in levels.T], axis=1)
                scale = np.arange(len(counts), dtype=np.float64)[:, None]
                mean = (counts * scale).sum(axis=0) / len(levels)
                return len(levels), mean, (counts * np.square(scale - mean)).sum(axis=0)

            for found in threads.each(len(column), one):
                if found is not None:
                    made.merge(*found)
    finally:
        threads.close()


def _numbers(reader: Reader, name: str) -> Iterator[npt.NDArray[Any]]:
    """The values that are there."""
    for columns in reader.scan(ROWS, [name]):
        column: Column = columns[name]
        if isinstance(column, Masked):
            yield column.values[column.mask]
        else:
            yield np.asarray(column)


def typical(reader: Reader, name: str, how: str) -> Any:
    """The mean, median, most_frequent, min or max of a field of numbers; the most frequent text."""
    field = field_of(reader, name)
    dense = dense_of(field)
    if isinstance(field, Text) and how == "most_frequent":
        return _most_frequent(_texts(reader, name), name)
    if dense is None or dense[1] or dense[0].kind not in "biuf":
        raise OptionError(f"the {how} is of numbers, not of {field}", path=reader.path, field=name)
    if how == "most_frequent":
        return _most_frequent((values[values == values].tolist() for values in _numbers(reader, name)), name)
    if how == "mean":
        mean = float(moments(reader, name)[0][0])
        return mean if dense[0].kind == "f" else round(mean)
    stride = max(1, math.ceil(len(reader) / MOST_VALUES)) if how == "median" else 1
    kept = [np.empty(0, dtype=dense[0])]
    for values in _numbers(reader, name):
        values = values[values == values][::stride]
        kept.append(values if how == "median" or not len(values) else np.atleast_1d(getattr(values, how)()))
    found = np.concatenate(kept)
    if not len(found):
        raise OptionError(f"there are no values to find a {how} in", path=reader.path, field=name)
    if how == "median":
        middle = float(np.median(found))
        return middle if dense[0].kind == "f" else round(middle)
    return getattr(found, how)().item()


def _texts(reader: Reader, name: str) -> Iterator[list[str]]:
    for columns in reader.scan(ROWS, [name]):
        column = columns[name]
        assert isinstance(column, Ragged)
        yield [one.tobytes().decode(errors="replace") for one in column if one is not None]


def _most_frequent(parts: Iterator[list[Any]], name: str) -> Any:
    counts: collections.Counter[Any] = collections.Counter()
    for part in parts:
        counts.update(part)
        if len(counts) > MOST_DISTINCT:
            raise OptionError(f"there are more than {MOST_DISTINCT:,} different values", field=name)
    if not counts:
        raise OptionError("there are no values to find the most frequent of", field=name)
    most = max(counts.values())
    # Of several, the least: whatever the order of samples.
    return min(value for value, count in counts.items() if count == most)
