"""Seeds of ``shuffle`` and of other random steps: a global seed, a step's own seed, both or neither.

The same seeds give the same numbers in every run. They are not TensorFlow's numbers.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Iterator
from typing import SupportsInt

from .errors import missing_name

__all__ = ["set_seed"]

__getattr__ = missing_name(__name__)
# The global seed, and what counts the steps without a seed of their own; replaced as one.
_seeds: tuple[int | None, Iterator[int]] = None, itertools.count()
_LOCK = threading.Lock()


def set_seed(seed: int) -> None:
    """Make the random steps of pipelines that are built from now on reproducible."""
    global _seeds
    _seeds = int(seed), itertools.count()


def step_seed(seed: SupportsInt | None) -> str:
    """Return the seed of one step of a pipeline, from the global seed, its own, or at random."""
    global_seed, unseeded = _seeds
    if seed is not None:
        return f"{global_seed}/{int(seed)}"
    if global_seed is None:
        return secrets.token_hex(16)
    # Each step without a seed of its own gets another one.
    with _LOCK:
        return f"{global_seed}/operation {next(unseeded)}"
