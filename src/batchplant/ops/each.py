"""Run something for each cell of a batch, in threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..errors import DataError, OptionError
from ..order import default_threads
from .base import CellErrors

Result = TypeVar("Result")


class Threads:
    """A few threads, started when they are needed; each process that it comes to has its own."""

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise OptionError(f"workers is a number from 1 on, not {workers}")
        self.workers = workers
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"workers": self.workers, "_pools": {}}

    def each(self, count: int, function: Callable[[int], Result]) -> list[Result]:
        """``function(row)`` of every row. Those that raise a DataError are told together, as CellErrors."""
        errors: dict[int, DataError] = {}

        def one(row: int) -> Any:
            try:
                return function(row)
            except DataError as error:
                # Without what leads to the batch's memory.
                errors[row] = error.with_traceback(None)
                return None

        workers = min(count, self.workers or default_threads())
        found: list[Result] = list(
            map(one, range(count)) if workers < 2 else self._pool().map(one, range(count))
        )
        if errors:
            raise CellErrors(errors)
        return found

    def close(self) -> None:
        """End the threads; they are started again if they are needed."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.shutdown(wait=False)

    def _pool(self) -> ThreadPoolExecutor:
        # After a fork, the parent's threads are not there.
        pool = self._pools.get(os.getpid())
        if pool is None:
            workers = self.workers or default_threads()
            pool = self._pools.setdefault(os.getpid(), ThreadPoolExecutor(workers, "batchplant-cells"))
        return pool
