"""Wrapper of torch modules."""

from __future__ import annotations

from typing import Any

from ....interop import torch as interop
from ....ops.base import Batch, Draws, Op
from ....schema.columns import I64
from ..builtin import USER_CODE_LOCK, Builtin


class ModuleWrapper(Builtin):
    """Apply a torch module to every batch. Modules in a pipeline are wrapped automatically."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def as_op(self, tensors: bool) -> Op:
        return _Module(self.module)


class _Module(interop.ModuleWrapper):
    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        # Modules may store random draws in attributes: run one batch at a time.
        with USER_CODE_LOCK:
            return super().run(batch, ids, draws)
