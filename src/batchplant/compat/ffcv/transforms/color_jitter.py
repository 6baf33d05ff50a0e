"""Brightness, contrast and saturation."""

from __future__ import annotations

from .... import ops
from ....ops.base import Op
from ..builtin import Builtin


class _Jitter(Builtin):
    def __init__(self, magnitude: float, p: float = 0.5) -> None:
        super().__init__()
        self.magnitude, self.p = magnitude, p


class RandomBrightness(_Jitter):
    """With probability ``p``, multiply by a number from 1 - magnitude to 1 + magnitude."""

    def as_op(self, tensors: bool) -> Op:
        return ops.RandomBrightness(self.magnitude, self.p)


class RandomContrast(_Jitter):
    """With probability ``p``, move all pixels away from the image's mean gray, or towards it."""

    def as_op(self, tensors: bool) -> Op:
        return ops.RandomContrast(self.magnitude, self.p)


class RandomSaturation(_Jitter):
    """With probability ``p``, move every pixel away from its own gray, or towards it."""

    def as_op(self, tensors: bool) -> Op:
        return ops.RandomSaturation(self.magnitude, self.p)
