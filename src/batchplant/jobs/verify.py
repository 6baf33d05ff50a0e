"""Verify a dataset: structure, bounds, checksums, decoding; or that two datasets hold the same."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import reprlib
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from ..codecs.cells import cell_bytes, decode_cell
from ..data import quarantine as lists
from ..data.concat import Concat, shifted
from ..data.quarantine import locate
from ..data.reader import Reader, View
from ..data.tensors import is_tensors, text_of
from ..errors import BatchplantError, DamagedError, DataError, OptionError, Problem, shown
from ..schema import Audio, Field, Schema, Video
from ..schema.columns import I64, Column, Columns, Ragged
from ..storage import checksums
from ..storage.platform import cpu_count
from ..storage.work import STATE, left_beside
from . import scans
from .engines import Engine
from .scans import Progress

# Samples that are drawn lie far apart.
DRAWN_BATCH_ROWS = 16
# Tasks that check the structure of files.
MAX_FILE_TASKS = 1024


class TaskResult(NamedTuple):
    """Problems of a task, each with True where a cell differs from another dataset's.

    ``compared``: the sample up to which cells were compared.
    """

    problems: list[tuple[Problem, bool]]
    compared: int = 0


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Job(scans.ScanJob):
    """Arguments of ``verify`` that describe the checks."""

    max_batch_rows = 256
    batch_bytes = 64 << 20

    reference: scans.Dataset | None
    decode: bool
    max_problems: int
    max_differences: int

    @functools.cached_property
    def files(self) -> list[list[tuple[Reader, int]]]:
        """For each task that checks structure: files, each with the number of its first sample."""
        if self.drawn is not None:
            return []
        reader = self.reader
        if not isinstance(reader, Concat) or is_tensors(reader.schema):
            return [[(reader, 0)]]
        firsts = itertools.accumulate((len(shard) for shard in reader.readers), initial=0)
        shards = list(zip(reader.readers, firsts, strict=False))
        task_files = -(-len(shards) // MAX_FILE_TASKS)
        return [shards[i : i + task_files] for i in range(0, len(shards), task_files)]

    def __len__(self) -> int:
        """Number of tasks: those of files, then those of samples."""
        return len(self.files) + len(self.plan)

    def weight(self, number: int) -> int:
        return 0 if number < len(self.files) else len(self.plan.span(number - len(self.files)))

    def name(self, number: int) -> str:
        if number < len(self.files):
            return f"the structure of {self.files[number][0][0].path}"
        span = self.plan.span(number - len(self.files))
        return f"checking samples {span.start:,} to {span.stop - 1:,}"

    @functools.cached_property
    def side_car(self) -> tuple[Sums | None, list[Problem]]:
        """Checksums beside the dataset, and problems with them."""
        problems: list[Problem] = []
        return load_sums(self.reader, problems), problems

    @functools.cached_property
    def _batch_rows(self) -> int:
        return super()._batch_rows if self.drawn is None else DRAWN_BATCH_ROWS

    def comparison(self) -> Comparison | None:
        if self.reference is None:
            return None
        return Comparison(self.reader, self.reference.reader, self.max_differences)


@dataclasses.dataclass(frozen=True)
class VerifyTask(scans.ScanTask):
    """Function of a worker: checks the structure of some files, or a range of samples."""

    job: Job

    def __call__(self, number: int) -> TaskResult:
        job = self.job
        if number >= len(job.files):
            return self._check_samples(job.plan.span(number - len(job.files)))
        problems = (
            problem for reader, first in job.files[number] for problem in _check_structure(reader, first)
        )
        return TaskResult([(problem, False) for problem in itertools.islice(problems, job.max_problems)])

    def _check_samples(self, span: range) -> TaskResult:
        job, reader = self.job, self.job.reader
        comparison, sums = job.comparison(), job.side_car[0]
        findings: list[tuple[Problem, bool]] = []
        with ThreadPoolExecutor(self.threads or cpu_count()) as pool:
            for done, indices in job.batches(span):
                problems: list[Problem] = []
                rows, columns = reader.read_undamaged(indices, problems, job.max_problems - len(findings))
                if columns is not None and sums is not None:
                    problems += wrong_sums(reader, columns, rows, sums)
                if columns is not None and job.decode:
                    futures = [
                        pool.submit(_check_decoding, reader, columns, row, int(sample))
                        for row, sample in enumerate(rows)
                    ]
                    problems += [problem for future in futures for problem in future.result()]
                findings += [(problem, False) for problem in problems]
                if columns is not None and comparison is not None:
                    findings += comparison.differences(columns, rows, job.max_problems)
                if self.report is not None:
                    self.report(done)
                if len(findings) >= job.max_problems:
                    break
        return TaskResult(findings[: job.max_problems], 0 if comparison is None else comparison.compared)


def _check_structure(reader: Reader, first: int) -> Iterator[Problem]:
    """Problems of a file that has ``first`` samples before it."""
    try:
        yield from (shifted(problem, first) for problem in reader._verify())
        if is_tensors(reader.schema):
            yield from _repeated_names(reader)
    except DataError as error:
        yield shifted(Problem.of(error.at(path=reader.path)), first)


def _repeated_names(reader: Reader) -> Iterator[Problem]:
    """Problems of tensors that have the name of another."""
    seen: set[str] = set()
    row = 0
    for columns in reader.scan(4096, ["name"]):
        for i in range(columns.rows):
            name = text_of(columns["name"], i)
            if name in seen:
                yield Problem(f"two tensors are called {name[:200]!r}", locate(reader, row).path, row, "name")
            seen.add(name)
            row += 1


def _check_decoding(reader: Reader, columns: Columns, row: int, sample: int) -> list[Problem]:
    problems = []
    for name, field in reader.schema.items():
        try:
            value = decode_cell(field, columns[name], row)
            # Sounds and videos are decoded lazily.
            if isinstance(field, Audio | Video) and hasattr(value, "check"):
                value.check()
        except BatchplantError as error:
            path, offset = locate(reader, sample).path, error.offset
            if offset is None and error.path is None:
                offset = _offset(reader, name, sample, path)
            problems.append(Problem.of(error.at(path=path, sample=sample, field=name, offset=offset)))
    return problems


def _offset(reader: Reader, field: str, sample: int, path: str) -> int | None:
    """Offset of a cell in the file of its dataset; None where it is in another, or no run of bytes."""
    try:
        spans = reader.spans(field, [sample])
    except BatchplantError:
        return None
    return int(spans.start[0]) if spans is not None and spans.files[int(spans.file[0])] == path else None


class Sums(NamedTuple):
    """Checksums of some fields, and for every sample the version of its side-car."""

    fields: list[str]
    sums: checksums.Sums

    def select(self, names: Iterable[str], rows: I64 | slice = slice(None)) -> Sums:
        names = [name for name in names if name in self.fields]
        columns = [self.fields.index(name) for name in names]
        return Sums(names, self.sums[rows][:, columns])


def load_sums(reader: Reader, problems: list[Problem]) -> Sums | None:
    """Checksums beside a dataset; of shards only when every one has its own."""
    if isinstance(reader, View):
        base_sums = load_sums(reader.base, problems)
        rows = slice(None) if reader.indices is None else reader.indices
        return None if base_sums is None else base_sums.select(reader.schema, rows)
    if isinstance(reader, Concat):
        loaded = [load_sums(shard, problems) for shard in reader.readers]
        shards = [sums for sums in loaded if sums is not None]
        if len(shards) < len(loaded):
            return None
        names = [name for name in reader.schema if all(name in shard.fields for shard in shards)]
        shards = [shard.select(names) for shard in shards]
        return Sums(names, np.concatenate([shard.sums for shard in shards]))
    try:
        stored = checksums.load(reader.path)
    except DamagedError as error:
        problems.append(Problem.of(error))
        return None
    if stored is None:
        return None
    fields, sums, schema = stored
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
    # Options may change the bytes of a field.
    same = [
        name
        for name in fields
        if name in reader.schema and (schema is None or schema[name] == reader.schema[name])
    ]
    return Sums(fields, sums).select(same) if same else None


def _without_options(reader: Reader) -> tuple[Schema, int] | None:
    """Schema and length of a dataset opened without options; None where it does not open."""
    args, options = reader._init_args
    if not options:
        return reader.schema, len(reader)
    try:
        with type(reader)(*args) as plain:
            return plain.schema, len(plain)
    except BatchplantError:
        return None


def _changed(now: Schema, fields: list[str], then: Schema | None) -> str:
    """Differences of a schema from that of the checksums as text; empty where there are none."""
    changes = [f"{name!r} is new" for name in now if name not in fields]
    changes += [f"{name!r} is gone" for name in fields if name not in now]
    for name, field in () if then is None else then.items():
        if name in now and now[name] != field:
            changes.append(f"{name!r} is {now[name]!s:.200} and was {field!s:.200}")
    return ", ".join(changes)


def wrong_sums(reader: Reader, columns: Columns, rows: I64, expected: Sums) -> Iterator[Problem]:
    sums = checksums.of_columns(expected.fields, columns)
    for row, column in np.argwhere(sums != expected.sums[rows]):
        sample, name = int(rows[row]), expected.fields[column]
        spans = reader.spans(name, [sample])
        offset = None if spans is None else int(spans.start[0])
        yield Problem("the checksum is wrong", locate(reader, sample).path, sample, name, offset)


# -- comparison with another dataset, cell by cell -----------------------------------------------------------


class Comparison:
    """Compares a range of samples with another dataset, up to a number of cells that differ."""

    def __init__(self, reader: Reader, reference: Reader, max_differences: int) -> None:
        self.reader, self.reference, self._max_differences = reader, reference, max_differences
        self._fields = [name for name in reader.schema if name in reference.schema]
        self._count = 0
        # Behind the last sample that was compared.
        self.compared = 0

    def shape_differs(self) -> Iterator[Problem]:
        """Problems of lengths, fields and classes that differ."""
        reader, reference = self.reader, self.reference
        path, other_path = reader.path, reference.path
        if len(reader) != len(reference):
            yield Problem(f"it has {len(reader)} samples, and {other_path} has {len(reference)}", path)
        if set(reader.schema) != set(reference.schema):
            names, other_names = ", ".join(reader.schema), ", ".join(reference.schema)
            yield Problem(f"its fields are {names}, and those of {other_path} are {other_names}", path)
        for name in self._fields:
            for attribute, noun in (("names", "classes"), ("ids", "class ids")):
                values = getattr(reader.schema[name], attribute, None)
                expected = getattr(reference.schema[name], attribute, None)
                # Not every format has a place for them.
                if values and expected and values != expected:
                    message = (
                        f"its {noun} are {_shown(values)}, and those of {other_path} are {_shown(expected)}"
                    )
                    yield Problem(message, path, None, name)

    def differences(self, columns: Columns, rows: I64, max_problems: int) -> Iterator[tuple[Problem, bool]]:
        """Problems, each with True where a cell differs, and False where the other dataset is damaged."""
        if self._count >= self._max_differences:
            return
        indices = rows[rows < len(self.reference)]
        damaged: list[Problem] = []
        numbers, expected = self.reference.read_undamaged(indices, damaged, max_problems)
        yield from ((problem, False) for problem in damaged)
        if expected is None:
            return
        columns = columns.take(np.searchsorted(rows, numbers))
        for row, number in enumerate(numbers.tolist()):
            self.compared = number + 1
            for name in self._fields:
                cell = self.reader.schema[name], columns[name]
                expected_cell = self.reference.schema[name], expected[name]
                if not _same(cell, expected_cell, row):
                    self._count += 1
                    path = locate(self.reader, number).path
                    yield Problem(f"it differs from {self.reference.path}", path, number, name), True
            if self._count >= self._max_differences:
                return


class DifferenceLimit:
    """Applies the limit on differing cells over all ranges, which come one after another."""

    def __init__(self, max_differences: int) -> None:
        self._max_differences = max_differences
        self._count = self._compared = 0

    def within(self, problems: list[tuple[Problem, bool]], compared: int) -> Iterator[Problem]:
        """Problems of the next range up to the limit; the range was compared up to sample ``compared``."""
        last = None
        for problem, differs in problems:
            # The limit ends with a sample: all of its cells are named.
            if differs and self._count >= self._max_differences and problem.sample != last:
                continue
            if differs:
                self._count, last = self._count + 1, problem.sample
                self._compared = (last or 0) + 1
            yield problem
        if self._count < self._max_differences:
            self._compared = max(self._compared, compared)

    def remarks(self, reader: Reader, reference: Reader) -> Iterator[str]:
        """A remark where the limit ended the comparison."""
        if self._count >= self._max_differences and self._compared < min(len(reader), len(reference)):
            samples = f"the first {self._compared:,} samples" if self._compared > 1 else "the first sample"
            cells = f"{reference.path} in {self._count:,} cells of {samples}"
            yield f"it differs from {cells}; the rest was not compared"


def _shown(values: tuple[object, ...]) -> str:
    return ", ".join(shown(str(value)) for value in values[:8]) + ", …" * (len(values) > 8)


def _same(cell: tuple[Field, Column], expected: tuple[Field, Column], row: int) -> bool:
    """True for equal bytes, or, where the two are encoded differently, equal values."""
    raw = [isinstance(column, Ragged) and bool(column.raw[row]) for _, column in (cell, expected)]
    if raw[0] == raw[1] and cell_bytes(cell[1], row) == cell_bytes(expected[1], row):
        return True
    try:
        a, b = (decode_cell(field, column, row) for field, column in (cell, expected))
    except BatchplantError:
        return False
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(a == b) or (a != a and b != b)


# A file that has more problems is of no use, and each takes as long as many sound samples.
MAX_PROBLEMS = 10_000
# So many differing cells prove that two datasets are not the same.
MAX_DIFFERENCES = 100


@dataclasses.dataclass(frozen=True)
class Verification:
    """Checks and problems of a verification. ``remarks``: what was not checked, one sentence each."""

    path: str
    samples: int
    checks: tuple[str, ...]
    problems: list[Problem]
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(
    source: Any,
    *,
    decode: bool = False,
    against: Any = None,
    format: str | None = None,
    engine: str | Engine = "threads",
    workers: int | None = None,
    progress: Progress | None = None,
    max_problems: int | None = MAX_PROBLEMS,
    max_differences: int | None = MAX_DIFFERENCES,
    sample: int | None = None,
    seed: int = 0,
    quarantine: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Verification:
    """Check every sample and name every problem.

    ``source`` is a Reader, or what :func:`batchplant.open` takes; ``progress`` is called as samples are
    checked.

    Structure, bounds and checksums (the format's own, and a ``.crc`` side-car) always; ``decode`` also
    decodes every cell; ``against`` proves cell by cell that another dataset holds the same. It stops after
    ``max_problems``, and stops comparing after ``max_differences`` cells that differ; None: never.
    ``sample``: only so many samples, drawn with ``seed``, and no more of the structure than opening needs.
    ``quarantine``: a file that gets the list of bad samples, for ``open(…, skip=FILE)``.
    The ``sample`` of a problem is its number in the whole dataset, counted through all shards.

    ``engine``: ``"threads"`` of this process, ``"processes"``, ``"dask"``, ``"ray"``, or the result of
    :func:`batchplant.engines.make`. The report is the same with any of them. ``workers``: decoding threads of
    each task.

    Returns: a Verification, whose ``problems`` are :class:`Problem` objects with path, sample, field and
    offset. Damage is reported, not raised.

    Raises: what :func:`batchplant.open` raises, where the dataset cannot even be opened.
    """
    problem_limit = _limit("max_problems", max_problems)
    runner = scans.engine_of(engine)
    job = Job(
        dataset=scans.Dataset(source, format, options),
        sample=None if sample is None else _limit("sample", sample),
        seed=seed,
        reference=None if against is None else scans.Dataset(against),
        decode=decode,
        max_problems=problem_limit,
        max_differences=_limit("max_differences", max_differences),
    )
    for dataset in (job.dataset, job.reference):
        if dataset is not None:
            dataset.check(runner)
    try:
        reader = job.reader
    except DamagedError as error:
        if quarantine is not None:
            lists.write(quarantine, None, [Problem.of(error)])
        # Data in memory may be large.
        path = str(source) if isinstance(source, str | os.PathLike) else reprlib.repr(source)
        return Verification(path, 0, ("structure",), [Problem.of(error)])
    drawn = job.drawn is not None
    checks = ["bounds"] if drawn else ["structure", "bounds", *reader.own_checks()]
    checks += ["checksums"] if job.side_car[0] is not None else []
    checks += ["decode"] if decode else []
    findings = _Findings(job)
    comparison = job.comparison()
    if comparison is not None:
        checks.append(f"against {comparison.reference.path}")
        findings.dataset_problems += comparison.shape_differs()
    task = VerifyTask(job, workers or runner.threads)
    scans.in_order(runner, task, job.weight, len(job), findings.take, name=job.name, progress=progress)
    problems = findings.problems
    remarks: list[str] = []
    if job.reference is not None:
        remarks += findings.difference_limit.remarks(reader, job.reference.reader)
    if len(problems) >= problem_limit:
        del problems[problem_limit:]
        last = problems[-1].sample
        position = "" if last is None else f", at sample {last:,} of {len(reader):,}"
        remarks.append(f"it stopped after {problem_limit:,} problems{position}")
    count = job.plan.samples
    if drawn:
        remarks.append(f"{count:,} of {len(reader):,} samples were checked, drawn with seed {seed}")
    for folder in left_beside({file.path for files in job.files for file, _ in files} | {reader.path}):
        resumable = (folder / STATE).is_file()
        use = "a conversion with resume (--resume) goes on from it" if resumable else None
        remarks.append(
            f"{folder.name} beside it was left by a writer that was killed: "
            f"{use or 'it holds nothing that is needed'}; the next writer of that "
            "name clears it away, and you may delete it"
        )
    if quarantine is not None:
        lists.write(quarantine, reader, problems)
    return Verification(reader.path, count, tuple(checks), problems, tuple(remarks))


class _Findings:
    """Collects the problems of tasks, which come in order: files first, then samples."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._files: list[Problem] = []
        self._samples: list[Problem] = []
        # Of side-cars, and of the dataset as a whole.
        self.dataset_problems = list(job.side_car[1])
        self.difference_limit = DifferenceLimit(job.max_differences)

    @property
    def problems(self) -> list[Problem]:
        return [*self._files, *self.dataset_problems, *self._samples]

    def take(self, number: int, result: TaskResult) -> bool:
        """Add the problems of a task; return True where the limit is reached."""
        files = len(self._job.files)
        if number < files:
            self._files += [problem for problem, _ in result.problems]
        else:
            self._samples += self.difference_limit.within(result.problems, result.compared)
        count = len(self._files)
        if number >= files - 1:
            count += len(self.dataset_problems) + len(self._samples)
        return count >= self._job.max_problems


def _limit(name: str, value: int | None) -> int:
    if value is not None and value < 1:
        raise OptionError(f"{name} is at least 1, or None for no limit, not {value}")
    return sys.maxsize if value is None else value
