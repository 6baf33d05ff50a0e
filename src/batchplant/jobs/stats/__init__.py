"""Statistics of a dataset by field: counts, means, quantiles, frequent values, resolutions, copies.

:func:`collect` looks at every sample once, on any engine. Each range of samples gives partial statistics;
numbers.py has the accumulators and how two of them merge. ``batchplant stats`` prints them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import schema as kinds
from ...codecs import scalars
from ...codecs.media import audio, image, video
from ...codecs.npy import unpack_tensor
from ...errors import BatchplantError, DataError, MissingLibraryError, OptionError, Problem, shown
from ...schema import Field
from ...schema.columns import I64, U8, AnyArray, Column, Columns, Masked, Ragged, column_runs
from ...storage.platform import cpu_count
from .. import scans
from ..engines import Engine
from ..scans import Progress
from .numbers import Copies, Hashes, Numbers, Sums, Tally, Values, as_rows, digests, row_digests

# Of all fields together, 24 bytes each.
MAX_HASHES = 1 << 23
# Rows that a thread hashes at a time.
HASHED_ROWS = 64
LISTED_PROBLEMS = 10


@dataclasses.dataclass(frozen=True)
class Stats:
    """Statistics of a dataset: ``looked_at`` of ``samples``; ``unreadable`` of those could not be read.

    ``copies``: samples that equal an earlier one in all fields; None where there is only one field.
    """

    path: str
    format: str
    samples: int
    looked_at: int
    unreadable: int
    problems: tuple[Problem, ...]
    bytes: int
    fields: dict[str, FieldStats]
    copies: Copies | None
    remarks: tuple[str, ...] = ()


def collect(
    source: Any,
    *,
    fields: Iterable[str] | None = None,
    sample: int | None = None,
    seed: int = 0,
    engine: str | Engine = "threads",
    workers: int | None = None,
    progress: Progress | None = None,
    format: str | None = None,
    max_hashes: int = MAX_HASHES,
    **options: Any,
) -> Stats:
    """Collect counts, means, quantiles, frequent values, resolutions, lengths and copies, field by field.

    ``source``: a Reader, or an argument of ``open``. ``fields``: only these. ``sample``: only so many
    samples, drawn with ``seed``. ``engine``: ``"threads"``, ``"processes"``, ``"dask"``, ``"ray"``, or the
    result of :func:`batchplant.engines.make`; the statistics are the same. ``workers``: threads of each task.
    Images, sounds and videos are not decoded; their headers are read.
    """
    if sample is not None and sample < 1:
        raise OptionError(f"sample is at least 1, or None for all, not {sample}")
    runner = scans.engine_of(engine)
    names = None if fields is None else tuple(fields)
    job = Job(
        dataset=scans.Dataset(source, format, options, names), sample=sample, seed=seed, max_hashes=max_hashes
    )
    job.dataset.check(runner)
    reader = job.reader
    total = PartialStats(job)

    def take(_: int, part: PartialStats) -> bool:
        total.merge(part)
        return False

    task = StatsTask(job, workers or runner.threads)
    scans.in_order(runner, task, job.weight, len(job.plan), take, name=job.name, progress=progress)
    remarks = [remark for field in total.fields.values() for remark in field.remarks]
    if job.drawn is not None and len(job.drawn) < len(reader):
        remarks.append(f"the samples were drawn with seed {seed}; copies are only found among them")
    return Stats(
        shown(reader.path),
        reader.format,
        len(reader),
        job.plan.samples,
        total.unreadable,
        tuple(total.problems),
        sum(field.size for field in total.fields.values()),
        {name: field.stats() for name, field in total.fields.items()},
        None if total.rows is None else total.rows.copies(),
        tuple(dict.fromkeys(remarks)),
    )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Job(scans.ScanJob):
    """Arguments of ``collect`` that describe the work."""

    max_batch_rows = 4096
    batch_bytes = 32 << 20

    max_hashes: int = MAX_HASHES

    def weight(self, number: int) -> int:
        return len(self.plan.span(number))

    def name(self, number: int) -> str:
        span = self.plan.span(number)
        return f"looking at samples {span.start:,} to {span.stop - 1:,}"

    @functools.cached_property
    def one_in(self) -> int:
        """Sampling rate of the hashes, a power of two."""
        schema = self.dataset.reader.schema
        columns = sum(map(is_hashed, schema.values())) + (len(schema) > 1)
        column_hashes = self.max_hashes // max(1, columns)
        return 1 << max(0, (self.plan.samples - 1) // column_hashes).bit_length()


class PartialStats:
    """Statistics of some ranges."""

    def __init__(self, job: Job) -> None:
        schema = job.reader.schema
        self.fields = {name: FieldScan(field, job.one_in) for name, field in schema.items()}
        self.rows = Hashes(job.one_in) if len(schema) > 1 else None
        self.unreadable = 0
        self.problems: list[Problem] = []

    def add(self, numbers: I64, columns: Columns, pool: ThreadPoolExecutor) -> None:
        parts: list[U8] = []
        for name, scan in self.fields.items():
            column = columns[name]
            scan.add(column)
            rows = as_rows(column)
            if scan.hashes is not None or rows is None:
                hashes, valid = _hash_cells(column, rows, pool)
                if scan.hashes is not None:
                    scan.hashes.add(hashes[valid], numbers[valid])
                rows = hashes
            parts.append(rows)
        if self.rows is not None:
            self.rows.add(row_digests(parts), numbers)

    def merge(self, later: PartialStats) -> None:
        for name, scan in later.fields.items():
            self.fields[name].merge(scan)
        if self.rows is not None and later.rows is not None:
            self.rows.merge(later.rows)
        self.unreadable += later.unreadable
        self.problems = [*self.problems, *later.problems][:LISTED_PROBLEMS]


def _hash_cells(column: Column, rows: U8 | None, pool: ThreadPoolExecutor) -> tuple[U8, Any]:
    """Digests of cells, and the index of those that are not missing."""
    if rows is not None:
        return row_digests([rows]), column.mask if isinstance(column, Masked) else slice(None)
    assert isinstance(column, Ragged)
    ranges = [range(i, min(i + HASHED_ROWS, len(column))) for i in range(0, len(column), HASHED_ROWS)]
    hashes = list(pool.map(lambda rows: digests(column, rows), ranges))
    valid = slice(None) if column.valid is None else column.valid
    return np.concatenate([np.empty((0, 16), np.uint8), *hashes]), valid


@dataclasses.dataclass(frozen=True)
class StatsTask(scans.ScanTask):
    """Function of a worker: collects one range."""

    job: Job

    def __call__(self, number: int) -> PartialStats:
        job, span = self.job, self.job.plan.span(number)
        part = PartialStats(job)
        with ThreadPoolExecutor(self.threads or cpu_count()) as pool:
            for done, indices in job.batches(span):
                problems: list[Problem] = []
                numbers, columns = job.reader.read_undamaged(indices, problems, sys.maxsize)
                part.unreadable += len(indices) - len(numbers)
                part.problems = [*part.problems, *problems][:LISTED_PROBLEMS]
                if columns is not None:
                    part.add(numbers, columns, pool)
                if self.report is not None:
                    self.report(done)
        return part


# Longer texts are not counted as values.
MAX_COUNTED_BYTES = 64

CellFacts = Iterator[tuple[str, Any]]


@dataclasses.dataclass(frozen=True)
class FieldStats:
    """Statistics of a field over ``count`` cells, without those that are missing.

    ``numbers``: by quantity, such as values, length (characters of text, bytes, items of a list),
    bytes (of a cell), width, height, seconds; of boxes left, top, width and height, of keypoints x and y.
    ``values``: values, resolutions, modes, encodings, …, with their counts. ``times``: of a Time or Duration
    the numbers as text: min, median, max. ``unknown``: cells whose headers cannot be read.
    """

    kind: str
    type: str
    count: int
    missing: int
    unknown: int
    bytes: int
    numbers: dict[str, Numbers]
    values: dict[str, Values]
    times: dict[str, str]
    copies: Copies | None


class FieldScan:
    """Accumulates the statistics of a field; two accumulators can be merged."""

    def __init__(self, field: Field, one_in: int) -> None:
        self._field = field
        self._count = self._missing = self._unknown = self.size = 0
        self._numbers: dict[str, Sums] = {}
        self._tallies: dict[str, Tally] = {}
        self.remarks: dict[str, None] = {}
        self.hashes = Hashes(one_in) if is_hashed(field) else None

    def add(self, column: Column) -> None:
        sizes = column_runs(column)[2]
        valid = sizes >= 0
        self._count += int(valid.sum())
        self._missing += int((~valid).sum())
        self.size += int(sizes[valid].sum())
        if isinstance(column, Ragged) and not isinstance(column, Masked):
            self._add_ragged(column if valid.all() else column.take(valid))
            return
        values = column.values[valid] if isinstance(column, Masked) else column
        self._add_numbers(values)

    def merge(self, later: FieldScan) -> None:
        for name in ("_count", "_missing", "_unknown", "size"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for name, sums in later._numbers.items():
            self._sums(name).merge(sums)
        for name, tally in later._tallies.items():
            self._tally(name).merge(tally)
        self.remarks |= later.remarks
        if self.hashes is not None and later.hashes is not None:
            self.hashes.merge(later.hashes)

    def stats(self) -> FieldStats:
        field = self._field
        names: dict[Hashable, str] = {}
        if (
            isinstance(field, kinds.Int | kinds.Labels)
            and field.names
            and len(set(field.names)) == len(field.names)
        ):
            names.update(enumerate(field.names))
        numbers = {name: sums.numbers() for name, sums in self._numbers.items()}
        return FieldStats(
            field.kind,
            str(field),
            self._count,
            self._missing,
            self._unknown,
            self.size,
            numbers,
            {name: tally.values(names) for name, tally in self._tallies.items()},
            _times(field, numbers["values"])
            if isinstance(field, kinds.Time | kinds.Duration) and self._count
            else {},
            None if self.hashes is None else self.hashes.copies(),
        )

    def _sums(self, name: str) -> Sums:
        return self._numbers.setdefault(name, Sums())

    def _tally(self, name: str) -> Tally:
        return self._tallies.setdefault(name, Tally())

    def _add_numbers(self, values: AnyArray) -> None:
        field = self._field
        if values.dtype.kind not in "biuf":
            return
        if not isinstance(field, kinds.Bool):
            self._sums("values").add(values)
        counted = isinstance(field, kinds.Int | kinds.Bool) and not isinstance(
            field, kinds.Time | kinds.Duration
        )
        if counted or isinstance(field, kinds.Labels):
            distinct, counts = np.unique(values, return_counts=True)
            self._tally("values").add_counts(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))

    def _add_ragged(self, column: Ragged) -> None:
        field = self._field
        if isinstance(field, kinds.Image):
            self._add_images(column)
        elif isinstance(field, kinds.Audio):
            self._add_facts(column, self._audio_facts)
        elif isinstance(field, kinds.Video):
            self._add_facts(column, self._video_facts)
        elif isinstance(field, kinds.Tensor):
            self._add_arrays(column, field)
        elif isinstance(field, kinds.Text):
            self._sums("length").add(_characters(column))
            short = [row for row, size in enumerate(column.sizes.tolist()) if size <= MAX_COUNTED_BYTES]
            cells = (column.data[column.offsets[row] : column.offsets[row + 1]].tobytes() for row in short)
            self._tally("values").add(cell.decode("utf-8", "replace") for cell in cells)
        elif isinstance(field, kinds.List):
            self._add_facts(column, lambda cell: iter([("length", len(json.loads(cell.tobytes())))]))
        elif isinstance(field, kinds.Bytes):
            self._sums("length").add(column.sizes)
        if isinstance(field, kinds.Image | kinds.Audio | kinds.Video) or field.kind in ("json", "struct"):
            self._sums("bytes").add(column.sizes)

    def _add_images(self, column: Ragged) -> None:
        headers, raw = image.probe(column), column.raw
        has_size = headers[:, 1] > 0
        self._unknown += int((~has_size).sum())
        if not has_size.any():
            return
        rows = np.flatnonzero(has_size)
        width, height = headers[rows, 1], headers[rows, 2]
        self._sums("width").add(width)
        self._sums("height").add(height)
        sides = zip(width.tolist(), height.tolist(), strict=True)
        self._tally("resolutions").add(f"{w}×{h}" for w, h in sides)
        modes = image.modes(column)
        self._tally("modes").add(modes[row] or "?" for row in rows.tolist())
        self._tally("encodings").add(
            "raw" if raw[row] else image.ENCODINGS[headers[row, 0]] or "?" for row in rows.tolist()
        )

    def _add_facts(self, column: Ragged, facts: Callable[[Any], CellFacts]) -> None:
        """Add the facts of every cell, which are numbers or texts by name."""
        numbers: dict[str, list[float]] = {}
        texts: dict[str, list[str]] = {}
        for cell in column:
            try:
                cell_facts = list(facts(cell))
            except MissingLibraryError as error:
                self.remarks[error.message] = None
                self._unknown += 1
                continue
            except (BatchplantError, ValueError, TypeError, RecursionError):
                self._unknown += 1
                continue
            for name, value in cell_facts:
                if isinstance(value, str):
                    texts.setdefault(name, []).append(value)
                else:
                    numbers.setdefault(name, []).append(value)
        for name, values in numbers.items():
            self._sums(name).add(np.array(values))
        for name, values_as_text in texts.items():
            self._tally(name).add(values_as_text)

    @staticmethod
    def _audio_facts(cell: Any) -> CellFacts:
        header = audio.header(cell)
        yield "seconds", header.frames / header.rate
        yield "rates", str(header.rate)
        yield "channels", str(header.channels)
        yield "encodings", header.encoding

    @staticmethod
    def _video_facts(cell: Any) -> CellFacts:
        header = video.header(cell)
        if header.seconds is not None:
            yield "seconds", header.seconds
        yield "resolutions", f"{header.width}×{header.height}"
        yield "frame rates", "?" if header.fps is None else f"{header.fps:.6g}"
        yield "encodings", header.encoding or "?"

    def _add_arrays(self, column: Ragged, field: kinds.Tensor) -> None:
        """Add arrays whose sizes vary."""
        arrays, shapes = [], []
        for cell in (cell for cell in column if cell is not None):
            try:
                array = unpack_tensor(field, cell)
            except (DataError, ValueError):
                self._unknown += 1
                continue
            arrays.append(array.reshape(-1))
            shapes.append(array.shape)
        if len(field.shape) == 1:
            self._sums("length").add(np.array([shape[0] for shape in shapes], dtype=np.int64))
        else:
            self._tally("shapes").add("×".join(map(str, shape)) for shape in shapes)
        if not arrays:
            return
        values = np.concatenate(arrays)
        if isinstance(field, kinds.Boxes):
            self._add_boxes(values.reshape(-1, 4), field.format)
        elif isinstance(field, kinds.Keypoints):
            self._add_points(values.reshape(-1, field.shape[-1] or 2))
        else:
            self._add_numbers(values)

    def _add_boxes(self, boxes: AnyArray, format: str) -> None:
        """Add corners and sizes of boxes in any format."""
        boxes = boxes.astype(np.float64)
        start, size = boxes[:, :2], boxes[:, 2:]
        if format == "xyxy":
            size = size - start
        elif format == "cxcywh":
            start = start - size / 2
        for name, values in zip(("left", "top", "width", "height"), (*start.T, *size.T), strict=True):
            self._sums(name).add(values)

    def _add_points(self, points: AnyArray) -> None:
        """Add the coordinates of visible points."""
        visible = points if points.shape[1] < 3 else points[points[:, 2] > 0]
        for name, values in zip("xy", visible.T, strict=False):
            self._sums(name).add(values)


def is_hashed(field: Field) -> bool:
    """True where equal cells are no coincidence, as they are among numbers."""
    return not isinstance(field, kinds.Int | kinds.Bool) and field.kind != "float"


def _characters(column: Ragged) -> npt.NDArray[np.int64]:
    """Characters of each text: its bytes that begin one."""
    begins = np.append(0, np.cumsum((column.data & 0xC0) != 0x80))
    return np.asarray(begins[column.offsets[1:]] - begins[column.offsets[:-1]], dtype=np.int64)


def _times(field: kinds.Time | kinds.Duration, numbers: Numbers) -> dict[str, str]:
    """First, median and last time as text."""
    counts = {"min": numbers.min, "median": numbers.median, "max": numbers.max}
    texts = scalars.texts_of(field, np.array([round(n or 0) for n in counts.values()], dtype=np.int64))
    return {name: text.decode() for name, text in zip(counts, texts.tolist(), strict=True)}


__all__ = ["Copies", "FieldStats", "Numbers", "Stats", "Values", "collect"]
