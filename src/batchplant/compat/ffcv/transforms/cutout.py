"""Random squares filled with a colour."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ....ops.base import Op
from .. import ops
from ..builtin import Builtin


class Cutout(Builtin):
    """Fill a random square of every image with a colour."""

    def __init__(self, crop_size: int, fill: npt.ArrayLike = (0, 0, 0)) -> None:
        super().__init__()
        self.crop_size, self.fill = crop_size, np.array(fill)

    def as_op(self, tensors: bool) -> Op:
        return ops.Cutout(self.crop_size, self.fill.tolist())
