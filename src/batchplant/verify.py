"""Verify a dataset: structure, bounds, checksums, decoding; or that two datasets hold the same."""

from __future__ import annotations

import dataclasses
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from . import quarantine as lists
from .checks import read_sound
from .codecs.cells import cell_bytes, decode_cell
from .columns import I64, Column, Columns, Ragged, column_runs, end_within
from .errors import BatchplantError, DamagedError, DataError, OptionError, Problem
from .joined import Concat
from .reader import Reader, View
from .registry import open as open_reader
from .schema import Audio, Field, Schema, Video
from .storage import checksums
from .tensors import is_tensors, text_of

STEP = 256
# Of samples that are drawn.
DRAWN_STEP = 16
STEP_BYTES = 64 << 20
# A file that has more problems is of no use, and each takes as long as many sound samples.
MOST = 10_000
# So many cells that differ tell that two datasets are not the same.
DIFFERENCES = 100

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Verification:
    """What verify looked at and what it found. ``remarks``: what it did not look at, one sentence each."""

    path: str
    samples: int
    checks: tuple[str, ...]
    problems: list[Problem]
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


class _Sums(NamedTuple):
    """The checksums of some fields, and for every sample the version of the side-car that they come from."""

    fields: list[str]
    sums: checksums.Sums
    versions: I64

    def chosen(self, names: Iterable[str], rows: I64 | slice = slice(None)) -> _Sums:
        kept = [name for name in names if name in self.fields]
        columns = [self.fields.index(name) for name in kept]
        return _Sums(kept, self.sums[rows][:, columns], self.versions[rows])


def verify(
    source: Any,
    *,
    decode: bool = False,
    against: Any = None,
    format: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    most: int | None = MOST,
    differences: int | None = DIFFERENCES,
    sample: int | None = None,
    seed: int = 0,
    quarantine: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Verification:
    """Check every sample and name every problem.

    Structure, bounds and checksums (the format's own, and a ``.crc`` side-car) always; ``decode`` also
    decodes every cell; ``against`` proves cell by cell that another dataset holds the same. ``most``: stop
    after so many problems; ``differences``: compare no further after so many cells that differ; None: never.
    ``sample``: only so many samples, drawn with ``seed``, and no more of the structure than opening needs.
    ``quarantine``: a file that gets the list of bad samples, for ``open(…, skip=FILE)``.
    The ``sample`` of a problem is its number in what is verified, counted through all shards.
    """
    most, differences = _limit("most", most), _limit("differences", differences)
    # Data in memory may be large.
    named = isinstance(source, str | os.PathLike)
    path = source.path if isinstance(source, Reader) else str(source) if named else reprlib.repr(source)
    try:
        reader = source if isinstance(source, Reader) else open_reader(source, format=format, **options)
    except DamagedError as error:
        if quarantine is not None:
            lists.write(quarantine, None, [Problem.of(error)])
        return Verification(path, 0, ("structure",), [Problem.of(error)])
    drawn = None if sample is None else _drawn(len(reader), _limit("sample", sample), seed)
    checks = ["structure", "bounds", *reader.own_checks()] if drawn is None else ["bounds"]
    problems: list[Problem] = []
    for problem in _structure(reader) if drawn is None else ():
        problems.append(problem)
        if len(problems) >= most:
            break
    sums = _side_car(reader, problems)
    checks += ["checksums"] if sums is not None else []
    checks += ["decode"] if decode else []
    comparison = None
    if against is not None:
        comparison = _Comparison(reader, against, differences)
        checks.append(f"against {comparison.other.path}")
        problems += comparison.shape_differs()
    end, count = 0, len(reader) if drawn is None else len(drawn)
    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        step, sizes = _step(reader) if drawn is None else DRAWN_STEP, reader.sizes()
        sizes = sizes if drawn is None or sizes is None else sizes[drawn]
        while end < count and len(problems) < most:
            start, end = end, end_within(sizes, end, min(step, count - end), STEP_BYTES)
            some = np.arange(start, end) if drawn is None else drawn[start:end]
            rows, columns = read_sound(reader, some, problems, most)
            if columns is not None:
                if sums is not None:
                    problems += _wrong_sums(reader, columns, rows, sums)
                if decode:
                    jobs = [
                        pool.submit(_undecodable, reader, columns, row, int(number))
                        for row, number in enumerate(rows)
                    ]
                    problems += [problem for job in jobs for problem in job.result()]
                if comparison is not None:
                    problems += comparison.differences(columns, rows, most)
            if progress is not None:
                progress(end, count)
    remarks = [] if comparison is None else list(comparison.remarks())
    if len(problems) >= most:
        del problems[most:]
        place = "" if (last := problems[-1].sample) is None else f", at sample {last:,} of {len(reader):,}"
        remarks.append(f"it stopped after {most:,} problems{place}")
    if drawn is not None:
        remarks.append(f"{count:,} of {len(reader):,} samples were checked, drawn with seed {seed}")
    if quarantine is not None:
        lists.write(quarantine, reader, problems)
    return Verification(reader.path, count, tuple(checks), problems, tuple(remarks))


def _drawn(length: int, count: int, seed: int) -> I64:
    """Some samples, in order, none twice."""
    if count >= length:
        return np.arange(length)
    return np.sort(np.random.default_rng(seed).choice(length, count, replace=False, shuffle=False))


def _limit(name: str, given: int | None) -> int:
    if given is not None and given < 1:
        raise OptionError(f"{name} is at least 1, or None for no limit, not {given}")
    return sys.maxsize if given is None else given


def _step(reader: Reader) -> int:
    """How many samples to read at once: fewer where they are large."""
    if reader.sizes() is not None:
        return STEP
    rows = np.arange(min(4, len(reader)))
    columns = read_sound(reader, rows, [], sys.maxsize)[1]
    size = sum(int(column_runs(column)[2].clip(0).sum()) for column in (columns or {}).values())
    return int(np.clip(STEP_BYTES * len(rows) // max(size, 1), 1, STEP))


def _structure(reader: Reader) -> Iterator[Problem]:
    try:
        yield from reader._verify()
        if is_tensors(reader.schema):
            yield from _same_names(reader)
    except DataError as error:
        yield Problem.of(error.at(path=reader.path))


def _same_names(reader: Reader) -> Iterator[Problem]:
    """Tensors that have the name of another."""
    seen: set[str] = set()
    row = 0
    for columns in reader.scan(4096, ["name"]):
        for at in range(columns.rows):
            name = text_of(columns["name"], at)
            if name in seen:
                yield Problem(f"two tensors are called {name[:200]!r}", _place(reader, row), row, "name")
            seen.add(name)
            row += 1


def _place(reader: Reader, row: int) -> str:
    """The file of a dataset that a sample is in."""
    return lists.place_of(reader, row).path


def _side_car(reader: Reader, problems: list[Problem]) -> _Sums | None:
    """The checksums beside a dataset; of shards only when every one has its own."""
    if isinstance(reader, View):
        found = _side_car(reader.base, problems)
        rows = slice(None) if reader.indices is None else reader.indices
        return None if found is None else found.chosen(reader.schema, rows)
    if isinstance(reader, Concat):
        parts = [_side_car(one, problems) for one in reader.readers]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        names = [name for name in reader.schema if all(name in part.fields for part in known)]
        known = [part.chosen(names) for part in known]
        sums, versions = (
            np.concatenate(one) for one in zip(*((p.sums, p.versions) for p in known), strict=True)
        )
        return _Sums(names, sums, versions)
    try:
        found_here = checksums.load(reader.path)
    except DamagedError as error:
        problems.append(Problem.of(error))
        return None
    if found_here is None:
        return None
    fields, sums, schema, version = found_here
    beside = reader.path.rstrip("/") + checksums.SUFFIX
    plain = _without_options(reader)
    if plain is not None and len(sums) != plain[1]:
        problems.append(
            Problem(f"the checksums are of {len(sums)} samples, and there are {plain[1]}", beside)
        )
    elif plain is not None and (changed := _changed(plain[0], fields, schema)):
        problems.append(Problem(f"since the checksums were taken, the fields changed: {changed}", beside))
    if len(sums) != len(reader):
        return None
    # What an option makes of a field has other bytes.
    same = [
        name
        for name in fields
        if name in reader.schema and (schema is None or schema[name] == reader.schema[name])
    ]
    return _Sums(fields, sums, np.full(len(sums), version)).chosen(same) if same else None


def _without_options(reader: Reader) -> tuple[Schema, int] | None:
    """The schema of a dataset and how many samples it has, when no option chooses; None: it does not open."""
    args, options = reader._made_with
    if not options:
        return reader.schema, len(reader)
    try:
        with type(reader)(*args) as plain:
            return plain.schema, len(plain)
    except BatchplantError:
        return None


def _changed(now: Schema, fields: list[str], then: Schema | None) -> str:
    """How a schema differs from that of which checksums were taken; empty where it does not."""
    said = [f"{name!r} is new" for name in now if name not in fields]
    said += [f"{name!r} is gone" for name in fields if name not in now]
    for name, field in () if then is None else then.items():
        if name in now and now[name] != field:
            said.append(f"{name!r} is {now[name]!s:.200} and was {field!s:.200}")
    return ", ".join(said)


def _wrong_sums(reader: Reader, columns: Columns, rows: I64, known: _Sums) -> Iterator[Problem]:
    for version in np.unique(known.versions[rows]).tolist():
        here = known.versions[rows] == version
        found = checksums.of_columns(known.fields, columns, version)
        for row, column in np.argwhere((found != known.sums[rows]) & here[:, None]):
            sample, name = int(rows[row]), known.fields[column]
            spans = reader.spans(name, [sample])
            offset = None if spans is None else int(spans.start[0])
            yield Problem("the checksum is wrong", _place(reader, sample), sample, name, offset)


def _undecodable(reader: Reader, columns: Columns, row: int, sample: int) -> list[Problem]:
    found = []
    for name, field in reader.schema.items():
        try:
            value = decode_cell(field, columns[name], row)
            # Sounds and films are decoded when they are asked for.
            if isinstance(field, Audio | Video) and hasattr(value, "check"):
                value.check()
        except BatchplantError as error:
            path, offset = _place(reader, sample), error.offset
            if offset is None and error.path is None:
                offset = _start(reader, name, sample, path)
            found.append(Problem.of(error.at(path=path, sample=sample, field=name, offset=offset)))
    return found


def _start(reader: Reader, field: str, sample: int, path: str) -> int | None:
    """Where a cell begins in the file of its dataset; None where it is in another, or no run of bytes."""
    try:
        spans = reader.spans(field, [sample])
    except BatchplantError:
        return None
    return int(spans.start[0]) if spans is not None and spans.files[int(spans.file[0])] == path else None


class _Comparison:
    """Cell by cell with another dataset, up to a number of cells that differ."""

    def __init__(self, reader: Reader, against: Any, most: int) -> None:
        self.reader, self._most = reader, most
        self.other = against if isinstance(against, Reader) else open_reader(against)
        self._fields = [name for name in reader.schema if name in self.other.schema]
        self._found = self._compared = 0

    def shape_differs(self) -> Iterator[Problem]:
        mine, other = self.reader, self.other
        if len(mine) != len(other):
            yield Problem(f"it has {len(mine)} samples, and {other.path} has {len(other)}", mine.path)
        if set(mine.schema) != set(other.schema):
            these, those = ", ".join(mine.schema), ", ".join(other.schema)
            yield Problem(f"its fields are {these}, and those of {other.path} are {those}", mine.path)

    def differences(self, columns: Columns, rows: I64, most: int) -> Iterator[Problem]:
        if self._found >= self._most:
            return
        asked = rows[rows < len(self.other)]
        damaged: list[Problem] = []
        numbers, theirs = read_sound(self.other, asked, damaged, most)
        yield from damaged
        if theirs is None:
            return
        mine = columns.take(np.searchsorted(rows, numbers))
        for row, number in enumerate(numbers.tolist()):
            self._compared = number + 1
            for name in self._fields:
                pair = (self.reader.schema[name], mine[name]), (self.other.schema[name], theirs[name])
                if not _same(*pair, row):
                    self._found += 1
                    where = _place(self.reader, number)
                    yield Problem(f"it differs from {self.other.path}", where, number, name)
            if self._found >= self._most:
                return

    def remarks(self) -> Iterator[str]:
        """That it was given up, where it was."""
        if self._found >= self._most and self._compared < min(len(self.reader), len(self.other)):
            samples = f"the first {self._compared:,} samples" if self._compared > 1 else "the first sample"
            where = f"{self.other.path} in {self._found:,} cells of {samples}"
            yield f"it differs from {where}; the rest was not compared"


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
