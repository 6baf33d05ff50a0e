"""Random crops of images that are already decoded."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import _native, ops
from ....errors import DecodeError
from ....ops.base import Batch, Draws, Op, Spec
from ....ops.crops import random_boxes
from ....schema.columns import I64
from ..builtin import Builtin


class RandomResizedCrop(Builtin):
    """Crop a random part of every image and resize it; fused with a preceding SimpleRGBImageDecoder."""

    def __init__(self, scale: tuple[float, float], ratio: tuple[float, float], size: int) -> None:
        super().__init__()
        self.scale, self.ratio, self.size = scale, ratio, size

    def as_decoder(self) -> ops.ImageDecoder:
        """Return the same as the first step of a pipeline."""
        return ops.RandomResizedCrop(self.size, self.scale, self.ratio, filter="area")

    def as_op(self, tensors: bool) -> Op:
        return _Crop(self.as_decoder())


class _Crop(Op):
    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self._engine: Any = None

    def infer(self, spec: Spec) -> Spec:
        return Spec(spec.dtype, (*self.decoder.size, spec.image(self)[2]))

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        count, height, width, channels = batch.shape
        sizes = np.tile(np.array([[height, width]], dtype=np.int32), (count, 1))
        boxes = random_boxes(sizes, self.decoder.scale, self.decoder.ratio, draws)
        image_bytes = height * width * channels
        if self._engine is None:
            self._engine = _native.Engine(4, None)
        crops = np.empty((count, *self.decoder.size, channels), dtype=np.uint8)
        _, errors, _ = self._engine.decode(
            [np.ascontiguousarray(batch).reshape(-1)], np.zeros(count, dtype=np.int32),
            np.arange(count, dtype=np.int64) * image_bytes, np.full(count, image_bytes, dtype=np.int64),
            np.tile(np.array([[height, width, channels]], dtype=np.int32), (count, 1)), boxes, None, crops,
            layout="nhwc", filter="area", dct="accurate", fast_scale=False, scale=None, offset=None,
            strict=True,
        )  # fmt: skip
        for row, message in errors:
            raise DecodeError(message, sample=int(ids[row]))
        return crops
