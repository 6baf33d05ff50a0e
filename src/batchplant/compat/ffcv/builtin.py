"""Builtin: FFCV's own operations, each done by one of batchplant's ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np
import torch

from ...interop.torch import numpy_dtype, torch_dtype
from ...ops.base import Draws, Op, Spec
from .pipeline.allocation_query import AllocationQuery
from .pipeline.operation import Operation
from .pipeline.state import State


def interpreted(code: Callable[..., Any]) -> Callable[..., Any]:
    """A function that numba is not asked to compile: the native core does the work."""
    code.interpreted = True  # type: ignore[attr-defined]
    return code


class Builtin(Operation):
    """An operation that batchplant does itself. Its attributes are read anew for every epoch."""

    def as_op(self, tensors: bool) -> Op:
        """The op that does it, on tensors or on arrays."""
        raise NotImplementedError

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        made = state_of(self.as_op(not previous_state.jit_mode).infer(spec_of(previous_state)))
        return made, AllocationQuery(made.shape, made.dtype, None if made.jit_mode else made.device)

    def generate_code(self) -> Callable[..., Any]:
        # Only for those who call it themselves: the Loader runs the op.
        def run(batch: Any, memory: Any, indices: Any) -> Any:
            op = self.as_op(isinstance(batch, torch.Tensor))
            ids = np.asarray(indices, dtype=np.int64)
            return op.run(batch, ids, Draws(int(np.random.randint(2**31)), 0, ids, type(self).__name__))

        run.with_indices = True  # type: ignore[attr-defined]
        return interpreted(run)


def is_ours(operation: Any) -> TypeGuard[Builtin]:
    """Whether it is a Builtin whose behaviour no subclass has replaced."""
    ours = __name__.rpartition(".")[0]
    return isinstance(operation, Builtin) and all(
        getattr(type(operation), name).__module__.startswith(ours)
        for name in ("generate_code", "declare_state_and_memory")
    )


class StateSpec(Spec):
    """A Spec that remembers the State it was made from."""

    state: State


def spec_of(state: State) -> Spec:
    """FFCV's State as batchplant's Spec."""
    tensors = isinstance(state.dtype, torch.dtype) or torch.device(state.device).type != "cpu"
    shape = () if state.shape is None else tuple(int(size) for size in state.shape)
    spec = StateSpec(numpy_dtype(state.dtype), shape, tensors, str(torch.device(state.device)))
    object.__setattr__(spec, "state", state)
    return spec


def state_of(spec: Spec) -> State:
    """batchplant's Spec as FFCV's State."""
    if isinstance(spec, StateSpec):
        return spec.state
    dtype: Any = spec.dtype if spec.dtype is not None else np.dtype(np.uint8)
    return State(
        jit_mode=not spec.torch,
        device=torch.device(spec.device),
        shape=spec.shape,
        dtype=torch_dtype(dtype) if spec.torch else dtype,
    )
