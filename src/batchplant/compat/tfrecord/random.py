"""Seeds of ``shuffle`` and of other random steps: a global seed, a step's own seed, both or neither.

The same seeds give the same numbers in every run. They are not TensorFlow's numbers.
"""

from __future__ import annotations

import itertools
import secrets
from typing import SupportsInt

from .errors import missing_name

__all__ = ["set_seed"]

__getattr__ = missing_name(__name__)
_global: int | None = None
_unseeded = itertools.count()


def set_seed(seed: int) -> None:
    """Make the random steps of pipelines that are built from now on reproducible."""
    global _global, _unseeded
    _global, _unseeded = int(seed), itertools.count()


def step_seed(seed: SupportsInt | None) -> str:
    """Return the seed of one step of a pipeline, from the global seed, its own, or at random."""
    if seed is not None:
        return f"{_global}/{int(seed)}"
    if _global is None:
        return secrets.token_hex(16)
    # Each step without a seed of its own gets another one.
    return f"{_global}/operation {next(_unseeded)}"
