"""Replacement of the labels of some samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ops.base import Op
from .. import ops
from ..builtin import Builtin


class ReplaceLabel(Builtin):
    """Give some samples another label."""

    def __init__(self, indices: Sequence[int], new_label: int) -> None:
        super().__init__()
        self.indices, self.new_label = np.sort(indices), new_label

    def as_op(self, tensors: bool) -> Op:
        return ops.ReplaceLabel(self.indices.tolist(), self.new_label)
