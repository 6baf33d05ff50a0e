"""Sequential."""

from __future__ import annotations

from .base import Named


class Sequential(Named):
    """Samples in the order of the file."""

    name = "sequential"
