"""Models as datasets of named tensors: the public names of :mod:`batchplant.families.tensors`."""

from __future__ import annotations

from .families.tensors import TENSORS, as_array, from_array

__all__ = ["TENSORS", "as_array", "from_array"]
