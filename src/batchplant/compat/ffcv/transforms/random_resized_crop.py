"""A random crop of images that are decoded already."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import _native, ops
from ....errors import DecodeError
from ....ops.base import Draws, Op, Spec
from ....ops.decode import random_boxes
from ....schema.columns import I64
from ..builtin import Builtin


class RandomResizedCrop(Builtin):
    """A random part of every image, resized. Right behind SimpleRGBImageDecoder it becomes one with it."""

    def __init__(self, scale: tuple[float, float], ratio: tuple[float, float], size: int) -> None:
        super().__init__()
        self.scale, self.ratio, self.size = scale, ratio, size

    def as_decoder(self) -> ops.ImageDecoder:
        """The same as the first step of a pipeline."""
        return ops.RandomResizedCrop(self.size, self.scale, self.ratio, filter="area")

    def as_op(self, tensors: bool) -> Op:
        return _Crop(self.as_decoder())


class _Crop(Op):
    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self._engine: Any = None

    def infer(self, spec: Spec) -> Spec:
        return Spec(spec.dtype, (*self.decoder.size, spec.image(self)[2]))

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        count, height, width, channels = batch.shape
        sizes = np.tile(np.array([[height, width]], dtype=np.int32), (count, 1))
        boxes = random_boxes(sizes, self.decoder.scale, self.decoder.ratio, draws)
        cell = height * width * channels
        if self._engine is None:
            self._engine = _native.Engine(4, None)
        out = np.empty((count, *self.decoder.size, channels), dtype=np.uint8)
        _, errors, _ = self._engine.decode(
            [np.ascontiguousarray(batch).reshape(-1)], np.zeros(count, dtype=np.int32),
            np.arange(count, dtype=np.int64) * cell, np.full(count, cell, dtype=np.int64),
            np.tile(np.array([[height, width, channels]], dtype=np.int32), (count, 1)), boxes, None, out,
            layout="nhwc", filter="area", dct="accurate", fast_scale=False, scale=None, offset=None,
            strict=True,
        )  # fmt: skip
        for row, message in errors:
            raise DecodeError(message, sample=int(ids[row]))
        return out
