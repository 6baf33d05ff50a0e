"""The samples that a filter, a search and a sort leave, in their order; computed once, in a job.

A *measure* selects samples by a statistic that filters cannot name: the width of an image, the length of a
text. It is text, as the page has it in its address: ``image|width|61|70`` for 61 ≤ width < 70, with ``=`` at
the end for width ≤ 70; ``image|resolutions|640×480`` for values that are no numbers. The statistics are those
of ``stats``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
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
from .cells import Dataset
from .jobs import Job, Progress
from .session import Session

Mask = npt.NDArray[np.bool_]

# Samples, and bytes of them, that are read together.
CHUNK_ROWS, CHUNK_BYTES = 1 << 14, 32 << 20
# Memory for the keys that texts are sorted by.
MAX_SORT_KEY_BYTES = 192 << 20


@dataclasses.dataclass(frozen=True)
class Query:
    """A request of the page: a condition, a text to find, a field to sort by (``down``: largest first)."""

    where: str = ""
    search: str = ""
    sort: str = ""
    down: bool = False
    measure: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Query:
        where, search, sort = (params.get(name, "").strip() for name in ("where", "search", "sort"))
        down = bool(sort) and params.get("down", "") not in ("", "0")
        return cls(where, search, sort, down, params.get("measure", ""))

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


def rows_job(session: Session, dataset: Dataset, params: Mapping[str, str]) -> Job:
    """Return the job whose value is the :class:`Rows` of this request."""
    query = Query.from_params(params)
    if query.plain:
        return Job.ready(Rows(len(dataset.reader)))
    return session.jobs.get(("rows", query), lambda progress: find_rows(dataset, query, progress))


def ready_rows(session: Session, dataset: Dataset, params: Mapping[str, str]) -> Rows:
    """Return the rows of a request; raise NotReady while they are computed, or the error of the job."""
    job = rows_job(session, dataset, params)
    if not job.finished.is_set():
        raise NotReady(job)
    if job.error is not None:
        raise job.error
    return job.value


def filtered_rows(session: Session, dataset: Dataset, params: Mapping[str, str]) -> tuple[Query, I64 | None]:
    """Return the samples that a filter and a search leave, in the order of the dataset; None for all."""
    filters = {name: params[name] for name in ("where", "search", "measure") if name in params}
    matches = ready_rows(session, dataset, filters)
    return Query.from_params(filters), None if matches.numbers is None else matches.all()


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
        numbers = _filtered(reader, query.where, progress)
    if query.search:
        numbers = _searched(reader, numbers, query.search, progress)
    if query.measure:
        numbers = _measured(reader, numbers, query.measure, progress)
    if query.sort:
        numbers, note = _sorted(reader, numbers, query.sort, query.down, progress, max_key_bytes)
    if numbers is not None and len(reader) < 2**31:
        return Rows(len(reader), numbers.astype(np.int32), note)
    return Rows(len(reader), numbers, note)


def _filtered(reader: Reader, where: str, progress: Progress) -> I64:
    with watching(progress):
        view = reader.filter(where)
    indices = view.indices if isinstance(view, View) else None
    return np.arange(len(reader)) if indices is None else indices


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


# -- search ------------------------------------------------------------------------------------------------


def searched_fields(reader: Reader) -> list[str]:
    """Return the fields that a search looks into besides keys: texts, JSON, and classes by name."""
    return [
        name
        for name, kind in reader.schema.items()
        if isinstance(kind, Text | Json) or (isinstance(kind, Int) and kind.names)
    ]


def _searched(reader: Reader, numbers: I64 | None, text: str, progress: Progress) -> I64:
    fields, format_keys = searched_fields(reader), reader._keys()
    if not fields and format_keys is None:
        raise OptionError("there is no text to search in; filter by a condition instead")
    classes = {name: _classes(reader, name, text) for name in fields if isinstance(reader.schema[name], Int)}
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


def _classes(reader: Reader, name: str, text: str) -> I64:
    kind = reader.schema[name]
    assert isinstance(kind, Int)
    matches = [
        number
        for number, class_name in enumerate(kind.names or ())
        if text.casefold() in class_name.casefold()
    ]
    return np.array(matches, dtype=np.int64)


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


# -- sort --------------------------------------------------------------------------------------------------


def _sorted(
    reader: Reader, numbers: I64 | None, field: str, down: bool, progress: Progress, max_key_bytes: int
) -> tuple[I64, str]:
    if field not in reader.schema:
        raise OptionError(f"there is no field {field[:100]!r} to sort by")
    kind = reader.schema[field]
    count = len(reader) if numbers is None else len(numbers)
    if isinstance(kind, Int | Float | Bool) or (isinstance(kind, Tensor) and kind.shape == ()):
        keys, present, ids = _numbers(reader, numbers, field, progress)
        note = ""
    elif isinstance(kind, Text):
        keys, present, ids, note = _texts(reader, numbers, field, max_key_bytes // max(1, count), progress)
    else:
        keys, present, ids = _sizes(reader, numbers, field, progress)
        note = "sorted by the bytes of each cell"
    unreadable = count - len(ids)
    if unreadable:
        note = f"{note}; " * bool(note) + f"{unreadable:,} that cannot be read are left out"
    order = np.argsort(keys[present], kind="stable")
    if down:
        # Keep equal samples in their order.
        order = len(order) - 1 - np.argsort(keys[present][::-1], kind="stable")[::-1]
    return np.concatenate([ids[present][order], ids[~present]]), note


SortKeys = tuple[AnyArray, Mask, I64]


def _numbers(reader: Reader, numbers: I64 | None, field: str, progress: Progress) -> SortKeys:
    keys, present, ids = [], [], []
    for chunk, columns in _chunks(reader, numbers, [field], progress):
        column: Column = columns[field]
        valid = column.valid if isinstance(column, Ragged) else None
        values = np.asarray(column)
        valid_rows = np.ones(len(chunk), np.bool_) if valid is None else valid.copy()
        if values.dtype.kind in "fc":
            valid_rows &= ~np.isnan(values)
        elif values.dtype.kind in "mM":
            valid_rows &= ~np.isnat(values)
        keys.append(values.copy())
        present.append(valid_rows)
        ids.append(chunk)
    return _joined(keys, present, ids)


def _texts(
    reader: Reader, numbers: I64 | None, field: str, key_bytes: int, progress: Progress
) -> tuple[AnyArray, Mask, I64, str]:
    """Return the first bytes of texts as sort keys, as many as there is memory for."""
    key_bytes = max(8, min(256, key_bytes))
    keys, present, ids, cut = [], [], [], False
    for chunk, columns in _chunks(reader, numbers, [field], progress):
        column = columns.ragged(field)
        sizes = column.sizes
        width = max(1, min(key_bytes, int(sizes.max(initial=0))))
        cut = cut or bool((sizes > key_bytes).any())
        padded = np.zeros((len(chunk), width), dtype=np.uint8)
        offsets = np.arange(width)
        inside = offsets < sizes[:, None]
        padded[inside] = column.data[(column.starts[:, None] + offsets)[inside]]
        keys.append(padded.view(f"S{width}").reshape(-1))
        present.append(np.ones(len(chunk), np.bool_) if column.valid is None else column.valid.copy())
        ids.append(chunk)
    note = f"sorted by the first {key_bytes} bytes of each text" if cut else ""
    return (*_joined(keys, present, ids), note)


def _sizes(reader: Reader, numbers: I64 | None, field: str, progress: Progress) -> SortKeys:
    """Return the sizes of cells as sort keys, from their spans where the format has them."""
    ids = np.arange(len(reader)) if numbers is None else numbers
    progress(0, len(ids))
    parts = []
    for start in range(0, len(ids), 1 << 18):
        progress(start, len(ids))
        spans = reader.spans(field, ids[start : start + (1 << 18)])
        if spans is None:
            break
        parts.append(spans.size)
    else:
        size = np.concatenate([np.empty(0, np.int64), *parts])
        return size, size >= 0, ids
    keys, present, chunk_ids = [], [], []
    for chunk, columns in _chunks(reader, numbers, [field], progress):
        column = columns[field]
        if not isinstance(column, Ragged):
            raise OptionError(f"all cells of {field!r} have one size; there is nothing to sort by")
        keys.append(column.sizes.copy())
        present.append(np.ones(len(chunk), np.bool_) if column.valid is None else column.valid.copy())
        chunk_ids.append(chunk)
    return _joined(keys, present, chunk_ids)


def _joined(keys: list[Any], present: list[Any], ids: list[Any]) -> SortKeys:
    if not keys:
        return np.empty(0), np.empty(0, np.bool_), np.empty(0, np.int64)
    return np.concatenate(keys), np.concatenate(present), np.concatenate(ids)


# -- keys --------------------------------------------------------------------------------------------------


def keys_of(dataset: Dataset, samples: I64) -> list[str] | None:
    """Return the keys of these samples in their format, if it has keys."""
    format_keys = dataset.reader._keys()
    if format_keys is None:
        return None
    try:
        column = format_keys.read(samples)
        return [_key(decode_cell(format_keys.kind, column, row)) for row in range(len(samples))]
    except (BatchplantError, OSError):
        return None


def _key(value: Any) -> str:
    return (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))[:200]


# -- measures ------------------------------------------------------------------------------------------------


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
        measure = cls._parse(text)
        if measure is None or measure.field not in reader.schema:
            raise OptionError(f"{text[:100]!r} is no measure of a field, such as image|width|61|70")
        return measure

    @classmethod
    def _parse(cls, text: str) -> Measure | None:
        # The name of a field may contain any letter, also "|".
        parts = text.removesuffix("=").rsplit("|", 3)
        if len(parts) == 4:
            try:
                return cls(parts[0], parts[1], float(parts[2]), float(parts[3]), text.endswith("="))
            except ValueError:
                pass
        parts = text.rsplit("|", 2)
        return cls(parts[0], parts[1], text=parts[2]) if len(parts) == 3 else None

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


def _valid_rows(column: Ragged) -> Mask:
    return np.ones(len(column), dtype=np.bool_) if column.valid is None else column.valid


def _statistic_of_cell(field: Field, statistic: str, column: Column, row: int) -> Any:
    """Return a statistic of a single cell."""
    # Imported on demand: the grid does not need it.
    from ...jobs.stats.fields import FieldScan

    scan = FieldScan(field, 1)
    scan.add(column.take([row]) if isinstance(column, Ragged) else column[row : row + 1])
    summary = scan.stats()
    if statistic in summary.numbers:
        return summary.numbers[statistic].min
    return next(iter(summary.values[statistic].counts), None) if statistic in summary.values else None
