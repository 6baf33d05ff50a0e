"""Compilation of user-written operations by numba, where it is installed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any


def numba() -> Any:
    """Return the numba module, or None."""
    try:
        return importlib.import_module("numba")
    except ImportError:
        return None


class Compiler:
    """Settings of the compiler; batchplant's own operations need none."""

    is_enabled: bool = True
    num_threads: int = 1

    @classmethod
    def set_enabled(cls, b: bool) -> None:
        cls.is_enabled = b

    @classmethod
    def set_num_threads(cls, n: int) -> None:
        cls.num_threads = n if n >= 1 else len(os.sched_getaffinity(0))
        module = numba() if cls.is_enabled else None
        if module is not None:
            module.set_num_threads(min(cls.num_threads, module.config.NUMBA_NUM_THREADS))

    @classmethod
    def compile(cls, code: Callable[..., Any], signature: Any = None) -> Callable[..., Any]:
        """Return the compiled function, or the function itself without numba or if it is one of ours."""
        module = numba() if cls.is_enabled and not getattr(code, "interpreted", False) else None
        if module is None or hasattr(code, "py_func"):
            return code
        parallel = bool(getattr(code, "is_parallel", False)) and cls.num_threads > 1
        compiled: Callable[..., Any] = module.njit(
            signature, fastmath=True, nogil=True, error_model="numpy", parallel=parallel
        )(code)
        return compiled

    @classmethod
    def get_iterator(cls) -> Any:
        """Return the replacement of ``range`` for loops over the samples of a batch."""
        module = numba() if cls.is_enabled and cls.num_threads > 1 else None
        return range if module is None else module.prange
