"""Functions of users as ops: of a batch or of every sample, in threads or in processes."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import DataError, OptionError, WorkerError
from ..order import default_threads
from ..schema.columns import I64
from .base import CellErrors, Draws, Op, RowError, Spec
from .parallel import Processes, Threads, check_picklable

# Parts of a batch that each worker gets, about: so that none waits long for the slowest.
PARTS = 4


class Function(Op):
    """Any function of a batch: ``fn(batch)`` or ``fn(batch, rng)``, rng being the batch's Draws.

    It gets them if it has a parameter ``rng``, or a second one without a default. Batches are made by
    several threads: a function that keeps something from call to call needs a lock. Where the first size of
    ``shape`` is None, it gives values of varying length: a list of them, or (values, offsets).

    each: it is a function of one sample, and what it gives for all of them becomes the batch: an array, or
    values of varying length where the first size of ``shape`` is None. parallel: ``threads``, or
    ``processes`` for functions that hold Python's lock; with ``each`` they run on several samples at a time,
    else on several batches. workers: on how many (default: all cores, divided by LOCAL_WORLD_SIZE).
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        dtype: Any = None,
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
        self._rng = _how_rng(function)
        self._start()

    def _start(self) -> None:
        """Make what the calls run in; nothing is started before it is needed."""
        self._count = count = (self.workers or default_threads()) if self.parallel else 1
        self.batches = 1 if self.each else count
        # Nobody knows what a function does with a batch.
        self.mixes = not self.each
        self._threads = Threads(count)
        self._processes: Processes | None = None
        if self.parallel == "processes":
            alone = Function(self.function, dtype=self.dtype, shape=self.shape, each=self.each)
            self._processes = Processes(alone, count)

    def own(self) -> Function:
        made = copy.copy(self)
        made._start()
        return made

    def close(self) -> None:
        if self._processes is not None:
            self._processes.close()
        self._threads.close()

    @property
    def _ragged(self) -> bool | None:
        """Whether values of varying length come out; None: if such go in."""
        return None if self.shape is None else bool(self.shape) and self.shape[0] is None

    def infer(self, spec: Spec) -> Spec:
        if spec.torch and (self.each or self.parallel == "processes"):
            raise OptionError(f"{self!r} takes arrays, not {spec}: put it before the step that makes tensors")
        if self.shape is None:
            return spec.but(dtype=self.dtype or spec.dtype)
        # What a function makes of text is ids, unless it is said otherwise.
        usual = np.dtype(np.int64) if self._ragged and spec.dtype is None else spec.dtype
        return Spec(self.dtype or usual, self.shape, ragged=bool(self._ragged))

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", self.function))

    def __repr__(self) -> str:
        code = getattr(self.function, "__code__", None)
        said = [self.name]
        said += [f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"] if code is not None else []
        said += ["each=True"] if self.each else []
        said += [f"{key}={value!r}" for key in ("parallel", "workers") if (value := getattr(self, key))]
        return f"Function({', '.join(said)})"

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        if self._processes is not None:
            return self._run_there(self._processes, batch, ids, draws)
        if self.each:
            return self._run_each(batch, len(ids), draws)
        found = self._call(batch, draws)
        return self._varying(batch, found) if self._ragged else found

    def _varying(self, batch: Any, found: Any) -> Any:
        """What a function of a batch gave, as values of varying length."""
        if isinstance(found, tuple) and len(found) == 2:
            return np.asarray(found[0], dtype=self.dtype), np.asarray(found[1], dtype=np.int64)
        if isinstance(found, list | np.ndarray):
            return self._joined(batch, list(found))
        raise OptionError(
            f"by its shape {self.shape}, {self.name} gives values of varying length: a list of them, or "
            f"(values, offsets), not {type(found).__name__}"
        )

    def _call(self, value: Any, draws: Draws) -> Any:
        if self._rng == "named":
            return self.function(value, rng=draws)
        return self.function(value, draws) if self._rng == "second" else self.function(value)

    # -- every sample ----------------------------------------------------------------------------------

    def _run_each(self, batch: Any, count: int, draws: Draws) -> Any:
        def one(row: int) -> Any:
            try:
                return self._call(_part(batch, row), draws.part(slice(row, row + 1)))
            except DataError:
                raise
            except Exception as error:
                raise RowError(row, error) from None

        return self._joined(batch, self._threads.each(count, one))

    def _joined(self, batch: Any, found: list[Any]) -> Any:
        """What the function gave for every sample, as a batch."""
        ragged = isinstance(batch, tuple) if self._ragged is None else self._ragged
        if isinstance(batch, list) and self.dtype is None and self.shape is None:
            return found
        arrays = [np.asarray(one, dtype=self.dtype) for one in found]
        if ragged:
            arrays = [np.atleast_1d(one) for one in arrays]
        for row, one in enumerate(arrays):
            _check_shape(self, row, one.shape[int(ragged) :], arrays[0].shape[int(ragged) :])
        if ragged:
            lengths = [len(one) for one in arrays]
            return np.concatenate(arrays or [self._none(batch)]), np.cumsum([0, *lengths])
        return np.stack(arrays) if arrays else self._none(batch)

    def _none(self, batch: Any) -> Any:
        """The array of no samples."""
        before = batch[0] if isinstance(batch, tuple) else np.asarray(batch)
        shape = before.shape[1:] if self.shape is None else self.shape[1 if self._ragged else 0 :]
        return np.empty((0, *(size or 0 for size in shape)), dtype=self.dtype or before.dtype)

    # -- elsewhere -------------------------------------------------------------------------------------

    def _run_there(self, there: Processes, batch: Any, ids: I64, draws: Draws) -> Any:
        if self._rng is None:
            draws = draws.part(slice(0))
        if not self.each or not len(ids):
            return there.run(batch, ids, draws)
        step = -(-len(ids) // (PARTS * self._count))
        parts = [slice(start, start + step) for start in range(0, len(ids), step)]

        def one(number: int) -> Any:
            rows = parts[number]
            try:
                return there.run(_part(batch, rows), ids[rows], draws.part(rows))
            except RowError as error:
                raise RowError(rows.start + error.row, error.error) from None
            except WorkerError as error:
                error.add_note(f"it was given samples {', '.join(map(str, ids[rows]))}")
                raise
            except CellErrors as found:
                # Each is told by itself, with its row.
                return {rows.start + row: error for row, error in found.errors.items()}

        found = self._threads.each(len(parts), one)
        errors = {row: error for part in found if isinstance(part, dict) for row, error in part.items()}
        if errors:
            raise CellErrors(errors)
        return self._together(found, [rows.start for rows in parts])

    def _together(self, found: list[Any], starts: list[int]) -> Any:
        """Parts of a batch as one."""
        first = found[0]
        if isinstance(first, list):
            return [one for part in found for one in part]
        arrays = [part[0] if isinstance(part, tuple) else part for part in found]
        for row, one in zip(starts, arrays, strict=True):
            _check_shape(self, row, one.shape[1:], arrays[0].shape[1:])
        if not isinstance(first, tuple):
            return np.concatenate(arrays)
        lengths = np.concatenate([np.diff(offsets) for _, offsets in found])
        return np.concatenate(arrays), np.concatenate([[0], np.cumsum(lengths)])


def _check_shape(op: Function, row: int, shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    if shape != first:
        said = f"{op.name} gave the shape {shape} for it and {first} for others"
        raise RowError(row, OptionError(f"{said}; if the first size varies, say so: shape=(None, …)"))


def _part(batch: Any, rows: int | slice) -> Any:
    """A sample of a batch, or several as a batch."""
    if not isinstance(batch, tuple):
        return batch[rows]
    values, offsets = batch
    if isinstance(rows, int):
        return values[offsets[rows] : offsets[rows + 1]]
    own = offsets[rows.start : rows.stop + 1]
    return values[own[0] : own[-1]], own - own[0]


def _how_rng(function: Callable[..., Any]) -> str | None:
    """How a function takes random draws: ``named``, as its ``second`` argument, or not at all."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # built in C
        return None
    if "rng" in parameters and parameters["rng"].kind is not inspect.Parameter.POSITIONAL_ONLY:
        return "named"
    placed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in parameters.values() if one.kind in placed and one.default is one.empty]
    return "second" if len(needed) >= 2 else None
