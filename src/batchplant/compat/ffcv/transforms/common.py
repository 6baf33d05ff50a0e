"""Removal of axes."""

from __future__ import annotations

from ....ops.base import Op
from .. import ops
from ..builtin import Builtin


class Squeeze(Builtin):
    """Remove the axes of size 1, or those of them that are named; the axis of the batch always stays."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def as_op(self, tensors: bool) -> Op:
        return ops.Squeeze(*self.dims)
