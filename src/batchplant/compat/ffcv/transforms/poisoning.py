"""Masks over the images of some samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ....ops.base import Op
from .. import ops
from ..builtin import Builtin


class Poison(Builtin):
    """Lay a mask of opacity ``alpha`` over the images of some samples."""

    def __init__(
        self,
        mask: npt.ArrayLike,
        alpha: npt.ArrayLike,
        indices: Sequence[int],
        clamp: tuple[int, int] = (0, 255),
    ) -> None:
        super().__init__()
        self.mask, self.alpha, self.indices, self.clamp = mask, alpha, np.sort(indices), clamp

    def as_op(self, tensors: bool) -> Op:
        return ops.Poison(self.mask, self.alpha, self.indices.tolist(), self.clamp)
