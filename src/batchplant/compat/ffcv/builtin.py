"""Base class of FFCV's own operations, each of which one of batchplant's ops carries out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np
import torch

from ...interop.torch import numpy_dtype, torch_dtype
from ...ops.base import Batch, Draws, Op, Spec
from .pipeline.allocation_query import AllocationQuery
from .pipeline.operation import Operation
from .pipeline.state import State

# FFCV runs the code of users in one thread, so it may not be safe in two.
USER_CODE_LOCK = threading.RLock()


def interpreted(code: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that numba does not compile, because the native core does the work."""
    code.interpreted = True  # type: ignore[attr-defined]
    return code


class Builtin(Operation):
    """An operation that batchplant carries out. Its attributes are read again for every epoch."""

    def as_op(self, tensors: bool) -> Op:
        """Return the op for it, on tensors or on arrays."""
        raise NotImplementedError

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        state = state_of(self.as_op(not previous_state.jit_mode).infer(spec_of(previous_state)))
        return state, AllocationQuery(state.shape, state.dtype, None if state.jit_mode else state.device)

    def generate_code(self) -> Callable[..., Any]:
        # For users who call it themselves; the Loader runs the op.
        def run(batch: Batch, memory: Any, indices: Any) -> Any:
            op = self.as_op(isinstance(batch, torch.Tensor))
            ids = np.asarray(indices, dtype=np.int64)
            return op.run(batch, ids, Draws(int(np.random.randint(2**31)), 0, ids, type(self).__name__))

        run.with_indices = True  # type: ignore[attr-defined]
        return interpreted(run)


def is_ours(operation: object) -> TypeGuard[Builtin]:
    """Return True for a Builtin whose behaviour no subclass has replaced."""
    package = __name__.rpartition(".")[0]
    return isinstance(operation, Builtin) and all(
        getattr(type(operation), name).__module__.startswith(package)
        for name in ("generate_code", "declare_state_and_memory")
    )


class StateSpec(Spec):
    """A Spec that keeps the State it was derived from."""

    state: State


def spec_of(state: State) -> Spec:
    """Convert FFCV's State to batchplant's Spec."""
    tensors = isinstance(state.dtype, torch.dtype) or torch.device(state.device).type != "cpu"
    shape = () if state.shape is None else tuple(int(size) for size in state.shape)
    spec = StateSpec(numpy_dtype(state.dtype), shape, tensors, str(torch.device(state.device)))
    object.__setattr__(spec, "state", state)
    return spec


def state_of(spec: Spec) -> State:
    """Convert batchplant's Spec to FFCV's State."""
    if isinstance(spec, StateSpec):
        return spec.state
    dtype: Any = spec.dtype if spec.dtype is not None else np.dtype(np.uint8)
    return State(
        jit_mode=not spec.torch,
        device=torch.device(spec.device),
        shape=spec.shape,
        dtype=torch_dtype(dtype) if spec.torch else dtype,
    )
