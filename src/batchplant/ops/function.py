"""Functions of users as ops: of a batch or of every sample, in threads or in processes."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from ..data.sparse import SparseRows
from ..errors import DataError, OptionError, WorkerError
from ..ops.base import DType
from ..order import default_threads
from ..schema.columns import I64
from .base import Batch, CellErrors, Draws, Op, RowError, Spec
from .parallel import Processes, Threads, check_picklable

# Parts of a batch for each worker: several, so that none waits long for the slowest.
PARTS_PER_WORKER = 4


class Function(Op):
    """Any function of a batch: ``fn(batch)`` or ``fn(batch, rng)``, rng being the batch's Draws.

    It gets them if it has a parameter ``rng``, or a second one without a default. Batches are made by
    several threads: a function that keeps something from call to call needs a lock. Where the first size of
    ``shape`` is None, it gives values of varying length: a list of them, or (values, offsets).

    dtype: of what it gives (default: that of its input). each: it is a function of one sample, and what it
    gives for all of them becomes the batch: an array, or values of varying length where the first size of
    ``shape`` is None. parallel: ``threads``, or ``processes`` for functions that hold Python's lock; with
    ``each`` they run on several samples at a time, else on several batches. workers: on how many (default:
    all cores, divided by LOCAL_WORLD_SIZE).
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        dtype: DType = None,
        shape: Any = None,
        each: bool = False,
        parallel: str | None = None,
        workers: int | None = None,
    ) -> None:
        if parallel not in (None, "threads", "processes"):
            raise OptionError(f"parallel is threads, processes or None, not {parallel!r}")
        if workers is not None and (workers < 1 or parallel is None):
            raise OptionError(f"workers is a number from 1 on, and goes with parallel; not {workers}")
        if parallel == "processes":
            check_picklable(function)
        self.function = function
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.shape = None if shape is None else tuple(shape)
        self.each, self.parallel, self.workers = bool(each), parallel, workers
        self._rng = _rng_style(function)
        self._start()

    def _start(self) -> None:
        """Make what the calls run in; nothing is started before it is needed."""
        self._count = count = (self.workers or default_threads()) if self.parallel else 1
        self.batches = 1 if self.each else count
        # A function of a batch may do anything with it.
        self.mixes = not self.each
        self._threads = Threads(count)
        self._processes: Processes | None = None
        if self.parallel == "processes":
            alone = Function(self.function, dtype=self.dtype, shape=self.shape, each=self.each)
            self._processes = Processes(alone, count)

    def for_loader(self) -> Function:
        copied = copy.copy(self)
        copied._start()
        return copied

    def close(self) -> None:
        if self._processes is not None:
            self._processes.close()
        self._threads.close()

    @property
    def _ragged(self) -> bool | None:
        """True if values of varying length come out; None: if such go in."""
        return None if self.shape is None else bool(self.shape) and self.shape[0] is None

    def infer(self, spec: Spec) -> Spec:
        if spec.torch and (self.each or self.parallel == "processes"):
            raise OptionError(f"{self!r} takes arrays, not {spec}: put it before the step that makes tensors")
        if self.shape is None:
            return spec.replace(dtype=self.dtype or spec.dtype)
        # What a function makes of text is ids, unless it is said otherwise.
        usual = np.dtype(np.int64) if self._ragged and spec.dtype is None else spec.dtype
        return Spec(self.dtype or usual, self.shape, ragged=bool(self._ragged))

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", self.function))

    def __repr__(self) -> str:
        code = getattr(self.function, "__code__", None)
        parts = [self.name]
        parts += [f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"] if code is not None else []
        parts += ["each=True"] if self.each else []
        parts += [f"{key}={value!r}" for key in ("parallel", "workers") if (value := getattr(self, key))]
        return f"Function({', '.join(parts)})"

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if self._processes is not None:
            return self._run_in_processes(self._processes, batch, ids, draws)
        if self.each:
            return self._run_each(batch, len(ids), draws)
        result = self._call(batch, draws)
        return self._as_ragged(batch, result) if self._ragged else result

    def _as_ragged(self, batch: Batch, result: Batch) -> Batch:
        """Convert the result of a function of a batch to (values, offsets)."""
        if isinstance(result, tuple) and len(result) == 2:
            return np.asarray(result[0], dtype=self.dtype), np.asarray(result[1], dtype=np.int64)
        if isinstance(result, list | np.ndarray):
            return self._join_samples(batch, list(result))
        raise OptionError(
            f"by its shape {self.shape}, {self.name} gives values of varying length: a list of them, or "
            f"(values, offsets), not {type(result).__name__}"
        )

    def _call(self, value: Batch, draws: Draws) -> Batch:
        if self._rng == "named":
            return self.function(value, rng=draws)
        return self.function(value, draws) if self._rng == "second" else self.function(value)

    # -- every sample ----------------------------------------------------------------------------------

    def _run_each(self, batch: Batch, count: int, draws: Draws) -> Batch:
        def run_sample(row: int) -> Batch:
            try:
                return self._call(part_of(batch, row), draws.part(slice(row, row + 1)))
            except DataError:
                raise
            except Exception as error:
                raise RowError(row, error) from None

        return self._join_samples(batch, self._threads.each(count, run_sample))

    def _join_samples(self, batch: Batch, results: list[Batch]) -> Batch:
        """Join the results for all samples to a batch."""
        ragged = isinstance(batch, tuple) if self._ragged is None else self._ragged
        if isinstance(batch, list) and self.dtype is None and self.shape is None:
            return results
        arrays = [np.asarray(array, dtype=self.dtype) for array in results]
        if ragged:
            arrays = [np.atleast_1d(array) for array in arrays]
        for row, array in enumerate(arrays):
            _check_shape(self, row, array.shape[int(ragged) :], arrays[0].shape[int(ragged) :])
        if ragged:
            lengths = [len(array) for array in arrays]
            return np.concatenate(arrays or [self._empty_array(batch)]), np.cumsum([0, *lengths])
        return np.stack(arrays) if arrays else self._empty_array(batch)

    def _empty_array(self, batch: Batch) -> Batch:
        """The array of no samples."""
        before = batch[0] if isinstance(batch, tuple) else np.asarray(batch)
        shape = before.shape[1:] if self.shape is None else self.shape[1 if self._ragged else 0 :]
        return np.empty((0, *(size or 0 for size in shape)), dtype=self.dtype or before.dtype)

    # -- in processes ------------------------------------------------------------------------------------

    def _run_in_processes(self, processes: Processes, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if self._rng is None:
            draws = draws.part(slice(0))
        if not self.each or not len(ids):
            return processes.run(batch, ids, draws)
        step = -(-len(ids) // (PARTS_PER_WORKER * self._count))
        parts = [slice(start, start + step) for start in range(0, len(ids), step)]

        def run_part(number: int) -> Batch:
            rows = parts[number]
            try:
                return processes.run(part_of(batch, rows), ids[rows], draws.part(rows))
            except RowError as error:
                raise RowError(rows.start + error.row, error.error) from None
            except WorkerError as error:
                error.add_note(f"it was given samples {', '.join(map(str, ids[rows]))}")
                raise
            except CellErrors as cells:
                return {rows.start + row: error for row, error in cells.errors.items()}

        results = self._threads.each(len(parts), run_part)
        errors = {row: error for part in results if isinstance(part, dict) for row, error in part.items()}
        if errors:
            raise CellErrors(errors)
        return self._join_parts(results, [rows.start for rows in parts])

    def _join_parts(self, parts: list[Batch], starts: list[int]) -> Batch:
        """Parts of a batch as one."""
        first = parts[0]
        if isinstance(first, list):
            return [array for part in parts for array in part]
        arrays = [part[0] if isinstance(part, tuple) else part for part in parts]
        for row, array in zip(starts, arrays, strict=True):
            _check_shape(self, row, array.shape[1:], arrays[0].shape[1:])
        if not isinstance(first, tuple):
            return np.concatenate(arrays)
        lengths = np.concatenate([np.diff(offsets) for _, offsets in parts])
        return np.concatenate(arrays), np.concatenate([[0], np.cumsum(lengths)])


def _check_shape(op: Function, row: int, shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    if shape != first:
        problem = f"{op.name} gave the shape {shape} for it and {first} for others"
        raise RowError(row, OptionError(f"{problem}; if the first size varies, say so: shape=(None, …)"))


def part_of(batch: Batch, rows: int | slice) -> Batch:
    """Return a sample of a batch, or several as a batch."""
    if isinstance(batch, SparseRows):
        return batch.rows(rows)
    if not isinstance(batch, tuple):
        return batch[rows]
    values, offsets = batch
    if isinstance(rows, int):
        return values[offsets[rows] : offsets[rows + 1]]
    row_offsets = offsets[rows.start : rows.stop + 1]
    return values[row_offsets[0] : row_offsets[-1]], row_offsets - row_offsets[0]


def _rng_style(function: Callable[..., Any]) -> str | None:
    """Style in which a function takes random draws: ``named``, as its ``second`` argument, or None."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # built in C
        return None
    if "rng" in parameters and parameters["rng"].kind is not inspect.Parameter.POSITIONAL_ONLY:
        return "named"
    placed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [
        parameter
        for parameter in parameters.values()
        if parameter.kind in placed and parameter.default is parameter.empty
    ]
    return "second" if len(needed) >= 2 else None
