"""Random."""

from __future__ import annotations

from .base import Named


class Random(Named):
    """All samples shuffled, anew for every epoch."""

    name = "random"
