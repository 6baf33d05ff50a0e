"""Sequential."""

from __future__ import annotations

from .base import Named


class Sequential(Named):
    """The samples as they stand."""

    name = "sequential"
