"""QuasiRandom."""

from __future__ import annotations

from .base import Named


class QuasiRandom(Named):
    """Pages in random order, their samples shuffled among a few pages; in distributed training too."""

    name = "quasi_random"
