"""Which samples: what a filter, a search and a sort leave, in which order. Computed once, in a job."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs.cells import decode_cell
from ...data.filters import watching
from ...data.reader import Reader
from ...errors import BatchplantError, OptionError
from ...jobs.scans import step
from ...schema.columns import I64, Column, Ragged, end_within
from ...schema.kinds import Bool, Float, Int, Json, Tensor, Text
from .jobs import Job, Progress
from .measures import Measure
from .session import Session, Side

# Samples, and bytes of them, that are looked at together.
ROWS, ROWS_BYTES = 1 << 14, 32 << 20
# Memory for the keys that texts are sorted by.
SORT_BYTES = 192 << 20


@dataclasses.dataclass(frozen=True)
class Query:
    """What the page asks for: a condition, a text to find, a field to sort by (``down``: largest first)."""

    where: str = ""
    search: str = ""
    sort: str = ""
    down: bool = False
    measure: str = ""

    @classmethod
    def of(cls, params: Mapping[str, str]) -> Query:
        where, search, sort = (params.get(name, "").strip() for name in ("where", "search", "sort"))
        down = bool(sort) and params.get("down", "") not in ("", "0")
        return cls(where, search, sort, down, params.get("measure", ""))

    @property
    def plain(self) -> bool:
        """Whether it means all samples in their order."""
        return not (self.where or self.search or self.measure or self.sort)


@dataclasses.dataclass(frozen=True)
class Rows:
    """``numbers``: the samples in the order in which they are shown; None: all, as they are stored."""

    of: int
    numbers: npt.NDArray[Any] | None = None
    note: str = ""

    @property
    def count(self) -> int:
        return self.of if self.numbers is None else len(self.numbers)

    @property
    def nbytes(self) -> int:
        return 0 if self.numbers is None else self.numbers.nbytes

    def take(self, start: int, count: int) -> I64:
        """The samples in some rows."""
        end = max(0, min(start + count, self.count))
        if self.numbers is None:
            return np.arange(min(start, end), end)
        return self.numbers[start:end].astype(np.int64)

    def all(self) -> I64:
        """All of them, as sample numbers."""
        return self.take(0, self.count)

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "of": self.of, "note": self.note}


class NotReady(Exception):  # noqa: N818
    """The rows are still being looked for; ``job`` tells how far it is."""

    def __init__(self, job: Job) -> None:
        super().__init__("the samples are still being looked for")
        self.job = job


def rows(session: Session, side: Side, params: Mapping[str, str], wait: float = 0.2) -> Job:
    """The job whose value is the :class:`Rows` of this request."""
    query = Query.of(params)
    if query.plain:
        return Job.ready(Rows(len(side.reader)))
    return session.jobs.get(("rows", side.name, query), lambda told: find(side, query, told), wait)


def ready_rows(session: Session, side: Side, params: Mapping[str, str]) -> Rows:
    """The rows, where they are there; else NotReady, or what went wrong."""
    job = rows(session, side, params)
    if not job.finished.is_set():
        raise NotReady(job)
    if job.error is not None:
        raise job.error
    found: Rows = job.value
    return found


def chosen(session: Session, side: Side, params: Mapping[str, str]) -> tuple[Query, I64 | None]:
    """What a filter and a search leave, as the dataset has it, whatever it is sorted by; None: all."""
    asked = {name: params[name] for name in ("where", "search", "measure") if name in params}
    found = ready_rows(session, side, asked)
    return Query.of(asked), None if found.numbers is None else found.all()


def row_of(found: Rows, sample: int) -> int | None:
    """The row that a sample is in, if it is in one."""
    if found.numbers is None:
        return sample
    at = np.flatnonzero(found.numbers == sample)
    return int(at[0]) if len(at) else None


def find(side: Side, query: Query, told: Progress) -> Rows:
    """Filters, then searches what is left, then sorts what is left of that."""
    reader, note = side.reader, ""
    numbers: I64 | None = None
    if query.where:
        numbers = _filtered(reader, query.where, told)
    if query.search:
        numbers = _searched(reader, numbers, query.search, told)
    if query.measure:
        numbers = _measured(reader, numbers, query.measure, told)
    if query.sort:
        numbers, note = _sorted(reader, numbers, query.sort, query.down, told)
    if numbers is not None and len(reader) < 2**31:
        return Rows(len(reader), numbers.astype(np.int32), note)
    return Rows(len(reader), numbers, note)


def _filtered(reader: Reader, where: str, told: Progress) -> I64:
    with watching(told):
        found = reader.filter(where)
    numbers: I64 = found.indices  # type: ignore[attr-defined]
    return numbers


def _chunks(
    reader: Reader, numbers: I64 | None, fields: list[str], told: Progress
) -> Iterator[tuple[I64, Any]]:
    """Columns of these samples, some at a time; a sample that cannot be read is left out."""
    count = len(reader) if numbers is None else len(numbers)
    known = reader.sizes()
    sizes = known if known is None or numbers is None else known[numbers]
    each, end = step(reader.select(fields), ROWS, ROWS_BYTES), 0
    while end < count:
        told(end, count)
        start, end = end, end_within(sizes, end, min(each, count - end), ROWS_BYTES)
        ids = np.arange(start, end) if numbers is None else numbers[start:end]
        yield from _read(reader, ids, fields)
    told(count, count)


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
    """The fields that a search looks into besides keys: texts, JSON, and classes by name."""
    return [
        name
        for name, kind in reader.schema.items()
        if isinstance(kind, Text | Json) or (isinstance(kind, Int) and kind.names)
    ]


def _searched(reader: Reader, numbers: I64 | None, text: str, told: Progress) -> I64:
    fields, keyed = searched_fields(reader), reader._key_kind() is not None
    if not fields and not keyed:
        raise OptionError("there is no text to search in; filter by a condition instead")
    classes = {name: _classes(reader, name, text) for name in fields if isinstance(reader.schema[name], Int)}
    found: list[I64] = [np.empty(0, dtype=np.int64)]
    for ids, columns in _chunks(reader, numbers, fields, told):
        hit = np.zeros(len(ids), dtype=np.bool_)
        keys = reader._keys(ids) if keyed else None
        if isinstance(keys, Ragged):
            hit |= holding(keys, text)
        for name in fields:
            column = columns[name]
            if name in classes:
                hit |= np.isin(np.asarray(column), classes[name])
            elif isinstance(column, Ragged):
                hit |= holding(column, text)
        found.append(ids[hit])
    return np.concatenate(found)


def _measured(reader: Reader, numbers: I64 | None, measure: str, told: Progress) -> I64:
    wanted = Measure.of(measure, reader)
    kind = reader.schema[wanted.field]
    found: list[I64] = [np.empty(0, dtype=np.int64)]
    for ids, columns in _chunks(reader, numbers, [wanted.field], told):
        found.append(ids[wanted.holds(kind, columns[wanted.field])])
    return np.concatenate(found)


def _classes(reader: Reader, name: str, text: str) -> I64:
    kind = reader.schema[name]
    assert isinstance(kind, Int)
    named = [number for number, one in enumerate(kind.names or ()) if text.casefold() in one.casefold()]
    return np.array(named, dtype=np.int64)


def holding(column: Ragged, text: str) -> npt.NDArray[np.bool_]:
    """Which cells have this text in them, capitals or not."""
    hit = np.zeros(len(column), dtype=np.bool_)
    if not text.isascii():
        folded = text.casefold()
        for row, cell in enumerate(column):
            hit[row] = cell is not None and folded in cell.tobytes().decode("utf-8", "replace").casefold()
        return hit
    first = int(column.offsets[0])
    packed = column.data[first : int(column.offsets[-1])].tobytes().lower()
    needle = text.lower().encode()
    # Ends that lie in the next cell are none.
    places = np.fromiter((one.start() for one in re.finditer(re.escape(needle), packed)), dtype=np.int64)
    at = np.searchsorted(column.offsets, places + first, side="right") - 1
    inside = places + first + len(needle) <= column.offsets[at + 1]
    hit[at[inside]] = True
    if not inside.all():
        for row in np.unique(at[~inside]).tolist():
            cell = column[row]
            hit[row] |= cell is not None and needle in cell.tobytes().lower()
    return hit


# -- sort --------------------------------------------------------------------------------------------------


def _sorted(reader: Reader, numbers: I64 | None, field: str, down: bool, told: Progress) -> tuple[I64, str]:
    if field not in reader.schema:
        raise OptionError(f"there is no field {field[:100]!r} to sort by")
    kind = reader.schema[field]
    count = len(reader) if numbers is None else len(numbers)
    if isinstance(kind, Int | Float | Bool) or (isinstance(kind, Tensor) and kind.shape == ()):
        keys, there, ids = _numbers(reader, numbers, field, told)
        note = ""
    elif isinstance(kind, Text):
        keys, there, ids, note = _texts(reader, numbers, field, count, told)
    else:
        keys, there, ids = _sizes(reader, numbers, field, told)
        note = "sorted by the bytes of each cell"
    lost = count - len(ids)
    if lost:
        note = f"{note}; " * bool(note) + f"{lost:,} that cannot be read are left out"
    order = np.argsort(keys[there], kind="stable")
    if down:
        # Equal ones stay in their order.
        order = len(order) - 1 - np.argsort(keys[there][::-1], kind="stable")[::-1]
    return np.concatenate([ids[there][order], ids[~there]]), note


Keys = tuple[npt.NDArray[Any], npt.NDArray[np.bool_], I64]


def _numbers(reader: Reader, numbers: I64 | None, field: str, told: Progress) -> Keys:
    keys, there, ids = [], [], []
    for some, columns in _chunks(reader, numbers, [field], told):
        column: Column = columns[field]
        valid = column.valid if isinstance(column, Ragged) else None
        values = np.asarray(column)
        good = np.ones(len(some), np.bool_) if valid is None else valid.copy()
        if values.dtype.kind in "fc":
            good &= ~np.isnan(values)
        elif values.dtype.kind in "mM":
            good &= ~np.isnat(values)
        keys.append(values.copy())
        there.append(good)
        ids.append(some)
    return _joined(keys, there, ids)


def _texts(
    reader: Reader, numbers: I64 | None, field: str, count: int, told: Progress
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_], I64, str]:
    """Texts by as many of their first bytes as there is memory for."""
    most = max(8, min(256, SORT_BYTES // max(1, count)))
    keys, there, ids, cut = [], [], [], False
    for some, columns in _chunks(reader, numbers, [field], told):
        column = columns[field]
        assert isinstance(column, Ragged)
        sizes = column.sizes
        width = max(1, min(most, int(sizes.max(initial=0))))
        cut = cut or bool((sizes > most).any())
        made = np.zeros((len(some), width), dtype=np.uint8)
        at = np.arange(width)
        inside = at < sizes[:, None]
        made[inside] = column.data[(column.starts[:, None] + at)[inside]]
        keys.append(made.view(f"S{width}").reshape(-1))
        there.append(np.ones(len(some), np.bool_) if column.valid is None else column.valid.copy())
        ids.append(some)
    note = f"sorted by the first {most} bytes of each text" if cut else ""
    return (*_joined(keys, there, ids), note)


def _sizes(reader: Reader, numbers: I64 | None, field: str, told: Progress) -> Keys:
    """By the bytes of cells, from where they lie if the format tells."""
    ids = np.arange(len(reader)) if numbers is None else numbers
    told(0, len(ids))
    parts = []
    for start in range(0, len(ids), 1 << 18):
        told(start, len(ids))
        spans = reader.spans(field, ids[start : start + (1 << 18)])
        if spans is None:
            break
        parts.append(spans.size)
    else:
        size = np.concatenate([np.empty(0, np.int64), *parts])
        return size, size >= 0, ids
    keys, there, kept = [], [], []
    for some, columns in _chunks(reader, numbers, [field], told):
        column = columns[field]
        if not isinstance(column, Ragged):
            raise OptionError(f"all cells of {field!r} have one size; there is nothing to sort by")
        keys.append(column.sizes.copy())
        there.append(np.ones(len(some), np.bool_) if column.valid is None else column.valid.copy())
        kept.append(some)
    return _joined(keys, there, kept)


def _joined(keys: list[Any], there: list[Any], ids: list[Any]) -> Keys:
    if not keys:
        return np.empty(0), np.empty(0, np.bool_), np.empty(0, np.int64)
    return np.concatenate(keys), np.concatenate(there), np.concatenate(ids)


# -- keys --------------------------------------------------------------------------------------------------


def keys_of(side: Side, samples: I64) -> list[str] | None:
    """What the format itself calls these samples, where it has names for them."""
    reader = side.reader
    kind = reader._key_kind()
    if kind is None:
        return None
    try:
        column = reader._keys(samples)
        return (
            None if column is None else [_key(decode_cell(kind, column, row)) for row in range(len(samples))]
        )
    except (BatchplantError, OSError):
        return None


def _key(value: Any) -> str:
    return (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))[:200]
