"""Torch modules as operations."""

from __future__ import annotations

from typing import Any

from ....interop import torch as interop
from ....ops.base import Draws, Op
from ....schema.columns import I64
from ..builtin import Builtin
from ..running import RUNNING


class ModuleWrapper(Builtin):
    """A torch module, applied to every batch. A module in a pipeline is wrapped by itself."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def as_op(self, tensors: bool) -> Op:
        return _Module(self.module)


class _Module(interop.ModuleWrapper):
    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        # Modules may keep what they drew in their attributes: one batch at a time.
        with RUNNING:
            return super().run(batch, ids, draws)
