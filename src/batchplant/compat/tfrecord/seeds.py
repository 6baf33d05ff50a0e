"""Where random numbers come from: a global seed, a seed of an operation, both or none, as in TensorFlow.

The same seeds give the same numbers here in every run. They are not TensorFlow's numbers.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

_lock = threading.Lock()
_global: int | None = None
_operations = itertools.count()
_generator = np.random.default_rng()
_seeded: dict[Any, np.random.Generator] = {}
_MASK = 2**64 - 1


def set_seed(seed: int) -> None:
    """Makes the random operations that follow reproducible."""
    global _global, _operations, _generator
    with _lock:
        _global, _operations = int(seed), itertools.count()
        _generator = np.random.default_rng(int(seed) & _MASK)
        _seeded.clear()


def seed_of(seed: Any) -> str:
    """The seed of one operation of a pipeline: of the global one, its own, or of chance."""
    if seed is None and _global is None:
        return secrets.token_hex(16)
    if seed is None:
        # The next operation without a seed of its own gets another.
        return f"{_global}/operation {next(_operations)}"
    return f"{_global}/{int(seed)}"


@contextlib.contextmanager
def generator(seed: Any = None) -> Iterator[np.random.Generator]:
    """The generator of eager operations, for one thread at a time; each seed has one of its own."""
    with _lock:
        if seed is None:
            yield _generator
            return
        if seed not in _seeded:
            _seeded[seed] = np.random.default_rng([(_global or 0) & _MASK, int(seed) & _MASK])
        yield _seeded[seed]


def stateless(seed: Any) -> np.random.Generator:
    """A generator that depends on this pair of numbers alone."""
    return np.random.default_rng([int(part) & _MASK for part in np.asarray(seed).reshape(-1)])
