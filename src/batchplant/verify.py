"""Verify a dataset: structure, bounds, checksums, decoding; or that two datasets hold the same."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from . import checksums
from .codecs.cells import cell_bytes, decode_cell
from .columns import I64, Column, Columns, Ragged, column_runs, end_within
from .errors import BatchplantError, DamagedError, DataError, Problem
from .reader import Reader, View
from .registry import open as open_reader
from .schema import Audio, Field, Video
from .shards import Concat

STEP = 256
STEP_BYTES = 64 << 20

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Verification:
    """What verify looked at and what it found."""

    path: str
    samples: int
    checks: tuple[str, ...]
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(
    source: str | os.PathLike[str] | Iterable[str] | Reader,
    *,
    decode: bool = False,
    against: str | os.PathLike[str] | Iterable[str] | Reader | None = None,
    format: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Verification:
    """Check every sample and name every problem.

    Structure, bounds and checksums (the format's own, or a ``.crc`` side-car) always; ``decode`` also
    decodes every cell; ``against`` proves cell by cell that another dataset holds the same.
    """
    path = source.path if isinstance(source, Reader) else str(source)
    try:
        reader = source if isinstance(source, Reader) else open_reader(source, format=format, **options)
    except DamagedError as error:
        return Verification(path, 0, ("structure",), [Problem.of(error)])
    checks = ["structure", "bounds"]
    problems = list(_structure(reader))
    sums = _side_car(reader, problems)
    checks += ["checksums"] if sums is not None else []
    checks += ["decode"] if decode else []
    other = None
    if against is not None:
        other = against if isinstance(against, Reader) else open_reader(against)
        checks.append(f"against {other.path}")
        problems += _shape_differs(reader, other)
    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        step = _step(reader)
        sizes, end = reader.sizes(), 0
        while end < len(reader):
            start, end = end, end_within(sizes, end, min(step, len(reader) - end), STEP_BYTES)
            rows, columns = _read(reader, np.arange(start, end), problems)
            if columns is not None:
                if sums is not None:
                    problems += _wrong_sums(reader, columns, rows, *sums)
                if decode:
                    jobs = [
                        pool.submit(_undecodable, reader, columns, row, int(number))
                        for row, number in enumerate(rows)
                    ]
                    problems += [problem for job in jobs for problem in job.result()]
                if other is not None:
                    problems += _differences(reader, other, columns, rows)
            if progress is not None:
                progress(end, len(reader))
    return Verification(reader.path, len(reader), tuple(checks), problems)


def _step(reader: Reader) -> int:
    """How many samples to read at once: fewer where they are large."""
    if reader.sizes() is not None:
        return STEP
    rows = np.arange(min(4, len(reader)))
    columns = _read(reader, rows, [])[1]
    size = sum(int(column_runs(column)[2].clip(0).sum()) for column in (columns or {}).values())
    return int(np.clip(STEP_BYTES * len(rows) // max(size, 1), 1, STEP))


def _structure(reader: Reader) -> Iterator[Problem]:
    try:
        yield from reader._verify()
    except DataError as error:
        yield Problem.of(error.at(path=reader.path))


def _side_car(reader: Reader, problems: list[Problem]) -> tuple[list[str], checksums.Sums] | None:
    """The checksums beside a dataset; of shards only when every one has its own."""
    if isinstance(reader, View):
        found = _side_car(reader.base, problems)
        return None if found is None else _chosen(found, list(reader.schema), reader.indices)
    if isinstance(reader, Concat):
        fields, parts = list(reader.schema), [_side_car(one, problems) for one in reader.readers]
        known = [_chosen(part, fields)[1] for part in parts if part is not None]
        return (fields, np.concatenate(known)) if len(known) == len(parts) else None
    try:
        found = checksums.load(reader.path)
    except DamagedError as error:
        problems.append(Problem.of(error))
        return None
    if found is not None and (len(found[1]) != len(reader) or set(found[0]) != set(reader.schema)):
        message = (
            f"the checksums are of {len(found[1])} samples of {', '.join(found[0])}, not of this dataset"
        )
        problems.append(Problem(message, reader.path + checksums.SUFFIX))
        return None
    return found


def _chosen(
    found: tuple[list[str], checksums.Sums], names: list[str], rows: I64 | None = None
) -> tuple[list[str], checksums.Sums]:
    sums = found[1][:, [found[0].index(name) for name in names]]
    return names, sums if rows is None else sums[rows]


def _read(reader: Reader, rows: I64, problems: list[Problem]) -> tuple[I64, Columns | None]:
    """The samples among these that can be read, and their cells."""
    try:
        return rows, reader.read(rows)
    except DataError:
        parts, good = [], []
    for row in rows:
        try:
            parts.append(reader.read([row]))
            good.append(row)
        except DataError as error:
            here = Problem.of(error.at(path=reader.path, sample=int(row)))
            problems += list(reader.verify_each([row])) or [here]
    return np.array(good, dtype=np.int64), Columns.concat(parts) if parts else None


def _wrong_sums(
    reader: Reader, columns: Columns, rows: I64, fields: list[str], sums: checksums.Sums
) -> Iterator[Problem]:
    found = checksums.of_columns(fields, columns)
    for row, column in np.argwhere(found != sums[rows]):
        sample, name = int(rows[row]), fields[column]
        spans = reader.spans(name, [sample])
        offset = None if spans is None else int(spans.start[0])
        yield Problem("the checksum is wrong", reader.path, sample, name, offset)


def _undecodable(reader: Reader, columns: Columns, row: int, sample: int) -> list[Problem]:
    found = []
    for name, field in reader.schema.items():
        try:
            value = decode_cell(field, columns[name], row)
            # Sounds and films are decoded when they are asked for.
            if isinstance(field, Audio | Video) and hasattr(value, "check"):
                value.check()
        except BatchplantError as error:
            found.append(Problem.of(error.at(path=reader.path, sample=sample, field=name)))
    return found


def _shape_differs(reader: Reader, other: Reader) -> Iterator[Problem]:
    if len(reader) != len(other):
        yield Problem(f"it has {len(reader)} samples, and {other.path} has {len(other)}", reader.path)
    if set(reader.schema) != set(other.schema):
        mine, yours = ", ".join(reader.schema), ", ".join(other.schema)
        yield Problem(f"its fields are {mine}, and those of {other.path} are {yours}", reader.path)


def _differences(reader: Reader, other: Reader, columns: Columns, rows: Any) -> Iterator[Problem]:
    rows = rows[rows < len(other)]
    fields = [name for name in reader.schema if name in other.schema]
    try:
        theirs = other.read(rows, fields)
    except DataError as error:
        yield Problem.of(error.at(path=other.path))
        return
    for name in fields:
        pair = (reader.schema[name], columns[name]), (other.schema[name], theirs[name])
        for row, number in enumerate(rows):
            if not _same(*pair, row):
                yield Problem(f"it differs from {other.path}", reader.path, int(number), name)


def _same(mine: tuple[Field, Column], theirs: tuple[Field, Column], row: int) -> bool:
    """Equal bytes, or, where the two are encoded differently, equal values."""
    raw = [isinstance(column, Ragged) and bool(column.raw[row]) for _, column in (mine, theirs)]
    if raw[0] == raw[1] and cell_bytes(mine[1], row) == cell_bytes(theirs[1], row):
        return True
    try:
        one, two = (decode_cell(field, column, row) for field, column in (mine, theirs))
    except BatchplantError:
        return False
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return bool(np.array_equal(one, two, equal_nan=True))
    return bool(one == two) or (one != one and two != two)
