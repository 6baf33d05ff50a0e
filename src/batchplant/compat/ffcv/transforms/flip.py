"""Random flips."""

from __future__ import annotations

from .... import ops
from ....ops.base import Op
from ..builtin import Builtin


class RandomHorizontalFlip(Builtin):
    """Mirror left and right with probability ``flip_prob``; free right after a decoder."""

    def __init__(self, flip_prob: float = 0.5) -> None:
        super().__init__()
        self.flip_prob = flip_prob

    def as_op(self, tensors: bool) -> Op:
        return ops.RandomHorizontalFlip(self.flip_prob)
