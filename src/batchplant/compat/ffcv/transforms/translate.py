"""Random shifts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .... import ops
from ....ops.base import Op
from ..builtin import Builtin


class RandomTranslate(Builtin):
    """Shift every image by up to ``padding`` pixels each way, and fill the border with a colour."""

    def __init__(self, padding: int, fill: npt.ArrayLike = (0, 0, 0)) -> None:
        super().__init__()
        self.padding, self.fill = padding, np.array(fill)

    def as_op(self, tensors: bool) -> Op:
        return ops.RandomTranslate(self.padding, self.fill.tolist())
