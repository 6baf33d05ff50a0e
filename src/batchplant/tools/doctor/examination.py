"""examine: reads the samples once, batch by batch, and shows every batch to every check."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs.cells import decode_cell
from ...data.reader import Reader
from ...data.tensors import is_tensors
from ...errors import BatchplantError, DataError, MissingLibraryError, OptionError, Problem, no_such, shown
from ...formats.registry import open as open_reader
from ...schema import Audio, Field, Image, Video
from ...schema.columns import I64, Column, Columns, Ragged, column_runs, end_within
from ...storage.platform import cpu_count
from .check import SEVERITIES, Batch, Check, Report, Subject, named
from .checks import CHECKS
from .checks.duplicates import thumbnail

SAMPLE = 2048
Progress = Callable[[int, int], None]


def examine(
    source: Any,
    *,
    sample: int | None = SAMPLE,
    world_size: int | None = None,
    crop: int = 224,
    batch_size: int = 256,
    window: int = 1000,
    label: str | None = None,
    only: Iterable[str] | None = None,
    without: Iterable[str] = (),
    workers: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Look for gotchas in a dataset: a Reader, or what ``open`` takes, with its options.

    ``sample``: at most so many samples, from all over the dataset, and fewer where they are large; None: all.
    ``world_size``: training processes that share the files; ``crop``: pixels that training sees of an image;
    ``batch_size`` and ``window`` of a shuffle buffer tell how well labels are mixed; ``label`` names their
    field. ``only`` and ``without`` are names of checks. ``progress`` is called with samples done and to do.
    """
    for name, value in {"sample": sample, "world_size": world_size, "crop": crop, "window": window}.items():
        if value is not None and value < 1:
            raise OptionError(f"{name} is at least 1, not {value}")
    kinds = choose(only, without)
    try:
        reader = source if isinstance(source, Reader) else open_reader(source, **options)
    except BatchplantError as error:
        return _unopened(error, source, kinds)
    remarks: dict[str, None] = {}
    if is_tensors(reader.schema):
        kinds = [kind for kind in kinds if kind.models]
        remarks["it is a model, and most checks are for datasets"] = None
    sample_bytes = mean_bytes(reader)
    rows = sample_numbers(len(reader), affordable(sample, sample_bytes))
    subject = Subject(
        reader,
        world_size=world_size,
        crop=crop,
        batch_size=batch_size,
        window=window,
        label=label,
        every=rows is None,
        named=named(source),
    )
    checks = [kind(subject) for kind in kinds]
    count, done = len(reader) if rows is None else len(rows), 0
    pool = ThreadPoolExecutor(workers or cpu_count())
    decoding_pool = pool if any(check.decodes for check in checks) else None
    try:
        for numbers in batches(reader, rows, sample_bytes):
            batch = _read(subject, numbers, decoding_pool, remarks)
            for check in checks:
                check.look(batch)
            done += len(numbers)
            if progress is not None:
                progress(done, count)
    finally:
        # A Ctrl-C does not wait for the rest of a batch.
        pool.shutdown(cancel_futures=True)
    findings = [finding for check in checks for finding in check.findings()]
    remarks.update(dict.fromkeys(remark for check in checks for remark in check.remarks()))
    findings.sort(key=lambda entry: SEVERITIES.index(entry.severity))
    names = tuple(kind.name for kind in kinds)
    results = tuple(findings), names, tuple(remarks)
    return Report(shown(reader.path), reader.format, len(reader), count, *results)


def choose(only: Iterable[str] | None = None, without: Iterable[str] = ()) -> list[type[Check]]:
    """The checks of these names, in the order in which they are listed."""
    kinds_by_name = {kind.name: kind for kind in CHECKS}
    only, without = None if only is None else list(only), list(without)
    for name in [*(only or ()), *without]:
        if name not in kinds_by_name:
            raise OptionError(no_such("check", name, kinds_by_name))
    return [
        kind for name, kind in kinds_by_name.items() if (only is None or name in only) and name not in without
    ]


def _unopened(error: BatchplantError, source: Any, kinds: Sequence[type[Check]]) -> Report:
    """A dataset that cannot even be opened is a finding, if somebody looks for that; else an error."""
    path = shown(error.path) if error.path else reprlib.repr(source)
    findings = [finding for kind in kinds if (finding := kind.of_error(error, source)) is not None]
    if not findings:
        raise error
    return Report(path, "", 0, 0, tuple(findings), tuple(kind.name for kind in kinds))


def _read(
    subject: Subject,
    numbers: npt.NDArray[np.int64],
    pool: ThreadPoolExecutor | None,
    remarks: dict[str, None],
) -> Batch:
    """These samples, as far as they can be read; decoded where somebody wants to know whether they can be."""
    reader = subject.reader
    problems: list[Problem] = []
    good, columns = reader.read_undamaged(numbers, problems, sys.maxsize)
    if columns is None:
        columns = Columns((name, Ragged.from_cells([])) for name in reader.schema)
    subject.looked_at += len(numbers)
    for name, column in columns.items():
        subject.bytes[name] += int(column_runs(column)[2].clip(0).sum())
    thumbnails: dict[str, list[Any]] = {}
    if pool is not None:
        for name, field in reader.schema.items():
            # Numbers and arrays of one shape are what they are.
            if not isinstance(columns[name], Ragged):
                continue
            jobs = [
                pool.submit(_decoded, field, columns[name], rows)
                for rows in np.array_split(np.arange(len(good)), max(1, len(good) // 16))
            ]
            answers = [answer for job in jobs for answer in job.result()]
            for row, (_, error) in enumerate(answers):
                if isinstance(error, MissingLibraryError):
                    remarks[f"{name} was not decoded: {error.message}"] = None
                elif error is not None:
                    error.at(path=reader.where(int(good[row])), field=name)
                    error.sample = int(good[row])
                    problems.append(Problem.of(error))
            if isinstance(field, Image):
                thumbnails[name] = [small for small, _ in answers]
    return Batch(reader.schema, good, columns, len(numbers), problems, thumbnails)


def _decoded(
    field: Field, column: Column, rows: npt.NDArray[np.int64]
) -> list[tuple[npt.NDArray[np.float32] | None, DataError | MissingLibraryError | None]]:
    """Problems of decoded cells, and thumbnails of images."""
    results: list[tuple[npt.NDArray[np.float32] | None, DataError | MissingLibraryError | None]] = []
    for row in rows.tolist():
        try:
            results.append((_value(field, column, row), None))
        except (DataError, MissingLibraryError) as error:
            results.append((None, error))
    return results


def _value(field: Field, column: Column, row: int) -> npt.NDArray[np.float32] | None:
    if isinstance(field, Image):
        # In the mode that it has: whether all have the same is another question.
        field = Image(mode=None, mask=field.mask)
        pixels = decode_cell(field, column, row)
        return None if pixels is None or field.mask else thumbnail(pixels)
    value = decode_cell(field, column, row)
    # Sounds and films are decoded when they are asked for.
    if isinstance(field, Audio | Video) and hasattr(value, "check"):
        value.check()
    return None


# -- choice of samples: memory is bounded however large the dataset is -----------------------------------

# Neighbours that are looked at together: what stands side by side tells of the order, and is read in one go.
RUN_ROWS = 16
BATCH_ROWS, BATCH_BYTES = 4096, 32 << 20
# What a sample of a dataset takes to read; of large samples fewer are looked at, but not fewer than these.
MAX_SAMPLED_BYTES, MIN_SAMPLES = 256 << 20, 64


def sample_numbers(samples: int, count: int | None) -> I64 | None:
    """``count`` sample numbers in order: runs of neighbours, evenly apart, the first and the last among them.

    None: all of them.
    """
    if count is None or count >= samples:
        return None
    runs = max(1, count // RUN_ROWS)
    length = count // runs
    firsts = np.linspace(0, samples - length, runs).astype(np.int64) if runs > 1 else np.zeros(1, np.int64)
    return np.unique((firsts[:, None] + np.arange(length)).reshape(-1))


def mean_bytes(reader: Reader) -> float:
    """Bytes of a sample, the mean over some from all of the dataset; 0 where none can be read."""
    rows = np.unique(np.linspace(0, max(len(reader) - 1, 0), min(8, len(reader))).astype(np.int64))
    columns = reader.read_undamaged(rows, [], sys.maxsize)[1]
    size = sum(int(column_runs(column)[2].clip(0).sum()) for column in (columns or {}).values())
    return size / max(len(rows), 1)


def affordable(count: int | None, sample_bytes: float) -> int | None:
    """No more samples than can be read in a moment."""
    return (
        None if count is None else min(count, max(MIN_SAMPLES, int(MAX_SAMPLED_BYTES / max(sample_bytes, 1))))
    )


def batches(reader: Reader, rows: I64 | None, sample_bytes: float) -> Iterator[I64]:
    """The sample numbers of each batch, each batch of bounded bytes."""
    count = len(reader) if rows is None else len(rows)
    sizes = reader.sizes()
    sizes = sizes if sizes is None or rows is None else sizes[rows]
    step = (
        BATCH_ROWS if sizes is not None else int(np.clip(BATCH_BYTES / max(sample_bytes, 1), 1, BATCH_ROWS))
    )
    end = 0
    while end < count:
        start, end = end, end_within(sizes, end, min(step, count - end), BATCH_BYTES)
        yield np.arange(start, end) if rows is None else rows[start:end]
