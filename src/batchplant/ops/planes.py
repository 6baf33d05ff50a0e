"""A normalisation and the change to channels first in one pass over the pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..schema.columns import I64
from .base import Draws, Op, Spec, Tensors
from .decode import ChannelsFirst
from .normalize import Normalize


class NormalizedPlanes(Op):
    """What the plan makes of Normalize and a ChannelsFirst behind it."""

    def __init__(self, normalize: Normalize) -> None:
        self._normalize, self._first = normalize, ChannelsFirst()

    def __repr__(self) -> str:
        return f"{self._normalize!r}, {self._first!r}"

    def infer(self, spec: Spec) -> Spec:
        return self._first.infer(self._normalize.infer(spec))

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        if isinstance(batch, list):
            return [self.run(one[None], ids, draws)[0] for one in batch]
        if batch.dtype != np.uint8:
            return self._first.run(self._normalize.run(batch, ids, draws), ids, draws)
        count, height, width, channels = batch.shape
        out = np.empty((count, channels, height, width), dtype=self._normalize.dtype)
        return self._normalize.pixels(batch, out, height * width)

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        made = self._normalize.on_device(batch, ids, draws, tensors)
        return self._first.on_device(made, ids, draws, tensors)
