"""Mixup of images and of their labels."""

from __future__ import annotations

import torch

from ....ops.base import Batch, Draws, Op, Spec
from ....schema.columns import I64
from .. import ops
from ..builtin import Builtin


class ImageMixup(Builtin):
    """Mix every image with the previous one of the batch; use LabelMixup with the same arguments."""

    def __init__(self, alpha: float, same_lambda: bool) -> None:
        super().__init__()
        self.alpha, self.same_lambda = alpha, same_lambda

    def as_op(self, tensors: bool) -> Op:
        return ops.ImageMixup(self.alpha, self.same_lambda)


class LabelMixup(Builtin):
    """Return (own label, the previous sample's, weight of the own) for every sample."""

    def __init__(self, alpha: float, same_lambda: bool) -> None:
        super().__init__()
        self.alpha, self.same_lambda = alpha, same_lambda

    def as_op(self, tensors: bool) -> Op:
        return ops.LabelMixup(self.alpha, self.same_lambda)


class MixupToOneHot(Builtin):
    """Turn the rows of LabelMixup into one row of class weights for every sample."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes

    def as_op(self, tensors: bool) -> Op:
        return _OneHotTensor(self.num_classes) if tensors else ops.MixupToOneHot(self.num_classes)


class _OneHotTensor(ops.MixupToOneHot):
    def infer(self, spec: Spec) -> Spec:
        return spec.replace(shape=super().infer(spec).shape)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        labels, previous, weights = batch[:, 0].long(), batch[:, 1].long(), batch[:, 2]
        one_hot = torch.zeros((len(batch), self.num_classes), dtype=batch.dtype, device=batch.device)
        one_hot.scatter_add_(1, labels[:, None], weights[:, None])
        return one_hot.scatter_add_(1, previous[:, None], 1 - weights[:, None])
