"""Base classes of ops on decoded images, (samples, height, width, channels)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import OptionError
from .base import Op, Spec
from .cutting import check_fill


class ImageOp(Op):
    """An op on uint8 images that keeps their size."""

    def infer(self, spec: Spec) -> Spec:
        spec.channels(self)
        if spec.dtype != np.uint8:
            raise OptionError(f"{type(self).__name__} needs uint8 images, not {spec}")
        return spec


class FillOp(Op):
    """An op on images of any dtype that fills places with a colour: one number, or one per channel."""

    fill: Any

    def infer(self, spec: Spec) -> Spec:
        check_fill(self.fill, spec.channels(self), spec)
        return spec
