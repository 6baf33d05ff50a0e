"""Orders of an epoch."""

from __future__ import annotations

from .quasi_random import QuasiRandom
from .random import Random
from .sequential import Sequential

__all__ = ["QuasiRandom", "Random", "Sequential"]
