"""The samples that a filter, a search and a sort leave, in their order; computed once, in a job.

A *measure* selects samples by a statistic that filters cannot name: the width of an image, the length of a
text. It is text, as the page has it in its address: ``image|width|61|70`` for 61 ≤ width < 70, with ``=`` at
the end for width ≤ 70; ``image|resolutions|640×480`` for values that are no numbers. The statistics are those
of ``stats``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs import image
from ...codecs.cells import decode_cell
from ...data.filters import watching
from ...data.reader import Reader, View
from ...errors import BatchplantError, OptionError
from ...jobs.scans import batch_rows
from ...schema.columns import I64, AnyArray, Column, Ragged, end_within
from ...schema.kinds import Bool, Field, Float, Image, Int, Json, Tensor, Text
from .. import Document
from .cells import Dataset, Progress
from .session import Job, PageRequest

Mask = npt.NDArray[np.bool_]

# Samples, and bytes of them, that are read together.
CHUNK_ROWS, CHUNK_BYTES = 1 << 14, 32 << 20
# Memory for the keys that texts are sorted by, and spans that are asked for together.
MAX_SORT_KEY_BYTES, SPAN_ROWS = 192 << 20, 1 << 18
MAX_KEY_LETTERS = 200
SIZE_NOTE = "sorted by the bytes of each cell"


@dataclasses.dataclass(frozen=True)
class Query:
    """A request of the page: a condition, a text to find, a field to sort by (``down``: largest first)."""

    where: str = ""
    search: str = ""
    sort: str = ""
    down: bool = False
    measure: str = ""

    @classmethod
    def of(cls, request: PageRequest) -> Query:
        where, search, sort = (request.text(name).strip() for name in ("where", "search", "sort"))
        down = bool(sort) and request.text("down") not in ("", "0")
        return cls(where, search, sort, down, request.text("measure"))

    @property
    def plain(self) -> bool:
        """True if it means all samples in their order."""
        return not (self.where or self.search or self.measure or self.sort)


@dataclasses.dataclass(frozen=True)
class Rows:
    """``numbers``: the samples in the order in which they are shown; None: all, as they are stored."""

    of: int
    numbers: AnyArray | None = None
    note: str = ""

    @property
    def count(self) -> int:
        return self.of if self.numbers is None else len(self.numbers)

    @property
    def nbytes(self) -> int:
        return 0 if self.numbers is None else self.numbers.nbytes

    def take(self, start: int, count: int) -> I64:
        """Return the samples in some rows."""
        end = max(0, min(start + count, self.count))
        if self.numbers is None:
            return np.arange(min(start, end), end)
        return self.numbers[start:end].astype(np.int64)

    def all(self) -> I64:
        """Return the numbers of all samples."""
        return self.take(0, self.count)

    def to_json(self) -> Document:
        return {"count": self.count, "of": self.of, "note": self.note}


class NotReady(Exception):  # noqa: N818
    """Raised while the rows are computed; ``job`` says how far it is."""

    def __init__(self, job: Job) -> None:
        super().__init__("the samples are still being looked for")
        self.job = job


def rows_job(request: PageRequest, query: Query | None = None) -> Job:
    """Return the job whose value is the :class:`Rows` of a query, by default that of the request."""
    dataset, query = request.dataset, query or Query.of(request)
    if query.plain:
        return Job.ready(Rows(len(dataset.reader)))
    return request.job(("rows", query), lambda progress: find_rows(dataset, query, progress))


def ready_rows(request: PageRequest, query: Query | None = None) -> Rows:
    """Return the rows of a query; raise NotReady while they are computed, or the error of the job."""
    job = rows_job(request, query)
    if not job.finished.is_set():
        raise NotReady(job)
    if job.error is not None:
        raise job.error
    return job.value


def filtered_rows(request: PageRequest) -> tuple[Query, I64 | None]:
    """Return the samples that a filter and a search leave, in the order of the dataset; None for all."""
    query = dataclasses.replace(Query.of(request), sort="", down=False)
    matches = ready_rows(request, query)
    return query, None if matches.numbers is None else matches.all()


def row_of(rows: Rows, sample: int) -> int | None:
    """Return the row of a sample, if it is in one."""
    if rows.numbers is None:
        return sample
    positions = np.flatnonzero(rows.numbers == sample)
    return int(positions[0]) if len(positions) else None


def find_rows(
    dataset: Dataset, query: Query, progress: Progress, max_key_bytes: int = MAX_SORT_KEY_BYTES
) -> Rows:
    """Filter, then search, then sort; ``max_key_bytes``: memory for the keys that texts are sorted by."""
    reader, note = dataset.reader, ""
    numbers: I64 | None = None
    if query.where:
        with watching(progress):
            view = reader.filter(query.where)
        indices = view.indices if isinstance(view, View) else None
        numbers = np.arange(len(reader)) if indices is None else indices
    if query.search:
        numbers = _searched(reader, numbers, query.search, progress)
    if query.measure:
        numbers = _measured(reader, numbers, query.measure, progress)
    if query.sort:
        numbers, note = _sorted(reader, numbers, query.sort, query.down, progress, max_key_bytes)
    if numbers is not None and len(reader) < 2**31:
        return Rows(len(reader), numbers.astype(np.int32), note)
    return Rows(len(reader), numbers, note)


def _chunks(
    reader: Reader, numbers: I64 | None, fields: list[str], progress: Progress
) -> Iterator[tuple[I64, Any]]:
    """Yield columns of these samples, a chunk at a time, without the samples that cannot be read."""
    count = len(reader) if numbers is None else len(numbers)
    all_sizes = reader.sizes()
    sizes = all_sizes if all_sizes is None or numbers is None else all_sizes[numbers]
    max_rows, end = batch_rows(reader.select(fields), CHUNK_ROWS, CHUNK_BYTES), 0
    while end < count:
        progress(end, count)
        start, end = end, end_within(sizes, end, min(max_rows, count - end), CHUNK_BYTES)
        ids = np.arange(start, end) if numbers is None else numbers[start:end]
        yield from _read(reader, ids, fields)
    progress(count, count)


def _read(reader: Reader, ids: I64, fields: list[str]) -> Iterator[tuple[I64, Any]]:
    try:
        yield ids, reader.read(ids, fields)
    except (BatchplantError, OSError):
        if len(ids) == 1:
            return
        half = len(ids) // 2
        yield from _read(reader, ids[:half], fields)
        yield from _read(reader, ids[half:], fields)


# -- search --------------------------------------------------------------------------------------------


def _searched(reader: Reader, numbers: I64 | None, text: str, progress: Progress) -> I64:
    """Return the samples with a text in a key, a text, JSON, or the name of a class."""
    format_keys, classes, fields = reader._keys(), {}, []
    for name, kind in reader.schema.items():
        if isinstance(kind, Text | Json):
            fields.append(name)
        elif isinstance(kind, Int) and kind.names:
            fields.append(name)
            folded = text.casefold()
            classes[name] = [code for code, label in enumerate(kind.names) if folded in label.casefold()]
    if not fields and format_keys is None:
        raise OptionError("there is no text to search in; filter by a condition instead")
    matches: list[I64] = [np.empty(0, dtype=np.int64)]
    for ids, columns in _chunks(reader, numbers, fields, progress):
        mask = np.zeros(len(ids), dtype=np.bool_)
        keys = None if format_keys is None else format_keys.read(ids)
        if isinstance(keys, Ragged):
            mask |= contains_text(keys, text)
        for name in fields:
            column = columns[name]
            if name in classes:
                mask |= np.isin(np.asarray(column), classes[name])
            elif isinstance(column, Ragged):
                mask |= contains_text(column, text)
        matches.append(ids[mask])
    return np.concatenate(matches)


def _measured(reader: Reader, numbers: I64 | None, text: str, progress: Progress) -> I64:
    measure = Measure.parse(text, reader)
    kind = reader.schema[measure.field]
    matches: list[I64] = [np.empty(0, dtype=np.int64)]
    for ids, columns in _chunks(reader, numbers, [measure.field], progress):
        matches.append(ids[measure.mask(kind, columns[measure.field])])
    return np.concatenate(matches)


def contains_text(column: Ragged, text: str) -> Mask:
    """Return a mask of the cells that contain a text, regardless of case."""
    mask = np.zeros(len(column), dtype=np.bool_)
    if not text.isascii():
        folded = text.casefold()
        for row, cell in enumerate(column):
            mask[row] = cell is not None and folded in cell.tobytes().decode("utf-8", "replace").casefold()
        return mask
    first = int(column.offsets[0])
    packed = column.data[first : int(column.offsets[-1])].tobytes().lower()
    needle = text.lower().encode()
    # A match that ends in the next cell is none.
    starts = np.fromiter((match.start() for match in re.finditer(re.escape(needle), packed)), dtype=np.int64)
    rows = np.searchsorted(column.offsets, starts + first, side="right") - 1
    inside = starts + first + len(needle) <= column.offsets[rows + 1]
    mask[rows[inside]] = True
    if not inside.all():
        for row in np.unique(rows[~inside]).tolist():
            cell = column[row]
            mask[row] |= cell is not None and needle in cell.tobytes().lower()
    return mask


# -- sort ----------------------------------------------------------------------------------------------


# Keys of some cells, a mask of those that are not missing, and a note.
SortKeys = tuple[AnyArray, Mask, str]


def _sorted(
    reader: Reader, numbers: I64 | None, field: str, down: bool, progress: Progress, max_key_bytes: int
) -> tuple[I64, str]:
    if field not in reader.schema:
        raise OptionError(f"there is no field {field[:100]!r} to sort by")
    kind, ids = reader.schema[field], np.arange(len(reader)) if numbers is None else numbers
    count, stored = len(ids), None
    sort_keys: Callable[[Column], SortKeys] = functools.partial(_size_keys, field)
    if isinstance(kind, Int | Float | Bool) or (isinstance(kind, Tensor) and kind.shape == ()):
        sort_keys = _number_keys
    elif isinstance(kind, Text):
        sort_keys = functools.partial(_text_keys, max(8, min(256, max_key_bytes // max(1, count))))
    else:
        stored = _stored_sizes(reader, ids, field, progress)
    if stored is not None:
        keys, present, notes = stored, stored >= 0, (SIZE_NOTE,)
    else:
        parts = [
            (chunk, *sort_keys(columns[field]))
            for chunk, columns in _chunks(reader, numbers, [field], progress)
        ]
        empty = np.empty(0, np.int64), np.empty(0), np.empty(0, np.bool_), ""
        chunks, *columns, notes = zip(*(parts or [empty]), strict=True)
        ids, keys, present = np.concatenate(chunks), *map(np.concatenate, columns)
    note = next(filter(None, notes), "")
    if len(ids) < count:
        note = f"{note}; " * bool(note) + f"{count - len(ids):,} that cannot be read are left out"
    order = np.argsort(keys[present], kind="stable")
    if down:
        # Keep equal samples in their order.
        order = len(order) - 1 - np.argsort(keys[present][::-1], kind="stable")[::-1]
    return np.concatenate([ids[present][order], ids[~present]]), note


def _number_keys(column: Column) -> SortKeys:
    values = np.array(column)
    present = _valid_rows(column)
    if values.dtype.kind in "fcmM":
        present &= ~np.isnan(values)
    return values, present, ""


def _text_keys(key_bytes: int, column: Column) -> SortKeys:
    """Return the first bytes of texts as sort keys."""
    assert isinstance(column, Ragged)
    sizes = column.sizes
    width = max(1, min(key_bytes, int(sizes.max(initial=0))))
    padded = np.zeros((len(column), width), dtype=np.uint8)
    offsets = np.arange(width)
    inside = offsets < sizes[:, None]
    padded[inside] = column.data[(column.starts[:, None] + offsets)[inside]]
    note = f"sorted by the first {key_bytes} bytes of each text" if (sizes > key_bytes).any() else ""
    return padded.view(f"S{width}").reshape(-1), _valid_rows(column), note


def _size_keys(field: str, column: Column) -> SortKeys:
    if not isinstance(column, Ragged):
        raise OptionError(f"all cells of {field!r} have one size; there is nothing to sort by")
    return column.sizes.copy(), _valid_rows(column), SIZE_NOTE


def _stored_sizes(reader: Reader, ids: I64, field: str, progress: Progress) -> I64 | None:
    """Return the sizes of cells from their spans, where the format has them; -1 for missing ones."""
    parts = [np.empty(0, np.int64)]
    for start in range(0, len(ids), SPAN_ROWS):
        progress(start, len(ids))
        spans = reader.spans(field, ids[start : start + SPAN_ROWS])
        if spans is None:
            return None
        parts.append(spans.size)
    return np.concatenate(parts)


# -- keys ----------------------------------------------------------------------------------------------


def keys_of(dataset: Dataset, samples: I64) -> list[str] | None:
    """Return the keys of these samples in their format, if it has keys."""
    format_keys = dataset.reader._keys()
    if format_keys is None:
        return None
    try:
        column = format_keys.read(samples)
        keys = [decode_cell(format_keys.kind, column, row) for row in range(len(samples))]
    except (BatchplantError, OSError):
        return None
    texts = (key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key) for key in keys)
    return [text[:MAX_KEY_LETTERS] for text in texts]


# -- measures ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Measure:
    """A range of a statistic of a field, from ``low`` to ``high``, or its exact ``text``."""

    field: str
    statistic: str
    low: float = -math.inf
    high: float = math.inf
    last: bool = False
    text: str | None = None

    @classmethod
    def parse(cls, text: str, reader: Reader) -> Measure:
        # The name of a field may contain any letter, also "|".
        with contextlib.suppress(ValueError):
            name, statistic, low, high = text.removesuffix("=").rsplit("|", 3)
            if name in reader.schema:
                return cls(name, statistic, float(low), float(high), text.endswith("="))
        with contextlib.suppress(ValueError):
            name, statistic, value = text.rsplit("|", 2)
            if name in reader.schema:
                return cls(name, statistic, text=value)
        raise OptionError(f"{text[:100]!r} is no measure of a field, such as image|width|61|70")

    def mask(self, field: Field, column: Column) -> Mask:
        """Return a mask of the cells that it selects."""
        values = _values(field, self.statistic, column)
        if self.text is not None:
            return np.array(
                [value is not None and str(value) == self.text for value in values], dtype=np.bool_
            )
        numbers = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
        below = numbers <= self.high if self.last else numbers < self.high
        return (numbers >= self.low) & below


def _values(field: Field, statistic: str, column: Column) -> Sequence[Any]:
    """Return the statistic of each cell, None where it has none."""
    if isinstance(column, Ragged) and statistic == "bytes":
        return [
            int(size) if present else None
            for size, present in zip(column.sizes, _valid_rows(column), strict=True)
        ]
    if (
        isinstance(column, Ragged)
        and isinstance(field, Image)
        and statistic in ("width", "height", "resolutions")
    ):
        headers = image.probe(column)
        column_index = {"width": 1, "height": 2}.get(statistic)
        return [
            None if row[1] <= 0 else f"{row[1]}×{row[2]}" if column_index is None else int(row[column_index])
            for row in headers.tolist()
        ]
    return [_statistic_of_cell(field, statistic, column, row) for row in range(len(column))]


def _valid_rows(column: Column) -> Mask:
    valid = column.valid if isinstance(column, Ragged) else None
    return np.ones(len(column), dtype=np.bool_) if valid is None else valid.copy()


def _statistic_of_cell(field: Field, statistic: str, column: Column, row: int) -> Any:
    """Return a statistic of a single cell."""
    # Imported on demand: the grid does not need it.
    from ...jobs.stats import FieldScan

    scan = FieldScan(field, 1)
    scan.add(column.take([row]) if isinstance(column, Ragged) else column[row : row + 1])
    summary = scan.stats()
    if statistic in summary.numbers:
        return summary.numbers[statistic].min
    return next(iter(summary.values[statistic].counts), None) if statistic in summary.values else None
