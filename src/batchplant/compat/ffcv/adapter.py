"""UserOp: runs an operation that a user wrote, as one of batchplant's ops."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ...ops.base import Draws, Op, Spec
from ...schema.columns import I64
from .builtin import spec_of, state_of
from .pipeline.allocation_query import allocate
from .pipeline.compiler import Compiler, numba
from .pipeline.operation import Operation
from .pipeline.state import State
from .running import RUNNING

_LOCAL = threading.local()


class UserOp(Op):
    """``decodes``: it stands at the start of a pipeline, and reads the file by itself."""

    def __init__(
        self, operation: Operation, field: Any, metadata: Any, memory: Any, *, decodes: bool, recompile: bool
    ) -> None:
        self.operation = operation
        self._field, self._metadata, self._memory = field, metadata, memory
        self._decodes, self._recompile = decodes, recompile
        self._code: Callable[..., Any] | None = None
        self._plain: Callable[..., Any] | None = None
        self._fill: Callable[..., Any] | None = None
        self._asked: Any = None
        self._asked_shared: Any = None

    def infer(self, spec: Spec) -> Spec:
        state = state_of(spec)
        if self._decodes:
            state = State(True, torch.device("cpu"), None, np.dtype(np.uint8))
        operation = self.operation
        with RUNNING:
            operation.accept_field(self._field)
            operation.accept_globals(self._metadata, self._memory.compile_reader())
            made, self._asked = operation.declare_state_and_memory(state)
            self._asked_shared = operation.declare_shared_memory(state)
            if self._code is None or self._recompile:
                self._plain = operation.generate_code()
                self._fill = operation.generate_code_for_shared_state()
                self._code = Compiler.compile(self._plain) if made.jit_mode else self._plain
        return spec_of(made)

    @property
    def code(self) -> Callable[..., Any] | None:
        """The function that does it, compiled or not."""
        return self._code

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        with RUNNING:
            arguments = [ids if self._decodes else batch, allocate(self._asked, len(ids))]
            if getattr(self._plain, "with_indices", False):
                arguments.append(ids)
            if self._decodes:
                arguments += [self._metadata, self._memory.schedule_epoch([]).state]
            if self._fill is not None:
                arguments.append(self._shared(ids))
            return self._call(arguments)

    def _shared(self, ids: I64) -> Any:
        """The memory that all places of this operation share, filled once for every batch."""
        # All outputs of a batch are made in one thread, with the very same array of sample numbers.
        if getattr(_LOCAL, "ids", None) is not ids:
            _LOCAL.ids, _LOCAL.shared = ids, {}
        if id(self.operation) not in _LOCAL.shared:
            memory = allocate(self._asked_shared, len(ids))
            assert self._fill is not None
            self._fill(memory)
            _LOCAL.shared[id(self.operation)] = memory
        return _LOCAL.shared[id(self.operation)]

    def _call(self, arguments: list[Any]) -> Any:
        assert self._code is not None
        if self._code is self._plain:
            return self._code(*arguments)
        try:
            return self._code(*arguments)
        except numba().core.errors.NumbaError as error:
            name = type(self.operation).__name__
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"numba cannot compile {name}, so it runs as plain Python: {reason}", stacklevel=2)
            self._code = self._plain
            return self._call(arguments)

    def __repr__(self) -> str:
        return f"UserOp({type(self.operation).__name__})"
