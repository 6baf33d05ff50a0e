"""Ops of images on clips: every frame, by one draw for the clip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import OptionError
from ..schema.columns import I32, I64
from .base import Draws, Op, Spec, Tensors
from .geometry import Motion


def fitted(op: Op, spec: Spec) -> tuple[Op, Spec]:
    """The op for this batch, and what comes out: one of images runs on each frame of clips."""
    try:
        return op.suited(spec), op.infer(spec)
    except OptionError:
        if len(spec.shape) != 4 or spec.dtype is None or spec.torch or spec.ragged or spec.unequal:
            raise
        framed = EachFrame(op.suited(spec.but(shape=spec.shape[1:])))
        return framed, framed.infer(spec)


class EachFrame(Op):
    """An op of images on clips (frames, height, width, channels); the frames of a clip have its draws."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.share, self.batches, self.mixes = op.share, op.batches, op.mixes

    def __repr__(self) -> str:
        return repr(self.op)

    def infer(self, spec: Spec) -> Spec:
        out = self.op.infer(spec.but(shape=spec.shape[1:]))
        return out.but(shape=(spec.shape[0], *out.shape))

    def move(self, sizes: I32, draws: Draws) -> Motion | None:
        return self.op.move(sizes, draws)

    def close(self) -> None:
        self.op.close()

    @property
    def device_form(self) -> Callable[[Any, I64, Draws, Tensors], Any] | None:
        return None if self.op.device_form is None else self._there

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        if self.mixes:
            return self._mixed(batch, lambda images: self.op.run(images, ids, draws))
        count, frames = batch.shape[:2]
        images = batch.reshape(count * frames, *batch.shape[2:])
        made = self.op.run(images, np.repeat(ids, frames), draws.repeat(frames))
        return made.reshape(count, frames, *made.shape[1:])

    def _there(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        form = self.op.device_form
        assert form is not None
        if self.mixes:
            return self._mixed(batch, lambda images: form(images, ids, draws, tensors))
        count, frames = batch.shape[:2]
        images = batch.reshape(count * frames, *batch.shape[2:])
        made = form(images, np.repeat(ids, frames), draws.repeat(frames), tensors)
        return made.reshape(count, frames, *made.shape[1:])

    def _mixed(self, batch: Any, run: Callable[[Any], Any]) -> Any:
        """Clips are mixed with clips: their frames lie side by side, as channels of one image."""
        count, frames, height, width, channels = batch.shape
        made = run(batch.swapaxes(1, 2).swapaxes(2, 3).reshape(count, height, width, frames * channels))
        made = made.reshape(count, height, width, frames, channels).swapaxes(2, 3).swapaxes(1, 2)
        return np.ascontiguousarray(made) if isinstance(made, np.ndarray) else made.contiguous()
